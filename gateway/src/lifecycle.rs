//! Signals, as NGINX's users expect them.

use std::time::Duration;

use proxy::{Stage, Watch};
use rustix::process::Signal as Raw;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::upgrade::{Upgrade, notify};

/// How long TERM and INT wait for requests in flight at most. QUIT waits for `worker_shutdown_timeout`, and no signal waits
/// longer: workers end then.
const QUICK: Duration = Duration::from_secs(10);

/// Signals that would end the process by default and mean nothing to it.
const IGNORED: [(Raw, &str); 6] = [
    (Raw::ALARM, "ALRM"),
    (Raw::VTALARM, "VTALRM"),
    (Raw::PROF, "PROF"),
    (Raw::IO, "IO"),
    (Raw::POWER, "PWR"),
    (Raw::WINCH, "WINCH (use QUIT for a graceful stop)"),
];

/// The signals that matter, taken over at start so that none is lost.
pub struct Signals {
    term: Signal,
    int: Signal,
    quit: Signal,
    hup: Signal,
    usr2: Signal,
}

/// A request by a signal, or the end of the last worker.
enum Event {
    /// An end, within so long.
    End(Duration),
    Reload,
    Upgrade,
    /// No worker is left.
    NoWorkerLeft,
}

/// Keeps a write beyond `RLIMIT_FSIZE` from ending the process: it fails with `EFBIG`, as one to a full disk fails
/// with `ENOSPC`. Nothing is logged here, as the log may be what is too large; the failed write is reported where
/// it was made. To be called within a runtime.
///
/// # Errors
/// The handler cannot be installed.
pub fn survive_size_limit() -> std::io::Result<()> {
    // The handler stays when this is dropped.
    signal(SignalKind::from_raw(Raw::XFSZ.as_raw())).map(drop)
}

impl Signals {
    /// Takes them over; USR1 calls `reopen` from now on.
    pub fn new(mut reopen: impl FnMut() + Send + 'static) -> std::io::Result<Signals> {
        let mut usr1 = signal(SignalKind::user_defined1())?;
        control::tasks::spawn(async move {
            while usr1.recv().await.is_some() {
                reopen();
            }
        });
        for (raw, name) in IGNORED {
            let mut ignored = signal(SignalKind::from_raw(raw.as_raw()))?;
            control::tasks::spawn(async move {
                while ignored.recv().await.is_some() {
                    tracing::warn!("signal {name} has no effect");
                }
            });
        }
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }

    async fn wish(&mut self, watchman: &mut Watchman, drain: Duration) -> Event {
        loop {
            tokio::select! {
                _ = self.term.recv() => return Event::End(drain.min(QUICK)),
                _ = self.int.recv() => return Event::End(drain.min(QUICK)),
                _ = self.quit.recv() => return Event::End(drain),
                _ = self.hup.recv() => return Event::Reload,
                _ = self.usr2.recv() => return Event::Upgrade,
                none_left = watchman.look() => if none_left {
                    return Event::NoWorkerLeft;
                }
            }
        }
    }

    /// Tries to hand over to a new process. Reloads meanwhile; gives up if the gateway is to end.
    async fn upgrade(
        &mut self,
        watchman: &mut Watchman,
        drain: Duration,
        upgrade: &mut Upgrade<'_>,
        reload: &mut impl AsyncFnMut(),
    ) -> Upgraded {
        let mut upgrading = std::pin::pin!(upgrade.run());
        loop {
            tokio::select! {
                done = &mut upgrading => return if done { Upgraded::Done } else { Upgraded::Failed },
                wish = self.wish(watchman, drain) => match wish {
                    Event::Upgrade => tracing::warn!("an upgrade is under way already"),
                    Event::Reload => reload().await,
                    end @ (Event::End(_) | Event::NoWorkerLeft) => return Upgraded::Given(end),
                }
            }
        }
    }

