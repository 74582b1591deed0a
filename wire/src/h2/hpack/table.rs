//! hot path
//!
//! The dynamic table (RFC 7541 section 2.3.2).

use std::collections::VecDeque;

use crate::field_list::{About, BETWEEN, LINE};

/// The size of an entry beside its name and value, in bytes (RFC 7541 section 4.1).
const OVERHEAD: usize = 32;

/// The bytes of a table that has one entry; they double by need, up to the size limit.
const FEWEST: usize = 128;

/// Lines in a ring of bytes, and their places in a ring of entries, the newest first. A line takes
/// less than the overhead of an entry beside name and value, so the ring never exceeds the limit.
#[derive(Debug)]
pub(super) struct Table {
    ring: Vec<u8>,
    /// Where the next line begins in the ring.
    next: usize,
    /// Bytes of the ring in use.
    used: usize,
    entries: VecDeque<Entry>,
    limit: usize,
}

/// The place of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    start: u32,
    length: u32,
    pub(super) about: About,
}

impl Table {
    pub(super) fn new(limit: usize) -> Table {
        Table { ring: Vec::new(), next: 0, used: 0, entries: VecDeque::new(), limit }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The number of entries.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entry that was inserted as the last but `age`.
    #[inline]
    pub(super) fn get(&self, age: usize) -> Option<Entry> {
        self.entries.get(age).copied()
    }

    /// The line of an entry; a second piece if it continues at the start of the ring.
    #[inline]
    pub(super) fn line(&self, entry: Entry) -> (&[u8], &[u8]) {
        self.pieces(entry.start as usize, entry.length as usize)
    }

    /// The name of an entry, as [`Table::line`].
    #[inline]
    pub(super) fn name(&self, entry: Entry) -> (&[u8], &[u8]) {
        self.pieces(entry.start as usize, entry.about.name as usize)
    }

    /// The value of an entry, as [`Table::line`].
    #[inline]
    pub(super) fn value(&self, entry: Entry) -> (&[u8], &[u8]) {
        let name = entry.about.name as usize;
        let start = entry.start as usize + name + BETWEEN.len();
        let start = if start < self.ring.len() { start } else { start - self.ring.len() };
        self.pieces(start, entry.length as usize - name - LINE)
    }

    #[inline]
    fn pieces(&self, start: usize, length: usize) -> (&[u8], &[u8]) {
        let end = start + length;
        match self.ring.get(start..end) {
            Some(whole) => (whole, &[]),
            None => (&self.ring[start..], &self.ring[..end - self.ring.len()]),
        }
    }

    /// Changes the limit, evicting entries that exceed it.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
    }

    /// The size by the rules of RFC 7541 section 4.1.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.used + self.entries.len() * (OVERHEAD - LINE)
    }

    /// Inserts a line. One that exceeds the limit by itself empties the table (RFC 7541 section 4.4).
    pub(super) fn insert(&mut self, line: &[u8], about: About) {
        let Some(room) = self.limit.checked_sub(line.len() - LINE + OVERHEAD) else {
            return self.evict(0);
        };
        self.evict(room);
        if self.used + line.len() > self.ring.len() {
            self.grow(self.used + line.len());
        }
        let start = self.next;
        let first = line.len().min(self.ring.len() - start);
        self.ring[start..start + first].copy_from_slice(&line[..first]);
        self.next = start + first;
        if self.next == self.ring.len() {
            self.next = line.len() - first;
            self.ring[..self.next].copy_from_slice(&line[first..]);
        }
        self.used += line.len();
        let (start, length) = (start as u32, line.len() as u32);
        self.entries.push_front(Entry { start, length, about });
    }

    /// Removes the oldest entries until the size is at most `most`.
    #[inline]
    fn evict(&mut self, most: usize) {
        while self.size() > most {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.used -= oldest.length as usize;
        }
    }

    #[cold]
    fn grow(&mut self, need: usize) {
        let capacity = (self.ring.len() * 2).max(FEWEST).min(self.limit).max(need);
        let mut ring = Vec::with_capacity(capacity);
        for entry in self.entries.iter_mut().rev() {
            let start = ring.len() as u32;
            let (first, second) = (entry.start as usize, entry.start as usize + entry.length as usize);
            match self.ring.get(first..second) {
                Some(whole) => ring.extend_from_slice(whole),
                None => {
                    ring.extend_from_slice(&self.ring[first..]);
                    ring.extend_from_slice(&self.ring[..second - self.ring.len()]);
                }
            }
            entry.start = start;
        }
        self.next = ring.len();
        ring.resize(capacity, 0);
        self.ring = ring;
    }
}
