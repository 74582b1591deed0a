//! hot path
//!
//! Sending: heads and bodies are put into `out` as frames, by turns.
//!
//! A stream adds its frame at once if the windows and the room in `out` allow it. Otherwise streams queue by urgency
//! (RFC 9218), and streams of equal urgency take turns of one frame.

use std::task::{Context, Poll};

use wire::Name;
use wire::h2::frame::{self, Code, HEAD, MAX_PAYLOAD, flag, kind};
use wire::h2::hpack::Pseudo;

use super::mux::{Mux, Role};
use super::slots::{StreamError, UNNUMBERED};
use crate::failed::Failed;

/// Unsent bytes that every connection may have: one frame of the largest size.
pub(super) const FIRST: usize = MAX_PAYLOAD + HEAD;

/// Minimum room for a part of a longer piece.
const LEAST: usize = 4 << 10;

/// The pseudo-header fields of a field block (RFC 9113 section 8.3).
#[derive(Debug, Clone, Copy)]
pub(crate) enum PseudoFields<'a> {
    Status(u16),
    Request {
        method: &'a [u8],
        scheme: &'a [u8],
        authority: &'a [u8],
        path: &'a [u8],
        protocol: Option<&'a [u8]>,
    },
    /// Trailers have no pseudo-header fields.
    None,
}

