//! hot path
//!
//! Request rates per key: a leaky bucket, as in `lua-resty-limit-traffic`.
//!
//! One time is stored per key: when all requests admitted so far will have drained. A request moves
//! it on by one interval, and is admitted ahead of it by up to the burst. Exact under concurrency.
//! If a key finds no free slot, the key that drains first is evicted.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::{CounterKey, Table};

/// The paces of a node.
#[derive(Debug, Default)]
pub struct Paces {
    table: Table,
    /// Unix milliseconds of time 0, some time before the first request.
    epoch_ms: AtomicU64,
}

/// A rate and a burst, converted to microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// As it was configured: requests per second, and requests.
    pub rate: f64,
    pub burst: f64,
    /// Microseconds per request.
    interval: u64,
    /// Microseconds by which a request may be early.
    ahead: u64,
}

/// About two years in microseconds, the maximum of intervals and bursts.
const LONGEST: u64 = 1 << 46;
/// Tolerance, in microseconds. A time further in the future than burst and tolerance allow was
/// written before the clock was set back.
const SKEW: u64 = 10_000_000;

impl Pace {
    /// Converts a rate above 0, in requests per second, and a burst in requests. Rounded down to
    /// the microsecond, in favour of the requests.
    pub fn new(rate: f64, burst: f64) -> Pace {
        let interval = ((1e6 / rate) as u64).clamp(1, LONGEST);
        Pace { rate, burst, interval, ahead: ((burst * interval as f64) as u64).min(LONGEST) }
    }

    /// As [`Pace::new`] in a constant, with the microseconds of an interval and of the burst.
    #[cfg(any(test, feature = "testing"))]
    pub const fn of(rate: f64, burst: f64, interval: u64, ahead: u64) -> Pace {
        Pace { rate, burst, interval, ahead }
    }
}

impl Paces {
    pub fn over(table: Table) -> Paces {
        Paces { table, epoch_ms: AtomicU64::new(0) }
    }

    /// Admits a request at `now_ms` ([`crate::World::steady_ms`]) if the burst allows it, and
    /// returns the microseconds it has to wait. A rejected request changes nothing.
    #[inline]
    pub fn take(&self, key: CounterKey, pace: Pace, now_ms: u64) -> Option<u64> {
        let now = now_ms.saturating_sub(self.epoch(now_ms)) * 1000;
        let change = |drained: u64| {
            // A new key has nothing to drain.
            let known = drained != 0 && drained <= now + pace.ahead + SKEW;
            let next = if known { (drained + pace.interval).max(now) } else { now };
            (next - now <= pace.ahead).then_some(next)
        };
        // With eviction, there is always a slot.
        let (_, next) = self.table.update(key, true, change).unwrap_or((0, Some(now)));
        Some(next?.saturating_sub(now))
    }

    /// Time 0 is a day before the first request, so that a clock set back a little is harmless.
    #[inline]
    fn epoch(&self, now_ms: u64) -> u64 {
        match self.epoch_ms.load(Relaxed) {
            0 => {
                let epoch = now_ms.saturating_sub(86_400_000).max(1);
                self.epoch_ms.compare_exchange(0, epoch, Relaxed, Relaxed).err().unwrap_or(epoch)
            }
            epoch => epoch,
        }
    }
}

impl Deref for Paces {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::counters::platform::SLOTS;

    const NOW: u64 = 1_700_000_000_000;

    fn key(paces: &Paces, number: u64) -> CounterKey {
        paces.key().number(number).finish()
    }

    #[test]
    fn requests_drain_at_their_rate_and_wait_within_the_burst() {
        let paces = Paces::default();
        let (a, pace) = (key(&paces, 1), Pace::new(2.0, 2.0));
        for expected in [Some(0), Some(500_000), Some(1_000_000), None, None] {
            assert_eq!(paces.take(a, pace, NOW), expected);
        }
        assert_eq!(paces.take(a, pace, NOW + 499), None);
        assert_eq!(paces.take(a, pace, NOW + 500), Some(1_000_000));
        assert_eq!(paces.take(a, pace, NOW + 1_900), Some(100_000));
        assert_eq!(paces.take(a, pace, NOW + 60_000), Some(0));
        assert_eq!(paces.take(key(&paces, 2), pace, NOW), Some(0));
    }

    #[test]
    fn bursts_and_rates_may_be_fractions_or_huge() {
        let paces = Paces::default();
        let tenth = Pace::new(10.0, 0.1);
        assert_eq!(paces.take(key(&paces, 1), tenth, NOW), Some(0));
        assert_eq!(paces.take(key(&paces, 1), tenth, NOW + 89), None);
        assert_eq!(paces.take(key(&paces, 1), tenth, NOW + 90), Some(10_000));
        let rare = Pace::new(1e-12, 1e300);
        assert_eq!(paces.take(key(&paces, 2), rare, NOW), Some(0));
        assert_eq!(paces.take(key(&paces, 2), rare, NOW), Some(LONGEST));
        assert_eq!(paces.take(key(&paces, 2), rare, NOW), None);
        let many = Pace::new(1e12, 0.0);
        assert_eq!((many.interval, many.ahead), (1, 0));
        let third = Pace::new(3.0, 1.0);
        assert_eq!((third.interval, third.ahead), (333_333, 333_333));
    }

    #[test]
    fn a_clock_set_back_does_not_block_requests() {
        let paces = Paces::default();
        let (a, pace) = (key(&paces, 1), Pace::new(1.0, 0.0));
        assert_eq!(paces.take(a, pace, NOW), Some(0));
        // Workers' clocks differ slightly: the stored time is not reset for that.
        assert_eq!(paces.take(a, pace, NOW - 5), None);
        assert_eq!(paces.take(a, pace, NOW - 3_600_000), Some(0));
        assert_eq!(paces.take(a, pace, NOW - 100_000_000), Some(0));
    }

    #[test]
    fn the_key_that_drains_first_is_evicted() {
        let paces = Paces::over(Table::new(0));
        let pace = Pace::new(1.0, 0.0);
        for number in 0..=SLOTS as u64 {
            assert_eq!(paces.take(key(&paces, number), pace, NOW + number), Some(0));
        }
        assert_eq!(paces.evicted(), 1);
        assert_eq!(paces.take(key(&paces, 1), pace, NOW + 20), None);
        assert_eq!(paces.take(key(&paces, 0), pace, NOW + 20), Some(0));
    }

    #[test]
    fn admissions_match_the_drain_rate_across_threads() {
        let paces = Paces::default();
        let (a, pace) = (key(&paces, 1), Pace::new(100.0, 4.0));
        let let_in = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for ms in 0..2_000 {
                        for _ in 0..3 {
                            let_in.fetch_add(u64::from(paces.take(a, pace, NOW + ms).is_some()), Relaxed);
                        }
                    }
                });
            }
        });
        // One at the start, one per ten milliseconds, and the burst.
        let most = 1 + 199 + 4;
        let let_in = let_in.into_inner();
        assert_eq!(let_in, most);
    }
}
