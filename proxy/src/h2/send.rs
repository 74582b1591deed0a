//! hot path
//!
//! Sent frames: heads and bodies of streams are put into `out`, in turns.
//!
//! A stream that may send puts its frame there at once. Where the connection's window or the room in `out` is used up,
//! streams queue: by urgency, and among equals each in its turn, one frame at a time.

use std::task::{Context, Poll};

use wire::Name;
use wire::h2::frame::{self, Code, HEAD, MAX_PAYLOAD, flag, kind};
use wire::h2::hpack::Pseudo;

use super::mux::{Mux, Role};
use super::slots::{Gone, UNNUMBERED};
use crate::failed::Failed;

/// Bytes that may wait to be written on every connection: one frame of the largest size.
pub(super) const FIRST: usize = MAX_PAYLOAD + HEAD;

/// With less room than this, a longer piece waits for more.
const LEAST: usize = 4 << 10;

/// The first fields of a list (RFC 9113 section 8.3).
#[derive(Debug, Clone, Copy)]
pub(crate) enum First<'a> {
    Status(u16),
    Request {
        method: &'a [u8],
        scheme: &'a [u8],
        authority: &'a [u8],
        path: &'a [u8],
        protocol: Option<&'a [u8]>,
    },
    /// Of trailers.
    None,
}

