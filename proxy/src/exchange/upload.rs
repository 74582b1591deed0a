//! hot path
//!
//! The request's body: into memory for a stage that asked, or on to the upstream.

use std::cell::Cell;
use std::rc::Rc;

use sdk::Exchange;
use sdk::exchange::Body;
use wire::Framing;

use super::body::{Frame, Incoming, Outgoing};
use super::fault::{Fault, FaultKind};
use super::io::{self, Failed};
use crate::buffers::{Buffer, LARGE, SMALL};
use crate::clock::Waiter;
use crate::down::{Down, Ready};
use crate::rt::{ReadHalf, WriteHalf};
use crate::worker::Worker;

pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Reads the request's body into `x.messages.body`, up to `limit` bytes. What is read of a
/// longer one stays there as its beginning.
pub(crate) async fn buffer(
    worker: &Worker,
    down: &mut Down,
    x: &mut Exchange<'_>,
    limit: usize,
) -> Result<(), Fault> {
    match x.body_state {
        Body::Streaming => {}
        Body::TooLarge if x.messages.body.len() <= limit => {}
        _ => return Ok(()),
    }
    x.body_asked = x.body_asked.max(limit);
    if let Framing::Length(length) = x.messages.request.framing
        && length > limit as u64
    {
        x.body_state = Body::TooLarge;
        return Ok(());
    }
    down.say_continue(worker).await?;
    loop {
        if let Some(buffer) = &mut down.buffer {
            let taken = down.incoming.decode(buffer.data_mut());
            let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
            let held = hold(worker, x, &buffer.data()[..taken.emit], limit);
            // Held or not, they are counted as taken: left here, they would be the next request.
            buffer.consume(taken.consumed);
            held?;
            let max = worker.settings.max_body;
            if max > 0 && x.messages.body.len() as u64 > max {
                return Err(Fault::client(FaultKind::BodyTooLarge));
            }
            if taken.done {
                if let Some(trailers) = down.incoming.trailers() {
                    x.messages.request_trailers.clone_from(trailers);
                }
                x.body_state = Body::Whole;
                down.incoming = Incoming::None;
                down.return_empty(worker);
                return Ok(());
            }
            if x.messages.body.len() > limit {
                x.body_state = Body::TooLarge;
                return Ok(());
            }
        }
        down.read_more(worker, worker.settings.body_timeout).await?;
    }
}

/// Puts more of the body into memory, and on the worker's bill. What is announced need not come, so
/// memory is set aside as bytes arrive.
fn hold(worker: &Worker, x: &mut Exchange<'_>, bytes: &[u8], limit: usize) -> Result<(), Fault> {
    let messages = &mut *x.messages;
    // Nobody shares the body before it goes out.
    let body = Rc::make_mut(&mut messages.body);
    let most = match messages.request.framing {
        Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX).min(limit),
        _ => limit,
    };
    if messages.body_held.reserve(&worker.budget, body, bytes.len(), most).is_err() {
        return Err(match body.len() + bytes.len() > worker.settings.held_bodies {
            true => Fault::client(FaultKind::BodyTooLarge),
            false => Fault::gateway(FaultKind::HeldTooMuch),
        });
    }
    body.extend_from_slice(bytes);
    Ok(())
}

/// How far sending a request's body has come; looked at by the receiving side.
#[derive(Debug, Default)]
pub(crate) struct UploadState {
    /// When the last byte of the request was written, in the clock's coarse milliseconds.
    pub(crate) done_at: Cell<Option<u64>>,
    /// Bytes were taken from the client that are not in memory any more.
    pub(crate) lost: Cell<bool>,
    /// Some bytes of the request may have reached the server.
    pub(crate) sent: Cell<bool>,
    /// Writing to the upstream failed; its answer may still be there to read.
    pub(crate) failed: Cell<Option<Failed>>,
    /// All of the body was taken from the client's connection, or is at hand.
    pub(crate) taken: Cell<bool>,
    /// The response has begun, so a half-closed client is known to be served.
    pub(crate) answered: Cell<bool>,
    /// Bytes of the body taken from the client, in the form in which they go on.
    pub(crate) received: Cell<u64>,
    /// Those without the lines of chunked coding: what the limit is for.
    pub(crate) measured: Cell<u64>,
    /// Bytes at the front of the client's buffer that are counted as taken and being written. The
    /// sender may be dropped meanwhile; then they are to be consumed, or they would be read again.
    pub(crate) writing: Cell<usize>,
}

/// What is at hand of a request, and goes out first.
#[derive(Debug)]
pub(crate) struct First<'a> {
    /// The head, with a small body behind it.
    pub(crate) head: &'a [u8],
    /// A longer body that is held.
    pub(crate) body: Option<Rc<Vec<u8>>>,
    /// Bytes of it at the front of the client's buffer.
    pub(crate) at_hand: usize,
    /// Bytes there that are done with when this is out, as they are the beginning of a longer body.
    pub(crate) beginning: Ready,
    /// What ends a held body in chunked coding.
    pub(crate) tail: Vec<u8>,
}

/// What sending needs of the connection to the client.
pub(crate) struct Sender<'a, 'b> {
    pub(crate) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(crate) from: &'a mut ReadHalf<'b>,
    pub(crate) buffer: &'a mut Option<Buffer>,
    pub(crate) incoming: &'a mut Incoming,
    pub(crate) state: &'a UploadState,
}

