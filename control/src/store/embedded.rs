//! The store of one's own: a file under the data folder.
//!
//! Reads are answered from memory. Writes go to one thread that owns the file,
//! so nobody else ever waits for a disk; writes that arrive while it is busy
//! share the next commit. A write is answered when it is durable, so an
//! acknowledged one survives `kill -9` and power loss. Values are encrypted in
//! the file. One process at a time may hold it; nothing here talks to other
//! machines.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use model::{Key, Kind};
use serde_json::Value;
use tokio::sync::oneshot;

use self::disk::{Disk, Loaded};
use super::{
    Answer, Change, Changes, Expect, Revision, Row, Store, StoreError, Stored, Table, lease_end, unix_ms,
};

mod disk;
mod seal;
#[cfg(test)]
mod tests;

/// How many writes may wait for the disk before further ones are refused.
const WAITING: usize = 1024;

/// How many writes share a commit at most.
const BATCH: usize = 256;

/// The longest sleep while a lease runs: clocks can be set.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(5);

/// A [`Store`] in the file `store.redb` of a folder.
///
/// Dropping it finishes the writes that wait and closes the file.
#[derive(Debug)]
pub struct Embedded {
    table: Arc<Table>,
    /// `None` only while dropping.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Put { key: Key, value: Value, expect: Expect, expires: Option<u64>, reply: Reply<Stored> },
    Delete { key: Key, expect: Expect, reply: Reply<Option<Stored>> },
    Plugins { names: Vec<String>, reply: Reply<Revision> },
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// Answers one job, after its commit has succeeded or failed.
type Answering = Box<dyn FnOnce(Result<(), StoreError>)>;

impl Embedded {
    /// Opens the store in `folder`, making both on first use (folder mode 0700, file 0600).
    ///
    /// Blocks while reading the file.
    ///
    /// # Errors
    /// A folder that cannot be used, a store another process holds, a damaged file, one of
    /// another version: each says which file and what to do.
    pub fn open(folder: &Path) -> Result<Embedded, StoreError> {
        let (disk, loaded) = Disk::open(folder)?;
        Embedded::run(disk, loaded)
    }

    fn run(disk: Disk, loaded: Loaded) -> Result<Embedded, StoreError> {
        let leases = loaded.items.iter().filter_map(|item| Some((item.expires?, item.key.clone()))).collect();
        let table = Arc::new(Table::new(loaded.items, loaded.plugins, loaded.revision));
        let (jobs, queue) = sync_channel(WAITING);
        let writer = Writer { disk, table: table.clone(), leases, failed: false };
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(|error| StoreError::Unavailable(format!("no thread for the store: {error}")))?;
        Ok(Embedded { table, jobs: Some(jobs), thread: Some(thread) })
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let gone = || StoreError::Unavailable("the store has stopped".to_owned());
        let (reply, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.try_send(job(reply)).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Unavailable(format!(
                "{WAITING} writes wait for the disk already; try again later"
            )),
            TrySendError::Disconnected(_) => gone(),
        })?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Stored>> {
        Box::pin(async { Ok(self.table.get(key).map(Row::stored)) })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> Answer<'a, (Vec<Row>, Revision)> {
        Box::pin(async move { Ok(self.table.list(kind, prefix)) })
    }

    fn put(&self, key: Key, value: Value, expect: Expect, ttl: Option<Duration>) -> Answer<'_, Stored> {
        let expires = lease_end(ttl);
        Box::pin(self.ask(move |reply| Job::Put { key, value, expect, expires, reply }))
    }

    fn delete(&self, key: Key, expect: Expect) -> Answer<'_, Option<Stored>> {
        Box::pin(self.ask(move |reply| Job::Delete { key, expect, reply }))
    }

    fn revision(&self) -> Answer<'_, Revision> {
        Box::pin(async { Ok(self.table.revision()) })
    }

    fn plugins(&self) -> Answer<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.plugins()) })
    }

    fn put_plugins(&self, names: Vec<String>) -> Answer<'_, Revision> {
        Box::pin(self.ask(move |reply| Job::Plugins { names, reply }))
    }

    fn watch(&self) -> Changes {
        self.table.watch()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's thread ended in a panic");
        }
    }
}

