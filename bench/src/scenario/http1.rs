//! HTTP/1.1 in plaintext: the cost of a request, alone and with plugins, routes and changes.

use super::{BASE, Kind, Reference, Scenario};
use crate::gateways::{Gateway, Setup, alone};
use crate::load::Driver;
use crate::upstream::Answer;

use Gateway::{Apisix, Caddy, Direct, Envoy, Haproxy, Kong, Linkerd, Nginx, Pingora, SpringCloud, Zuul1};

pub(super) const NATIVE: &[Gateway] = &[Nginx, Haproxy, Envoy, Pingora, Caddy, Apisix, Kong];
const ALL_PEERS: &[Gateway] =
    &[Nginx, Haproxy, Envoy, Pingora, Caddy, SpringCloud, Zuul1, Apisix, Kong, Linkerd, Direct];

/// Enough to compare Sluice in the time of a quick run.
const QUICK: &[Gateway] = &[Nginx, Haproxy, Envoy, Pingora];

const PLAIN: Setup = Setup::PLAIN;
const OWN_PLAIN: &[Reference] =
    &[Reference { label: "sluice, plain", gateway: Gateway::Sluice, setup: PLAIN, churn: false }];
/// The official script's driver, as used by the ARM64 article.
const SCRIPT: Driver = Driver::Wrk { threads: 2, connections: 16 };

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        id: "plain-chunked-4000",
        also: &["plain-chunked", "plain", "B1", "B3"],
        title: "One route, no plugin, 4,000 bytes chunked (the seeds' upstream)",
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "plain-length-4000",
        also: &["plain-length"],
        title: "One route, no plugin, 4,000 bytes with Content-Length",
        setup: Setup { answer: Answer::Length4000, ..PLAIN },
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "plain-12",
        also: &[],
        title: "One route, no plugin, 12 bytes",
        setup: Setup { answer: Answer::Short12, ..PLAIN },
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "plugins",
        also: &[],
        title: "Rate limit + API key + metrics per route",
        setup: Setup { key: true, limit: true, metrics: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[Nginx, Haproxy, Envoy, Pingora, Apisix, Kong],
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "ten-plugins",
        also: &[],
        title: "Ten common plugins on one route",
        setup: Setup { key: true, limit: true, metrics: true, ten: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        quick: Some(&[]),
        ..BASE
    },
    Scenario {
        id: "access-log",
        also: &[],
        title: "One route, no plugin, a line in the access log for every request",
        setup: Setup { access_log: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        quick: Some(&[]),
        ..BASE
    },
    Scenario {
        id: "lua-nothing",
        also: &["lua"],
        title: "One route with a function in Lua that does nothing",
        setup: Setup { plugin: Some(alone::LUA_NOTHING), ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        quick: Some(&[]),
        ..BASE
    },
    Scenario {
        id: "lua-headers",
        also: &[],
        title: "One route with a function in Lua that reads two headers, sets one and makes JSON",
        setup: Setup { plugin: Some(alone::LUA_HEADERS), ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        quick: Some(&[]),
        ..BASE
    },
    Scenario {
        id: "wasm-nothing",
        also: &["wasm"],
        title: "One route with a filter in WebAssembly that does nothing",
        setup: Setup { wasm: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        quick: Some(&[]),
        ..BASE
    },
    Scenario {
        id: "5k-routes",
        also: &["B6"],
        title: "5,000 routes, all of them asked",
        setup: Setup { routes: 5_000, ..PLAIN },
        references: OWN_PLAIN,
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "100k-routes",
        also: &[],
        title: "100,000 routes, all of them asked",
        setup: Setup { routes: 100_000, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[Nginx, Haproxy, Pingora],
        quick: Some(&[Nginx, Haproxy]),
        ..BASE
    },
    Scenario {
        id: "two-workers",
        also: &["B1-2"],
        title: "One route, no plugin, two workers",
        setup: Setup { workers: 2, ..PLAIN },
        references: &[Reference {
            label: "sluice, one worker",
            gateway: Gateway::Sluice,
            setup: PLAIN,
            churn: false,
        }],
        quick: Some(QUICK),
        cores: 2,
        ..BASE
    },
    Scenario {
        id: "three-workers",
        also: &["B1-3"],
        title: "One route, no plugin, three workers",
        setup: Setup { workers: 3, ..PLAIN },
        references: &[Reference {
            label: "sluice, one worker",
            gateway: Gateway::Sluice,
            setup: PLAIN,
            churn: false,
        }],
        cores: 3,
        ..BASE
    },
    Scenario {
        id: "ten-connections",
        also: &["B2"],
        title: "HTTP/1.1 reverse proxy, 10 threads and 10 connections",
        driver: Driver::Wrk { threads: 10, connections: 10 },
        ..BASE
    },
    Scenario {
        id: "rate-limit",
        also: &["B4"],
        title: "One route with a rate limit",
        setup: Setup { limit: true, ..PLAIN },
        references: OWN_PLAIN,
        ..BASE
    },
    Scenario {
        id: "tap-nothing",
        also: &["dashboard"],
        title: "The dashboard is open, with a tap that matches nothing",
        setup: Setup { tap: Some("path=/no-such-path"), ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        ..BASE
    },
    Scenario {
        id: "tap-all-10000",
        also: &[],
        title: "The dashboard is open, with a tap that matches all, at 10,000 requests/s, open loop",
        driver: Driver::Paced { connections: 50, rate: 10_000 },
        setup: Setup { tap: Some(""), ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        ..BASE
    },
    Scenario {
        id: "rate-limit-redis",
        also: &[],
        title: "One route with a rate limit that is counted in Redis, 16 connections",
        driver: Driver::Wrk { threads: 1, connections: 16 },
        setup: Setup { limit: true, redis: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        ..BASE
    },
    Scenario {
        id: "rate-limit-redis-5000",
        also: &[],
        title: "Latency with a rate limit that is counted in Redis, at 5,000 requests/s, open loop",
        driver: Driver::Paced { connections: 50, rate: 5_000 },
        setup: Setup { limit: true, redis: true, ..PLAIN },
        references: OWN_PLAIN,
        peers: &[],
        ..BASE
    },
    Scenario {
        id: "rate-limit-key-auth",
        also: &["B5"],
        title: "One route with a rate limit and an API key",
        setup: Setup { limit: true, key: true, ..PLAIN },
        references: OWN_PLAIN,
        ..BASE
    },
    Scenario {
        id: "sixteen-connections",
        also: &["B7"],
        title: "One route, no plugin, 16 connections",
        driver: SCRIPT,
        ..BASE
    },
    Scenario {
        id: "rate-limit-prometheus",
        also: &["B8"],
        title: "Rate limit (2,000,000,000,000 a minute) + Prometheus metrics, 16 connections",
        driver: SCRIPT,
        setup: Setup { limit: true, metrics: true, ..PLAIN },
        references: OWN_PLAIN,
        ..BASE
    },
    Scenario {
        id: "gateways-wrk",
        also: &["B9"],
        title: "Gateways over HTTP/1.1, 10 threads and 200 connections",
        driver: Driver::Wrk { threads: 10, connections: 200 },
        peers: ALL_PEERS,
        quick: Some(ALL_PEERS),
        ..BASE
    },
    Scenario {
        id: "gateways-ab",
        also: &["B10"],
        title: "Gateways over HTTP/1.0, 200 at once, 50,000 requests, a connection each",
        driver: Driver::Ab { connections: 200, requests: 50_000 },
        // Some rivals send chunked responses to HTTP/1.0 clients, which treat the chunk sizes as
        // content.
        setup: Setup { answer: Answer::Length4000, ..PLAIN },
        peers: ALL_PEERS,
        ..BASE
    },
    Scenario {
        id: "latency",
        also: &["open-loop"],
        title: "Latency at 1,000 requests/s, open loop",
        driver: Driver::Paced { connections: 50, rate: 1_000 },
        peers: ALL_PEERS,
        quick: Some(QUICK),
        ..BASE
    },
    Scenario {
        id: "latency-5000",
        also: &[],
        title: "Latency at 5,000 requests/s, open loop",
        driver: Driver::Paced { connections: 50, rate: 5_000 },
        ..BASE
    },
    Scenario {
        id: "idle",
        also: &["idle-connections", "rss"],
        title: "Memory at rest and per idle keep-alive connection (10,000 of them)",
        kind: Kind::Idle,
        peers: &[Nginx, Haproxy, Envoy, Pingora, Caddy],
        quick: Some(QUICK),
        ..BASE
    },
];
