//! hot path
//!
//! The index of a zone's entries, by key.
//!
//! Sharded by key; each shard has a lock that is held for one map access. Eviction uses second
//! chance (CLOCK): an entry that was used since the hand last passed stays. All entries of a key
//! are in one group, so that a purge removes them at once.
#![expect(
    clippy::disallowed_types,
    reason = "a zone is shared by all workers: one lock per shard, held for one map access"
)]

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use hashbrown::HashMap;
use wire::Fields;

use super::{Entry, Lookup, variant};

const SHARDS: usize = 16;

/// Purge counters per shard. Keys that share one lose responses in transfer to each other's purges.
const EPOCHS: usize = 256;

/// The most entries of one key (as APISIX 3.18's `MAX_VARIANTS`); the oldest is evicted.
const MAX_VARIANTS: usize = 64;

/// The most passes of the hand that a used entry survives.
const MAX_CHANCES: u8 = 3;

/// The most used entries that the hand passes before it evicts one anyway: this runs under a lock.
const MAX_PASSED: usize = 64;

#[derive(Debug)]
pub(super) struct Index {
    shards: [Mutex<Shard>; SHARDS],
    hasher: foldhash::fast::RandomState,
    limit: u64,
    used: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    groups: HashMap<Box<[u8]>, Group>,
    /// The order in which the hand passes. Entries removed otherwise leave dead references for a
    /// while.
    clock: VecDeque<Weak<Entry>>,
    answers: usize,
    /// Count purges, by the hash of the key.
    epochs: Box<[u64; EPOCHS]>,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            groups: HashMap::default(),
            clock: VecDeque::default(),
            answers: 0,
            epochs: Box::new([0; EPOCHS]),
        }
    }
}

/// The entries of one key, which vary on the same fields.
#[derive(Debug)]
struct Group {
    vary: Vec<Box<[u8]>>,
    entries: Vec<Arc<Entry>>,
}

impl Index {
    pub(super) fn new(limit: u64) -> Index {
        Index {
            shards: Default::default(),
            hasher: foldhash::fast::RandomState::default(),
            limit,
            used: AtomicU64::new(0),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(super) fn find(&self, key: &[u8], class: u8, request: &Fields, scratch: &mut Vec<u8>) -> Lookup {
        let shard = self.shard(key);
        let entry = shard.groups.get(key).and_then(|group| {
            variant(&group.vary, class, request, scratch);
            group.entries.iter().find(|entry| *entry.variant == scratch[..]).cloned()
        });
        let epoch = shard.epochs[self.epoch_of(key)];
        drop(shard);
        if let Some(entry) = &entry {
            let chances = entry.chances.load(Relaxed);
            if chances < MAX_CHANCES {
                entry.chances.store(chances + 1, Relaxed);
            }
        }
        Lookup { entry, epoch }
    }

    /// Inserts an entry, unless its key was purged since `epoch`, or an existing one must
    /// not be `replaced`. Returns the entries removed for it; the entry itself, if it was rejected.
    pub(super) fn insert(
        &self,
        entry: Arc<Entry>,
        vary: Vec<Box<[u8]>>,
        epoch: u64,
        replaced: bool,
    ) -> Vec<Arc<Entry>> {
        let own = self.shard_of(&entry.key);
        let mut shard = self.lock(own);
        if entry.weight > self.limit
            || shard.epochs[self.epoch_of(&entry.key)] != epoch
            || !replaced && shard.is_taken(&entry.key, &entry.variant, &vary)
        {
            return vec![entry];
        }
        self.used.fetch_add(entry.weight, Relaxed);
        let mut removed = shard.insert(entry, vary);
        self.used.fetch_sub(removed.iter().map(|entry| entry.weight).sum(), Relaxed);
        self.make_room(own, shard, &mut removed);
        removed
    }

    /// Replaces an entry, if it is still indexed. Returns the entries removed for the new one.
    #[allow(
        clippy::result_large_err,
        reason = "the caller stores the entry next; a box would only add an allocation"
    )]
    pub(super) fn replace(&self, old: &Arc<Entry>, entry: Entry) -> Option<Vec<Arc<Entry>>> {
        let own = self.shard_of(&old.key);
        let mut shard = self.lock(own);
        let slot = shard.slot_of(old)?;
        let entry = Arc::new(entry);
        self.used.fetch_add(entry.weight, Relaxed);
        self.used.fetch_sub(old.weight, Relaxed);
        *slot = entry.clone();
        shard.clock.push_back(Arc::downgrade(&entry));
        let mut removed = Vec::new();
        self.make_room(own, shard, &mut removed);
        Some(removed)
    }

    /// Removes one entry, if it is still indexed.
    pub(super) fn remove(&self, entry: &Arc<Entry>) -> bool {
        let removed = self.shard(&entry.key).remove(entry);
        if removed {
            self.used.fetch_sub(entry.weight, Relaxed);
        }
        removed
    }

