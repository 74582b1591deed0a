//! The zones of responses that are kept.

use std::path::PathBuf;
use std::time::Duration;

/// The zones of the plugin `proxy-cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyCache {
    /// For answers on disk that do not say how long they keep.
    pub ttl: Duration,
    /// How long an answer may take to be read from disk.
    pub read_timeout: Duration,
    pub zones: Vec<Zone>,
}

/// A cache zone: in memory alone, or with answers on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    pub name: String,
    /// Bytes: of answers, or of the index of those on disk.
    pub memory_size: u64,
    pub disk: Option<Disk>,
}

/// Where a cache zone keeps answers on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub size: u64,
    pub path: PathBuf,
    /// Letters of each level of folders.
    pub levels: Vec<u8>,
}
