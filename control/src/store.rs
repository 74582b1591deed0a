//! The store of the desired configuration, and how it announces changes.
//!
//! A [`Store`] holds resources as the JSON their writers sent, each with the
//! revisions at which it was created and last changed, as etcd does. The
//! pipeline applies configuration from [`Store::watch`]; nothing is applied because
//! it was written, only because the store said so. A store never looks
//! inside a value and never checks one, except for the index of consumers' unique
//! fields ([`holders`]).

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::Stream;
use futures_util::StreamExt;
use model::{Diagnostic, Invalid, Key, Kind};
use serde_json::Value;
use snapshot::parallel;

mod ahead;
mod draft;
pub mod embedded;
pub mod file;
pub mod history;
pub mod holders;
pub mod kept;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod parsed;
pub mod sealed;
#[cfg(test)]
mod suite;
pub mod table;

pub use ahead::Ahead;
pub use embedded::Embedded;
pub use file::{File, ReadText, Stat};
pub use history::{Changed, History, Listed, Record};
pub use holders::Claim;
pub use kept::{Copy, Kept};
#[cfg(any(test, feature = "testing"))]
pub use memory::Memory;
pub use parsed::Parsed;
pub use sealed::{Opener, Ring, Sealed};
pub use table::Table;

/// A position in a store's history. Each step that changes a resource or the list of plugins moves it on by one;
/// in etcd, each transaction does.
pub type Revision = u64;

/// One resource as the store returns it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub key: Key,
    /// As sent, plus what the Admin API adds (`id`, `create_time`, `update_time`); no defaults.
    pub value: Arc<Value>,
    /// The revision that made it. Kept over changes.
    pub created: Revision,
    /// The revision of the last change.
    pub modified: Revision,
    /// When its lease ends and it is deleted, in milliseconds since 1970.
    pub expires: Option<u64>,
}

/// One resource as a store keeps and tells it: as text, which takes a tenth of a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: Key,
    /// [`Stored::value`] as `serde_json` writes it.
    pub json: Arc<str>,
    /// These as in [`Stored`].
    pub created: Revision,
    pub modified: Revision,
    pub expires: Option<u64>,
}

impl Row {
    /// The value; `null`, which no schema takes, if the text is not JSON.
    pub fn value(&self) -> Value {
        self.read().unwrap_or_default()
    }

    /// The value.
    ///
    /// # Errors
    /// The text is not JSON: in etcd there may be any.
    pub fn read(&self) -> Result<Value, serde_json::Error> {
        serde_json::from_str(&self.json)
    }

    pub fn stored(self) -> Stored {
        let value = Arc::new(self.value());
        let Row { key, created, modified, expires, .. } = self;
        Stored { key, value, created, modified, expires }
    }
}

impl From<&Stored> for Row {
    fn from(stored: &Stored) -> Row {
        let Stored { key, value, created, modified, expires } = stored;
        let json = value.to_string().into();
        Row { key: key.clone(), json, created: *created, modified: *modified, expires: *expires }
    }
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Any,
    /// Nothing is there.
    Absent,
    /// The resource was last changed at this revision.
    Unchanged(Revision),
}

impl Expect {
    /// Whether it holds for what is there now.
    pub fn holds(self, there: Option<&Row>) -> bool {
        match self {
            Expect::Any => true,
            Expect::Absent => there.is_none(),
            Expect::Unchanged(revision) => there.is_some_and(|row| row.modified == revision),
        }
    }
}

/// The content of a store at the moment of a write, earlier writes included.
pub trait View {
    fn get(&self, key: &Key) -> Option<Row>;

    /// Shows all of a kind whose id starts with `prefix`, by key, until `look` breaks. Secrets are as stored.
    fn scan(&self, kind: Kind, prefix: &str, look: &mut dyn FnMut(&Row) -> ControlFlow<()>);

    /// The revision of the last write; the next one gets the number after it.
    fn revision(&self) -> Revision;

    /// The consumers and credentials with this unique field, and possibly others. Secrets are as stored.
    fn holders(&self, claim: &Claim<'_>) -> Vec<Row> {
        let mut rows = Vec::new();
        for kind in [Kind::Consumer, Kind::Credential] {
            self.scan(kind, "", &mut |row| {
                if holders::claims(&row.value()).any(|own| own == *claim) {
                    rows.push(row.clone());
                }
                ControlFlow::Continue(())
            });
        }
        rows
    }

    /// See [`Step::Note`].
    fn note(&self, _name: &str) -> Option<String> {
        None
    }

    /// See [`Step::Plugins`].
    fn plugins(&self) -> Option<Vec<String>> {
        None
    }

