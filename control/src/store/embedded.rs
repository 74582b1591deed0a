//! The store of one's own: a file under the data folder.
//!
//! Reads are answered from memory. Writes go to one thread that owns the file,
//! so no other thread ever waits for a disk; writes that arrive while it is busy
//! share the next commit. A write is answered when it is durable, so an
//! acknowledged one survives `kill -9` and power loss. Values are encrypted in
//! the file. One process at a time may hold it; nothing here talks to other
//! machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use model::{Key, Kind};
use tokio::sync::oneshot;

pub(super) use self::disk::Disk;
pub(super) use self::layout::Loaded;
use self::leases::{Leases, Now};
use super::draft::Draft;
use super::{
    Change, Changes, Decide, History, Record, Refused, Released, Revision, Row, Store, StoreError,
    StoreFuture, Stored, Table, WriteResult, Writing, unix_ms,
};

mod disk;
mod layout;
mod leases;
pub mod restore;
mod seal;
#[cfg(test)]
mod tests;

/// How many writes may wait for the disk before further ones are refused.
const WAITING: usize = 1024;

/// How many writes share a commit at most.
const BATCH: usize = 256;

/// Interval of the checks whether the file still exists.
const LOOK_AT_FILE: Duration = Duration::from_secs(10);

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
    Write {
        decide: Decide,
        reply: Reply<WriteResult, Refused>,
    },
    History {
        after: Revision,
        until: Revision,
        limit: usize,
        reply: Reply<Vec<Record>, StoreError>,
    },
    Copy {
        reply: Reply<PathBuf, StoreError>,
    },
    /// Closes the file until the sender is gone, or for ever if it says so.
    Release {
        verdict: Receiver<()>,
        reply: Reply<(), StoreError>,
    },
}

type Reply<T, E> = oneshot::Sender<Result<T, E>>;

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
        Embedded::open_with(folder, History::default())
    }

    /// The same, keeping so much of its history.
    ///
    /// # Errors
    /// Those of [`open`](Embedded::open).
    pub fn open_with(folder: &Path, history: History) -> Result<Embedded, StoreError> {
        let (mut disk, loaded) = Disk::open(folder)?;
        disk.history = history;
        Embedded::run(disk, loaded)
    }

    fn run(disk: Disk, loaded: Loaded) -> Result<Embedded, StoreError> {
        let leases = Leases::of(&loaded.items, Now::read());
        let table = Table::new(loaded.items, loaded.plugins, loaded.revision).with_notes(loaded.notes);
        let table = Arc::new(table);
        let (jobs, queue) = sync_channel(WAITING);
        let writer =
            Writer { disk, table: table.clone(), leases, failed: false, gone: false, handed_over: false };
        let thread = thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(|error| StoreError::Unavailable(format!("no thread for the store: {error}")))?;
        Ok(Embedded { table, jobs: Some(jobs), thread: Some(thread) })
    }

    async fn ask<T, E: From<StoreError>>(&self, job: impl FnOnce(Reply<T, E>) -> Job) -> Result<T, E> {
        let gone = || StoreError::Unavailable("the store has stopped".to_owned());
        let (reply, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.try_send(job(reply)).map_err(|refused| match refused {
            TrySendError::Full(_) => StoreError::Unavailable(format!(
                "{WAITING} writes wait for the disk already; try again later"
            )),
            TrySendError::Disconnected(_) => gone(),
        })?;
        answer.await.unwrap_or_else(|_| Err(gone().into()))
    }
}

