//! The rows of a store in memory, and who follows them.
//!
//! Stores that keep everything in this process share this: reads are answered
//! from here, and followers are fed from a bounded log of what they have not
//! seen yet. It never decides whether a write may happen, and never touches a
//! disk.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use futures_util::stream;
use model::{Diagnostic, Key, Kind};
use tokio::sync::watch;

use super::holders::Holders;
use super::{Change, Changes, Parsed, Revision, Row};

/// How many changes a follower may be behind before it gets a `Reset` instead.
const LOG: usize = 4096;

/// All rows by key, with a revision and followers.
#[derive(Debug)]
pub struct Table {
    rows: Arc<RwLock<Rows>>,
    moved: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    pub by_key: ByKey,
    plugins: Option<Vec<String>>,
    stream_plugins: Option<Vec<String>>,
    notes: BTreeMap<String, String>,
    revision: Revision,
    /// The revision of the last change that was not of a note; after a reset, that of the reset.
    changed: Revision,
    rejected: Vec<Diagnostic>,
    /// Of the rows of the last reset.
    parsed: Parsed,
    /// Built on first use.
    holders: OnceLock<Holders>,
    /// The changes that some follower has not seen, oldest first.
    log: VecDeque<Change>,
    /// See [`Change::Reset`]. Stays once it is so: a follower may have missed the first such reset.
    anew: bool,
    /// The number of the log's first change, counted from 1 since this table was made.
    first: u64,
    /// How far each follower is; those that are gone are dropped with the next change.
    followers: Vec<Weak<AtomicU64>>,
}

/// Rows by their keys, which they have already.
pub(super) type ByKey = BTreeSet<Placed>;

/// A row in its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed(pub Row);

impl Borrow<Key> for Placed {
    fn borrow(&self) -> &Key {
        &self.0.key
    }
}

impl Eq for Placed {}