impl Mux {
    /// Frames to write.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Notes that this many bytes of them were written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written < self.out.len() {
            // A peer that never reads everything must not let it grow without bound.
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
        let _ = self.unsent_reserved.resize(&self.budgets.unsent, 0);
        self.room_waiters.drain(..).for_each(std::task::Waker::wake);
        self.grant();
    }

    /// Free room in `out`, in bytes.
    pub(super) fn room(&mut self) -> usize {
        let unsent = self.out.len() - self.written;
        if unsent + LEAST < FIRST {
            return FIRST - unsent;
        }
        let most = self.limits.unsent.max(FIRST);
        if unsent >= most || self.unsent_reserved.resize(&self.budgets.unsent, most - FIRST).is_err() {
            return FIRST.saturating_sub(unsent);
        }
        most - unsent
    }

    /// Whether the peer has to read before more of its frames, some of which are answered, are processed.
    pub(crate) fn is_output_full(&self) -> bool {
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

    /// Begins a stream. Its identifier is assigned with its head.
    pub(super) fn begin(&mut self) -> usize {
        let index = self.slots.insert(UNNUMBERED);
        self.slots[index].window = self.initial_stream_window();
        self.slots[index].gone = match (self.over(), self.goaway) {
            (Some(_), _) => Some(StreamError::Connection),
            (None, Some(_)) => Some(StreamError::LeftOut),
            (None, None) => None,
        };
        index
    }

    /// Begins a HEADERS frame; returns its offset. The caller skips connection-specific fields.
    pub(super) fn begin_fields(&mut self, first: PseudoFields<'_>) -> usize {
        let out = &mut self.out;
        if out.capacity() == 0 {
            out.reserve(FIRST);
        }
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        let encoder = &mut self.encoder;
        encoder.begin(out);
        match first {
            PseudoFields::Status(status) => encoder.put_status(status, out),
            PseudoFields::Request { method, scheme, authority, path, protocol } => {
                encoder.put_pseudo(Pseudo::Method, method, out);
                encoder.put_pseudo(Pseudo::Scheme, scheme, out);
                encoder.put_pseudo(Pseudo::Authority, authority, out);
                encoder.put_pseudo(Pseudo::Path, path, out);
                if let Some(protocol) = protocol {
                    encoder.put_pseudo(Pseudo::Protocol, protocol, out);
                }
            }
            PseudoFields::None => {}
        }
        start
    }

    /// Adds a field to the frame begun last.
    #[inline]
    pub(super) fn put_field(&mut self, id: Name, name: &[u8], value: &[u8]) {
        self.encoder.put(id, name, value, &mut self.out);
    }

    /// Completes the HEADERS frame at `start`, in CONTINUATION frames if it is long (RFC 9113 sections 6.2 and 6.10).
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

    /// Assigns the identifier of a stream we begin.
    pub(super) fn assign_id(&mut self, index: usize) {
        let id = self.next_id;
        self.next_id += 2;
        self.credit.asked();
        self.slots.renumber(index, id);
        self.slots[index].send_window = self.peer_window;
    }

    /// Marks a message as sent.
    fn note_sent(&mut self, index: usize) {
        self.slots[index].sent = true;
        self.dequeue(index);
        if self.role == Role::Server {
            self.stream_errors = self.stream_errors.saturating_sub(1);
        }
    }

    /// Sends as much of a piece of a body as is possible now; returns the number of bytes. With `ends`, the piece is the
    /// last one.
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
            self.dequeue(index);
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
            let n = left.len().min(self.sendable(index)).min(MAX_PAYLOAD).min(room);
            if n == 0 || room < LEAST.min(left.len()) {
                break;
            }
            let slot = &mut self.slots[index];
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
        self.dequeue(index);
        self.credit.sent(sent);
        self.wake_driver();
        Poll::Ready(Ok(sent))
    }

    /// Whether the stream may send now. If not, it is queued.
    fn has_turn(&mut self, index: usize) -> bool {
        if self.queue.is_empty() {
            return true;
        }
        if !self.slots[index].queued {
            self.enqueue(index);
        }
        self.queue.iter().take(self.granted).any(|&one| one == index)
    }

    /// Whether other streams are queued.
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
            // Sequential streams finish before others of the same urgency continue.
            other > wanted.urgency || wanted.sequential && other == wanted.urgency
        };
        let at = self.queue.iter().skip(self.granted).position(later);
        match at {
            Some(at) => self.queue.insert(self.granted + at, index),
            None => self.queue.push_back(index),
        }
    }

    /// Removes a stream from the queue.
    pub(super) fn dequeue(&mut self, index: usize) {
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

    /// Bytes that both windows let a stream send.
    #[inline]
    pub(super) fn sendable(&self, index: usize) -> usize {
        self.slots[index].send_window.min(self.send_window).max(0) as usize
    }

    /// Gives turns to as many streams as there is room for.
    pub(super) fn grant(&mut self) {
        if self.queue.is_empty() || self.send_window <= 0 {
            return;
        }
        let turns = self.room().div_ceil(FIRST).min(self.queue.len());
        if turns == 0 {
            return;
        }
        self.granted = self.granted.max(turns);
        // Including earlier ones that found the window or the room used up.
        for &index in self.queue.iter().take(self.granted) {
            self.slots[index].wake_writer();
        }
    }

    /// Sends WINDOW_UPDATE for a stream once enough of its bytes were read.
    pub(super) fn update_stream_window(&mut self, index: usize) {
        let target = self.initial_stream_window();
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

    /// The initial receive window of a stream: the protocol's default until the peer has acknowledged our settings.
    pub(super) fn initial_stream_window(&self) -> i64 {
        i64::from(if self.acknowledged { self.limits.stream_window } else { frame::FIRST_WINDOW })
    }

    /// Returns read bytes of a stream to the windows.
    pub(super) fn used(&mut self, index: usize, bytes: usize) {
        let before = self.out.len();
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.slots[index].unread);
        self.slots[index].unread -= bytes;
        self.unread -= bytes;
        self.update_window();
        self.update_stream_window(index);
        if self.out.len() != before {
            self.wake_driver();
        }
    }

    /// Drops a stream's unread bytes and returns them to the window. Its message is incomplete then.
    pub(super) fn drop_data(&mut self, index: usize) {
        self.release_trailers(index);
        let slot = &mut self.slots[index];
        slot.data.clear();
        slot.received = false;
        self.unread -= std::mem::take(&mut slot.unread);
        self.update_window();
    }

    /// Releases the memory reserved for a stream's trailers.
    pub(super) fn release_trailers(&mut self, index: usize) {
        let size = std::mem::take(&mut self.slots[index].trailers_size);
        if size > 0 {
            let left = self.trailers_reserved.bytes() - size;
            // Less always fits.
            let _ = self.trailers_reserved.resize(&self.budgets.received, left);
        }
    }

    /// Resets a stream, unless it is closed.
    pub(super) fn reset(&mut self, index: usize, code: Code) {
        let slot = &mut self.slots[index];
        if slot.gone.is_some() || slot.sent && slot.received {
            return;
        }
        (slot.gone, slot.reset) = (Some(StreamError::Reset(code)), true);
        let id = slot.id;
        if id != UNNUMBERED {
            frame::put_number(kind::RST_STREAM, id, code.0, &mut self.out);
            self.note_reset(id);
        }
        self.dequeue(index);
        self.wake_driver();
    }

    /// Removes a stream; resets it unless it is closed.
    pub(super) fn remove(&mut self, index: usize) {
        let before = self.out.len();
        let slot = &self.slots[index];
        let answered = slot.sent && self.role == Role::Server;
        let rest = slot.expected.map(|left| i64::try_from(left).unwrap_or(i64::MAX));
        if answered && slot.receives() && rest.is_some_and(|rest| rest <= slot.window) {
            // The client may send the rest of its request: some clients report a reset as a failure, even after a
            // whole response.
            let id = slot.id;
            self.note_reset(id);
        } else {
            // After a whole response, the rest of the request is not wanted (RFC 9113 section 8.1).
            self.reset(index, if answered { Code::NO_ERROR } else { Code::CANCEL });
        }
        self.dequeue(index);
        self.drop_data(index);
        if let Some(partial) = &mut self.partial
            && partial.index == Some(index)
        {
            partial.index = None;
        }
        self.slots.remove(index);
        // Frames are to be written, or a graceful close is complete.
        if self.out.len() != before || self.closing.is_some() {
            self.wake_driver();
        }
    }

    /// Whether a field is connection-specific, or replaced by something else in HTTP/2 (RFC 9113 section 8.2.2).
    #[inline]
    pub(crate) fn is_connection_field(id: Name) -> bool {
        id.is_of_connection() || matches!(id, Name::Te | Name::Host | Name::Http2Settings)
    }
}
