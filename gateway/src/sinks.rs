//! Where log entries of plugins are delivered: a thread with a runtime of its own for servers, and
//! a thread for each file. None of them is a worker's, and none holds up another.

mod batches;
pub mod thread;

use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use adapters::Trust;
use adapters::sinks::{Context, Kind};
use anyhow::Context as _;
use sdk::sink::{Folders, Intake, Sinks};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use crate::error_log::{self, Quiet};

/// How long an end waits for entries that are still to be delivered.
const LAST_ENTRIES: Duration = Duration::from_secs(5);

/// Sinks that block, such as files, each on a thread.
const THREADS: usize = 256;

/// The running deliveries.
pub struct Deliveries {
    sinks: Arc<Sinks>,
    trust: Arc<OnceLock<Trust>>,
    stop: watch::Sender<bool>,
    /// Closed when all have ended.
    ended: Receiver<()>,
}

impl Deliveries {
    /// Starts them, with sinks of these kinds that hold at most `most` bytes together, and files in these folders
    /// alone.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(most: usize, kinds: &'static [Kind], folders: Arc<Folders>) -> anyhow::Result<Deliveries> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot make the runtime of the log sinks")?;
        let (start, started) = mpsc::unbounded_channel();
        // It fails only after the deliveries have ended, when entries are lost anyway.
        let sinks = Arc::new(Sinks::new(most, move |intake| _ = start.send(intake)));
        let (stop, stopping) = watch::channel(false);
        let (done, ended) = channel();
        let context = Context { trust: Arc::default(), folders };
        let trust = context.trust.clone();
        std::thread::Builder::new()
            .name("log-sinks".into())
            .spawn(move || {
                LocalSet::new().block_on(&runtime, serve(started, stopping, kinds, context, done));
            })
            .context("cannot start the thread of the log sinks")?;
        Ok(Deliveries { sinks, trust, stop, ended })
    }

    pub fn sinks(&self) -> Arc<Sinks> {
        self.sinks.clone()
    }

    /// Says which servers are trusted; until then none is reached over TLS.
    pub fn trust(&self, trust: Trust) {
        let _ = self.trust.set(trust);
    }

    /// Delivers what was gathered, once the workers have ended. Blocks for a moment.
    pub fn finish(self) {
        self.sinks.stop();
        // An error means that the thread has ended.
        let _ = self.stop.send(true);
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(LAST_ENTRIES) {
            tracing::warn!(
                "not all log entries of plugins could be delivered within {} s; the others are lost",
                LAST_ENTRIES.as_secs()
            );
        }
    }
}

/// Boxed for the reason that [`control::tasks`] gives. The tasks of a quiet one are quiet.
fn task(task: impl Future<Output = ()> + 'static) -> Pin<Box<dyn Future<Output = ()>>> {
    if error_log::is_quiet() { Box::pin(Quiet(Box::pin(task))) } else { Box::pin(task) }
}

/// Takes in sinks until the end, then waits for those that run.
async fn serve(
    mut started: mpsc::UnboundedReceiver<Intake>,
    mut stopping: watch::Receiver<bool>,
    kinds: &'static [Kind],
    context: Context,
    done: Sender<()>,
) {
    let mut tasks = JoinSet::new();
    let mut threads = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(intake) = started.recv() => {
                let to = &intake.spec().target;
                match kinds.iter().find(|kind| kind.name == to.sink) {
                    None => tracing::error!("this gateway has no sink of the kind {}: entries for {to} are dropped", to.sink),
                    Some(kind) if kind.blocks => {
                        threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
                        if threads.len() < THREADS {
                            threads.extend(block(kind, &context, intake, done.clone()));
                        } else {
                            tracing::error!("plugins already write to {THREADS} files, the maximum: entries for {to} are dropped");
                        }
                    }
                    Some(kind) => match (kind.make)(to, &context) {
                        Ok(sink) => {
                            let is_quiet = intake.spec().plugin == error_log::PLUGIN;
                            let run = task(batches::run(intake, sink, stopping.clone()));
                            _ = tasks.spawn_local(if is_quiet { Box::pin(Quiet(Box::pin(run))) } else { run });
                        }
                        Err(why) => tracing::error!("entries for {to} are dropped: {why}"),
                    },
                }
            }
            Some(ended) = tasks.join_next() => log_panic(ended),
            // The sender goes only with the whole program.
            _ = stopping.changed() => break,
        }
    }
    while let Some(ended) = tasks.join_next().await {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!("a log sink has failed, and what it held is lost: {error}");
    }
}

/// Starts the thread of a sink that blocks.
fn block(
    kind: &'static Kind,
    context: &Context,
    intake: Intake,
    done: Sender<()>,
) -> Option<std::thread::JoinHandle<()>> {
    let (to, context) = (intake.spec().target.clone(), context.clone());
    let place = to.to_string();
    let thread = std::thread::Builder::new().name(format!("log-{}", kind.name)).spawn(move || {
        match (kind.make)(&to, &context) {
            Ok(sink) => thread::run(&intake, &*sink),
            Err(why) => tracing::error!("{to} is not written, and its entries are dropped: {why}"),
        }
        drop(done);
    });
    match thread {
        Ok(thread) => Some(thread),
        Err(error) => {
            tracing::error!("cannot start a thread that writes {place}, so its entries are dropped: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests;
