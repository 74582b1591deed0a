//! hot path
//!
//! The entry of loggers that have no format of their own: all there is to tell of an exchange.

use std::borrow::Cow;
use std::sync::LazyLock;

use sdk::log_entry::json_text;
use sdk::vars::{self, Var};
use sdk::{Exchange, Fields};

/// Fields of a head, and arguments, that an entry tells at most, as in APISIX.
const MOST: usize = 100;

struct Vars {
    uri: Var,
    host: Var,
    hostname: Var,
    upstream: Var,
}

static VARS: LazyLock<Vars> = LazyLock::new(|| Vars {
    uri: Var::parse("request_uri"),
    host: Var::parse("host"),
    hostname: Var::parse("hostname"),
    upstream: Var::parse("upstream_addr"),
});

/// Appends the fields of the object, without its braces.
pub(super) fn write(
    x: &Exchange<'_>,
    request_body: Option<&[u8]>,
    response_body: Option<&[u8]>,
    unmatched: Option<&str>,
    out: &mut Vec<u8>,
) {
    let vars = &*VARS;
    let route = x.route();
    let uri = vars.uri.of(x).unwrap_or_default();
    let host = vars.host.of(x).unwrap_or_default();
    put(out, b"\"request\":{\"url\":");
    url(x, out);
    put(out, b",\"uri\":");
    json_text(&uri, out);
    put(out, b",\"method\":");
    json_text(x.request().method_bytes(), out);
    put(out, b",\"headers\":");
    headers(&x.request().fields, out);
    put(out, b",\"querystring\":");
    arguments(x.query(), out);
    put(out, b",\"size\":");
    number(x.timing().received, out);
    if let Some(body) = request_body {
        put(out, b",\"body\":");
        json_text(body, out);
    }
    put(out, b"},\"response\":{\"status\":");
    number(x.status().into(), out);
    put(out, b",\"headers\":");
    headers(&x.response().fields, out);
    put(out, b",\"size\":");
    number(x.timing().sent, out);
    if let Some(body) = response_body {
        put(out, b",\"body\":");
        json_text(body, out);
    }
    put(out, b"},\"server\":{\"hostname\":");
    hostname(x, out);
    put(out, concat!(",\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}").as_bytes());
    if let Some(upstream) = upstream(x) {
        put(out, b",\"upstream\":");
        json_text(&upstream, out);
    }
    put(out, b",\"service_id\":");
    match route {
        Some(route) => json_text(route.service_id.as_bytes(), out),
        None => json_text(&host, out),
    }
    if let Some(id) = route.map(|route| &route.id[..]).or(unmatched) {
        put(out, b",\"route_id\":");
        json_text(id.as_bytes(), out);
    }
    if let Some(consumer) = x.consumer() {
        put(out, b",\"consumer\":{\"username\":");
        json_text(consumer.name.as_bytes(), out);
        out.push(b'}');
    }
    put(out, b",\"client_ip\":");
    json_text(x.client().ip_text(), out);
    let total = x.timing().total_us;
    put(out, b",\"start_time\":");
    number(x.world().now_ms().saturating_sub(total / 1000), out);
    put(out, b",\"latency\":");
    milliseconds(total, out);
    let mut own = total;
    if x.upstream_addr().is_some() {
        put(out, b",\"upstream_latency\":");
        milliseconds(x.timing().upstream_us, out);
        own = total.saturating_sub(x.timing().upstream_us);
    }
    put(out, b",\"apisix_latency\":");
    milliseconds(own, out);
}

/// The URL of the request, as JSON.
pub(crate) fn url(x: &Exchange<'_>, out: &mut Vec<u8>) {
    let (uri, host) = (VARS.uri.of(x).unwrap_or_default(), VARS.host.of(x).unwrap_or_default());
    let port = x.client().local.port().to_string();
    json_text(&[x.client().scheme().as_bytes(), b"://", &host, b":", port.as_bytes(), &uri].concat(), out);
}

/// The addresses of the upstream's servers that were tried.
pub(crate) fn upstream<'a>(x: &'a Exchange<'_>) -> Option<Cow<'a, [u8]>> {
    VARS.upstream.of(x)
}

/// The name of this machine, as JSON.
pub(crate) fn hostname(x: &Exchange<'_>, out: &mut Vec<u8>) {
    json_text(&VARS.hostname.of(x).unwrap_or_default(), out);
}

/// Whether the object has a field of this name, which no further field may take the place of.
pub(super) fn has(x: &Exchange<'_>, name: &str, unmatched: Option<&str>) -> bool {
    match name {
        "request" | "response" | "server" | "service_id" | "client_ip" | "start_time" | "latency"
        | "apisix_latency" => true,
        "route_id" => x.route().is_some() || unmatched.is_some(),
        "upstream" | "upstream_latency" => x.upstream_addr().is_some(),
        "consumer" => x.consumer().is_some(),
        _ => false,
    }
}

/// Names in lower case; of several with one name, a list of values.
pub(crate) fn headers(fields: &Fields, out: &mut Vec<u8>) {
    let all: Vec<_> =
        fields.iter().take(MOST).map(|(name, value, _)| (name.to_ascii_lowercase(), value)).collect();
    out.push(b'{');
    let mut comma = false;
    for (at, (name, _)) in all.iter().enumerate() {
        if all[..at].iter().any(|(other, _)| other == name) {
            continue;
        }
        if std::mem::replace(&mut comma, true) {
            out.push(b',');
        }
        json_text(name, out);
        out.push(b':');
        let same = all[at..].iter().filter(|(other, _)| other == name);
        values(same.map(|(_, value)| Some(Cow::Borrowed(*value))), out);
    }
    out.push(b'}');
}

/// The arguments of a query, decoded; one without `=` is `true`.
pub(crate) fn arguments(query: &[u8], out: &mut Vec<u8>) {
    let all: Vec<_> = vars::args(query).filter(|(name, _)| !name.is_empty()).take(MOST).collect();
    out.push(b'{');
    let mut comma = false;
    for (at, (name, _)) in all.iter().enumerate() {
        if all[..at].iter().any(|(other, _)| other == name) {
            continue;
        }
        if std::mem::replace(&mut comma, true) {
            out.push(b',');
        }
        json_text(name, out);
        out.push(b':');
        values(all[at..].iter().filter(|(other, _)| other == name).map(|(_, value)| value.clone()), out);
    }
    out.push(b'}');
}

/// One value as it is, several as a list. None is `true`.
fn values<'v>(mut values: impl Iterator<Item = Option<Cow<'v, [u8]>>>, out: &mut Vec<u8>) {
    let one = |value: Option<Cow<'_, [u8]>>, out: &mut Vec<u8>| match value {
        Some(text) => json_text(&text, out),
        None => put(out, b"true"),
    };
    let first = values.next().flatten();
    let Some(second) = values.next() else { return one(first, out) };
    out.push(b'[');
    one(first, out);
    for value in std::iter::once(second).chain(values) {
        out.push(b',');
        one(value, out);
    }
    out.push(b']');
}

pub(crate) fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
}

pub(crate) fn number(value: u64, out: &mut Vec<u8>) {
    put(out, value.to_string().as_bytes());
}

/// Milliseconds with as many decimals as it takes.
pub(crate) fn milliseconds(micros: u64, out: &mut Vec<u8>) {
    number(micros / 1000, out);
    if !micros.is_multiple_of(1000) {
        put(out, format!(".{:03}", micros % 1000).trim_end_matches('0').as_bytes());
    }
}
