//! hot path
//!
//! zipkin: spans of each sampled request, sent to a Zipkin collector as JSON of its version 2.
//!
//! Settings, names and tags as in APISIX 3.18. The trace comes from the client in one header (`b3`) or several
//! (`X-B3-*`) and goes on to the upstream in several, sampled or not.

mod b3;

use std::io::Write;
use std::net::IpAddr;

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Sink};
use sdk::trace::{SpanContext, Tracer, new_ids};
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{endpoint, wrapped};
use crate::opentelemetry::{response_source, salt};
use b3::{Headers, TraceId, hex_text};

/// The plugin instance.
pub struct Zipkin {
    /// Requests whose number is below this, of 2^64, are sampled.
    bound: u128,
    salt: u64,
    sets_variables: bool,
    version: u64,
    /// `serviceName` as JSON.
    service: Vec<u8>,
    address: Option<IpAddr>,
    headers: Headers,
    request_uri: Var,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint: String,
    sample_ratio: f64,
    service_name: String,
    server_addr: Option<String>,
    span_version: u64,
}

/// The trace of a sampled request.
struct Active {
    instance: usize,
    trace: TraceId,
    parent: Option<[u8; 8]>,
    id: [u8; 8],
    /// The span of the upstream.
    proxy: [u8; 8],
    /// Unix milliseconds in the rewrite phase.
    rewritten_ms: u64,
}

/// A span in microseconds since the start of the request.
struct Part<'a> {
    name: &'a str,
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    from: u64,
    to: u64,
}

/// Seconds for connecting, and for each part of the answer.
const TIMEOUT: u64 = 10;

impl Plugin for Zipkin {
    const NAME: &'static str = "zipkin";
    const PRIORITY: i32 = 12011;
    const PHASES: Phases = Phases::REWRITE.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "endpoint": {"type": "string"},
                "sample_ratio": {"type": "number", "minimum": 0.00001, "maximum": 1},
                "service_name": {"type": "string", "default": "APISIX"},
                "server_addr": {
                    "type": "string",
                    "pattern": "^[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}.[0-9]{1,3}$",
                },
                "span_version": {"enum": [1, 2], "default": 2},
            },
            "required": ["endpoint", "sample_ratio"],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Zipkin, Invalid> {
        let Config { endpoint, sample_ratio, service_name, server_addr, span_version } = config;
        // As in APISIX, the collector's certificate is not verified.
        let (servers, endpoints) = endpoint::all([(&endpoint[..], "/endpoint".to_owned())], "", false)?;
        let address =
            match server_addr {
                Some(text) => Some(text.parse().map_err(|_| {
                    Invalid::new("this is not an address").at("/server_addr").got(text.as_str())
                })?),
                None => None,
            };
        let mut service = Vec::new();
        json_text(service_name.as_bytes(), &mut service);
        let settings = json!({
            "endpoints": endpoints,
            "format": "array",
            "headers": {"Content-Type": "application/json"},
            "timeout": TIMEOUT * 1000,
        });
        let target = Destination { sink: "http", servers, settings };
        let batching = Batching { batch_max_size: 1000, ..Batching::at_once("zipkin_report") };
        let sink = cx.own_sink(Self::NAME, target, batching);
        let attr = |name: &str| cx.attr.and_then(|attr| attr.get(name)).and_then(Value::as_bool);
        Ok(Zipkin {
            bound: (sample_ratio * (1_u128 << 64) as f64) as u128,
            salt: salt(cx.owner.collection, &cx.owner.id),
            sets_variables: attr("set_ngx_var").unwrap_or(false),
            version: span_version,
            service,
            address,
            headers: Headers::new()?,
            request_uri: Var::parse("request_uri"),
            sink,
        })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let Some(given) = self.headers.read(x) else {
            return Step::Reply(Reply::status(400).because("the b3 header is invalid"));
        };
        let unique = x.unique();
        let sampled = given.sampled.unwrap_or_else(|| u128::from(unique[1]) < self.bound);
        let (made, id) = new_ids(unique, self.salt);
        let trace = given.trace.unwrap_or(TraceId { bytes: made, is_short: false });
        let proxy = new_ids(unique, self.salt ^ 1).1;
        let (span, parent) = if sampled { (proxy, Some(id)) } else { (id, given.span) };
        self.headers.write(x, &trace, span, parent, sampled);
        if self.sets_variables {
            x.set_span(Tracer::Zipkin, SpanContext { trace_id: trace.bytes, span_id: id, sampled });
        }
        if sampled {
            x.expect_log();
            let rewritten_ms = x.world().now_ms();
            let instance = std::ptr::from_ref(self).addr();
            x.set_note(Active { instance, trace, parent: given.span, id, proxy, rewritten_ms });
        }
        Step::Next
    }

    fn logs_on_demand(&self) -> bool {
        true
    }

    fn log(&self, x: &mut Exchange<'_>) {
        // Of several instances, as of a global rule, the last one has the spans.
        let instance = std::ptr::from_ref(self).addr();
        let Some(active) = x.note::<Active>().filter(|active| active.instance == instance) else { return };
        if let Some(record) = wrapped(x, || self.spans(x, active)) {
            self.sink.push(x, record);
        }
    }
}

