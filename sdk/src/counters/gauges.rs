//! hot path
//!
//! Requests in flight per key.
//!
//! Exact under concurrency: with a limit `l`, at most `l` requests are in flight at any time. A key
//! with requests in flight is never evicted; a key at 0 costs nothing.

use std::ops::Deref;

use super::{CounterKey, Table};

/// The gauges of a node.
#[derive(Debug, Default)]
pub struct Gauges(Table);

/// The result of [`Gauges::enter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// The number of requests in flight, this one included. It must [`Gauges::leave`].
    In(u64),
    /// The limit is reached.
    Rejected,
    /// The table has no slot for another key.
    NoRoom,
}

impl Gauges {
    pub fn over(table: Table) -> Gauges {
        Gauges(table)
    }

    /// Counts a request in, unless `most` are in flight already.
    #[inline]
    pub fn enter(&self, key: CounterKey, most: u64) -> Entered {
        match self.0.update(key, false, |within| (within < most).then_some(within + 1)) {
            Ok((_, Some(within))) => Entered::In(within),
            Ok((_, None)) => Entered::Rejected,
            Err(_) => Entered::NoRoom,
        }
    }

    /// Counts out a request that was admitted.
    #[inline]
    pub fn leave(&self, key: CounterKey) {
        // A key with requests in flight keeps its slot, so this cannot fail.
        let _ = self.0.update(key, false, |within| within.checked_sub(1));
    }

    /// Requests in flight.
    pub fn within(&self, key: CounterKey) -> u64 {
        self.0.number(key)
    }
}

impl Deref for Gauges {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::counters::platform::SLOTS;

    #[test]
    fn the_limit_bounds_concurrent_requests() {
        let gauges = Gauges::default();
        let (a, b) = (gauges.key().part(b"a").finish(), gauges.key().part(b"b").finish());
        assert_eq!((gauges.enter(a, 2), gauges.enter(a, 2)), (Entered::In(1), Entered::In(2)));
        assert_eq!((gauges.enter(a, 2), gauges.enter(b, 2)), (Entered::Rejected, Entered::In(1)));
        gauges.leave(a);
        assert_eq!((gauges.enter(a, 2), gauges.within(a)), (Entered::In(2), 2));
        gauges.leave(a);
        gauges.leave(a);
        gauges.leave(a);
        assert_eq!((gauges.within(a), gauges.within(b)), (0, 1));
    }

    #[test]
    fn only_keys_at_zero_are_evicted() {
        let gauges = Gauges::over(Table::new(0));
        let key = |number: u64| gauges.key().number(number).finish();
        for number in 0..SLOTS as u64 {
            assert_eq!(gauges.enter(key(number), 9), Entered::In(1));
        }
        assert_eq!(gauges.enter(key(99), 9), Entered::NoRoom);
        gauges.leave(key(99));
        gauges.leave(key(3));
        assert_eq!((gauges.enter(key(99), 9), gauges.within(key(3))), (Entered::In(1), 0));
        assert_eq!((gauges.evicted(), gauges.free_bytes()), (0, 0));
    }

    #[test]
    fn counting_is_exact_across_threads_and_changing_keys() {
        // One bucket and more keys than it has slots, so that they evict each other all the time.
        let gauges = Gauges::over(Table::new(0));
        const KEYS: u64 = 20;
        const MOST: u64 = 2;
        let within: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let entered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (gauges, within, entered) = (&gauges, &within, &entered);
                scope.spawn(move || {
                    for round in 0..20_000u64 {
                        let number = (round * 7 + thread * 3) % KEYS;
                        let key = gauges.key().number(number).finish();
                        if let Entered::In(count) = gauges.enter(key, MOST) {
                            assert!((1..=MOST).contains(&count));
                            let now = within[number as usize].fetch_add(1, SeqCst) + 1;
                            assert!(now <= MOST, "{now} in flight at once");
                            entered.fetch_add(1, SeqCst);
                            within[number as usize].fetch_sub(1, SeqCst);
                            gauges.leave(key);
                        }
                    }
                });
            }
        });
        assert!(entered.load(SeqCst) > 10_000);
        for number in 0..KEYS {
            assert_eq!(gauges.within(gauges.key().number(number).finish()), 0);
        }
    }
}