    /// The forms in which this store may hold a secret: in the clear, and encrypted with each key.
    fn spellings(&self, text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteResult {
    /// For each step the value written, or the one deleted, `None` if there was none.
    pub values: Vec<Option<Stored>>,
    /// The store's revision after it.
    pub revision: Revision,
}

/// One step of a write.
#[derive(Debug, Clone)]
pub enum Step {
    Put {
        key: Key,
        value: Value,
        ttl: Option<Duration>,
    },
    Delete {
        key: Key,
    },
    /// Replaces the list of plugins that may be used; `None` leaves it to the boot file.
    Plugins {
        names: Option<Vec<String>>,
    },
    /// Keeps a text under a name, beside the resources: state that an API remembers.
    Note {
        name: &'static str,
        text: String,
    },
    /// Author and reason of this write, for the history.
    By {
        author: String,
        message: String,
    },
}

/// Decides from what is there what is written, or that nothing is. No other write comes between
/// the look and the write. Runs where the store writes, so it must be quick and may not wait. A store
/// that others write to as well calls it again when another write was quicker.
pub type Decide = Box<dyn FnMut(&dyn View) -> Result<Vec<Step>, Refused> + Send>;

/// Why nothing was written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A resource that the write needs is missing; the text names it.
    #[error("{0}")]
    Missing(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One step of a store's history.
#[derive(Debug, Clone)]
pub enum Change {
    /// Made or changed.
    Put(Row),
    Delete {
        key: Key,
        revision: Revision,
    },
    /// The list of plugins that may be used was replaced; `None` leaves it to the boot file.
    Plugins {
        names: Option<Vec<String>>,
        revision: Revision,
    },
    /// See [`Step::Note`].
    Note {
        name: Arc<str>,
        text: String,
        revision: Revision,
    },
    /// Everything, replacing all earlier changes. Items that did not change keep their
    /// `modified`, so a follower can compare instead of starting over.
    Reset {
        items: Vec<Row>,
        /// See [`Change::Plugins`].
        plugins: Option<Vec<String>>,
        /// See [`Store::stream_plugins`].
        stream_plugins: Option<Vec<String>>,
        revision: Revision,
        /// Items of a declarative file that were rejected, and why.
        rejected: Vec<Diagnostic>,
        parsed: Parsed,
        /// The revisions are those of another history (a cluster that was restored or replaced):
        /// that a `modified` is known says nothing about the value.
        anew: bool,
    },
}

impl Change {
    /// The store's revision after this change.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(row) => row.modified,
            Change::Delete { revision, .. }
            | Change::Plugins { revision, .. }
            | Change::Note { revision, .. }
            | Change::Reset { revision, .. } => *revision,
        }
    }
}

/// Why a store did not do what was asked. The text says what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The expectation of a write does not hold (any more).
    #[error("value changed before overwritten")]
    Changed,
    #[error("the configuration comes from {}, which this API cannot change: edit that file", path.display())]
    ReadOnly { path: PathBuf },
    /// Out of order for now; trying again later may work.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    #[error(
        "the store cannot write, the disk is full: {0}; free some space, nothing was lost and this write was not made"
    )]
    Full(String),
    /// A declarative file of which nothing can be used.
    #[error("{0}")]
    File(Box<Diagnostic>),
    #[error("cannot use the data folder {}: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },
    #[error(
        "the store {} is in use by another process: stop that one, or give this one its own folder with --data",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "the store {} is damaged: {reason}; restore a copy of it, or move it away to start with an empty configuration",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    /// The open file was deleted or replaced.
    #[error(
        "the store {} is gone: {reason}; nothing can be written until it is back. Its content is still \
         served, and the Admin API still lists it: save that before this process ends",
        path.display()
    )]
    Gone { path: PathBuf, reason: String },
    #[error("the store {} was written by another version: {reason}", path.display())]
    UpgradeRequired { path: PathBuf, reason: String },
}

/// The result of a store's methods: a boxed future, so that stores can be used as `dyn Store`.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The result of [`Store::write`].
pub type Writing<'a> = Pin<Box<dyn Future<Output = Result<WriteResult, Refused>> + Send + 'a>>;

/// The keeper of the desired configuration.
///
/// Implemented by [`Embedded`] (a file of our own) and [`File`] (a declarative file, read-only) here,
/// and for etcd in `adapters`.
pub trait Store: Send + Sync + fmt::Debug {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>>;

