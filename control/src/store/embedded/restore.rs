//! Replaces the files of a data folder by those of a backup, all of them or none.
//!
//! The new files are written to [`STAGED`] inside the folder, so that a folder which is a mount point works too.
//! Renaming that to [`READY`] is the decision; moving the files to their places can then be finished by any
//! process that opens the folder, and is finished before a store is opened there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use model::Kind;

use super::Disk;
use super::disk::{folder_error, make_folder, open_file};
use crate::store::{Revision, StoreError};

/// The folder in the data folder into which a backup is unpacked. Its content has no effect.
pub const STAGED: &str = "restore.new";
/// The same folder once its files are complete: they replace those of the data folder.
pub const READY: &str = "restore.ready";

/// The content of a file of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Kinds that have resources, with their number.
    pub resources: Vec<(Kind, usize)>,
    pub revision: Revision,
}

/// Reads a whole store with the `store.key` beside it.
///
/// # Errors
/// It is damaged or truncated, in use, or sealed with another key.
pub fn contents(file: &Path) -> Result<Contents, StoreError> {
    // Opening a path that does not exist would make a store.
    fs::metadata(file).map_err(|error| folder_error(file, &error))?;
    let (_, loaded) = Disk::open_with(file.to_owned(), Box::new(open_file))?;
    let count = |kind: &Kind| loaded.items.iter().filter(|row| row.key.kind == *kind).count();
    let resources = Kind::ALL.iter().map(|kind| (*kind, count(kind))).filter(|(_, count)| *count > 0);
    Ok(Contents { resources: resources.collect(), revision: loaded.revision })
}

/// Holds the lock of a folder's store, so that no gateway starts with it meanwhile.
pub struct Lock(#[expect(dead_code, reason = "held until dropped")] Option<File>);

/// Locks the store in a folder, damaged or not. Without a store there is nothing to lock.
///
/// # Errors
/// [`StoreError::Locked`] if another process has it open; a file that cannot be opened.
pub fn lock(folder: &Path) -> Result<Lock, StoreError> {
    let path = folder.join("store.redb");
    let file = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lock(None)),
        Err(error) => return Err(folder_error(&path, &error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Lock(Some(file))),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
        Err(TryLockError::Error(error)) => Err(folder_error(&path, &error)),
    }
}

/// Makes the folder for the files of a backup, without those of a restore that was interrupted.
///
/// # Errors
/// A folder that cannot be written.
pub fn stage(folder: &Path) -> Result<(), StoreError> {
    make_folder(folder)?;
    let staged = folder.join(STAGED);
    match fs::remove_dir_all(&staged) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(folder_error(&staged, &error)),
        _ => make_folder(&staged),
    }
}

/// Replaces the folder's files by those that were staged; files of other names stay.
///
/// # Errors
/// A folder that cannot be written. If some files have been replaced, the next start or [`finish`] replaces the rest.
pub fn commit(folder: &Path) -> Result<(), StoreError> {
    let decide = || {
        File::open(folder.join(STAGED))?.sync_all()?;
        fs::rename(folder.join(STAGED), folder.join(READY))?;
        File::open(folder)?.sync_all()?;
        finish(folder)
    };
    decide().map_err(|error| folder_error(folder, &error))
}

/// Moves the files of a restore that was decided to their places. Does nothing without one.
///
/// # Errors
/// A folder that cannot be written.
pub fn finish(folder: &Path) -> io::Result<()> {
    let ready = folder.join(READY);
    let entries = match fs::read_dir(&ready) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // Another process may be doing the same.
    let done = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    for entry in entries {
        let entry = entry?;
        done(fs::rename(entry.path(), folder.join(entry.file_name())))?;
    }
    File::open(folder)?.sync_all()?;
    done(fs::remove_dir(&ready))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Embedded;

    #[test]
    fn a_restore_is_decided_by_one_rename_and_finished_by_the_next_open() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, other) = (folder.path().join("data"), folder.path().join("other"));
        drop(Embedded::open(&other).unwrap());
        drop(Embedded::open(&folder).unwrap());
        let key = |folder: &Path| fs::read_to_string(folder.join("store.key")).unwrap();
        assert_ne!(key(&folder), key(&other));

        stage(&folder).unwrap();
        fs::write(folder.join(STAGED).join("store.key"), "half").unwrap();
        drop(Embedded::open(&folder).unwrap());
        // The next restore begins with an empty folder.
        stage(&folder).unwrap();
        for name in ["store.redb", "store.key"] {
            fs::copy(other.join(name), folder.join(STAGED).join(name)).unwrap();
        }
        // Interrupted between the decision and the last move.
        fs::rename(folder.join(STAGED), folder.join(READY)).unwrap();
        fs::rename(folder.join(READY).join("store.key"), folder.join("store.key")).unwrap();
        drop(Embedded::open(&folder).unwrap());
        assert_eq!(key(&folder), key(&other));
        assert!(!folder.join(READY).exists());
    }

    #[test]
    fn a_store_in_use_is_locked_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert!(lock(folder.path()).is_ok());
        let store = Embedded::open(folder.path()).unwrap();
        assert!(matches!(lock(folder.path()), Err(StoreError::Locked { .. })));
        drop(store);
        fs::write(folder.path().join("store.redb"), "damaged").unwrap();
        let held = lock(folder.path()).unwrap();
        assert!(matches!(lock(folder.path()), Err(StoreError::Locked { .. })));
        drop(held);
        assert!(matches!(contents(&folder.path().join("store.redb")), Err(StoreError::Damaged { .. })));
    }
}
