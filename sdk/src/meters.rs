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

mod reading;
mod series;
mod settings;
mod trial;

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

pub use reading::{Histogram, Reading};
pub use series::Kind;
pub use settings::Settings;
pub use trial::Trials;

use series::{Count, Families, Inserted, Latency, Registered, Traffic, add};
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

/// One worker's part. It belongs to the worker's thread: it can be sent there, not shared.
#[derive(Debug)]
pub struct Shard {
    settings: Arc<Settings>,
    node: Arc<WorkerCounts>,
    trial: Arc<Trial>,
    new: Sender<Registered>,
    /// Requests by their labels.
    entries: RefCell<HashTable<Labelled>>,
    hash: RandomState,
    /// Series by label text, as different requests may share one where labels are left out.
    known: RefCell<Known>,
    overflow: RefCell<Option<Labelled>>,
    scratch: RefCell<Vec<u8>>,
    /// Lines of output the known series of all workers make.
    lines: Arc<AtomicUsize>,
    /// Lines of output of the series this shard ever registered.
    registered: Cell<usize>,
    /// Series that were retired when this shard last swept its tables.
    swept: Cell<u64>,
}

#[derive(Debug, Default)]
struct Known {
    status: HashMap<Box<str>, Arc<Count>>,
    latency: HashMap<Box<str>, Arc<Latency>>,
    bandwidth: HashMap<Box<str>, Arc<Traffic>>,
    streams: HashMap<Box<str>, Arc<Count>>,
    stream_status: HashMap<Box<str>, Arc<Count>>,
}

/// The series of requests with the same labels.
#[derive(Debug)]
struct Labelled {
    key: Box<[u8]>,
    status: Arc<Count>,
    latency: Arc<Latency>,
    bandwidth: Arc<Traffic>,
}

macro_rules! counts {
    ($($name:ident,)*) => {
        /// What a worker counts of itself.
        #[derive(Debug, Default)]
        struct WorkerCounts {
            $($name: AtomicU64,)*
            /// Written by the scraping side: series it retired of this shard.
            retired: AtomicU64,
            /// Written by the scraping side: lines of output of the series it took in from this shard.
            taken: AtomicUsize,
        }

        /// What all workers counted of themselves, together. The words of a worker are read one after the
        /// other while it goes on, so that what follows from two of them may be off for a moment.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Totals {
            $(pub $name: u64,)*
        }

        impl Totals {
            fn add(&mut self, worker: &WorkerCounts) {
                $(self.$name = self.$name.wrapping_add(worker.$name.load(Relaxed));)*
            }
        }
    };
}

counts! {
    accepted,
    closed,
    waiting,
    began,
    ended,
    refused,
    faults,
    retries,
    panics,
    fetches_dropped,
    fetches,
    idle_clients_closed,
    idle_upstreams_closed,
    shortages,
    datagrams_dropped,
    handshakes,
    handshakes_resumed,
    handshakes_failed,
    metric_errors,
}

/// The label texts of a request, `name="value",…`, without `type`.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// The route label's value; series go when no route of that name is left.
    pub route: String,
    pub status: String,
    pub latency: String,
    pub bandwidth: String,
}

/// What a stream is counted by.
#[derive(Debug, Clone, Copy)]
pub struct StreamLabels<'a> {
    /// The route's id, or its name.
    pub route: &'a str,
    pub status: u16,
    pub listener: SocketAddr,
    /// The server it went to, if one was chosen.
    pub node: Option<SocketAddr>,
}

/// What is counted of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Microseconds of the whole request.
    pub total_us: u64,
    /// Microseconds of these spent on the upstream, if it was asked.
    pub upstream_us: Option<u64>,
    /// Bytes from and to the client.
    pub received: u64,
    pub sent: u64,
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

impl WorkerCounts {
    fn retire(&self, count: u64) {
        self.retired.fetch_add(count, Relaxed);
    }
}

/// What the proxy counts.
impl Shard {
    /// A connection was accepted.
    #[inline]
    pub fn connection_opened(&self) {
        add(&self.node.accepted, 1);
    }

    #[inline]
    pub fn connection_closed(&self) {
        add(&self.node.closed, 1);
    }

    /// One connection more (or, with -1, one less) waits between requests.
    #[inline]
    pub fn waiting(&self, change: i64) {
        add(&self.node.waiting, change as u64);
    }

    /// A request's head was read.
    #[inline]
    pub fn request_began(&self) {
        add(&self.node.began, 1);
    }

    /// Its response was sent, or given up.
    #[inline]
    pub fn request_ended(&self) {
        add(&self.node.ended, 1);
    }

