//! What a client may send on one connection before anybody has read it.
//!
//! Streams have windows of their own, so that one that nobody reads does not hold up the others. For that the
//! connection's window is as large as those of all its streams with a body. It grows with them, out of what
//! the worker may promise in all (`stream_windows`), and keeps its size: what was promised cannot be taken
//! back. Where nothing is left to promise, the streams of the connection share the window it has.

use std::cell::{Cell, RefCell};

use sdk::budget::{Budget, Held};

/// One connection's window.
#[derive(Debug)]
pub(super) struct Windows {
    /// Of one stream.
    stream: u32,
    /// Of the connection, now.
    whole: Cell<u32>,
    /// What of it every connection has, and nobody counts.
    first: u32,
    held: RefCell<Held>,
    /// Streams with a body that are being served.
    bodies: Cell<u32>,
}

impl Windows {
    pub(super) fn new(first: u32, stream: u32) -> Windows {
        Windows { stream, whole: Cell::new(first), first, held: RefCell::default(), bodies: Cell::new(0) }
    }

    /// A stream with a body begins. Gives the connection's window if it has to change.
    pub(super) fn begin(&self, budget: &Budget) -> Option<u32> {
        self.bodies.set(self.bodies.get() + 1);
        // A window has 31 bits.
        let wanted = self.stream.saturating_mul(self.bodies.get()).min((1 << 31) - 1);
        if wanted <= self.whole.get() {
            return None;
        }
        self.held.borrow_mut().resize(budget, (wanted - self.first) as usize).ok()?;
        self.whole.set(wanted);
        Some(wanted)
    }

    /// It is over.
    pub(super) fn end(&self) {
        self.bodies.set(self.bodies.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_with_its_streams_and_keeps_its_size() {
        let budget = Budget::new(1000);
        let windows = Windows::new(100, 60);
        assert_eq!(windows.begin(&budget), None);
        assert_eq!(windows.begin(&budget), Some(120));
        assert_eq!(windows.begin(&budget), Some(180));
        windows.end();
        windows.end();
        assert_eq!(windows.begin(&budget), None);
        assert_eq!(budget.taken(), 80);
        drop(windows);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn connections_share_what_may_be_promised() {
        let budget = Budget::new(100);
        let (one, other) = (Windows::new(50, 50), Windows::new(50, 50));
        assert_eq!(
            [one.begin(&budget), one.begin(&budget), one.begin(&budget)],
            [None, Some(100), Some(150)]
        );
        assert_eq!(one.begin(&budget), None, "all is promised");
        assert_eq!([other.begin(&budget), other.begin(&budget)], [None, None]);
        drop(one);
        assert_eq!(other.begin(&budget), Some(150));
    }
}
