//! The embedded store's file.
//!
//! One `redb` database: `rows` holds a resource a row, its value as sealed JSON,
//! `notes` sealed texts beside them, `history` sealed records of what was written,
//! `meta` the revision, the number of commits, the list of plugins and the version of this layout. Every commit is durable before it returns. Nothing here decides
//! what is written.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use model::Key;
use redb::backends::FileBackend;
use redb::{
    Builder, CommitError, Database, DatabaseError, Durability, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, StorageBackend as _, StorageError, TableDefinition, TableError, TransactionError,
};
use serde_json::Value;
use snapshot::parallel;

use super::seal::Seal;
use crate::store::{Change, History, Record, Revision, Row, StoreError};

/// Store path (`/routes/1`) to created, modified, end of the lease in ms (0 is none), sealed JSON.
const ROWS: TableDefinition<&str, (u64, u64, u64, &[u8])> = TableDefinition::new("rows");
/// Revision to the sealed JSON of the write that ended with it.
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
const META: TableDefinition<&str, &str> = TableDefinition::new("meta");
/// The name of a note to its sealed text.
const NOTES: TableDefinition<&str, &[u8]> = TableDefinition::new("notes");

/// The version of the layout above.
const FORMAT: &str = "1";

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

/// Opens the database; a parameter so that tests can let disks fail.
pub(super) type Open = Box<dyn Fn(&Path) -> Result<Database, DatabaseError> + Send>;

/// All that a file holds.
#[derive(Debug, Default)]
pub(in crate::store) struct Loaded {
    pub items: Vec<Row>,
    pub plugins: Option<Vec<String>>,
    pub revision: Revision,
    pub notes: BTreeMap<String, String>,
    commits: u64,
    history_bytes: u64,
}

