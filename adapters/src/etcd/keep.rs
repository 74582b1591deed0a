//! Keeping the copy on disk up to date, for as long as the store lives.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::Duration;

use control::store::{Change, Kept, StoreError, Table};
use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Inner;

/// How often somebody looks whether the file can be opened, after it could not.
const REOPEN: Duration = Duration::from_secs(5);

/// Changes are gathered so long before they are written.
const GATHER: Duration = Duration::from_millis(5);

/// Changes of one commit, at most.
const BATCH: usize = 4096;

/// Asks for the file to be closed, as another process wants it.
#[derive(Debug)]
pub struct Release {
    /// That it was handed over; the sender's end says that it was not.
    pub verdict: Receiver<()>,
    /// It is closed.
    pub reply: oneshot::Sender<()>,
}

/// Why the file is written no more.
enum Ended {
    Disk(StoreError),
    Released(Release),
    /// The store is gone.
    Gone,
}

pub struct Keeper {
    inner: Weak<Inner>,
    table: Arc<Table>,
    folder: PathBuf,
    releases: mpsc::Receiver<Release>,
}

impl Keeper {
    pub fn new(inner: &Arc<Inner>, folder: PathBuf, releases: mpsc::Receiver<Release>) -> Keeper {
        Keeper { inner: Arc::downgrade(inner), table: inner.table.clone(), folder, releases }
    }

    /// With the file, if it could be opened.
    pub async fn run(mut self, mut file: Option<Kept>) {
        loop {
            let ended = match file.take() {
                Some(kept) => self.write(kept).await,
                None => tokio::select! {
                    release = self.releases.recv() => release.map_or(Ended::Gone, Ended::Released),
                    () = sleep(REOPEN) => {
                        let folder = self.folder.clone();
                        let Ok(opened) = spawn_blocking(move || Kept::open(&folder)).await else { return };
                        file = opened.ok().map(|(kept, _)| kept);
                        continue;
                    }
                },
            };
            match ended {
                Ended::Gone => return,
                Ended::Disk(error) => {
                    tracing::error!("the copy of what etcd holds cannot be written: {error}")
                }
                Ended::Released(Release { verdict, reply }) => {
                    // Whoever asked may have gone, and the other end of the verdict with it.
                    let _ = reply.send(());
                    if matches!(spawn_blocking(move || verdict.recv()).await, Ok(Ok(()))) {
                        if let Some(inner) = self.inner.upgrade() {
                            inner.copied.send_replace(None);
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Writes what changes, beginning with everything, until something ends it.
    async fn write(&mut self, mut kept: Kept) -> Ended {
        let Some(mut filled) = self.inner.upgrade().map(|inner| inner.filled.subscribe()) else {
            return Ended::Gone;
        };
        tokio::select! {
            release = self.releases.recv() => return release.map_or(Ended::Gone, Ended::Released),
            filled = filled.wait_for(|filled| *filled) => if filled.is_err() { return Ended::Gone },
        }
        let mut changes = self.table.watch();
        loop {
            let first = tokio::select! {
                release = self.releases.recv() => return release.map_or(Ended::Gone, Ended::Released),
                change = changes.next() => change,
            };
            let Some(first) = first else { return Ended::Gone };
            let mut gathered = vec![first];
            sleep(GATHER).await;
            while gathered.len() < BATCH
                && let Some(Some(more)) = changes.next().now_or_never()
            {
                gathered.push(more);
            }
            let Some(inner) = self.inner.upgrade() else { return Ended::Gone };
            // What is only a copy itself is there already.
            if inner.status().from_copy {
                continue;
            }
            let origin = format!("{} {}", inner.layout.prefix(), inner.cluster.load(Ordering::Relaxed));
            let revision = gathered.last().map_or(0, Change::revision);
            let writing = spawn_blocking(move || {
                let done = kept.commit(gathered, &origin);
                (kept, done)
            });
            let Ok((file, done)) = writing.await else { return Ended::Gone };
            kept = file;
            match done {
                Ok(()) => _ = inner.copied.send_replace(Some(revision)),
                Err(error) => return Ended::Disk(error),
            }
        }
    }
}
