//! hot path
//!
//! One worker's shard of the metrics.

use std::cell::{Cell, RefCell};
use std::hash::BuildHasher;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable};

use super::counts::WorkerCounts;
use super::live::Live;
use super::memo::{Addresses, SeriesMemo};
use super::series::{self, Commands, Count, Kind, Latency, Registered, Traffic, add};
use super::trial::Trial;
use super::{Settings, escaped};

/// One worker's shard. It belongs to the worker's thread: it is `Send`, but not `Sync`.
#[derive(Debug)]
pub struct Shard {
    settings: Arc<Settings>,
    pub(super) node: Arc<WorkerCounts>,
    pub(super) trial: Arc<Trial>,
    /// Counts by route and node.
    pub live: Live,
    new: Sender<Registered>,
    /// Requests by their labels.
    entries: RefCell<HashTable<Arc<Labelled>>>,
    hash: RandomState,
    /// Series by label text, since different requests may share one if labels are left out.
    known: RefCell<KnownSeries>,
    overflow: RefCell<Option<Labelled>>,
    scratch: RefCell<Vec<u8>>,
    /// Lines of output of the known series of all workers.
    lines: Arc<AtomicUsize>,
    /// Lines of output of all series this shard has registered.
    registered: Cell<usize>,
    /// Series that were retired when this shard last swept its tables.
    swept: Cell<u64>,
}

#[derive(Debug, Default)]
struct KnownSeries {
    status: HashMap<Box<str>, Arc<Count>>,
    latency: HashMap<Box<str>, Arc<Latency>>,
    bandwidth: HashMap<Box<str>, Arc<Traffic>>,
    streams: HashMap<Box<str>, Arc<Count>>,
    stream_status: HashMap<Box<str>, Arc<Count>>,
    commands: HashMap<Box<str>, Arc<Commands>>,
}

/// The series of requests with the same labels.
#[derive(Debug)]
pub struct Labelled {
    key: Box<[u8]>,
    status: Arc<Count>,
    latency: Arc<Latency>,
    bandwidth: Arc<Traffic>,
}

/// The label texts of a request, `name="value",…`, without `type`.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// The route label's value; a series is removed when no route of that name is left.
    pub route: String,
    pub status: String,
    pub latency: String,
    pub bandwidth: String,
}

/// The labels of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamLabels<'a> {
    /// The route's id, or its name.
    pub route: &'a str,
    pub status: u16,
    pub listener: SocketAddr,
    /// The chosen server, if any.
    pub node: Option<SocketAddr>,
}

/// The measurements of one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Microseconds of the whole request.
    pub total_us: u64,
    /// Microseconds spent on the upstream, if it was contacted.
    pub upstream_us: Option<u64>,
    /// Bytes from and to the client.
    pub received: u64,
    pub sent: u64,
}

/// The counters of the proxy.
impl Shard {
    /// Counts an accepted connection.
    #[inline]
    pub fn connection_opened(&self) {
        add(&self.node.accepted, 1);
    }

    #[inline]
    pub fn connection_closed(&self) {
        add(&self.node.closed, 1);
    }

    /// Changes the number of connections that wait between requests, by 1 or -1.
    #[inline]
    pub fn waiting(&self, change: i64) {
        add(&self.node.waiting, change as u64);
    }

    /// Counts a request whose head was read.
    #[inline]
    pub fn request_began(&self) {
        add(&self.node.began, 1);
    }

    /// Counts a request whose response was sent or aborted.
    #[inline]
    pub fn request_ended(&self) {
        add(&self.node.ended, 1);
    }

