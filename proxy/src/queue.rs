//! Which connections have waited too long with the kernel to be served.
//!
//! A worker that is asked for more than it can do finds the kernel's queue full and old: each
//! connection it takes has waited for all those before it, and its client gives up before or soon
//! after. Serving fewer of them sooner serves more in time. The rule is CoDel's (RFC 8289): a
//! queue that was old for a moment is a burst and is served; one that stays old is shortened from
//! its old end. It is for what waits to be accepted; clients that keep their connections wait for
//! their answers, and so bound themselves.

use std::time::Duration;

/// A queue that is old for so long is not going to empty by itself.
const PATIENCE_MS: u64 = 200;
/// The kernel is asked for ages only after this many connections without finding the queue empty.
const UNASKED: u32 = 8;

/// The state of one listener's queue.
#[derive(Debug)]
pub(crate) struct Queue {
    limit_ms: u64,
    /// Connections taken since it was last empty.
    in_a_row: u32,
    /// When the first of an unbroken row of old connections was taken.
    old_since: Option<u64>,
}

impl Queue {
    /// Zero takes every connection, however old.
    pub(crate) fn new(limit: Duration) -> Queue {
        Queue { limit_ms: limit.as_millis() as u64, in_a_row: 0, old_since: None }
    }

    /// Nothing waits, or what waits does so for another reason than a busy worker.
    pub(crate) fn emptied(&mut self) {
        self.in_a_row = 0;
        self.old_since = None;
    }

    /// Whether a connection just taken is one to refuse. `waited_ms` tells its age.
    pub(crate) fn refuses(&mut self, waited_ms: impl FnOnce() -> u64, now_ms: u64) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row <= UNASKED || self.limit_ms == 0 {
            return false;
        }
        if waited_ms() <= self.limit_ms {
            self.old_since = None;
            return false;
        }
        now_ms >= *self.old_since.get_or_insert(now_ms) + PATIENCE_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue from which enough connections have been taken for ages to count.
    fn long() -> Queue {
        let mut queue = Queue::new(Duration::from_millis(250));
        for _ in 0..UNASKED {
            assert!(!queue.refuses(|| unreachable!("not asked yet"), 0));
        }
        queue
    }

    #[test]
    fn a_burst_is_served_and_a_standing_queue_shortened() {
        let mut queue = long();
        assert!(!queue.refuses(|| 300, 1000), "it was not old before");
        assert!(!queue.refuses(|| 300, 1199));
        assert!(queue.refuses(|| 300, 1200));
        assert!(!queue.refuses(|| 250, 1210), "young enough");
        assert!(!queue.refuses(|| 300, 1220), "and again from there on");
        assert!(queue.refuses(|| 300, 1420));
    }

    #[test]
    fn an_empty_queue_forgets() {
        let mut queue = long();
        assert!(!queue.refuses(|| 300, 1000));
        queue.emptied();
        for turn in 0..u64::from(UNASKED) {
            assert!(!queue.refuses(|| 300, 5000 + turn));
        }
        assert!(!queue.refuses(|| 300, 5100), "old from now on");
    }

    #[test]
    fn no_limit_asks_nothing() {
        let mut queue = Queue::new(Duration::ZERO);
        for turn in 0..1000 {
            assert!(!queue.refuses(|| unreachable!("never asked"), turn));
        }
    }
}
