//! The embedded store's file: made, opened, closed and opened again after a failure. Every commit is
//! durable before it returns. Nothing here decides what is written; `layout.rs` says how.

use std::cell::Cell;
use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, StorageBackend as _, StorageError, TableError,
};
use serde_json::Value;

use super::layout::{FORMAT, HISTORY, Loaded, Stamp, VERSION, copy, history_path, load, stamp, write};
use super::restore;
use super::seal::Seal;
use crate::store::{Change, History, Record, Revision, StoreError};

/// All rows are in memory anyway, so pages need little cache.
const CACHE: usize = 2 << 20;

/// The open file, or where it was: after a failed write it is closed and opened again.
pub(in crate::store) struct Disk {
    path: PathBuf,
    database: Option<Database>,
    /// Device and inode of the file that was opened first.
    place: Option<(u64, u64)>,
    /// How many commits the file has seen. Notes do not move the revision, so it cannot tell whether one was made.
    commits: u64,
    /// Made when the file is first opened.
    seal: Option<Seal>,
    open: Open,
    /// How much of the history is kept.
    pub history: History,
    /// Bytes of the history in the file.
    history_bytes: Cell<u64>,
}

/// The reason if redb panics on a damaged file.
const CONTRADICTION: &str = "its pages contradict each other";

/// Opens the database; a parameter so that tests can let disks fail.
pub(super) type Open = Box<dyn Fn(&Path) -> Result<Database, DatabaseError> + Send>;

impl Disk {
    /// Opens `folder/store.redb`, making both if they are not there.
    pub fn open(folder: &Path) -> Result<(Disk, Loaded), StoreError> {
        make_folder(folder)?;
        restore::finish(folder).map_err(|error| folder_error(folder, &error))?;
        Disk::open_with(folder.join("store.redb"), Box::new(open_file))
    }

    pub fn open_with(path: PathBuf, open: Open) -> Result<(Disk, Loaded), StoreError> {
        let mut disk = Disk {
            path,
            database: None,
            place: None,
            commits: 0,
            seal: None,
            open,
            history: History::default(),
            history_bytes: Cell::new(0),
        };
        disk.make_file()?;
        let loaded = disk.reopen()?;
        disk.commits = loaded.commits;
        let there = fs::metadata(&disk.path).map_err(|error| disk.explain_io(&error))?;
        disk.place = Some((there.dev(), there.ino()));
        Ok((disk, loaded))
    }

    /// Makes the file unless there is one. Under its name there is a whole store or nothing at
    /// any time, so any other content found there later is known to be damaged.
    fn make_file(&self) -> Result<(), StoreError> {
        if fs::symlink_metadata(&self.path).is_ok() {
            return Ok(());
        }
        if self.path.with_file_name("store.key").exists() {
            tracing::warn!(
                "{} is missing, although {} was in use before: starting with an empty configuration",
                self.path.display(),
                self.folder().display()
            );
        }
        let partial = self.path.with_extension("redb.new");
        // While this holds the lock, no other process makes one.
        let made = make_file(&partial).map_err(|error| self.explain_open(error))?;
        if fs::symlink_metadata(&self.path).is_ok() {
            return Ok(());
        }
        drop(made);
        let move_there = || {
            fs::rename(&partial, &self.path)?;
            fs::File::open(self.folder())?.sync_all()
        };
        move_there().map_err(|error| self.explain_io(&error))
    }

    /// Closes the file, so that another process may open it. The next use opens it again.
    pub fn close(&mut self) {
        self.database = None;
    }

    /// Whether the open file is still the one under its name: what is written to a deleted one is
    /// lost.
    ///
    /// # Errors
    /// [`StoreError::Gone`]
    pub fn check_place(&self) -> Result<(), StoreError> {
        let there = fs::metadata(&self.path).map(|there| (there.dev(), there.ino()));
        match (there, self.place) {
            (Ok(there), place) if place.is_none_or(|place| there == place) => Ok(()),
            (Ok(_), _) => Err(self.gone("another file is in its place, which a restart would use")),
            (Err(error), _) => Err(self.gone(error.to_string())),
        }
    }

    fn gone(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Gone { path: self.path.clone(), reason: reason.into() }
    }

