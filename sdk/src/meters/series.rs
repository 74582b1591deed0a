//! The series behind the label texts: of one worker, and of all workers together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::Settings;

/// Adds to a word that only this thread writes, so a locked instruction is not needed.
#[inline]
pub(super) fn add(word: &AtomicU64, amount: u64) {
    word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
}

/// A worker's counts under one label text.
pub(super) trait Series {
    /// The scraping side removed it; a worker that needs it again makes a new one.
    fn retired(&self) -> bool;
    fn retire(&self);
    /// A number that changes with every count.
    fn activity(&self) -> u64;
}

macro_rules! series {
    ($kind:ident, $activity:expr) => {
        impl Series for $kind {
            #[inline]
            fn retired(&self) -> bool {
                self.retired.load(Relaxed)
            }

            fn retire(&self) {
                self.retired.store(true, Relaxed);
            }

            fn activity(&self) -> u64 {
                let activity: fn(&$kind) -> u64 = $activity;
                activity(self)
            }
        }
    };
}

/// Requests.
#[derive(Debug, Default)]
pub(super) struct Count {
    requests: AtomicU64,
    retired: AtomicBool,
}

series!(Count, |series| series.requests.load(Relaxed));

impl Count {
    #[inline]
    pub(super) fn count(&self) {
        add(&self.requests, 1);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}

/// Bytes from and to clients.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
    retired: AtomicBool,
}

series!(Traffic, |series| series.received.load(Relaxed).wrapping_add(series.sent.load(Relaxed)));

impl Traffic {
    #[inline]
    pub(super) fn count(&self, received: u64, sent: u64) {
        add(&self.received, received);
        add(&self.sent, sent);
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

/// Redis commands by duration.
#[derive(Debug, Default)]
pub(super) struct Commands {
    /// Counts by bucket of [`COMMAND_BOUNDS_US`]; the last bucket is unbounded.
    counts: [AtomicU64; COMMAND_BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
    retired: AtomicBool,
}

series!(Commands, |series| series.counts.iter().map(|count| count.load(Relaxed)).sum());

/// Bounds of the latency of Redis commands in microseconds, as in APISIX.
pub const COMMAND_BOUNDS_US: [u64; 10] =
    [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000];

/// Lines of output of one label text: the total, and the buckets, count and sum of the histogram.
const COMMAND_LINES: usize = COMMAND_BOUNDS_US.len() + 4;

impl Commands {
    #[inline]
    pub(super) fn observe(&self, us: u64) {
        let bucket = COMMAND_BOUNDS_US.partition_point(|&bound| bound < us);
        add(&self.counts[bucket], 1);
        add(&self.sum_us, us);
    }

    pub(super) fn add_to(&self, totals: &mut [u64], sum_us: &mut u64) {
        for (total, count) in totals.iter_mut().zip(&self.counts) {
            *total += count.load(Relaxed);
        }
        *sum_us = sum_us.wrapping_add(self.sum_us.load(Relaxed));
    }
}

/// The three histograms of requests with the same labels, in one allocation.
#[derive(Debug)]
pub(super) struct Latency {
    cells: Box<[AtomicU64]>,
    /// The cells of a kind: its counts by bucket, that of the unbounded one, and the sum.
    kind_len: usize,
    retired: AtomicBool,
}

series!(Latency, |series| {
    let (counts, _) = series.part(Kind::Request);
    counts.iter().map(|count| count.load(Relaxed)).sum()
});

/// The part of a request's time that a histogram measures.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub enum Kind {
    /// The gateway's own time.
    Own,
    Request,
    Upstream,
}

impl Latency {
    pub(super) fn new(buckets: usize) -> Latency {
        let kind_len = buckets + 2;
        let cells = (0..3 * kind_len).map(|_| AtomicU64::new(0)).collect();
        Latency { cells, kind_len, retired: AtomicBool::new(false) }
    }

    /// Counts a duration in the first bucket it fits; the last bucket is unbounded.
    #[inline]
    pub(super) fn observe(&self, kind: Kind, bounds_us: &[u64], us: u64) {
        let (counts, sum) = self.part(kind);
        let bucket = match bounds_us.first() {
            // Most durations, among them nearly all of the gateway's own.
            Some(&first) if us <= first => 0,
            _ => bounds_us.partition_point(|&bound| bound < us),
        };
        if let Some(count) = counts.get(bucket) {
            add(count, 1);
        }
        add(sum, us);
    }

    /// Adds the counts of a kind to `totals` (of the same length) and `sum_us`.
    pub(super) fn add_to(&self, kind: Kind, totals: &mut [u64], sum_us: &mut u64) {
        let (counts, sum) = self.part(kind);
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count.load(Relaxed);
        }
        *sum_us = sum_us.wrapping_add(sum.load(Relaxed));
    }

    #[inline]
    fn part(&self, kind: Kind) -> (&[AtomicU64], &AtomicU64) {
        let len = self.kind_len;
        let cells = &self.cells[kind as usize * len..][..len];
        (&cells[..len - 1], &cells[len - 1])
    }
}

/// A new series, sent from a worker to the scraping side.
#[derive(Debug)]
pub(super) struct New<T> {
    pub route: Box<str>,
    pub text: Box<str>,
    pub series: Arc<T>,
}

#[derive(Debug)]
pub(super) enum Registered {
    Status(New<Count>),
    Latency(New<Latency>),
    Bandwidth(New<Traffic>),
    Streams(New<Count>),
    StreamStatus(New<Count>),
    Commands(New<Commands>),
}

impl Registered {
    /// Lines of output it makes, unless another worker has the same labels.
    pub(super) fn lines(&self, settings: &Settings) -> usize {
        let [status, latency, bandwidth] = lines_each(settings);
        match self {
            Registered::Status(_) => status,
            Registered::Latency(_) => latency,
            Registered::Bandwidth(_) => bandwidth,
            Registered::Streams(_) | Registered::StreamStatus(_) => 1,
            Registered::Commands(_) => COMMAND_LINES,
        }
    }

