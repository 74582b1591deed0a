//! The window of one connection: how many bytes its peer may send before they are read.
//!
//! Streams have windows of their own, so that one that is not read does not hold up the others. For that the
//! connection's window is as large as those of all its streams with a body. It grows with them, out of what
//! the worker may promise in all (`stream_windows` for clients, `upstream.http2_windows` for servers). Where
//! nothing is left to promise, the streams of the connection share the window it has; those to servers are then placed
//! so that none does (`crate::up::links`).
//!
//! A promise cannot be taken back: a peer may use it long after the streams have ended for which it was.
//! So a window that has become too large is only not renewed, and its share goes back as the peer uses it up.
//! With QUIC more may be used up than is seen here: the library drops bytes that come on a stream that is no
//! longer read. There, no more is counted than all streams may leave unread.

use std::cell::{Cell, RefCell};

use sdk::budget::{Budget, Reservation};

/// How a protocol treats a window that is enlarged after it was made smaller and before the peer has used it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enlarging {
    /// The open window still counts (HTTP/2).
    Counts,
    /// All of the difference is promised again (`quinn`).
    Adds,
}

/// One connection's window.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Of one stream.
    stream: u32,
    /// The part of it that every connection has and that is not counted.
    first: u32,
    enlarging: Enlarging,
    /// Unread bytes never exceed this, regardless of promises: every stream has a window of its own, too.
    most: u32,
    /// Of the connection, as it was set last.
    whole: Cell<u32>,
    /// The most that the peer may have sent unread: the same, or the rest of a larger window.
    promised: Cell<u32>,
    budget: Budget,
    held: RefCell<Reservation>,
    /// Streams with a body that are being served.
    bodies: Cell<u32>,
}

impl Windows {
    pub(crate) fn new(budget: &Budget, first: u32, stream: u32, enlarging: Enlarging) -> Windows {
        Windows {
            stream,
            first,
            enlarging,
            most: u32::MAX,
            whole: Cell::new(first),
            promised: Cell::new(first),
            budget: budget.clone(),
            held: RefCell::default(),
            bodies: Cell::new(0),
        }
    }

    /// There are never more streams than this at a time.
    pub(crate) fn of_at_most(mut self, streams: u32) -> Windows {
        self.most = self.stream.saturating_mul(streams).max(self.first);
        self
    }

    /// A stream with a body begins. Gives the connection's window if it has to change.
    pub(crate) fn begin(&self) -> Option<u32> {
        self.bodies.set(self.bodies.get() + 1);
        self.grow()
    }

    /// It is over.
    pub(crate) fn end(&self) {
        self.bodies.set(self.bodies.get() - 1);
    }

    /// Fits the window to the number of streams being served. Returns the connection's window if it has to change.
    pub(crate) fn fit(&self, bodies: usize) -> Option<u32> {
        self.bodies.set(u32::try_from(bodies).unwrap_or(u32::MAX));
        self.grow().or_else(|| self.shrink())
    }

    /// Whether each of `bodies` streams would have a window that the others cannot use up.
    pub(crate) fn has_room(&self, bodies: usize) -> bool {
        let wanted = self.wanted_by(u32::try_from(bodies).unwrap_or(u32::MAX));
        (wanted.saturating_sub(self.promised.get()) as usize) <= self.budget.left()
    }

    /// Of the connection.
    pub(crate) fn whole(&self) -> u32 {
        self.whole.get()
    }

    /// Of one stream.
    pub(crate) fn stream(&self) -> u32 {
        self.stream
    }

    fn wanted(&self) -> u32 {
        self.wanted_by(self.bodies.get())
    }

    fn wanted_by(&self, bodies: u32) -> u32 {
        // A window has 31 bits.
        self.stream.saturating_mul(bodies).clamp(self.first, (1 << 31) - 1)
    }

    fn grow(&self) -> Option<u32> {
        let (wanted, whole, promised) = (self.wanted(), self.whole.get(), self.promised.get());
        if wanted <= whole {
            return None;
        }
        let left = u32::try_from(self.budget.left()).unwrap_or(u32::MAX);
        let (whole, promised) = match self.enlarging {
            Enlarging::Counts => {
                let whole = wanted.min(promised.saturating_add(left));
                (whole, promised.max(whole))
            }
            Enlarging::Adds => {
                // It suffices that the budget has the part of `most` that is not counted yet.
                let more = match self.most.saturating_sub(promised) {
                    rest if rest <= left => wanted - whole,
                    _ => (wanted - whole).min(left),
                };
                (whole + more, promised.saturating_add(more))
            }
        };
        if whole <= self.whole.get() {
            return None;
        }
        self.held.borrow_mut().resize(&self.budget, self.counted(promised)).ok()?;
        self.whole.set(whole);
        self.promised.set(promised);
        Some(whole)
    }

    /// Gives the connection's window if it has become much too large for the streams there are.
    pub(crate) fn shrink(&self) -> Option<u32> {
        let (wanted, whole) = (self.wanted(), self.whole.get());
        if wanted > whole / 2 {
            return None;
        }
        self.whole.set(wanted);
        Some(wanted)
    }

