//! When rows with a lease are to be deleted.
//!
//! A row says when its lease ends as a date, which is all that a later process has to go by. While this
//! process runs, the time that passes counts, and not how the wall clock is set.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::super::Key;
use super::Row;

/// Stands for a moment whose distance is unknown: longer than any process runs.
const FAR: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Soonest first.
    ends: BTreeSet<(Instant, Key)>,
    of: HashMap<Key, Instant>,
}

/// This moment, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub steady: Instant,
    pub unix_ms: u64,
}

impl Now {
    pub(super) fn read() -> Now {
        Now { steady: Instant::now(), unix_ms: super::unix_ms() }
    }
}

impl Leases {
    pub(super) fn of(rows: &[Row], now: Now) -> Leases {
        let mut leases = Leases::default();
        for row in rows.iter().filter(|row| row.expires.is_some()) {
            leases.set(&row.key, row.expires, now);
        }
        leases
    }

    /// Sets the lease of a row: until `expires` (ms since 1970), or none.
    pub(super) fn set(&mut self, key: &Key, expires: Option<u64>, now: Now) {
        if let Some(before) = self.of.remove(key) {
            self.ends.remove(&(before, key.clone()));
        }
        if let Some(expires) = expires {
            let left = Duration::from_millis(expires.saturating_sub(now.unix_ms)).min(FAR);
            let end = now.steady + left;
            self.of.insert(key.clone(), end);
            self.ends.insert((end, key.clone()));
        }
    }

    /// The end of the one that ends first.
    pub(super) fn next(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Those that have ended, the first to end first.
    pub(super) fn ended(&self, now: Now) -> impl Iterator<Item = &Key> {
        self.ends.iter().take_while(move |(end, _)| *end <= now.steady).map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;

    use super::*;

    fn row(id: &str, expires: u64) -> Row {
        let key = Key::new(Kind::Route, id);
        Row { key, json: "{}".into(), created: 1, modified: 1, expires: Some(expires) }
    }

    #[test]
    fn a_clock_that_is_set_ends_and_prolongs_no_lease() {
        let start = Now { steady: Instant::now(), unix_ms: 1_700_000_000_000 };
        let after = |seconds: u64, set_by: i64| Now {
            steady: start.steady + Duration::from_secs(seconds),
            unix_ms: (start.unix_ms + seconds * 1000).saturating_add_signed(set_by),
        };
        let rows = [row("1", start.unix_ms + 60_000), row("2", start.unix_ms + 30_000)];
        let mut leases = Leases::of(&rows, start);
        let ended =
            |leases: &Leases, now| leases.ended(now).map(|key| key.id.to_string()).collect::<Vec<_>>();
        for set_by in [-31_536_000_000, -3_600_000, 3_600_000, 31_536_000_000] {
            assert_eq!(ended(&leases, after(29, set_by)), [""; 0], "{set_by}");
            assert_eq!(ended(&leases, after(30, set_by)), ["2"], "{set_by}");
            assert_eq!(ended(&leases, after(60, set_by)), ["2", "1"], "{set_by}");
        }
        // A write after the step counts from there, and replaces the previous lease.
        let late = after(40, 31_536_000_000);
        leases.set(&rows[0].key, Some(late.unix_ms + 5_000), late);
        leases.set(&rows[1].key, None, late);
        assert_eq!(leases.next(), Some(late.steady + Duration::from_secs(5)));
        assert_eq!(ended(&leases, after(45, 0)), ["1"]);
        leases.set(&rows[0].key, Some(u64::MAX), late);
        assert!(ended(&leases, after(1 << 30, 0)).is_empty());
    }
}