    /// Serves until a signal ends it and all workers have stopped, or until none is left. HUP calls
    /// `reload`; USR2 has another process take over.
    ///
    /// # Errors
    /// Which worker did not live as long as it should have.
    pub async fn run(
        mut self,
        mut upgrade: Upgrade<'_>,
        drain: Duration,
        mut reload: impl AsyncFnMut(),
    ) -> anyhow::Result<()> {
        let workers = upgrade.workers;
        let mut watchman = Watchman::new(workers.watch().clone());
        let mut stage = Stage::Drain;
        let patience = loop {
            let mut wish = self.wish(&mut watchman, drain).await;
            if let Event::Upgrade = wish {
                wish = match self.upgrade(&mut watchman, drain, &mut upgrade, &mut reload).await {
                    Upgraded::Done => {
                        stage = Stage::HandOver;
                        Event::End(drain)
                    }
                    Upgraded::Failed => continue,
                    Upgraded::Given(wish) => wish,
                };
            }
            match wish {
                Event::End(patience) => break Some(patience),
                Event::NoWorkerLeft => break None,
                Event::Reload => reload().await,
                Event::Upgrade => {}
            }
        };
        let Some(patience) = patience else {
            tracing::error!("no worker is left: stopping");
            return watchman.verdict();
        };
        tracing::info!(
            "stopping: no new connections, at most {} s for requests in flight",
            patience.as_secs()
        );
        // After an upgrade the service does not stop: another process is its main one.
        if !matches!(stage, Stage::HandOver) {
            notify::send_state("STOPPING=1");
        }
        workers.set_stage(stage);
        let end = tokio::time::Instant::now() + patience;
        while !workers.finished() {
            tokio::select! {
                _ = self.term.recv() => break,
                _ = self.int.recv() => break,
                () = tokio::time::sleep_until(end) => {
                    tracing::warn!("some requests did not finish in time and were cut off");
                    break;
                }
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
        if let Stage::HandOver = stage {
            upgrade.settle().await;
        }
        workers.set_stage(Stage::Stop);
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        while !workers.finished() && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        watchman.verdict()
    }
}

/// The outcome of an upgrade.
enum Upgraded {
    Done,
    Failed,
    /// It was given up for this.
    Given(Event),
}

/// Time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(500);

/// A worker ticks 20 times a second; one that did not tick during this many looks (5 s) hangs.
const LOOKS: u32 = 10;

/// Checks whether the workers still run, and logs when one does not.
struct Watchman {
    watch: Watch,
    looks: u32,
    ticks: Vec<u64>,
    hanging: Vec<usize>,
    ended: Vec<(usize, String)>,
}

impl Watchman {
    fn new(watch: Watch) -> Watchman {
        Watchman { watch, looks: 0, ticks: Vec::new(), hanging: Vec::new(), ended: Vec::new() }
    }

    /// Waits a while, then looks. True if no worker is left.
    async fn look(&mut self) -> bool {
        tokio::time::sleep(LOOK).await;
        for (worker, why) in self.watch.ended() {
            if self.ended.iter().all(|(known, _)| *known != worker) {
                tracing::error!(
                    "worker {worker} of {} has ended: {why}; the others continue, and the exit code will be 1",
                    self.watch.count()
                );
                self.ended.push((worker, why));
            }
        }
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) {
            let hanging = self.watch.look(&mut self.ticks);
            for worker in hanging.iter().filter(|worker| !self.hanging.contains(worker)) {
                tracing::error!("worker {worker} is stuck: it has made no progress for a while");
            }
            for worker in self.hanging.iter().filter(|worker| !hanging.contains(worker)) {
                tracing::warn!("worker {worker} makes progress again");
            }
            self.hanging = hanging;
        }
        self.ended.len() == self.watch.count()
    }

    fn verdict(self) -> anyhow::Result<()> {
        match self.watch.ended().first() {
            None => Ok(()),
            Some((worker, why)) => {
                anyhow::bail!("worker {worker} of {} ended unexpectedly: {why}", self.watch.count())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proxy::Workers;
    use sdk::meters::Meters;
    use snapshot::Publisher;
    use snapshot::compile::Compiler;

    use super::*;

    #[tokio::test]
    async fn workers_that_end_unasked_are_logged_once_and_fail_the_process() {
        let catalog = crate::wiring::catalog(&model::Boot::default()).unwrap();
        let (_publisher, readers) = Publisher::new(Compiler::new(catalog, Default::default()).snapshot(0), 2);
        let mut settings = crate::wiring::proxy_settings(&model::Boot::default(), Vec::new(), 2);
        settings.timeouts.idle_grace = Duration::ZERO;
        let sockets = vec![Vec::new(), Vec::new()];
        let workers =
            Workers::start(Arc::new(settings), sockets, readers, &Arc::<Meters>::default()).unwrap();
        let watch = workers.watch().clone();
        let mut watchman = Watchman::new(watch.clone());
        assert!(!watchman.look().await, "both run");
        assert!(Watchman::new(watch.clone()).verdict().is_ok());
        // Dropping them ends the workers, whose stage was never set to stop.
        drop(workers);
        while watch.ended().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(watchman.look().await, "no worker is left");
        watchman.look().await;
        assert_eq!(watchman.ended.len(), 2, "each is logged once");
        let why = watchman.verdict().unwrap_err().to_string();
        assert_eq!(why, "worker 0 of 2 ended unexpectedly: it stopped unasked");
    }
}