    /// Notes that this many received bytes were read.
    #[inline]
    pub(crate) fn used(&self, bytes: usize) {
        let (promised, whole) = (self.promised.get(), self.whole.get());
        if promised > whole {
            let over = (promised - whole).min(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.promised.set(promised - over);
            // Less always fits.
            let _ = self.held.borrow_mut().resize(&self.budget, self.counted(promised - over));
        }
    }

    /// Returns how much of a promise is taken from the budget.
    fn counted(&self, promised: u32) -> usize {
        (promised.min(self.most) - self.first) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(budget: &Budget, first: u32, stream: u32) -> Windows {
        Windows::new(budget, first, stream, Enlarging::Counts)
    }

    #[test]
    fn a_window_has_31_bits() {
        assert_eq!(windows(&Budget::new(1 << 40), 100, 1 << 30).fit(5), Some((1 << 31) - 1));
    }

    #[test]
    fn a_window_grows_with_its_streams() {
        let budget = Budget::new(1000);
        let windows = windows(&budget, 100, 60);
        assert_eq!(windows.begin(), None);
        assert_eq!(windows.begin(), Some(120));
        assert_eq!(windows.begin(), Some(180));
        windows.end();
        assert_eq!((windows.begin(), windows.shrink()), (None, None));
        assert_eq!(budget.taken(), 80);
        drop(windows);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn connections_share_what_may_be_promised() {
        let budget = Budget::new(100);
        let (one, other) = (windows(&budget, 50, 50), windows(&budget, 50, 50));
        assert_eq!([one.begin(), one.begin(), one.begin()], [None, Some(100), Some(150)]);
        assert_eq!(one.begin(), None, "all is promised");
        assert_eq!([other.begin(), other.begin()], [None, None]);
        drop(one);
        assert_eq!(other.begin(), Some(150));
        assert_eq!(other.fit(100), None);
        let third = windows(&budget, 50, 40);
        assert_eq!(third.fit(10), None);
        drop(other);
        assert_eq!(third.fit(10), Some(150), "as far as there is room");
    }

    #[test]
    fn there_is_room_where_each_stream_has_a_window_of_its_own() {
        let budget = Budget::new(100);
        let (one, other) = (windows(&budget, 50, 50), windows(&budget, 50, 50));
        assert!(one.has_room(3) && !one.has_room(4));
        assert_eq!(one.fit(3), Some(150));
        assert!(other.has_room(1) && !other.has_room(2));
        assert_eq!((one.fit(1), one.whole()), (Some(50), 50));
        assert!(one.has_room(3) && !other.has_room(2), "what was promised it may still use");
        one.used(100);
        assert!(other.has_room(3));
    }

    #[test]
    fn what_was_promised_goes_back_as_it_is_used() {
        let budget = Budget::new(1000);
        let windows = windows(&budget, 100, 100);
        assert_eq!(windows.fit(5), Some(500));
        assert_eq!(windows.fit(3), None, "not for every stream that ends");
        assert_eq!(windows.fit(1), Some(100));
        assert_eq!(budget.taken(), 400, "the peer may still send it");
        windows.used(150);
        assert_eq!(budget.taken(), 250);
        // The rest of its window counts for streams that begin now.
        assert_eq!(windows.fit(3), Some(300));
        assert_eq!(budget.taken(), 250);
        windows.used(1000);
        assert_eq!(budget.taken(), 200);
        assert_eq!(windows.fit(0), Some(100));
        windows.used(1000);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn where_enlarging_adds_all_of_it_is_counted() {
        let budget = Budget::new(1000);
        let windows = Windows::new(&budget, 100, 100, Enlarging::Adds);
        assert_eq!(windows.fit(5), Some(500));
        assert_eq!(windows.fit(1), Some(100));
        windows.used(100);
        assert_eq!((windows.fit(4), budget.taken()), (Some(400), 600));
        windows.used(1000);
        assert_eq!(budget.taken(), 300);
        assert_eq!((windows.fit(0), windows.fit(100)), (Some(100), Some(800)), "as far as there is room");
        assert_eq!(budget.taken(), 1000);
    }

    #[test]
    fn no_more_is_counted_than_the_streams_may_leave_unread() {
        let budget = Budget::new(1000);
        let windows = Windows::new(&budget, 100, 100, Enlarging::Adds).of_at_most(5);
        for _ in 0..10 {
            // Of streams that send nothing, nothing is ever read.
            assert_eq!((windows.fit(5), windows.fit(0)), (Some(500), Some(100)));
            assert_eq!(budget.taken(), 400);
        }
        windows.used(3000);
        assert_eq!(budget.taken(), 400, "the client may still send more than it has streams for");
        windows.used(1000);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_connection_may_take_what_is_left_up_to_its_most() {
        let budget = Budget::new(450);
        let windows = || Windows::new(&budget, 100, 100, Enlarging::Adds).of_at_most(5);
        let (one, other) = (windows(), windows());
        assert_eq!((one.fit(5), other.fit(5)), (Some(500), Some(150)));
        assert_eq!((one.fit(0), one.fit(5)), (Some(100), Some(500)), "it is counted already");
        assert_eq!((other.fit(0), other.fit(5), budget.taken()), (None, None, 450), "nothing is left");
    }
}
