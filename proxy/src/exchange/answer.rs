//! hot path
//!
//! Every answer the gateway makes itself.
//!
//! The only file in which the text of an error is made. How it is sent is up to the client's protocol.

use bytes::Bytes;
use sdk::exchange::{Chunk, Source};
use sdk::response_body::SizedSource;

use sdk::{Exchange, Reply};
use smallvec::SmallVec;
use wire::{Method, Name};

use super::asks_for_tunnel;
use super::fault::{Fault, FaultKind};
use super::fault_log::report;
use super::live;
use super::outcome::Outcome;
use super::phases::{self, Chains, Flow};
use super::streamed;
use crate::down::Downstream;
use crate::io::Failed;
use crate::up::Size;
use crate::worker::Worker;

/// The answer to a client that speaks HTTP without TLS on a TLS port, in nginx's words.
pub(crate) const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/html; charset=utf-8\r\nContent-Length: 220\r\nConnection: close\r\n\r\n\
    <html>\r\n<head><title>400 The plain HTTP request was sent to HTTPS port</title></head>\r\n<body>\r\n\
    <center><h1>400 Bad Request</h1></center>\r\n\
    <center>The plain HTTP request was sent to HTTPS port</center>\r\n</body>\r\n</html>\r\n";

/// The status with which a plugin closes the connection without a response, as in nginx.
const CLOSE: u16 = 444;

/// Adds the statuses that upstreams answered, over all tries: if the last one failed, or always
/// (APISIX: `show_upstream_status_in_response_header`).
#[inline]
pub(crate) fn add_upstream_status(worker: &Worker, x: &mut Exchange<'_>) {
    if !matches!(x.upstream_status(), 500..=599) && !worker.settings.show_upstream_status {
        return;
    }
    let mut text: SmallVec<[u8; 32]> = SmallVec::new();
    if x.upstream_statuses(&mut text) {
        // Digits and commas can always stand in a head.
        let _ = x.engine_mut().messages.response.fields.set(b"X-APISIX-Upstream-Status", &text);
    }
}

/// Sends a reply of a plugin or of the gateway: through the header and body filters, and then in the
/// client's protocol.
pub(crate) async fn send(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    reply: Reply,
    source: Source,
) -> Outcome {
    if reply.status == CLOSE && reply.body.is_empty() {
        x.engine_mut().messages.response.status = CLOSE;
        down.end_if_last();
        return Outcome::Gone;
    }
    let made = match phases::unless_gone(worker, down, make(worker, x, chains, reply, source)).await {
        Ok(made) => made,
        Err(_) => return Outcome::Gone,
    };
    if worker.settings.explain.is_some() {
        live::add_to_head(worker, x, chains);
    }
    let body = match made {
        MadeBody::Whole(body) => body,
        // Boxed: it is rare, and its size would weigh on every connection.
        MadeBody::Streamed(source) => {
            return Box::pin(streamed::send(worker, down, x, chains, source)).await;
        }
    };
    let (_, mut response) = down.split(worker);
    if x.status() >= 300
        && speaks_grpc(x)
        && let Some(head_len) = response.start_grpc(x, &body)
    {
        x.engine_mut().timing.sent = head_len;
        return match response.end().await {
            Ok(()) => Outcome::Answered,
            Err(_) => Outcome::Gone,
        };
    }
    let bodiless = has_no_content(x.status());
    let size = match x.response_trailers().is_empty() {
        // Clients differ on whether it needs saying (RFC 9110 section 15.3.6).
        _ if x.status() == 205 => Size::Exactly(0),
        _ if bodiless => Size::None,
        false if x.method() != Method::Head => Size::Open,
        _ => Size::Exactly(body.len() as u64),
    };
    let head_len = response.start(x, size);
    let written = if bodiless || x.method() == Method::Head {
        x.engine_mut().timing.sent = head_len;
        response.end().await
    } else {
        let engine = x.engine_mut();
        engine.timing.body_sent += body.len() as u64;
        engine.timing.sent = head_len + body.len() as u64;
        let trailers = Some(&engine.messages.response_trailers).filter(|trailers| !trailers.is_empty());
        response.write(&body, true, trailers).await
    };
    match written {
        Ok(()) => Outcome::Answered,
        Err(failed) => {
            if failed == Failed::Timeout {
                down.end_if_last();
            }
            Outcome::Gone
        }
    }
}

/// Whether a response of this status never has content.
fn has_no_content(status: u16) -> bool {
    matches!(status, 204 | 205 | 304)
}