    pub(super) fn route(&self) -> &str {
        match self {
            Registered::Status(new) => &new.route,
            Registered::Latency(new) => &new.route,
            Registered::Bandwidth(new) => &new.route,
            Registered::Streams(new) | Registered::StreamStatus(new) => &new.route,
            Registered::Commands(new) => &new.route,
        }
    }
}

/// Lines of output of one label text, by metric.
fn lines_each(settings: &Settings) -> [usize; 3] {
    // For each kind of latency the bounded buckets, the unbounded one, the count and the sum.
    [1, 3 * (settings.bounds_us.len() + 3), 2]
}

/// The result of inserting a worker's series.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    New,
    /// Another worker has a series with the same labels.
    Beside,
    /// There is no room.
    Refused,
}

/// A series that counted within this time is not evicted.
const IN_USE_MS: u64 = 60_000;

/// All series by metric, each sorted by label text.
#[derive(Debug, Default)]
pub(super) struct Families {
    pub status: Family<Count>,
    pub latency: Family<Latency>,
    pub bandwidth: Family<Traffic>,
    pub streams: Family<Count>,
    pub stream_status: Family<Count>,
    pub commands: Family<Commands>,
}

#[derive(Debug)]
pub(super) struct Family<T> {
    pub groups: BTreeMap<Box<str>, Group<T>>,
}

/// The workers' series of one label text.
#[derive(Debug)]
pub(super) struct Group<T> {
    route: Box<str>,
    /// The series with their shard's index.
    pub parts: Vec<(usize, Arc<T>)>,
    activity: u64,
    active_ms: u64,
}

impl Families {
    /// Inserts a series; new labels only if there is `room`.
    pub(super) fn insert(&mut self, shard: usize, registered: Registered, room: bool) -> Inserted {
        match registered {
            Registered::Status(new) => self.status.insert(shard, new, room),
            Registered::Latency(new) => self.latency.insert(shard, new, room),
            Registered::Bandwidth(new) => self.bandwidth.insert(shard, new, room),
            Registered::Streams(new) => self.streams.insert(shard, new, room),
            Registered::StreamStatus(new) => self.stream_status.insert(shard, new, room),
            Registered::Commands(new) => self.commands.insert(shard, new, room),
        }
    }

    /// Lines of output of all series.
    pub(super) fn lines(&self, settings: &Settings) -> usize {
        let [status, latency, bandwidth] = lines_each(settings);
        status * self.status.groups.len()
            + latency * self.latency.groups.len()
            + bandwidth * self.bandwidth.groups.len()
            + self.streams.groups.len()
            + self.stream_status.groups.len()
            + COMMAND_LINES * self.commands.groups.len()
    }

    /// Notes which series counted since the last call.
    pub(super) fn touch(&mut self, now_ms: u64) {
        self.status.touch(now_ms);
        self.latency.touch(now_ms);
        self.bandwidth.touch(now_ms);
        self.streams.touch(now_ms);
        self.stream_status.touch(now_ms);
        self.commands.touch(now_ms);
    }