    /// Removes all entries of the key.
    pub(super) fn purge(&self, key: &[u8]) -> Vec<Arc<Entry>> {
        let mut shard = self.shard(key);
        shard.epochs[self.epoch_of(key)] += 1;
        let removed = shard.groups.remove(key).map(|group| group.entries).unwrap_or_default();
        shard.answers -= removed.len();
        self.used.fetch_sub(removed.iter().map(|entry| entry.weight).sum(), Relaxed);
        removed
    }

    /// Whether this very entry is still indexed.
    pub(super) fn holds(&self, entry: &Arc<Entry>) -> bool {
        self.shard(&entry.key).slot_of(entry).is_some()
    }

    /// Whether the key has an entry for this variant.
    pub(super) fn has(&self, key: &[u8], variant: &[u8]) -> bool {
        let shard = self.shard(key);
        shard
            .groups
            .get(key)
            .is_some_and(|group| group.entries.iter().any(|entry| *entry.variant == *variant))
    }

    /// Evicts entries until the limit holds: first from this shard, then from the others, one lock
    /// at a time. The newest entry of this shard stays.
    fn make_room(&self, own: usize, mut shard: MutexGuard<'_, Shard>, removed: &mut Vec<Arc<Entry>>) {
        self.evict(&mut shard, removed, 1);
        drop(shard);
        for other in (1..SHARDS).map(|step| (own + step) % SHARDS) {
            if self.used() <= self.limit {
                break;
            }
            self.evict(&mut self.lock(other), removed, 0);
        }
    }

    /// Evicts entries until the limit holds or `keep` are left in this shard.
    fn evict(&self, shard: &mut Shard, removed: &mut Vec<Arc<Entry>>, keep: usize) {
        while self.used() > self.limit && shard.answers > keep {
            let Some(entry) = shard.pass() else { break };
            self.used.fetch_sub(entry.weight, Relaxed);
            removed.push(entry);
        }
    }

    /// Counts the purges of the key; see [`Lookup::epoch`].
    pub(super) fn epoch(&self, key: &[u8]) -> u64 {
        self.shard(key).epochs[self.epoch_of(key)]
    }

