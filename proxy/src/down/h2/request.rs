//! hot path
//!
//! The request's body from an HTTP/2 client.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use wire::Fields;
use wire::h1::Refusal;

use super::Shared;
use super::response::Output;
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::h2::fields;
use crate::io::{End, Failed};
use crate::worker::Worker;

/// The receiving side of a stream.
pub(crate) struct Input {
    stream: RecvStream,
    shared: Rc<Shared>,
    piece: Bytes,
    /// All of the body came; trailers may follow.
    over: bool,
    /// No piece comes after the one that was taken.
    complete: bool,
    received: u64,
    trailers: Fields,
}

impl Input {
    pub(super) fn new(stream: RecvStream, ends: bool, shared: Rc<Shared>) -> Input {
        Input {
            stream,
            shared,
            piece: Bytes::new(),
            over: ends,
            complete: ends,
            received: 0,
            trailers: Fields::new(),
        }
    }

    /// The exchange sees no body: what comes is for the tunnel.
    pub(super) fn keep_for_tunnel(&mut self) {
        self.complete = true;
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next piece, or the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), FaultKind>> {
        while !self.over {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => {}
                Poll::Ready(Some(Ok(piece))) => {
                    self.received += piece.len() as u64;
                    self.came(piece.len());
                    self.piece = piece;
                    if self.stream.is_end_stream() {
                        (self.over, self.complete) = (true, true);
                    }
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(FaultKind::ClientGone)),
                Poll::Ready(None) => self.over = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.complete {
            match self.stream.poll_trailers(cx) {
                Poll::Ready(Ok(trailers)) => {
                    self.complete = true;
                    return Poll::Ready(trailers.map_or(Ok(()), |map| self.take_trailers(&map)));
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(FaultKind::ClientGone)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// They are bounded as heads are; their size, the library looks after.
    fn take_trailers(&mut self, map: &http::HeaderMap) -> Result<(), FaultKind> {
        if let Some(unread) = self.shared.line.unread() {
            unread.end(self.stream.stream_id().as_u32());
        }
        let taken = match map.len() > self.shared.worker.settings.request.fields {
            true => Err(Refusal::TrailersTooLarge),
            false => fields::from_trailers(map, &mut self.trailers).map_err(|_| Refusal::FieldName),
        };
        taken.map_err(|why| {
            self.shared.line.refused();
            FaultKind::BadBody(why)
        })
    }

    fn came(&self, length: usize) {
        if let Some(unread) = self.shared.line.unread() {
            unread.read(self.stream.stream_id().as_u32(), length);
        }
    }

    /// The piece is done with: the client may send as much more.
    fn used(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        if !piece.is_empty() {
            self.shared.windows.used(piece.len());
            // Fails only where more is given back than came.
            let _ = self.stream.flow_control().release_capacity(piece.len());
        }
    }

    /// The next bytes of a tunnel; none at its end.
    pub(crate) fn poll_tunnel(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failed>> {
        self.used();
        loop {
            return match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) if piece.is_empty() => continue,
                Poll::Ready(Some(Ok(piece))) => {
                    self.came(piece.len());
                    self.piece = piece.clone();
                    Poll::Ready(Ok(Some(piece)))
                }
                Poll::Ready(Some(Err(_))) => Poll::Ready(Err(Failed::Closed)),
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}

pub(crate) struct RequestBody<'a> {
    pub(super) worker: &'a Worker,
    pub(in crate::down) max: MaxBody,
    pub(crate) waiter: &'a Waiter,
    pub(super) input: &'a mut Input,
    pub(super) output: &'a RefCell<Output>,
}

impl RequestBody<'_> {
    pub(crate) fn take(&mut self) -> Result<bool, Fault> {
        if !self.input.piece.is_empty() || self.input.complete {
            return Ok(true);
        }
        // A caller that gets `false` waits in `read`, so nothing is woken here.
        let mut cx = Context::from_waker(Waker::noop());
        match self.input.poll(&mut cx) {
            Poll::Ready(Ok(())) => self.measured().map(|()| true),
            Poll::Ready(Err(kind)) => Err(Fault::client(kind)),
            Poll::Pending => Ok(false),
        }
    }

    fn measured(&self) -> Result<(), Fault> {
        self.max.check(self.input.received)
    }

    pub(crate) fn piece(&self) -> &[u8] {
        &self.input.piece
    }

    pub(crate) fn used(&mut self) {
        self.input.used();
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
        match self.waiter.until(deadline, |cx| self.input.poll(cx)).await {
            Ok(Ok(())) => self.measured(),
            Ok(Err(kind)) => Err(Fault::client(kind)),
            Err(_) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// A stream whose client has sent all is no sign of anything; one that was broken off is.
    pub(crate) async fn end(&mut self) -> End {
        poll_fn(|cx| self.output.borrow_mut().poll_reset(cx)).await;
        End::Gone
    }
}
