//! hot path
//!
//! Counts of each route and each upstream node, always on: the live view.
//!
//! A worker counts in cells of its own, found by the address of the plan or of the node. A cell that
//! is new is sent to the reading side through a queue that never makes the worker wait. Durations are
//! known only of requests that were timed; without an access log that is a sample.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};

use hashbrown::HashMap;

use super::OVERFLOW;
use super::series::add;

/// Buckets of durations: two for each power of two microseconds, from 32 µs to 33 s.
pub const BUCKETS: usize = 42;

/// The lowest power of two that has its own buckets.
const LOWEST: u32 = 5;

/// Buckets of a coarse histogram: one for each power of two.
pub const OCTAVES: usize = BUCKETS / 2;

/// Routes, and nodes, that each worker counts by themselves; others share a cell.
pub const MOST: usize = 10_000;

/// Places of a [`Memo`]; a power of two.
const PLACES: usize = 64;

/// Requests without an access log that are timed in each tick of the worker's clock.
const TIMED: u32 = 4;

/// The kind of thing that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A route, by its id; empty for requests without a route.
    Route,
    /// An upstream node, by its address.
    Node,
    /// A stream route, by its id; empty for streams without a route.
    Stream,
}

/// One finished request, attempt with a node, or stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finished {
    pub status: u16,
    /// Microseconds, if it was timed.
    pub took_us: Option<u64>,
    pub received: u64,
    pub sent: u64,
}

/// A worker's counts of one route or node. Numbers wrap; readers take differences.
#[derive(Debug)]
pub struct Counted {
    /// By the first digit of the status; the first place has the others.
    statuses: [AtomicU32; 6],
    times: [AtomicU32; BUCKETS],
    received: AtomicU64,
    sent: AtomicU64,
    /// Requests in flight, as of the last second. Of nodes alone.
    in_flight: AtomicU32,
    retired: AtomicBool,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted {
            statuses: Default::default(),
            times: [const { AtomicU32::new(0) }; BUCKETS],
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            retired: AtomicBool::new(false),
        }
    }
}

/// Differences between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Requests by the first digit of the status; the first place has the others.
    pub statuses: [u32; 6],
    /// Timed requests by duration.
    pub times: [u32; BUCKETS],
    pub received: u64,
    pub sent: u64,
    /// Requests in flight at the end, of nodes alone; not a difference.
    pub in_flight: u32,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { statuses: [0; 6], times: [0; BUCKETS], received: 0, sent: 0, in_flight: 0 }
    }
}

/// Adds to a word that only this thread writes.
#[inline]
fn bump(word: &AtomicU32) {
    word.store(word.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Counted {
    #[inline]
    fn count(&self, finished: &Finished) {
        let class = usize::from(finished.status / 100);
        bump(self.statuses.get(class).unwrap_or(&self.statuses[0]));
        if let Some(us) = finished.took_us {
            bump(&self.times[bucket(us)]);
        }
        add(&self.received, finished.received);
        add(&self.sent, finished.sent);
    }

    fn requests(&self) -> u32 {
        self.statuses.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Relaxed)))
    }

    fn read(&self) -> Counts {
        Counts {
            statuses: std::array::from_fn(|at| self.statuses[at].load(Relaxed)),
            times: std::array::from_fn(|at| self.times[at].load(Relaxed)),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
        }
    }
}

impl Counts {
    fn since(&self, before: &Counts) -> Counts {
        Counts {
            statuses: std::array::from_fn(|at| self.statuses[at].wrapping_sub(before.statuses[at])),
            times: std::array::from_fn(|at| self.times[at].wrapping_sub(before.times[at])),
            received: self.received.wrapping_sub(before.received),
            sent: self.sent.wrapping_sub(before.sent),
            in_flight: self.in_flight,
        }
    }

    pub fn add(&mut self, other: &Counts) {
        let sum = |own: &mut u32, other: &u32| *own = own.saturating_add(*other);
        self.statuses.iter_mut().zip(&other.statuses).for_each(|(own, other)| sum(own, other));
        self.times.iter_mut().zip(&other.times).for_each(|(own, other)| sum(own, other));
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
    }

