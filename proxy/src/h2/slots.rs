//! hot path
//!
//! The streams of one connection (RFC 9113 section 5), in a slab.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use wire::h1::Refusal;
use wire::h2::frame::Code;
use wire::{Fields, ResponseHead};

/// Placeholder until a stream we begin has its identifier.
pub(super) const UNNUMBERED: u32 = u32::MAX;

/// Why a stream ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// It was reset with this code.
    Reset(Code),
    /// The peer's message was malformed.
    Malformed(Refusal),
    /// The peer broke another rule of the protocol.
    RuleBroken,
    /// The peer did not process it: its GOAWAY names an earlier stream.
    LeftOut,
    /// The connection has ended.
    Connection,
}

/// Bytes of memory that a free slot keeps for the next stream.
const KEPT: usize = 1 << 10;

/// The state of one stream, until its exchange drops it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Zero in a free slot.
    pub(super) id: u32,
    /// Received bytes that were not taken.
    pub(super) data: Vec<u8>,
    /// Bytes that the peer may still send.
    pub(super) window: i64,
    /// Received bytes that were not returned to the window.
    pub(super) unread: u32,
    /// Missing bytes according to Content-Length.
    pub(super) expected: Option<u64>,
    /// The final head was received.
    pub(super) has_head: bool,
    /// The peer's message was received whole.
    pub(super) received: bool,
    /// Unread response heads, interim ones first.
    pub(super) heads: VecDeque<ResponseHead>,
    /// Reused memory for the next one.
    pub(super) spare: ResponseHead,
    pub(super) trailers: Fields,
    /// Why its trailers were refused.
    pub(super) refused: Option<Refusal>,
    /// Memory reserved for its trailers.
    pub(super) trailers_size: usize,
    /// Its response has no body: the method is HEAD.
    pub(super) bodiless: bool,
    /// Bytes that we may still send.
    pub(super) send_window: i64,
    /// Our message was sent whole.
    pub(super) sent: bool,
    /// It is in the send queue.
    pub(super) queued: bool,
    pub(super) priority: Priority,
    pub(super) gone: Option<StreamError>,
    /// It was reset by us: frames the peer sent before it knew are ignored.
    pub(super) reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How streams share the connection for sending (RFC 9218 section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Priority {
    /// From 0, the most urgent, to 7.
    pub(crate) urgency: u8,
    /// Not incremental: it does not share turns with streams of the same urgency. Off without an explicit priority.
    pub(crate) sequential: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority { urgency: 3, sequential: false }
    }
}

impl Priority {
    /// Reads the value of `priority` or of a PRIORITY_UPDATE frame. Unknown parameters have no effect.
    pub(crate) fn from_field(value: &[u8]) -> Priority {
        let mut priority = Priority { sequential: true, ..Priority::default() };
        for part in value.split(|&byte| byte == b',') {
            match part.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.sequential = false,
                b"i=?0" => priority.sequential = true,
                _ => {}
            }
        }
        priority
    }
}

/// Empties the fields for the next message.
fn keep_if_small(fields: &mut Fields) {
    match fields.memory() {
        0..=KEPT => fields.clear(KEPT),
        _ => *fields = Fields::new(),
    }
}

/// Stores the waker of `cx`, unless it is stored already.
fn note(waker: &mut Option<Waker>, cx: &Context<'_>) {
    if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waker = Some(cx.waker().clone());
    }
}

impl Slot {
    /// Becomes a free slot. In place, as it is large; small memory is kept.
    fn clear(&mut self) {
        let Slot {
            id,
            data,
            window,
            unread,
            expected,
            has_head,
            received,
            heads,
            // Cleared when it is filled.
            spare: _,
            trailers,
            refused,
            trailers_size,
            bodiless,
            send_window,
            sent,
            queued,
            priority,
            gone,
            reset,
            reader,
            writer,
        } = self;
        (*id, *window, *unread, *expected, *trailers_size, *send_window) = (0, 0, 0, None, 0, 0);
        (*has_head, *received, *bodiless, *sent, *queued, *reset) =
            (false, false, false, false, false, false);
        (*refused, *priority, *gone) = (None, Priority::default(), None);
        (*reader, *writer) = (None, None);
        data.clear();
        if data.capacity() > KEPT {
            *data = Vec::new();
        }
        heads.clear();
        keep_if_small(trailers);
    }

