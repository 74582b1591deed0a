//! hot path
//!
//! The request's body from an HTTP/2 client.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use wire::Fields;

use super::Shared;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::h2::{self, BodyPart, StreamError};
use crate::io::{End, Failed};
use crate::worker::Worker;

/// The receiving side of a stream.
pub(crate) struct Input {
    shared: Rc<Shared>,
    piece: Vec<u8>,
    /// Bytes of a tunnel that were taken.
    taken: usize,
    /// No piece comes after the one that was taken.
    complete: bool,
    received: u64,
    trailers: Fields,
}

impl Input {
    pub(super) fn new(ends: bool, shared: Rc<Shared>) -> Input {
        Input { shared, piece: Vec::new(), taken: 0, complete: ends, received: 0, trailers: Fields::new() }
    }

    /// The exchange sees no body: what comes is for the tunnel.
    pub(super) fn keep_for_tunnel(&mut self) {
        self.complete = true;
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Gives its memory back to the stream.
    pub(super) fn recycle(&mut self, stream: &h2::Stream) {
        stream.recycle(&mut self.piece, &mut self.trailers);
    }

    /// Takes the next piece, or the end.
    fn poll(&mut self, stream: &h2::Stream, cx: &mut Context<'_>) -> Poll<Result<(), FaultKind>> {
        if self.complete {
            return Poll::Ready(Ok(()));
        }
        stream.poll_data(cx, &mut self.piece).map(|came| match came {
            Ok(BodyPart::Data { last }) => {
                self.received += self.piece.len() as u64;
                self.complete = last;
                Ok(())
            }
            Ok(BodyPart::End) => {
                self.complete = true;
                stream.take_trailers(&mut self.trailers);
                Ok(())
            }
            Err(StreamError::Malformed(why)) => Err(FaultKind::BadBody(why)),
            Err(_) => Err(FaultKind::ClientGone),
        })
    }

    /// The piece is done with: the client may send as much more.
    fn used(&mut self, stream: &h2::Stream) {
        if !self.piece.is_empty() {
            self.release(stream, self.piece.len());
            self.piece.clear();
        }
    }

    fn release(&self, stream: &h2::Stream, bytes: usize) {
        self.shared.windows.used(bytes);
        stream.used(bytes);
    }

    /// The next bytes of a tunnel; none at its end.
    pub(crate) fn poll_tunnel(
        &mut self,
        stream: &h2::Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Failed>> {
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.release(stream, taken);
        }
        stream.poll_data(cx, &mut self.piece).map(|came| match came {
            Ok(BodyPart::Data { .. }) => {
                self.taken = self.piece.len();
                Ok(Some(Bytes::from(std::mem::take(&mut self.piece))))
            }
            Ok(BodyPart::End) => Ok(None),
            Err(_) => Err(Failed::Closed),
        })
    }
}

pub(crate) struct RequestBody<'a> {
    pub(super) worker: &'a Worker,
    pub(in crate::down) max: MaxBody,
    pub(crate) waiter: &'a Waiter,
    pub(super) input: &'a mut Input,
    pub(super) stream: &'a h2::Stream,
}

impl RequestBody<'_> {
    pub(crate) fn take(&mut self) -> Result<bool, Fault> {
        if !self.input.piece.is_empty() || self.input.complete {
            return Ok(true);
        }
        // A caller that gets `false` waits in `read`, so nothing is woken here.
        let mut cx = Context::from_waker(Waker::noop());
        match self.input.poll(self.stream, &mut cx) {
            Poll::Ready(Ok(())) => self.measured().map(|()| true),
            Poll::Ready(Err(kind)) => Err(self.fault(kind)),
            Poll::Pending => Ok(false),
        }
    }

    fn measured(&self) -> Result<(), Fault> {
        self.max.check(self.input.received)
    }

    /// Malformed messages cost the client credit.
    #[cold]
    fn fault(&self, kind: FaultKind) -> Fault {
        if matches!(kind, FaultKind::BadBody(_)) {
            self.stream.mux().borrow().credit().refused();
        }
        Fault::client(kind)
    }

    pub(crate) fn piece(&self) -> &[u8] {
        &self.input.piece
    }

    pub(crate) fn used(&mut self) {
        self.input.used(self.stream);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.input.complete
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        Some(&self.input.trailers).filter(|trailers| !trailers.is_empty())
    }

    pub(crate) async fn read(&mut self) -> Result<(), Fault> {
        if !self.input.piece.is_empty() {
            return Ok(());
        }
        let deadline = self.worker.clock.after(self.worker.settings.timeouts.body);
        let Self { input, stream, .. } = self;
        match self.waiter.until(deadline, |cx| input.poll(stream, cx)).await {
            Ok(Ok(())) => self.measured(),
            Ok(Err(kind)) => Err(self.fault(kind)),
            Err(_) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// A stream whose client has sent all is no sign of anything; one that was broken off is.
    pub(crate) async fn end(&mut self) -> End {
        poll_fn(|cx| self.stream.poll_gone(cx)).await;
        End::Gone
    }
}
