//! Metrics: each worker counts in its own shard, a scrape sums them.
//!
//! A shard has one writer, its worker, which adds with plain loads and stores; a scrape reads the
//! same words from its own thread and never stops the worker. A series that is new on a worker is
//! sent to the scraping side through a queue that never makes the worker wait. The number of series
//! is bounded over all workers: beyond [`Settings::max_series`] further label sets share one series
//! whose route is [`OVERFLOW`], and are counted as metric errors. Near the bound, idle series are
//! evicted for new ones.
//!
//! Names, labels, buckets and order are those of APISIX 3.18's exporter.
#![expect(
    clippy::disallowed_types,
    reason = "taken when a series or a shard is made and by a scrape; a request bumps atomics"
)]

mod counts;
pub mod live;
mod memo;
mod reading;
mod series;
mod settings;
mod shard;
mod trial;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use counts::Totals;
pub use memo::{Addresses, SeriesMemo};
pub use reading::{Histogram, Reading};
pub use series::{COMMAND_BOUNDS_US, Kind};
pub use settings::Settings;
pub use shard::{Labels, Sample, Shard, StreamLabels};
pub use trial::Trials;

use counts::WorkerCounts;
use series::{Families, Inserted, Registered};
use trial::Trial;

/// The route label of the series shared by the label sets beyond the bound.
pub const OVERFLOW: &str = "__overflow__";

/// All shards of the node.
#[derive(Debug, Default)]
pub struct Meters {
    settings: Arc<Settings>,
    /// Lines of output of the known series.
    lines: Arc<AtomicUsize>,
    collected: Mutex<Collected>,
    /// The reading side of each worker's live counts.
    live: Mutex<Vec<live::Reading>>,
    /// Whether all requests are counted and timed; see [`Meters::watch`].
    watches: AtomicBool,
}

/// The state of the scraping side. Only scrapes and configuration changes take its lock.
#[derive(Debug, Default)]
struct Collected {
    shards: Vec<(Arc<WorkerCounts>, Receiver<Registered>)>,
    trials: Vec<Arc<Trial>>,
    families: Families,
    /// Series that were evicted, or for which there was no room.
    evicted: u64,
}

impl Meters {
    pub fn new(settings: Settings) -> Meters {
        Meters { settings: Arc::new(settings), ..Meters::default() }
    }

    /// Creates a shard; the worker's number is only a name.
    pub fn shard(&self, _worker: usize) -> Shard {
        let (mut shard, new) = Shard::new(self.settings.clone(), self.lines.clone());
        let (counts, cells) = live::Live::new();
        shard.live = counts;
        self.live.lock().unwrap_or_else(PoisonError::into_inner).push(live::Reading::new(cells));
        let mut collected = self.collected();
        shard.trial.on.store(self.watches.load(Relaxed), Relaxed);
        collected.trials.push(shard.trial.clone());
        collected.shards.push((shard.node.clone(), new));
        drop(collected);
        shard
    }

    /// Starts or stops counting and timing all requests.
    pub fn watch(&self, watches: bool) {
        let collected = self.collected();
        self.watches.store(watches, Relaxed);
        collected.trials.iter().for_each(|trial| trial.on.store(watches, Relaxed));
    }

    /// The totals of all requests counted while watching.
    pub fn watched(&self) -> Trials {
        let mut sum = Trials::default();
        self.collected().trials.iter().for_each(|trial| sum.add(trial));
        sum
    }

    /// Passes on the live counts since the last call, with the number of the worker. For one reader:
    /// the next call sees only what came later.
    pub fn take_live(&self, mut look: impl FnMut(usize, &live::Name, &live::Counts)) {
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        for (worker, reading) in all.iter_mut().enumerate() {
            reading.take(|name, counts| look(worker, name, counts));
        }
    }

    /// The open connections of each worker's clients.
    pub fn open_connections(&self) -> Vec<u64> {
        let open = |worker: &WorkerCounts| {
            let closed = worker.closed.load(Relaxed);
            // The worker may have closed more by now.
            worker.accepted.load(Relaxed).saturating_sub(closed)
        };
        self.collected().shards.iter().map(|(worker, _)| open(worker)).collect()
    }

    /// The sums of the counters without labels.
    pub fn totals(&self) -> Totals {
        self.collected().totals()
    }

    /// Calls `look` with the current counts.
    pub fn read<R>(&self, now_ms: u64, look: impl FnOnce(&Reading<'_>) -> R) -> R {
        let mut collected = self.collected();
        self.tend(&mut collected, now_ms);
        look(&Reading { settings: &self.settings, collected: &collected })
    }

    /// Collects new series and removes idle ones. Called from time to time, so that the bound holds
    /// without scrapes, too.
    pub fn tidy(&self, now_ms: u64) {
        self.tend(&mut self.collected(), now_ms);
    }

    /// Requests whose labels exceeded the bound.
    pub fn overflowed(&self) -> u64 {
        self.collected().totals().metric_errors
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Removes the series of deleted routes: those whose route label (an id, or a name if
    /// `prefer_name` is set) `keep` rejects.
    pub fn retain_routes(&self, keep: impl Fn(&str) -> bool) {
        let mut collected = self.collected();
        collected.gather(&self.settings);
        let Collected { families, shards, .. } = &mut *collected;
        let keep = |route: &str| route.is_empty() || route == OVERFLOW || keep(route);
        families.retain(keep, |shard, count| shards[shard].0.retire(count));
        self.lines.store(families.lines(&self.settings), Relaxed);
    }

    fn tend(&self, collected: &mut Collected, now_ms: u64) {
        collected.gather(&self.settings);
        let Collected { families, shards, evicted, .. } = collected;
        let retire = |shard: usize, count| shards[shard].0.retire(count);
        families.touch(now_ms);
        // Expired series are removed first, as APISIX's dictionary does.
        families.expire(&self.settings, now_ms, retire);
        *evicted += families.make_room(&self.settings, now_ms, retire);
        self.lines.store(families.lines(&self.settings), Relaxed);
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collected {
    /// Collects the series that workers registered, as far as there is room: a worker does not know
    /// the series that others registered since the last collection.
    fn gather(&mut self, settings: &Settings) {
        let mut lines = self.families.lines(settings);
        for (index, (node, new)) in self.shards.iter().enumerate() {
            for registered in new.try_iter() {
                let more = registered.lines(settings);
                node.taken.fetch_add(more, Relaxed);
                let room = lines < settings.max_series || registered.route() == OVERFLOW;
                match self.families.insert(index, registered, room) {
                    Inserted::New => lines += more,
                    Inserted::Beside => {}
                    Inserted::Refused => {
                        self.evicted += 1;
                        node.retire(1);
                    }
                }
            }
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.shards.iter().for_each(|(worker, _)| totals.add(worker));
        totals
    }
}

/// Escapes `\`, `"` and line feeds in a label's value.
pub fn escaped(value: &str) -> std::borrow::Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests;