    /// Writes changes in one step: all of them are there after a crash, or none.
    ///
    /// # Errors
    /// [`StoreError::Full`] and others; none of the changes was made.
    pub fn commit(
        &mut self,
        changes: &[Change],
        records: &[Record],
        revision: Revision,
    ) -> Result<(), StoreError> {
        if let Err(gone) = self.check_place() {
            self.database = None;
            return Err(gone);
        }
        if self.database.is_none() && self.reopen()?.commits != self.commits {
            self.database = None;
            return Err(self.gone("another process wrote to it; what it holds now is read first"));
        }
        let (history, commits) = ((records, self.history, &self.history_bytes), self.commits + 1);
        let ends = (revision, commits);
        let written = self.guarded(|database, seal| write(database, seal, changes, history, ends));
        let Err(failed) = written else {
            self.commits = commits;
            return Ok(());
        };
        // redb takes no more writes after a failed one, and cannot tell whether that one
        // reached the disk: only reading the file again can.
        self.database = None;
        match self.reopen() {
            Ok(loaded) if loaded.commits == commits => {
                self.commits = commits;
                Ok(())
            }
            Ok(_) | Err(_) => Err(failed),
        }
    }

    /// Opens the file again if it was closed. Gives all that it holds if another process has written to it
    /// meanwhile, as one does that was to take over and failed.
    ///
    /// # Errors
    /// It cannot be opened, or another file is in its place.
    pub fn take_back(&mut self) -> Result<Option<Loaded>, StoreError> {
        if self.database.is_some() {
            return Ok(None);
        }
        self.check_place()?;
        let loaded = self.reopen()?;
        if loaded.commits == self.commits {
            return Ok(None);
        }
        self.commits = loaded.commits;
        Ok(Some(loaded))
    }

    /// The writes after `after` and up to `until`, newest first. One that cannot be read ends them.
    pub fn records(
        &mut self,
        after: Revision,
        until: Revision,
        limit: usize,
    ) -> Result<Vec<Record>, StoreError> {
        if self.database.is_none() {
            self.reopen()?;
        }
        self.guarded(|database, seal| {
            let table = match database.begin_read()?.open_table(HISTORY) {
                Ok(table) => table,
                Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
            let mut records = Vec::new();
            for row in
                table.range(after.saturating_add(1)..=until.max(after.saturating_add(1)))?.rev().take(limit)
            {
                let (revision, sealed) = row?;
                let revision = revision.value();
                let mut sealed = sealed.value().to_vec();
                let json = seal.open(&history_path(revision), &mut sealed);
                let value = json.and_then(|json| serde_json::from_slice(json).ok());
                match value.and_then(|value: Value| Record::of_json(revision, &value)) {
                    Some(record) if revision <= until => records.push(record),
                    Some(_) => {}
                    None => break,
                }
            }
            Ok(records)
        })
    }

    /// Writes what the file holds after the last commit to `store.copy` beside it, over an earlier copy, and
    /// returns the path. The copy is sealed with the same key.
    ///
    /// # Errors
    /// The file cannot be read, or the copy not be written; then no copy is left.
    pub fn copy(&mut self) -> Result<PathBuf, StoreError> {
        if self.database.is_none() {
            self.reopen()?;
        }
        let (path, partial) = (self.path.with_extension("copy"), self.path.with_extension("copy.new"));
        let made = self.guarded(|database, _| copy(database, &make_file(&partial)?));
        let move_there = || {
            fs::rename(&partial, &path)?;
            fs::File::open(self.folder())?.sync_all()
        };
        let made = made.and_then(|()| move_there().map_err(|error| self.explain_io(&error)));
        if made.is_err() {
            // A partial file may fill the disk.
            let _ = fs::remove_file(&partial);
        }
        made.map(|()| path)
    }

    fn reopen(&mut self) -> Result<Loaded, StoreError> {
        let opened = catch_unwind(AssertUnwindSafe(|| (self.open)(&self.path)));
        let database = opened.unwrap_or_else(|_| Err(corrupted())).map_err(|e| self.explain_open(e))?;
        let found = catch_unwind(AssertUnwindSafe(|| stamp(&database)));
        let found = found.unwrap_or_else(|_| Err(redb::Error::Corrupted(CONTRADICTION.to_owned())));
        let stamp = found.map_err(|error| self.explain(error))?;
        if let Some(stamp) = stamp.as_ref().filter(|stamp| stamp.format != FORMAT) {
            return Err(self.other_format(stamp));
        }
        // Only now is no other process at work in the folder.
        if self.seal.is_none() {
            let seal = Seal::load_or_make(&self.path.with_file_name("store.key"), stamp.is_none());
            self.seal = Some(seal.map_err(|error| folder_error(self.folder(), &error))?);
        }
        self.database = Some(database);
        let loaded = self.guarded(load);
        match &loaded {
            Ok(loaded) => self.history_bytes.set(loaded.history_bytes),
            Err(_) => self.database = None,
        }
        loaded
    }

    /// Runs `work`, turning errors into ours. redb panics on some kinds of damage.
    fn guarded<T>(
        &self,
        work: impl FnOnce(&Database, &Seal) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let (Some(database), Some(seal)) = (&self.database, &self.seal) else {
            return Err(StoreError::Unavailable("the store's file is closed".to_owned()));
        };
        match catch_unwind(AssertUnwindSafe(|| work(database, seal))) {
            Ok(done) => done.map_err(|error| self.explain(error)),
            Err(_) => Err(self.damaged(CONTRADICTION)),
        }
    }

    fn explain(&self, error: redb::Error) -> StoreError {
        match error {
            redb::Error::Io(error) => self.explain_io(&error),
            redb::Error::Corrupted(reason) => self.damaged(reason),
            error @ (redb::Error::TableTypeMismatch { .. } | redb::Error::TableIsMultimap(_)) => {
                self.other_version(error.to_string())
            }
            error => StoreError::Unavailable(error.to_string()),
        }
    }

    fn explain_open(&self, error: DatabaseError) -> StoreError {
        match error {
            DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
                StoreError::Locked { path: self.path.clone() }
            }
            DatabaseError::UpgradeRequired(version) => self.other_version(format!(
                "its file format is version {version}; open it with the release that wrote it and export it"
            )),
            // The error of redb for a file that is not a redb file.
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                self.damaged(error.to_string())
            }
            DatabaseError::Storage(StorageError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.gone(error.to_string())
            }
            DatabaseError::Storage(StorageError::Io(error)) => self.explain_io(&error),
            DatabaseError::Storage(StorageError::Corrupted(reason)) => self.damaged(reason),
            error => StoreError::Unavailable(error.to_string()),
        }
    }

    fn explain_io(&self, error: &io::Error) -> StoreError {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match error.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                StoreError::Full(format!("{}: {error}", self.path.display()))
            }
            io::ErrorKind::UnexpectedEof => self.damaged("it is truncated"),
            _ => folder_error(self.folder(), error),
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    fn damaged(&self, reason: impl Into<String>) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), reason: reason.into() }
    }

    fn other_format(&self, Stamp { format, written_by }: &Stamp) -> StoreError {
        let by =
            written_by.as_ref().map(|version| format!(" (written by sluice {version})")).unwrap_or_default();
        self.other_version(format!(
            "it has format {format}{by}, and this sluice {VERSION} reads format {FORMAT}; start a newer binary, or \
             replace the store by a backup of this version with `sluice restore --force`"
        ))
    }

    fn other_version(&self, reason: String) -> StoreError {
        StoreError::UpgradeRequired { path: self.path.clone(), reason }
    }
}

