//! One request as a tap shows it.

use std::net::SocketAddr;

use crate::exchange::{Exchange, Source};

/// Bytes of a text in an event; longer ones are cut.
const MOST_TEXT: usize = 1024;

/// Headers in an event.
const MOST_HEADERS: usize = 64;

/// The times of a finished request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Unix milliseconds at the end.
    pub unix_ms: u64,
    pub total_us: u64,
    /// Until the upstream was chosen: reading, routing and plugins.
    pub before_us: u64,
    /// From then to the head of the upstream's response, if one came.
    pub wait_us: Option<u64>,
    /// From the choice of the upstream to the end.
    pub upstream_us: Option<u64>,
}

/// One request as a tap shows it. Secrets are masked.
#[derive(Debug, Clone)]
pub struct Event {
    /// The places of the taps that take it, as bits.
    pub taken_by: u8,
    pub times: Times,
    pub client: String,
    pub method: String,
    pub host: String,
    /// Without the query, which may hold secrets.
    pub path: String,
    pub route: String,
    pub route_name: String,
    pub consumer: String,
    /// The origin of the response: `upstream`, `gateway`, or the name of the plugin.
    pub answered_by: String,
    pub node: Option<SocketAddr>,
    pub attempts: u32,
    pub status: u16,
    /// Why it failed, in words; empty if it did not.
    pub reason: &'static str,
    pub received: u64,
    pub sent: u64,
    /// The request's headers as they were forwarded.
    pub headers: Vec<(String, String)>,
}

impl Event {
    pub(super) fn new(x: &Exchange<'_>, times: &Times, taken_by: u8, headers: bool) -> Event {
        let engine = x.engine();
        let request = x.request();
        let node = engine.upstream_addr;
        let headers = request.fields.iter().take(if headers { MOST_HEADERS } else { 0 });
        Event {
            taken_by,
            times: *times,
            client: x.client().ip().to_string(),
            method: text(request.method_bytes()),
            host: text(request.host()),
            path: text(x.path()),
            route: x.route().map(|route| route.id.to_string()).unwrap_or_default(),
            route_name: x.route().map(|route| route.name.clone()).unwrap_or_default(),
            consumer: x.consumer().map(|consumer| consumer.name.clone()).unwrap_or_default(),
            answered_by: match engine.source {
                Source::Upstream => "upstream",
                Source::Plugin if engine.answered_by.is_empty() => "plugin",
                Source::Plugin => engine.answered_by,
                Source::Gateway => "gateway",
                Source::None => "",
            }
            .to_owned(),
            node,
            attempts: u32::try_from(engine.tried.len()).unwrap_or(u32::MAX) + u32::from(node.is_some()),
            status: x.status(),
            reason: engine.reason,
            received: x.timing().received,
            sent: x.timing().sent,
            headers: headers.map(|(name, value, _)| (text(name), shown(name, value))).collect(),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_TEXT)]).into_owned()
}

fn shown(name: &[u8], value: &[u8]) -> String {
    if is_secret(name) {
        return "******".to_owned();
    }
    // Addresses are shown without their query, as the request's own is.
    let is_address = has_any(name, &[b"referer", b"url", b"uri"]);
    let end = value.iter().position(|byte| is_address && *byte == b'?');
    text(&value[..end.unwrap_or(value.len())])
}

/// Returns whether a header of this name may carry a secret.
pub fn is_secret(name: &[u8]) -> bool {
    const PARTS: &[&[u8]] = &[
        b"auth",
        b"cookie",
        b"key",
        b"token",
        b"secret",
        b"passw",
        b"session",
        b"signature",
        b"credential",
        b"jwt",
        b"csrf",
    ];
    has_any(name, PARTS)
}

/// Returns whether a name has one of these parts, which are in lower case.
fn has_any(name: &[u8], parts: &[&[u8]]) -> bool {
    let name = name.to_ascii_lowercase();
    parts.iter().any(|part| memchr::memmem::find(&name, part).is_some())
}