    pub fn requests(&self) -> u64 {
        self.statuses.iter().map(|count| u64::from(*count)).sum()
    }

    /// Timed requests by powers of two of their duration; see [`octave_end_us`].
    pub fn octaves(&self) -> [u32; OCTAVES] {
        std::array::from_fn(|at| self.times[2 * at].saturating_add(self.times[2 * at + 1]))
    }

    /// The duration in microseconds within which this share of the timed requests ended, interpolated
    /// within its bucket; 0 if none was timed.
    pub fn quantile_us(&self, share: f64) -> u64 {
        let all: u64 = self.times.iter().map(|count| u64::from(*count)).sum();
        let mut left = share * all as f64;
        for (at, count) in self.times.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if left <= count {
                let (low, high) = (least(at) as f64, least(at + 1) as f64);
                return (low + (high - low) * (left / count)) as u64;
            }
            left -= count;
        }
        0
    }
}

/// The bucket of a duration.
#[inline]
fn bucket(us: u64) -> usize {
    let us = us.max(1 << (LOWEST - 1));
    let power = us.ilog2();
    let half = (us >> (power - 1)) & 1;
    let at = (2 * (power + 1 - LOWEST)) as usize + half as usize;
    at.min(BUCKETS - 1)
}

/// The shortest duration of a bucket.
fn least(bucket: usize) -> u64 {
    let power = bucket as u32 / 2 + LOWEST - 1;
    match bucket {
        0 => 0,
        _ => (1u64 << power) + (bucket as u64 % 2) * (1u64 << (power - 1)),
    }
}

/// The end of an octave in microseconds: durations in it are shorter. The last one has all longer ones, too.
pub fn octave_end_us(octave: usize) -> u64 {
    least(2 * octave + 2)
}

/// A place of a memo: a key and its cell.
type Place<K> = Option<(K, Arc<Counted>)>;

/// Cells by the addresses of the plans of one snapshot. Valid as long as that snapshot is held.
#[derive(Debug)]
pub struct Memo(RefCell<[Place<usize>; PLACES]>);

impl Default for Memo {
    fn default() -> Memo {
        Memo(RefCell::new([const { None }; PLACES]))
    }
}

/// The name of a cell.
pub type Name = (Subject, Arc<str>);

/// One worker's cells.
#[derive(Debug)]
pub struct Live {
    routes: RefCell<Cells<Arc<str>>>,
    nodes: RefCell<Cells<SocketAddr>>,
    streams: RefCell<Cells<Arc<str>>>,
    recent: RefCell<[Place<SocketAddr>; PLACES]>,
    /// Nodes with requests in flight at the last report, by the address of the cell.
    busy: RefCell<HashMap<usize, (Arc<Counted>, u32)>>,
    new: Sender<(Name, Arc<Counted>)>,
    timed: Cell<u32>,
}

/// The cells of all routes, or of all nodes.
#[derive(Debug)]
struct Cells<K> {
    all: HashMap<K, Arc<Counted>>,
    /// Retired cells may be removed, once in each tick.
    may_tidy: bool,
}

impl<K> Default for Cells<K> {
    fn default() -> Cells<K> {
        Cells { all: HashMap::new(), may_tidy: true }
    }
}

impl<K: std::hash::Hash + Eq> Cells<K> {
    fn get<Q: std::hash::Hash + hashbrown::Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Arc<Counted>> {
        self.all.get(key).filter(|counted| !counted.retired.load(Relaxed)).cloned()
    }

    /// Whether there is room for one more cell, after those without a reader were removed. Requests that find a
    /// full table do not search it each time: with more than [`MOST`] routes they are many.
    fn has_room(&mut self) -> bool {
        if self.all.len() >= MOST && std::mem::take(&mut self.may_tidy) {
            self.all.retain(|_, counted| !counted.retired.load(Relaxed));
        }
        self.all.len() < MOST
    }
}