impl Ord for Placed {
    fn cmp(&self, other: &Placed) -> std::cmp::Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl PartialOrd for Placed {
    fn partial_cmp(&self, other: &Placed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Table {
    pub fn new(
        items: impl IntoIterator<Item = Row>,
        plugins: Option<Vec<String>>,
        revision: Revision,
    ) -> Table {
        let by_key = items.into_iter().map(Placed).collect();
        let rows = Rows { by_key, plugins, revision, changed: revision, first: 1, ..Rows::default() };
        Table { rows: Arc::new(RwLock::new(rows)), moved: watch::Sender::new(0) }
    }

    /// With texts that are kept beside the resources.
    #[must_use]
    pub fn with_notes(self, notes: BTreeMap<String, String>) -> Table {
        self.set_notes(notes);
        self
    }

    /// Replaces all notes without notifying followers.
    pub fn set_notes(&self, notes: BTreeMap<String, String>) {
        self.write().notes = notes;
    }

    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    /// The revision of the last change of a resource or of the list of plugins, as far as is known: there was
    /// none later.
    pub fn changed(&self) -> Revision {
        self.read().changed
    }

    /// See [`Step::Note`](super::Step::Note).
    pub fn note(&self, name: &str) -> Option<String> {
        self.read().note(name)
    }

    pub fn plugins(&self) -> Option<Vec<String>> {
        self.read().plugins.clone()
    }

    pub fn stream_plugins(&self) -> Option<Vec<String>> {
        self.read().stream_plugins.clone()
    }

    pub fn get(&self, key: &Key) -> Option<Row> {
        self.read().by_key.get(key).map(|placed| placed.0.clone())
    }

    /// See [`Store::rows`](super::Store::rows).
    pub fn list(&self, kind: Kind, prefix: &str) -> (Vec<Row>, Revision) {
        let rows = self.read();
        let from = Key::new(kind, prefix);
        let items = rows
            .by_key
            .range(from..)
            .map(|placed| &placed.0)
            .take_while(|row| row.key.kind == kind && row.key.id.starts_with(prefix))
            .cloned()
            .collect();
        (items, rows.revision)
    }

    /// Takes changes over, in order, and tells the followers.
    pub fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let mut rows = self.write();
        for change in changes {
            rows.apply(change);
        }
        self.wake_followers(rows);
    }

    /// From the next [`reset`](Table::reset) on, revisions are those of another history.
    pub fn begin_anew(&self) {
        self.write().anew = true;
    }

    /// Shows every row, by key. The table cannot change meanwhile.
    pub fn each(&self, mut look: impl FnMut(&Row)) {
        self.read().by_key.iter().for_each(|placed| look(&placed.0));
    }

    /// Waits until the table has come to a revision.
    pub async fn reached(&self, revision: Revision) {
        let mut moved = self.moved.subscribe();
        loop {
            moved.borrow_and_update();
            if self.revision() >= revision {
                return;
            }
            if moved.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until `holds` says so of the keys with their revisions, and the table's own.
    pub async fn until(
        &self,
        mut holds: impl FnMut(&mut dyn Iterator<Item = (&Key, Revision)>, Revision) -> bool,
    ) {
        let mut moved = self.moved.subscribe();
        loop {
            moved.borrow_and_update();
            {
                let rows = self.read();
                let mut keys = rows.by_key.iter().map(|Placed(row)| (&row.key, row.modified));
                if holds(&mut keys, rows.revision) {
                    return;
                }
            }
            if moved.changed().await.is_err() {
                return;
            }
        }
    }

    /// Replaces everything and tells the followers so.
    pub fn reset(
        &self,
        items: Vec<Row>,
        plugins: Option<Vec<String>>,
        revision: Revision,
        rejected: Vec<Diagnostic>,
    ) {
        self.reset_parsed(items, plugins, None, revision, rejected, Parsed::default());
    }

    /// The same, of items that were read already, and with a list of the plugins that streams may use.
    pub fn reset_parsed(
        &self,
        items: Vec<Row>,
        plugins: Option<Vec<String>>,
        stream_plugins: Option<Vec<String>>,
        revision: Revision,
        rejected: Vec<Diagnostic>,
        parsed: Parsed,
    ) {
        let mut rows = self.write();
        rows.plugins = plugins;
        rows.stream_plugins = stream_plugins;
        rows.parsed = parsed;
        rows.by_key = items.into_iter().map(Placed).collect();
        rows.holders = OnceLock::new();
        (rows.revision, rows.changed) = (revision, revision);
        rows.rejected = rejected;
        // One past the end, so that even a follower who has seen all is behind.
        rows.first = rows.end() + 1;
        rows.log.clear();
        self.wake_followers(rows);
    }

    /// Follows the table from now on, starting with a `Reset`.
    pub fn watch(&self) -> Changes {
        let next = Arc::new(AtomicU64::new(0));
        self.write().followers.push(Arc::downgrade(&next));
        let follower = Follower { rows: self.rows.clone(), moved: self.moved.subscribe(), next };
        Changes::new(stream::unfold(follower, |mut follower| async move {
            let change = follower.next().await?;
            Some((change, follower))
        }))
    }

    fn wake_followers(&self, rows: RwLockWriteGuard<'_, Rows>) {
        let end = rows.end();
        drop(rows);
        self.moved.send_replace(end);
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Rows> {
        // Nothing panics while holding the lock; if it ever did, the rows are still whole rows.
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    pub fn note(&self, name: &str) -> Option<String> {
        self.notes.get(name).cloned()
    }

    pub fn plugins(&self) -> Option<Vec<String>> {
        self.plugins.clone()
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The index of consumers' unique fields.
    pub fn holders(&self) -> &Holders {
        self.holders.get_or_init(|| Holders::of(&self.by_key))
    }

    /// The number the next change will get.
    fn end(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn apply(&mut self, change: Change) {
        self.revision = change.revision();
        if !matches!(change, Change::Note { .. }) {
            self.changed = self.revision;
        }
        match &change {
            Change::Put(row) => {
                let before = self.by_key.replace(Placed(row.clone()));
                if let Some(holders) = self.holders.get_mut() {
                    holders.replace(before.as_ref().map(|before| &before.0), Some(row));
                }
            }
            Change::Delete { key, .. } => {
                let before = self.by_key.take(key);
                if let Some(holders) = self.holders.get_mut() {
                    holders.replace(before.as_ref().map(|before| &before.0), None);
                }
            }
            Change::Plugins { names, .. } => self.plugins.clone_from(names),
            Change::Note { name, text, .. } => {
                self.notes.insert(name.to_string(), text.clone());
            }
            Change::Reset { items, plugins, stream_plugins, rejected, .. } => {
                self.by_key = items.iter().cloned().map(Placed).collect();
                self.holders = OnceLock::new();
                self.plugins.clone_from(plugins);
                self.stream_plugins.clone_from(stream_plugins);
                self.rejected.clone_from(rejected);
            }
        }
        self.forget();
        self.log.push_back(change);
    }

    /// Drops what every follower has seen, and what is more than may be kept.
    fn forget(&mut self) {
        self.followers.retain(|next| next.strong_count() > 0);
        let next = |follower: &Weak<AtomicU64>| follower.upgrade().map(|next| next.load(Ordering::Relaxed));
        let seen = self.followers.iter().filter_map(next).min().unwrap_or(u64::MAX);
        while !self.log.is_empty() && (self.first < seen || self.log.len() >= LOG) {
            self.log.pop_front();
            self.first += 1;
        }
    }

    fn everything(&self) -> Change {
        Change::Reset {
            items: self.by_key.iter().map(|placed| placed.0.clone()).collect(),
            plugins: self.plugins.clone(),
            stream_plugins: self.stream_plugins.clone(),
            revision: self.revision,
            rejected: self.rejected.clone(),
            parsed: self.parsed.clone(),
            anew: self.anew,
        }
    }
}

struct Follower {
    rows: Arc<RwLock<Rows>>,
    moved: watch::Receiver<u64>,
    /// The number of the change to tell next; 0 before the first `Reset`. Written here alone,
    /// under the lock's read side; read under its write side.
    next: Arc<AtomicU64>,
}

impl Follower {
    async fn next(&mut self) -> Option<Change> {
        loop {
            // Marked as seen before looking, so a change in between wakes us again.
            self.moved.borrow_and_update();
            if let Some(change) = self.look() {
                return Some(change);
            }
            self.moved.changed().await.ok()?;
        }
    }

    fn look(&mut self) -> Option<Change> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.load(Ordering::Relaxed);
        if next < rows.first {
            self.next.store(rows.end(), Ordering::Relaxed);
            return Some(rows.everything());
        }
        let at = usize::try_from(next - rows.first).ok()?;
        let change = rows.log.get(at)?.clone();
        self.next.store(next + 1, Ordering::Relaxed);
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, revision: Revision) -> Row {
        Row {
            key: Key::new(Kind::Route, id),
            json: format!(r#"{{"id":"{id}"}}"#).into(),
            created: revision,
            modified: revision,
            expires: None,
        }
    }

    #[tokio::test]
    async fn a_follower_sees_everything_then_each_change() {
        let table = Table::new([row("1", 3)], None, 3);
        let mut changes = table.watch();
        let Some(Change::Reset { items, revision: 3, .. }) = changes.next().await else { panic!() };
        assert_eq!(items, [row("1", 3)]);

        table.apply([Change::Put(row("2", 4)), Change::Delete { key: row("1", 3).key, revision: 5 }]);
        assert!(matches!(changes.next().await, Some(Change::Put(put)) if put == row("2", 4)));
        assert!(matches!(changes.next().await, Some(Change::Delete { revision: 5, .. })));
        assert_eq!(table.list(Kind::Route, ""), (vec![row("2", 4)], 5));

        drop(table);
        assert!(changes.next().await.is_none());
    }

    #[tokio::test]
    async fn a_follower_far_behind_starts_over_instead_of_holding_memory() {
        let table = Table::new([], None, 0);
        let mut changes = table.watch();
        changes.next().await.unwrap();
        for revision in 1..=(LOG as u64 + 1) {
            table.apply([Change::Put(row("1", revision))]);
        }
        let Some(Change::Reset { revision, .. }) = changes.next().await else { panic!() };
        assert_eq!(revision, LOG as u64 + 1);
        table.apply([Change::Put(row("2", revision + 1))]);
        assert!(matches!(changes.next().await, Some(Change::Put(_))));
    }

    #[tokio::test]
    async fn what_every_follower_has_seen_is_not_kept() {
        let table = Table::new([], None, 0);
        let kept = || table.read().log.len();
        let (mut quick, mut slow) = (table.watch(), table.watch());
        quick.next().await.unwrap();
        slow.next().await.unwrap();
        for revision in 1..=10 {
            table.apply([Change::Put(row("1", revision))]);
            assert!(matches!(quick.next().await, Some(Change::Put(stored)) if stored.modified == revision));
        }
        assert_eq!(kept(), 10);
        for revision in 1..=10 {
            assert!(matches!(slow.next().await, Some(Change::Put(stored)) if stored.modified == revision));
        }
        table.apply([Change::Put(row("1", 11))]);
        assert_eq!(kept(), 1);
        drop((quick, slow));
        table.apply([Change::Put(row("1", 12)), Change::Put(row("1", 13))]);
        assert_eq!(kept(), 1);
        assert!(matches!(table.watch().next().await, Some(Change::Reset { revision: 13, .. })));
    }

    #[tokio::test]
    async fn a_reset_reaches_even_those_who_have_seen_all() {
        let table = Table::new([row("1", 1)], None, 1);
        let mut changes = table.watch();
        changes.next().await.unwrap();
        table.reset(vec![], None, 2, vec![]);
        assert!(matches!(changes.next().await, Some(Change::Reset { revision: 2, .. })));
    }

    #[test]
    fn a_list_holds_only_its_kind_and_prefix() {
        let mut credential = row("x", 1);
        credential.key = Key::credential("jack", "a");
        let mut other = row("x", 1);
        other.key = Key::credential("jacky", "a");
        let table = Table::new([row("1", 1), credential.clone(), other], None, 1);
        assert_eq!(table.list(Kind::Credential, "jack/credentials/").0, [credential]);
        assert_eq!(table.list(Kind::Service, "").0, []);
    }
}
