//! hot path
//!
//! Read buffers, kept by the worker and lent while bytes are in hand.

use std::cell::{Cell, RefCell};

/// The usual size: a head or a small body in one read.
pub(crate) const SMALL: usize = 16 << 10;
/// For long bodies, once a small buffer was filled by one read.
pub(crate) const LARGE: usize = 64 << 10;

/// Idle buffers, and memory of exchanges, that a worker keeps.
pub(crate) const SPARE: usize = 256;

/// Bytes between `start` and `end` were read and not yet used.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    fn new(size: usize) -> Buffer {
        Buffer { bytes: vec![0; size].into_boxed_slice(), start: 0, end: 0 }
    }

    #[inline]
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Room behind the data, after moving the data to the front if that is needed.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.end == self.bytes.len() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// Notes that this many bytes were read into [`Buffer::space`].
    #[inline]
    pub(crate) fn filled(&mut self, n: usize) {
        self.end += n;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// Drops this many bytes from the front of the data.
    #[inline]
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end);
    }

    /// Makes room for a message of `size` bytes; keeps the data.
    pub(crate) fn grow(&mut self, size: usize) {
        if size > self.bytes.len() {
            let mut bytes = vec![0; size].into_boxed_slice();
            let len = self.len();
            bytes[..len].copy_from_slice(self.data());
            *self = Buffer { bytes, start: 0, end: len };
        }
    }
}

/// A worker's spare buffers. Last in, first out: the buffer lent next is the one
/// whose memory is still in the cache.
#[derive(Debug)]
pub(crate) struct Buffers {
    small: Spare,
    large: Spare,
    keep: usize,
}

#[derive(Debug, Default)]
struct Spare {
    buffers: RefCell<Vec<Buffer>>,
    /// The fewest spare buffers since memory was last given back: that many were not needed.
    unused: Cell<usize>,
}

impl Spare {
    #[inline]
    fn take(&self, size: usize) -> Buffer {
        let mut buffers = self.buffers.borrow_mut();
        let buffer = buffers.pop();
        self.unused.set(self.unused.get().min(buffers.len()));
        buffer.unwrap_or_else(|| Buffer::new(size))
    }

    fn shrink(&self) {
        let mut buffers = self.buffers.borrow_mut();
        let keep = buffers.len() - self.unused.get().div_ceil(2).min(buffers.len());
        buffers.truncate(keep);
        self.unused.set(keep);
    }
}

impl Buffers {
    /// Keeps at most `keep` spare buffers of each size.
    pub(crate) fn new(keep: usize) -> Buffers {
        Buffers { small: Spare::default(), large: Spare::default(), keep }
    }

    #[inline]
    pub(crate) fn take(&self) -> Buffer {
        self.small.take(SMALL)
    }

    pub(crate) fn take_large(&self) -> Buffer {
        self.large.take(LARGE)
    }

    /// Takes a buffer back and empties it. Odd sizes (grown for a long head) are freed.
    #[inline]
    pub(crate) fn give(&self, mut buffer: Buffer) {
        let spare = match buffer.capacity() {
            SMALL => &self.small,
            LARGE => &self.large,
            _ => return,
        };
        buffer.start = 0;
        buffer.end = 0;
        let mut spare = spare.buffers.borrow_mut();
        if spare.len() < self.keep {
            spare.push(buffer);
        }
    }

    /// Frees half of the buffers that were not needed since the last time, so that a burst's memory
    /// goes back in a while and the buffers that every request takes stay.
    pub(crate) fn shrink(&self) {
        self.small.shrink();
        self.large.shrink();
    }
}

/// A buffer that goes back to the worker by itself, also when its future is dropped.
#[derive(Debug)]
pub(crate) struct Lent<'a> {
    buffers: &'a Buffers,
    buffer: Option<Buffer>,
}