    fn epoch_of(&self, key: &[u8]) -> usize {
        (self.hasher.hash_one(key) >> 8) as usize % EPOCHS
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        (self.hasher.hash_one(key) >> 32) as usize % SHARDS
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        self.lock(self.shard_of(key))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A shard is consistent between any two statements that could panic.
        self.shards[shard].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Shard {
    /// Inserts an entry. Returns the entries it replaces.
    fn insert(&mut self, entry: Arc<Entry>, vary: Vec<Box<[u8]>>) -> Vec<Arc<Entry>> {
        self.clock.push_back(Arc::downgrade(&entry));
        let mut removed = Vec::new();
        match self.groups.get_mut(&entry.key[..]) {
            Some(group) if group.vary == vary => {
                match group.entries.iter().position(|old| old.variant == entry.variant) {
                    Some(at) => removed.push(group.entries.remove(at)),
                    None if group.entries.len() == MAX_VARIANTS => removed.push(group.entries.remove(0)),
                    None => {}
                }
                group.entries.push(entry);
            }
            // It varies on other fields now, so the variants of older entries are no longer
            // comparable.
            Some(group) => {
                removed = std::mem::take(&mut group.entries);
                *group = Group { vary, entries: vec![entry] };
            }
            None => {
                self.groups.insert(entry.key.clone(), Group { vary, entries: vec![entry] });
            }
        }
        self.answers += 1;
        self.answers -= removed.len();
        if self.clock.len() > 2 * self.answers + 64 {
            self.clock.retain(|entry| entry.strong_count() > 0);
        }
        removed
    }

    /// Whether there is an entry for the variant, or the key's entries vary on other fields.
    fn is_taken(&self, key: &[u8], variant: &[u8], vary: &[Box<[u8]>]) -> bool {
        self.groups.get(key).is_some_and(|group| {
            group.vary != vary || group.entries.iter().any(|entry| *entry.variant == *variant)
        })
    }

    /// The slot of this very entry.
    fn slot_of(&mut self, entry: &Arc<Entry>) -> Option<&mut Arc<Entry>> {
        let group = self.groups.get_mut(&entry.key[..])?;
        group.entries.iter_mut().find(|one| Arc::ptr_eq(one, entry))
    }

    fn remove(&mut self, entry: &Arc<Entry>) -> bool {
        let Some(group) = self.groups.get_mut(&entry.key[..]) else { return false };
        let Some(at) = group.entries.iter().position(|one| Arc::ptr_eq(one, entry)) else { return false };
        group.entries.remove(at);
        if group.entries.is_empty() {
            self.groups.remove(&entry.key[..]);
        }
        self.answers -= 1;
        true
    }

    /// Advances the hand until it evicts an entry.
    fn pass(&mut self) -> Option<Arc<Entry>> {
        let mut passed = 0;
        loop {
            let Some(entry) = self.clock.pop_front()?.upgrade() else { continue };
            let chances = entry.chances.load(Relaxed);
            if chances > 0 && passed < MAX_PASSED {
                passed += 1;
                entry.chances.store(chances - 1, Relaxed);
                self.clock.push_back(Arc::downgrade(&entry));
            } else if self.remove(&entry) {
                return Some(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EntryHead, Terms};
    use super::*;

    fn entry(key: &[u8], variant: &[u8], weight: u64) -> Arc<Entry> {
        let head =
            EntryHead { key: key.into(), variant: variant.into(), stored_ms: 0, expires_ms: 0, age: 0 };
        Arc::new(Entry::new(head, Terms::default(), None, weight))
    }

    fn vary(name: &str) -> Vec<Box<[u8]>> {
        vec![name.as_bytes().into()]
    }

    /// Inserts an entry, replacing the key's previous one.
    fn put(index: &Index, key: &[u8], weight: u64) -> Arc<Entry> {
        let new = entry(key, &[0], weight);
        let epoch = index.epoch(key);
        let removed = index.insert(new.clone(), Vec::new(), epoch, true);
        assert!(!removed.iter().any(|gone| Arc::ptr_eq(gone, &new)));
        new
    }

    #[test]
    fn the_limit_may_be_reached_but_not_exceeded() {
        let index = Index::new(1000);
        assert_eq!(index.insert(entry(b"k", &[0], 1001), Vec::new(), 0, true).len(), 1);
        assert!(!index.has(b"k", &[0]));
        (0..100u8).for_each(|n| drop(put(&index, &[n], 10)));
        assert_eq!(index.used(), 1000);
        assert!((0..100).all(|n| index.has(&[n], &[0])), "all of them fit");
        put(&index, b"k", 1000);
        assert_eq!(index.used(), 1000);
        assert!(!(0..100).any(|n| index.has(&[n], &[0])));
    }

    #[test]
    fn the_newest_entry_wins_except_over_files_of_an_earlier_run() {
        let index = Index::new(1000);
        let (old, new) = (entry(b"k", &[0], 10), entry(b"k", &[0], 10));
        index.insert(old.clone(), vary("a"), 0, true);
        let removed = index.insert(new.clone(), vary("a"), 0, true);
        assert!(removed.len() == 1 && Arc::ptr_eq(&removed[0], &old) && index.holds(&new));
        for (left, on, entered) in [
            (entry(b"k", &[0], 10), "a", false),
            (entry(b"k", &[1], 10), "b", false),
            (entry(b"k", &[1], 10), "a", true),
            (entry(b"other", &[0], 10), "b", true),
        ] {
            let refused = index.insert(left.clone(), vary(on), 0, false);
            assert_eq!((index.holds(&left), refused.is_empty()), (entered, entered), "{left:?} {on}");
            assert!(index.holds(&new));
        }
    }

    #[test]
    fn an_entry_varying_on_other_fields_replaces_all() {
        let index = Index::new(1000);
        let fields = |name: &str| {
            let mut fields = Fields::new();
            fields.append(name.as_bytes(), b"1").unwrap();
            fields
        };
        let stored = |name: &str| {
            let mut bytes = Vec::new();
            variant(&vary(name), 0, &fields(name), &mut bytes);
            let entry = entry(b"k", &bytes, 10);
            index.insert(entry.clone(), vary(name), 0, true);
            entry
        };
        let found = |name: &str| index.find(b"k", 0, &fields(name), &mut Vec::new()).entry;
        let old = stored("a");
        assert!(Arc::ptr_eq(&found("a").unwrap(), &old));
        let new = stored("b");
        assert!(Arc::ptr_eq(&found("b").unwrap(), &new));
        assert!(found("a").is_none() && !index.holds(&old));
        assert_eq!(index.used(), 10);
    }

    /// Under any sequence of inserts and removals, dead references must not accumulate, and the
    /// hand must still reach each remaining entry.
    #[test]
    fn removed_entries_leave_nothing_behind() {
        let index = Index::new(1000);
        // All in one shard.
        let mut keys = (0u32..).map(u32::to_le_bytes).filter(|key| index.shard_of(key) == 0);
        let mut key = || keys.next().unwrap();
        // Many removals at once leave as many dead references, with few inserts after them.
        let many: Vec<_> = (0..1000).map(|_| key()).collect();
        many.iter().for_each(|key| drop(put(&index, key, 1)));
        many.iter().for_each(|key| assert_eq!(index.purge(key).len(), 1));
        (0..2000).for_each(|n| drop(put(&index, &many[n % 10], 1)));
        let ends = index.lock(0).clock.len();
        assert!(ends < 300, "{ends} for 10 answers");
        let stays: Vec<_> = (0..50).map(|_| key()).collect();
        stays.iter().for_each(|key| drop(put(&index, key, 10)));
        let (replaced, removed, purged) = (key(), key(), key());
        for _ in 0..2000 {
            put(&index, &replaced, 10);
            let removed = put(&index, &removed, 10);
            assert!(index.remove(&removed));
            put(&index, &purged, 10);
            assert_eq!(index.purge(&purged).len(), 1);
        }
        let ends = index.lock(0).clock.len();
        assert!(ends < 300, "{ends} for 61 answers");
        put(&index, &removed, 1000);
        assert_eq!(index.used(), 1000);
        assert!(!stays.iter().any(|key| index.has(key, &[0])) && !index.has(&replaced, &[0]));
    }
}
