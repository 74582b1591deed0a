//! Signals, as NGINX's users expect them.

use std::time::Duration;

use proxy::{Stage, Watch, Workers};
use rustix::process::Signal as Raw;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long TERM and INT wait for requests in flight. QUIT waits for `worker_shutdown_timeout`.
const QUICK: Duration = Duration::from_secs(10);

/// Signals that would end the process by default and mean nothing to it. USR2 is nginx's call for
/// an upgrade of the program, which is not served yet.
const IGNORED: [(Raw, &str); 7] = [
    (Raw::USR2, "USR2 (upgrading a running process is not supported yet)"),
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
}

impl Signals {
    /// Takes them over; USR1 calls `reopen` from now on.
    pub fn new(mut reopen: impl FnMut() + Send + 'static) -> std::io::Result<Signals> {
        let mut usr1 = signal(SignalKind::user_defined1())?;
        tokio::spawn(async move {
            while usr1.recv().await.is_some() {
                reopen();
            }
        });
        for (raw, name) in IGNORED {
            let mut ignored = signal(SignalKind::from_raw(raw.as_raw()))?;
            tokio::spawn(async move {
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
        })
    }

    /// Serves until a signal ends it and all workers have stopped, or until none is left. HUP calls
    /// `reload`.
    ///
    /// # Errors
    /// Which worker did not live as long as it should have.
    pub async fn run(
        mut self,
        workers: &Workers,
        drain: Duration,
        mut reload: impl AsyncFnMut(),
    ) -> anyhow::Result<()> {
        let mut watchman = Watchman::new(workers.watch().clone());
        let patience = loop {
            tokio::select! {
                _ = self.term.recv() => break Some(QUICK),
                _ = self.int.recv() => break Some(QUICK),
                _ = self.quit.recv() => break Some(drain),
                _ = self.hup.recv() => reload().await,
                nobody_left = watchman.look() => if nobody_left {
                    break None;
                }
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
        workers.set_stage(Stage::Drain);
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
        workers.set_stage(Stage::Stop);
        let end = tokio::time::Instant::now() + Duration::from_secs(2);
        while !workers.finished() && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        watchman.verdict()
    }
}

/// Time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(500);

/// A worker ticks 20 times a second; one that did not in so many looks (5 s) hangs.
const LOOKS: u32 = 10;

/// Looks whether the workers still run, and tells when one does not.
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
