//! Bounds unread data of a client that takes far more memory than its bytes on the line.
//!
//! The `h2` crate keeps trailers decoded until what comes before them is read: a byte on the line may become a field
//! of a hundred bytes. It keeps an entry for each DATA frame, while the stream's window counts only what is in it. And
//! a frame keeps all of the memory alive that was read with it, however little it holds.

use std::cell::RefCell;
use std::collections::VecDeque;

use sdk::budget::{Budget, Exhausted, Reservation};

use crate::exchange::fault::Flood;

/// Memory that one byte of coded trailers may take: an entry of the library's map.
const FIELD: usize = 100;

/// Memory that a DATA frame takes beside its bytes, …
const PIECE: usize = 512;

/// … which counts where the frame is smaller than that.
fn is_small(length: usize) -> bool {
    (1..PIECE).contains(&length)
}

/// Whether a frame may keep more alive than it holds.
fn is_part(length: usize) -> bool {
    (1..BLOCK).contains(&length)
}

/// The library reads into blocks of this many bytes, …
const READ: u64 = 8 << 10;

/// … or of this many for a large frame. A stream's first frame in a block counts for the whole block.
const BLOCK: usize = 16 << 10;

/// Memory that every connection may have, regardless of the others.
const FREE: usize = 256 << 10;

/// A stream with a body, or one that is not yet known to have one.
#[derive(Debug)]
struct Entry {
    stream: u32,
    /// Bytes of memory for its trailers.
    trailers: usize,
    /// Small DATA frames.
    small: Pieces,
    /// Those that are larger, and smaller than what is read at a time.
    large: Pieces,
    served: bool,
}

#[derive(Debug, Default)]
struct Pieces {
    count: usize,
    /// In which parts of what came they lie, and how many in each, in their order.
    blocks: VecDeque<(u64, usize)>,
}

impl Pieces {
    fn push(&mut self, at: u64) {
        let block = at / READ;
        self.count += 1;
        match self.blocks.back_mut() {
            Some((last, count)) if *last == block => *count += 1,
            _ => self.blocks.push_back((block, 1)),
        }
    }

    /// The first was read. One that came padded may not have counted.
    fn pop(&mut self) {
        if let Some((_, count)) = self.blocks.front_mut() {
            self.count -= 1;
            *count -= 1;
            if *count == 0 {
                self.blocks.pop_front();
            }
        }
    }
}

impl Entry {
    fn new(stream: u32, served: bool) -> Entry {
        Entry { stream, trailers: 0, small: Pieces::default(), large: Pieces::default(), served }
    }

    /// Memory that only attackers, or a great many streams at once, make large, …
    fn odd(&self) -> usize {
        self.trailers + self.small.count * PIECE + self.small.blocks.len() * BLOCK
    }

    /// … and all of it.
    fn sums(&self) -> Sums {
        Sums { odd: self.odd(), all: self.odd() + self.large.blocks.len() * BLOCK }
    }

