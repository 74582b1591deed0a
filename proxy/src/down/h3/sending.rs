//! hot path
//!
//! How much of its responses a client may leave unacknowledged. QUIC keeps that much in memory.
//!
//! A connection begins with a small window. It grows when a client takes more than the window at a time, out of what
//! the worker may hold for all clients (`send_windows`), and goes back when no stream is left.

use std::cell::{Cell, RefCell};

use sdk::budget::{Budget, Reservation};

/// The window that every connection has and that is not counted.
pub(super) const FIRST: u64 = 64 << 10;

pub(super) struct Sending {
    most: u64,
    window: Cell<u64>,
    /// Bytes that were written since the window was small. With fewer than its size the window is not full.
    written: Cell<u64>,
    budget: Budget,
    held: RefCell<Reservation>,
}

impl Sending {
    pub(super) fn new(most: u64, budget: &Budget) -> Sending {
        Sending {
            most,
            window: Cell::new(first(most)),
            written: Cell::default(),
            budget: budget.clone(),
            held: RefCell::default(),
        }
    }

    pub(super) fn wrote(&self, bytes: usize) {
        self.written.set(self.written.get().saturating_add(bytes as u64));
    }

    /// A write has to wait. Returns the new window where it may be larger.
    pub(super) fn widen(&self) -> Option<u64> {
        let window = self.window.get();
        let wider = window.saturating_mul(2).min(self.most);
        if wider <= window || self.written.get() < window {
            return None;
        }
        let counted = usize::try_from(wider - first(self.most)).ok()?;
        self.held.borrow_mut().resize(&self.budget, counted).ok()?;
        self.window.set(wider);
        Some(wider)
    }

    /// Nothing is left that is unacknowledged. Returns the new window where it becomes smaller.
    pub(super) fn narrow(&self) -> Option<u64> {
        self.written.set(0);
        let window = first(self.most);
        if self.window.replace(window) == window {
            return None;
        }
        // Less always fits.
        let _ = self.held.borrow_mut().resize(&self.budget, 0);
        Some(window)
    }
}

/// The first window where a window is at most so large.
pub(super) fn first(most: u64) -> u64 {
    FIRST.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_when_it_was_full_and_as_far_as_the_worker_has_room() {
        let budget = Budget::new(300 << 10);
        let sending = || Sending::new(256 << 10, &budget);
        let (one, other) = (sending(), sending());
        assert_eq!(one.widen(), None, "nothing was written");
        one.wrote(FIRST as usize);
        assert_eq!((one.widen(), one.widen()), (Some(128 << 10), None));
        one.wrote(1 << 20);
        assert_eq!((one.widen(), one.widen()), (Some(256 << 10), None), "no larger than the setting");
        assert_eq!(budget.taken(), 192 << 10);
        other.wrote(1 << 20);
        assert_eq!((other.widen(), other.widen()), (Some(128 << 10), None), "the rest is held by another");
        assert_eq!((one.narrow(), one.narrow()), (Some(FIRST), None));
        assert_eq!(one.widen(), None, "it begins again");
        assert_eq!(other.widen(), Some(256 << 10));
        drop((one, other));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_window_is_never_larger_than_the_setting() {
        let sending = Sending::new(4096, &Budget::new(1 << 20));
        sending.wrote(1 << 20);
        assert_eq!((first(4096), sending.widen(), sending.narrow()), (4096, None, None));
    }
}