    /// Near the bound, retires the series that were idle longest, to make room for new ones.
    /// Returns their number.
    pub(super) fn make_room(
        &mut self,
        settings: &Settings,
        now_ms: u64,
        retired: impl Fn(usize, u64),
    ) -> u64 {
        let lines = self.lines(settings);
        if lines <= settings.max_series - settings.max_series / 8 {
            return 0;
        }
        let [status, latency, bandwidth] = lines_each(settings);
        let mut idle = self.status.idle(now_ms, status);
        idle.extend(self.latency.idle(now_ms, latency));
        idle.extend(self.bandwidth.idle(now_ms, bandwidth));
        idle.extend(self.streams.idle(now_ms, 1));
        idle.extend(self.stream_status.idle(now_ms, 1));
        idle.extend(self.commands.idle(now_ms, COMMAND_LINES));
        if idle.is_empty() {
            return 0;
        }
        idle.sort_unstable();
        let mut excess = lines - (settings.max_series - settings.max_series / 4);
        let mut until = 0;
        for (active_ms, lines) in idle {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(lines);
            until = active_ms;
        }
        let before = self.len();
        // All series that stopped at the same time are retired together.
        self.status.retain(|group| group.active_ms > until, &retired);
        self.latency.retain(|group| group.active_ms > until, &retired);
        self.bandwidth.retain(|group| group.active_ms > until, &retired);
        self.streams.retain(|group| group.active_ms > until, &retired);
        self.stream_status.retain(|group| group.active_ms > until, &retired);
        self.commands.retain(|group| group.active_ms > until, &retired);
        (before - self.len()) as u64
    }

    fn len(&self) -> usize {
        let requests = self.status.groups.len() + self.latency.groups.len() + self.bandwidth.groups.len();
        requests + self.streams.groups.len() + self.stream_status.groups.len() + self.commands.groups.len()
    }

    /// Retires the series of routes not to be kept; `retired` is called with the shard and their
    /// number.
    pub(super) fn retain(&mut self, keep: impl Fn(&str) -> bool, retired: impl Fn(usize, u64)) {
        self.status.retain(|group| keep(&group.route), &retired);
        self.latency.retain(|group| keep(&group.route), &retired);
        self.bandwidth.retain(|group| keep(&group.route), &retired);
        self.streams.retain(|group| keep(&group.route), &retired);
        self.commands.retain(|group| keep(&group.route), &retired);
    }

    /// Retires series that counted nothing for the configured time.
    pub(super) fn expire(&mut self, settings: &Settings, now_ms: u64, retired: impl Fn(usize, u64)) {
        self.status.expire(settings.expire_ms[0], now_ms, &retired);
        self.latency.expire(settings.expire_ms[1], now_ms, &retired);
        self.bandwidth.expire(settings.expire_ms[2], now_ms, &retired);
    }
}

impl<T> Default for Family<T> {
    fn default() -> Family<T> {
        Family { groups: BTreeMap::new() }
    }
}

impl<T: Series> Family<T> {
    fn insert(&mut self, shard: usize, new: New<T>, room: bool) -> Inserted {
        let New { route, text, series } = new;
        if let Some(group) = self.groups.get_mut(&text) {
            group.parts.push((shard, series));
            return Inserted::Beside;
        }
        if !room {
            series.retire();
            return Inserted::Refused;
        }
        self.groups.insert(text, Group { route, parts: vec![(shard, series)], activity: 0, active_ms: 0 });
        Inserted::New
    }

    fn touch(&mut self, now_ms: u64) {
        for group in self.groups.values_mut() {
            let activity = group.parts.iter().map(|(_, part)| part.activity()).fold(0, u64::wrapping_add);
            if activity != group.activity || group.active_ms == 0 {
                group.activity = activity;
                group.active_ms = now_ms;
            }
        }
    }

    fn expire(&mut self, expire_ms: u64, now_ms: u64, retired: &impl Fn(usize, u64)) {
        if expire_ms > 0 {
            self.retain(|group| now_ms.saturating_sub(group.active_ms) < expire_ms, retired);
        }
    }

    /// For each unused series, the time of its last use and its lines.
    fn idle(&self, now_ms: u64, lines: usize) -> Vec<(u64, usize)> {
        let times = self.groups.values().map(|group| group.active_ms);
        let idle = times.filter(|active_ms| now_ms.saturating_sub(*active_ms) >= IN_USE_MS);
        idle.map(|active_ms| (active_ms, lines)).collect()
    }

    fn retain(&mut self, keep: impl Fn(&Group<T>) -> bool, retired: &impl Fn(usize, u64)) {
        self.groups.retain(|_, group| {
            let keep = keep(group);
            if !keep {
                for (shard, part) in &group.parts {
                    part.retire();
                    retired(*shard, 1);
                }
            }
            keep
        });
    }
}