/// Makes the folder with mode 0700 unless it is there.
///
/// # Errors
/// [`StoreError::Folder`] with what to do.
pub(super) fn make_folder(folder: &Path) -> Result<(), StoreError> {
    if fs::metadata(folder).is_ok_and(|there| there.is_dir()) {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| folder_error(folder, &error))
}

pub(super) fn folder_error(path: &Path, error: &io::Error) -> StoreError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let this user write there, or choose another folder with --data"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; something that is not a folder is in the way: move it, or choose another folder with --data"
        }
        _ => "",
    };
    StoreError::Folder { path: path.to_owned(), reason: format!("{error}{hint}") }
}

/// Opens a file that is there.
pub(super) fn open_file(path: &Path) -> Result<Database, DatabaseError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // redb would take it for a new one.
    if file.metadata()?.len() == 0 {
        let reason = "it is empty, as a full disk or an interrupted copy leaves it";
        return Err(DatabaseError::Storage(StorageError::Corrupted(reason.to_owned())));
    }
    builder().create_with_backend(FileBackend::new(file)?)
}

/// Makes a file, over what is left of one that was begun.
fn make_file(path: &Path) -> Result<Database, DatabaseError> {
    // The file holds credentials: only its owner may read it.
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // redb takes its lock later; until then nothing may be cut off that another process is making. Where the file
    // system has no such locks, redb has none either.
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(DatabaseError::DatabaseAlreadyOpen);
    }
    let backend = FileBackend::new(file)?;
    backend.set_len(0)?;
    builder().create_with_backend(backend)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    // Checking on opening costs a read of the whole file, and says "damaged" at the start
    // instead of failing or panicking at some write later.
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    builder
}

fn corrupted() -> DatabaseError {
    DatabaseError::Storage(StorageError::Corrupted(CONTRADICTION.to_owned()))
}
