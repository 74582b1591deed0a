//! The cluster's store: etcd, with APISIX's keys and values, so that gateways of both kinds share it.
//!
//! One task follows the cluster over one watch and keeps a table of its contents, which answers reads and feeds the
//! followers of this store; while etcd is unreachable, the table keeps its last contents. A copy of it is kept on
//! disk, for a start without etcd. Writes go to etcd alone, as transactions that fail if what they rest on has
//! changed.

mod client;
mod conditions;
mod follow;
mod history;
mod keep;
mod keys;
mod link;
#[cfg(test)]
mod messages;
mod pages;
mod presence;
#[rustfmt::skip]
mod proto;
mod write;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::store::{
    Changes, Decide, History, Record, Released, Revision, Row, Step, Store, StoreError, StoreFuture, Stored,
    Table, Writing,
};
use futures_util::{StreamExt, stream};
use model::{Key, Kind};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

pub use client::User;
use client::{ANSWER, Client, Cluster, Trouble};
use keys::Layout;
pub use link::{Host, Tls};
pub use presence::Presence;
use proto::RangeRequest;

use crate::Names;

/// A write that takes longer fails, so that clients have an answer within 3 s.
const WRITE: Duration = Duration::from_millis(2500);

/// How etcd is used.
#[derive(Debug, Clone)]
pub struct Settings {
    pub hosts: Vec<Host>,
    /// `/apisix`
    pub prefix: String,
    pub user: Option<User>,
    pub tls: Option<Tls>,
    /// How host names of members are resolved; without it, as the system does.
    pub names: Option<Names>,
    /// The longest a page of keys may take.
    pub timeout: Duration,
    /// Failed tries in a row, up to which trouble is not logged.
    pub startup_retry: u32,
    /// A watch on which nothing came for so long is asked whether it lives.
    pub progress_interval: Duration,
    /// And is given up when so long after that nothing has come.
    pub progress_timeout: Duration,
    /// The most bytes of values that are taken.
    pub max_size: u64,
    /// The folder of the copy on disk; `None` keeps none.
    pub copy: Option<PathBuf>,
    /// How much of what is written here is remembered.
    pub history: History,
}

/// A [`Store`] in etcd. Ends following when it is dropped.
#[derive(Debug)]
pub struct Etcd {
    inner: Arc<Inner>,
    tasks: Vec<JoinHandle<()>>,
}

/// The state that the tasks and the store share.
#[derive(Debug)]
struct Inner {
    settings: Settings,
    client: Client,
    layout: Layout,
    table: Arc<Table>,
    /// The table holds something to go by.
    filled: watch::Sender<bool>,
    status: Mutex<Status>,
    /// The revision of the copy on disk; `None` if none is kept.
    copied: watch::Sender<Option<Revision>>,
    /// Asks for the copy to be closed.
    releases: mpsc::Sender<keep::Release>,
    /// The number of the cluster that was read last.
    cluster: AtomicU64,
    /// Records of the history that were put.
    recorded: AtomicU64,
    /// etcd lets its user write resources, and no history.
    history_refused: AtomicBool,
    /// Held by the write that is made after it met another one.
    turn: tokio::sync::Mutex<()>,
}

/// How it stands with etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The cluster is followed.
    pub connected: bool,
    /// Why not.
    pub trouble: Option<String>,
    /// The table holds a copy from disk.
    pub from_copy: bool,
}

impl Etcd {
    /// Follows a cluster from now on. Must run on a runtime.
    pub fn start(settings: Settings) -> Etcd {
        let (inner, releases) = Inner::new(settings);
        let following = control::tasks::spawn(follow::run(inner.clone(), releases));
        Etcd { inner, tasks: vec![following] }
    }

    /// How it stands now.
    pub fn status(&self) -> Status {
        self.inner.status()
    }

    /// Waits until the copy on disk holds what was read, but not for long: a disk may fail.
    pub async fn finish(&self) {
        let mut copied = self.inner.copied.subscribe();
        let status = self.inner.status();
        if status.from_copy || !*self.inner.filled.borrow() {
            return;
        }
        let whole =
            copied.wait_for(|copied| copied.is_none_or(|copied| copied >= self.inner.table.revision()));
        let _ = tokio::time::timeout(ANSWER, whole).await;
    }

    /// The latest revision of each kind, and of all: APISIX's names of its metric, which has the kinds that it
    /// tells of also where there is nothing of them, as 0.
    pub fn indexes(&self) -> Vec<(&'static str, u64)> {
        let mut latest = vec![0; Kind::ALL.len()];
        self.inner.table.each(|row| {
            let latest = &mut latest[row.key.kind.index()];
            *latest = row.modified.max(*latest);
        });
        let revision = self.inner.table.revision();
        let most = latest.iter().copied().max().unwrap_or(0);
        let all = [("max_modify_index", most), ("prev_index", revision), ("x_etcd_index", revision)];
        let kinds = Kind::ALL.into_iter().zip(latest);
        let listed = kinds.filter(|(kind, latest)| *latest > 0 || always_listed(*kind));
        listed.map(|(kind, latest)| (kind.collection(), latest)).chain(all).collect()
    }

    /// Waits until everything was read from the cluster once.
    ///
    /// # Errors
    /// Why it was not within `patience`.
    pub async fn ready(&self, patience: Duration) -> Result<(), StoreError> {
        let reading = async {
            let mut filled = self.inner.filled.subscribe();
            // The sender lives as long as `self`.
            let _ = filled.wait_for(|filled| *filled).await;
        };
        match tokio::time::timeout(patience, reading).await {
            Ok(()) => Ok(()),
            Err(_) => Err(StoreError::Unavailable(format!("etcd: {}", self.inner.why()))),
        }
    }
}

