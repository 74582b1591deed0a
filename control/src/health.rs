//! Active health checks: one prober for each checked address, for the whole process.
//!
//! Each published snapshot lists the servers to probe; probing begins at once, not with the
//! first request. Verdicts go into the atomic words that workers read
//! ([`snapshot::Health`]); a short log of each address stays here, for people. An address that a new
//! version of an upstream still has keeps its verdict, its log and its rhythm.

mod care;
mod probe;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::Key;
use model::upstream::Active;
use snapshot::Watched;
use snapshot::certs::ClientTls;
use snapshot::health::{Probed, Target};
use tokio::sync::watch;
use tokio::time::Instant;

pub use probe::Network;
pub use report::{Checker, Counter, NodeReport, Probe, Server};

use care::Care;

/// Probes under way at a time, of all upstreams together.
const MOST_PROBES: usize = 256;
/// Longest interval in seconds: a server is probed at least once a day, even if configured otherwise.
const LONGEST_INTERVAL: u64 = 86_400;
/// Probes of an address that are remembered.
const REMEMBERED: usize = 10;
/// How often verdicts of the traffic are looked for, to be logged.
const LOOK: Duration = Duration::from_secs(1);
/// Changes of verdicts that are logged in one look; a whole data center may go.
const MOST_LINES: usize = 100;

/// The result of one probe, and its text for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// `None` if it says nothing of the server: there was no descriptor, for instance.
    pub probed: Option<Probed>,
    /// For people: `200`, `connection refused`, …
    pub words: String,
}

/// The future of one probe.
pub type Probing = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Probes servers.
pub trait Ask: Send + Sync + fmt::Debug {
    /// `tls` is there for probes of the type `https`.
    fn ask(&self, active: &Active, target: &Target, tls: Option<&ClientTls>) -> Probing;
}

/// Looks at what a [`Prober`] has found, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Monitor(Arc<Mutex<State>>);

/// Probes what is to be probed. Runs on the control runtime.
#[derive(Debug)]
pub struct Prober {
    source: Arc<dyn Ask>,
    wanted: watch::Receiver<Arc<[Watched]>>,
    monitor: Monitor,
    under_way: FuturesUnordered<Answering>,
    cares: bool,
}

/// A probe that may start.
type Begun = (Key, Active, Arc<Target>, Option<Arc<ClientTls>>);

type Answering = Pin<Box<dyn Future<Output = (Key, u64, Outcome, Duration)> + Send>>;

#[derive(Debug, Default)]
struct State {
    checkers: BTreeMap<Key, Checked>,
    /// Probed addresses, by a number that is never used again.
    watched: HashMap<u64, WatchedTarget>,
    last: u64,
    /// When which of them is due.
    due: BTreeSet<(Instant, u64)>,
    care: Care,
}

#[derive(Debug)]
struct Checked {
    /// As it is now.
    upstream: Watched,
    /// In the order of the servers.
    numbers: Vec<u64>,
    /// Probes under way, bounded by `checks.active.concurrency`.
    running: u64,
    waiting: VecDeque<u64>,
    /// The number of verdict changes that are logged already.
    logged: u32,
}

/// A probed address.
#[derive(Debug)]
struct WatchedTarget {
    key: Key,
    target: Arc<Target>,
    due: Option<Instant>,
    /// It was never due so far.
    is_new: bool,
    /// It waits for its turn, or is probed now.
    is_busy: bool,
    /// The verdict that was logged last.
    logged: bool,
    probes: VecDeque<Probe>,
    last_error: Option<Probe>,
}

impl Monitor {
    /// All checked upstreams and what is known of their servers.
    pub fn report(&self) -> Vec<Checker> {
        let state = self.lock();
        state.checkers.iter().map(|(key, checked)| state.report(key, checked)).collect()
    }