/// Whether the client takes `grpc-status` for the outcome of its call, and the answer has none yet.
#[inline]
fn speaks_grpc(x: &Exchange<'_>) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    const WEB: &[u8] = b"application/grpc-web";
    let begins = |content: &[u8], with: &[u8]| {
        content.len() >= with.len() && content[..with.len()].eq_ignore_ascii_case(with)
    };
    let Some(content) = x.request().fields.get(Name::ContentType) else { return false };
    begins(content, GRPC)
        // Not gRPC-Web, which is HTTP, nor what a stage has made gRPC of that: its answer says so.
        && matches!(content.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
        && !x.response().fields.get(Name::ContentType).is_some_and(|content| begins(content, WEB))
        && x.response().fields.get_named(b"grpc-status").is_none()
}

/// Puts the head of a reply into `x` and gives its body, both as the filters want them. A filter may put
/// one answer of its own in the reply's place; then everything starts again with that.
async fn make(
    worker: &Worker,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    mut reply: Reply,
    mut source: Source,
) -> MadeBody {
    let mut replaced = false;
    let mut stream;
    let mut body = loop {
        let engine = x.engine_mut();
        stream = engine.body_source.take().filter(|_| reply.streamed);
        let head = &mut engine.messages.response;
        head.clear();
        head.status = reply.status;
        for (name, value) in &reply.headers {
            // A value that cannot stand in a head is left out.
            let _ = head.fields.append(name.as_bytes(), value);
        }
        for (name, value, _) in reply.fields.iter().flat_map(|fields| fields.iter()) {
            let _ = head.fields.append(name, value);
        }
        engine.source = source;
        engine.reason = reply.reason;
        engine.apply_early_edits();
        add_upstream_status(worker, x);
        let mut flow = chains.header_filter(worker, x).await;
        let is_whole = stream.is_none();
        if matches!(flow, Flow::Go) && is_whole && !has_no_content(x.status()) && chains.filter_body(x) {
            flow = filtered(worker, x, chains, &mut reply.body).await;
        }
        match flow {
            Flow::Reply(other) if !replaced => {
                replaced = true;
                reply = other;
                source = Source::Plugin;
            }
            Flow::Fault(fault) => {
                stream = None;
                break refused(worker, x, fault);
            }
            Flow::Go | Flow::Reply(_) => break reply.body,
        }
    };
    if !(200..=999).contains(&x.status()) {
        // A stage's own: it would not end the exchange.
        x.engine_mut().messages.response.status = 500;
    }
    if matches!(x.status(), 200..=299) && asks_for_tunnel(x.request()) {
        stream = None;
        body = refused(worker, x, Fault::client(FaultKind::NoSwitch));
    }
    match stream.filter(|_| !has_no_content(x.status())) {
        Some(source) => MadeBody::Streamed(source),
        None if has_no_content(x.status()) => MadeBody::Whole(Bytes::new()),
        None => MadeBody::Whole(body),
    }
}

/// The body of a reply.
enum MadeBody {
    /// After its filters.
    Whole(Bytes),
    /// Its pieces are filtered while they are sent.
    Streamed(SizedSource),
}

/// The body of a reply as the filters want it. It is theirs to change, so this is a copy.
async fn filtered(worker: &Worker, x: &mut Exchange<'_>, chains: Chains<'_>, body: &mut Bytes) -> Flow {
    if x.engine_mut().messages.reply_held.resize(&worker.budget, body.len()).is_err() {
        return Flow::Fault(Fault::gateway(FaultKind::HeldTooMuch));
    }
    let mut chunk = Chunk { data: body.to_vec(), last: true, refused: false };
    let flow = chains.body_filter(worker, x, &mut chunk).await;
    *body = chunk.data.into();
    flow
}

/// Puts the answer to a fault in the place of a reply whose head is made already.
#[cold]
pub(super) fn refused(worker: &Worker, x: &mut Exchange<'_>, fault: Fault) -> Bytes {
    let reply = of_fault(fault);
    let engine = x.engine_mut();
    engine.source = Source::Gateway;
    engine.reason = reply.reason;
    let head = &mut engine.messages.response;
    head.status = reply.status;
    head.fields.clear(8 << 10);
    for (name, value) in &reply.headers {
        // They are ours and valid.
        let _ = head.fields.append(name.as_bytes(), value);
    }
    report(worker, x, fault);
    reply.body
}

/// The reply that tells a client of a fault, in APISIX's shape: `{"error_msg":"404 Route Not Found"}`,
/// with the cause beside it where APISIX has no text of its own.
pub(crate) fn of_fault(fault: Fault) -> Reply {
    of_fault_as(fault, fault.kind.status())
}

/// The same with this status.
pub(crate) fn of_fault_as(fault: Fault, status: u16) -> Reply {
    let kind = fault.kind;
    let mut reply = match kind {
        FaultKind::NoRoute => fixed(b"{\"error_msg\":\"404 Route Not Found\"}\n"),
        _ => fixed_text(status, kind.words()),
    };
    (reply.status, reply.reason) = (status, kind.words());
    if kind == FaultKind::MethodNotAllowed {
        reply = reply.header("Allow", "GET, HEAD, POST, PUT, DELETE, PATCH, OPTIONS");
    }
    reply
}

fn fixed(body: &'static [u8]) -> Reply {
    Reply {
        headers: vec![("Content-Type", b"application/json".to_vec())],
        body: Bytes::from_static(body),
        ..Reply::default()
    }
}

fn fixed_text(status: u16, words: &str) -> Reply {
    let body = format!(
        "{{\"error_msg\":\"{status} {}\",\"reason\":\"{words}\"}}\n",
        wire::h1::encode::reason(status)
    );
    let headers = vec![("Content-Type", b"application/json".to_vec())];
    Reply { status, headers, body: body.into(), ..Reply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::fault::BodyLimit;

    #[test]
    fn an_unmatched_request_gets_apisix_words() {
        let reply = of_fault(Fault::gateway(FaultKind::NoRoute));
        assert_eq!((reply.status, &reply.body[..]), (404, &b"{\"error_msg\":\"404 Route Not Found\"}\n"[..]));
    }

    #[test]
    fn every_cause_is_valid_json() {
        for kind in
            [FaultKind::ConnectRefused, FaultKind::ReadTimeout, FaultKind::BodyTooLarge(BodyLimit::Client)]
        {
            let body = of_fault(Fault::upstream(kind)).body;
            let text = std::str::from_utf8(&body).unwrap();
            assert!(text.starts_with("{\"error_msg\":\"") && text.ends_with("\"}\n"), "{text}");
        }
    }
}
