//! A shared dictionary: shards of entries with one capacity. When it is full, the entries used longest ago go.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
#[expect(
    clippy::disallowed_types,
    reason = "a shard is locked for one look-up or change in memory, never while a script or another lock waits"
)]
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::entries::{Entries, Entry, Stored};

const SHARDS: usize = 16;

/// Entries of a shard that are looked at for expired ones before others are evicted.
const LOOKED: usize = 32;

/// Attempts to push while other workers empty and fill the same list.
const ROUNDS: usize = 1000;

/// The longest key.
pub(super) const LONGEST_KEY: usize = 65_535;

#[derive(Debug)]
#[expect(clippy::disallowed_types, reason = "see above")]
pub(super) struct Dictionary {
    shards: [Mutex<Entries>; SHARDS],
    hasher: foldhash::fast::RandomState,
    capacity: usize,
    used: AtomicUsize,
}

/// When a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Absent,
    Present,
}

/// The result of a change: whether others were evicted for it, or the reason why it failed.
pub(super) type Changed<T> = Result<(T, bool), &'static str>;

#[expect(clippy::disallowed_types, reason = "see above")]
fn lock(shard: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    // No code inside a lock can fail half-way.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dictionary {
    pub(super) fn new(capacity: usize) -> Dictionary {
        Dictionary {
            shards: std::array::from_fn(|_| Default::default()),
            hasher: foldhash::fast::RandomState::default(),
            capacity,
            used: AtomicUsize::new(0),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn free_space(&self) -> usize {
        self.capacity.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn at(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        // The map of a shard uses the other bits.
        (hash, (hash >> 32) as usize % SHARDS)
    }

    fn released(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }

    /// The value, its flags and whether it has expired. Expired entries stay until their memory is needed.
    pub(super) fn get(&self, key: &[u8], now: u64) -> Option<(Stored, u32, bool)> {
        let (hash, shard) = self.at(key);
        let mut entries = lock(&self.shards[shard]);
        let entry = entries.touch(hash, key)?;
        Some((entry.value.clone(), entry.flags, entry.is_expired(now)))
    }

    /// Stores a value. With `safe`, no entry that has not expired is evicted for it.
    pub(super) fn set(&self, entry: Entry, when: When, safe: bool, now: u64) -> Changed<()> {
        let (hash, shard) = self.at(&entry.key);
        // The size of the entry that is replaced, or the reason why none is stored.
        let replaced = |old: Option<&mut Entry>| {
            let is_live = old.as_ref().is_some_and(|old| !old.is_expired(now));
            match when {
                When::Absent if is_live => Err("exists"),
                When::Present if !is_live => Err("not found"),
                _ => Ok(old.map_or(0, |old| old.size())),
            }
        };
        let size = entry.size();
        if size > self.capacity {
            return Err("no memory");
        }
        let before = replaced(lock(&self.shards[shard]).peek(hash, &entry.key))?;
        let more = size.saturating_sub(before);
        let evicted = if more > 0 { self.reserve(more, shard, safe, now)? } else { false };
        let mut entries = lock(&self.shards[shard]);
        // Another worker may have stored or removed the key meanwhile.
        if let Err(reason) = replaced(entries.peek(hash, &entry.key)) {
            self.released(more);
            return Err(reason);
        }
        let old = entries.remove(hash, &entry.key).map_or(0, |old| old.size());
        self.used.fetch_add(size, Ordering::Relaxed);
        self.released(more + old);
        entries.insert(hash, entry);
        Ok(((), evicted))
    }

    /// Takes memory; evicts first in the shard of the key, then in the others. Never holds two locks.
    fn reserve(&self, size: usize, first: usize, safe: bool, now: u64) -> Result<bool, &'static str> {
        if size > self.capacity {
            return Err("no memory");
        }
        let fits = |used: usize| used.checked_add(size).filter(|sum| *sum <= self.capacity);
        let take = || self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if take() {
            return Ok(false);
        }
        for shard in (0..SHARDS).map(|step| &self.shards[(first + step) % SHARDS]) {
            lock(shard).remove_expired(now, LOOKED, LOOKED, |entry| self.released(entry.size()));
            if take() {
                return Ok(false);
            }
        }
        if safe {
            return Err("no memory");
        }
        // As many rounds as evict all of it; other workers may store in between.
        for shard in (0..SHARDS).map(|step| &self.shards[(first + step) % SHARDS]) {
            loop {
                let Some(oldest) = lock(shard).remove_oldest() else { break };
                self.released(oldest.size());
                if take() {
                    return Ok(true);
                }
            }
        }
        Err("no memory")
    }

    /// Changes the live value of a key in place. `change` may make it longer by at most `more` bytes.
    fn change<T>(
        &self,
        key: &[u8],
        now: u64,
        more: usize,
        change: impl FnOnce(Option<&mut Entry>) -> Result<T, &'static str>,
    ) -> Changed<T> {
        let (hash, shard) = self.at(key);
        let evicted = if more > 0 { self.reserve(more, shard, false, now)? } else { false };
        let mut entries = lock(&self.shards[shard]);
        let entry = entries.touch(hash, key).filter(|entry| !entry.is_expired(now));
        let (before, after, result) = match entry {
            Some(entry) => {
                let before = entry.size();
                let result = change(Some(entry));
                (before, entry.size(), result)
            }
            None => (0, 0, change(None)),
        };
        self.released(more + before);
        self.used.fetch_add(after, Ordering::Relaxed);
        result.map(|result| (result, evicted))
    }

    /// Adds to a number. An absent one begins at `init` and lives for `init_ttl` milliseconds, 0 for ever.
    pub(super) fn incr(
        &self,
        key: &[u8],
        by: f64,
        init: Option<f64>,
        init_ttl: u64,
        now: u64,
    ) -> Changed<f64> {
        let added = self.change(key, now, 0, |entry| match entry {
            Some(Entry { value: Stored::Number(number), .. }) => {
                *number += by;
                Ok(*number)
            }
            Some(_) => Err("not a number"),
            None => Err("not found"),
        });
        let (Err("not found"), Some(init)) = (&added, init) else { return added };
        let expires = if init_ttl == 0 { 0 } else { now + init_ttl };
        let entry = Entry { key: key.into(), value: Stored::Number(init + by), flags: 0, expires };
        match self.set(entry, When::Absent, false, now) {
            Ok(((), evicted)) => Ok((init + by, evicted)),
            // Another worker was first: its number counts.
            Err("exists") => self.incr(key, by, None, 0, now),
            Err(reason) => Err(reason),
        }
    }

    pub(super) fn delete(&self, key: &[u8]) {
        let (hash, shard) = self.at(key);
        if let Some(old) = lock(&self.shards[shard]).remove(hash, key) {
            self.released(old.size());
        }
    }

    /// Adds to an end of a list; returns its length.
    pub(super) fn push(&self, key: &[u8], value: Stored, front: bool, now: u64) -> Changed<usize> {
        let put = |items: &mut VecDeque<Stored>, value| {
            if front {
                items.push_front(value)
            } else {
                items.push_back(value)
            }
            items.len()
        };
        // Between the steps another worker may add the list or take its last item.
        for _ in 0..ROUNDS {
            let item = value.clone();
            let pushed = self.change(key, now, 32 + value.size(), |entry| match entry {
                Some(Entry { value: Stored::List(items), .. }) => Ok(put(items, item)),
                Some(_) => Err("value not a list"),
                None => Err("not found"),
            });
            if pushed != Err("not found") {
                return pushed;
            }
            let list = Stored::List(VecDeque::from([value.clone()]));
            let entry = Entry { key: key.into(), value: list, flags: 0, expires: 0 };
            match self.set(entry, When::Absent, false, now) {
                Ok(((), evicted)) => return Ok((1, evicted)),
                Err("exists") => {}
                Err(reason) => return Err(reason),
            }
        }
        Err("busy")
    }

    pub(super) fn pop(&self, key: &[u8], front: bool, now: u64) -> Result<Option<Stored>, &'static str> {
        let popped = self.change(key, now, 0, |entry| match entry {
            Some(Entry { value: Stored::List(items), .. }) => {
                let item = if front { items.pop_front() } else { items.pop_back() };
                Ok((item, items.is_empty()))
            }
            Some(_) => Err("value not a list"),
            None => Ok((None, false)),
        });
        let ((item, is_empty), _) = popped?;
        if is_empty {
            let (hash, shard) = self.at(key);
            let mut entries = lock(&self.shards[shard]);
            let still = |entry: &mut Entry| matches!(&entry.value, Stored::List(items) if items.is_empty());
            if entries.peek(hash, key).is_some_and(still)
                && let Some(old) = entries.remove(hash, key)
            {
                self.released(old.size());
            }
        }
        Ok(item)
    }

    pub(super) fn length(&self, key: &[u8], now: u64) -> Result<usize, &'static str> {
        let length = self.change(key, now, 0, |entry| match entry {
            Some(Entry { value: Stored::List(items), .. }) => Ok(items.len()),
            Some(_) => Err("value not a list"),
            None => Ok(0),
        });
        length.map(|(length, _)| length)
    }

    /// Milliseconds until a key expires; 0 is never.
    pub(super) fn ttl(&self, key: &[u8], now: u64) -> Result<u64, &'static str> {
        let (hash, shard) = self.at(key);
        let mut entries = lock(&self.shards[shard]);
        let entry = entries.peek(hash, key).filter(|entry| !entry.is_expired(now)).ok_or("not found")?;
        Ok(entry.expires.saturating_sub(now))
    }

    pub(super) fn expire(&self, key: &[u8], expires: u64, now: u64) -> Result<(), &'static str> {
        let (hash, shard) = self.at(key);
        let mut entries = lock(&self.shards[shard]);
        let entry = entries.peek(hash, key).filter(|entry| !entry.is_expired(now)).ok_or("not found")?;
        entry.expires = expires;
        Ok(())
    }

    /// Marks all entries as expired.
    pub(super) fn flush_all(&self) {
        for shard in &self.shards {
            lock(shard).iter_mut().for_each(|entry| entry.expires = 1);
        }
    }

    /// Frees up to `most` expired entries; returns their number.
    pub(super) fn flush_expired(&self, most: usize, now: u64) -> usize {
        let mut freed = 0;
        for shard in &self.shards {
            lock(shard).remove_expired(now, most - freed, usize::MAX, |entry| {
                self.released(entry.size());
                freed += 1;
            });
        }
        freed
    }

    /// Up to `most` keys that have not expired.
    pub(super) fn keys(&self, most: usize, now: u64) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let left = most - keys.len();
            keys.extend(
                lock(shard)
                    .iter()
                    .filter(|entry| !entry.is_expired(now))
                    .take(left)
                    .map(|entry| entry.key.clone()),
            );
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_share_a_dictionary() {
        let dictionary = Dictionary::new(20_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let dictionary = &dictionary;
                scope.spawn(move || {
                    for step in 0..500_u32 {
                        dictionary.incr(b"count", 1.0, Some(0.0), 0, 1).unwrap();
                        dictionary.push(b"list", Stored::Number(step.into()), true, 1).unwrap();
                        dictionary.pop(b"list", false, 1).unwrap();
                        dictionary.get(b"count", 1);
                    }
                });
            }
        });
        assert_eq!(dictionary.get(b"count", 1).map(|(value, ..)| value), Some(Stored::Number(2000.0)));
        dictionary.delete(b"count");
        dictionary.delete(b"list");
        assert_eq!(dictionary.free_space(), dictionary.capacity());
    }

    #[test]
    fn memory_stays_within_the_capacity() {
        let dictionary = Dictionary::new(20_000);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let dictionary = &dictionary;
                scope.spawn(move || {
                    for step in 0..500 {
                        let key = format!("{worker}-{step}").into_bytes().into();
                        let value = Stored::Text(vec![0; step % 400].into());
                        let expires = if step % 3 == 0 { 2 } else { 0 };
                        dictionary
                            .set(Entry { key, value, flags: 0, expires }, When::Always, false, 1)
                            .unwrap();
                    }
                });
            }
        });
        let held: usize =
            dictionary.shards.iter().map(|shard| lock(shard).iter().map(Entry::size).sum::<usize>()).sum();
        assert_eq!(held, dictionary.capacity() - dictionary.free_space());
        assert!(held <= dictionary.capacity());
        assert!(dictionary.flush_expired(usize::MAX, 3) > 0);
    }
}