    /// Whether every request is to be timed; see [`watched`](Shard::watched).
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.trial.on.load(Relaxed)
    }

    /// Counts a request while [`Meters::watch`](super::Meters::watch) is on.
    #[cold]
    pub fn watched(&self, total_us: u64, is_error: bool) {
        self.trial.count(total_us, is_error);
    }

    /// Counts a head rejected as malformed or too large.
    #[inline]
    pub fn request_refused(&self) {
        add(&self.node.refused, 1);
    }

    /// Counts a failed exchange.
    #[inline]
    pub fn fault(&self) {
        add(&self.node.faults, 1);
    }

    /// Counts a retry of an upstream request.
    #[inline]
    pub fn upstream_retried(&self) {
        add(&self.node.retries, 1);
    }

    /// Counts a finished TLS handshake with a client, successful or not; `resumed` if it resumed an
    /// earlier session.
    pub fn handshake(&self, good: bool, resumed: bool) {
        match (good, resumed) {
            (false, _) => add(&self.node.handshakes_failed, 1),
            (true, true) => add(&self.node.handshakes_resumed, 1),
            (true, false) => add(&self.node.handshakes, 1),
        }
    }

    /// Counts a caught panic.
    #[inline]
    pub fn panicked(&self) {
        add(&self.node.panics, 1);
    }

    /// Counts a plugin's request dropped because too many were in flight.
    #[inline]
    pub fn fetch_dropped(&self) {
        add(&self.node.fetches_dropped, 1);
    }

    /// Counts a plugin's request as in flight.
    pub fn fetch_began(&self) {
        add(&self.node.fetches, 1);
    }

    /// Counts a plugin's request as finished.
    pub fn fetch_ended(&self) {
        add(&self.node.fetches, -1i64 as u64);
    }

    /// Counts idle client connections closed to make room.
    pub fn idle_clients_closed(&self, count: u64) {
        add(&self.node.idle_clients_closed, count);
    }

    /// Counts idle upstream connections closed to make room.
    pub fn idle_upstreams_closed(&self, count: u64) {
        add(&self.node.idle_upstreams_closed, count);
    }

    /// Counts a dropped datagram.
    pub fn datagram_dropped(&self) {
        add(&self.node.datagrams_dropped, 1);
    }

    /// Counts a connection refused for lack of file descriptors.
    pub fn out_of_descriptors(&self) {
        add(&self.node.shortages, 1);
    }
}

/// The counters of the prometheus plugin.
impl Shard {
    /// Counts a request. `recent` finds the labels of most; for others `key` writes bytes that
    /// identify all labels; `labels` makes their text, and is called only for labels that are new
    /// here (with `true`: for [`OVERFLOW`]).
    #[inline]
    pub fn http(
        &self,
        recent: Option<(&SeriesMemo, Addresses)>,
        key: impl FnOnce(&mut Vec<u8>),
        labels: impl Fn(bool) -> Labels,
        sample: &Sample,
    ) {
        if let Some((memo, addresses)) = &recent
            && memo.with(addresses, |labelled| labelled.count(&self.settings, sample))
        {
            return;
        }
        self.find(recent, key, labels, sample);
    }