    /// The same of one resource; `None` if it has no checks.
    pub fn report_of(&self, key: &Key) -> Option<Checker> {
        let state = self.lock();
        state.checkers.get(key).map(|checked| state.report(key, checked))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prober {
    /// Probes over the network.
    pub fn new(wanted: watch::Receiver<Arc<[Watched]>>) -> (Prober, Monitor) {
        Prober::of(Arc::new(Network::default()), wanted)
    }

    /// Probes by `source`.
    pub fn of(source: Arc<dyn Ask>, wanted: watch::Receiver<Arc<[Watched]>>) -> (Prober, Monitor) {
        let monitor = Monitor::default();
        let prober = Prober {
            source,
            wanted,
            monitor: monitor.clone(),
            under_way: FuturesUnordered::new(),
            cares: false,
        };
        (prober, monitor)
    }

    /// Runs until all handles are gone.
    pub async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut step = tokio::time::interval(care::STEP);
        step.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.take_wanted();
        loop {
            let next = self.begin();
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.take_wanted(),
                    Err(_) => return,
                },
                Some((key, number, outcome, took)) = self.under_way.next(), if !self.under_way.is_empty() => {
                    self.monitor.lock().answered(&key, number, outcome, took);
                }
                _ = look.tick() => self.monitor.lock().log_verdicts(),
                // Without anything to look after, nothing wakes up for it.
                _ = step.tick(), if self.cares => self.monitor.lock().care.step(),
                () = wake => {}
            }
        }
    }

    fn take_wanted(&mut self) {
        let wanted = self.wanted.borrow_and_update().clone();
        let mut state = self.monitor.lock();
        state.want(&wanted);
        self.cares = !state.care.is_idle();
    }

    /// Starts the probes that are due and may start; gives when the next is due.
    fn begin(&mut self) -> Option<Instant> {
        let mut state = self.monitor.lock();
        let now = Instant::now();
        while self.under_way.len() < MOST_PROBES {
            match state.due.first() {
                Some((at, _)) if *at > now => return Some(*at),
                None => return None,
                Some(_) => {}
            }
            let (_, number) = state.due.pop_first()?;
            let Some((key, active, target, tls)) = state.begin(number) else { continue };
            let asking = self.source.ask(&active, &target, tls.as_deref());
            self.under_way.push(Box::pin(async move {
                let began = Instant::now();
                let outcome = asking.await;
                (key, number, outcome, began.elapsed())
            }));
        }
        // One that comes back makes room.
        None
    }
}

impl State {
    /// Replaces what is probed; what stays keeps its place.
    fn want(&mut self, wanted: &[Watched]) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.checkers);
        self.care.want(wanted);
        for upstream in wanted {
            let key = &upstream.key;
            let old = before.remove(key);
            // A new rhythm, or something else that is asked, counts from now on.
            let afresh =
                old.as_ref().is_none_or(|old| old.active() != active(upstream) || old.tls() != tls(upstream));
            let Checked { numbers: had, running, waiting, .. } =
                old.unwrap_or_else(|| Checked::new(upstream));
            let mut known: HashMap<*const Target, u64> = had
                .into_iter()
                .filter_map(|number| Some((Arc::as_ptr(&self.watched.get(&number)?.target), number)))
                .collect();
            let mut checked = Checked { running, waiting, ..Checked::new(upstream) };
            for target in upstream.health.iter().flat_map(|health| health.targets()) {
                let number = match known.remove(&Arc::as_ptr(target)) {
                    Some(number) => number,
                    None => self.watch(key, target),
                };
                if let Some(watched) = self.watched.get_mut(&number)
                    && (afresh || watched.is_new)
                    && !watched.is_busy
                {
                    watched.is_new = false;
                    let due = watched.due.replace(now);
                    due.map(|due| self.due.remove(&(due, number)));
                    self.due.insert((now, number));
                }
                checked.numbers.push(number);
            }
            known.into_values().for_each(|number| self.forget(number));
            checked.waiting.retain(|number| self.watched.contains_key(number));
            self.checkers.insert(key.clone(), checked);
        }
        for gone in before.into_values() {
            gone.numbers.into_iter().for_each(|number| self.forget(number));
        }
    }

    fn watch(&mut self, key: &Key, target: &Arc<Target>) -> u64 {
        self.last += 1;
        let watched = WatchedTarget {
            key: key.clone(),
            logged: target.is_usable(),
            target: target.clone(),
            due: None,
            is_new: true,
            is_busy: false,
            probes: VecDeque::with_capacity(REMEMBERED),
            last_error: None,
        };
        self.watched.insert(self.last, watched);
        self.last
    }

    fn forget(&mut self, number: u64) {
        if let Some(WatchedTarget { due: Some(due), .. }) = self.watched.remove(&number) {
            self.due.remove(&(due, number));
        }
    }

    /// Returns the next probe; it waits if the upstream has its maximum of probes under way.
    fn begin(&mut self, number: u64) -> Option<Begun> {
        let watched = self.watched.get_mut(&number)?;
        watched.due = None;
        watched.is_busy = true;
        let checked = self.checkers.get_mut(&watched.key)?;
        let active = active(&checked.upstream)?;
        if checked.running >= active.concurrency.max(1) {
            checked.waiting.push_back(number);
            return None;
        }
        let active = active.clone();
        checked.running += 1;
        let tls = checked.upstream.health.as_ref().and_then(|health| health.probe_tls().cloned());
        Some((watched.key.clone(), active, watched.target.clone(), tls))
    }

    /// A probe has come back: counts it, remembers it, and plans the next one.
    fn answered(&mut self, key: &Key, number: u64, outcome: Outcome, took: Duration) {
        let now = Instant::now();
        if let Some(checked) = self.checkers.get_mut(key) {
            checked.running = checked.running.saturating_sub(1);
            if let Some(next) = checked.waiting.pop_front()
                && let Some(watched) = self.watched.get_mut(&next)
            {
                watched.due = Some(now);
                self.due.insert((now, next));
            }
        }
        let (Some(checked), Some(watched)) = (self.checkers.get(key), self.watched.get_mut(&number)) else {
            return;
        };
        let Some((health, active)) = checked.upstream.health.as_ref().zip(checked.active()) else { return };
        if let Some(probed) = outcome.probed {
            health.probed(&watched.target, probed);
        }
        watched.remember(Probe { at: SystemTime::now(), took, outcome: outcome.words }, outcome.probed);
        watched.is_busy = false;
        let seconds = match watched.target.is_usable() {
            true => active.healthy.interval,
            false => active.unhealthy.interval,
        };
        // Servers are not all asked at the same moment for ever; a slow one is given its rest, too.
        let interval =
            Duration::from_secs(seconds.clamp(1, LONGEST_INTERVAL)).mul_f64(0.95 + fastrand::f64() / 10.0);
        let due = now + interval.saturating_sub(took).max(interval / 10);
        watched.due = Some(due);
        self.due.insert((due, number));
        watched.log_verdict(MOST_LINES);
    }

    /// Logs verdicts that follow from traffic.
    fn log_verdicts(&mut self) {
        let mut left = MOST_LINES;
        for checked in self.checkers.values_mut() {
            let changes = changes(&checked.upstream);
            if std::mem::replace(&mut checked.logged, changes) == changes {
                continue;
            }
            for number in &checked.numbers {
                if let Some(watched) = self.watched.get_mut(number)
                    && watched.log_verdict(left)
                {
                    left -= 1;
                }
            }
        }
    }

    fn report(&self, key: &Key, checked: &Checked) -> Checker {
        let nodes = checked.numbers.iter().filter_map(|number| self.watched.get(number));
        Checker {
            key: key.clone(),
            kind: checked.active().map(|active| active.kind),
            nodes: nodes
                .map(|watched| NodeReport::new(&watched.target, &watched.probes, &watched.last_error))
                .collect(),
            servers: checked
                .upstream
                .health
                .as_ref()
                .map_or_else(Vec::new, |health| self.care.servers(health, key)),
            limit: self.care.adaptive_limit(key),
        }
    }
}