/// Whether APISIX's metric of revisions tells of a kind; dashboards expect the series of each.
fn always_listed(kind: Kind) -> bool {
    use Kind::{Consumer, GlobalRule, Proto, Route, Service, Ssl, StreamRoute, Upstream};
    matches!(kind, Route | Service | Ssl | Consumer | GlobalRule | Upstream | StreamRoute | Proto)
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Inner {
    fn new(settings: Settings) -> (Arc<Inner>, mpsc::Receiver<keep::Release>) {
        let Settings { hosts, tls, user, names, .. } = settings.clone();
        let (releases, asked) = mpsc::channel(1);
        let inner = Inner {
            releases,
            client: Client::new(Cluster { hosts, tls, user, names }),
            layout: Layout::new(&settings.prefix),
            table: Arc::new(Table::new([], None, 0)),
            filled: watch::Sender::new(false),
            status: Mutex::default(),
            cluster: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
            history_refused: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
            copied: watch::Sender::new(None),
            settings,
        };
        (Arc::new(inner), asked)
    }

    fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_status(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn why(&self) -> String {
        self.status().trouble.unwrap_or_else(|| "it was not reached yet".to_owned())
    }

    /// # Errors
    /// As long as nothing was read.
    fn filled(&self) -> Result<(), StoreError> {
        match *self.filled.borrow() {
            true => Ok(()),
            false => Err(StoreError::Unavailable(format!("etcd: {}", self.why()))),
        }
    }

    /// One value, as etcd has it now.
    async fn value(&self, key: Vec<u8>) -> Result<Option<(Vec<u8>, i64)>, Trouble> {
        let request = RangeRequest { key, ..RangeRequest::default() };
        let kvs = self.client.range(request, ANSWER).await?.kvs;
        Ok(kvs.into_iter().next().map(|kv| (kv.value, kv.mod_revision)))
    }
}

fn unavailable(trouble: Trouble) -> StoreError {
    StoreError::Unavailable(format!("etcd: {trouble}"))
}

/// Bounds what is asked of etcd for a write.
async fn within<T>(asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late =
        || StoreError::Unavailable("etcd: no answer in time; the write may have been made or not".to_owned());
    tokio::time::timeout(WRITE, asking).await.unwrap_or_else(|_| Err(late()))
}

impl Store for Etcd {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
        Box::pin(async {
            self.inner.filled()?;
            Ok(self.inner.table.get(key).map(Row::stored))
        })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
        Box::pin(async move {
            self.inner.filled()?;
            Ok(self.inner.table.list(kind, prefix))
        })
    }

    fn write(&self, decide: Decide) -> Writing<'_> {
        Box::pin(self.inner.clone().write(decide))
    }

    fn revision(&self) -> StoreFuture<'_, Revision> {
        Box::pin(async { Ok(self.inner.table.revision()) })
    }

    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async {
            self.inner.filled()?;
            Ok(self.inner.table.plugins())
        })
    }

    /// Reads the note from etcd itself: a copy from disk holds no notes, so it cannot show that one is absent.
    fn note<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(within(async move {
            let value = self.inner.value(self.inner.layout.note(name)).await.map_err(unavailable)?;
            Ok(value.and_then(|(value, _)| String::from_utf8(value).ok()))
        }))
    }

    fn moved_since<'a>(&'a self, note: &'a str) -> StoreFuture<'a, Option<bool>> {
        Box::pin(within(async move {
            let value = self.inner.value(self.inner.layout.note(note)).await.map_err(unavailable)?;
            let written = value.map_or(0, |(_, revision)| keys::revision(revision));
            // All changes before the note are in the table once the note is.
            self.inner.table.reached(written).await;
            Ok(Some(written == 0 || self.inner.table.changed() > written))
        }))
    }

    fn history(&self, after: Revision, until: Revision, limit: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(within(self.inner.history(after, until, limit)))
    }

    /// The copy on disk: another process may take it over, and keep it from then on.
    fn release(&self) -> StoreFuture<'_, Option<Released>> {
        Box::pin(async {
            let (sender, verdict) = std::sync::mpsc::channel();
            let (reply, closed) = oneshot::channel();
            if self.inner.releases.send(keep::Release { verdict, reply }).await.is_err() {
                return Ok(None);
            }
            // An error means that none is kept.
            Ok(closed.await.ok().map(|()| Released::new(sender)))
        })
    }

    /// Begins when there is something to go by.
    fn watch(&self) -> Changes {
        let (filled, table) = (self.inner.filled.subscribe(), self.inner.table.clone());
        let begin = async move {
            let mut filled = filled;
            let _ = filled.wait_for(|filled| *filled).await;
            let changes = table.watch();
            stream::unfold(changes, |mut changes| async move { Some((changes.next().await?, changes)) })
        };
        Changes::new(stream::once(begin).flatten())
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Writes many resources, in as many transactions as it takes; each is whole, all together are not.
///
/// # Errors
/// Those of the store; what came before stays written.
pub async fn write_all(store: &dyn Store, steps: Vec<Step>) -> Result<usize, StoreError> {
    let mut written = 0;
    for chunk in steps.chunks(write::MOST_AT_ONCE) {
        let chunk = chunk.to_vec();
        written += chunk.len();
        let decided = store.write(Box::new(move |_| Ok(chunk.clone()))).await;
        decided.map_err(|refused| match refused {
            control::store::Refused::Store(error) => error,
            other => StoreError::Unavailable(other.to_string()),
        })?;
    }
    Ok(written)
}
