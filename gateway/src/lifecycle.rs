//! Signals, as NGINX's users expect them.

use std::time::Duration;

use proxy::{Stage, Workers};
use rustix::process::Signal as Raw;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long TERM and INT wait for requests in flight. QUIT waits for `worker_shutdown_timeout`.
const QUICK: Duration = Duration::from_secs(10);

/// Signals that would end the process by default and mean nothing to it. USR2 is nginx's call for
/// an upgrade of the program, which is not served yet.
const IGNORED: [(Raw, &str); 7] = [
    (Raw::USR2, "USR2 (an upgrade while running is not served yet)"),
    (Raw::ALARM, "ALRM"),
    (Raw::VTALARM, "VTALRM"),
    (Raw::PROF, "PROF"),
    (Raw::IO, "IO"),
    (Raw::POWER, "PWR"),
    (Raw::WINCH, "WINCH (end gracefully with QUIT)"),
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

    /// Serves until a signal ends it and all workers have stopped. HUP calls `reload`.
    pub async fn run(mut self, workers: &Workers, drain: Duration, mut reload: impl AsyncFnMut()) {
        let patience = loop {
            tokio::select! {
                _ = self.term.recv() => break QUICK,
                _ = self.int.recv() => break QUICK,
                _ = self.quit.recv() => break drain,
                _ = self.hup.recv() => reload().await,
            }
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
                    tracing::warn!("some requests took longer and are cut off");
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
    }
}