impl Live {
    pub(super) fn new() -> (Live, Receiver<(Name, Arc<Counted>)>) {
        let (new, taken) = channel();
        let live = Live {
            routes: RefCell::default(),
            nodes: RefCell::default(),
            streams: RefCell::default(),
            recent: RefCell::new([const { None }; PLACES]),
            busy: RefCell::default(),
            new,
            timed: Cell::new(TIMED),
        };
        (live, taken)
    }

    /// Whether this request is timed for the live view; a few in each tick are.
    #[inline]
    pub fn is_timed(&self) -> bool {
        let left = self.timed.get();
        self.timed.set(left.saturating_sub(1));
        left > 0
    }

    /// Allows the next few requests to be timed, and full tables to be tidied once. Called with each tick of the
    /// worker's clock.
    pub fn tick(&self) {
        self.timed.set(TIMED);
        self.routes.borrow_mut().may_tidy = true;
        self.nodes.borrow_mut().may_tidy = true;
        self.streams.borrow_mut().may_tidy = true;
    }

    /// Counts a request of a route. `plan` is the address of its plan, in the snapshot of the memo.
    #[inline]
    pub fn route(&self, memo: &Memo, plan: usize, id: &str, finished: &Finished) {
        // A plan fills a cache line of 64 bytes.
        let place = (plan >> 6) % PLACES;
        if let Some((known, counted)) = &memo.0.borrow()[place]
            && *known == plan
            && !counted.retired.load(Relaxed)
        {
            return counted.count(finished);
        }
        let counted = self.find_route(id);
        counted.count(finished);
        memo.0.borrow_mut()[place] = Some((plan, counted));
    }

    /// Counts an attempt with a node.
    #[inline]
    pub fn node(&self, addr: SocketAddr, finished: &Finished) {
        let ip = match addr {
            SocketAddr::V4(addr) => addr.ip().to_bits() as usize,
            SocketAddr::V6(addr) => addr.ip().to_bits() as usize,
        };
        let place = ip.wrapping_add(usize::from(addr.port())) % PLACES;
        if let Some((known, counted)) = &self.recent.borrow()[place]
            && *known == addr
            && !counted.retired.load(Relaxed)
        {
            return counted.count(finished);
        }
        let counted = self.find_node(addr);
        counted.count(finished);
        self.recent.borrow_mut()[place] = Some((addr, counted));
    }

    /// Reports the requests in flight of all nodes. `report` adds them, several times for a node if it wants.
    /// Called once a second, not with each request.
    pub fn in_flight(&self, report: impl FnOnce(&mut dyn FnMut(SocketAddr, usize))) {
        let mut busy = self.busy.borrow_mut();
        busy.values_mut().for_each(|(_, count)| *count = 0);
        report(&mut |addr, count| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            if count > 0 {
                let counted = self.find_node(addr);
                let entry = busy.entry(Arc::as_ptr(&counted) as usize).or_insert((counted, 0));
                entry.1 = entry.1.saturating_add(count);
            }
        });
        busy.retain(|_, (counted, count)| {
            counted.in_flight.store(*count, Relaxed);
            *count > 0
        });
    }

    /// Counts a TCP connection or a UDP session of a stream route when it ends.
    pub fn stream(&self, id: &str, finished: &Finished) {
        self.find(Subject::Stream, &self.streams, id).count(finished);
    }

    #[cold]
    fn find_route(&self, id: &str) -> Arc<Counted> {
        self.find(Subject::Route, &self.routes, id)
    }

    fn find(&self, subject: Subject, cells: &RefCell<Cells<Arc<str>>>, id: &str) -> Arc<Counted> {
        let mut cells = cells.borrow_mut();
        if let Some(counted) = cells.get(id) {
            return counted;
        }
        let id = if cells.has_room() { id } else { OVERFLOW };
        cells.get(id).unwrap_or_else(|| {
            let id: Arc<str> = id.into();
            let counted = self.register(subject, id.clone());
            cells.all.insert(id, counted.clone());
            counted
        })
    }

    #[cold]
    fn find_node(&self, addr: SocketAddr) -> Arc<Counted> {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(counted) = nodes.get(&addr) {
            return counted;
        }
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let addr = if nodes.has_room() { addr } else { unspecified };
        nodes.get(&addr).unwrap_or_else(|| {
            let name = if addr == unspecified { OVERFLOW.to_owned() } else { addr.to_string() };
            let counted = self.register(Subject::Node, name.into());
            nodes.all.insert(addr, counted.clone());
            counted
        })
    }

    fn register(&self, subject: Subject, name: Arc<str>) -> Arc<Counted> {
        let counted = Arc::<Counted>::default();
        // Without a reading side the counts are not read.
        let _ = self.new.send(((subject, name), counted.clone()));
        counted
    }
}