    /// Counts a request by the key of its labels.
    #[cold]
    fn find(
        &self,
        recent: Option<(&SeriesMemo, Addresses)>,
        key: impl FnOnce(&mut Vec<u8>),
        labels: impl Fn(bool) -> Labels,
        sample: &Sample,
    ) {
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        key(&mut scratch);
        let hash = self.hash.hash_one(&scratch[..]);
        let known = self.entries.borrow().find(hash, |entry| *entry.key == scratch[..]).cloned();
        let entry = known.filter(|entry| !entry.retired()).or_else(|| self.first(hash, &scratch, &labels));
        match (entry, &*self.overflow.borrow()) {
            (Some(entry), _) => {
                entry.count(&self.settings, sample);
                if let Some((memo, addresses)) = recent {
                    memo.keep(&addresses, entry);
                }
            }
            (None, Some(overflow)) => overflow.count(&self.settings, sample),
            (None, None) => {}
        }
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
        let KnownSeries { streams, stream_status, .. } = &mut *known;
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

    /// Counts a Redis command that has ended. The name must need no escaping.
    pub fn redis_command(&self, route: &str, command: &str, took_us: u64) {
        use series::Series;
        let mut scratch = self.scratch.borrow_mut();
        scratch.clear();
        // Writing to memory does not fail.
        let _ = write!(scratch, "route=\"{}\",command=\"{command}\"", escaped(route));
        let Ok(text) = std::str::from_utf8(&scratch) else { return };
        if let Some(series) = self.known.borrow().commands.get(text)
            && !series.retired()
        {
            return series.observe(took_us);
        }
        self.sweep();
        if self.has_room() {
            let commands = &mut self.known.borrow_mut().commands;
            let (text, register) = (text.to_owned(), Registered::Commands);
            self.series(commands, route, text, Commands::default, register).observe(took_us);
        } else {
            add(&self.node.metric_errors, 1);
        }
    }

    /// Counts a call of a stream's protocol that was passed on unparsed, because too many were in
    /// flight.
    pub fn call_unwatched(&self) {
        add(&self.node.calls_unwatched, 1);
    }

    /// Makes a label set that is new, or was retired. Without room there is one for all others.
    #[cold]
    fn first(&self, hash: u64, key: &[u8], labels: &dyn Fn(bool) -> Labels) -> Option<Arc<Labelled>> {
        self.sweep();
        let mut entries = self.entries.borrow_mut();
        if let Ok(old) = entries.find_entry(hash, |entry| *entry.key == *key) {
            old.remove();
        }
        // Different requests may share a series, so both tables are bounded.
        if self.has_room() && entries.len() < self.settings.max_series {
            let entry = Arc::new(self.entry(key, labels(false)));
            entries.insert_unique(hash, entry.clone(), |entry| self.hash.hash_one(&entry.key[..]));
            return Some(entry);
        }
        add(&self.node.metric_errors, 1);
        let mut overflow = self.overflow.borrow_mut();
        if overflow.as_ref().is_none_or(Labelled::retired) {
            *overflow = Some(self.entry(b"", labels(true)));
        }
        None
    }

    /// Whether there is room for one more label set, by the known total and this shard's additions.
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

    /// Removes retired series once there are many: a sweep visits all, so it must pay off.
    fn sweep(&self) {
        let retired = self.node.retired.load(Relaxed);
        let mut known = self.known.borrow_mut();
        let known = &mut *known;
        let all = known.status.len() + known.latency.len() + known.bandwidth.len();
        let all = all + known.streams.len() + known.stream_status.len() + known.commands.len();
        let due = if self.has_room() { all as u64 / 4 } else { 0 };
        if retired.wrapping_sub(self.swept.get()) <= due {
            return;
        }
        self.swept.set(retired);
        for counts in [&mut known.streams, &mut known.stream_status] {
            counts.retain(|_, series| !series::Series::retired(&**series));
        }
        known.commands.retain(|_, series| !series::Series::retired(&**series));
        known.status.retain(|_, series| !series::Series::retired(&**series));
        known.latency.retain(|_, series| !series::Series::retired(&**series));
        known.bandwidth.retain(|_, series| !series::Series::retired(&**series));
        self.entries.borrow_mut().retain(|entry| !entry.retired());
    }

    #[cfg(test)]
    pub(super) fn label_sets(&self) -> usize {
        self.entries.borrow().len()
    }

    #[cfg(test)]
    pub(super) fn known_series(&self) -> usize {
        let known = self.known.borrow();
        let requests = known.status.len() + known.latency.len() + known.bandwidth.len();
        requests + known.streams.len() + known.stream_status.len() + known.commands.len()
    }

    pub(super) fn new(settings: Arc<Settings>, lines: Arc<AtomicUsize>) -> (Shard, Receiver<Registered>) {
        let (sender, receiver) = channel();
        let shard = Shard {
            settings,
            node: Arc::default(),
            trial: Arc::new(Trial::new(false)),
            live: Live::new().0,
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
    /// Creates a shard that is never scraped.
    fn default() -> Shard {
        Shard::new(Arc::default(), Arc::default()).0
    }
}

impl Labelled {
    #[inline]
    pub(super) fn retired(&self) -> bool {
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
