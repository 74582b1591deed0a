//! hot path
//!
//! An exchange's handle of its stream.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use wire::h1::chunked::may_be_trailer;
use wire::h2::frame::Code;
use wire::{Fields, Name, ResponseHead};

use super::mux::Mux;
use super::send::PseudoFields;
use super::slots::{Priority, StreamError, UNNUMBERED};
use crate::failed::Failed;

/// A connection, shared by its task and its streams.
pub(crate) type SharedMux = Rc<RefCell<Mux>>;

/// A stream. Dropping it early resets it.
#[derive(Debug)]
pub(crate) struct Stream {
    mux: SharedMux,
    index: usize,
}

/// The next part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyPart {
    /// A piece; neither data nor trailers follow the last one.
    Data { last: bool },
    /// The end; there may be trailers.
    End,
}

impl Stream {
    /// The stream of a received request, by its index.
    pub(crate) fn accept(mux: &SharedMux, index: usize) -> Stream {
        Stream { mux: mux.clone(), index }
    }

    /// Begins a stream for a request of ours.
    pub(crate) fn begin(mux: &SharedMux) -> Stream {
        let index = mux.borrow_mut().begin();
        Stream { mux: mux.clone(), index }
    }

    pub(crate) fn mux(&self) -> &SharedMux {
        &self.mux
    }

    /// Sets the Content-Length of the request, part of whose body may have been received.
    pub(crate) fn note_length(&self, length: Option<u64>) {
        let slot = &mut self.mux.borrow_mut().slots[self.index];
        slot.expected = length.map(|length| length.saturating_sub(u64::from(slot.unread)));
    }

    /// Sets its priority.
    pub(crate) fn note_priority(&self, priority: Priority) {
        self.mux.borrow_mut().slots[self.index].priority = priority;
    }

