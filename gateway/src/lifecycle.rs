//! Signals, as NGINX's users expect them.

use std::time::Duration;

use proxy::{Stage, Workers};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long TERM and INT wait for requests in flight. QUIT waits for `worker_shutdown_timeout`.
const QUICK: Duration = Duration::from_secs(10);

/// The signals that matter, taken over at start so that none is lost.
pub struct Signals {
    term: Signal,
    int: Signal,
    quit: Signal,
    hup: Signal,
}

impl Signals {
    pub fn new() -> std::io::Result<Signals> {
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
