//! hot path
//!
//! The memory of counters: buckets, and the keys that are hashed to them.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::{FoldHasher, RandomState};
use model::Invalid;

use super::bucket::{Bucket, Full, Placed, Words};
use super::platform::SLOTS;

/// A fixed number of counter slots.
pub struct Table {
    /// See [`Table::reserve`].
    reserved: OnceLock<Box<[Words]>>,
    /// How many buckets there are.
    count: usize,
    seeds: [RandomState; 2],
    /// Slots that were ever used.
    used: AtomicU64,
    evicted: AtomicU64,
}

/// The hashes of a key; valid for the [`Table`] that computed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterKey {
    place: u64,
    tag: u64,
}

/// Builds a [`CounterKey`] from parts without concatenating them.
#[derive(Clone)]
pub struct Keying<'c> {
    place: FoldHasher<'c>,
    tag: FoldHasher<'c>,
}

impl Default for Table {
    /// As large as APISIX's default dictionaries, such as `plugin-limit-count: 10m`.
    fn default() -> Table {
        Table::new(10 << 20)
    }
}

impl Table {
    /// The size of the largest table: a thousand million counters, more than the clients of any
    /// node.
    pub const MOST: u64 = 32 << 30;

    /// As [`Table::new`], for a size from the configuration.
    ///
    /// # Errors
    /// The size exceeds [`Table::MOST`], or the memory of this machine.
    pub fn sized(bytes: u64) -> Result<Table, Invalid> {
        let most = || format!("a size of at most {}g", Table::MOST >> 30);
        if bytes > Table::MOST {
            let reason = format!("counters may take at most {}g, not {bytes} bytes", Table::MOST >> 30);
            return Err(Invalid::new(reason).expected(most()).got(bytes.to_string()));
        }
        let table = Table::new(usize::try_from(bytes).unwrap_or(usize::MAX));
        let buckets = bytemuck::try_zeroed_slice_box(table.count).map_err(|()| {
            Invalid::new(format!("cannot allocate {bytes} bytes for counters")).got(bytes.to_string())
        })?;
        Ok(Table { reserved: buckets.into(), ..table })
    }

    /// Creates a table of about `bytes` bytes (26 per counter, at least 15 counters).
    pub fn new(bytes: usize) -> Table {
        Table {
            reserved: OnceLock::new(),
            count: (bytes / size_of::<Words>()).max(1),
            seeds: [RandomState::default(), RandomState::default()],
            used: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Reserves the memory. To be called when a plugin instance is built that counts, so that no request does it.
    /// Without such plugins nothing is reserved, as the allocator may have to clear all of it.
    pub fn reserve(&self) {
        self.buckets();
    }

    #[inline]
    fn buckets(&self) -> &[Words] {
        self.reserved.get_or_init(|| bytemuck::zeroed_slice_box(self.count))
    }

    /// Starts a key.
    #[inline]
    pub fn key(&self) -> Keying<'_> {
        Keying { place: self.seeds[0].build_hasher(), tag: self.seeds[1].build_hasher() }
    }

    /// Counters that were evicted although their window was open.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Size of the table in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        (self.count * size_of::<Words>()) as u64
    }

    /// Bytes of slots that were never used.
    pub fn free_bytes(&self) -> u64 {
        let places = (self.count * SLOTS) as u64;
        let used = self.used.load(Relaxed).min(places);
        self.capacity_bytes() * (places - used) / places
    }

    #[inline]
    pub(super) fn bucket(&self, key: CounterKey) -> Bucket<'_> {
        let buckets = self.buckets();
        let index = (u128::from(key.place) * buckets.len() as u128) >> 64;
        Bucket(&buckets[index as usize])
    }

    /// See [`Bucket::update`].
    #[inline]
    pub(super) fn update(
        &self,
        key: CounterKey,
        evicts: bool,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<(u64, Option<u64>), Full> {
        self.bucket(key).update(key.tag, evicts, change, |how| self.placed(how))
    }

    /// The number of a key; 0 without a slot.
    #[inline]
    pub(super) fn number(&self, key: CounterKey) -> u64 {
        let bucket = self.bucket(key);
        bucket.find(key.tag).and_then(|slot| bucket.number(slot, key.tag)).unwrap_or(0)
    }

    #[cold]
    pub(super) fn placed(&self, how: Placed) {
        match how {
            Placed::Found | Placed::Expired => {}
            Placed::Empty => _ = self.used.fetch_add(1, Relaxed),
            Placed::Evicted => _ = self.evicted.fetch_add(1, Relaxed),
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("bytes", &self.capacity_bytes()).finish_non_exhaustive()
    }
}

impl Keying<'_> {
    /// Adds a part. Parts are delimited: `a` and `bc` differ from `ab` and `c`.
    #[inline]
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        for hasher in [&mut self.place, &mut self.tag] {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        }
        self
    }

    /// Adds a number as a part.
    #[inline]
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.place.write_u64(number);
        self.tag.write_u64(number);
        self
    }

    /// Adds another key as a part.
    #[inline]
    #[must_use]
    pub fn under(self, key: CounterKey) -> Self {
        self.number(key.place).number(key.tag)
    }

    #[inline]
    pub fn finish(self) -> CounterKey {
        // A tag of 0 marks an empty slot.
        CounterKey { place: self.place.finish(), tag: self.tag.finish().max(1) }
    }
}

impl CounterKey {
    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.tag
    }
}
