//! hot path
//!
//! A request on its way to an upstream: choosing a server, connecting, sending,
//! and trying again where that is safe.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sdk::Exchange;
use sdk::exchange::{self, Body, Chunk, Own};
use smallvec::SmallVec;
use snapshot::balance::Tried;
use snapshot::{Endpoint, PassHost, Plan, Scheme, Snapshot, Upstream};
use wire::fields::check_value;
use wire::h1::encode::check_target;
use wire::{Framing, Method, Name, Span};

use super::body::{Incoming, Outgoing};
use super::fault::{Blame, Fault, FaultKind};
use super::phases::Chains;
use super::receive::{Received, Receiver};
use super::retry::{self, Again, Try};
use super::upload::{First, Sender, UploadState};
use crate::buffers::Buffer;
use crate::down::{Down, Ready};
use crate::up::connect::connect;
use crate::up::pool::UpConn;
use crate::worker::Worker;

/// Bodies up to so many bytes are copied behind the head; longer ones are written as a second piece.
const COPY_UP_TO: usize = 16 << 10;

/// How forwarding ended, once something was sent to the client.
#[derive(Debug)]
pub(crate) enum Forwarded {
    Done {
        keep_client: bool,
    },
    Broken(Fault),
    /// The client's connection and this one are a tunnel now.
    Switched {
        conn: UpConn,
        bytes: Option<Buffer>,
        idle_timeout: Duration,
    },
}

/// What one exchange brings to its tries.
pub(crate) struct Forward<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) plan: &'a Plan,
    pub(crate) chains: Chains<'a>,
    pub(crate) up_out: &'a mut Vec<u8>,
    pub(crate) down_out: &'a mut Vec<u8>,
    pub(crate) chunk: &'a mut Chunk,
    pub(crate) keep_client: bool,
}

/// A stage made a target or a host that would not stay within its line.
struct Unsendable;

/// A try that came to nothing.
struct FailedTry {
    fault: Fault,
    state: Try,
}