    /// Whether every request is to be timed; see [`watched`](Shard::watched).
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.trial.on.load(Relaxed)
    }

    /// Counts a request for whoever watches.
    #[cold]
    pub fn watched(&self, total_us: u64, is_error: bool) {
        self.trial.count(total_us, is_error);
    }

    /// A head was refused as malformed or too large.
    #[inline]
    pub fn request_refused(&self) {
        add(&self.node.refused, 1);
    }

    /// An exchange failed.
    #[inline]
    pub fn fault(&self) {
        add(&self.node.faults, 1);
    }

    /// A request was sent to an upstream once more.
    #[inline]
    pub fn upstream_retried(&self) {
        add(&self.node.retries, 1);
    }

    /// A client's TLS handshake is over, for good or bad; it may have resumed an earlier session.
    pub fn handshake(&self, good: bool, resumed: bool) {
        match (good, resumed) {
            (false, _) => add(&self.node.handshakes_failed, 1),
            (true, true) => add(&self.node.handshakes_resumed, 1),
            (true, false) => add(&self.node.handshakes, 1),
        }
    }

    /// A panic was caught.
    #[inline]
    pub fn panicked(&self) {
        add(&self.node.panics, 1);
    }

    /// A request of a plugin's own was dropped, as too many were in flight.
    #[inline]
    pub fn fetch_dropped(&self) {
        add(&self.node.fetches_dropped, 1);
    }

    /// A request of a plugin's own went out.
    pub fn fetch_began(&self) {
        add(&self.node.fetches, 1);
    }

    /// It is over.
    pub fn fetch_ended(&self) {
        add(&self.node.fetches, -1i64 as u64);
    }

    /// Idle connections of clients were closed to make room.
    pub fn idle_clients_closed(&self, count: u64) {
        add(&self.node.idle_clients_closed, count);
    }

    /// Idle connections to upstreams were closed to make room.
    pub fn idle_upstreams_closed(&self, count: u64) {
        add(&self.node.idle_upstreams_closed, count);
    }

    /// A datagram went nowhere.
    pub fn datagram_dropped(&self) {
        add(&self.node.datagrams_dropped, 1);
    }

    /// The process had no descriptor for a connection.
    pub fn out_of_descriptors(&self) {
        add(&self.node.shortages, 1);
    }
}

/// What the prometheus plugin counts.
impl Shard {
    /// Counts a request. `key` writes bytes that stand for all its labels; `labels` makes
    /// their text, asked only for what is new here (with `true`: for [`OVERFLOW`]).
    #[inline]
    pub fn http(&self, key: impl FnOnce(&mut Vec<u8>), labels: impl Fn(bool) -> Labels, sample: &Sample) {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        key(&mut scratch);
        let hash = self.hash.hash_one(&scratch[..]);
        if let Some(entry) = self.entries.borrow().find(hash, |entry| *entry.key == scratch[..])
            && !entry.retired()
        {
            entry.count(&self.settings, sample);
            return;
        }
        self.first(hash, &scratch, &labels, sample);
    }

    /// Counts a stream that has ended.
    pub fn stream(&self, labels: &StreamLabels<'_>) {
        let StreamLabels { route, status, listener, node } = *labels;
        let node = node.map(|node| node.to_string()).unwrap_or_default();
        let connections = format!("route=\"{}\"", escaped(route));
        let ended = format!("code=\"{status}\",listen_addr=\"{listener}\",node=\"{node}\"");
        self.sweep();
        let room = self.has_room();
        let mut known = self.known.borrow_mut();
        let Known { streams, stream_status, .. } = &mut *known;
        for (known, route, text, register) in [
            (streams, route, connections, Registered::Streams as fn(series::New<Count>) -> Registered),
            (stream_status, "", ended, Registered::StreamStatus),
        ] {
            let is_known = known.get(text.as_str()).is_some_and(|series| !series::Series::retired(&**series));
            if room || is_known {
                self.series(known, route, text, Count::default, register).count();
            } else {
                add(&self.node.metric_errors, 1);
            }
        }
    }

    /// Counts a request whose labels are new, or were retired.
    #[cold]
    fn first(&self, hash: u64, key: &[u8], labels: &dyn Fn(bool) -> Labels, sample: &Sample) {
        self.sweep();
        let mut entries = self.entries.borrow_mut();
        if let Ok(old) = entries.find_entry(hash, |entry| *entry.key == *key) {
            old.remove();
        }
        // Requests that differ may share a series, so both are bounded.
        if self.has_room() && entries.len() < self.settings.max_series {
            let entry = self.entry(key, labels(false));
            entry.count(&self.settings, sample);
            entries.insert_unique(hash, entry, |entry| self.hash.hash_one(&entry.key[..]));
            return;
        }
        add(&self.node.metric_errors, 1);
        let mut overflow = self.overflow.borrow_mut();
        if overflow.as_ref().is_none_or(Labelled::retired) {
            *overflow = Some(self.entry(b"", labels(true)));
        }
        if let Some(entry) = &*overflow {
            entry.count(&self.settings, sample);
        }
    }

