//! Entries of one sink on their way to a server: gathered, sent, tried again.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use sdk::sink::{Batch, Deliver, Gathering, Intake, Next, Outcome, Spec, Taken};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time between two messages of one sink about failures.
const PAUSE: Duration = Duration::from_secs(1);

/// The state that the deliveries of a sink share.
struct Line {
    intake: Intake,
    spec: Spec,
    sink: Box<dyn Deliver>,
    stopping: watch::Receiver<bool>,
    /// The server of the next delivery.
    server: Cell<usize>,
    /// Time of the last message about a failure, and the number of failures since.
    logged: Cell<(Option<Instant>, u64)>,
}

/// Delivers until the sink ends and all of it is delivered or given up.
pub(super) async fn run(intake: Intake, sink: Box<dyn Deliver>, stopping: watch::Receiver<bool>) {
    let spec = intake.spec().clone();
    let line =
        Rc::new(Line { intake, spec, sink, stopping, server: Cell::default(), logged: Cell::default() });
    let options = &line.spec.batching;
    let began = Instant::now();
    let now = || began.elapsed().as_millis() as u64;
    let mut gathering = Gathering::default();
    let mut batch = Vec::new();
    let mut deliveries = JoinSet::new();
    let mut ended = false;
    loop {
        while !ended && !gathering.is_full(options) {
            match line.intake.take() {
                Some(Next::Entries(taken)) => {
                    gathering.add(taken.size(), now());
                    batch.push(taken);
                }
                Some(Next::Reopen) => {}
                Some(Next::End) => ended = true,
                None => break,
            }
        }
        if gathering.is_full(options) || gathering.is_due(options, now()) || ended && !batch.is_empty() {
            gathering = Gathering::default();
            // While all are busy nothing is taken in, so that what waits stays within its bounds.
            while deliveries.len() >= line.sink.at_once() {
                deliveries.join_next().await;
            }
            deliveries.spawn_local(super::task(deliver(line.clone(), std::mem::take(&mut batch))));
            continue;
        }
        if ended {
            break;
        }
        let room = gathering.room(options);
        let look_at = gathering.look_at(options).map(|at| began + Duration::from_millis(at));
        let look = async {
            match look_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            next = poll_fn(|cx| line.intake.poll_next(cx, room)) => match next {
                Next::Entries(taken) => {
                    gathering.add(taken.size(), now());
                    batch.push(taken);
                }
                Next::Reopen => {}
                Next::End => ended = true,
            },
            () = look => {}
            Some(_) = deliveries.join_next() => {}
        }
    }
    while deliveries.join_next().await.is_some() {}
}

/// Delivers a batch, trying again as often as its options say.
async fn deliver(line: Rc<Line>, mut batch: Vec<Taken>) {
    let options = &line.spec.batching;
    line.intake.delivering(batch.len(), 0);
    let mut failures = 0;
    loop {
        let (server, resolved) = (line.next_server(), line.intake.addresses());
        if let Some((host, port)) = line.spec.target.servers.get(server) {
            tracing::debug!("sending a batch logs to {host}:{port}");
        }
        let addresses = resolved.get(server).map_or(&[][..], Vec::as_slice);
        let (reason, after) = match line.sink.deliver(Batch { records: &batch, server, addresses }).await {
            Outcome::Delivered => break,
            Outcome::Retry { after, reason } => (reason, Some(after.unwrap_or(options.delay()))),
            Outcome::Partial { again, rejected, reason } => {
                line.intake.lost(rejected);
                let all = batch.len();
                let mut indices = 0..;
                batch.retain(|_| indices.next().is_some_and(|index| again.binary_search(&index).is_ok()));
                line.intake.delivering(0, all - batch.len());
                if batch.is_empty() {
                    line.log_failure(&reason, rejected, failures + 1, None);
                    break;
                }
                (reason, Some(options.delay()))
            }
            Outcome::Rejected(reason) => (reason, None),
        };
        failures += 1;
        let after = after.filter(|_| failures <= options.max_retry_count && !line.intake.is_stopping());
        line.log_failure(&reason, batch.len(), failures, after);
        let Some(after) = after else {
            line.intake.lost(batch.len());
            break;
        };
        let mut stopping = line.stopping.clone();
        // A stop ends the wait early, and the next try is the last one.
        let _ = tokio::time::timeout(after, stopping.wait_for(|stop| *stop)).await;
    }
    line.intake.delivering(0, batch.len());
}

impl Line {
    /// The servers of the destination in turn.
    fn next_server(&self) -> usize {
        let all = self.spec.target.servers.len().max(1);
        self.server.replace((self.server.get() + 1) % all)
    }

    /// APISIX's words, not more often than each [`PAUSE`].
    fn log_failure(&self, reason: &str, entries: usize, failures: u64, after: Option<Duration>) {
        let (logged, unlogged) = self.logged.get();
        if logged.is_some_and(|logged| logged.elapsed() < PAUSE) {
            self.logged.set((logged, unlogged + 1));
            return;
        }
        self.logged.set((Some(Instant::now()), 0));
        let name = &self.spec.batching.name;
        let owner = self.spec.owner.as_ref().map_or_else(String::new, |owner| {
            format!(" ({} of {}/{})", self.spec.plugin, owner.collection, owner.id)
        });
        let others = match unlogged {
            0 => String::new(),
            _ => format!("; {unlogged} more failures since the last message"),
        };
        let then = match after {
            Some(after) => format!("they are tried again in {} s", after.as_secs()),
            None => format!("exceeded the max_retry_count[{failures}] dropping the entries"),
        };
        tracing::error!(
            "Batch Processor[{name}] failed to process {entries} entries{owner}: {reason}; {then}{others}"
        );
    }
}
