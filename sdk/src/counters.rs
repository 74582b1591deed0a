//! hot path
//!
//! Counts shared by all workers of the node: requests per time window ([`Counters`]), request rates
//! ([`Paces`]), requests in flight ([`Gauges`]) and outcomes of requests ([`Tallies`]). The rest of
//! this file is about windows.
//!
//! A counter belongs to a key and counts up to a limit within a window. A window begins with the
//! first hit after the previous one ended. Counting is exact under concurrency: of `n` hits in a
//! window with limit `l`, exactly `min(n, l)` are allowed. Nothing here locks, waits or allocates.
//!
//! Memory is fixed. If a key finds no free slot, the counter whose window ends first is evicted,
//! and the eviction is counted ([`Counters::evicted`]).
//!
//! Keys are identified by two hashes with random seeds, together more than 76 bits: one selects the
//! bucket, the other is compared. The odds that two live keys collide are about one in 10^12 with a
//! full table, and a client cannot aim for a collision.

use std::ops::Deref;

use model::Invalid;

/// The counters of a node.
#[derive(Debug, Default)]
pub struct Counters {
    table: Table,
    groups: groups::Groups,
}

/// The outcome of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub allowed: bool,
    /// Hits left in this window.
    pub remaining: u64,
    /// Milliseconds until the window ends.
    pub reset_ms: u64,
}

impl Counters {
    pub fn over(table: Table) -> Counters {
        Counters { table, groups: groups::Groups::default() }
    }

    /// As [`Table::new`].
    pub fn new(bytes: usize) -> Counters {
        Counters::over(Table::new(bytes))
    }

    /// As [`Table::sized`].
    ///
    /// # Errors
    /// A size that is too large.
    pub fn sized(bytes: u64) -> Result<Counters, Invalid> {
        Table::sized(bytes).map(Counters::over)
    }

    /// Counts a hit: takes `cost` of the `limit` if that much is left, else takes nothing. A window
    /// that begins with this hit ends `window_ms` after `now_ms` ([`crate::World::steady_ms`]).
    #[inline]
    pub fn take(&self, key: CounterKey, cost: u32, limit: u64, window_ms: u64, now_ms: u64) -> Taken {
        let hit = Hit { cost, limit, window_ms, now_ms };
        self.table.bucket(key).take(key.tag(), hit, |how| self.table.placed(how))
    }

    /// The count of a key and the milliseconds until its window ends; changes nothing.
    #[inline]
    pub fn peek(&self, key: CounterKey, now_ms: u64) -> (u64, u64) {
        let bucket = self.table.bucket(key);
        bucket.find(key.tag()).and_then(|slot| bucket.peek(slot, key.tag(), now_ms)).unwrap_or((0, 0))
    }

    /// Settings that several plugin instances share by name; see [`Groups`].
    pub fn groups(&self) -> &Groups {
        &self.groups
    }
}

impl Deref for Counters {
    type Target = Table;

    #[inline]
    fn deref(&self) -> &Table {
        &self.table
    }
}

mod bucket;
mod gauges;
mod groups;
mod paces;
mod table;
mod tallies;

/// The primitives that buckets use; the loom model substitutes its own.
mod platform {
    pub(super) use std::hint::spin_loop as spin;
    pub(super) use std::sync::atomic::AtomicU64;

    /// Slots of a bucket: with the head, the tags fill two cache lines.
    pub(super) const SLOTS: usize = 15;
}

pub use gauges::{Entered, Gauges};
pub use groups::{Group, Groups};
pub use paces::{Pace, Paces};
pub use table::{CounterKey, Keying, Table};
pub use tallies::Tallies;