/// The store's thread.
struct Writer {
    disk: Disk,
    table: Arc<Table>,
    /// The ends of leases, in ms since 1970, soonest first.
    leases: BTreeSet<(u64, Key)>,
    /// The last commit failed.
    failed: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let first = match self.until_next_lease() {
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => queue.recv_timeout(wait),
            };
            match first {
                Ok(job) => self.write([job].into_iter().chain(queue.try_iter()).take(BATCH)),
                Err(RecvTimeoutError::Timeout) => self.write([]),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn until_next_lease(&self) -> Option<Duration> {
        let (end, _) = self.leases.first()?;
        let wait = Duration::from_millis(end.saturating_sub(unix_ms())).min(LOOK_AT_CLOCK);
        // A lease that cannot end because the disk is full must not make this thread spin.
        Some(if self.failed { wait.max(Duration::from_secs(1)) } else { wait })
    }

    /// Commits these jobs, and the deletes of leases that have ended, together.
    fn write(&mut self, jobs: impl IntoIterator<Item = Job>) {
        let mut batch = Batch::new(&self.table);
        batch.end_leases(&self.leases, unix_ms());
        for job in jobs {
            batch.take(job);
        }
        let Batch { changes, revision, answers, .. } = batch;
        let committed = match changes.is_empty() {
            true => Ok(()),
            false => self.disk.commit(&changes, revision),
        };
        match &committed {
            Ok(()) => self.applied(changes),
            Err(error) => tracing::error!(%error, "a write to the store failed"),
        }
        for answer in answers {
            answer(committed.clone());
        }
        self.failed = committed.is_err();
    }

    fn applied(&mut self, changes: Vec<Change>) {
        // One by one, so that the next change of the same key sees this one.
        for change in changes {
            self.keep_lease(&change);
            self.table.apply([change]);
        }
    }

    fn keep_lease(&mut self, change: &Change) {
        let (key, expires) = match change {
            Change::Put(row) => (&row.key, row.expires),
            Change::Delete { key, .. } => (key, None),
            Change::Plugins { .. } | Change::Reset { .. } => return,
        };
        if let Some(end) = self.table.get(key).and_then(|old| old.expires) {
            self.leases.remove(&(end, key.clone()));
        }
        self.leases.extend(expires.map(|end| (end, key.clone())));
    }
}

/// Writes that will be committed together.
struct Batch<'a> {
    table: &'a Table,
    /// What this batch makes of keys it touches.
    pending: HashMap<Key, Option<Row>>,
    changes: Vec<Change>,
    /// The store's revision after `changes`.
    revision: Revision,
    answers: Vec<Answering>,
}

impl Batch<'_> {
    fn new(table: &Table) -> Batch<'_> {
        let revision = table.revision();
        Batch { table, pending: HashMap::new(), changes: Vec::new(), revision, answers: Vec::new() }
    }

    fn end_leases(&mut self, leases: &BTreeSet<(u64, Key)>, now: u64) {
        for (_, key) in leases.iter().take_while(|(end, _)| *end <= now).take(BATCH) {
            self.delete(key.clone());
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Put { key, value, expect, expires, reply } => {
                let there = self.there(&key);
                if !expect.holds(there.as_ref()) {
                    return self.answer(reply, Err(StoreError::Changed));
                }
                self.revision += 1;
                let created = there.map_or(self.revision, |there| there.created);
                let stored =
                    Stored { key, value: Arc::new(value), created, modified: self.revision, expires };
                let row = Row::from(&stored);
                self.pending.insert(row.key.clone(), Some(row.clone()));
                self.changes.push(Change::Put(row));
                self.answer(reply, Ok(stored));
            }
            Job::Delete { key, expect, reply } => {
                let there = self.there(&key);
                if !expect.holds(there.as_ref()) {
                    return self.answer(reply, Err(StoreError::Changed));
                }
                if there.is_some() {
                    self.delete(key);
                }
                self.answer(reply, Ok(there.map(Row::stored)));
            }
            Job::Plugins { names, reply } => {
                self.revision += 1;
                self.changes.push(Change::Plugins { names: Some(names), revision: self.revision });
                let revision = self.revision;
                self.answer(reply, Ok(revision));
            }
        }
    }

    fn there(&self, key: &Key) -> Option<Row> {
        self.pending.get(key).cloned().unwrap_or_else(|| self.table.get(key))
    }

    fn delete(&mut self, key: Key) {
        self.revision += 1;
        self.pending.insert(key.clone(), None);
        self.changes.push(Change::Delete { key, revision: self.revision });
    }

    /// Even a refusal waits for the commit: it may rest on a write of the same batch.
    fn answer<T: 'static>(&mut self, reply: Reply<T>, outcome: Result<T, StoreError>) {
        self.answers.push(Box::new(move |committed| {
            // Whoever asked may have gone; the write stands all the same.
            let _ = reply.send(committed.and(outcome));
        }));
    }
}
