//! Sluice's performance goals, and the results of a run against them.

use serde::Serialize;

use crate::run::{Outcome, Sample};
use crate::stats::Spread;

/// A number that must stay at or below a limit.
struct Goal {
    scenario: &'static str,
    text: &'static str,
    measure: Measure,
    limit: f64,
}

enum Measure {
    /// CPU time per request of Sluice as a ratio to that of another arm.
    CpuRatioTo(&'static str),
    /// Resident memory at rest, MB (millions of bytes).
    RestMb,
    KibPerConnection,
    /// Time until a large configuration is served, seconds.
    LoadSeconds,
    /// Memory of an object of a large configuration, KiB.
    KibPerObject,
    /// CPU time of a TLS handshake with many certificates as a ratio to that with one.
    HandshakeRatio,
    /// CPU time of the control plane for a change under load, milliseconds.
    ControlMs,
    /// The 99th percentile of the latency as a ratio to that of another arm.
    P99RatioTo(&'static str),
    /// The 99th percentile of the latency less that of another arm, milliseconds.
    P99AddedTo(&'static str),
}

use Measure::{
    ControlMs, CpuRatioTo, HandshakeRatio, KibPerConnection, KibPerObject, LoadSeconds, P99AddedTo,
    P99RatioTo, RestMb,
};

const fn goal(scenario: &'static str, text: &'static str, measure: Measure, limit: f64) -> Goal {
    Goal { scenario, text, measure, limit }
}

const GOALS: &[Goal] = &[
    goal("plain-chunked-4000", "4,000 bytes chunked: CPU per request, of nginx's", CpuRatioTo("nginx"), 0.72),
    goal("plain-chunked-4000", "4,000 bytes chunked: of HAProxy's", CpuRatioTo("haproxy"), 0.78),
    goal("plain-chunked-4000", "4,000 bytes chunked: of Envoy's", CpuRatioTo("envoy"), 0.42),
    goal("plain-chunked-4000", "4,000 bytes chunked: of Pingora's", CpuRatioTo("pingora"), 0.42),
    goal("plain-length-4000", "4,000 bytes with Content-Length: of nginx's", CpuRatioTo("nginx"), 0.80),
    goal("plain-length-4000", "4,000 bytes with Content-Length: of HAProxy's", CpuRatioTo("haproxy"), 0.78),
    goal("plain-12", "12 bytes: of nginx's", CpuRatioTo("nginx"), 0.92),
    goal("plain-12", "12 bytes: of HAProxy's", CpuRatioTo("haproxy"), 0.90),
    goal(
        "plugins",
        "limit-count + key-auth + prometheus: of our own plain",
        CpuRatioTo("sluice, plain"),
        1.04,
    ),
    goal("ten-plugins", "ten common plugins: of our own plain", CpuRatioTo("sluice, plain"), 1.10),
    goal("access-log", "Access log: of our own plain", CpuRatioTo("sluice, plain"), 1.03),
    goal(
        "lua-nothing",
        "A function in Lua that does nothing: of our own plain",
        CpuRatioTo("sluice, plain"),
        1.15,
    ),
    goal("lua-headers", "One with headers and JSON: of our own plain", CpuRatioTo("sluice, plain"), 1.6),
    goal(
        "wasm-nothing",
        "A filter in WebAssembly that does nothing: of our own plain",
        CpuRatioTo("sluice, plain"),
        1.5,
    ),
    goal("tap-nothing", "A tap that matches nothing: of our own plain", CpuRatioTo("sluice, plain"), 1.01),
    goal("tap-all-10000", "A tap that matches all: of our own plain", CpuRatioTo("sluice, plain"), 1.10),
    goal("rate-limit-redis", "Rate limit in Redis: of our own plain", CpuRatioTo("sluice, plain"), 1.6),
    goal(
        "rate-limit-redis-5000",
        "Rate limit in Redis at 5,000 requests/s: added to p99, ms",
        P99AddedTo("sluice, plain"),
        1.0,
    ),
    goal("5k-routes", "5,000 routes: of our own plain", CpuRatioTo("sluice, plain"), 1.03),
    goal("100k-routes", "100,000 routes: of our own plain", CpuRatioTo("sluice, plain"), 1.03),
    goal(
        "two-workers",
        "Two workers: CPU per request, of one worker's",
        CpuRatioTo("sluice, one worker"),
        1.05,
    ),
    goal("tls-keepalive", "HTTP/1.1 over TLS: CPU per request, of nginx's", CpuRatioTo("nginx"), 0.85),
    goal("tls-bulk", "1 MiB over TLS: of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tls-bulk", "1 MiB over TLS: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("tls-full", "Full TLS handshake: CPU each, of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tls-full", "Full TLS handshake: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("tls-resumed", "Resumed TLS handshake: CPU each, of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tls-resumed", "Resumed TLS handshake: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("tls-full-rsa", "Full TLS handshake, RSA: CPU each, of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tls-full-rsa", "Full TLS handshake, RSA: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("tls-resumed-rsa", "Resumed TLS handshake, RSA: CPU each, of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tls-resumed-rsa", "Resumed TLS handshake, RSA: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("h2", "HTTP/2 over TLS: CPU per request, of nginx's", CpuRatioTo("nginx"), 0.80),
    goal("h2", "HTTP/2 over TLS: of HAProxy's", CpuRatioTo("haproxy"), 0.95),
    goal("h2", "HTTP/2 over TLS: of Envoy's", CpuRatioTo("envoy"), 0.60),
    goal("h2c", "HTTP/2 in clear text: of nginx's", CpuRatioTo("nginx"), 0.80),
    goal("h2c", "HTTP/2 in clear text: of HAProxy's", CpuRatioTo("haproxy"), 0.95),
    goal("h2c", "HTTP/2 in clear text: of Envoy's", CpuRatioTo("envoy"), 0.60),
    goal("grpc-unary", "gRPC unary: CPU per call, of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("grpc-unary", "gRPC unary: of nginx's", CpuRatioTo("nginx"), 0.60),
    goal("grpc-unary", "gRPC unary: of Envoy's", CpuRatioTo("envoy"), 0.25),
    goal("websocket-echo", "WebSocket: CPU per message, of nginx's", CpuRatioTo("nginx"), 1.0),
    goal("tcp-relay", "TCP relay, 4,000 bytes: CPU per exchange, of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("tcp-relay-bulk", "TCP relay, 1 MiB: of HAProxy's", CpuRatioTo("haproxy"), 1.0),
    goal("partial-load", "A quarter of the load, 50 connections: of nginx's", CpuRatioTo("nginx"), 0.90),
    goal("partial-load", "A quarter of the load, 50 connections: of HAProxy's", CpuRatioTo("haproxy"), 0.90),
    goal("partial-load-8", "A quarter of the load, 8 connections: of nginx's", CpuRatioTo("nginx"), 0.90),
    goal("partial-load-8", "A quarter of the load, 8 connections: of HAProxy's", CpuRatioTo("haproxy"), 0.90),
    goal("idle-tls", "Memory per idle TLS connection, KiB", KibPerConnection, 12.0),
    goal("idle-h2", "Memory per idle HTTP/2 connection over TLS, KiB", KibPerConnection, 14.0),
    goal("idle", "Resident memory at rest, MB", RestMb, 15.0),
    goal("certificates", "100,000 certificates: CPU of a handshake, of that with one", HandshakeRatio, 1.05),
    goal("scale-100k-routes", "100,000 routes: loaded, s", LoadSeconds, 1.0),
    goal("scale-100k-routes", "100,000 routes: memory of one, KiB", KibPerObject, 2.0),
    goal(
        "churn-50k-routes",
        "50 changes a second at 50,000 routes: p99, of that without",
        P99RatioTo("sluice, no changes"),
        1.2,
    ),
    goal("churn-50k-routes", "50 changes a second at 50,000 routes: control CPU each, ms", ControlMs, 1.0),
    goal(
        "churn-100k-consumers",
        "50 changes a second at 100,000 consumers: p99, of that without",
        P99RatioTo("sluice, no changes"),
        1.2,
    ),
    goal(
        "churn-100k-consumers",
        "50 changes a second at 100,000 consumers: control CPU each, ms",
        ControlMs,
        1.0,
    ),
    goal("idle", "Memory per idle keep-alive connection, KiB", KibPerConnection, 4.0),
];

/// A goal with the measured value.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub scenario: &'static str,
    pub text: &'static str,
    pub limit: f64,
    /// `None` if the run did not measure it.
    pub measured: Option<Spread>,
}

impl Verdict {
    pub fn word(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            // Compared with the precision of the report.
            Some(spread) if (spread.median * 1000.0).round() <= (self.limit * 1000.0).round() => "met",
            Some(_) => "missed",
        }
    }
}

/// Judges every goal, in order, by `outcomes`.
pub fn judge(outcomes: &[Outcome]) -> Vec<Verdict> {
    GOALS
        .iter()
        .map(|goal| {
            let outcome = outcomes.iter().find(|outcome| outcome.scenario.id == goal.scenario);
            let measured = outcome.and_then(|outcome| measure(outcome, &goal.measure));
            Verdict { scenario: goal.scenario, text: goal.text, limit: goal.limit, measured }
        })
        .collect()
}

fn measure(outcome: &Outcome, measure: &Measure) -> Option<Spread> {
    let ours = outcome.arm("sluice")?;
    match measure {
        CpuRatioTo(label) => {
            Spread::of_ratio(&ours.each(Sample::cpu_us), &outcome.arm(label)?.each(Sample::cpu_us))
        }
        RestMb => ours.spread(|sample| Some(sample.idle.as_ref()?.rest_rss_kib as f64 * 1024.0 / 1e6)),
        LoadSeconds => ours.spread(|sample| Some(sample.scale.as_ref()?.load_ms / 1e3)),
        KibPerObject => ours.spread(|sample| Some(sample.scale.as_ref()?.kib_each)),
        ControlMs => ours.spread(|sample| Some(sample.churn.as_ref()?.control_us? / 1e3)),
        P99RatioTo(label) => {
            let p99 = |sample: &Sample| sample.load.p99_us;
            Spread::of_ratio(&ours.each(p99), &outcome.arm(label)?.each(p99))
        }
        P99AddedTo(label) => {
            let p99 = |sample: &Sample| sample.load.p99_us;
            let other = outcome.arm(label)?.each(p99);
            let pairs = ours.each(p99).into_iter().zip(other);
            Spread::of(pairs.filter_map(|(own, other)| Some((own? - other?) / 1e3)))
        }
        HandshakeRatio => ours.spread(|sample| {
            let scale = sample.scale.as_ref()?;
            Some(scale.handshake_us? / scale.handshake_alone_us?)
        }),
        KibPerConnection => ours.spread(|sample| Some(sample.idle.as_ref()?.kib_per_connection)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_results_meets_nothing() {
        assert!(judge(&[]).iter().all(|verdict| verdict.word() == "not measured"));
    }

    #[test]
    fn a_median_at_the_limit_meets_it() {
        let verdict =
            |median: f64| Verdict { scenario: "", text: "", limit: 0.72, measured: Spread::of([median]) };
        assert_eq!(verdict(0.7204).word(), "met");
        assert_eq!(verdict(0.7206).word(), "missed");
    }
}