use bucket::Hit;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::platform::SLOTS;
    use super::*;

    fn key(counters: &Counters, name: &str) -> CounterKey {
        counters.key().part(name.as_bytes()).finish()
    }

    fn taken(allowed: bool, remaining: u64, reset_ms: u64) -> Taken {
        Taken { allowed, remaining, reset_ms }
    }

    #[test]
    fn a_window_begins_with_its_first_hit_and_lets_the_limit_through() {
        let counters = Counters::new(1 << 12);
        let a = key(&counters, "a");
        assert_eq!(counters.take(a, 1, 2, 1000, 5_000), taken(true, 1, 1000));
        assert_eq!(counters.take(a, 1, 2, 1000, 5_400), taken(true, 0, 600));
        assert_eq!(counters.take(a, 1, 2, 1000, 5_999), taken(false, 0, 1));
        assert_eq!(counters.take(a, 1, 2, 1000, 6_000), taken(true, 1, 1000));
        assert_eq!(counters.peek(a, 6_100), (1, 900));
        assert_eq!(counters.peek(a, 7_000), (0, 0));
        assert_eq!(counters.peek(key(&counters, "b"), 7_000), (0, 0));
    }

    #[test]
    fn counters_are_spread_over_the_whole_table() {
        let counters = Counters::new(1 << 16);
        assert!((60_000..=1 << 16).contains(&counters.capacity_bytes()), "{}", counters.capacity_bytes());
        // Two in five slots are taken; a single bucket may be full all the same.
        let names: Vec<_> = (0..1_000).map(|n| format!("key-{n}")).collect();
        for name in &names {
            counters.take(key(&counters, name), 1, 9, 1_000, 0);
        }
        let kept = names.iter().filter(|name| counters.peek(key(&counters, name), 0).0 == 1).count();
        assert!(kept >= 990, "{kept}");
        assert!(counters.evicted() <= 10, "{}", counters.evicted());
    }

    #[test]
    fn impossible_sizes_are_rejected() {
        assert_eq!(
            Counters::sized(1 << 14).unwrap().capacity_bytes(),
            Counters::new(1 << 14).capacity_bytes()
        );
        for bytes in [Table::MOST + 1, 1 << 50, u64::MAX] {
            let invalid = Counters::sized(bytes).unwrap_err();
            assert_eq!(invalid.expected.as_deref(), Some("a size of at most 32g"));
            assert_eq!(invalid.got.as_deref(), Some(&*bytes.to_string()));
        }
    }

    #[test]
    fn a_cost_is_taken_completely_or_not_at_all() {
        let counters = Counters::new(1 << 12);
        let a = key(&counters, "a");
        assert_eq!(counters.take(a, 3, 5, 1000, 0), taken(true, 2, 1000));
        assert_eq!(counters.take(a, 3, 5, 1000, 0), taken(false, 2, 1000));
        assert_eq!(counters.take(a, 2, 5, 1000, 0), taken(true, 0, 1000));
        assert_eq!(counters.take(key(&counters, "b"), 9, 5, 1000, 0), taken(false, 5, 1000));
        assert_eq!(counters.take(a, 0, 5, 1000, 0), taken(true, 0, 1000));
    }

    #[test]
    fn limits_and_windows_may_be_huge() {
        let counters = Counters::new(1 << 12);
        let a = key(&counters, "a");
        let limit = 2_000_000_000_000;
        assert_eq!(counters.take(a, 1, limit, 60_000, 1), taken(true, limit - 1, 60_000));
        let b = key(&counters, "b");
        let most = counters.take(b, 1, u64::MAX, u64::MAX, 1_800_000_000_000);
        assert_eq!((most.allowed, most.remaining), (true, u64::MAX - 1));
        assert!(most.reset_ms > 1 << 46);
    }

    #[test]
    fn key_parts_are_delimited() {
        let counters = Counters::new(0);
        let key = |parts: &[&str]| {
            parts.iter().fold(counters.key(), |keying, part| keying.part(part.as_bytes())).finish()
        };
        assert_ne!(key(&["a", "bc"]), key(&["ab", "c"]));
        assert_ne!(key(&["a"]), key(&["a", ""]));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        let scope = key(&["route", "1"]);
        assert_ne!(counters.key().under(scope).finish(), counters.key().under(key(&["route", "2"])).finish());
        // Another table has other seeds.
        assert_ne!(Counters::new(0).key().part(b"a").finish(), key(&["a"]));
    }

    #[test]
    fn memory_is_bounded_and_expired_slots_are_reused() {
        let counters = Counters::new(0);
        assert_eq!(counters.free_bytes(), counters.capacity_bytes());
        for name in 0..SLOTS as u64 {
            let key = counters.key().number(name).finish();
            assert!(counters.take(key, 1, 1, 1000 + name, 0).allowed);
        }
        assert_eq!((counters.evicted(), counters.free_bytes()), (0, 0));
        // All windows have ended: slots are reused.
        let late = counters.key().number(100).finish();
        assert!(counters.take(late, 1, 1, 1000, 2_000).allowed);
        assert!(!counters.take(late, 1, 1, 1000, 2_000).allowed);
        assert_eq!(counters.evicted(), 0);
        // All windows are open: the one that ends first is evicted and counted.
        let counters = Counters::new(0);
        let keys: Vec<_> = (0..=SLOTS as u64).map(|name| counters.key().number(name).finish()).collect();
        for (window, &key) in keys.iter().enumerate() {
            counters.take(key, 1, 1, 1000 + window as u64, 0);
        }
        assert_eq!(counters.evicted(), 1);
        assert_eq!(counters.peek(keys[0], 0), (0, 0));
        assert_eq!(counters.peek(keys[SLOTS], 0).0, 1);
    }

    /// Runs `body(thread)` on four threads that start together.
    fn race(body: impl Fn(u64) + Sync) {
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    body(thread);
                });
            }
        });
    }

    #[test]
    fn counting_is_exact_across_threads_and_windows() {
        let counters = Counters::new(1 << 14);
        let a = key(&counters, "a");
        // Each thread advances the same clock at its own pace, so windows roll over concurrently.
        // The end of a window identifies the window a hit was counted in.
        const WINDOWS: usize = 2_000;
        const LIMIT: usize = 20;
        let hits: Vec<AtomicUsize> = (0..WINDOWS + 2).map(|_| AtomicUsize::new(0)).collect();
        let allowed: Vec<AtomicUsize> = (0..WINDOWS + 2).map(|_| AtomicUsize::new(0)).collect();
        race(|_| {
            for window in 0..WINDOWS as u64 {
                for hit in 0..30 {
                    let now = window * 1000 + hit;
                    let taken = counters.take(a, 1, LIMIT as u64, 1000, now);
                    let ends = ((now + taken.reset_ms) / 1000) as usize;
                    hits[ends].fetch_add(1, Relaxed);
                    allowed[ends].fetch_add(usize::from(taken.allowed), Relaxed);
                }
            }
        });
        let (hits, allowed): (Vec<_>, Vec<_>) =
            hits.iter().zip(&allowed).map(|(a, b)| (a.load(Relaxed), b.load(Relaxed))).unzip();
        assert_eq!(hits.iter().sum::<usize>(), 4 * 30 * WINDOWS);
        let expected: Vec<_> = hits.iter().map(|&hits| hits.min(LIMIT)).collect();
        for (window, (allowed, expected)) in allowed.iter().zip(expected).enumerate() {
            assert_eq!(*allowed, expected, "window {window} of {} hits", hits[window]);
        }
        assert!(allowed.iter().filter(|&&allowed| allowed == LIMIT).count() > WINDOWS / 2);
    }

    #[test]
    fn a_new_key_is_counted_once_across_threads() {
        // One bucket only, so that inserts, evictions of expired keys and hits collide.
        let counters = Counters::new(0);
        const ROUNDS: u64 = 3_000;
        const KEYS: u64 = 5;
        const LIMIT: u64 = 6;
        let allowed: Vec<AtomicUsize> = (0..ROUNDS * KEYS).map(|_| AtomicUsize::new(0)).collect();
        let arrived: Vec<AtomicUsize> = (0..ROUNDS).map(|_| AtomicUsize::new(0)).collect();
        race(|thread| {
            for round in 0..ROUNDS {
                // Windows end between the rounds, so each round evicts counters of earlier ones.
                let now = (round + 1) * 1000;
                arrived[round as usize].fetch_add(1, Relaxed);
                while arrived[round as usize].load(Relaxed) < 4 {
                    std::thread::yield_now();
                }
                for hit in 0..3 * KEYS {
                    let index = round * KEYS + (hit + thread) % KEYS;
                    let key = counters.key().number(index).finish();
                    if counters.take(key, 1, LIMIT, 1000, now).allowed {
                        allowed[index as usize].fetch_add(1, Relaxed);
                    }
                }
            }
        });
        for (index, allowed) in allowed.iter().enumerate() {
            assert_eq!(allowed.load(Relaxed), LIMIT as usize, "key {index}");
        }
        assert_eq!(counters.evicted(), 0);
    }

    #[test]
    fn a_full_bucket_stays_consistent_under_contention() {
        let counters = Counters::new(0);
        race(|thread| {
            for round in 0..20_000u64 {
                let key = counters.key().number((round * 7 + thread) % 40).finish();
                let taken = counters.take(key, 1, 3, 50 + round % 9, round);
                assert!(taken.remaining < 3 || !taken.allowed);
                assert!(taken.reset_ms <= 20_100);
            }
        });
        assert!(counters.evicted() > 0);
    }
}