    /// Whether there is room for one more label set, by what all have and this shard added to it.
    fn has_room(&self) -> bool {
        let new = self.registered.get().wrapping_sub(self.node.taken.load(Relaxed));
        self.lines.load(Relaxed).saturating_add(new) < self.settings.max_series
    }

    /// Finds or makes the series of these labels.
    fn entry(&self, key: &[u8], labels: Labels) -> Labelled {
        let Labels { route, status, latency, bandwidth } = labels;
        let mut known = self.known.borrow_mut();
        let buckets = self.settings.bounds_us.len();
        Labelled {
            key: key.into(),
            status: self.series(&mut known.status, &route, status, Count::default, Registered::Status),
            latency: self.series(
                &mut known.latency,
                &route,
                latency,
                || Latency::new(buckets),
                Registered::Latency,
            ),
            bandwidth: self.series(
                &mut known.bandwidth,
                &route,
                bandwidth,
                Traffic::default,
                Registered::Bandwidth,
            ),
        }
    }

    fn series<T: series::Series>(
        &self,
        known: &mut HashMap<Box<str>, Arc<T>>,
        route: &str,
        text: String,
        make: impl FnOnce() -> T,
        register: fn(series::New<T>) -> Registered,
    ) -> Arc<T> {
        let text = text.into_boxed_str();
        if let Some(series) = known.get(&text).filter(|series| !series.retired()) {
            return series.clone();
        }
        let series = Arc::new(make());
        let new = register(series::New { route: route.into(), text: text.clone(), series: series.clone() });
        self.registered.set(self.registered.get().wrapping_add(new.lines(&self.settings)));
        // Fails only for a shard without a collector, as in a test.
        let _ = self.new.send(new);
        known.insert(text, series.clone());
        series
    }

    /// Forgets retired series once they are many: a sweep looks at all, so it must pay.
    fn sweep(&self) {
        let retired = self.node.retired.load(Relaxed);
        let mut known = self.known.borrow_mut();
        let known = &mut *known;
        let all = known.status.len() + known.latency.len() + known.bandwidth.len();
        let all = all + known.streams.len() + known.stream_status.len();
        let due = if self.has_room() { all as u64 / 4 } else { 0 };
        if retired.wrapping_sub(self.swept.get()) <= due {
            return;
        }
        self.swept.set(retired);
        for counts in [&mut known.streams, &mut known.stream_status] {
            counts.retain(|_, series| !series::Series::retired(&**series));
        }
        known.status.retain(|_, series| !series::Series::retired(&**series));
        known.latency.retain(|_, series| !series::Series::retired(&**series));
        known.bandwidth.retain(|_, series| !series::Series::retired(&**series));
        self.entries.borrow_mut().retain(|entry| !entry.retired());
    }

    fn new(settings: Arc<Settings>, lines: Arc<AtomicUsize>) -> (Shard, Receiver<Registered>) {
        let (sender, receiver) = channel();
        let shard = Shard {
            settings,
            node: Arc::default(),
            trial: Arc::new(Trial::new(false)),
            new: sender,
            entries: RefCell::default(),
            hash: RandomState::default(),
            known: RefCell::default(),
            overflow: RefCell::default(),
            scratch: RefCell::default(),
            lines,
            registered: Cell::new(0),
            swept: Cell::new(0),
        };
        (shard, receiver)
    }
}

impl Default for Shard {
    /// A shard nobody reads.
    fn default() -> Shard {
        Shard::new(Arc::default(), Arc::default()).0
    }
}

impl Labelled {
    #[inline]
    fn retired(&self) -> bool {
        use series::Series;
        self.status.retired() || self.latency.retired() || self.bandwidth.retired()
    }

    #[inline]
    fn count(&self, settings: &Settings, sample: &Sample) {
        self.status.count();
        self.bandwidth.count(sample.received, sample.sent);
        let bounds = &settings.bounds_us;
        let total = sample.total_us;
        self.latency.observe(Kind::Request, bounds, total);
        let upstream = sample.upstream_us.inspect(|&us| self.latency.observe(Kind::Upstream, bounds, us));
        self.latency.observe(Kind::Own, bounds, total.saturating_sub(upstream.unwrap_or(0)));
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
