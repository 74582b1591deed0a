//! Metrics: each worker counts in its own shard, a scrape sums them.
//!
//! A shard has one writer, its worker, which adds with plain loads and stores;
//! a scrape reads the same words from its own thread and stops nobody. A series
//! that is new on a worker is handed to the scraping side through a queue that
//! never makes the worker wait. The number of series is bounded over all workers: past
//! [`Settings::max_series`] further label sets share one series whose route is
//! [`OVERFLOW`], and are counted as metric errors. Near the bound, series that counted
//! nothing for a while give way to new ones.
//!
//! Names, labels, buckets and order are those of APISIX 3.18's exporter.
#![expect(
    clippy::disallowed_types,
    reason = "taken when a series or a shard is made and by a scrape; a request bumps atomics"
)]

mod counts;
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
pub use reading::{Histogram, Reading};
pub use series::{COMMAND_BOUNDS_US, Kind};
pub use settings::Settings;
pub use shard::{Labels, Sample, Shard, StreamLabels};
pub use trial::Trials;

use counts::WorkerCounts;
use series::{Families, Inserted, Registered};
use trial::Trial;

/// The route label of the series that label sets beyond the bound share.
pub const OVERFLOW: &str = "__overflow__";

/// All shards of the node.
#[derive(Debug, Default)]
pub struct Meters {
    settings: Arc<Settings>,
    /// Lines of output the known series make.
    lines: Arc<AtomicUsize>,
    collected: Mutex<Collected>,
    /// Whether all requests are counted and timed; see [`Meters::watch`].
    watches: AtomicBool,
}

/// What the scraping side knows. Only scrapes and configuration changes take its lock.
#[derive(Debug, Default)]
struct Collected {
    shards: Vec<(Arc<WorkerCounts>, Receiver<Registered>)>,
    trials: Vec<Arc<Trial>>,
    families: Families,
    /// Series that gave way to others, or found no room.
    evicted: u64,
}

impl Meters {
    pub fn new(settings: Settings) -> Meters {
        Meters { settings: Arc::new(settings), ..Meters::default() }
    }

    /// A new shard; the worker's number is only a name.
    pub fn shard(&self, _worker: usize) -> Shard {
        let (shard, new) = Shard::new(self.settings.clone(), self.lines.clone());
        let mut collected = self.collected();
        shard.trial.on.store(self.watches.load(Relaxed), Relaxed);
        collected.trials.push(shard.trial.clone());
        collected.shards.push((shard.node.clone(), new));
        drop(collected);
        shard
    }

    /// Has every request counted and timed from now on, or no more.
    pub fn watch(&self, watches: bool) {
        let collected = self.collected();
        self.watches.store(watches, Relaxed);
        collected.trials.iter().for_each(|trial| trial.on.store(watches, Relaxed));
    }

    /// What was counted while it was watched.
    pub fn watched(&self) -> Trials {
        let mut sum = Trials::default();
        self.collected().trials.iter().for_each(|trial| sum.add(trial));
        sum
    }

    /// Shows what is counted now.
    pub fn read<R>(&self, now_ms: u64, look: impl FnOnce(&Reading<'_>) -> R) -> R {
        let mut collected = self.collected();
        self.tend(&mut collected, now_ms);
        look(&Reading { settings: &self.settings, collected: &collected })
    }

    /// Takes in new series and lets go of idle ones. For now and then, so that the bound
    /// holds and is used though nobody scrapes.
    pub fn tidy(&self, now_ms: u64) {
        self.tend(&mut self.collected(), now_ms);
    }

    /// Requests whose labels found no room.
    pub fn overflowed(&self) -> u64 {
        self.collected().totals().metric_errors
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Drops the series of routes for which `keep` (asked with the route label: an id, or a
    /// name where `prefer_name` is set) says no. For when routes were deleted.
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
        // What was idle for too long goes first, as it would from APISIX's dictionary.
        families.expire(&self.settings, now_ms, retire);
        *evicted += families.make_room(&self.settings, now_ms, retire);
        self.lines.store(families.lines(&self.settings), Relaxed);
    }

    fn collected(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collected {
    /// Takes in the series that workers registered, as far as there is room: each worker keeps to
    /// the bound by what it knows, which is not what the others registered since the last time.
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

/// A label's value with `\`, `"` and line feeds escaped.
pub fn escaped(value: &str) -> std::borrow::Cow<'_, str> {
    if !value.contains(['\\', '"', '\n']) {
        return value.into();
    }
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests;
