//! hot path
//!
//! The request's body from an HTTP/1 client.

use wire::Fields;

use crate::buffers::{Buffer, LARGE, SMALL};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::h1::Body;
use crate::io::{self, End, Failed};
use crate::rt::ReadHalf;
use crate::worker::Worker;
use std::cell::Cell;

pub(crate) struct RequestBody<'a> {
    pub(super) worker: &'a Worker,
    pub(in crate::down) max: MaxBody,
    pub(crate) waiter: &'a Waiter,
    pub(super) from: ReadHalf<'a>,
    pub(super) buffer: &'a mut Option<Buffer>,
    pub(super) body: &'a mut Body,
    /// All of it was taken, or is at hand.
    pub(super) taken: &'a Cell<bool>,
}

impl RequestBody<'_> {
    #[inline]
    pub(crate) fn take(&mut self, framed: bool) -> Result<bool, Fault> {
        let taken = self.body.take(self.buffer.as_mut(), framed);
        let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
        if let Err(fault) = self.max.check(self.body.measured()) {
            self.body.refuse();
            return Err(fault);
        }
        if self.body.is_complete() {
            self.taken.set(true);
        }
        Ok(taken)
    }

    #[inline]
    pub(crate) fn piece(&self) -> &[u8] {
        self.body.piece(self.buffer.as_ref())
    }

    #[inline]
    pub(crate) fn used(&mut self) {
        self.body.used(self.buffer.as_mut());
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        self.body.is_chunked()
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        self.body.trailers()
    }

    pub(crate) async fn read(&mut self) -> Result<(), Fault> {
        let timeout = self.worker.settings.timeouts.body;
        if self.buffer.is_none() {
            // No buffer is held while the client thinks.
            let deadline = self.worker.clock.after(timeout);
            if self.waiter.until(deadline, |cx| self.from.poll_readable(cx)).await.is_err() {
                return Err(Fault::client(FaultKind::BodyTimeout));
            }
        }
        let buffer = self.buffer.get_or_insert_with(|| self.worker.buffers.take());
        match io::read(self.worker, self.waiter, &mut self.from, buffer, timeout).await {
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

    pub(crate) fn release(&mut self) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.is_empty()) {
            self.worker.buffers.give(buffer);
        }
    }

    pub(crate) async fn end(&mut self, worker: &Worker) -> End {
        io::end(worker, &mut self.from, self.buffer).await
    }
}