impl<'a> Lent<'a> {
    pub(crate) fn none(buffers: &'a Buffers) -> Lent<'a> {
        Lent { buffers, buffer: None }
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.buffer.is_none()
    }

    /// The buffer; taken from the worker if it is not there yet.
    #[inline]
    pub(crate) fn get(&mut self) -> &mut Buffer {
        let buffers = self.buffers;
        self.buffer.get_or_insert_with(|| buffers.take())
    }

    /// The buffer, if there is one.
    #[inline]
    pub(crate) fn peek(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    /// The same, to use what is in it.
    #[inline]
    pub(crate) fn peek_mut(&mut self) -> Option<&mut Buffer> {
        self.buffer.as_mut()
    }

    /// Exchanges an empty small buffer for a large one.
    pub(crate) fn enlarge(&mut self) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.is_empty() && buffer.capacity() == SMALL) {
            self.buffers.give(buffer);
            self.buffer = Some(self.buffers.take_large());
        }
    }

    /// Exchanges an empty large buffer for a small one.
    pub(crate) fn reduce(&mut self) {
        if let Some(buffer) = self.buffer.take_if(|buffer| buffer.is_empty() && buffer.capacity() == LARGE) {
            self.buffers.give(buffer);
            self.buffer = Some(self.buffers.take());
        }
    }

    pub(crate) fn take_inner(&mut self) -> Option<Buffer> {
        self.buffer.take()
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.buffers.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_moves_to_the_front_when_the_end_is_reached() {
        let mut buffer = Buffer::new(8);
        buffer.space()[..8].copy_from_slice(b"abcdefgh");
        buffer.filled(8);
        buffer.consume(6);
        assert_eq!(buffer.space().len(), 6);
        assert_eq!(buffer.data(), b"gh");
        buffer.grow(32);
        assert_eq!(buffer.data(), b"gh");
        assert_eq!(buffer.space().len(), 30);
        buffer.consume(2);
        assert_eq!(buffer.space().len(), 32);
    }

    #[test]
    fn the_memory_of_a_burst_goes_back_and_what_is_in_use_stays() {
        let buffers = Buffers::new(100);
        let spare =
            |buffers: &Buffers| (buffers.small.buffers.borrow().len(), buffers.large.buffers.borrow().len());
        let burst: Vec<_> = (0..16).map(|_| (buffers.take(), buffers.take_large())).collect();
        for (small, large) in burst {
            buffers.give(small);
            buffers.give(large);
        }
        buffers.shrink();
        assert_eq!(spare(&buffers), (16, 16), "all of them were in use");
        for left in [9, 5, 3, 2, 2, 2] {
            let (first, second) = (buffers.take(), buffers.take());
            buffers.give(first);
            buffers.give(second);
            buffers.shrink();
            assert_eq!(spare(&buffers).0, left, "two are needed at a time");
        }
        assert_eq!(spare(&buffers).1, 0, "none of these");
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let buffers = Buffers::new(1);
        for buffer in [buffers.take(), buffers.take()] {
            buffers.give(buffer);
        }
        let mut grown = buffers.take_large();
        grown.grow(LARGE + 1);
        buffers.give(grown);
        assert_eq!((buffers.small.buffers.borrow().len(), buffers.large.buffers.borrow().len()), (1, 0));
    }

    #[test]
    fn only_an_empty_small_buffer_is_exchanged_for_a_large_one() {
        let buffers = Buffers::new(1);
        let mut lent = Lent::none(&buffers);
        lent.enlarge();
        assert!(lent.is_none(), "no buffer to exchange");
        lent.get().space()[..2].copy_from_slice(b"ab");
        lent.get().filled(2);
        lent.enlarge();
        let small = lent.get();
        assert_eq!((small.data(), small.capacity()), (&b"ab"[..], SMALL));
        lent.get().consume(2);
        lent.enlarge();
        assert_eq!(lent.get().capacity(), LARGE);
        let (large, small) = (lent.get().space().as_ptr(), buffers.small.buffers.borrow().len());
        lent.enlarge();
        assert_eq!((lent.get().space().as_ptr(), small), (large, 1));
        lent.get().filled(1);
        lent.reduce();
        assert_eq!(lent.get().capacity(), LARGE, "it holds a byte");
        lent.get().consume(1);
        lent.reduce();
        assert_eq!(lent.get().capacity(), SMALL);
    }
}
