//! Response caches shared by all workers.
//!
//! A zone keeps answers by key and, under a key, by the request fields the answer
//! varies on (RFC 9111 section 4.1). It is bounded in bytes and lets go of what was
//! not asked for lately. A zone in memory holds answers whole; one on disk holds an
//! index in memory and a checksummed file an answer, which threads of its own read
//! and write: a worker never touches a file. What may be stored, and for how long it
//! is fresh, is for the plugin to say.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(
    not(test),
    expect(
        clippy::disallowed_types,
        reason = "taken when zones are made and when they close, never by a request"
    )
)]

mod disk;
mod file;
mod index;
mod reader;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::Invalid;
use wire::Fields;

use disk::Files;
use index::Index;

/// Answers on their way into or out of a zone on disk hold at most so many bytes of memory.
const IN_FLIGHT: u64 = 256 << 20;

/// What the index of one answer takes beside its key, roughly.
const OVERHEAD: u64 = 320;

/// One zone, as the boot file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    /// Bytes: of answers, or of the index of those on disk.
    pub memory_size: u64,
    pub disk: Option<DiskSettings>,
}

/// Where a zone keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSettings {
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Letters of each level of folders, as nginx's `levels`.
    pub levels: Vec<u8>,
    /// How long an answer keeps that does not say so itself.
    pub ttl: Duration,
    /// How long an answer may take to be read; past it the upstream is asked.
    pub read_timeout: Duration,
}

/// The node's cache zones. A zone takes no memory, folder or thread until a stage opens it.
#[derive(Debug, Default)]
pub struct Caches {
    zones: Vec<Arc<Zone>>,
}

impl Caches {
    pub fn new(zones: Vec<Settings>) -> Caches {
        Caches { zones: zones.into_iter().map(|settings| Arc::new(Zone::new(settings, false))).collect() }
    }

    /// Zones that are never opened: for checking configurations, which touches no folder.
    pub fn for_checking(zones: Vec<Settings>) -> Caches {
        Caches { zones: zones.into_iter().map(|settings| Arc::new(Zone::new(settings, true))).collect() }
    }

    pub fn zone(&self, name: &str) -> Option<&Arc<Zone>> {
        self.zones.iter().find(|zone| zone.settings.name == name)
    }

    /// Answers on disk, of all zones, that were not read in time.
    pub fn late_reads(&self) -> u64 {
        self.zones.iter().map(|zone| zone.late_reads()).sum()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.zones.iter().map(|zone| zone.settings.name.as_str())
    }
}

/// One cache.
#[derive(Debug)]
pub struct Zone {
    settings: Settings,
    checking: bool,
    index: Arc<Index>,
    files: OnceLock<Files>,
    /// Held while it is being opened.
    opening: Mutex<()>,
    in_flight: Arc<AtomicU64>,
}

/// What a zone knows of an answer it has.
#[derive(Debug)]
pub struct Entry {
    key: Box<[u8]>,
    variant: Box<[u8]>,
    /// Milliseconds by the clock of whoever stores: on disk, of the Unix epoch.
    pub stored_ms: u64,
    pub expires_ms: u64,
    /// Seconds the answer was old when it came.
    pub age: u32,
    /// `None`: in a file.
    content: Option<Content>,
    weight: u64,
    /// How often it may still be passed over when room is needed.
    chances: AtomicU8,
}

/// How far the clocks of those who store and those who read may be apart.
const SKEW_MS: u64 = 5_000;

impl Entry {
    /// The answer, if it is in memory; else [`Zone::load`] gets it.
    pub fn content(&self) -> Option<&Content> {
        self.content.as_ref()
    }

    /// Seconds since the origin made it (RFC 9111 section 4.2.3).
    pub fn age_at(&self, now_ms: u64) -> u64 {
        u64::from(self.age) + now_ms.saturating_sub(self.stored_ms) / 1000
    }

    /// One that is stored in the future is not: the clock was set back since, by nobody knows how much, and it
    /// would stay fresh for that much longer.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        now_ms < self.expires_ms && self.stored_ms <= now_ms.saturating_add(SKEW_MS)
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Content {
    pub status: u16,
    pub fields: Fields,
    pub body: Bytes,
}

/// An answer to store.
#[derive(Debug)]
pub struct New {
    pub key: Box<[u8]>,
    /// Lower-case names of the request fields it varies on, sorted.
    pub vary: Vec<Box<[u8]>>,
    /// Those fields' values in the request it answers; see [`variant`].
    pub variant: Box<[u8]>,
    pub stored_ms: u64,
    pub expires_ms: u64,
    pub age: u32,
    pub content: Content,
    /// Memory the body took while it came.
    pub held: Held,
}

/// What a look-up came to.
#[derive(Debug)]
pub struct Lookup {
    /// Fresh or not.
    pub entry: Option<Arc<Entry>>,
    /// Hand it to [`Zone::store`]: an answer asked for before a purge is not stored after it.
    pub epoch: u64,
}

/// A share of the memory a zone allows for answers on their way; given back when dropped.
#[derive(Debug)]
pub struct Held {
    in_flight: Arc<AtomicU64>,
    bytes: u64,
    limit: u64,
}

impl Held {
    /// Takes more; false if there is not so much left.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let before = self.in_flight.fetch_add(bytes, Relaxed);
        if before.saturating_add(bytes) > self.limit {
            self.in_flight.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.bytes += bytes;
        true
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.bytes, Relaxed);
    }
}