    /// All of a kind whose id starts with `prefix` (`""` for all, `jack/credentials/` for one
    /// consumer's credentials) by key, and the revision of the store they were read at.
    fn list<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Stored>, Revision)> {
        Box::pin(async move {
            let (rows, revision) = self.rows(kind, prefix).await?;
            Ok((parallel::map(rows, Row::stored).collect(), revision))
        })
    }

    /// The same as they are kept, for callers that look into few of them.
    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)>;

    /// Writes all that `decide` returns, or nothing. When this answers, the write survives the end
    /// of the process and of the machine.
    ///
    /// # Errors
    /// Those of `decide`, and what keeps the store from writing.
    fn write(&self, decide: Decide) -> Writing<'_>;

    /// Writes one value.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if `expect` does not hold.
    fn put(&self, key: Key, value: Value, expect: Expect, ttl: Option<Duration>) -> StoreFuture<'_, Stored> {
        let writing = self.write(expecting(expect, Step::Put { key, value, ttl }));
        Box::pin(async { only(writing.await).and_then(|stored| stored.ok_or(StoreError::Changed)) })
    }

    /// Deletes one value and returns it; `None` if there was none (unless that is unexpected).
    ///
    /// # Errors
    /// [`StoreError::Changed`] if `expect` does not hold.
    fn delete(&self, key: Key, expect: Expect) -> StoreFuture<'_, Option<Stored>> {
        let writing = self.write(expecting(expect, Step::Delete { key }));
        Box::pin(async { only(writing.await) })
    }

    /// The revision of the last write.
    fn revision(&self) -> StoreFuture<'_, Revision>;

    /// See [`Change::Plugins`].
    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>>;

    /// The plugins that streams may use; `None` leaves it to the boot file. A declarative file can say; other stores
    /// have no such list.
    fn stream_plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(None) })
    }

    /// Replaces the list of plugins that may be used (APISIX's `/apisix/plugins`).
    fn put_plugins(&self, names: Vec<String>) -> StoreFuture<'_, Revision> {
        let step = Step::Plugins { names: Some(names) };
        let writing = self.write(Box::new(move |_| Ok(vec![step.clone()])));
        Box::pin(async {
            writing.await.map(|written| written.revision).map_err(|refused| match refused {
                Refused::Store(error) => error,
                other => StoreError::Unavailable(other.to_string()),
            })
        })
    }

    /// See [`Step::Note`].
    fn note<'a>(&'a self, _name: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether something was written since this note was; `None` where revisions tell, as notes have none there.
    fn moved_since<'a>(&'a self, _note: &'a str) -> StoreFuture<'a, Option<bool>> {
        Box::pin(async { Ok(None) })
    }

    /// The writes after `after` and up to `until`, newest first, at most `limit`.
    fn history(&self, _after: Revision, _until: Revision, _limit: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Writes a consistent copy of the store's file beside it and returns its path; `None` where resources are not
    /// in a file of this store's own.
    fn copy(&self) -> StoreFuture<'_, Option<PathBuf>> {
        Box::pin(async { Ok(None) })
    }

    /// Follows the store: first a [`Change::Reset`] with everything, then each change in order.
    /// A follower that falls far behind gets a `Reset` again instead of what it missed.
    fn watch(&self) -> Changes;

    /// Lets another process have what only one at a time may hold; `None` if there is no such thing.
    /// Writes wait until it is known what comes of it.
    fn release(&self) -> StoreFuture<'_, Option<Released>> {
        Box::pin(async { Ok(None) })
    }

    /// A secret that this store has encrypted, as it was before; `None` if it is not encrypted.
    fn open_secret(&self, _text: &str) -> Option<String> {
        None
    }

    /// Whether [`write`](Store::write) can work at all.
    fn writable(&self) -> bool {
        true
    }

    /// Whether other gateways use it as well, perhaps of another make: what one of them has for
    /// itself may not be pressed on all.
    fn is_shared(&self) -> bool {
        false
    }
}

/// A store that another process may open. Dropped, it is taken back.
#[derive(Debug)]
pub struct Released(std::sync::mpsc::Sender<()>);

impl Released {
    /// The thread on the other end receives the verdict, or sees the sender's end.
    pub fn new(verdict: std::sync::mpsc::Sender<()>) -> Released {
        Released(verdict)
    }

    /// The other process keeps it. Waiting and later writes are refused here.
    pub fn hand_over(self) {
        // An error means that the store has stopped.
        let _ = self.0.send(());
    }
}

/// The changes of a store, in order.
pub struct Changes(Pin<Box<dyn Stream<Item = Change> + Send>>);

impl Changes {
    pub fn new(stream: impl Stream<Item = Change> + Send + 'static) -> Changes {
        Changes(Box::pin(stream))
    }

    /// The next change, when there is one; `None` once the store is gone.
    pub async fn next(&mut self) -> Option<Change> {
        self.0.next().await
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

/// Decides for one step that rests on nothing but what is under its key.
fn expecting(expect: Expect, step: Step) -> Decide {
    Box::new(move |view| {
        let holds = match &step {
            Step::Put { key, .. } | Step::Delete { key } => expect.holds(view.get(key).as_ref()),
            Step::Plugins { .. } | Step::Note { .. } | Step::By { .. } => true,
        };
        match holds {
            true => Ok(vec![step.clone()]),
            false => Err(StoreError::Changed.into()),
        }
    })
}

/// Returns the result of a write with one step that only the store can refuse.
fn only(written: Result<WriteResult, Refused>) -> Result<Option<Stored>, StoreError> {
    match written {
        Ok(mut written) => Ok(written.values.pop().flatten()),
        Err(Refused::Store(error)) => Err(error),
        Err(other) => Err(StoreError::Unavailable(other.to_string())),
    }
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    // A clock before 1970 makes leases end late, which is better than ending everything now.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn lease_end(ttl: Option<Duration>) -> Option<u64> {
    ttl.map(|ttl| unix_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)))
}
