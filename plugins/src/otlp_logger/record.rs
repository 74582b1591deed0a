//! hot path
//!
//! The log record of an exchange. Parts of it that are JSON are fields of their own, which the sink encodes, so that the
//! worker does not.

use std::sync::LazyLock;

use sdk::Exchange;
use sdk::log_entry::Bodies;
use sdk::otlp::{self, Any, field};
use sdk::sink::Record;
use sdk::vars::Var;

use crate::logger::{Logger, full, wrapped};
use crate::opentelemetry::{response_source, sent_span};

struct Vars {
    host: Var,
    peer: Var,
    uri: Var,
}

static VARS: LazyLock<Vars> = LazyLock::new(|| Vars {
    host: Var::parse("host"),
    peer: Var::parse("realip_remote_addr"),
    uri: Var::parse("request_uri"),
});

/// Attributes of a record; text that is empty has none.
struct Attributes<'o>(&'o mut Vec<u8>);

/// The record of an exchange that has ended; `None` as in [`Logger::record`].
pub(super) fn of(logger: &Logger, x: &Exchange<'_>) -> Option<Record> {
    let extra = logger.full_format();
    let mut record = wrapped(x, || {
        let mut out = Vec::with_capacity(1024);
        frame(x, &mut out);
        if extra.is_some() {
            whole(logger, x, &mut out);
        }
        out
    })?;
    match extra {
        None => record.fields.push(("body", logger.entry(x, None))),
        Some(Some(extra)) => {
            let response = logger.response_body(x);
            let bodies = Bodies { request: logger.read_request_body(x), response: response.as_deref() };
            let mut fields = b"{".to_vec();
            extra.write(x, bodies, |_| false, false, &mut fields);
            fields.push(b'}');
            record.fields.push(("attributes", fields));
        }
        Some(None) => {}
    }
    Some(record)
}

/// The parts of every record: times, severity, and the span.
fn frame(x: &Exchange<'_>, out: &mut Vec<u8>) {
    let end = x.world().now_ms().saturating_mul(1_000_000);
    otlp::fixed64(field::LOG_TIME, end, out);
    otlp::fixed64(field::LOG_OBSERVED, end, out);
    let (severity, text) = match x.status() {
        500.. => (otlp::SEVERITY_ERROR, "ERROR"),
        400.. => (otlp::SEVERITY_WARN, "WARN"),
        _ => (otlp::SEVERITY_INFO, "INFO"),
    };
    otlp::number(field::LOG_SEVERITY, severity, out);
    otlp::text(field::LOG_SEVERITY_TEXT, text.as_bytes(), out);
    if let Some(span) = sent_span(x) {
        otlp::fixed32(field::LOG_FLAGS, span.sampled.into(), out);
        otlp::bytes(field::LOG_TRACE_ID, &span.trace_id, out);
        otlp::bytes(field::LOG_SPAN_ID, &span.span_id, out);
    }
}

/// The body and the attributes of a record without a format of its own.
fn whole(logger: &Logger, x: &Exchange<'_>, out: &mut Vec<u8>) {
    let vars = &*VARS;
    let (head, client, timing, status) = (x.request(), x.client(), x.timing(), x.status());
    let uri = vars.uri.of(x).unwrap_or_default();
    let line = [head.method_bytes(), b" ", &uri, b" ", status.to_string().as_bytes()].concat();
    otlp::any(field::LOG_BODY, Any::Text(&line), out);
    let mut to = Attributes(out);
    to.text("http.request.method", head.method_bytes());
    to.text("url.scheme", client.scheme().as_bytes());
    to.text("url.path", x.path());
    to.text("url.query", x.query());
    to.number("http.response.status_code", status.into());
    if status >= 500 {
        to.text("error.type", status.to_string().as_bytes());
    }
    to.number("http.request.size", timing.received);
    to.number("http.response.size", timing.sent);
    to.seconds("http.server.request.duration", timing.total_us);
    to.text("server.address", &vars.host.of(x).unwrap_or_default());
    to.number("server.port", client.local.port().into());
    to.text("client.address", client.ip_text());
    to.text("network.peer.address", &vars.peer.of(x).unwrap_or_default());
    to.number("network.peer.port", client.peer.port().into());
    to.text("network.protocol.name", b"http");
    to.text("network.protocol.version", version(head.version.as_str()).as_bytes());
    to.text("user_agent.original", x.header("User-Agent").unwrap_or_default());
    to.text("user.name", x.consumer().map_or("", |consumer| &consumer.name).as_bytes());
    if let Some(route) = x.route() {
        to.text("http.route", x.matched_uri().as_bytes());
        to.text("apisix.route_id", route.id.as_bytes());
        to.text("apisix.route_name", route.name.as_bytes());
        to.text("apisix.service_id", route.service_id.as_bytes());
        to.text("apisix.service_name", route.service_name.as_bytes());
    }
    to.text("apisix.response_source", response_source(x).as_bytes());
    if let Some(upstream) = full::upstream(x) {
        to.text("apisix.upstream_addr", &upstream);
        to.seconds("apisix.upstream_duration", timing.upstream_us);
    }
    to.text("http.request.body.content", logger.logged_request_body(x).unwrap_or_default());
    to.text("http.response.body.content", &logger.response_body(x).unwrap_or_default());
}

/// The conventions write 2 and 3 without a fraction.
fn version(written: &str) -> &str {
    let number = written.trim_start_matches("HTTP/");
    number.strip_suffix(".0").filter(|&number| number != "1").unwrap_or(number)
}

impl Attributes<'_> {
    fn text(&mut self, key: &str, value: &[u8]) {
        if !value.is_empty() {
            self.put(key, Any::Text(value));
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.put(key, Any::Int(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn seconds(&mut self, key: &str, micros: u64) {
        self.put(key, Any::Double(micros as f64 / 1e6));
    }

    fn put(&mut self, key: &str, value: Any<'_>) {
        otlp::attribute(field::LOG_ATTRIBUTES, key.as_bytes(), value, self.0);
    }
}

#[cfg(test)]
mod tests;
