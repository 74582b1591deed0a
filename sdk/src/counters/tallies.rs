//! hot path
//!
//! Counts and times that are kept until they are cleared.
//!
//! If a key finds no free slot, the key that was changed least recently is evicted.

use std::ops::Deref;

use super::{CounterKey, Table};

/// The tallies of a node. A key holds a count or a time.
#[derive(Debug, Default)]
pub struct Tallies(Table);

/// Bits of a count. The bits above hold the time of the last change in units of 256 seconds, so
/// that the smallest number is the oldest.
const COUNT: u32 = 24;
const MOST: u64 = (1 << COUNT) - 1;

impl Tallies {
    pub fn over(table: Table) -> Tallies {
        Tallies(table)
    }

    /// Adds one at this time, in seconds of the monotonic clock, and returns the count: at most
    /// 2^24 - 1, about 16.8 million.
    #[inline]
    pub fn add(&self, key: CounterKey, now_s: u64) -> u64 {
        let change = |number: u64| Some(stamp(now_s) | ((number & MOST) + 1).min(MOST));
        // With eviction, there is always a slot.
        self.0.update(key, true, change).ok().and_then(|(_, after)| after).map_or(0, |number| number & MOST)
    }

    #[inline]
    pub fn count(&self, key: CounterKey) -> u64 {
        self.0.number(key) & MOST
    }

    /// Stores the time.
    #[inline]
    pub fn set_time(&self, key: CounterKey, now_s: u64) {
        // Never 0; the last eight bits are those that the stamp lacks.
        let _ = self.0.update(key, true, |_| Some(stamp(now_s) | 1 << 8 | now_s & 0xff));
    }

    #[inline]
    pub fn time(&self, key: CounterKey) -> Option<u64> {
        let number = self.0.number(key);
        (number != 0).then_some(number >> COUNT << 8 | number & 0xff)
    }

    /// Clears the key's count or time.
    #[inline]
    pub fn clear(&self, key: CounterKey) {
        let _ = self.0.update(key, true, |number| (number != 0).then_some(0));
    }
}

fn stamp(now_s: u64) -> u64 {
    (now_s >> 8 & MOST) << COUNT
}

impl Deref for Tallies {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::platform::SLOTS;

    const NOW: u64 = 1_700_000_123;

    #[test]
    fn counts_and_times_stay_until_they_are_cleared() {
        let tallies = Tallies::default();
        let (count, time) = (tallies.key().part(b"c").finish(), tallies.key().part(b"t").finish());
        assert_eq!((tallies.count(count), tallies.time(time)), (0, None));
        assert_eq!((tallies.add(count, NOW), tallies.add(count, NOW + 100_000)), (1, 2));
        for now in [NOW, NOW + 1, NOW + 999_999, 256] {
            tallies.set_time(time, now);
            assert_eq!((tallies.time(time), tallies.count(count)), (Some(now), 2));
        }
        tallies.clear(count);
        tallies.clear(time);
        assert_eq!((tallies.count(count), tallies.time(time), tallies.add(count, NOW)), (0, None, 1));
    }

    #[test]
    fn a_count_saturates() {
        let tallies = Tallies::default();
        let key = tallies.key().finish();
        tallies.0.update(key, true, |_| Some(MOST - 1)).unwrap();
        assert_eq!((tallies.add(key, NOW), tallies.add(key, NOW)), (MOST, MOST));
    }

    #[test]
    fn the_oldest_key_is_evicted() {
        let tallies = Tallies::over(Table::new(0));
        let key = |number: u64| tallies.key().number(number).finish();
        for number in 0..SLOTS as u64 {
            tallies.add(key(number), NOW + 256 * number);
        }
        tallies.add(key(0), NOW + 256 * 20);
        tallies.add(key(99), NOW + 256 * 21);
        assert_eq!((tallies.count(key(0)), tallies.count(key(1)), tallies.evicted()), (2, 0, 1));
    }

    #[test]
    fn no_addition_is_lost() {
        let tallies = Tallies::default();
        let key = tallies.key().finish();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| _ = tallies.add(key, NOW)));
            }
        });
        assert_eq!(tallies.count(key), 40_000);
    }
}
