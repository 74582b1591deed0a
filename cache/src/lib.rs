//! Response caches shared by all workers.
//!
//! A zone stores responses by key and, under a key, by the request fields that the response varies
//! on (RFC 9111 section 4.1). It is limited in bytes and evicts entries that were not used lately.
//! A zone in memory stores whole responses; one on disk keeps an index in memory and one
//! checksummed file per response, which its own threads read and write: a worker never touches a
//! file. The plugin decides which responses are stored, and for how long they are fresh.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]
#![cfg_attr(
    not(test),
    expect(clippy::disallowed_types, reason = "taken when zones are created or closed, never by a request")
)]

mod disk;
mod entry;
mod file;
mod flights;
mod index;
mod reader;
mod vary;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::Invalid;
use wire::Fields;

use disk::Files;
use entry::EntryHead;
pub use entry::{Entry, Terms};
use flights::Flights;
pub use flights::{Flight, Landing, Leader};
use index::Index;
pub use vary::{members, variant};

/// The most memory in bytes for responses that are being read from or written to a disk zone.
const IN_FLIGHT: u64 = 256 << 20;

/// The approximate memory of an index entry beside its key, in bytes.
const OVERHEAD: u64 = 320;

/// The boot file's settings of one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub name: String,
    /// Bytes of responses, or of the index of a disk zone.
    pub memory_size: u64,
    pub disk: Option<DiskSettings>,
}

/// Where a zone stores its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSettings {
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Letters of each folder level, as in nginx's `levels`.
    pub levels: Vec<u8>,
    /// Lifetime of responses that declare none.
    pub ttl: Duration,
    /// The deadline of a read; after it the upstream is used.
    pub read_timeout: Duration,
}

/// The node's cache zones. A zone uses no memory, folder or thread until a plugin instance opens
/// it.
#[derive(Debug, Default)]
pub struct Caches {
    zones: Vec<Arc<Zone>>,
}

impl Caches {
    pub fn new(zones: Vec<Settings>) -> Caches {
        Caches { zones: zones.into_iter().map(|settings| Arc::new(Zone::new(settings, false))).collect() }
    }

    /// Zones that are never opened: for checking configurations without touching folders.
    pub fn for_checking(zones: Vec<Settings>) -> Caches {
        Caches { zones: zones.into_iter().map(|settings| Arc::new(Zone::new(settings, true))).collect() }
    }

    pub fn zone(&self, name: &str) -> Option<&Arc<Zone>> {
        self.zones.iter().find(|zone| zone.settings.name == name)
    }

    /// Reads from disk that missed their deadline, in all zones.
    pub fn late_reads(&self) -> u64 {
        self.zones.iter().map(|zone| zone.late_reads()).sum()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.zones.iter().map(|zone| zone.settings.name.as_str())
    }
}

/// One cache zone.
#[derive(Debug)]
pub struct Zone {
    settings: Settings,
    checking: bool,
    index: Arc<Index>,
    files: OnceLock<Files>,
    /// TransferShare while the zone is being opened.
    opening: Mutex<()>,
    in_flight: Arc<AtomicU64>,
    flights: Arc<Flights>,
}

/// A stored response.
#[derive(Debug, Clone)]
pub struct Content {
    pub status: u16,
    pub fields: Fields,
    pub body: Bytes,
}

/// A response to store.
#[derive(Debug)]
pub struct New {
    pub key: Box<[u8]>,
    /// Lower-case names of the request fields it varies on, sorted.
    pub vary: Vec<Box<[u8]>>,
    /// The values of those fields in the request; see [`variant`].
    pub variant: Box<[u8]>,
    pub stored_ms: u64,
    pub expires_ms: u64,
    pub age: u32,
    pub terms: Terms,
    pub content: Content,
    /// Memory that the body occupied while it was received.
    pub held: TransferShare,
}

/// The result of a look-up.
#[derive(Debug)]
pub struct Lookup {
    /// Fresh or not.
    pub entry: Option<Arc<Entry>>,
    /// Passed to [`Zone::store`]: a response requested before a purge is not stored after it.
    pub epoch: u64,
}

/// A share of the memory that a zone allows for responses in transfer; released when dropped.
#[derive(Debug)]
pub struct TransferShare {
    in_flight: Arc<AtomicU64>,
    bytes: u64,
    limit: u64,
}

