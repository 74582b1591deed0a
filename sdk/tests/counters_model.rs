//! The counters' buckets under every interleaving of two threads.
//!
//! Loom runs each scenario once for every order of the threads' atomic steps, up to a bound on
//! forced switches, under the C11 memory model. The bucket is the production source file; only its
//! atomics and the number of slots are replaced.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, reason = "a test")]

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

#[path = "../src/counters/bucket.rs"]
mod bucket;

use bucket::{Bucket, Hit, Placed, Words};

mod platform {
    pub(super) use loom::sync::atomic::AtomicU64;
    pub(super) use loom::thread::yield_now as spin;

    pub(super) const SLOTS: usize = 2;
}

/// As in `sdk::counters`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub allowed: bool,
    pub remaining: u64,
    pub reset_ms: u64,
}

/// A bucket shared by threads.
#[derive(Clone)]
struct Shared(Arc<Words>);

impl Shared {
    fn new() -> Shared {
        Shared(Arc::new(std::array::from_fn(|_| platform::AtomicU64::new(0))))
    }

    /// One hit of the key `tag`: at `now_ms`, in windows of 1,000 ms with this limit.
    fn hit(&self, tag: u64, limit: u64, now_ms: u64) -> Taken {
        self.hit_and_see(tag, limit, now_ms).0
    }

    /// The count of the key's window.
    fn count(&self, tag: u64, now_ms: u64) -> u64 {
        let bucket = Bucket(&self.0);
        bucket.find(tag).and_then(|slot| bucket.peek(slot, tag, now_ms)).map_or(0, |(count, _)| count)
    }

    /// As [`Shared::hit`], and whether another key's open window was evicted.
    fn hit_and_see(&self, tag: u64, limit: u64, now_ms: u64) -> (Taken, bool) {
        let mut evicted = false;
        let hit = Hit { cost: 1, limit, window_ms: 1000, now_ms };
        let taken = Bucket(&self.0).take(tag, hit, |how| evicted |= how == Placed::Evicted);
        (taken, evicted)
    }
}

impl Shared {
    /// Counts one in for the key, if fewer than `most` are in. `None`: there is no slot.
    fn enter(&self, tag: u64, most: u64) -> Option<bool> {
        let changed = Bucket(&self.0).update(tag, false, |n| (n < most).then_some(n + 1), |_| {});
        changed.ok().map(|(_, after)| after.is_some())
    }

    fn leave(&self, tag: u64) {
        Bucket(&self.0).update(tag, false, |n| n.checked_sub(1), |_| {}).expect("a slot of its own");
    }

    fn within(&self, tag: u64) -> u64 {
        let bucket = Bucket(&self.0);
        bucket.find(tag).and_then(|slot| bucket.number(slot, tag)).unwrap_or(0)
    }
}

/// Runs `scenario` in every order with at most two forced switches between threads.
fn every_order(scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(2);
    model.check(scenario);
}

/// Runs both concurrently; returns their results.
fn both<A: 'static, B>(one: impl FnOnce() -> A + 'static, other: impl FnOnce() -> B) -> (A, B) {
    let one = thread::spawn(one);
    let other = other();
    (one.join().expect("no panic"), other)
}

#[test]
fn a_new_key_gets_one_slot_and_every_hit_counts() {
    every_order(|| {
        let bucket = Shared::new();
        let here = bucket.clone();
        let (a, b) = both(move || here.hit(7, 1, 10), || bucket.hit(7, 1, 10));
        assert_eq!(u8::from(a.allowed) + u8::from(b.allowed), 1);
        assert!(!bucket.hit(7, 1, 10).allowed);
    });
}

#[test]
fn an_ended_window_is_restarted_once() {
    every_order(|| {
        let bucket = Shared::new();
        assert!(bucket.hit(7, 1, 10).allowed);
        let here = bucket.clone();
        let (a, b) = both(move || here.hit(7, 1, 2_000), || bucket.hit(7, 1, 2_000));
        assert_eq!(u8::from(a.allowed) + u8::from(b.allowed), 1);
    });
}

#[test]
fn a_late_hit_does_not_carry_an_old_count_into_a_new_window() {
    every_order(|| {
        let bucket = Shared::new();
        assert_eq!(bucket.hit(7, 5, 10).remaining, 4);
        let here = bucket.clone();
        // One thread's clock is behind: it counts in the old window or, with the other, in the new
        // one.
        let (old, new) = both(move || here.hit(7, 5, 500), || bucket.hit(7, 5, 2_000));
        assert!(old.allowed && new.allowed);
        let old_was_in_new = old.reset_ms > 1_000;
        assert_eq!(bucket.count(7, 2_000), 1 + u64::from(old_was_in_new));
    });
}

#[test]
fn two_new_keys_do_not_take_each_others_slot() {
    every_order(|| {
        let bucket = Shared::new();
        let here = bucket.clone();
        let (a, b) = both(move || here.hit_and_see(7, 1, 10), || bucket.hit_and_see(8, 1, 10));
        assert!(a.0.allowed && b.0.allowed);
        assert!(!a.1 && !b.1, "there was room for both");
        assert!(!bucket.hit(7, 1, 10).allowed);
        assert!(!bucket.hit(8, 1, 10).allowed);
    });
}

#[test]
fn a_hit_during_the_eviction_of_its_key_counts_for_its_key_only() {
    every_order(|| {
        let bucket = Shared::new();
        assert!(bucket.hit(7, 9, 10).allowed);
        assert!(bucket.hit(8, 9, 500).allowed);
        let here = bucket.clone();
        // Both slots are in use: key 9 evicts key 7, whose window ends first.
        let (seven, (nine, _)) = both(move || here.hit(7, 9, 600), || bucket.hit_and_see(9, 1, 600));
        assert!(seven.allowed);
        assert!(nine.allowed, "a new key starts at 0, even in a reused slot");
    });
}

#[test]
fn the_limit_bounds_concurrent_entries() {
    every_order(|| {
        let bucket = Shared::new();
        let here = bucket.clone();
        let (a, b) = both(move || here.enter(7, 1), || bucket.enter(7, 1));
        assert_eq!((a == Some(true)) as u8 + (b == Some(true)) as u8, 1);
        assert_eq!(bucket.within(7), 1);
    });
}

#[test]
fn keys_with_entries_are_never_evicted() {
    every_order(|| {
        let bucket = Shared::new();
        assert_eq!(bucket.enter(7, 9), Some(true));
        bucket.leave(7);
        assert_eq!(bucket.enter(8, 9), Some(true));
        let here = bucket.clone();
        // Key 7 comes back while key 9 wants the slot it left at 0: one of them finds no slot, and
        // the other is counted.
        let (seven, nine) = both(move || here.enter(7, 9), || bucket.enter(9, 9));
        assert!(seven.is_some() || nine.is_some());
        assert_eq!(bucket.within(7), u64::from(seven.is_some()));
        assert_eq!(bucket.within(9), u64::from(nine.is_some()));
        assert_eq!(bucket.within(8), 1);
    });
}

#[test]
fn leaving_and_entering_are_both_counted() {
    every_order(|| {
        let bucket = Shared::new();
        assert_eq!(bucket.enter(7, 9), Some(true));
        let here = bucket.clone();
        both(move || here.leave(7), || bucket.enter(7, 9));
        assert_eq!(bucket.within(7), 1);
    });
}
