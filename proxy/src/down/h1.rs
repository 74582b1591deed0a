//! hot path
//!
//! A client's HTTP/1 connection: one task from accept to close. Heads, framing, keep-alive,
//! lingering and 100-continue are known here and below, and nowhere else.

mod request;
mod response;

use std::cell::Cell;
use std::rc::Rc;
use std::task::Poll;

use sdk::Client;
use sdk::engine::Messages;
use wire::h1::{Progress, Refusal};
use wire::{Framing, Method, RequestHead, Version};

use super::refusal::{self, Refused};
use super::{Arrival, Downstream, h2};
use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::Scratch;
use crate::exchange::answer;
use crate::exchange::drive;
use crate::exchange::fault::{Fault, FaultKind, FaultRecord, TlsNames};
use crate::exchange::max_body::MaxBody;
use crate::exchange::outcome::Outcome;
use crate::h1::{Body, Writer};
use crate::io::{self, Failed};
use crate::rt::Io;
use crate::tunnel::{self, Ends, Sink, Source, Tunnel};
use crate::worker::Worker;

pub(crate) use request::RequestBody;
pub(crate) use response::Response;

/// A connection and the request on it.
pub(crate) struct Conn {
    pub(crate) io: Io,
    /// Bytes read and not used yet; none is held while there are none.
    pub(crate) buffer: Option<Buffer>,
    /// For waits on the request's side of an exchange, and on the response's: both may be pending at once.
    pub(crate) waiters: [Waiter; 2],
    body: Body,
    /// All of the body was taken, or is at hand.
    taken: Cell<bool>,
    /// Bytes being written; lent by the exchange.
    out: Vec<u8>,
    version: Version,
    /// The connection may serve another request after this one, as far as is known.
    keep: bool,
    /// The client has said so.
    client_keeps: bool,
    /// The client waits for 100 before it sends the body.
    continue_due: bool,
    pub(super) arrival: Arrival,
    /// It may also turn out to be HTTP/2.
    h2: bool,
    /// The place of what `Alt-Svc` says here ([`Worker::alt_svc`]).
    alt_svc: Option<usize>,
}

/// How a connection continues after an exchange.
#[derive(Debug)]
enum After {
    /// It may carry the next request.
    Next,
    /// It ends.
    Close,
    /// It ends, but the client may still be sending: read a little so that it sees the answer.
    Linger,
    /// It ends, and the client must notice that the response is not whole.
    Abort,
    /// Both connections are a tunnel.
    Tunnel(Box<Tunnel>),
    /// The client speaks HTTP/2.
    H2,
}

impl Conn {
    fn new(worker: &Worker, io: Io, h2: bool) -> Conn {
        Conn {
            io,
            buffer: None,
            waiters: [worker.clock.waiter(), worker.clock.waiter()],
            body: Body::new(Framing::None),
            taken: Cell::new(true),
            out: Vec::new(),
            version: Version::Http11,
            keep: false,
            client_keeps: false,
            continue_due: false,
            arrival: Arrival::default(),
            h2,
            alt_svc: None,
        }
    }