impl Sender<'_, '_> {
    /// Sends the request, then watches whether the client goes away. Ends only with a fault. The
    /// upstream may answer at any time, so that is listened for meanwhile.
    pub(crate) async fn run(
        mut self,
        to: &mut WriteHalf<'_>,
        first: First<'_>,
        outgoing: Outgoing,
        send_timeout: std::time::Duration,
    ) -> Fault {
        if let Err(fault) = self.begin(to, first, send_timeout).await {
            return fault;
        }
        if self.state.failed.get().is_none()
            && !self.incoming.is_done()
            && let Err(fault) = self.stream(to, outgoing, send_timeout).await
        {
            return fault;
        }
        if self.state.failed.get().is_some() {
            // Only the upstream's answer, if there is one, can end this exchange now.
            return std::future::pending().await;
        }
        self.state.done_at.set(Some(self.worker.clock.coarse_ms()));
        self.watch().await
    }

    /// Sends what is at hand.
    #[inline]
    async fn begin(
        &mut self,
        to: &mut WriteHalf<'_>,
        first: First<'_>,
        send_timeout: std::time::Duration,
    ) -> Result<(), Fault> {
        self.state.sent.set(true);
        let body = match (&first.body, &*self.buffer) {
            (Some(body), _) => &body[..],
            (None, Some(buffer)) => &buffer.data()[..first.at_hand],
            (None, None) => &[],
        };
        let written = if body.is_empty() {
            io::write_all(self.worker, self.waiter, to, first.head, send_timeout).await
        } else {
            let pieces = [first.head, body, &first.tail];
            io::write_pieces(self.worker, self.waiter, to, pieces, send_timeout).await
        };
        match written {
            Ok(()) => {}
            Err(Failed::Closed) => {
                // A connection that took no byte has not carried this request.
                self.state.sent.set(false);
                return Err(Fault::upstream(FaultKind::ClosedEarly));
            }
            Err(failed) => self.failed(failed)?,
        }
        if let (Some(buffer), Ready { bytes: 1.., .. }) = (&mut *self.buffer, first.beginning) {
            // There is room for more of the body now.
            buffer.consume(first.beginning.bytes);
            self.state.received.set(first.beginning.bytes as u64);
            self.state.measured.set(first.beginning.data as u64);
            self.state.lost.set(true);
        }
        Ok(())
    }

    /// The upstream takes no more. It may have answered before, and closed since it wanted no more
    /// than that; one that neither reads nor answers has failed.
    fn failed(&self, failed: Failed) -> Result<(), Fault> {
        if failed == Failed::Timeout && !self.state.answered.get() {
            return Err(Fault::upstream(FaultKind::SendTimeout));
        }
        self.state.failed.set(Some(failed));
        Ok(())
    }

    async fn stream(
        &mut self,
        to: &mut WriteHalf<'_>,
        outgoing: Outgoing,
        send_timeout: std::time::Duration,
    ) -> Result<(), Fault> {
        let max = self.worker.settings.max_body;
        loop {
            if let Some(buffer) = self.buffer.as_mut().filter(|buffer| !buffer.is_empty()) {
                let data = buffer.data_mut();
                let taken = match outgoing {
                    Outgoing::Same => self.incoming.relay(data),
                    Outgoing::Chunked | Outgoing::Bare => self.incoming.decode(data),
                };
                let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
                self.state.received.set(self.state.received.get() + taken.emit as u64);
                self.state.measured.set(self.state.measured.get() + taken.data as u64);
                if max > 0 && self.state.measured.get() > max {
                    return Err(Fault::client(FaultKind::BodyTooLarge));
                }
                let bytes = &buffer.data()[..taken.emit];
                let mut frame = Frame::default();
                let pieces = match outgoing {
                    Outgoing::Same | Outgoing::Bare => [bytes, b"", b""],
                    Outgoing::Chunked => frame.around(bytes, taken.done, self.incoming.trailers()),
                };
                // From here on they are not at hand any more, also where this write is cut off.
                self.state.lost.set(true);
                self.state.writing.set(taken.consumed);
                let written = io::write_pieces(self.worker, self.waiter, to, pieces, send_timeout).await;
                self.state.writing.set(0);
                buffer.consume(taken.consumed);
                if taken.done {
                    *self.incoming = Incoming::None;
                    self.state.taken.set(true);
                }
                if let Err(failed) = written {
                    return self.failed(failed);
                }
                if taken.done {
                    return Ok(());
                }
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), Fault> {
        let timeout = self.worker.settings.body_timeout;
        if self.buffer.is_none() {
            let deadline = self.worker.clock.after(timeout);
            if self.waiter.until(deadline, |cx| self.from.poll_readable(cx)).await.is_err() {
                return Err(Fault::client(FaultKind::BodyTimeout));
            }
        }
        let buffer = self.buffer.get_or_insert_with(|| self.worker.buffers.take());
        match io::read(self.worker, self.waiter, self.from, buffer, timeout).await {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => Err(Fault::client(FaultKind::ClientGone)),
            Ok(n) => {
                if n == SMALL && buffer.len() == SMALL && buffer.capacity() == SMALL {
                    buffer.grow(LARGE);
                }
                Ok(())
            }
            Err(Failed::Timeout) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// Ends when the client is certainly gone, or has closed its sending side and nothing of a
    /// response has come for a while.
    async fn watch(&mut self) -> Fault {
        if io::end(self.worker, self.from, self.buffer).await == io::End::Gone {
            return Fault::client(FaultKind::ClientGone);
        }
        let deadline = self.worker.clock.after(self.worker.settings.half_close_timeout);
        let _ = self.waiter.until(deadline, |_| std::task::Poll::<()>::Pending).await;
        if self.state.answered.get() {
            return std::future::pending().await;
        }
        Fault::client(FaultKind::ClientGone)
    }
}
