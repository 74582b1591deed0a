//! Following the cluster: reading everything, then watching from there.
//!
//! The position moves with events and with notifications of progress of the same watch, and with nothing
//! else. Answers to our own requests for progress only show that the watch lives: members before 3.4.25 and
//! 3.5.8 may send them ahead of events. If the watch cannot continue, everything is read again and followers get
//! the differences. This module never writes to etcd.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::store::{Change, Kept, Revision};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::client::{ANSWER, Client, Trouble, Watching};
use super::keep::{Keeper, Release};
use super::proto::watch_request::RequestUnion;
use super::proto::{
    Event, ResponseHeader, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use super::{Inner, keys, pages};

/// How long the cluster is waited for at the start before a copy on disk is served.
const HEAD_START: Duration = Duration::from_millis(200);

/// Between two tries, at first and at most; half of it is chance, so that a fleet does not come at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// After a refusal.
const REFUSED: Duration = Duration::from_secs(5);

/// How often the same trouble is logged.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Events of one watch answer that are held until its last part has come.
const MOST_EVENTS: usize = 1 << 20;

/// How far the cluster was followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    cluster: u64,
    revision: Revision,
}

/// Follows for ever.
pub async fn run(inner: Arc<Inner>, releases: mpsc::Receiver<Release>) {
    let mut following = Following { inner, releases: Some(releases), position: None, logged: None, tries: 0 };
    following.start().await;
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let Err(trouble) = following.follow().await;
        following.log(&trouble);
        if began.elapsed() > LONGEST_PAUSE * 4 {
            pause = FIRST_PAUSE;
        }
        // A request that etcd refuses (rights, a size) would be refused again.
        let pause_now = if matches!(trouble, Trouble::Refused(_)) { REFUSED } else { pause };
        sleep(pause_now / 2 + pause_now.mul_f64(fastrand::f64()) / 2).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

struct Following {
    inner: Arc<Inner>,
    /// For the keeper of the copy.
    releases: Option<mpsc::Receiver<Release>>,
    position: Option<Position>,
    /// The trouble that was logged last, with the time.
    logged: Option<(String, Instant)>,
    tries: u32,
}

enum Never {}

impl Following {
    /// The first reading; from the copy on disk if the cluster does not answer at once.
    async fn start(&mut self) {
        let opened = match self.inner.settings.copy.clone() {
            Some(folder) => tokio::task::spawn_blocking(move || Kept::open(&folder)).await.ok(),
            None => None,
        };
        let (kept, copy) = match opened {
            Some(Ok((kept, copy))) => (Some(kept), Some(copy)),
            Some(Err(error)) => {
                tracing::warn!("no copy of what etcd holds is kept on disk for now: {error}");
                (None, None)
            }
            None => (None, None),
        };
        let origin = self.inner.layout.prefix().to_owned();
        let copy = copy.filter(|copy| {
            let (of, _) = copy.origin.as_deref().unwrap_or_default().split_once(' ').unwrap_or_default();
            copy.origin.is_some() && of == origin
        });
        let read = timeout(HEAD_START, self.read()).await;
        if let (Some(copy), false) = (copy, matches!(read, Ok(Ok(())))) {
            let cluster = copy.origin.as_deref().and_then(|origin| origin.rsplit_once(' ')?.1.parse().ok());
            tracing::warn!(
                "etcd does not answer{}; serving the copy on disk with {} resources of revision {} until it does",
                match read {
                    Ok(Err(trouble)) => format!(" ({trouble})"),
                    _ => String::new(),
                },
                copy.items.len(),
                copy.revision
            );
            self.inner.table.reset(copy.items, copy.plugins, copy.revision, Vec::new());
            self.inner.note_status(|status| status.from_copy = true);
            // Compared with what is read next; the watch does not begin there.
            self.position = cluster.map(|cluster| Position { cluster, revision: copy.revision });
            self.inner.filled.send_replace(true);
        }
        // Without a copy the receiver is dropped, so that requests to release it fail at once.
        let releases = self.releases.take();
        if let (Some(folder), Some(releases)) = (self.inner.settings.copy.clone(), releases) {
            self.inner.copied.send_replace(Some(0));
            let keeper = Keeper::new(&self.inner, folder, releases);
            control::tasks::spawn(keeper.run(kept));
        }
    }

    /// Follows until there is trouble.
    async fn follow(&mut self) -> Result<Never, Trouble> {
        // A copy from disk is compared with the cluster. A watch that broke is resumed at its position.
        if self.position.is_none() || self.inner.status().from_copy {
            self.read().await?;
        }
        loop {
            match self.watch().await {
                Err(Trouble::Compacted) => {
                    let since = self.position.map_or(0, |position| position.revision);
                    tracing::info!("the watch cannot go on from revision {since}: reading everything again");
                    // A cluster that compacts all the time is not read without a pause.
                    sleep(FIRST_PAUSE).await;
                    self.read().await?;
                }
                ended => return ended,
            }
        }
    }

    /// Reads everything; followers get the differences.
    async fn read(&mut self) -> Result<(), Trouble> {
        let Inner { client, layout, settings, table, .. } = &*self.inner;
        let all = pages::everything(
            client,
            layout,
            settings.timeout.min(Duration::from_secs(30)),
            settings.max_size,
        )
        .await?;
        let now = Position { cluster: all.cluster, revision: all.revision };
        if let Some(before) = self.position {
            if before.cluster != now.cluster {
                tracing::warn!(
                    "etcd is another cluster than before: its revisions are not compared with the old ones"
                );
                table.begin_anew();
            } else if now.revision < before.revision {
                tracing::warn!(
                    "etcd has gone back from revision {} to {}, as if restored from a backup: taking what it holds now",
                    before.revision,
                    now.revision
                );
                table.begin_anew();
            }
        }
        let count = all.rows.len();
        // First, so that no decision over the table uses notes that are older than its rows.
        table.set_notes(all.notes);
        // Before the table, so that the keeper writes these rows to the copy.
        self.inner.cluster.store(all.cluster, Ordering::Relaxed);
        self.inner.note_status(|status| status.from_copy = false);
        table.reset(all.rows, all.plugins, all.revision, Vec::new());
        self.position = Some(now);
        self.connected();
        tracing::info!("read {count} resources from etcd, revision {}", now.revision);
        self.inner.filled.send_replace(true);
        Ok(())
    }

    /// Watches from the position on, until there is trouble.
    async fn watch(&mut self) -> Result<Never, Trouble> {
        let Some(position) = self.position else { return Err(Trouble::Compacted) };
        let (key, range_end) = self.inner.layout.all();
        // From the revision that was seen, not from the next: members without the fixes of etcd#18089 and
        // etcd#19179 lose a deletion at just the revision they have compacted, if a watch begins there. What
        // was seen is passed over.
        let start = i64::try_from(position.revision.max(1)).unwrap_or(i64::MAX);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: start,
            progress_notify: true,
            fragment: true,
        };
        let asked = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let mut watching = self.inner.client.watch(asked).await?;
        let ended = self.drive(&mut watching).await;
        if !matches!(ended, Err(Trouble::Compacted)) {
            self.inner.client.leave(&watching).await;
        }
        ended
    }

    async fn drive(&mut self, watching: &mut Watching) -> Result<Never, Trouble> {
        let (interval, patience) =
            (self.inner.settings.progress_interval, self.inner.settings.progress_timeout);
        let mut parts: Vec<Event> = Vec::new();
        let mut created = false;
        let mut asked = false;
        let mut due = Instant::now() + ANSWER;
        loop {
            let answer = tokio::select! {
                biased;
                answer = watching.answers.message() => answer.map_err(|status| Client::why(&status))?,
                () = sleep_until(due) => {
                    if asked || !created {
                        return Err(Trouble::Lost("the watch does not answer".to_owned()));
                    }
                    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let ask = WatchRequest { request_union: Some(progress) };
                    let full = |_| Trouble::Lost("the watch takes no requests".to_owned());
                    watching.asks.try_send(ask).map_err(full)?;
                    (asked, due) = (true, Instant::now() + patience);
                    continue;
                }
            };
            let Some(answer) = answer else {
                return Err(Trouble::Lost("etcd has ended the watch".to_owned()));
            };
            (asked, due) = (false, Instant::now() + interval);
            if answer.created {
                created = true;
                self.check(answer.header.unwrap_or_default())?;
            }
            if answer.canceled {
                return Err(cancelled(&answer));
            }
            let (fragment, header, watch_id) = (answer.fragment, answer.header, answer.watch_id);
            if parts.len() + answer.events.len() > MOST_EVENTS {
                return Err(Trouble::Compacted);
            }
            if parts.is_empty() {
                parts = answer.events
            } else {
                parts.extend(answer.events)
            }
            if fragment {
                continue;
            }
            let events = std::mem::take(&mut parts);
            match events.is_empty() {
                false => self.take(&events),
                // A notification of the watch's own accord; those for all watches have the number -1.
                true if !answer.created && watch_id >= 0 => self.moved_to(header.unwrap_or_default()),
                true => {}
            }
        }
    }

    /// Checks the member's answer as the watch begins: it may belong to another cluster, or have older data than were
    /// seen. In the latter case it may only be behind, which reading everything shows.
    fn check(&mut self, header: ResponseHeader) -> Result<(), Trouble> {
        let Some(position) = self.position else { return Err(Trouble::Compacted) };
        if header.cluster_id != position.cluster || keys::revision(header.revision) < position.revision {
            return Err(Trouble::Compacted);
        }
        self.connected();
        Ok(())
    }

    fn take(&mut self, events: &[Event]) {
        let seen = self.position.map_or(0, |position| position.revision);
        let revision_of = |event: &Event| event.kv.as_ref().map_or(0, |kv| keys::revision(kv.mod_revision));
        let news: Vec<&Event> = events.iter().filter(|event| revision_of(event) > seen).collect();
        let newest = news.iter().map(|event| revision_of(event)).max();
        let changes: Vec<Change> =
            news.into_iter().filter_map(|event| self.inner.layout.change(event)).collect();
        if !changes.is_empty() {
            self.inner.table.apply(changes);
        }
        if let (Some(position), Some(newest)) = (&mut self.position, newest) {
            position.revision = position.revision.max(newest);
        }
    }

    fn moved_to(&mut self, header: ResponseHeader) {
        if let Some(position) = &mut self.position {
            position.revision = position.revision.max(keys::revision(header.revision));
        }
    }

    fn connected(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("the etcd watch works again");
        }
        self.tries = 0;
        self.inner.note_status(|status| (status.connected, status.trouble) = (true, None));
    }

    fn log(&mut self, trouble: &Trouble) {
        let text = trouble.to_string();
        self.inner.note_status(|status| (status.connected, status.trouble) = (false, Some(text.clone())));
        self.tries += 1;
        // A leader that moves is no news.
        let due = match &self.logged {
            None => self.tries > self.inner.settings.startup_retry,
            Some((before, when)) => {
                *before != text && when.elapsed() > LONGEST_PAUSE * 4 || when.elapsed() > LOG_AGAIN
            }
        };
        if due {
            match *self.inner.filled.borrow() {
                true => tracing::error!("lost the etcd watch ({text}): serving the last known configuration"),
                false => tracing::error!("cannot read etcd ({text}): nothing to serve until it answers"),
            }
            self.logged = Some((text, Instant::now()));
        }
    }
}

/// Why etcd ends a watch.
fn cancelled(answer: &WatchResponse) -> Trouble {
    match answer.compact_revision > 0 || answer.cancel_reason.contains("compacted") {
        true => Trouble::Compacted,
        // Revoked rights or an expired token: the next request fails with the reason.
        false => Trouble::Lost(format!("etcd cancels the watch: {}", answer.cancel_reason)),
    }
}
