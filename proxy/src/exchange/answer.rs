//! hot path
//!
//! Every answer's head, and every answer the gateway makes itself.
//!
//! The only file in which the bytes of an error are made.

use bytes::Bytes;
use sdk::exchange::{Chunk, Source};
use sdk::{Exchange, Reply};
use smallvec::SmallVec;
use wire::{Method, Name, Version};

use super::drive::tell;
use super::fault::{Fault, FaultKind};
use super::phases::Chains;
use crate::worker::Worker;

/// How the client learns where the body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There is no body and no field about it (1xx, 204, 304, or as HEAD's answer came).
    Nothing,
    Length(u64),
    Chunked,
    /// The connection is closed behind it.
    Close,
}

/// Writes the head of the response in `x` for the client (RFC 9112 section 4).
#[inline]
pub(crate) fn write_head(
    worker: &Worker,
    x: &Exchange<'_>,
    ending: Ending,
    keep_alive: bool,
    out: &mut Vec<u8>,
) {
    let head = &x.messages.response;
    wire::h1::encode::status_line(head.status, out);
    let mut dated = false;
    for field in head.fields.list() {
        match field.id {
            Name::Connection
            | Name::KeepAlive
            | Name::ProxyConnection
            | Name::TransferEncoding
            | Name::ContentLength
            | Name::Server
            | Name::Upgrade => continue,
            // Only a chunked body has trailers to announce.
            Name::Trailer if ending != Ending::Chunked => continue,
            Name::Date => dated = true,
            _ => {}
        }
        out.extend_from_slice(head.fields.bytes(field.name));
        out.extend_from_slice(b": ");
        out.extend_from_slice(head.fields.bytes(field.value));
        out.extend_from_slice(b"\r\n");
    }
    if !dated {
        out.extend_from_slice(b"Date: ");
        worker.write_date(out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"Server: ");
    out.extend_from_slice(worker.settings.server.as_bytes());
    out.extend_from_slice(b"\r\n");
    match ending {
        Ending::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            wire::h1::encode::decimal(length, out);
            out.extend_from_slice(b"\r\n");
        }
        Ending::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Ending::Nothing | Ending::Close => {}
    }
    if !keep_alive {
        out.extend_from_slice(b"Connection: close\r\n");
    } else if x.messages.request.version == Version::Http10 {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Tells the client what upstreams answered, over all tries: if the last one failed, or always
/// (APISIX: `show_upstream_status_in_response_header`).
#[inline]
pub(crate) fn tell_upstream_status(worker: &Worker, x: &mut Exchange<'_>) {
    if !matches!(x.upstream_status, 500..=599) && !worker.settings.show_upstream_status {
        return;
    }
    let mut text: SmallVec<[u8; 32]> = SmallVec::new();
    if x.upstream_statuses(&mut text) {
        // Digits and commas can always stand in a head.
        let _ = x.messages.response.fields.set(b"X-APISIX-Upstream-Status", &text);
    }
}

/// A body up to this length is copied behind its head; a longer one goes out from where it is.
const COPIED: usize = 16 << 10;

/// Makes a whole answer of a stage's reply: through the header and body filters, into `out`.
/// A long body is given back, to be written behind it.
pub(crate) fn write_reply(
    worker: &Worker,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    reply: Reply,
    source: Source,
    keep_alive: bool,
    out: &mut Vec<u8>,
) -> Bytes {
    let head = &mut x.messages.response;
    head.clear();
    head.status = reply.status;
    for (name, value) in &reply.headers {
        // A value that cannot stand in a head is left out.
        let _ = head.fields.append(name.as_bytes(), value);
    }
    x.source = source;
    x.apply_early_edits();
    tell_upstream_status(worker, x);
    chains.header_filter(worker, x);
    let mut body = reply.body;
    if !matches!(x.status(), 204 | 304) && chains.filter_body(x) {
        match filtered(worker, x, chains, &body) {
            Ok(changed) => body = changed,
            Err(fault) => body = refused(worker, x, fault),
        }
    }
    if !(200..=999).contains(&x.status()) {
        // A stage's own: it would not end the exchange.
        x.messages.response.status = 500;
    }
    if matches!(x.status(), 204 | 304) {
        write_head(worker, x, Ending::Nothing, keep_alive, out);
        return Bytes::new();
    }
    write_head(worker, x, Ending::Length(body.len() as u64), keep_alive, out);
    if x.method() == Method::Head {
        return Bytes::new();
    }
    x.timing.body_sent += body.len() as u64;
    if body.len() > COPIED {
        return body;
    }
    out.extend_from_slice(&body);
    Bytes::new()
}

/// The body of a reply as the stages want it. It is theirs to change, so this is a copy.
fn filtered(worker: &Worker, x: &mut Exchange<'_>, chains: Chains<'_>, body: &Bytes) -> Result<Bytes, Fault> {
    let held = x.messages.reply_held.resize(&worker.budget, body.len());
    held.map_err(|_| Fault::gateway(FaultKind::HeldTooMuch))?;
    let mut chunk = Chunk { data: body.to_vec(), last: true, refused: false };
    chains.body_filter(worker, x, &mut chunk)?;
    Ok(chunk.data.into())
}

/// Puts the answer to a fault in the place of a reply whose head is made already.
#[cold]
fn refused(worker: &Worker, x: &mut Exchange<'_>, fault: Fault) -> Bytes {
    let reply = of_fault(fault);
    let head = &mut x.messages.response;
    head.status = reply.status;
    head.fields.clear(8 << 10);
    for (name, value) in &reply.headers {
        // They are ours and valid.
        let _ = head.fields.append(name.as_bytes(), value);
    }
    x.source = Source::Gateway;
    tell(worker, x, fault);
    reply.body
}

/// The reply that tells a client of a fault, in APISIX's shape: `{"error_msg":"404 Route Not Found"}`,
/// with the cause beside it where APISIX has no text of its own.
pub(crate) fn of_fault(fault: Fault) -> Reply {
    let status = fault.kind.status();
    let mut reply = match fault.kind {
        FaultKind::NoRoute => fixed(b"{\"error_msg\":\"404 Route Not Found\"}\n"),
        kind => fixed_text(status, kind.words()),
    };
    reply.status = status;
    if fault.kind == FaultKind::MethodNotAllowed {
        reply = reply.header("Allow", "GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS");
    }
    reply
}

/// An answer to bytes that are not a request; there is no exchange. Gives the size of its body.
pub(crate) fn refuse(worker: &Worker, fault: Fault, out: &mut Vec<u8>) -> u64 {
    let reply = of_fault(fault);
    wire::h1::encode::status_line(reply.status, out);
    out.extend_from_slice(b"Date: ");
    worker.write_date(out);
    out.extend_from_slice(b"\r\nServer: ");
    out.extend_from_slice(worker.settings.server.as_bytes());
    out.extend_from_slice(b"\r\nContent-Type: application/json\r\nContent-Length: ");
    wire::h1::encode::decimal(reply.body.len() as u64, out);
    out.extend_from_slice(b"\r\nConnection: close\r\n\r\n");
    out.extend_from_slice(&reply.body);
    reply.body.len() as u64
}

fn fixed(body: &'static [u8]) -> Reply {
    Reply {
        status: 0,
        headers: vec![("Content-Type", b"application/json".to_vec())],
        body: Bytes::from_static(body),
    }
}

fn fixed_text(status: u16, words: &str) -> Reply {
    let body = format!(
        "{{\"error_msg\":\"{status} {}\",\"reason\":\"{words}\"}}\n",
        wire::h1::encode::reason(status)
    );
    Reply { status, headers: vec![("Content-Type", b"application/json".to_vec())], body: body.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmatched_request_gets_apisix_words() {
        let reply = of_fault(Fault::gateway(FaultKind::NoRoute));
        assert_eq!((reply.status, &reply.body[..]), (404, &b"{\"error_msg\":\"404 Route Not Found\"}\n"[..]));
    }

    #[test]
    fn every_cause_is_valid_json() {
        for kind in [FaultKind::ConnectRefused, FaultKind::ReadTimeout, FaultKind::BodyTooLarge] {
            let body = of_fault(Fault::upstream(kind)).body;
            let text = std::str::from_utf8(&body).unwrap();
            assert!(text.starts_with("{\"error_msg\":\"") && text.ends_with("\"}\n"), "{text}");
        }
    }
}
