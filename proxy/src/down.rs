//! Towards clients.

pub(crate) mod h1;

use std::time::Duration;

use sdk::Exchange;
use sdk::exchange::Body;

use crate::buffers::Buffer;
use crate::clock::Waiter;
use crate::exchange::body::Incoming;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::io::{self, Failed};
use crate::exchange::upload::CONTINUE;
use crate::rt;
use crate::worker::Worker;

/// A client's connection and the request on it.
pub(crate) struct Down {
    pub(crate) stream: rt::Io,
    /// Bytes read and not used yet; none is held while there are none.
    pub(crate) buffer: Option<Buffer>,
    /// For waits on the client's side, and on the upstream's: both may be pending at once.
    pub(crate) waiter: Waiter,
    pub(crate) up_waiter: Waiter,
    /// The rest of the request's body.
    pub(crate) incoming: Incoming,
    /// What [`Down::prepare_body`] has made ready to send, if more of the body is to come.
    pub(crate) ready: Ready,
    /// The client waits for 100 before it sends the body.
    pub(crate) continue_due: bool,
    /// Part of the body was taken and is not in memory.
    pub(crate) body_lost: bool,
    /// Size of the request's head.
    pub(crate) head_bytes: u64,
    /// Milliseconds between the first byte of the request and its whole head, to a tick.
    pub(crate) head_took_ms: u64,
    /// Requests it has brought.
    pub(crate) requests: u64,
}

/// The beginning of a body, at the front of the buffer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ready {
    pub(crate) bytes: usize,
    /// Bytes of the body itself among them.
    pub(crate) data: usize,
}

impl Down {
    pub(crate) fn new(worker: &Worker, stream: rt::Io) -> Down {
        Down {
            stream,
            buffer: None,
            waiter: worker.clock.waiter(),
            up_waiter: worker.clock.waiter(),
            incoming: Incoming::None,
            ready: Ready::default(),
            continue_due: false,
            body_lost: false,
            head_bytes: 0,
            head_took_ms: 0,
            requests: 0,
        }
    }

    /// Tells a client that waits for it to go on with its body (RFC 9110 section 10.1.1).
    pub(crate) async fn say_continue(&mut self, worker: &Worker) -> Result<(), Fault> {
        if !std::mem::take(&mut self.continue_due) {
            return Ok(());
        }
        let (_, mut to) = self.stream.split();
        io::write_all(worker, &self.waiter, &mut to, CONTINUE, worker.settings.send_timeout)
            .await
            .map_err(|_| Fault::client(FaultKind::ClientGone))
    }

    /// Brings what is here of a chunked body into the form in which it goes to the upstream. So
    /// what is malformed is refused before any upstream hears of the request, and what is whole
    /// goes out with its head in one write and can be sent again.
    #[inline]
    pub(crate) fn prepare_body(&mut self, x: &Exchange<'_>, max: u64) -> Result<(), Fault> {
        let (Incoming::Chunked(_), Some(buffer), Body::Streaming) =
            (&self.incoming, &mut self.buffer, x.body_state)
        else {
            return Ok(());
        };
        let taken = self.incoming.relay(buffer.data_mut());
        let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
        if max > 0 && taken.data as u64 > max {
            return Err(Fault::client(FaultKind::BodyTooLarge));
        }
        buffer.remove(taken.emit..taken.consumed);
        if taken.done {
            self.incoming = Incoming::Length(taken.emit as u64);
        } else {
            self.ready = Ready { bytes: taken.emit, data: taken.data };
        }
        Ok(())
    }

    /// Reads more from the client behind what is at hand.
    pub(crate) async fn read_more(&mut self, worker: &Worker, timeout: Duration) -> Result<(), Fault> {
        let (mut from, _) = self.stream.split();
        let buffer = self.buffer.get_or_insert_with(|| worker.buffers.take());
        match io::read(worker, &self.waiter, &mut from, buffer, timeout).await {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => Err(Fault::client(FaultKind::ClientGone)),
            Ok(_) => Ok(()),
            Err(Failed::Timeout) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// Ends when the client is gone, or has closed its sending side a while ago. To be polled beside
    /// whatever else the exchange waits for; dropping it loses nothing.
    pub(crate) async fn gone(&mut self, worker: &Worker) {
        let (mut from, _) = self.stream.split();
        if io::end(worker, &mut from, &mut self.buffer).await == io::End::HalfClosed {
            let deadline = worker.clock.after(worker.settings.half_close_timeout);
            let _ = self.waiter.until(deadline, |_| std::task::Poll::<()>::Pending).await;
        }
    }

    /// Gives an empty buffer back.
    #[inline]
    pub(crate) fn return_empty(&mut self, worker: &Worker) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.is_empty()) {
            worker.buffers.give(buffer);
        }
    }

    /// The number of body bytes still to be used, if all of them are in the buffer.
    #[inline]
    pub(crate) fn body_at_hand(&self) -> Option<usize> {
        match (&self.incoming, &self.buffer) {
            (Incoming::None | Incoming::Length(0), _) => Some(0),
            (Incoming::Length(length), Some(buffer)) if buffer.len() as u64 >= *length => {
                Some(*length as usize)
            }
            _ => None,
        }
    }

    /// Whether the client is known to have sent something that was not used.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) || self.stream.maybe_readable()
    }

    /// Drops the rest of the body if all of it is here; says whether the next request can follow.
    #[inline]
    pub(crate) fn finish_body(&mut self) -> bool {
        match (self.body_at_hand(), &mut self.buffer) {
            (Some(0), _) => true,
            (Some(n), Some(buffer)) => {
                buffer.consume(n);
                true
            }
            _ => false,
        }
    }
}