impl Zipkin {
    /// The spans of a request that has ended, with commas between them.
    fn spans(&self, x: &Exchange<'_>, active: &Active) -> Vec<u8> {
        let mut out = Vec::with_capacity(2048);
        let end = x.timing().total_us;
        let request = Part { name: "apisix.request", id: active.id, parent: active.parent, from: 0, to: end };
        self.span(x, active, &request, &mut out);
        // When the upstream was contacted, and when its head arrived.
        let (asked, answered) = match x.upstream_addr() {
            Some(_) => {
                let timing = x.timing();
                let asked = end.saturating_sub(timing.upstream_us);
                (asked, (asked + timing.answered_us.saturating_sub(timing.asked_us)).min(end))
            }
            None => (end, end),
        };
        let child = |name, salt: u64, from, to| Part {
            name,
            id: new_ids(x.unique(), self.salt ^ salt).1,
            parent: Some(active.id),
            from,
            to,
        };
        let proxy =
            |from, to| Part { name: "apisix.proxy", id: active.proxy, parent: Some(active.id), from, to };
        let parts = if self.version == 1 {
            let rewritten = active.rewritten_ms.saturating_sub(x.start_ms()).saturating_mul(1000).min(asked);
            vec![
                child("apisix.rewrite", 2, 0, rewritten),
                child("apisix.access", 3, rewritten, asked),
                proxy(asked, end),
                Part { parent: Some(active.proxy), ..child("apisix.body_filter", 4, answered, end) },
            ]
        } else {
            vec![proxy(0, answered), child("apisix.response_span", 5, answered, end)]
        };
        for part in parts {
            out.push(b',');
            self.span(x, active, &part, &mut out);
        }
        out
    }

    fn span(&self, x: &Exchange<'_>, active: &Active, part: &Part<'_>, out: &mut Vec<u8>) {
        let id = |key: &str, bytes: &[u8], out: &mut Vec<u8>| {
            out.extend_from_slice(key.as_bytes());
            out.push(b'"');
            hex_text(bytes, out);
            out.push(b'"');
        };
        id("{\"traceId\":", active.trace.shown(), out);
        id(",\"id\":", &part.id, out);
        if let Some(parent) = &part.parent {
            id(",\"parentId\":", parent, out);
        }
        let start = x.start_ms().saturating_mul(1000).saturating_add(part.from);
        // Writing to a Vec cannot fail. A duration is at least one microsecond in Zipkin.
        let _ = write!(
            out,
            ",\"name\":\"{}\",\"timestamp\":{start},\"duration\":{},\"localEndpoint\":{{\"serviceName\":",
            part.name,
            part.to.saturating_sub(part.from).max(1)
        );
        out.extend_from_slice(&self.service);
        let local = x.client().local;
        endpoint_of(self.address.unwrap_or(local.ip().to_canonical()), local.port(), true, out);
        out.push(b'}');
        if part.id == active.id {
            out.extend_from_slice(b",\"kind\":\"SERVER\",\"remoteEndpoint\":{");
            endpoint_of(x.client().ip(), x.client().port(), false, out);
            out.extend_from_slice(b"},\"tags\":{\"component\":\"apisix\",\"http.method\":");
            json_text(x.request().method_bytes(), out);
            out.extend_from_slice(b",\"http.url\":");
            json_text(&self.request_uri.of(x).unwrap_or_default(), out);
            let (status, source) = (x.status(), response_source(x));
            let _ =
                write!(out, ",\"http.status_code\":\"{status}\",\"apisix.response_source\":\"{source}\"}}");
        }
        out.push(b'}');
    }
}

/// The address and the port of an endpoint, without braces.
fn endpoint_of(ip: IpAddr, port: u16, comma: bool, out: &mut Vec<u8>) {
    let key = if ip.is_ipv4() { "ipv4" } else { "ipv6" };
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{}\"{key}\":\"{ip}\",\"port\":{port}", if comma { "," } else { "" });
}

#[cfg(test)]
mod tests;