    #[inline]
    pub(super) fn split<'a>(&'a mut self, worker: &'a Worker) -> (RequestBody<'a>, Response<'a>) {
        let (from, to) = self.io.split();
        let [reading, writing] = &self.waiters;
        self.taken.set(self.body.is_at_hand(self.buffer.as_ref()));
        let body = RequestBody {
            worker,
            max: MaxBody::client(worker.settings.limits.body),
            waiter: reading,
            from,
            buffer: &mut self.buffer,
            body: &mut self.body,
            taken: &self.taken,
        };
        let timeout = worker.settings.timeouts.send;
        let writer = Writer { worker, waiter: writing, to, out: &mut self.out, chunked: false, timeout };
        let response = Response {
            writer,
            keep: &mut self.keep,
            taken: &self.taken,
            continue_due: &mut self.continue_due,
            version: self.version,
            begun: false,
            alt_svc: worker.alt_svc_at(self.alt_svc),
        };
        (body, response)
    }

    pub(super) fn body_received(&self) -> u64 {
        self.body.received(self.buffer.as_ref())
    }

    pub(super) fn distrust(&mut self) {
        self.keep = false;
    }

    /// Takes over what a head says of the message.
    #[inline]
    fn begin(&mut self, worker: &Worker, head: &RequestHead, size: usize) {
        let settings = &worker.settings;
        self.arrival.head_bytes = size as u64;
        self.arrival.requests += 1;
        self.body = Body::of_request(head.framing);
        self.version = head.version;
        self.continue_due = head.expect_continue && self.buffer.as_ref().is_none_or(Buffer::is_empty);
        self.client_keeps = head.keep_alive;
        let last = self.arrival.requests >= settings.limits.keepalive_requests
            || settings.timeouts.keepalive.is_zero();
        // A client that wanted a tunnel may already speak another protocol.
        self.keep = head.keep_alive && !last && !worker.is_draining() && head.method != Method::Connect;
    }

    /// Decides how the connection continues after an exchange.
    #[inline]
    fn after(&mut self, outcome: Outcome) -> After {
        match outcome {
            Outcome::Answered if self.keep && self.finish_body() => After::Next,
            // The client said that this was its last request, and has sent no more than that: there is
            // nothing that the close could answer with a reset.
            Outcome::Answered if !self.client_keeps && self.finish_body() && !self.has_more() => After::Close,
            Outcome::Answered => After::Linger,
            Outcome::Gone => After::Close,
            Outcome::Broken => After::Abort,
            Outcome::Tunnel(tunnel) => After::Tunnel(tunnel),
        }
    }

    /// Drops the rest of the body if all of it is here; says whether the next request can follow.
    #[inline]
    fn finish_body(&mut self) -> bool {
        self.body.finish(self.buffer.as_mut())
    }

    /// Whether the client is known to have sent something that was not used.
    fn has_more(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) || self.io.maybe_readable()
    }

    /// Gives an empty buffer back.
    #[inline]
    fn return_empty(&mut self, worker: &Worker) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.is_empty()) {
            worker.buffers.give(buffer);
        }
    }
}

