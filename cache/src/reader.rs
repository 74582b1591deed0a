//! The threads that read a zone's files, and the watcher of their deadlines.
//!
//! A disk can hang forever; a client must not wait for it. Every read has a deadline. After it the
//! response counts as missing and leaves the index, so that the next request stores it again. The
//! stuck thread is replaced, up to a limit; beyond it no reads start until the disk releases one of
//! the threads.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "runs on the cache's own threads, never on a worker"
)]

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{io, mem};

use futures_channel::oneshot;

use super::disk::{Folder, WriteJob, spawn};
use super::{Content, Entry, TransferShare};

/// Reader threads when none is stuck.
const READERS: usize = 4;

/// The most stuck threads before reads are refused.
const MAX_STUCK: usize = 16;

/// A handle to the threads. They end when it is dropped.
#[derive(Debug)]
pub(super) struct Readers {
    jobs: Sender<Job>,
    deadlines: Sender<(Instant, Weak<Ticket>)>,
    pool: Arc<Pool>,
    timeout: Duration,
}

struct Job {
    ticket: Arc<Ticket>,
    held: TransferShare,
}

/// A read with a waiting client.
struct Ticket {
    entry: Arc<Entry>,
    state: Mutex<State>,
}

enum State {
    Waiting(oneshot::Sender<Option<Content>>),
    Reading(oneshot::Sender<Option<Content>>),
    Over,
}

/// Shared by the threads.
struct Pool {
    folder: Arc<Folder>,
    /// An idle thread holds the lock and waits for the next job.
    jobs: Mutex<Receiver<Job>>,
    writes: Sender<WriteJob>,
    threads: Mutex<Threads>,
    /// The maximum number of threads is stuck.
    exhausted: AtomicBool,
    late: AtomicU64,
}

struct Threads {
    all: usize,
    stuck: usize,
}

impl Readers {
    pub(super) fn start(
        folder: Arc<Folder>,
        writes: Sender<WriteJob>,
        timeout: Duration,
    ) -> io::Result<Readers> {
        let (jobs, to_read) = channel();
        let (deadlines, to_watch) = channel();
        let pool = Arc::new(Pool {
            folder,
            jobs: Mutex::new(to_read),
            writes,
            threads: Mutex::new(Threads { all: READERS, stuck: 0 }),
            exhausted: AtomicBool::new(false),
            late: AtomicU64::new(0),
        });
        for _ in 0..READERS {
            pool.spawn_reader()?;
        }
        let watched = pool.clone();
        spawn("cache-deadline", move || watched.watch(&to_watch))?;
        Ok(Readers { jobs, deadlines, pool, timeout })
    }

    /// Starts reading a response. `None` at once if no thread is available; the receiver is closed
    /// without a value when the deadline passes.
    pub(super) fn load(
        &self,
        entry: Arc<Entry>,
        held: TransferShare,
    ) -> Option<oneshot::Receiver<Option<Content>>> {
        if self.pool.exhausted.load(Relaxed) {
            self.pool.late.fetch_add(1, Relaxed);
            return None;
        }
        let (done, loaded) = oneshot::channel();
        let ticket = Arc::new(Ticket { entry, state: Mutex::new(State::Waiting(done)) });
        self.deadlines.send((Instant::now() + self.timeout, Arc::downgrade(&ticket))).ok()?;
        self.jobs.send(Job { ticket, held }).ok().map(|()| loaded)
    }

    /// Reads that missed their deadline.
    pub(super) fn late(&self) -> u64 {
        self.pool.late.load(Relaxed)
    }

    /// The number of threads, and of stuck ones.
    #[cfg(test)]
    pub(super) fn threads(&self) -> (usize, usize) {
        let threads = lock(&self.pool.threads);
        (threads.all, threads.stuck)
    }
}

impl Pool {
    fn spawn_reader(self: &Arc<Pool>) -> io::Result<()> {
        let pool = self.clone();
        spawn("cache-read", move || pool.read_all())
    }

    fn read_all(&self) {
        loop {
            let job = lock(&self.jobs).recv();
            let Ok(Job { ticket, held }) = job else { return };
            if !ticket.begin() {
                continue;
            }
            let content = self.folder.read(&ticket.entry, held);
            if content.is_none() {
                self.drop_entry(&ticket.entry);
            }
            match ticket.end() {
                Some(done) => drop(done.send(content)),
                None if self.is_one_too_many() => return,
                None => {}
            }
        }
    }

    /// Deadlines are in order, as all reads have the same timeout.
    fn watch(self: &Arc<Pool>, deadlines: &Receiver<(Instant, Weak<Ticket>)>) {
        for (deadline, ticket) in deadlines {
            if ticket.strong_count() > 0 {
                std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            }
            let Some(ticket) = ticket.upgrade() else { continue };
            let mut guard = lock(&ticket.state);
            let state = mem::replace(&mut *guard, State::Over);
            if matches!(state, State::Over) {
                continue;
            }
            self.late.fetch_add(1, Relaxed);
            if matches!(state, State::Reading(_)) {
                // Before the thread can notice that it was replaced and count itself as released.
                self.replace_stuck();
                drop(guard);
                self.drop_entry(&ticket.entry);
            }
        }
    }

    fn drop_entry(&self, entry: &Arc<Entry>) {
        if self.folder.index.remove(entry) {
            let _ = self.writes.send(WriteJob::Remove(vec![entry.clone()]));
        }
    }

    fn replace_stuck(self: &Arc<Pool>) {
        let mut threads = lock(&self.threads);
        threads.stuck += 1;
        if threads.stuck >= MAX_STUCK {
            self.exhausted.store(true, Relaxed);
        } else if self.spawn_reader().is_ok() {
            threads.all += 1;
        }
    }

    /// A stuck thread is released: whether there are enough threads without it.
    fn is_one_too_many(&self) -> bool {
        let mut threads = lock(&self.threads);
        threads.stuck -= 1;
        self.exhausted.store(false, Relaxed);
        let enough = threads.all - threads.stuck > READERS;
        threads.all -= usize::from(enough);
        enough
    }
}

impl Ticket {
    /// Whether the client still waits.
    fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        match mem::replace(&mut *state, State::Over) {
            State::Waiting(done) if !done.is_canceled() => {
                *state = State::Reading(done);
                true
            }
            _ => false,
        }
    }

    fn end(&self) -> Option<oneshot::Sender<Option<Content>>> {
        match mem::replace(&mut *lock(&self.state), State::Over) {
            State::Reading(done) => Some(done),
            State::Waiting(_) | State::Over => None,
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("late", &self.late).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is consistent between any two statements that could panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