impl Checked {
    fn new(upstream: &Watched) -> Checked {
        let (numbers, waiting) = (Vec::new(), VecDeque::new());
        Checked { upstream: upstream.clone(), numbers, running: 0, waiting, logged: changes(upstream) }
    }

    fn active(&self) -> Option<&Active> {
        active(&self.upstream)
    }

    fn tls(&self) -> Option<&Arc<ClientTls>> {
        tls(&self.upstream)
    }
}

fn tls(upstream: &Watched) -> Option<&Arc<ClientTls>> {
    upstream.health.as_ref()?.probe_tls()
}

fn active(upstream: &Watched) -> Option<&Active> {
    upstream.health.as_ref()?.active()
}

fn changes(upstream: &Watched) -> u32 {
    upstream.health.as_ref().map_or(0, |health| health.changes())
}

impl WatchedTarget {
    fn remember(&mut self, probe: Probe, probed: Option<Probed>) {
        if !matches!(probed, Some(Probed::Connected | Probed::Status(200..400))) {
            self.last_error = Some(probe.clone());
        }
        if self.probes.len() == REMEMBERED {
            self.probes.pop_front();
        }
        self.probes.push_back(probe);
    }

    /// Logs a verdict that was not logged yet, within the bound of `left` lines.
    fn log_verdict(&mut self, left: usize) -> bool {
        let usable = self.target.is_usable();
        if left == 0 || usable == self.logged {
            return false;
        }
        self.logged = usable;
        let (key, addr) = (&self.key, self.target.addr);
        if usable {
            tracing::info!("{key}: node {addr} is healthy again");
        } else {
            let why = self.last_error.as_ref().map(|probe| format!("; last failed probe: {}", probe.outcome));
            tracing::warn!("{key}: node {addr} is unhealthy{}", why.unwrap_or_default());
        }
        true
    }
}

#[cfg(test)]
mod tests;