impl TransferShare {
    /// Reserves more; `false` if too little is left.
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

impl Drop for TransferShare {
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
            flights: Arc::default(),
            checking,
            settings,
        }
    }

    pub fn disk(&self) -> Option<&DiskSettings> {
        self.settings.disk.as_ref()
    }

    /// Opens the zone on first use: creates the folder and threads of a disk zone. For the control
    /// thread, which may block.
    ///
    /// # Errors
    /// The folder cannot be used. The next call tries again.
    pub fn open(&self) -> Result<(), Invalid> {
        let Some(disk) = self.settings.disk.as_ref().filter(|_| !self.checking) else { return Ok(()) };
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.get().is_none() {
            let files = Files::open(disk, self.settings.memory_size, self.index.clone())?;
            // The lock excludes other openers, so it is still empty.
            let _ = self.files.set(files);
        }
        Ok(())
    }

    /// Looks up the entry for this key and request, fresh or not. `class` separates requests that
    /// must not share responses. `scratch` is cleared and used.
    pub fn find(&self, key: &[u8], class: u8, request: &Fields, scratch: &mut Vec<u8>) -> Lookup {
        self.index.find(key, class, request, scratch)
    }

    /// Registers a request that no stored response answers: the first of a key is sent, others may wait for
    /// its response.
    pub fn join(&self, key: &[u8]) -> Flight {
        self.flights.join(key)
    }

    /// Reserves memory for a response of this expected size in bytes. `None` if the zone would not
    /// store it or too many responses are in transfer.
    pub fn hold(&self, bytes: u64) -> Option<TransferShare> {
        if bytes > self.index.limit() {
            return None;
        }
        let limit = if self.settings.disk.is_some() { IN_FLIGHT } else { self.settings.memory_size };
        let mut held = TransferShare { in_flight: self.in_flight.clone(), bytes: 0, limit };
        held.grow(bytes).then_some(held)
    }

    /// Stores a response, replacing the one for the same key and variant. A response for the disk
    /// is served from memory until its file is written.
    pub fn store(&self, new: New, epoch: u64) {
        let New { key, vary, variant, stored_ms, expires_ms, age, terms, content, held } = new;
        let field = |(name, value, _): (&[u8], &[u8], _)| name.len() + value.len() + 24;
        let fields: usize = content.fields.iter().map(field).sum();
        let size = (key.len() * 2 + variant.len() + fields + content.body.len()) as u64 + OVERHEAD;
        let (files, weight) = match (&self.settings.disk, self.files.get()) {
            (None, _) => (None, size),
            (Some(_), Some(files)) => (Some(files), files.weigh(&key, &variant, size)),
            // Not opened: nothing is stored.
            (Some(_), _) => return,
        };
        let head = EntryHead { key, variant, stored_ms, expires_ms, age };
        let entry = Arc::new(Entry::new(head, terms, Some(content), weight));
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

    /// Loads a response from its file. `None` if it is missing, damaged or not read in time, or if
    /// too many are being read.
    pub async fn load(&self, entry: Arc<Entry>) -> Option<Content> {
        if let Some(content) = &entry.content {
            return Some(content.clone());
        }
        let files = self.files.get()?;
        let held = self.hold(entry.weight)?;
        files.load(entry, held)?.await.ok().flatten()
    }

    /// Removes all entries of the key; `false` if there were none.
    pub fn purge(&self, key: &[u8]) -> bool {
        let removed = self.index.purge(key);
        let found = !removed.is_empty();
        if let Some(files) = self.files.get() {
            files.remove(removed);
        }
        found
    }

    /// Removes one entry, if it is still indexed.
    pub fn remove(&self, entry: &Arc<Entry>) {
        if self.index.remove(entry)
            && let Some(files) = self.files.get()
        {
            files.remove(vec![entry.clone()]);
        }
    }

    /// The epoch of a key, as in [`Lookup`].
    pub fn epoch(&self, key: &[u8]) -> u64 {
        self.index.epoch(key)
    }

    /// Reads from disk that missed their deadline.
    pub fn late_reads(&self) -> u64 {
        self.files.get().map_or(0, Files::late)
    }

    /// Waits until all previous stores and purges have reached the disk.
    #[cfg(any(test, feature = "testing"))]
    pub fn flush(&self) {
        if let Some(files) = self.files.get() {
            files.flush();
        }
    }

    /// Bytes of the stored responses, as counted against the limit.
    pub fn used(&self) -> u64 {
        self.index.used()
    }
}

#[cfg(test)]
mod tests;