    /// Waits until there is room for a head.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.mux.borrow_mut().poll_room(self.index, cx)
    }

    /// Sends a final or interim response head. With `ends`, the response has no body.
    pub(crate) fn send_response(&self, status: u16, fields: &Fields, ends: bool) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mux.slots[self.index];
        if slot.gone.is_some() || slot.sent {
            return Err(Failed::Closed);
        }
        let start = mux.begin_fields(PseudoFields::Status(status));
        for (name, value, id) in fields.iter() {
            mux.put_field(id, name, value);
        }
        mux.end_fields(self.index, start, ends);
        Ok(())
    }

    /// Sends a request head with the fields that `put` adds. `bodiless` is for HEAD, whose response has no body.
    pub(crate) fn send_request(
        &self,
        first: PseudoFields<'_>,
        put: impl FnOnce(&mut FieldSink<'_>),
        ends: bool,
        bodiless: bool,
    ) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        if mux.slots[self.index].gone.is_some() || mux.over().is_some() || mux.is_used_up() {
            return Err(Failed::Closed);
        }
        mux.assign_id(self.index);
        mux.slots[self.index].bodiless = bodiless;
        let start = mux.begin_fields(first);
        put(&mut FieldSink(&mut mux));
        mux.end_fields(self.index, start, ends);
        Ok(())
    }

    /// Ends the message with trailers.
    pub(crate) fn send_trailers(&self, fields: &Fields) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mux.slots[self.index];
        if slot.gone.is_some() || slot.sent {
            return Err(Failed::Broken);
        }
        let start = mux.begin_fields(PseudoFields::None);
        for (name, value, id) in fields.iter() {
            if may_be_trailer(name) && !Mux::is_connection_field(id) {
                mux.put_field(id, name, value);
            }
        }
        mux.end_fields(self.index, start, true);
        Ok(())
    }

    /// Whether nothing was sent on it.
    pub(crate) fn is_unsent(&self) -> bool {
        self.mux.borrow().slots[self.index].id == UNNUMBERED
    }

    /// Bytes that the peer's windows let us send.
    pub(crate) fn window(&self) -> usize {
        self.mux.borrow().sendable(self.index)
    }

    /// Sends as much of a piece as is possible now; returns the number of bytes. With `ends`, the piece is the last one.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        ends: bool,
    ) -> Poll<Result<usize, Failed>> {
        self.mux.borrow_mut().poll_data(self.index, cx, bytes, ends)
    }

    /// Leaves the send queue.
    pub(crate) fn give_up_turn(&self) {
        self.mux.borrow_mut().dequeue(self.index);
    }

    /// Replaces `head` with the next response head. The memory of the old one is reused.
    pub(crate) fn poll_head(
        &self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), StreamError>> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mut mux.slots[self.index];
        if let Some(came) = slot.heads.pop_front() {
            slot.spare = std::mem::replace(head, came);
            slot.spare.clear();
            return Poll::Ready(Ok(()));
        }
        if let Some(gone) = slot.gone {
            return Poll::Ready(Err(gone));
        }
        slot.wait_to_read(cx);
        Poll::Pending
    }

    /// Takes the received part of the body into `piece`, which is empty.
    pub(crate) fn poll_data(
        &self,
        cx: &mut Context<'_>,
        piece: &mut Vec<u8>,
    ) -> Poll<Result<BodyPart, StreamError>> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mut mux.slots[self.index];
        if !slot.is_empty() {
            std::mem::swap(piece, &mut slot.data);
            slot.data.clear();
            return Poll::Ready(Ok(BodyPart::Data { last: slot.received && slot.has_no_trailers() }));
        }
        if let Some(refusal) = slot.refused {
            return Poll::Ready(Err(StreamError::Malformed(refusal)));
        }
        if slot.received {
            return Poll::Ready(Ok(BodyPart::End));
        }
        if let Some(gone) = slot.gone {
            return Poll::Ready(Err(gone));
        }
        slot.wait_to_read(cx);
        Poll::Pending
    }

    /// Returns read bytes to the windows.
    pub(crate) fn used(&self, bytes: usize) {
        self.mux.borrow_mut().used(self.index, bytes);
    }

    /// Takes the trailers.
    pub(crate) fn take_trailers(&self, to: &mut Fields) {
        let mut mux = self.mux.borrow_mut();
        mux.release_trailers(self.index);
        to.clear(0);
        std::mem::swap(to, &mut mux.slots[self.index].trailers);
    }

    /// Takes back the memory of a piece and of trailers that were read.
    pub(crate) fn recycle(&self, piece: &mut Vec<u8>, trailers: &mut Fields) {
        self.mux.borrow_mut().slots[self.index].recycle(piece, trailers);
    }

    /// Whether the peer's message ended without unread data or trailers.
    pub(crate) fn is_received(&self) -> bool {
        let mux = self.mux.borrow();
        let slot = &mux.slots[self.index];
        slot.received && slot.is_empty() && slot.has_no_trailers()
    }

    /// Whether it or its connection has ended early.
    pub(crate) fn is_gone(&self) -> bool {
        let mux = self.mux.borrow();
        mux.slots[self.index].gone.is_some() || mux.over().is_some()
    }

    /// Ready when it or its connection has ended early.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<StreamError> {
        let mut mux = self.mux.borrow_mut();
        let over = mux.over().is_some();
        let slot = &mut mux.slots[self.index];
        match slot.gone {
            Some(gone) => Poll::Ready(gone),
            None if over => Poll::Ready(StreamError::Connection),
            None => {
                slot.wait_to_read(cx);
                slot.wait_to_write(cx);
                Poll::Pending
            }
        }
    }

    /// Resets it because of a malformed request.
    #[cold]
    pub(crate) fn refuse(&self) {
        let mut mux = self.mux.borrow_mut();
        mux.credit().refused();
        mux.reset(self.index, Code::PROTOCOL_ERROR);
        mux.count_error();
    }

    /// Resets it.
    pub(crate) fn reset(&self, code: Code) {
        self.mux.borrow_mut().reset(self.index, code);
    }
}

/// Receives the fields of a head being sent.
pub(crate) struct FieldSink<'a>(&'a mut Mux);

impl FieldSink<'_> {
    /// Adds a field. The caller skips connection-specific fields.
    #[inline]
    pub(crate) fn put(&mut self, id: Name, name: &[u8], value: &[u8]) {
        self.0.put_field(id, name, value);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.mux.borrow_mut().remove(self.index);
    }
}
