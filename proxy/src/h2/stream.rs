//! hot path
//!
//! One stream, as its exchange has it.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use wire::h1::chunked::may_be_trailer;
use wire::h2::frame::Code;
use wire::{Fields, Name, ResponseHead};

use super::mux::Mux;
use super::send::First;
use super::slots::{Gone, Priority, UNNUMBERED};
use crate::failed::Failed;

/// A connection that its task and those of its streams share.
pub(crate) type Shared = Rc<RefCell<Mux>>;

/// A stream. One that is dropped before it is over is reset.
#[derive(Debug)]
pub(crate) struct Stream {
    mux: Shared,
    index: usize,
}

/// The next of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Came {
    /// A piece; nothing follows the last one.
    Data { last: bool },
    /// Nothing more; there may be trailers.
    End,
}

impl Stream {
    /// The stream of a request that came, with its place.
    pub(crate) fn accept(mux: &Shared, index: usize) -> Stream {
        Stream { mux: mux.clone(), index }
    }

    /// A stream for a request of ours.
    pub(crate) fn begin(mux: &Shared) -> Stream {
        let index = mux.borrow_mut().begin();
        Stream { mux: mux.clone(), index }
    }

    pub(crate) fn mux(&self) -> &Shared {
        &self.mux
    }

    /// Notes how long the body is that comes, of which a part may be here.
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

    /// Sends a response's head, interim or not. With `ends`, nothing follows it.
    pub(crate) fn send_response(&self, status: u16, fields: &Fields, ends: bool) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mux.slots[self.index];
        if slot.gone.is_some() || slot.sent {
            return Err(Failed::Closed);
        }
        let start = mux.begin_fields(First::Status(status));
        for (name, value, id) in fields.iter() {
            mux.put_field(id, name, value);
        }
        mux.end_fields(self.index, start, ends);
        Ok(())
    }

    /// Sends a request's head, whose fields `put` gives. `bodiless` is for HEAD, whose response has no body.
    pub(crate) fn send_request(
        &self,
        first: First<'_>,
        put: impl FnOnce(&mut FieldSink<'_>),
        ends: bool,
        bodiless: bool,
    ) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        if mux.slots[self.index].gone.is_some() || mux.over().is_some() || mux.is_used_up() {
            return Err(Failed::Closed);
        }
        mux.number(self.index);
        mux.slots[self.index].bodiless = bodiless;
        let start = mux.begin_fields(first);
        put(&mut FieldSink(&mut mux));
        mux.end_fields(self.index, start, ends);
        Ok(())
    }

    /// Sends trailers, with which the message ends.
    pub(crate) fn send_trailers(&self, fields: &Fields) -> Result<(), Failed> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mux.slots[self.index];
        if slot.gone.is_some() || slot.sent {
            return Err(Failed::Broken);
        }
        let start = mux.begin_fields(First::None);
        for (name, value, id) in fields.iter() {
            if may_be_trailer(name) && !Mux::leaves_out(id) {
                mux.put_field(id, name, value);
            }
        }
        mux.end_fields(self.index, start, true);
        Ok(())
    }

    /// Nothing of it was sent: it has no identifier yet.
    pub(crate) fn is_unsent(&self) -> bool {
        self.mux.borrow().slots[self.index].id == UNNUMBERED
    }

    /// Sends as much of a piece of the body as may go now; says how much. With `ends`, the message ends with it.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        ends: bool,
    ) -> Poll<Result<usize, Failed>> {
        self.mux.borrow_mut().poll_data(self.index, cx, bytes, ends)
    }

    /// Gives up its turn: no more of the body is sent for now.
    pub(crate) fn give_up_turn(&self) {
        self.mux.borrow_mut().leave_queue(self.index);
    }

    /// Takes the next head of a response, in place of `head`, whose memory is used again.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), Gone>> {
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
    pub(crate) fn poll_data(&self, cx: &mut Context<'_>, piece: &mut Vec<u8>) -> Poll<Result<Came, Gone>> {
        let mut mux = self.mux.borrow_mut();
        let slot = &mut mux.slots[self.index];
        if !slot.is_empty() {
            std::mem::swap(piece, &mut slot.data);
            slot.data.clear();
            return Poll::Ready(Ok(Came::Data { last: slot.received && slot.has_no_trailers() }));
        }
        if let Some(refusal) = slot.refused {
            return Poll::Ready(Err(Gone::Malformed(refusal)));
        }
        if slot.received {
            return Poll::Ready(Ok(Came::End));
        }
        if let Some(gone) = slot.gone {
            return Poll::Ready(Err(gone));
        }
        slot.wait_to_read(cx);
        Poll::Pending
    }

    /// Bytes that were taken are used up: the peer may send as many more.
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

    /// The peer has sent all, and all but trailers was taken.
    pub(crate) fn is_received(&self) -> bool {
        let mux = self.mux.borrow();
        let slot = &mux.slots[self.index];
        slot.received && slot.is_empty() && slot.has_no_trailers()
    }

    /// It was broken off, or its connection is over.
    pub(crate) fn is_gone(&self) -> bool {
        let mux = self.mux.borrow();
        mux.slots[self.index].gone.is_some() || mux.over().is_some()
    }

    /// Ready when the stream was broken off, or its connection is over.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<Gone> {
        let mut mux = self.mux.borrow_mut();
        let over = mux.over().is_some();
        let slot = &mut mux.slots[self.index];
        match slot.gone {
            Some(gone) => Poll::Ready(gone),
            None if over => Poll::Ready(Gone::Connection),
            None => {
                slot.wait_to_read(cx);
                slot.wait_to_write(cx);
                Poll::Pending
            }
        }
    }

    /// Breaks it off because the request on it is malformed.
    #[cold]
    pub(crate) fn refuse(&self) {
        let mut mux = self.mux.borrow_mut();
        mux.credit().refused();
        mux.reset(self.index, Code::PROTOCOL_ERROR);
        mux.count_error();
    }

    /// Breaks it off.
    pub(crate) fn reset(&self, code: Code) {
        self.mux.borrow_mut().reset(self.index, code);
    }
}

/// Takes the fields of a head that is being sent.
pub(crate) struct FieldSink<'a>(&'a mut Mux);

impl FieldSink<'_> {
    /// Fields of the connection are left out by the caller.
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
