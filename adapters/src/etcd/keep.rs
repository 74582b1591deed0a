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

/// Time between two tries to open the file, after one has failed.
const REOPEN: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5000 });

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
        // The last logged reason why it cannot be opened.
        let mut logged = String::new();
        loop {
            let ended = match file.take() {
                Some(kept) => self.write(kept).await,
                None => tokio::select! {
                    release = self.releases.recv() => release.map_or(Ended::Gone, Ended::Released),
                    () = sleep(REOPEN) => {
                        let folder = self.folder.clone();
                        let Ok(opened) = spawn_blocking(move || Kept::open(&folder)).await else { return };
                        match opened {
                            Ok((kept, _)) => (file, logged) = (Some(kept), String::new()),
                            Err(error) if error.to_string() != logged => {
                                logged = error.to_string();
                                tracing::warn!("the copy of what etcd holds is not kept: {logged}");
                            }
                            Err(_) => {}
                        }
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
                    // The caller may have stopped waiting, and have dropped the other end of the verdict.
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
            // Rows of the copy itself are in the file already.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use control::store::{Copy, Row, Store};
    use model::{Key, Kind};

    use super::super::{Etcd, Host, Settings};
    use super::*;

    fn settings(folder: &Path) -> Settings {
        Settings {
            hosts: vec![Host::parse("http://127.0.0.1:1").unwrap()],
            prefix: "/apisix".to_owned(),
            user: None,
            tls: None,
            names: None,
            timeout: Duration::from_secs(1),
            startup_retry: 0,
            progress_interval: Duration::from_secs(60),
            progress_timeout: Duration::from_secs(60),
            max_size: 1 << 20,
            copy: Some(folder.to_owned()),
            history: Default::default(),
        }
    }

    fn put(id: &str, revision: u64) -> Change {
        let key = Key::new(Kind::Route, id);
        Change::Put(Row { key, json: "{}".into(), created: revision, modified: revision, expires: None })
    }

    /// Opens the copy as another process would.
    fn open(folder: &Path) -> (Kept, Copy) {
        Kept::open(folder).expect("no other process has it open")
    }

    fn ids(copy: &Copy) -> Vec<&str> {
        copy.items.iter().map(|row| &*row.key.id).collect()
    }

    #[tokio::test]
    async fn one_process_at_a_time_writes_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("etcd");
        let (inner, releases) = Inner::new(settings(&folder));
        let etcd = Etcd { inner: inner.clone(), tasks: Vec::new() };
        let keeper = Keeper::new(&inner, folder.clone(), releases);
        let mut copied = inner.copied.subscribe();
        let keeping = tokio::spawn(keeper.run(Some(open(&folder).0)));
        inner.table.apply([put("1", 5)]);
        inner.filled.send_replace(true);
        copied.wait_for(|copied| *copied == Some(5)).await.unwrap();
        assert!(matches!(Kept::open(&folder), Err(StoreError::Locked { .. })));
        // Another process has it, and writes what it sees itself; then it ends.
        let released = etcd.release().await.unwrap().unwrap();
        let (mut other, copy) = open(&folder);
        assert_eq!(ids(&copy), ["1"]);
        inner.table.apply([put("2", 6)]);
        other.commit(vec![put("2", 6), put("3", 7)], "/apisix 0").unwrap();
        drop(other);
        drop(released);
        inner.table.apply([put("3", 7), put("4", 8)]);
        copied.wait_for(|copied| *copied == Some(8)).await.unwrap();
        // This time it stays there.
        let released = etcd.release().await.unwrap().unwrap();
        let (mut other, copy) = open(&folder);
        assert_eq!(ids(&copy), ["1", "2", "3", "4"]);
        released.hand_over();
        keeping.await.unwrap();
        assert_eq!(*copied.borrow(), None);
        inner.table.apply([put("5", 9)]);
        other.commit(vec![put("6", 9)], "/apisix 0").unwrap();
        drop(other);
        assert_eq!(ids(&open(&folder).1), ["1", "2", "3", "4", "6"]);
        assert!(etcd.release().await.unwrap().is_none());
    }
}
