//! The runner, as its plugins and the program that starts it share it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the runner listens, and which of its processes is meant. A service ([`sdk::Build::service`]).
#[derive(Debug)]
pub struct Runner {
    path: Arc<Path>,
    /// Moves whenever tokens of before are unknown.
    epoch: AtomicU32,
}

impl Runner {
    /// A runner that listens on this Unix socket.
    pub fn new(path: &Path) -> Runner {
        Runner { path: path.into(), epoch: AtomicU32::new(0) }
    }

    pub fn path(&self) -> Arc<Path> {
        self.path.clone()
    }

    /// Makes the plugins send their configurations again: the process has ended, or does not know them.
    pub fn forget_tokens(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }
}
