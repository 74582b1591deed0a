//! hot path
//!
//! A client's HTTP/1 connection: one task from accept to close.

use std::rc::Rc;
use std::task::Poll;

use sdk::Client;
use wire::h1::Progress;

use super::Down;
use crate::exchange::answer;
use crate::exchange::body::Incoming;
use crate::exchange::drive::{self, After};
use crate::exchange::fault::FaultKind;
use crate::exchange::io::{self, Failed};
use crate::rt;
use crate::worker::Worker;

/// What reading a head came to.
enum Head {
    Ready,
    /// The connection ended between requests, or broke off within a head.
    Gone,
    Refused(FaultKind),
}

/// Serves a connection until it ends.
pub(crate) async fn serve(worker: Rc<Worker>, stream: rt::Stream, client: Client) {
    let mut down = Down {
        stream,
        buffer: None,
        waiter: worker.clock.waiter(),
        up_waiter: worker.clock.waiter(),
        incoming: Incoming::None,
        continue_due: false,
        body_lost: false,
        head_bytes: 0,
    };
    let mut requests = 0u64;
    let after = loop {
        if !wait_for_request(&worker, &mut down, requests == 0).await {
            break After::Close;
        }
        let mut scratch = worker.take_scratch();
        let after = match read_head(&worker, &mut down, &mut scratch.messages.request).await {
            Head::Ready => {
                requests += 1;
                let keepalive = &worker.settings;
                let last = requests >= keepalive.keepalive_requests || keepalive.keepalive_timeout.is_zero();
                drive::drive(&worker, &mut down, &client, &mut scratch, last).await
            }
            Head::Gone => After::Close,
            Head::Refused(kind) => {
                worker.shard.request_refused();
                answer::refuse(&worker, kind, &mut scratch.down_out);
                let (_, mut to) = down.stream.split();
                let timeout = worker.settings.send_timeout;
                match io::write_all(&worker, &down.waiter, &mut to, &scratch.down_out, timeout).await {
                    Ok(()) => After::Linger,
                    Err(_) => After::Close,
                }
            }
        };
        worker.give_scratch(scratch);
        match after {
            After::Next => down.return_empty(&worker),
            after => break after,
        }
    };
    match after {
        After::Next | After::Close => {}
        After::Linger => linger(&worker, &mut down).await,
        After::Abort => {
            down.stream.abort();
            return;
        }
        After::Tunnel(tunnel) => drive::tunnel(&worker, &mut down, tunnel).await,
    }
    if let Some(buffer) = down.buffer.take() {
        worker.buffers.give(buffer);
    }
}

/// Waits for the first byte of a request without holding a buffer. False when the
/// connection has been idle too long or the worker is stopping.
#[inline]
async fn wait_for_request(worker: &Worker, down: &mut Down, first: bool) -> bool {
    if down.buffer.is_some() {
        return !worker.is_draining() || first;
    }
    let idle = if first { worker.settings.header_timeout } else { worker.settings.keepalive_timeout };
    let deadline = worker.clock.after(idle);
    worker.shard.waiting(1);
    let woken = down
        .waiter
        .until(deadline, |cx| match down.stream.poll_readable(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            // A connection that has not asked yet may still do so: it was accepted.
            Poll::Pending if worker.is_draining() && !first => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        })
        .await;
    worker.shard.waiting(-1);
    woken == Ok(true)
}

/// Reads until the head is complete. The bound on time is for the whole head.
#[inline]
async fn read_head(worker: &Worker, down: &mut Down, head: &mut wire::RequestHead) -> Head {
    let limits = &worker.settings.request;
    let mut progress = Progress::default();
    let deadline = worker.clock.after(worker.settings.header_timeout);
    let buffer = down.buffer.get_or_insert_with(|| worker.buffers.take());
    let (mut from, _) = down.stream.split();
    loop {
        if !buffer.is_empty() {
            match wire::h1::request(buffer.data(), &mut progress, head, limits) {
                Ok(Some(n)) => {
                    buffer.consume(n);
                    down.head_bytes = n as u64;
                    down.incoming = Incoming::new(head.framing);
                    down.continue_due = head.expect_continue && buffer.is_empty();
                    down.body_lost = false;
                    wire::h1::hop::strip_request(head, head.upgrade);
                    down.return_empty(worker);
                    return Head::Ready;
                }
                Ok(None) if buffer.space().is_empty() => buffer.grow(limits.head + 2),
                Ok(None) => {}
                Err(refusal) => return Head::Refused(FaultKind::BadRequest(refusal)),
            }
        }
        match io::read_until(&down.waiter, &mut from, buffer, deadline).await {
            Ok(0) | Err(Failed::Closed) => return Head::Gone,
            Ok(_) => {}
            Err(Failed::Timeout) if buffer.is_empty() => return Head::Gone,
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