    fn pieces(&mut self, length: usize) -> &mut Pieces {
        if is_small(length) { &mut self.small } else { &mut self.large }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Sums {
    odd: usize,
    all: usize,
}

impl Sums {
    fn add(&mut self, more: Sums) {
        self.odd += more.odd;
        self.all += more.all;
    }

    fn take(&mut self, less: Sums) {
        self.odd -= less.odd;
        self.all -= less.all;
    }
}

/// Of one connection.
#[derive(Debug)]
pub(crate) struct Unread {
    /// The most memory for trailers and small frames on the connection, …
    most: usize,
    /// … as trailers on one stream, as a list that is larger is not kept, …
    most_of_one: usize,
    /// … and on all connections of the worker, …
    budget: Budget,
    /// … beyond what each of them may have.
    free: usize,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    /// The newest stream that has begun to be served.
    newest: u32,
    sum: Sums,
    held: Reservation,
    flood: Option<Flood>,
}

impl Unread {
    pub(crate) fn new(most: usize, list: usize, budget: &Budget) -> Unread {
        // The least field counts for 34 bytes in the list's size (RFC 7541 section 4.1).
        let most_of_one = list / 34 * FIELD;
        Unread { most, most_of_one, budget: budget.clone(), free: FREE, state: RefCell::default() }
    }

    /// A part of a block of fields came that is not a stream's first.
    pub(super) fn trailers(&self, stream: u32, length: usize) {
        self.came(stream, |entry| {
            entry.trailers =
                entry.trailers.saturating_add(length.saturating_mul(FIELD)).min(self.most_of_one);
        });
    }

    /// Notes a DATA frame that came behind `at` bytes of the connection.
    pub(super) fn piece(&self, stream: u32, length: usize, at: u64) {
        if is_part(length) {
            self.came(stream, |entry| entry.pieces(length).push(at));
        }
    }

    fn came(&self, stream: u32, count: impl FnOnce(&mut Entry)) {
        let mut state = self.state.borrow_mut();
        let State { entries, newest, sum, held, flood } = &mut *state;
        let index = match entries.iter().position(|entry| entry.stream == stream) {
            Some(index) => index,
            // Its stream is over.
            None if stream <= *newest => return,
            None => {
                entries.push(Entry::new(stream, false));
                entries.len() - 1
            }
        };
        let entry = &mut entries[index];
        sum.take(entry.sums());
        count(entry);
        sum.add(entry.sums());
        if sum.odd > self.most {
            *flood = Some(Flood::Unread);
        } else if self.hold(held, *sum).is_err() {
            *flood = Some(Flood::AllUnread);
        }
    }

    /// A piece of a stream's body was read.
    pub(crate) fn read(&self, stream: u32, length: usize) {
        if !is_part(length) {
            return;
        }
        let mut state = self.state.borrow_mut();
        let State { entries, sum, held, .. } = &mut *state;
        if let Some(entry) = entries.iter_mut().find(|entry| entry.stream == stream) {
            sum.take(entry.sums());
            entry.pieces(length).pop();
            sum.add(entry.sums());
            // Less always fits.
            let _ = self.hold(held, *sum);
        }
    }

    /// A stream with a body is being served.
    pub(crate) fn begin(&self, stream: u32) {
        let mut state = self.state.borrow_mut();
        let State { entries, newest, sum, held, .. } = &mut *state;
        *newest = stream;
        let (mut known, before) = (false, *sum);
        // Streams are served in their order: one before this that is not was refused.
        entries.retain_mut(|entry| {
            known |= entry.stream == stream;
            entry.served |= entry.stream == stream;
            let stays = entry.served || entry.stream > stream;
            if !stays {
                sum.take(entry.sums());
            }
            stays
        });
        if !known {
            entries.push(Entry::new(stream, true));
        }
        if *sum != before {
            // Less always fits.
            let _ = self.hold(held, *sum);
        }
    }

    /// All of a stream was read, or it is over.
    pub(crate) fn end(&self, stream: u32) {
        let mut state = self.state.borrow_mut();
        let State { entries, sum, held, .. } = &mut *state;
        if let Some(index) = entries.iter().position(|entry| entry.stream == stream) {
            let sums = entries.swap_remove(index).sums();
            if sums != Sums::default() {
                sum.take(sums);
                // Less always fits.
                let _ = self.hold(held, *sum);
            }
        }
    }

    fn hold(&self, held: &mut Reservation, sum: Sums) -> Result<(), Exhausted> {
        held.resize(&self.budget, sum.all.saturating_sub(self.free))
    }

    /// There is too much.
    pub(super) fn flood(&self) -> Option<Flood> {
        self.state.borrow().flood
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Unread {
        /// Nothing is free.
        pub(in crate::h2) fn all(most: usize, list: usize, budget: &Budget) -> Unread {
            Unread { free: 0, ..Unread::new(most, list, budget) }
        }
    }

    #[test]
    fn trailers_count_until_they_are_read() {
        let budget = Budget::new(1 << 20);
        let trailers = Unread::all(50_000, 3400, &budget);
        trailers.begin(1);
        trailers.trailers(1, 20);
        assert_eq!(budget.taken(), 2000);
        trailers.trailers(1, 1000);
        assert_eq!(budget.taken(), 10_000, "a list has a bound of its own");
        // They come before their stream is served.
        trailers.trailers(5, 10);
        trailers.trailers(3, 10);
        trailers.begin(3);
        trailers.begin(5);
        assert_eq!(budget.taken(), 12_000);
        trailers.end(3);
        trailers.end(1);
        assert_eq!(budget.taken(), 1000);
        // Of a stream that is over.
        trailers.trailers(3, 10);
        assert_eq!((budget.taken(), trailers.flood()), (1000, None));
        trailers.end(5);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn streams_that_were_never_served_are_forgotten() {
        let budget = Budget::new(1 << 20);
        let trailers = Unread::all(50_000, 34_000, &budget);
        for stream in (1..1000).step_by(4) {
            trailers.trailers(stream, 100);
            trailers.begin(stream + 2);
            trailers.end(stream + 2);
            assert_eq!(trailers.flood(), None);
        }
        assert!(trailers.state.borrow().entries.len() <= 1);
    }

    #[test]
    fn too_many_are_a_flood_of_a_connection_or_of_all() {
        let budget = Budget::new(60_000);
        let (one, other) = (Unread::all(50_000, 34_000, &budget), Unread::all(50_000, 34_000, &budget));
        one.trailers(1, 400);
        assert_eq!(one.flood(), None);
        other.trailers(1, 300);
        assert_eq!(other.flood(), Some(Flood::AllUnread));
        one.trailers(3, 200);
        assert_eq!(one.flood(), Some(Flood::Unread));
        drop((one, other));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn small_pieces_count_until_they_are_read_and_large_ones_never() {
        let budget = Budget::new(1 << 20);
        let unread = Unread::all(100 * PIECE + 2 * BLOCK, 3400, &budget);
        unread.begin(1);
        (0..60).for_each(|at| unread.piece(1, 10, at));
        (0..1000).for_each(|at| unread.piece(1, BLOCK, at));
        unread.piece(1, 0, 0);
        assert_eq!(budget.taken(), 60 * PIECE + BLOCK);
        // They come before their stream is served.
        (0..40).for_each(|at| unread.piece(3, PIECE - 1, at));
        unread.begin(3);
        assert_eq!((budget.taken(), unread.flood()), (100 * PIECE + 2 * BLOCK, None));
        (0..60).for_each(|_| unread.read(1, 10));
        unread.read(1, 10);
        unread.read(1, BLOCK);
        assert_eq!(budget.taken(), 40 * PIECE + BLOCK);
        unread.end(3);
        unread.piece(3, 10, 0);
        unread.read(3, 10);
        assert_eq!(budget.taken(), 0, "the stream is over");
        (0..200).for_each(|_| unread.piece(1, 1, 0));
        assert_eq!(unread.flood(), Some(Flood::Unread));
    }

    #[test]
    fn a_piece_counts_for_all_that_was_read_with_it() {
        let budget = Budget::new(1 << 30);
        let unread = Unread::all(1 << 30, 3400, &budget);
        unread.begin(1);
        // One is under way all the time, each in a part of its own.
        for number in 0..1000 {
            unread.piece(1, 10, number * READ);
            assert!(budget.taken() <= 2 * (PIECE + BLOCK));
            if number > 0 {
                unread.read(1, 10);
            }
        }
        assert_eq!(budget.taken(), PIECE + BLOCK);
        (1000..1100).for_each(|number| unread.piece(1, 10, number * READ));
        assert_eq!(budget.taken(), 101 * (PIECE + BLOCK));
        (0..101).for_each(|_| unread.read(1, 10));
        assert_eq!(budget.taken(), 0);
        // Larger ones as well, but no connection ends for them alone.
        let unread = Unread::all(1 << 20, 3400, &budget);
        (0..1000).for_each(|number| unread.piece(1, 4000, number * READ));
        assert_eq!((budget.taken(), unread.flood()), (1000 * BLOCK, None));
        (0..1000).for_each(|_| unread.read(1, 4000));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_little_is_free_whatever_others_hold() {
        let budget = Budget::new(100 * PIECE + BLOCK);
        let all = Unread::all(1 << 20, 3400, &budget);
        (0..100).for_each(|_| all.piece(1, 1, 0));
        let unread = Unread::new(1 << 20, 3400, &budget);
        (0..(FREE - BLOCK) / PIECE).for_each(|_| unread.piece(1, 1, 0));
        assert_eq!((budget.taken(), unread.flood()), (100 * PIECE + BLOCK, None));
        unread.piece(1, 1, 0);
        assert_eq!(unread.flood(), Some(Flood::AllUnread));
        unread.end(1);
        drop(all);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_stream_counts_from_its_first_frame_to_its_end_and_one_that_was_passed_over_does_not() {
        let budget = Budget::new(1 << 20);
        let unread = Unread::all(1 << 20, 34_000, &budget);
        unread.trailers(1, 3);
        assert_eq!(budget.taken(), 300);
        unread.begin(3);
        assert_eq!(budget.taken(), 0, "the first was refused");
        unread.trailers(3, 2);
        unread.begin(5);
        unread.trailers(5, 1);
        assert_eq!(budget.taken(), 300);
        unread.trailers(7, 1);
        unread.begin(7);
        for stream in [3, 5, 7] {
            unread.end(stream);
            unread.trailers(stream, 1);
        }
        assert_eq!(budget.taken(), 0, "data of a stream that is over is not counted");
    }
}