/// The result of reading a head.
enum Head {
    Ready,
    /// Nothing: what made the connection readable was read along with the request before.
    Nothing,
    /// The connection ended between requests, or broke off within a head.
    Gone,
    Refused(FaultKind),
    /// It is how HTTP/2 begins.
    H2,
    /// It is neither that nor anything like HTTP/1, for which reason.
    Foreign(Refusal),
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
///
/// With `h2`, a connection that begins as HTTP/2 does is served as that.
pub(crate) async fn serve(worker: Rc<Worker>, io: Io, client: Client, h2: bool) {
    let mut down = Conn::new(&worker, io, h2);
    down.alt_svc = worker.alt_svc_of(&client);
    loop {
        let first = down.arrival.requests == 0;
        let settings = &worker.settings;
        let idle = if first { settings.timeouts.header } else { settings.timeouts.keepalive };
        if wait_for_request(&worker, &mut down, idle).await != Idle::Request {
            break;
        }
        match Box::pin(active(&worker, &mut down, &client)).await {
            Ended::Quiet => {}
            Ended::Closed => break,
            Ended::H2 => {
                let Conn { io, buffer, .. } = down;
                return Box::pin(h2::serve(worker, io, client, buffer)).await;
            }
        }
    }
    if let Some(buffer) = down.buffer.take() {
        worker.buffers.give(buffer);
    }
}

/// Answers a connection that has waited too long to be served, without reading its request.
pub(crate) async fn turn_away(worker: Rc<Worker>, io: Io, client: Client) {
    let mut down = Conn::new(&worker, io, false);
    let mut scratch = worker.take_scratch();
    let fault = Fault::gateway(FaultKind::Overloaded);
    let after = refuse(&worker, &mut down, &client, fault, &mut scratch).await;
    worker.give_scratch(scratch);
    if let After::Linger = after {
        io::linger(&worker, &down.waiters[0], &mut down.io).await;
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
    /// The client speaks HTTP/2.
    H2,
}

/// Serves requests for as long as they follow each other.
async fn active(worker: &Rc<Worker>, down: &mut Conn, client: &Client) -> Ended {
    let after = loop {
        let mut scratch = worker.take_scratch();
        let after = match read_head(worker, down, &mut scratch.messages.request).await {
            Head::Ready => {
                // The exchange's memory is the worker's, so an idle connection holds none of it.
                down.out = std::mem::take(&mut scratch.down_out);
                let outcome = drive::drive(worker, &mut Downstream::H1(down), client, &mut scratch).await;
                scratch.down_out = std::mem::take(&mut down.out);
                down.after(outcome)
            }
            Head::Nothing => After::Next,
            Head::Gone => {
                if down.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
                    broken_off(worker, down, client, &mut scratch);
                }
                After::Close
            }
            Head::Refused(kind) => refuse(worker, down, client, Fault::client(kind), &mut scratch).await,
            Head::H2 => After::H2,
            Head::Foreign(refusal) => {
                worker.shard.request_refused();
                let fault = Fault::client(FaultKind::BadRequest(refusal));
                let status = fault.kind.status();
                report_refused(worker, down, client, fault, status, (0, 0), &mut scratch.messages);
                After::Close
            }
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
        After::Linger => {
            if let Some(buffer) = down.buffer.take() {
                worker.buffers.give(buffer);
            }
            io::linger(worker, &down.waiters[0], &mut down.io).await;
        }
        After::Abort => down.io.abort(),
        After::Tunnel(tunnel) => {
            let early = down.buffer.take();
            let (from, to) = down.io.split();
            let [reading, writing] = &down.waiters;
            let ends = Ends { from: Source::Io(from, early), to: Sink::Io(to) };
            tunnel::run(worker, [reading, writing], ends, *tunnel).await;
        }
        After::H2 => return Ended::H2,
    }
    Ended::Closed
}

/// Answers what is not a request, and tells of it.
#[cold]
async fn refuse(
    worker: &Rc<Worker>,
    down: &mut Conn,
    client: &Client,
    fault: Fault,
    scratch: &mut Scratch,
) -> After {
    worker.shard.request_refused();
    let status = fault.kind.status();
    let out = &mut scratch.down_out;
    let reply = answer::of_fault(fault);
    out.clear();
    response::write_refusal(worker, &reply, out);
    let sizes = (out.len() as u64, reply.body.len() as u64);
    let (_, mut to) = down.io.split();
    let written = io::write_all(worker, &down.waiters[0], &mut to, out, worker.settings.timeouts.send).await;
    let sizes = if written.is_ok() { sizes } else { (0, 0) };
    report_refused(worker, down, client, fault, status, sizes, &mut scratch.messages);
    match written {
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// Tells of a client that went away in the middle of a head: a bad request, as nginx counts it.
#[cold]
fn broken_off(worker: &Rc<Worker>, down: &Conn, client: &Client, scratch: &mut Scratch) {
    let fault = Fault::client(FaultKind::ClientGone);
    report_refused(worker, down, client, fault, 400, (0, 0), &mut scratch.messages);
}

/// Writes invalid requests to both logs; `sizes` are the bytes sent and those of a body in them.
fn report_refused(
    worker: &Rc<Worker>,
    down: &Conn,
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
        tls: TlsNames::default(),
    });
    if let Some(log) = &worker.access_log {
        let (sent, body_sent) = sizes;
        let (received, took_ms) = (data.len() as u64, down.arrival.head_took_ms);
        let reason = fault.kind.words();
        let refused = Refused { line, status, reason, received, sent, body_sent, took_ms };
        refusal::log(log, worker, client, messages, &refused);
    }
}

/// Whether bytes on a port that also serves HTTP/2 are of neither version: a line of three plain words,
/// none of them a method, a target or a version. An answer in HTTP/1 would mean nothing to such a client
/// (RFC 9113 section 3.4); a line with a trace of HTTP/1 gets one.
#[cold]
fn is_foreign(head: &[u8]) -> bool {
    let line = first_line(head);
    let mut words = line.split(|byte| *byte == b' ');
    let plain = |word: Option<&[u8]>| {
        word.is_some_and(|word| {
            !word.is_empty()
                && word.iter().all(u8::is_ascii_uppercase)
                && Method::from_bytes(word) == Method::Other
        })
    };
    line.len() < head.len()
        && plain(words.next())
        && plain(words.next())
        && plain(words.next())
        && words.next().is_none()
}

/// Returns the part of a refused head that stands where the request line would.
fn first_line(head: &[u8]) -> &[u8] {
    const ENOUGH: usize = 2048;
    let head = &head[..head.len().min(ENOUGH)];
    let end = head.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &head[..end.unwrap_or(head.len())]
}

/// The result of waiting for a request.
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
async fn wait_for_request(worker: &Worker, down: &mut Conn, time: std::time::Duration) -> Idle {
    // A connection that has not asked yet may still do so: it was accepted.
    let first = down.arrival.requests == 0;
    if down.buffer.is_some() {
        return Idle::Request;
    }
    let deadline = worker.clock.after(time);
    worker.shard.waiting(1);
    let waiter = &down.waiters[0];
    waiter.rest();
    let woken = waiter
        .until(deadline, |cx| match down.io.poll_readable(cx) {
            Poll::Ready(_) => Poll::Ready(Idle::Request),
            Poll::Pending => {
                let unwanted = waiter.is_unwanted() || worker.closes_idle() && !first;
                if unwanted && down.io.is_idle() { Poll::Ready(Idle::Unwanted) } else { Poll::Pending }
            }
        })
        .await;
    waiter.end_rest();
    worker.shard.waiting(-1);
    woken.unwrap_or(Idle::Nothing)
}

/// Reads until the head is complete. The bound on time is for the whole head.
#[inline]
async fn read_head(worker: &Worker, down: &mut Conn, head: &mut RequestHead) -> Head {
    let limits = &worker.settings.request;
    let since = worker.clock.coarse_ms();
    down.arrival.head_took_ms = 0;
    let mut progress = Progress::default();
    let deadline = worker.clock.after(worker.settings.timeouts.header);
    let buffer = down.buffer.get_or_insert_with(|| worker.buffers.take());
    let (mut from, _) = down.io.split();
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
                down.begin(worker, head, n);
                wire::h1::hop::strip_request(head, head.upgrade);
                down.return_empty(worker);
                return Head::Ready;
            }
            Ok(None) if buffer.space().is_empty() => buffer.grow(limits.head + 2),
            Ok(None) => {}
            Err(_) if down.h2 && down.arrival.requests == 0 && h2::may_begin(buffer.data()) => {
                if buffer.len() >= wire::h2::PREFACE.len() {
                    return Head::H2;
                }
            }
            Err(refusal) if down.h2 && down.arrival.requests == 0 && is_foreign(buffer.data()) => {
                return Head::Foreign(refusal);
            }
            Err(_) if buffer.data().starts_with(TLS_HANDSHAKE) => {
                return Head::Refused(FaultKind::TlsOnPlainPort);
            }
            Err(refusal) => return Head::Refused(FaultKind::BadRequest(refusal)),
        }
        let read = io::read_until(&down.waiters[0], &mut from, buffer, deadline).await;
        down.arrival.head_took_ms = worker.clock.coarse_ms() - since;
        match read {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => return Head::Gone,
            Ok(_) => {}
            Err(Failed::Timeout) => return Head::Refused(FaultKind::HeadTimeout),
        }
    }
}

#[cfg(test)]
mod tests;
