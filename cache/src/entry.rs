//! hot path
//!
//! The record of a stored response.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use super::Content;

/// A zone's record of a stored response.
#[derive(Debug)]
pub struct Entry {
    pub(super) key: Box<[u8]>,
    pub(super) variant: Box<[u8]>,
    /// Milliseconds on the clock of the process that stored it; on disk, since the Unix epoch.
    pub stored_ms: u64,
    pub expires_ms: u64,
    /// Age of the response in seconds when it was received.
    pub age: u32,
    pub terms: Terms,
    /// When its last revalidation in the background began; 0 before that.
    pub(super) refreshed_ms: AtomicU64,
    /// `None` if it is in a file.
    pub(super) content: Option<Content>,
    pub(super) weight: u64,
    /// How many more passes of the eviction hand it survives.
    pub(super) chances: AtomicU8,
}

/// The conditions under which an entry is used, set by the plugin. Entries in files have none: they are
/// used while they are fresh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// Every use is validated with the origin first.
    pub validate: bool,
    /// It is never used stale.
    pub no_stale: bool,
    /// Seconds after `expires_ms` in which it is used while it is revalidated in the background.
    pub while_revalidate: u32,
    /// Seconds after `expires_ms` in which it is used if the origin fails.
    pub if_error: u32,
}

/// How far the clocks of storing and reading processes may differ.
const SKEW_MS: u64 = 5_000;

impl Entry {
    pub(super) fn new(new: EntryHead, terms: Terms, content: Option<Content>, weight: u64) -> Entry {
        let EntryHead { key, variant, stored_ms, expires_ms, age } = new;
        Entry {
            key,
            variant,
            stored_ms,
            expires_ms,
            age,
            terms,
            refreshed_ms: AtomicU64::new(0),
            content,
            weight,
            chances: AtomicU8::new(1),
        }
    }

    /// Whether the caller is to revalidate the entry in the background: at most one caller in `interval_ms`.
    pub fn begin_refresh(&self, now_ms: u64, interval_ms: u64) -> bool {
        let before = self.refreshed_ms.load(Relaxed);
        (before == 0 || now_ms >= before.saturating_add(interval_ms))
            && self.refreshed_ms.compare_exchange(before, now_ms.max(1), Relaxed, Relaxed).is_ok()
    }

    /// Whether the entry has been stale for less than this many seconds. Also holds while it is fresh.
    pub fn is_within(&self, seconds: u32, now_ms: u64) -> bool {
        now_ms < self.expires_ms.saturating_add(u64::from(seconds) * 1000)
            && self.stored_ms <= now_ms.saturating_add(SKEW_MS)
    }

    /// The response, if it is in memory; otherwise use [`Zone::load`](super::Zone::load).
    pub fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }

    /// Seconds since the origin generated it (RFC 9111 section 4.2.3).
    pub fn age_at(&self, now_ms: u64) -> u64 {
        u64::from(self.age) + now_ms.saturating_sub(self.stored_ms) / 1000
    }

    /// A store time in the future is not fresh: the clock was set back by an unknown amount, and
    /// the entry would stay fresh for that much longer.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms < self.expires_ms && self.stored_ms <= now_ms.saturating_add(SKEW_MS)
    }
}

/// The identity of an entry, and its times.
#[derive(Debug)]
pub(super) struct EntryHead {
    pub(super) key: Box<[u8]>,
    pub(super) variant: Box<[u8]>,
    pub(super) stored_ms: u64,
    pub(super) expires_ms: u64,
    pub(super) age: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_of_ten_seconds() -> Entry {
        let (key, variant) = ((*b"k").into(), [0].into());
        let head = EntryHead { key, variant, stored_ms: 10_000, expires_ms: 20_000, age: 30 };
        Entry::new(head, Terms::default(), None, 0)
    }

    #[test]
    fn stale_windows_follow_the_clock() {
        let entry = entry_of_ten_seconds();
        for (seconds, now, within) in [
            (0, 19_999, true),
            (0, 20_000, false),
            (5, 24_999, true),
            (5, 25_000, false),
            (5, 4_999, false),
            (u32::MAX, 20_000_000, true),
        ] {
            assert_eq!(entry.is_within(seconds, now), within, "{seconds} {now}");
        }
        assert!(entry.begin_refresh(20_000, 1000), "the first");
        assert!(!entry.begin_refresh(20_999, 1000), "one is running");
        assert!(entry.begin_refresh(21_000, 1000), "the first has failed");
    }

    #[test]
    fn age_and_freshness_follow_the_clock() {
        let entry = entry_of_ten_seconds();
        // The clock may be set back by the five seconds that two clocks may differ, but not by more.
        for (now, fresh) in [
            (0, false),
            (4_999, false),
            (5_000, true),
            (10_000, true),
            (19_999, true),
            (20_000, false),
            (u64::MAX, false),
        ] {
            assert_eq!(entry.is_fresh(now), fresh, "{now}");
        }
        for (now, age) in [(0, 30), (10_000, 30), (10_999, 30), (12_500, 32), (110_000, 130)] {
            assert_eq!(entry.age_at(now), age, "{now}");
        }
    }
}
