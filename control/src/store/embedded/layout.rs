//! The layout of the embedded store's file, and how it is read and written.
//!
//! One `redb` database: `rows` holds a resource a row, its value as sealed JSON,
//! `notes` sealed texts beside them, `history` sealed records of what was written,
//! `meta` the revision, the number of commits, the list of plugins and the version of this layout.
//! Which file that is, and what becomes of it when something fails, is not known here.

use std::cell::Cell;
use std::collections::BTreeMap;

use model::Key;
use redb::{
    CommitError, Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable,
    ReadableTableMetadata, TableDefinition, TableError, TransactionError, WriteTransaction,
};
use serde_json::Value;
use snapshot::parallel;

use super::seal::Seal;
use crate::store::{Change, History, Record, Revision, Row};

/// Store path (`/routes/1`) to created, modified, end of the lease in ms (0: no lease), sealed JSON.
const ROWS: TableDefinition<&str, (u64, u64, u64, &[u8])> = TableDefinition::new("rows");
/// Revision to the sealed JSON of the write that ended with it.
pub(super) const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
const META: TableDefinition<&str, &str> = TableDefinition::new("meta");
/// The name of a note to its sealed text.
const NOTES: TableDefinition<&str, &[u8]> = TableDefinition::new("notes");

/// The version of the layout above.
pub(super) const FORMAT: u64 = 1;
/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All that a file holds.
#[derive(Debug, Default)]
pub(in crate::store) struct Loaded {
    pub items: Vec<Row>,
    pub plugins: Option<Vec<String>>,
    pub revision: Revision,
    pub notes: BTreeMap<String, String>,
    pub(super) commits: u64,
    /// Bytes of the history in the file.
    pub(super) history_bytes: u64,
}

/// Copies one file's rows, notes, history and meta, still sealed, into a new file in one durable transaction.
pub(super) fn copy(from: &Database, to: &Database) -> Result<(), redb::Error> {
    let (from, mut to) = (from.begin_read()?, to.begin_write()?);
    to.set_durability(Durability::Immediate)?;
    copy_table(&from, &to, ROWS)?;
    copy_table(&from, &to, HISTORY)?;
    copy_table(&from, &to, META)?;
    copy_table(&from, &to, NOTES)?;
    to.commit()?;
    Ok(())
}

fn copy_table<K: redb::Key + 'static, V: redb::Value + 'static>(
    from: &ReadTransaction,
    to: &WriteTransaction,
    definition: TableDefinition<K, V>,
) -> Result<(), redb::Error> {
    let from = match from.open_table(definition) {
        Ok(table) => table,
        // A new store has no tables, one of an earlier release fewer.
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut to = to.open_table(definition)?;
    for entry in from.iter()? {
        let (key, value) = entry?;
        to.insert(key.value(), value.value())?;
    }
    Ok(())
}

/// Layout of a file, and the version of the program that wrote to it last.
pub(super) struct Stamp {
    pub format: u64,
    /// The first version did not write it.
    pub written_by: Option<String>,
}

/// Reads which layout a file has; `None` if nothing was ever written.
pub(super) fn stamp(database: &Database) -> Result<Option<Stamp>, redb::Error> {
    let meta = match database.begin_read()?.open_table(META) {
        Ok(meta) => meta,
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let format = meta.get("format")?.and_then(|text| text.value().parse().ok());
    let format = format.ok_or_else(|| broken("the version of its format"))?;
    let written_by = meta.get("written_by")?.map(|text| text.value().to_owned());
    Ok(Some(Stamp { format, written_by }))
}

/// Reads all of it.
pub(super) fn load(database: &Database, seal: &Seal) -> Result<Loaded, redb::Error> {
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

/// Prefix of notes' names in the table of facts, where they were kept unsealed at first.
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
pub(super) fn history_path(revision: Revision) -> String {
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

/// Writes changes and what is remembered of them, in one durable transaction.
pub(super) fn write(
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
        for (name, text) in [("format", FORMAT.to_string().as_str()), ("written_by", VERSION)] {
            if meta.get(name)?.is_none_or(|there| there.value() != text) {
                meta.insert(name, text)?;
            }
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