/// Readings after which an unused cell is removed: 15 minutes of them, one a second.
const IDLE: u32 = 900;

/// The reading side of one worker.
#[derive(Debug)]
pub(super) struct Reading {
    new: Receiver<(Name, Arc<Counted>)>,
    cells: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    name: Name,
    counted: Arc<Counted>,
    before: Counts,
    requests: u32,
    idle: u32,
}

impl Reading {
    pub(super) fn new(new: Receiver<(Name, Arc<Counted>)>) -> Reading {
        Reading { new, cells: Vec::new() }
    }

    /// Passes on the counts since the last call, of cells that have any or have requests in flight.
    pub(super) fn take(&mut self, mut look: impl FnMut(&Name, &Counts)) {
        let new = self.new.try_iter().map(|(name, counted)| Known {
            name,
            counted,
            before: Counts::default(),
            requests: 0,
            idle: 0,
        });
        self.cells.extend(new);
        self.cells.retain_mut(|known| {
            let requests = known.counted.requests();
            if requests == known.requests && known.counted.in_flight.load(Relaxed) == 0 {
                known.idle += 1;
                let keep = known.idle < IDLE;
                known.counted.retired.store(!keep, Relaxed);
                return keep;
            }
            let now = known.counted.read();
            look(&known.name, &now.since(&known.before));
            (known.before, known.requests, known.idle) = (now, requests, 0);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(status: u16) -> Finished {
        Finished { status, took_us: Some(1000), received: 10, sent: 20 }
    }

    fn taken(reading: &mut Reading) -> Vec<(String, Counts)> {
        let mut all = Vec::new();
        reading.take(|(_, name), counts| all.push((name.to_string(), *counts)));
        all
    }

    #[test]
    fn each_reading_has_what_came_since_the_last_one() {
        let (live, new) = Live::new();
        let (mut reading, memo) = (Reading::new(new), Memo::default());
        for status in [200, 200, 404, 503, 999] {
            live.route(&memo, 0x1000, "r1", &finished(status));
        }
        live.route(&memo, 0x2000, "r2", &Finished { took_us: None, ..finished(200) });
        live.node("10.0.0.1:80".parse().unwrap(), &finished(200));
        (0..3).for_each(|_| live.stream("s1", &finished(502)));
        let all = taken(&mut reading);
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["r1", "r2", "10.0.0.1:80", "s1"]);
        assert_eq!(all[3].1.statuses, [0, 0, 0, 0, 0, 3]);
        assert_eq!(all[0].1.statuses, [1, 0, 2, 0, 1, 1]);
        assert_eq!((all[0].1.received, all[0].1.sent, all[0].1.requests()), (50, 100, 5));
        assert_eq!((all[0].1.times.iter().sum::<u32>(), all[1].1.times.iter().sum::<u32>()), (5, 0));
        assert!(taken(&mut reading).is_empty());
        live.route(&memo, 0x1000, "r1", &finished(200));
        assert_eq!(taken(&mut reading)[0].1.requests(), 1);
    }

    #[test]
    fn requests_in_flight_are_those_of_the_last_report() {
        let (live, new) = Live::new();
        let mut reading = Reading::new(new);
        let node = |last: u8| SocketAddr::from(([10, 0, 0, last], 80));
        let in_flight = |reading: &mut Reading| {
            let all: Vec<(String, u32)> =
                taken(reading).into_iter().map(|(name, counts)| (name, counts.in_flight)).collect();
            all
        };
        live.node(node(1), &finished(200));
        live.in_flight(|add| {
            [(1, 2), (2, 4), (1, 3), (3, 0)].into_iter().for_each(|(last, count)| add(node(last), count))
        });
        let both = [("10.0.0.1:80".to_owned(), 5), ("10.0.0.2:80".to_owned(), 4)];
        assert_eq!(in_flight(&mut reading), both);
        (0..IDLE + 1)
            .for_each(|_| assert_eq!(in_flight(&mut reading), both, "a node that hangs is not idle"));
        live.in_flight(|add| add(node(2), 1));
        assert_eq!(in_flight(&mut reading), [("10.0.0.2:80".to_owned(), 1)]);
        live.in_flight(|_| ());
        assert!(in_flight(&mut reading).is_empty());
    }

    #[test]
    fn plans_at_one_place_of_the_memo_do_not_mix() {
        let (live, new) = Live::new();
        let (mut reading, memo) = (Reading::new(new), Memo::default());
        for _ in 0..3 {
            live.route(&memo, 0x1000, "a", &finished(200));
            live.route(&memo, 0x1000 + 64 * PLACES, "b", &finished(200));
        }
        assert!(taken(&mut reading).iter().all(|(_, counts)| counts.requests() == 3));
    }

    #[test]
    fn cells_beyond_the_bound_share_one_and_idle_ones_make_room() {
        let (live, new) = Live::new();
        let mut reading = Reading::new(new);
        for id in 0..MOST + 5 {
            live.route(&Memo::default(), 0, &id.to_string(), &finished(200));
        }
        let all = taken(&mut reading);
        let shared = all.iter().find(|(name, _)| name == OVERFLOW).unwrap();
        assert_eq!((all.len(), shared.1.requests()), (MOST + 1, 5));
        (0..IDLE).for_each(|_| assert!(taken(&mut reading).is_empty()));
        assert!(reading.cells.is_empty());
        live.route(&Memo::default(), 0, "new", &finished(200));
        let again = taken(&mut reading);
        assert_eq!(
            (again.len(), again[0].0.as_str()),
            (1, OVERFLOW),
            "a full table is tidied once in each tick"
        );
        live.tick();
        live.route(&Memo::default(), 0, "new", &finished(200));
        live.route(&Memo::default(), 0, "1", &finished(200));
        assert_eq!(taken(&mut reading).len(), 2, "a removed cell is made again");
    }

    #[test]
    fn quantiles_are_within_a_bucket() {
        let times = (0..64).map(|power| 1u64 << power).flat_map(|us| [us, us + us / 2]);
        let mut last = 0;
        for us in times {
            let at = bucket(us);
            assert!(at >= last && at < BUCKETS, "{us}");
            assert!(least(at) <= us && (at == BUCKETS - 1 || us < least(at + 1)), "{us} {at}");
            last = at;
        }
        let mut counts = Counts::default();
        assert_eq!(counts.quantile_us(0.5), 0);
        counts.times[bucket(1000)] = 90;
        counts.times[bucket(50_000)] = 10;
        let (median, tail) = (counts.quantile_us(0.5), counts.quantile_us(0.99));
        assert!((768..1024).contains(&median) && (49_152..65_536).contains(&tail), "{median} {tail}");
    }

    #[test]
    fn a_few_requests_in_each_tick_are_timed() {
        let (live, _new) = Live::new();
        let timed = |live: &Live| (0..100).filter(|_| live.is_timed()).count();
        assert_eq!((timed(&live), timed(&live)), (TIMED as usize, 0));
        live.tick();
        assert_eq!(timed(&live), TIMED as usize);
    }
}