impl Forward<'_> {
    /// Tries servers until one answers. An error means that nothing was sent to the client.
    pub(crate) async fn run(mut self, down: &mut Down, x: &mut Exchange<'_>) -> Result<Forwarded, Fault> {
        let worker = self.worker;
        let upstream = match x.forward.upstream {
            None => self.snapshot.upstream(self.plan),
            Some(chosen) => self.snapshot.chosen(chosen),
        };
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(failure) => return Err(Fault::gateway(FaultKind::Plan(failure))),
        };
        if upstream.endpoints.is_empty() {
            return Err(Fault::gateway(FaultKind::NoNode));
        }
        if upstream.scheme != Scheme::Http {
            return Err(Fault::gateway(FaultKind::UnsupportedScheme));
        }
        down.say_continue(worker).await?;
        down.prepare_body(x, worker.settings.max_body)?;
        let mut tried = Tried::default();
        let mut retries = upstream.retries;
        let give_up = match upstream.retry_timeout {
            bound if bound.is_zero() => u64::MAX,
            bound => worker.clock.after(bound),
        };
        let mut same = None;
        let mut last = Fault::gateway(FaultKind::NoServerLeft);
        loop {
            let now = worker.clock.coarse_ms();
            let (index, fresh) = match same.take() {
                Some(index) => (index, true),
                // A single server needs no memory of choices: with many routes, one cache line less.
                // It is tried as often as `retries` says, as in APISIX.
                None if upstream.endpoints.len() == 1 && !upstream.keeps_score() => (0, false),
                None if upstream.endpoints.len() == 1 => {
                    // Its score is kept; those of servers it took the place of are forgotten.
                    worker.with_balance(upstream, |_| ());
                    (0, false)
                }
                None => {
                    let picked = worker.with_balance(upstream, |state| upstream.pick(state, x, &tried, now));
                    (picked.ok_or(last)?, false)
                }
            };
            let endpoint = &upstream.endpoints[index];
            if let Some(before) = x.upstream_addr.replace(endpoint.addr) {
                let took_us = match x.timing.asked_us {
                    0 => 0,
                    asked => {
                        let before: u64 = x.tried.iter().map(|tried| tried.took_us).sum();
                        worker.clock.micros().saturating_sub(asked + before)
                    }
                };
                let status = std::mem::take(&mut x.upstream_status);
                x.tried.push(exchange::Try { addr: before, status, took_us });
            }
            x.forward.server_host = match &upstream.pass_host {
                PassHost::Pass => None,
                PassHost::Node => Some(x.intern(endpoint.authority.as_bytes())),
                PassHost::Rewrite(host) => Some(x.intern(host.as_bytes())),
            };
            let result = if upstream.keeps_score() {
                let began = worker.clock.micros();
                worker.with_score(upstream, |state| state.begin(index, endpoint.addr));
                let result = self.attempt(down, x, upstream, endpoint, fresh).await;
                let micros = worker.clock.micros().saturating_sub(began);
                let ok = result.is_ok();
                worker.with_score(upstream, |state| state.done(index, endpoint.addr, micros, ok));
                result
            } else {
                self.attempt(down, x, upstream, endpoint, fresh).await
            };
            let failed = match result {
                Ok(forwarded) => return Ok(forwarded),
                Err(failed) => failed,
            };
            last = failed.fault;
            if last.blame == Blame::Upstream {
                x.upstream_status = last.kind.status();
            }
            match retry::decide(failed.fault, failed.state, sent_method(x)) {
                Again::SameServer => same = Some(index),
                Again::NextServer if retries > 0 && !worker.clock.is_over(give_up) => {
                    retries -= 1;
                    upstream.note(&mut tried, index);
                }
                _ => return Err(failed.fault),
            }
            worker.shard.upstream_retried();
        }
    }

    /// One try with one server.
    async fn attempt(
        &mut self,
        down: &mut Down,
        x: &mut Exchange<'_>,
        upstream: &Arc<Upstream>,
        endpoint: &Endpoint,
        fresh: bool,
    ) -> Result<Forwarded, FailedTry> {
        let worker = self.worker;
        let timeouts = self.plan.timeouts(upstream);
        let mut state = Try { reused: false, sent: false, body_lost: down.body_lost };
        let failed = |fault, state| FailedTry { fault, state };

        let careful = !sent_method(x).is_idempotent();
        let pooled =
            if fresh { None } else { worker.pools.take(endpoint.addr, worker.clock.coarse_ms(), careful) };
        let mut conn = match pooled {
            Some(conn) => conn,
            None => match connect(worker, &down.waiter, endpoint.addr, timeouts.connect).await {
                Ok(conn) => conn,
                Err(fault) => return Err(failed(fault, state)),
            },
        };
        state.reused = conn.reused;
        conn.requests += 1;

        let switching = self.plan.websocket && asks_for_websocket(x.request());
        self.up_out.clear();
        let outgoing = match write_request(x, upstream, endpoint, switching, self.up_out) {
            Ok(outgoing) => outgoing,
            Err(_) => return Err(failed(Fault::gateway(FaultKind::BrokenStage), state)),
        };
        let all_at_hand = down.body_at_hand();

        let Down { stream, waiter, up_waiter, buffer, incoming, ready, body_lost, .. } = down;
        let (mut from_client, mut to_client) = stream.split();
        let (mut from_up, mut to_up) = conn.stream.split();
        let beginning = if all_at_hand.is_none() { *ready } else { Ready::default() };
        let at_hand = all_at_hand.unwrap_or(beginning.bytes);
        let mut first = First { head: b"", body: None, at_hand, beginning, tail: Vec::new() };
        let held = if x.body_state == Body::Whole { x.messages.body.len() } else { 0 };
        if held > COPY_UP_TO {
            first.body = Some(x.messages.body.clone());
            write_tail(x, &mut first.tail);
        } else if x.body_state == Body::Whole {
            self.up_out.extend_from_slice(&x.messages.body);
            write_tail(x, self.up_out);
        } else if at_hand <= COPY_UP_TO
            && let Some(buffer) = &*buffer
        {
            self.up_out.extend_from_slice(&buffer.data()[..at_hand]);
            first.at_hand = 0;
        }
        first.head = self.up_out;

        let sent_method = sent_method(x);
        let upload = UploadState::default();
        if x.body_state == Body::TooLarge {
            upload.received.set(x.messages.body.len() as u64);
            upload.measured.set(x.messages.body.len() as u64);
        }
        let mut nothing = Incoming::None;
        let incoming = if all_at_hand.is_some() { &mut nothing } else { incoming };
        upload.taken.set(incoming.is_done());
        let result = {
            let from = &mut from_client;
            let sender = Sender { worker, waiter, from, buffer, incoming, state: &upload };
            let mut sending = pin!(sender.run(&mut to_up, first, outgoing, timeouts.send));
            let receiver = Receiver {
                worker,
                waiter: up_waiter,
                from: &mut from_up,
                to: &mut to_client,
                x: &mut *x,
                chains: self.chains,
                state: &upload,
                out: &mut *self.down_out,
                chunk: &mut *self.chunk,
                read_timeout: timeouts.read,
                sent_method,
                reused: state.reused,
                switching,
                keep_client: self.keep_client,
                head_sent: false,
                long: false,
            };
            let mut receiving = pin!(receiver.run());
            poll_fn(|cx| {
                // The response first: it is what most wake-ups are about. What lies there before the
                // request was sent shows that the connection is not to be used.
                if let Poll::Ready(received) = receiving.as_mut().poll(cx) {
                    return Poll::Ready(received);
                }
                match sending.as_mut().poll(cx) {
                    Poll::Ready(fault) if upload.answered.get() => Poll::Ready(Ok(Received::Broken(fault))),
                    Poll::Ready(fault) => Poll::Ready(Err(fault)),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        if upload.lost.get() {
            *body_lost = true;
            *ready = Ready::default();
        }
        if let (cut_off @ 1.., Some(buffer)) = (upload.writing.get(), buffer) {
            buffer.consume(cut_off);
        }
        x.timing.received += upload.received.get();
        match result {
            Ok(Received::Done { keep_upstream, keep_client }) => {
                if keep_upstream {
                    worker.pools.give(endpoint.addr, conn, &upstream.keepalive, worker.clock.coarse_ms());
                }
                Ok(Forwarded::Done { keep_client })
            }
            Ok(Received::Broken(fault)) => Ok(Forwarded::Broken(fault)),
            Ok(Received::Switched(bytes)) => {
                Ok(Forwarded::Switched { conn, bytes, idle_timeout: timeouts.read })
            }
            Err(fault) => {
                state.body_lost = *body_lost;
                state.sent = upload.sent.get();
                Err(failed(fault, state))
            }
        }
    }
}

/// The method the upstream sees, which a stage may have changed.
#[inline]
fn sent_method(x: &Exchange<'_>) -> Method {
    x.forward.method.unwrap_or(x.messages.request.method)
}

/// Whether the client wants a tunnel for WebSocket (RFC 6455 section 4.1). No other protocol is
/// switched to: what follows an upgrade to HTTP/2 would be requests that no route has seen. Nor
/// is there a switch behind a body, which the upstream might take for the first bytes of the tunnel,
/// or for a request.
#[inline]
fn asks_for_websocket(head: &wire::RequestHead) -> bool {
    head.upgrade
        && matches!(head.framing, Framing::None | Framing::Length(0))
        && head.fields.get(Name::Upgrade).is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
}

/// Writes the request's head for this server, made anew (RFC 9112 section 3), and what was
/// already read of a body too long to hold. Says how the rest of the body goes out.
fn write_request(
    x: &Exchange<'_>,
    upstream: &Upstream,
    endpoint: &Endpoint,
    switching: bool,
    out: &mut Vec<u8>,
) -> Result<Outgoing, Unsendable> {
    let head = x.request();
    match x.forward.method {
        Some(method) if method != Method::Other => out.extend_from_slice(method.as_str().as_bytes()),
        _ => out.extend_from_slice(head.method_bytes()),
    }
    out.push(b' ');
    let target = out.len();
    x.upstream_uri(out);
    if x.forward.uri.is_some() {
        // A stage's own text: nothing in it may end the request line (CVE-2023-25690).
        check_target(&out[target..]).map_err(|_| Unsendable)?;
    }
    if let Some(host) = x.forward.host {
        check_value(head.fields.bytes(host)).map_err(|_| Unsendable)?;
    }
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    out.extend_from_slice(match (&x.forward.host, &upstream.pass_host) {
        (Some(span), _) => head.fields.bytes(*span),
        (None, PassHost::Rewrite(host)) => host.as_bytes(),
        (None, PassHost::Pass) if !head.authority().is_empty() => head.authority(),
        (None, _) => endpoint.authority.as_bytes(),
    });
    out.extend_from_slice(b"\r\n");

    let mut forwarded_for: SmallVec<[Span; 2]> = SmallVec::new();
    let mut told = x.forward.without;
    for field in head.fields.list() {
        match field.id {
            Name::Host
            | Name::ContentLength
            | Name::TransferEncoding
            | Name::Expect
            | Name::Connection
            | Name::Upgrade
            | Name::XRealIp => continue,
            Name::XForwardedFor => {
                forwarded_for.push(field.value);
                continue;
            }
            // What an untrusted peer said was taken out: this is a trusted one's word, or a stage's.
            // Said without a value it is not said.
            Name::XForwardedProto | Name::XForwardedHost | Name::XForwardedPort
                if head.fields.bytes(field.value).is_empty() =>
            {
                continue;
            }
            Name::XForwardedProto => told.insert(Own::PROTO),
            Name::XForwardedHost => told.insert(Own::HOST),
            Name::XForwardedPort => told.insert(Own::PORT),
            _ => {}
        }
        out.extend_from_slice(head.fields.bytes(field.name));
        out.extend_from_slice(b": ");
        out.extend_from_slice(head.fields.bytes(field.value));
        out.extend_from_slice(b"\r\n");
    }
    let ip = x.client.ip_text().as_bytes();
    out.extend_from_slice(b"X-Real-IP: ");
    out.extend_from_slice(ip);
    out.extend_from_slice(b"\r\nX-Forwarded-For: ");
    for before in forwarded_for {
        out.extend_from_slice(head.fields.bytes(before));
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(ip);
    if !told.has(Own::PROTO) {
        out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
        out.extend_from_slice(x.client.scheme().as_bytes());
    }
    if !told.has(Own::HOST) && !head.authority().is_empty() {
        out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
        out.extend_from_slice(head.authority());
    }
    if !told.has(Own::PORT) {
        out.extend_from_slice(b"\r\nX-Forwarded-Port: ");
        wire::h1::encode::decimal(u64::from(x.forwarded_port()), out);
    }
    out.extend_from_slice(b"\r\n");

    if switching {
        out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n");
        return Ok(Outgoing::Same);
    }
    let length = match (x.body_state, head.framing) {
        (Body::Whole, _) if x.messages.request_trailers.is_empty() => Some(x.messages.body.len() as u64),
        (Body::Whole, _) => None,
        (_, Framing::Length(length)) => Some(length),
        _ => None,
    };
    if let Some(length) = length {
        out.extend_from_slice(b"Content-Length: ");
        wire::h1::encode::decimal(length, out);
        out.extend_from_slice(b"\r\n\r\n");
        return Ok(Outgoing::Same);
    }
    if head.framing != Framing::Chunked {
        out.extend_from_slice(b"\r\n");
        return Ok(Outgoing::Same);
    }
    out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    let held = &x.messages.body;
    if held.is_empty() {
        return Ok(Outgoing::Same);
    }
    wire::h1::encode::chunk_header(held.len(), out);
    if x.body_state == Body::Whole {
        // It follows, and then its trailers.
        return Ok(Outgoing::Same);
    }
    // The beginning was taken out of its coding, so the rest is, too.
    out.extend_from_slice(held);
    out.extend_from_slice(b"\r\n");
    Ok(Outgoing::Chunked)
}

/// What follows a held body that has trailers, and so goes out in one chunk.
fn write_tail(x: &Exchange<'_>, out: &mut Vec<u8>) {
    let trailers = &x.messages.request_trailers;
    if !trailers.is_empty() {
        if !x.messages.body.is_empty() {
            out.extend_from_slice(b"\r\n");
        }
        wire::h1::encode::last_chunk(Some(trailers), out);
    }
}
