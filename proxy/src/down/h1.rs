//! hot path
//!
//! A client's HTTP/1 connection: one task from accept to close.

use std::rc::Rc;
use std::task::Poll;

use sdk::Client;
use sdk::exchange::Messages;
use wire::h1::Progress;

use super::{Down, Ready};
use crate::access_log::Refused;
use crate::exchange::Scratch;
use crate::exchange::answer;
use crate::exchange::body::Incoming;
use crate::exchange::drive::{self, After};
use crate::exchange::fault::{Fault, FaultKind, FaultRecord};
use crate::exchange::io::{self, Failed};
use crate::rt;
use crate::tunnel;
use crate::worker::Worker;

/// What reading a head came to.
enum Head {
    Ready,
    /// Nothing: what made the connection readable was read along with the request before.
    Nothing,
    /// The connection ended between requests, or broke off within a head.
    Gone,
    Refused(FaultKind),
}

/// A connection with nothing to do for so long gives its exchange memory back.
const STAY_READY: std::time::Duration = std::time::Duration::from_millis(100);

/// How a TLS connection begins: the record of a handshake, whose version's first byte is always 3
/// (RFC 8446 section 5.1).
const TLS_HANDSHAKE: &[u8] = &[22, 3];

/// Serves a connection until it ends.
///
/// The future of an exchange is large, and most connections are idle most of the time. So an
/// idle connection holds only this small future; that of the exchanges is made when a request
/// comes, lives as long as requests follow each other, and then goes.
pub(crate) async fn serve(worker: Rc<Worker>, stream: rt::Io, client: Client) {
    let mut down = Down::new(&worker, stream);
    loop {
        let first = down.requests == 0;
        let settings = &worker.settings;
        let idle = if first { settings.header_timeout } else { settings.keepalive_timeout };
        if wait_for_request(&worker, &mut down, idle).await != Idle::Request {
            break;
        }
        if Box::pin(active(&worker, &mut down, &client)).await == Ended::Closed {
            break;
        }
    }
    if let Some(buffer) = down.buffer.take() {
        worker.buffers.give(buffer);
    }
}

/// Answers a connection that has waited too long to be served, whatever it was about to ask.
pub(crate) async fn turn_away(worker: Rc<Worker>, stream: rt::Io, client: Client) {
    let mut down = Down::new(&worker, stream);
    let mut scratch = worker.take_scratch();
    let fault = Fault::gateway(FaultKind::Overloaded);
    let after = refuse(&worker, &mut down, &client, fault, &mut scratch).await;
    worker.give_scratch(scratch);
    if let After::Linger = after {
        linger(&worker, &mut down).await;
    }
    if let Some(buffer) = down.buffer.take() {
        worker.buffers.give(buffer);
    }
}

/// Why [`active`] came back.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// No request followed for a while.
    Quiet,
    Closed,
}

/// Serves requests for as long as they follow each other.
async fn active(worker: &Rc<Worker>, down: &mut Down, client: &Client) -> Ended {
    let after = loop {
        let mut scratch = worker.take_scratch();
        let after = match read_head(worker, down, &mut scratch.messages.request).await {
            Head::Ready => {
                down.requests += 1;
                let settings = &worker.settings;
                let last =
                    down.requests >= settings.keepalive_requests || settings.keepalive_timeout.is_zero();
                drive::drive(worker, down, client, &mut scratch, last).await
            }
            Head::Nothing => After::Next,
            Head::Gone => {
                if down.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
                    broken_off(worker, down, client, &mut scratch);
                }
                After::Close
            }
            Head::Refused(kind) => refuse(worker, down, client, Fault::client(kind), &mut scratch).await,
        };
        worker.give_scratch(scratch);
        match after {
            After::Next => down.return_empty(worker),
            after => break after,
        }
        match wait_for_request(worker, down, STAY_READY).await {
            Idle::Request => {}
            Idle::Nothing => return Ended::Quiet,
            Idle::Unwanted => break After::Close,
        }
    };
    match after {
        After::Next | After::Close => {}
        After::Linger => linger(worker, down).await,
        After::Abort => down.stream.abort(),
        After::Tunnel(tunnel) => tunnel::run(worker, down, tunnel).await,
    }
    Ended::Closed
}

