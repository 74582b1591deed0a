//! The signs of a change: events of the file's folder, and the attributes of a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};

use super::Signal;

/// Watches the folder, since editors and Kubernetes replace a file instead of writing to it.
pub(super) fn watch(path: &Path, signal: Signal) -> notify::Result<RecommendedWatcher> {
    let name = path.file_name().map(ToOwned::to_owned);
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else { return signal.look() };
        let writes = match event.kind {
            // Reading the file makes events as well, which must not make it be read again.
            EventKind::Access(access) => access == AccessKind::Close(AccessMode::Write),
            _ => true,
        };
        let ours = event.paths.iter().any(|path| path.file_name() == name.as_deref());
        match (writes, ours) {
            (true, true) => signal.touched(),
            // A symbolic link on the way may have been turned: worth a look.
            (true, false) => signal.look(),
            (false, _) => {}
        }
    })?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// The attributes that change with a file, or with the entries of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
}

impl Stat {
    /// `None` if it does not exist.
    pub fn of(path: &Path) -> Option<Stat> {
        let meta = fs::metadata(path).ok()?;
        Some(Stat {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })
    }
}
