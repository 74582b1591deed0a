//! Protocols besides plaintext HTTP/1.1: TLS, HTTP/2, gRPC, WebSocket, TCP, HTTP/3; and HTTP/1.1 at
//! a realistic rate.

use super::{BASE, Kind, Reference, Scenario};
use crate::gateways::{Gateway, Setup};
use crate::load::{Call, Driver, Front};
use crate::upstream::Answer;

use Gateway::{Caddy, Envoy, Haproxy, Nginx};

const PEERS: &[Gateway] = &[Nginx, Haproxy, Envoy, Caddy];

const TLS: Setup = Setup { front: Front::Https, answer: Answer::Length4000, ..Setup::PLAIN };
const RSA: Setup = Setup { rsa: true, ..TLS };
const H2: Setup = Setup { front: Front::H2, ..TLS };
const H2C: Setup = Setup { front: Front::H2c, ..TLS };
const SLOW: Setup = Setup { answer: Answer::Slow4000, ..Setup::PLAIN };

/// Without Envoy: its TLS library sends session tickets with the first response, so a client
/// without a request cannot see when its handshake has finished.
const SHAKING: &[Gateway] = &[Nginx, Haproxy, Caddy];

const STREAMS: Driver = Driver::H2load { connections: 4, streams: 100 };
const HYBRID: &[Reference] = &[Reference {
    label: "sluice, X25519MLKEM768",
    gateway: Gateway::Sluice,
    setup: Setup { hybrid: true, ..TLS },
    churn: false,
}];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        id: "tls-keepalive",
        also: &["tls"],
        title: "HTTP/1.1 over TLS 1.3 (ECDSA P-256), connections kept, 4,000 bytes",
        setup: TLS,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "tls-bulk",
        also: &[],
        title: "HTTP/1.1 over TLS 1.3, connections kept, answers of 1 MiB",
        driver: Driver::Wrk { threads: 1, connections: 10 },
        setup: Setup { answer: Answer::Large1M, ..TLS },
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "tls-full",
        also: &["handshakes"],
        title: "Full TLS 1.3 handshakes (ECDSA P-256, X25519), no request",
        driver: Driver::Handshakes { threads: 16, resumed: false },
        setup: TLS,
        references: HYBRID,
        peers: SHAKING,
        ..BASE
    },
    Scenario {
        id: "tls-resumed",
        also: &[],
        title: "Resumed TLS 1.3 handshakes (tickets, X25519), no request",
        driver: Driver::Handshakes { threads: 16, resumed: true },
        setup: TLS,
        references: HYBRID,
        peers: SHAKING,
        ..BASE
    },
    Scenario {
        id: "tls-full-rsa",
        also: &[],
        title: "Full TLS 1.3 handshakes (RSA of 2048 bits, X25519), no request",
        driver: Driver::Handshakes { threads: 16, resumed: false },
        setup: RSA,
        peers: SHAKING,
        ..BASE
    },
    Scenario {
        id: "tls-resumed-rsa",
        also: &[],
        title: "Resumed TLS 1.3 handshakes (tickets, X25519) of a server with a key of RSA, no request",
        driver: Driver::Handshakes { threads: 16, resumed: true },
        setup: RSA,
        peers: SHAKING,
        ..BASE
    },
    Scenario {
        id: "h2",
        also: &["http2"],
        title: "HTTP/2 over TLS 1.3 (upstream HTTP/1.1), 4,000 bytes",
        driver: STREAMS,
        setup: H2,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "h2c",
        also: &[],
        title: "HTTP/2 in clear text (upstream HTTP/1.1), 4,000 bytes",
        driver: STREAMS,
        setup: H2C,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "grpc-unary",
        also: &["grpc"],
        title: "Unary gRPC calls over HTTP/2 in clear text on both sides, 100 bytes to and fro",
        driver: STREAMS,
        setup: Setup { call: Call::Grpc, answer: Answer::Grpc, ..H2C },
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "websocket-echo",
        also: &["websocket"],
        title: "WebSocket messages of 100 bytes, echoed by the upstream",
        driver: Driver::Echo { connections: 50 },
        setup: Setup { call: Call::WebSocket, answer: Answer::Echo, ..Setup::PLAIN },
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "tcp-relay",
        also: &["tcp"],
        title: "Bytes passed on unseen, a request and 4,000 bytes back",
        setup: Setup { relay: true, answer: Answer::Length4000, ..Setup::PLAIN },
        peers: &[Haproxy, Envoy],
        ..BASE
    },
    Scenario {
        id: "tcp-relay-bulk",
        also: &[],
        title: "Bytes passed on unseen, a request and 1 MiB back",
        driver: Driver::Wrk { threads: 1, connections: 10 },
        setup: Setup { relay: true, answer: Answer::Large1M, ..Setup::PLAIN },
        peers: &[Haproxy, Envoy],
        ..BASE
    },
    Scenario {
        id: "http3",
        also: &["h3"],
        title: "HTTP/3 (upstream HTTP/1.1), 4,000 bytes",
        driver: Driver::Http3 { connections: 4, streams: 25 },
        setup: Setup { front: Front::Http3, ..TLS },
        peers: &[Caddy],
        ..BASE
    },
    Scenario {
        id: "partial-load",
        also: &["partial-load-50"],
        title: "A quarter of the highest rate, 4,000 bytes in two parts, 50 connections",
        driver: Driver::Quarter { connections: 50 },
        setup: SLOW,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "partial-load-8",
        also: &[],
        title: "A quarter of the highest rate, 4,000 bytes in two parts, 8 connections",
        driver: Driver::Quarter { connections: 8 },
        setup: SLOW,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "idle-tls",
        also: &[],
        title: "Memory at rest and per idle TLS connection (10,000 of them)",
        kind: Kind::Idle,
        setup: TLS,
        peers: PEERS,
        ..BASE
    },
    Scenario {
        id: "idle-h2",
        also: &[],
        title: "Memory at rest and per idle HTTP/2 connection over TLS (10,000 of them)",
        kind: Kind::Idle,
        setup: H2,
        references: &[Reference {
            label: "sluice, clear text",
            gateway: Gateway::Sluice,
            setup: H2C,
            churn: false,
        }],
        peers: PEERS,
        ..BASE
    },
];