impl Zone {
    fn new(settings: Settings, checking: bool) -> Zone {
        let limit = settings.disk.as_ref().map_or(settings.memory_size, |disk| disk.size);
        Zone {
            index: Arc::new(Index::new(limit)),
            files: OnceLock::new(),
            opening: Mutex::new(()),
            in_flight: Arc::default(),
            checking,
            settings,
        }
    }

    pub fn disk(&self) -> Option<&DiskSettings> {
        self.settings.disk.as_ref()
    }

    /// Makes the zone ready: folder and threads of one on disk, the first time. For the
    /// control thread, which may wait.
    ///
    /// # Errors
    /// A folder that cannot be used. It is tried again the next time.
    pub fn open(&self) -> Result<(), Invalid> {
        let Some(disk) = self.settings.disk.as_ref().filter(|_| !self.checking) else { return Ok(()) };
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.get().is_none() {
            let files = Files::open(disk, self.settings.memory_size, self.index.clone())?;
            // Nobody else opens it meanwhile, so it is empty still.
            let _ = self.files.set(files);
        }
        Ok(())
    }

    /// The answer for this key and request, fresh or not. `class` tells apart requests
    /// that must not share answers. `scratch` is emptied and used.
    pub fn find(&self, key: &[u8], class: u8, request: &Fields, scratch: &mut Vec<u8>) -> Lookup {
        self.index.find(key, class, request, scratch)
    }

    /// Begins to gather an answer of so many bytes, as far as known. `None` if the zone
    /// would not take it or too much is on its way already.
    pub fn hold(&self, bytes: u64) -> Option<Held> {
        if bytes > self.index.limit() {
            return None;
        }
        let limit = if self.settings.disk.is_some() { IN_FLIGHT } else { self.settings.memory_size };
        let mut held = Held { in_flight: self.in_flight.clone(), bytes: 0, limit };
        held.grow(bytes).then_some(held)
    }

    /// Stores an answer, in place of one for the same key and variant. One for the disk is
    /// given from memory until its file is written.
    pub fn store(&self, new: New, epoch: u64) {
        let New { key, vary, variant, stored_ms, expires_ms, age, content, held } = new;
        let field = |(name, value, _): (&[u8], &[u8], _)| name.len() + value.len() + 24;
        let fields: usize = content.fields.iter().map(field).sum();
        let size = (key.len() * 2 + variant.len() + fields + content.body.len()) as u64 + OVERHEAD;
        let (files, weight) = match (&self.settings.disk, self.files.get()) {
            (None, _) => (None, size),
            (Some(_), Some(files)) => (Some(files), files.weigh(&key, &variant, size)),
            // Not opened: nothing is kept.
            (Some(_), _) => return,
        };
        let (content, chances) = (Some(content), AtomicU8::new(1));
        let entry = Arc::new(Entry { key, variant, stored_ms, expires_ms, age, content, weight, chances });
        match files {
            None => drop(self.index.insert(entry, vary, epoch, true)),
            Some(files) => {
                let removed = self.index.insert(entry.clone(), vary.clone(), epoch, true);
                if !removed.iter().any(|gone| Arc::ptr_eq(gone, &entry)) {
                    files.store(entry, vary, held);
                }
                files.remove(removed);
            }
        }
    }

    /// Gets an answer from its file. `None` if it is gone, damaged or not read in time, or too many
    /// are being read.
    pub async fn load(&self, entry: Arc<Entry>) -> Option<Content> {
        if let Some(content) = &entry.content {
            return Some(content.clone());
        }
        let files = self.files.get()?;
        let held = self.hold(entry.weight)?;
        files.load(entry, held)?.await.ok().flatten()
    }

    /// Removes every answer under the key; false if there was none.
    pub fn purge(&self, key: &[u8]) -> bool {
        let removed = self.index.purge(key);
        let found = !removed.is_empty();
        if let Some(files) = self.files.get() {
            files.remove(removed);
        }
        found
    }

    /// Answers on disk that were not read in time.
    pub fn late_reads(&self) -> u64 {
        self.files.get().map_or(0, Files::late)
    }

    /// Waits until all that was stored or purged so far is so on disk.
    #[cfg(any(test, feature = "testing"))]
    pub fn flush(&self) {
        if let Some(files) = self.files.get() {
            files.flush();
        }
    }

    /// Bytes of the answers in it, as counted against its bound.
    pub fn used(&self) -> u64 {
        self.index.used()
    }
}

/// Writes the values of the fields an answer varies on: equal bytes mean that the answer fits.
pub fn variant(vary: &[Box<[u8]>], class: u8, request: &Fields, out: &mut Vec<u8>) {
    out.clear();
    out.push(class);
    for name in vary {
        for value in request.all(name) {
            out.extend_from_slice(&(value.len() as u32 + 1).to_le_bytes());
            out.extend_from_slice(value);
        }
        out.extend_from_slice(&0u32.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