impl Store for Embedded {
    fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
        Box::pin(async { Ok(self.table.get(key).map(Row::stored)) })
    }

    fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
        Box::pin(async move { Ok(self.table.list(kind, prefix)) })
    }

    fn write(&self, decide: Decide) -> Writing<'_> {
        Box::pin(self.ask(move |reply| Job::Write { decide, reply }))
    }

    fn revision(&self) -> StoreFuture<'_, Revision> {
        Box::pin(async { Ok(self.table.revision()) })
    }

    fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
        Box::pin(async { Ok(self.table.plugins()) })
    }

    fn note<'a>(&'a self, name: &'a str) -> StoreFuture<'a, Option<String>> {
        Box::pin(async move { Ok(self.table.note(name)) })
    }

    fn history(&self, after: Revision, until: Revision, limit: usize) -> StoreFuture<'_, Vec<Record>> {
        Box::pin(self.ask(move |reply| Job::History { after, until, limit, reply }))
    }

    fn copy(&self) -> StoreFuture<'_, Option<PathBuf>> {
        Box::pin(async { self.ask(|reply| Job::Copy { reply }).await.map(Some) })
    }

    fn watch(&self) -> Changes {
        self.table.watch()
    }

    fn release(&self) -> StoreFuture<'_, Option<Released>> {
        let (sender, verdict) = channel();
        Box::pin(async move {
            self.ask(|reply| Job::Release { verdict, reply }).await?;
            Ok(Some(Released::new(sender)))
        })
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
    leases: Leases,
    /// The last commit failed.
    failed: bool,
    /// The file was missing at the last check.
    gone: bool,
    /// Another process has the file.
    handed_over: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Job>) {
        loop {
            let wait = self.until_next_lease().unwrap_or(LOOK_AT_FILE);
            match queue.recv_timeout(wait) {
                Ok(job) => self.work([job].into_iter().chain(queue.try_iter()).take(BATCH).collect()),
                Err(RecvTimeoutError::Timeout) if self.handed_over => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.look_at_file();
                    self.take_back();
                    self.write([]);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does a batch of jobs. Jobs that came before the file is to be closed are committed before that.
    fn work(&mut self, mut jobs: Vec<Job>) {
        while let Some(at) = jobs.iter().position(|job| matches!(job, Job::Release { .. })) {
            let mut rest = jobs.split_off(at).into_iter();
            self.write(jobs);
            if let Some(Job::Release { verdict, reply }) = rest.next() {
                self.release(&verdict, reply);
            }
            jobs = rest.collect();
        }
        self.write(jobs);
    }

    fn release(&mut self, verdict: &Receiver<()>, reply: Reply<(), StoreError>) {
        if self.handed_over {
            let _ = reply.send(Err(handed_over()));
            return;
        }
        self.disk.close();
        // The caller may have gone, and the sender with it.
        let _ = reply.send(Ok(()));
        self.handed_over = verdict.recv().is_ok();
        if !self.handed_over {
            self.take_back();
        }
    }

    /// Opens the file again if it is closed, and takes over what another process has written to it, such as
    /// the end of a lease while it was to take over.
    fn take_back(&mut self) {
        // A write says what is wrong.
        let Ok(Some(loaded)) = self.disk.take_back() else { return };
        tracing::warn!(
            "another process wrote to the store while it was closed here: going on from its revision {}",
            loaded.revision
        );
        self.leases = Leases::of(&loaded.items, Now::read());
        self.table.set_notes(loaded.notes);
        self.table.reset(loaded.items, loaded.plugins, loaded.revision, Vec::new());
    }

    fn until_next_lease(&self) -> Option<Duration> {
        if self.handed_over {
            return None;
        }
        let wait = self.leases.next()?.saturating_duration_since(Instant::now()).min(LOOK_AT_FILE);
        // A lease that cannot end because the disk is full must not make this thread spin.
        Some(if self.failed { wait.max(Duration::from_secs(1)) } else { wait })
    }

    /// Commits these jobs, and the deletes of leases that have ended, together.
    fn write(&mut self, jobs: impl IntoIterator<Item = Job>) {
        if self.handed_over {
            return jobs.into_iter().for_each(Job::refuse);
        }
        let mut jobs = jobs.into_iter().peekable();
        if jobs.peek().is_some() {
            self.take_back();
        }
        let mut draft = Draft::over(&self.table);
        draft.expire(self.leases.ended(Now::read()).take(BATCH).cloned());
        let answers: Vec<Answering> = jobs
            .map(|job| match job {
                Job::Write { decide, reply } => answering(reply, draft.decide(decide)),
                // Without the writes of this batch, which are not acknowledged yet.
                Job::History { after, until, limit, reply } => {
                    answering(reply, self.disk.records(after, until, limit))
                }
                Job::Copy { reply } => answering(reply, self.disk.copy()),
                Job::Release { reply, .. } => answering(reply, Err(handed_over())),
            })
            .collect();
        let Draft { changes, records, revision, .. } = draft;
        let committed = match changes.is_empty() {
            true => Ok(()),
            false => self.disk.commit(&changes, &records, revision),
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

    /// Tells once when the file is gone, and once when it is back: without it, all is lost with
    /// the end of the process.
    fn look_at_file(&mut self) {
        match (self.disk.check_place(), self.gone) {
            (Err(error), false) => tracing::error!("{error}"),
            (Ok(()), true) => tracing::info!("the store's file is back"),
            _ => return,
        }
        self.gone = !self.gone;
    }

    fn applied(&mut self, changes: Vec<Change>) {
        let now = Now::read();
        for change in &changes {
            match change {
                Change::Put(row) => self.leases.set(&row.key, row.expires, now),
                Change::Delete { key, .. } => self.leases.set(key, None, now),
                Change::Plugins { .. } | Change::Note { .. } | Change::Reset { .. } => {}
            }
        }
        // All at once, so that followers never see a part of a write.
        self.table.apply(changes);
    }
}

fn handed_over() -> StoreError {
    StoreError::Unavailable(
        "a new process has taken over from this one; send the request again, on a new connection".to_owned(),
    )
}

impl Job {
    fn refuse(self) {
        // The caller may have gone.
        match self {
            Job::Write { reply, .. } => drop(reply.send(Err(handed_over().into()))),
            Job::History { reply, .. } => drop(reply.send(Err(handed_over()))),
            Job::Copy { reply } => drop(reply.send(Err(handed_over()))),
            Job::Release { reply, .. } => drop(reply.send(Err(handed_over()))),
        }
    }
}

/// Even a refusal waits for the commit: it may rest on a write of the same batch.
fn answering<T: 'static, E: From<StoreError> + 'static>(
    reply: Reply<T, E>,
    outcome: Result<T, E>,
) -> Answering {
    Box::new(move |committed| {
        // The caller may have gone; the write stands all the same.
        let _ = reply.send(committed.map_err(E::from).and(outcome));
    })
}