impl Disk {
    /// Opens `folder/store.redb`, making both if they are not there.
    pub fn open(folder: &Path) -> Result<(Disk, Loaded), StoreError> {
        make_folder(folder)?;
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
    /// any time, so that whatever else is found there later is known to be damaged.
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
        // Holding its lock, nobody else is making one.
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

    fn reopen(&mut self) -> Result<Loaded, StoreError> {
        let opened = catch_unwind(AssertUnwindSafe(|| (self.open)(&self.path)));
        let database = opened.unwrap_or_else(|_| Err(corrupted())).map_err(|e| self.explain_open(e))?;
        // Only now is nobody else at work in the folder.
        if self.seal.is_none() {
            let new = is_new(&database).map_err(|error| self.explain(error))?;
            let seal = Seal::load_or_make(&self.path.with_file_name("store.key"), new);
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
            Err(_) => Err(self.damaged("its pages contradict each other")),
        }
    }

    fn explain(&self, error: redb::Error) -> StoreError {
        match error {
            redb::Error::Io(error) => self.explain_io(&error),
            redb::Error::Corrupted(reason) => self.damaged(reason),
            redb::Error::UpgradeRequired(version) => {
                self.other_version(format!("its layout is version {version}, this program writes {FORMAT}"))
            }
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
            // What redb answers for a file that is none of its own.
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

fn folder_error(path: &Path, error: &io::Error) -> StoreError {
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
fn open_file(path: &Path) -> Result<Database, DatabaseError> {
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
    // The file holds credentials: nobody else may read it.
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // Takes the lock, so that nothing is cut off that somebody else is making.
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
    DatabaseError::Storage(StorageError::Corrupted("its pages contradict each other".to_owned()))
}

/// Whether nothing was ever written.
fn is_new(database: &Database) -> Result<bool, redb::Error> {
    match database.begin_read()?.open_table(META) {
        Ok(_) => Ok(false),
        Err(TableError::TableDoesNotExist(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn load(database: &Database, seal: &Seal) -> Result<Loaded, redb::Error> {
    let mut loaded = Loaded::default();
    let transaction = database.begin_read()?;
    let meta = match transaction.open_table(META) {
        Ok(meta) => meta,
        // A new file.
        Err(TableError::TableDoesNotExist(_)) => return Ok(loaded),
        Err(error) => return Err(error.into()),
    };
    let read = |name: &str| -> Result<Option<String>, redb::Error> {
        Ok(meta.get(name)?.map(|text| text.value().to_owned()))
    };
    let format = read("format")?.unwrap_or_default();
    if format != FORMAT {
        return Err(redb::Error::UpgradeRequired(format.parse().unwrap_or(u8::MAX)));
    }
    loaded.revision =
        read("revision")?.and_then(|text| text.parse().ok()).ok_or_else(|| broken("the revision"))?;
    // A file of a release that did not count has made none.
    loaded.commits = read("commits")?.and_then(|text| text.parse().ok()).unwrap_or_default();
    if let Some(text) = read("plugins")? {
        loaded.plugins = Some(serde_json::from_str(&text).map_err(|_| broken("the list of plugins"))?);
    }
    match transaction.open_table(HISTORY) {
        Ok(history) => {
            for record in history.iter()? {
                loaded.history_bytes += record?.1.value().len() as u64;
            }
        }
        // A file of a release that kept none.
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    for entry in meta.iter()? {
        let (name, text) = entry?;
        if let Some(name) = name.value().strip_prefix(CLEAR_NOTE) {
            loaded.notes.insert(name.to_owned(), text.value().to_owned());
        }
    }
    match transaction.open_table(NOTES) {
        Ok(notes) => {
            for entry in notes.iter()? {
                let (name, sealed) = entry?;
                let path = note_path(name.value());
                let mut sealed = sealed.value().to_vec();
                let text = seal.open(&path, &mut sealed).ok_or_else(|| not_sealed(&path))?;
                let text = str::from_utf8(text).map_err(|_| broken(&path))?;
                loaded.notes.insert(name.value().to_owned(), text.to_owned());
            }
        }
        Err(TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let rows = transaction.open_table(ROWS)?;
    let read = |give: &mut dyn FnMut(Sealed)| {
        for row in rows.iter()? {
            let (path, row) = row?;
            let (created, modified, expires, sealed) = row.value();
            let expires = (expires != 0).then_some(expires);
            let (path, sealed) = (path.value().to_owned(), sealed.to_vec());
            give(Sealed { path, created, modified, expires, sealed });
        }
        Ok::<(), redb::Error>(())
    };
    loaded.items = parallel::map_made(read, |row| row.open(seal))?.collect::<Result<_, _>>()?;
    Ok(loaded)
}

/// A row as it is in the file.
struct Sealed {
    path: String,
    created: Revision,
    modified: Revision,
    expires: Option<u64>,
    sealed: Vec<u8>,
}

impl Sealed {
    fn open(self, seal: &Seal) -> Result<Row, redb::Error> {
        let Sealed { path, created, modified, expires, mut sealed } = self;
        let json = seal.open(&path, &mut sealed).ok_or_else(|| not_sealed(&path))?;
        let key = Key::parse("", &path).ok_or_else(|| broken(&path))?;
        let json = str::from_utf8(json).map_err(|_| broken(&path))?;
        Ok(Row { key, json: json.into(), created, modified, expires })
    }
}

fn broken(what: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{what} cannot be read"))
}

fn not_sealed(path: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{path} was not sealed with the key in store.key"))
}

/// What the names of notes begin with in the table of facts, where they were kept unsealed at first.
const CLEAR_NOTE: &str = "note ";

/// Under which a note is sealed; no resource has such a path.
fn note_path(name: &str) -> String {
    format!("note/{name}")
}

/// Seals notes that were kept unsealed.
fn seal_notes(
    meta: &mut redb::Table<'_, &'static str, &'static str>,
    notes: &mut redb::Table<'_, &'static str, &'static [u8]>,
    seal: &Seal,
) -> Result<(), redb::Error> {
    let mut clear = Vec::new();
    for entry in meta.range(CLEAR_NOTE..)? {
        let (name, text) = entry?;
        let Some(name) = name.value().strip_prefix(CLEAR_NOTE) else { break };
        clear.push((name.to_owned(), text.value().to_owned()));
    }
    for (name, text) in clear {
        keep_note(notes, seal, &name, &text)?;
        meta.remove(format!("{CLEAR_NOTE}{name}").as_str())?;
    }
    Ok(())
}

fn keep_note(
    notes: &mut redb::Table<'_, &'static str, &'static [u8]>,
    seal: &Seal,
    name: &str,
    text: &str,
) -> Result<(), redb::Error> {
    let sealed = seal.seal(&note_path(name), text.as_bytes());
    let sealed = sealed.ok_or_else(|| redb::Error::ValueTooLarge(text.len()))?;
    notes.insert(name, &*sealed)?;
    Ok(())
}

/// Under which a record of the history is sealed.
fn history_path(revision: Revision) -> String {
    format!("history/{revision}")
}

/// Adds records and drops the oldest beyond what is kept.
fn remember(
    table: &mut redb::Table<'_, u64, &'static [u8]>,
    seal: &Seal,
    (records, kept, bytes): (&[Record], History, &Cell<u64>),
) -> Result<(), redb::Error> {
    for record in records.iter().filter(|_| kept.records > 0) {
        let json = record.to_json().to_string();
        let sealed = seal.seal(&history_path(record.revision), json.as_bytes());
        let sealed = sealed.ok_or_else(|| redb::Error::ValueTooLarge(json.len()))?;
        table.insert(record.revision, &*sealed)?;
        bytes.set(bytes.get() + sealed.len() as u64);
    }
    while table.len()? > kept.records || bytes.get() > kept.bytes {
        let Some((_, gone)) = table.pop_first()? else { break };
        bytes.set(bytes.get().saturating_sub(gone.value().len() as u64));
    }
    Ok(())
}

fn write(
    database: &Database,
    seal: &Seal,
    changes: &[Change],
    history: (&[Record], History, &Cell<u64>),
    (revision, commits): (Revision, u64),
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write().map_err(begin_error)?;
    transaction.set_durability(Durability::Immediate)?;
    {
        let mut rows = transaction.open_table(ROWS)?;
        let mut meta = transaction.open_table(META)?;
        let mut notes = transaction.open_table(NOTES)?;
        seal_notes(&mut meta, &mut notes, seal)?;
        for change in changes {
            match change {
                Change::Put(row) => {
                    let path = row.key.path("");
                    let sealed = seal.seal(&path, row.json.as_bytes());
                    let sealed = sealed.ok_or_else(|| redb::Error::ValueTooLarge(row.json.len()))?;
                    let row = (row.created, row.modified, row.expires.unwrap_or(0), &*sealed);
                    rows.insert(path.as_str(), row)?;
                }
                Change::Delete { key, .. } => {
                    rows.remove(key.path("").as_str())?;
                }
                Change::Plugins { names: Some(names), .. } => {
                    meta.insert("plugins", Value::from(names.clone()).to_string().as_str())?;
                }
                Change::Plugins { names: None, .. } => {
                    meta.remove("plugins")?;
                }
                Change::Note { name, text, .. } => {
                    keep_note(&mut notes, seal, name, text)?;
                }
                // Made when a file is read, never when something is written.
                Change::Reset { .. } => {}
            }
        }
        remember(&mut transaction.open_table(HISTORY)?, seal, history)?;
        meta.insert("revision", revision.to_string().as_str())?;
        meta.insert("commits", commits.to_string().as_str())?;
        if meta.get("format")?.is_none_or(|format| format.value() != FORMAT) {
            meta.insert("format", FORMAT)?;
        }
    }
    transaction.commit().map_err(|error| match error {
        CommitError::Storage(error) => error.into(),
        error => error.into(),
    })
}

fn begin_error(error: TransactionError) -> redb::Error {
    match error {
        TransactionError::Storage(error) => error.into(),
        error => error.into(),
    }
}