/// Answers what is not a request, and tells of it.
#[cold]
async fn refuse(
    worker: &Rc<Worker>,
    down: &mut Down,
    client: &Client,
    fault: Fault,
    scratch: &mut Scratch,
) -> After {
    worker.shard.request_refused();
    let status = fault.kind.status();
    let out = &mut scratch.down_out;
    let body = answer::refuse(worker, fault, out);
    let sizes = (out.len() as u64, body);
    let (_, mut to) = down.stream.split();
    let written = io::write_all(worker, &down.waiter, &mut to, out, worker.settings.send_timeout).await;
    let sizes = if written.is_ok() { sizes } else { (0, 0) };
    tell_refused(worker, down, client, fault, status, sizes, &mut scratch.messages);
    match written {
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// Tells of a client that went away in the middle of a head: a bad request, as nginx counts it.
#[cold]
fn broken_off(worker: &Rc<Worker>, down: &Down, client: &Client, scratch: &mut Scratch) {
    let fault = Fault::client(FaultKind::ClientGone);
    tell_refused(worker, down, client, fault, 400, (0, 0), &mut scratch.messages);
}

/// Tells both logs of what was no request; `sizes` are the bytes sent and those of a body in them.
fn tell_refused(
    worker: &Rc<Worker>,
    down: &Down,
    client: &Client,
    fault: Fault,
    status: u16,
    sizes: (u64, u64),
    messages: &mut Messages,
) {
    let data = down.buffer.as_ref().map_or(&b""[..], |buffer| buffer.data());
    let line = first_line(data);
    (worker.settings.on_fault)(FaultRecord {
        fault,
        status,
        limit: fault.kind.limit(&worker.settings),
        client: client.ip(),
        upstream: None,
        route: String::new(),
        request: line.escape_ascii().take(200).map(char::from).collect(),
    });
    if let Some(log) = &worker.access_log {
        let (sent, body_sent) = sizes;
        let (received, took_ms) = (data.len() as u64, down.head_took_ms);
        let refused = Refused { line, status, received, sent, body_sent, took_ms };
        log.add_refused(worker, client, messages, &refused);
    }
}

/// What of a refused head was to be a request line.
fn first_line(head: &[u8]) -> &[u8] {
    const ENOUGH: usize = 2048;
    let head = &head[..head.len().min(ENOUGH)];
    let end = head.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &head[..end.unwrap_or(head.len())]
}

/// What waiting for a request came to.
#[derive(Debug, PartialEq, Eq)]
enum Idle {
    /// There are bytes, or an end.
    Request,
    /// The time is over.
    Nothing,
    /// The worker stops and has waited long enough for a last request, or needs the place for another.
    Unwanted,
}

/// Waits for the first byte of a request without holding a buffer.
#[inline]
async fn wait_for_request(worker: &Worker, down: &mut Down, time: std::time::Duration) -> Idle {
    // A connection that has not asked yet may still do so: it was accepted.
    let first = down.requests == 0;
    if down.buffer.is_some() {
        return Idle::Request;
    }
    let deadline = worker.clock.after(time);
    worker.shard.waiting(1);
    down.waiter.rest();
    let woken = down
        .waiter
        .until(deadline, |cx| match down.stream.poll_readable(cx) {
            Poll::Ready(_) => Poll::Ready(Idle::Request),
            Poll::Pending => {
                let unwanted = down.waiter.is_unwanted() || worker.closes_idle() && !first;
                if unwanted && down.stream.is_idle() { Poll::Ready(Idle::Unwanted) } else { Poll::Pending }
            }
        })
        .await;
    down.waiter.end_rest();
    worker.shard.waiting(-1);
    woken.unwrap_or(Idle::Nothing)
}

/// Reads until the head is complete. The bound on time is for the whole head.
#[inline]
async fn read_head(worker: &Worker, down: &mut Down, head: &mut wire::RequestHead) -> Head {
    let limits = &worker.settings.request;
    let since = worker.clock.coarse_ms();
    down.head_took_ms = 0;
    let mut progress = Progress::default();
    let deadline = worker.clock.after(worker.settings.header_timeout);
    let buffer = down.buffer.get_or_insert_with(|| worker.buffers.take());
    let (mut from, _) = down.stream.split();
    if buffer.is_empty() {
        match io::read_now(&mut from, buffer).await {
            None => return Head::Nothing,
            Some(Ok(0) | Err(_)) => return Head::Gone,
            Some(Ok(_)) => {}
        }
    }
    loop {
        match wire::h1::request(buffer.data(), &mut progress, head, limits) {
            Ok(Some(n)) => {
                buffer.consume(n);
                down.head_bytes = n as u64;
                down.incoming = Incoming::new(head.framing);
                down.continue_due = head.expect_continue && buffer.is_empty();
                down.ready = Ready::default();
                down.body_lost = false;
                wire::h1::hop::strip_request(head, head.upgrade);
                down.return_empty(worker);
                return Head::Ready;
            }
            Ok(None) if buffer.space().is_empty() => buffer.grow(limits.head + 2),
            Ok(None) => {}
            Err(_) if buffer.data().starts_with(TLS_HANDSHAKE) => {
                return Head::Refused(FaultKind::TlsOnPlainPort);
            }
            Err(refusal) => return Head::Refused(FaultKind::BadRequest(refusal)),
        }
        let read = io::read_until(&down.waiter, &mut from, buffer, deadline).await;
        down.head_took_ms = worker.clock.coarse_ms() - since;
        match read {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => return Head::Gone,
            Ok(_) => {}
            Err(Failed::Timeout) => return Head::Refused(FaultKind::HeadTimeout),
        }
    }
}

/// Says that nothing more will come, then reads and drops what the client still sends, so
/// that the close does not become a reset that takes the answer with it (RFC 9112 section 9.6).
async fn linger(worker: &Worker, down: &mut Down) {
    let (mut from, mut to) = down.stream.split();
    let deadline = worker.clock.after(worker.settings.linger_timeout);
    let _ = down.waiter.until(deadline, |cx| to.poll_shutdown(cx)).await;
    let buffer = down.buffer.get_or_insert_with(|| worker.buffers.take());
    let mut dropped = 0;
    while dropped < worker.settings.linger_bytes {
        buffer.consume(buffer.len());
        match io::read_until(&down.waiter, &mut from, buffer, deadline).await {
            Ok(n) if n > 0 => dropped += n,
            _ => break,
        }
    }
}