    /// Takes back the memory of a piece and of trailers that were read, for the next stream.
    pub(super) fn recycle(&mut self, piece: &mut Vec<u8>, trailers: &mut Fields) {
        if self.data.capacity() == 0 && piece.capacity() <= KEPT {
            piece.clear();
            std::mem::swap(&mut self.data, piece);
        }
        if self.trailers.is_empty() {
            keep_if_small(trailers);
            std::mem::swap(&mut self.trailers, trailers);
        }
    }

    pub(super) fn wait_to_read(&mut self, cx: &Context<'_>) {
        note(&mut self.reader, cx);
    }

    pub(super) fn wait_to_write(&mut self, cx: &Context<'_>) {
        note(&mut self.writer, cx);
    }

    /// Wakes the task that waits to read.
    #[inline]
    pub(super) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// Wakes the task that waits to send.
    #[inline]
    pub(super) fn wake_writer(&mut self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Ends it early.
    pub(super) fn break_off(&mut self, why: StreamError) {
        if self.gone.is_none() {
            self.gone = Some(why);
        }
        self.wake_reader();
        self.wake_writer();
    }

    /// Whether more is expected from the peer.
    pub(super) fn receives(&self) -> bool {
        !self.received && self.gone.is_none()
    }

    /// Whether it counts as open (RFC 9113 section 5.1.2).
    pub(super) fn is_open(&self) -> bool {
        self.gone.is_none() && !(self.received && self.sent)
    }
}

/// All streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The identifiers of `slots`, kept together because most lookups are by identifier.
    ids: Vec<u32>,
    free: Vec<usize>,
}

impl Slots {
    /// The index of a stream.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|&one| one == id)
    }

    /// Adds a stream; returns its index.
    pub(super) fn insert(&mut self, id: u32) -> usize {
        debug_assert!(id == UNNUMBERED || id != 0 && self.find(id).is_none());
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.ids.push(0);
            self.slots.len() - 1
        });
        self.ids[index] = id;
        self.slots[index].id = id;
        index
    }

    /// Sets a stream's identifier.
    pub(super) fn renumber(&mut self, index: usize, id: u32) {
        self.ids[index] = id;
        self.slots[index].id = id;
    }

    /// Removes a stream. Its memory is kept for the next one if it is small.
    pub(super) fn remove(&mut self, index: usize) {
        self.slots[index].clear();
        self.ids[index] = 0;
        self.free.push(index);
    }

    /// Frees all memory if there are no streams.
    pub(super) fn release(&mut self) {
        if self.len() == 0 {
            *self = Slots::default();
        }
    }

    /// Whether there is memory to release.
    pub(super) fn is_spare(&self) -> bool {
        self.len() == 0 && !self.slots.is_empty()
    }

    /// The number of streams.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The streams, with their indices.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Slot)> {
        self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.id != 0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.id != 0)
    }
}

impl std::ops::Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, index: usize) -> &Slot {
        &self.slots[index]
    }
}

impl std::ops::IndexMut<usize> for Slots {
    fn index_mut(&mut self, index: usize) -> &mut Slot {
        &mut self.slots[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_until_they_are_released() {
        let mut slots = Slots::default();
        let (one, three) = (slots.insert(1), slots.insert(3));
        assert_eq!(
            (slots.find(1), slots.find(3), slots.find(5), slots.len()),
            (Some(one), Some(three), None, 2)
        );
        slots[one].data.extend_from_slice(b"abc");
        slots.remove(one);
        assert_eq!((slots.find(1), slots.len()), (None, 1));
        assert_eq!(slots.insert(5), one);
        assert_eq!((slots[one].id, slots[one].data.len(), slots[one].gone), (5, 0, None));
        slots.remove(one);
        slots.release();
        assert_eq!((slots.find(3), slots.is_spare()), (Some(three), false));
        slots.remove(three);
        assert!(slots.is_spare());
        slots.release();
        assert_eq!((slots.len(), slots.slots.capacity(), slots.is_spare()), (0, 0, false));
    }

    #[test]
    fn priorities_are_read() {
        for (value, urgency, sequential) in [
            ("", 3, true),
            ("u=0", 0, true),
            ("u=7, i", 7, false),
            ("i,u=1", 1, false),
            ("i=?0", 3, true),
            ("i=?1", 3, false),
            ("u=8", 3, true),
            ("u=-1, x=3", 3, true),
        ] {
            assert_eq!(Priority::from_field(value.as_bytes()), Priority { urgency, sequential }, "{value}");
        }
    }
}