impl Mux {
    /// Frames that are to be written.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Notes that this many bytes of them were written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written < self.out.len() {
            // A peer that never takes all of it must not make it longer and longer.
            if self.written >= FIRST.max(self.out.len() / 2) {
                self.out.drain(..self.written);
                self.written = 0;
            }
            return;
        }
        self.written = 0;
        self.out.clear();
        self.out.shrink_to(FIRST.max(self.limits.unsent));
        // Less always fits.
        let _ = self.held.resize(&self.budgets.unsent, 0);
        self.waiting.drain(..).for_each(std::task::Waker::wake);
        self.grant();
    }

    /// Bytes for which there is room in `out`.
    fn room(&mut self) -> usize {
        let unsent = self.out.len() - self.written;
        if unsent + LEAST < FIRST {
            return FIRST - unsent;
        }
        let most = self.limits.unsent.max(FIRST);
        if unsent >= most || self.held.resize(&self.budgets.unsent, most - FIRST).is_err() {
            return FIRST.saturating_sub(unsent);
        }
        most - unsent
    }

    /// Whether the peer must read before more of its frames are processed: some of them are answered.
    pub(crate) fn is_choked(&self) -> bool {
        self.out.len() - self.written > 2 * FIRST.max(self.limits.unsent)
    }

    /// Waits until there is room for a head.
    pub(super) fn poll_room(&mut self, index: usize, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        if self.slots[index].gone.is_some() {
            return Poll::Ready(Err(Failed::Closed));
        }
        if self.room() > 0 {
            return Poll::Ready(Ok(()));
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Begins a stream, of which nothing is sent yet. Its identifier comes with its first head.
    pub(super) fn begin(&mut self) -> usize {
        let index = self.slots.insert(UNNUMBERED);
        self.slots[index].window = self.whole_window();
        self.slots[index].gone = match (self.over(), self.goaway) {
            (Some(_), _) => Some(Gone::Connection),
            (None, Some(_)) => Some(Gone::LeftOut),
            (None, None) => None,
        };
        index
    }

    /// Begins a list of fields; returns where. Fields of the connection are left out by the caller.
    pub(super) fn begin_fields(&mut self, first: First<'_>) -> usize {
        let out = &mut self.out;
        if out.capacity() == 0 {
            out.reserve(FIRST);
        }
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        let encoder = &mut self.encoder;
        encoder.begin(out);
        match first {
            First::Status(status) => encoder.put_status(status, out),
            First::Request { method, scheme, authority, path, protocol } => {
                encoder.put_pseudo(Pseudo::Method, method, out);
                encoder.put_pseudo(Pseudo::Scheme, scheme, out);
                encoder.put_pseudo(Pseudo::Authority, authority, out);
                encoder.put_pseudo(Pseudo::Path, path, out);
                if let Some(protocol) = protocol {
                    encoder.put_pseudo(Pseudo::Protocol, protocol, out);
                }
            }
            First::None => {}
        }
        start
    }

    /// Adds a field to the list that was begun last.
    #[inline]
    pub(super) fn put_field(&mut self, id: Name, name: &[u8], value: &[u8]) {
        self.encoder.put(id, name, value, &mut self.out);
    }

    /// Ends the list that begins at `start` (RFC 9113 sections 6.2 and 6.10).
    pub(super) fn end_fields(&mut self, index: usize, start: usize, ends: bool) {
        let (out, slot) = (&mut self.out, &self.slots[index]);
        let length = out.len() - start - HEAD;
        let ends_flag = if ends { flag::END_STREAM } else { 0 };
        if length <= MAX_PAYLOAD {
            let head = frame::head_bytes(length, kind::HEADERS, ends_flag | flag::END_HEADERS, slot.id);
            out[start..start + HEAD].copy_from_slice(&head);
        } else {
            let block = out.split_off(start + HEAD);
            out.truncate(start);
            let pieces = block.len().div_ceil(MAX_PAYLOAD);
            for (number, piece) in block.chunks(MAX_PAYLOAD).enumerate() {
                let last = if number + 1 == pieces { flag::END_HEADERS } else { 0 };
                let (kind, first) = match number {
                    0 => (kind::HEADERS, ends_flag),
                    _ => (kind::CONTINUATION, 0),
                };
                frame::put_head(piece.len(), kind, first | last, slot.id, out);
                out.extend_from_slice(piece);
            }
        }
        if ends {
            self.note_sent(index);
        }
        self.wake_driver();
    }

    /// Gives a stream that we begin its identifier.
    pub(super) fn number(&mut self, index: usize) {
        let id = self.next;
        self.next += 2;
        self.credit.asked();
        self.slots.renumber(index, id);
        self.slots[index].send_window = self.peer_window;
    }

    /// We have sent all of a message.
    fn note_sent(&mut self, index: usize) {
        self.slots[index].sent = true;
        self.leave_queue(index);
        if self.role == Role::Server {
            self.errors = self.errors.saturating_sub(1);
        }
    }

    /// Puts as much of a piece of a body into frames as may go now; says how much. With `ends`, the message ends with
    /// this piece.
    pub(super) fn poll_data(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        bytes: &[u8],
        ends: bool,
    ) -> Poll<Result<usize, Failed>> {
        let slot = &mut self.slots[index];
        if slot.gone.is_some() || slot.sent {
            return Poll::Ready(Err(Failed::Broken));
        }
        if bytes.is_empty() {
            if ends {
                frame::put_head(0, kind::DATA, flag::END_STREAM, slot.id, &mut self.out);
                self.note_sent(index);
                self.wake_driver();
            }
            return Poll::Ready(Ok(0));
        }
        if slot.send_window <= 0 {
            slot.wait_to_write(cx);
            self.leave_queue(index);
            return Poll::Pending;
        }
        if !self.has_turn(index) {
            self.slots[index].wait_to_write(cx);
            return Poll::Pending;
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let left = &bytes[sent..];
            let room = self.room().saturating_sub(HEAD);
            let slot = &mut self.slots[index];
            let window = slot.send_window.min(self.send_window).max(0) as usize;
            let n = left.len().min(window).min(MAX_PAYLOAD).min(room);
            if n == 0 || room < LEAST.min(left.len()) {
                break;
            }
            slot.send_window -= n as i64;
            self.send_window -= n as i64;
            sent += n;
            let last = ends && sent == bytes.len();
            let id = slot.id;
            if self.out.capacity() == 0 {
                self.out.reserve(FIRST);
            }
            frame::put_head(n, kind::DATA, if last { flag::END_STREAM } else { 0 }, id, &mut self.out);
            self.out.extend_from_slice(&left[..n]);
            if last {
                self.note_sent(index);
            } else if self.has_others(index) {
                break;
            }
        }
        if sent == 0 {
            if self.slots[index].send_window > 0 {
                self.enqueue(index);
            }
            self.slots[index].wait_to_write(cx);
            return Poll::Pending;
        }
        self.leave_queue(index);
        self.credit.sent(sent);
        self.wake_driver();
        Poll::Ready(Ok(sent))
    }

    /// Whether it is this stream's turn; else it is in the queue.
    fn has_turn(&mut self, index: usize) -> bool {
        if self.queue.is_empty() {
            return true;
        }
        if !self.slots[index].queued {
            self.enqueue(index);
        }
        self.queue.iter().take(self.granted).any(|&one| one == index)
    }

    /// Whether other streams wait.
    fn has_others(&self, index: usize) -> bool {
        self.queue.iter().any(|&one| one != index)
    }

    fn enqueue(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if std::mem::replace(&mut slot.queued, true) {
            return;
        }
        let wanted = slot.priority;
        let slots = &self.slots;
        let later = |&one: &usize| {
            let other = slots[one].priority.urgency;
            // One that shares no turn goes on before its equals.
            other > wanted.urgency || wanted.sequential && other == wanted.urgency
        };
        let at = self.queue.iter().skip(self.granted).position(later);
        match at {
            Some(at) => self.queue.insert(self.granted + at, index),
            None => self.queue.push_back(index),
        }
    }

    /// A stream does not wait for its turn any more.
    pub(super) fn leave_queue(&mut self, index: usize) {
        if !std::mem::take(&mut self.slots[index].queued) {
            return;
        }
        let Some(at) = self.queue.iter().position(|&one| one == index) else { return };
        self.queue.remove(at);
        if at < self.granted {
            self.granted -= 1;
            self.grant();
        }
    }

    /// Lets as many streams as there is room for have their turn.
    pub(super) fn grant(&mut self) {
        if self.queue.is_empty() || self.send_window <= 0 {
            return;
        }
        let turns = self.room().div_ceil(FIRST).min(self.queue.len());
        if turns == 0 {
            return;
        }
        self.granted = self.granted.max(turns);
        // Also those that had their turn before, when others had used up the window or the room.
        for &index in self.queue.iter().take(self.granted) {
            self.slots[index].wake_writer();
        }
    }

    /// Allows the peer to send more on a stream, once that is worth a frame.
    pub(super) fn renew_stream(&mut self, index: usize) {
        let target = self.whole_window();
        let slot = &mut self.slots[index];
        if !slot.receives() {
            return;
        }
        let more = target - slot.window - i64::from(slot.unread);
        if more > 0 && more >= target / 2 {
            slot.window += more;
            frame::put_number(kind::WINDOW_UPDATE, slot.id, more as u32, &mut self.out);
        }
    }

    /// The window of a stream of which nothing was received. Before the peer has acknowledged our settings, it is not
    /// theirs.
    pub(super) fn whole_window(&self) -> i64 {
        i64::from(if self.acknowledged { self.limits.stream_window } else { frame::FIRST_WINDOW })
    }

    /// Bytes of a stream were used up.
    pub(super) fn used(&mut self, index: usize, bytes: usize) {
        let before = self.out.len();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.slots[index].unread);
        self.slots[index].unread -= bytes;
        self.unread -= bytes;
        self.renew_window();
        self.renew_stream(index);
        if self.out.len() != before {
            self.wake_driver();
        }
    }

    /// Drops a stream's unread bytes and gives them back to the window. Its message is not whole then.
    pub(super) fn drop_data(&mut self, index: usize) {
        self.release_trailers(index);
        let slot = &mut self.slots[index];
        slot.data.clear();
        slot.received = false;
        self.unread -= std::mem::take(&mut slot.unread);
        self.renew_window();
    }

    /// A stream's trailers are not counted any more.
    pub(super) fn release_trailers(&mut self, index: usize) {
        let size = std::mem::take(&mut self.slots[index].trailers_size);
        if size > 0 {
            let left = self.trailers.bytes() - size;
            // Less always fits.
            let _ = self.trailers.resize(&self.budgets.received, left);
        }
    }

    /// Breaks a stream off, unless it is over.
    pub(super) fn reset(&mut self, index: usize, code: Code) {
        let slot = &mut self.slots[index];
        if slot.gone.is_some() || slot.sent && slot.received {
            return;
        }
        (slot.gone, slot.reset) = (Some(Gone::Reset(code)), true);
        let id = slot.id;
        if id != UNNUMBERED {
            frame::put_number(kind::RST_STREAM, id, code.0, &mut self.out);
            self.note_reset(id);
        }
        self.leave_queue(index);
        self.wake_driver();
    }

    /// Gives a stream's place back, and breaks it off where it is not over.
    pub(super) fn remove(&mut self, index: usize) {
        let slot = &self.slots[index];
        let answered = slot.sent && self.role == Role::Server;
        let rest = slot.expected.map(|left| i64::try_from(left).unwrap_or(i64::MAX));
        if answered && slot.receives() && rest.is_some_and(|rest| rest <= slot.window) {
            // The client may send the rest of its request, which ends the stream: some clients take a reset for a
            // failure, even behind a whole response.
            let id = slot.id;
            self.note_reset(id);
        } else {
            // After a whole response, the rest of the request is not wanted (RFC 9113 section 8.1).
            self.reset(index, if answered { Code::NO_ERROR } else { Code::CANCEL });
        }
        self.leave_queue(index);
        self.drop_data(index);
        if let Some(partial) = &mut self.partial
            && partial.index == Some(index)
        {
            partial.index = None;
        }
        self.slots.remove(index);
        self.wake_driver();
    }

    /// Fields that concern one connection, or that HTTP/2 says in another way (RFC 9113 section 8.2.2).
    #[inline]
    pub(crate) fn leaves_out(id: Name) -> bool {
        id.is_of_connection() || matches!(id, Name::Te | Name::Host | Name::Http2Settings)
    }
}
