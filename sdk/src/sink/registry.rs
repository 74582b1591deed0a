//! The sinks of the node: shares them, limits their total size, and reports on them.
#![cfg_attr(
    not(test),
    expect(
        clippy::disallowed_types,
        reason = "locked by the control plane and those who deliver, and once by the worker with a sink's first entry, which does not wait"
    )
)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashbrown::HashMap;

use super::queue::{self, Intake, Shared, Sink, SinkInner};
use super::{Addresses, Spec};

/// The default limit of bytes waiting in all sinks of plugins together.
const MOST: usize = 64 << 20;

/// Receives the intake of a sink with its first entry; must not wait.
pub type Start = dyn Fn(Intake) + Send + Sync;

/// All sinks of plugins. A sink uses no thread, file or connection until its first entry.
#[derive(Default)]
pub struct Sinks {
    /// `None` without delivery, as when the configuration is only checked.
    start: Option<Arc<Start>>,
    totals: Arc<Totals>,
    open: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    sinks: HashMap<Spec, Weak<SinkInner>>,
    /// Sinks that are open, or still deliver.
    shared: Vec<Weak<Shared>>,
    /// Dropped entries by plugin.
    dropped: BTreeMap<&'static str, Arc<AtomicU64>>,
}

/// The bytes waiting in all sinks together.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) bytes: AtomicUsize,
    pub(super) most: usize,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals { bytes: AtomicUsize::new(0), most: MOST }
    }
}

/// Gathered entries, by the labels of APISIX's `batch_process_entries`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entries {
    pub name: String,
    pub route_id: String,
    pub server_addr: String,
    pub count: u64,
}

impl Sinks {
    /// Creates the registry. All sinks together hold at most `most` bytes, and each at most a
    /// quarter of that.
    pub fn new(most: usize, start: impl Fn(Intake) + Send + Sync + 'static) -> Sinks {
        Sinks {
            start: Some(Arc::new(start)),
            totals: Arc::new(Totals { bytes: AtomicUsize::new(0), most }),
            open: Mutex::default(),
        }
    }

    /// Opens the sink with this specification, or shares an open one.
    pub fn open(&self, spec: Spec, addresses: Addresses) -> Sink {
        let mut open = self.lock();
        if let Some(sink) = open.sinks.get(&spec).and_then(Weak::upgrade) {
            sink.shared.set_addresses(addresses);
            return Sink(sink);
        }
        open.sinks.retain(|_, sink| sink.strong_count() > 0);
        open.shared.retain(|shared| shared.strong_count() > 0);
        let dropped = open.dropped.entry(spec.plugin).or_default().clone();
        let sink = queue::new(spec.clone(), addresses, dropped, self.totals.clone(), self.start.clone());
        open.sinks.insert(spec, Arc::downgrade(&sink.0));
        open.shared.push(Arc::downgrade(&sink.0.shared));
        sink
    }

    /// Makes the receivers of all sinks return [`super::Next::Reopen`].
    pub fn reopen(&self) {
        self.each(|shared| shared.reopen());
    }

    /// Prepares the gateway's exit: gathered entries are delivered now, if possible.
    pub fn stop(&self) {
        self.each(|shared| shared.stop());
    }

    /// Entries waiting to become a batch.
    pub fn gathered(&self) -> Vec<Entries> {
        let mut all = BTreeMap::<_, u64>::new();
        self.each(|shared| {
            // APISIX has no such metric for entries that are not batched.
            if let Some((route, server)) = shared.first.get()
                && shared.spec.batching.batch_max_size > 1
            {
                let labels = (shared.spec.batching.name.clone(), route.clone(), server.clone());
                *all.entry(labels).or_default() += shared.gathered() as u64;
            }
        });
        let entries = |((name, route_id, server_addr), count)| Entries { name, route_id, server_addr, count };
        all.into_iter().map(entries).collect()
    }

    /// Entries dropped since the start, by plugin.
    pub fn dropped(&self) -> Vec<(&'static str, u64)> {
        let open = self.lock();
        open.dropped.iter().map(|(plugin, count)| (*plugin, count.load(Ordering::Relaxed))).collect()
    }

    /// Bytes waiting in all sinks.
    pub fn waiting_bytes(&self) -> u64 {
        self.totals.bytes.load(Ordering::Relaxed) as u64
    }

    fn each(&self, mut f: impl FnMut(&Shared)) {
        let shared: Vec<_> = self.lock().shared.iter().filter_map(Weak::upgrade).collect();
        shared.iter().for_each(|shared| f(shared));
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Sinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sinks")
            .field("totals", &self.totals)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// Passes the intake on with the first entry.
pub(super) struct Starter {
    started: AtomicBool,
    /// Locked once, by the thread that starts the delivery; no thread waits for it.
    intake: Mutex<Option<Intake>>,
    to: Option<Arc<Start>>,
}

impl Starter {
    pub(super) fn new(intake: Intake, to: Option<Arc<Start>>) -> Starter {
        Starter { started: AtomicBool::new(false), intake: Mutex::new(Some(intake)), to }
    }

    /// For an intake that is already in use.
    pub(super) fn started() -> Starter {
        Starter { started: AtomicBool::new(true), intake: Mutex::default(), to: None }
    }

    #[inline]
    pub(super) fn has_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Starts the delivery with the first entry. False without delivery.
    #[cold]
    pub(super) fn start(&self) -> bool {
        let Some(to) = &self.to else { return false };
        if !self.started.swap(true, Ordering::AcqRel)
            && let Some(intake) = self.intake.try_lock().ok().and_then(|mut intake| intake.take())
        {
            to(intake);
        }
        true
    }
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starter").field("started", &self.started).finish_non_exhaustive()
    }
}

/// The addresses of a server. Set by the control plane and read by the deliverer.
#[derive(Debug)]
pub(super) struct Resolved(Mutex<Addresses>);

impl Resolved {
    pub(super) fn new(addresses: Addresses) -> Resolved {
        Resolved(Mutex::new(addresses))
    }

    pub(super) fn set(&self, addresses: Addresses) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    pub(super) fn now(&self) -> Addresses {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::sink::{Batching, Destination, Next, Room};
    use crate::testing::Probe;

    fn spec(path: &str) -> Spec {
        Spec {
            plugin: "test",
            owner: None,
            target: Destination::file(path),
            batching: Batching { batch_max_size: 3, ..Batching::at_once("a name") },
            max_entries: 4,
            max_bytes: 100,
        }
    }

    fn sinks(most: usize) -> (Sinks, Receiver<Intake>) {
        let (start, started) = channel();
        (Sinks::new(most, move |intake| start.send(intake).unwrap()), started)
    }

    fn texts(intake: &Intake) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(Next::Entries(taken)) = intake.take() {
            all.push(String::from_utf8(taken.bytes().to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn equal_specifications_share_a_sink_that_closes_with_the_last_handle() {
        let (sinks, started) = sinks(1000);
        let one = sinks.open(spec("a"), Arc::default());
        let same = sinks.open(spec("a"), Arc::default());
        let other = sinks.open(spec("b"), Arc::default());
        assert!(Arc::ptr_eq(&one.0, &same.0) && !Arc::ptr_eq(&one.0, &other.0));
        assert!(started.try_recv().is_err(), "nothing starts before the first entry");
        let mut probe = Probe::default();
        let x = probe.exchange();
        one.push(&x, b"1".to_vec());
        drop(one);
        same.push(&x, b"2".to_vec());
        let intake = started.try_recv().unwrap();
        assert!(started.try_recv().is_err());
        assert_eq!(texts(&intake), ["1", "2"]);
        assert!(intake.take().is_none());
        same.push(&x, b"3".to_vec());
        drop(same);
        assert_eq!(texts(&intake), ["3"], "entries queued before the end are received");
        assert!(matches!(intake.take(), Some(Next::End)));
        assert!(matches!(intake.next(), Next::End));
    }

    #[test]
    fn closed_sinks_are_removed_and_open_ones_kept() {
        let (sinks, _started) = sinks(1000);
        let kept = sinks.open(spec("kept"), Arc::default());
        for n in 0..10 {
            drop(sinks.open(spec(&n.to_string()), Arc::default()));
        }
        assert!(Arc::ptr_eq(&kept.0, &sinks.open(spec("kept"), Arc::default()).0));
        let open = sinks.lock();
        // The last closed sink is removed when the next one opens.
        assert_eq!((open.sinks.len(), open.shared.len()), (2, 2));
    }

    /// One thread waits for entries of another thread.
    #[test]
    fn an_entry_wakes_a_waiting_receiver() {
        let (sinks, started) = sinks(1000);
        let (sink, intake) = used(&sinks, &started, "1");
        let (sender, received) = channel();
        let thread = std::thread::spawn(move || {
            while let Next::Entries(taken) = intake.next() {
                sender.send((taken.entries(), taken.bytes().to_vec())).unwrap();
            }
        });
        let next = || received.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        assert_eq!(next(), (1, b"1".to_vec()));
        sink.push(&Probe::default().exchange(), b"2".to_vec());
        assert_eq!(next(), (1, b"2".to_vec()));
        drop(sink);
        thread.join().unwrap();
    }

    struct Woken(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sink `a` after its first entry, and its intake.
    fn used(sinks: &Sinks, started: &Receiver<Intake>, entry: &str) -> (Sink, Intake) {
        let sink = sinks.open(spec("a"), Arc::default());
        sink.push(&Probe::default().exchange(), entry.as_bytes().to_vec());
        (sink, started.try_recv().unwrap())
    }

    #[test]
    fn the_intake_sees_the_end_and_new_addresses() {
        let (sinks, started) = sinks(1000);
        let (sink, intake) = used(&sinks, &started, "12");
        let Some(Next::Entries(taken)) = intake.take() else { panic!("one entry is queued") };
        assert_eq!((taken.bytes(), taken.entries()), (&b"12"[..], 1));
        drop(taken);
        intake.lost(3);
        assert_eq!(sink.dropped(), 3);
        let moved: Addresses = [vec![SocketAddr::from(([10, 0, 0, 1], 514))]].into();
        let same = sinks.open(spec("a"), moved.clone());
        assert_eq!(intake.addresses(), moved);
        let woken = Arc::new(Woken(0.into()));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut poll = || intake.poll_next(&mut cx, Room { entries: 1, bytes: 1 });
        assert!(poll().is_pending());
        drop(sink);
        assert!(poll().is_pending() && woken.0.load(Ordering::Relaxed) == 0, "one handle is still open");
        drop(same);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(matches!(poll(), Poll::Ready(Next::End)));
    }

    #[test]
    fn stopping_reaches_all_sinks() {
        let (sinks, started) = sinks(1000);
        let (_sink, intake) = used(&sinks, &started, "1");
        assert!(!intake.is_stopping());
        sinks.stop();
        assert!(intake.is_stopping());
    }

    #[test]
    fn a_thread_waits_for_entries() {
        let (sinks, started) = sinks(1000);
        let (sink, intake) = used(&sinks, &started, "1");
        let waiting = std::thread::spawn(move || {
            let mut texts = Vec::new();
            while let Next::Entries(taken) = intake.next() {
                texts.push(taken.bytes().to_vec());
            }
            texts
        });
        sink.push(&Probe::default().exchange(), b"2".to_vec());
        drop(sink);
        assert_eq!(waiting.join().unwrap(), [b"1".to_vec(), b"2".to_vec()]);
    }

    /// APISIX has no metric for entries that are not batched.
    #[test]
    fn entries_sent_at_once_are_not_gathered() {
        let (sinks, _started) = sinks(1000);
        let one = sinks.open(Spec { batching: Batching::at_once("one"), ..spec("a") }, Arc::default());
        let three = sinks.open(spec("b"), Arc::default());
        let mut probe = Probe::default();
        let x = probe.exchange();
        [&one, &three].into_iter().for_each(|sink| sink.push(&x, b"1".to_vec()));
        let gathered: Vec<_> =
            sinks.gathered().into_iter().map(|entries| (entries.name, entries.count)).collect();
        assert_eq!(gathered, [("a name".to_owned(), 1)]);
    }

    #[test]
    fn closed_sinks_leave_no_entries() {
        let (sinks, _started) = sinks(1000);
        let kept = sinks.open(spec("kept"), Arc::default());
        for n in 0..20 {
            sinks.open(spec(&n.to_string()), Arc::default());
        }
        let open = sinks.lock();
        assert!(open.sinks.len() <= 2 && open.shared.len() <= 2);
        drop((open, kept));
    }

    #[test]
    fn entries_without_room_are_dropped_and_counted() {
        let (sinks, started) = sinks(240);
        let [a, b, c] = ["a", "b", "c"].map(|path| sinks.open(spec(path), Arc::default()));
        let mut probe = Probe::default();
        let x = probe.exchange();
        for _ in 0..5 {
            a.push(&x, vec![b'a'; 10]);
        }
        assert_eq!(sinks.dropped(), [("test", 1)], "limit of entries");
        b.push(&x, vec![b'b'; 61]);
        assert_eq!(sinks.dropped(), [("test", 2)], "limit of bytes per sink: a quarter of all");
        for sink in [&b, &c] {
            sink.push(&x, vec![b'b'; 60]);
        }
        let full = sinks.open(Spec { max_bytes: 20, ..spec("d") }, Arc::default());
        full.push(&x, vec![b'd'; 21]);
        assert_eq!((a.dropped(), sinks.waiting_bytes()), (3, 160), "limit of bytes of its specification");
        let more = ["e", "f"].map(|path| sinks.open(spec(path), Arc::default()));
        for sink in &more {
            sink.push(&x, vec![b'e'; 60]);
        }
        assert_eq!((a.dropped(), sinks.waiting_bytes()), (4, 220), "limit of bytes of all sinks");
        let first = started.try_recv().unwrap();
        let taken: Vec<_> = (0..4).map(|_| first.take()).collect();
        a.push(&x, b"x".to_vec());
        assert_eq!(a.dropped(), 5, "received entries count until they are finished");
        drop(taken);
        a.push(&x, b"x".to_vec());
        assert_eq!((texts(&first), a.dropped(), sinks.waiting_bytes()), (vec!["x".to_owned()], 5, 180));
    }

    #[test]
    fn the_receiver_is_woken_only_when_enough_is_queued() {
        let (sinks, started) = sinks(1000);
        let sink = sinks.open(spec("a"), Arc::default());
        let mut probe = Probe::default();
        let x = probe.exchange();
        sink.push(&x, b"1".to_vec());
        let intake = started.try_recv().unwrap();
        assert_eq!(texts(&intake), ["1"]);
        let woken = Arc::new(Count::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let count = || woken.0.load(Ordering::SeqCst);
        assert!(matches!(intake.poll_next(&mut cx, Room { entries: 2, bytes: 50 }), Poll::Pending));
        sink.push(&x, b"2".to_vec());
        assert_eq!(count(), 0);
        sink.push(&x, b"3".to_vec());
        assert_eq!((count(), texts(&intake)), (1, vec!["2".to_owned(), "3".to_owned()]));
        assert!(matches!(intake.poll_next(&mut cx, Room { entries: 2, bytes: 50 }), Poll::Pending));
        sink.push(&x, vec![b'4'; 50]);
        assert_eq!(count(), 2, "woken by its size");
        drop(intake.take());
        assert!(matches!(intake.poll_next(&mut cx, Room { entries: 2, bytes: 50 }), Poll::Pending));
        sinks.reopen();
        assert_eq!(count(), 3);
        assert!(matches!(intake.take(), Some(Next::Reopen)));
        assert!(matches!(intake.poll_next(&mut cx, Room { entries: 2, bytes: 50 }), Poll::Pending));
        sinks.stop();
        assert!(count() == 4 && intake.is_stopping());
        assert!(matches!(intake.poll_next(&mut cx, Room { entries: 2, bytes: 50 }), Poll::Ready(Next::End)));
    }

    #[test]
    fn the_metric_counts_gathered_entries_and_not_those_being_delivered() {
        let (sinks, started) = sinks(1000);
        let sink = sinks.open(spec("a"), Arc::default());
        assert_eq!(sinks.gathered(), []);
        let mut probe = Probe::default();
        let x = probe.exchange();
        for _ in 0..3 {
            sink.push(&x, b"1".to_vec());
        }
        let entries = |count| Entries {
            name: "a name".to_owned(),
            route_id: "1".to_owned(),
            server_addr: "127.0.0.1".to_owned(),
            count,
        };
        assert_eq!(sinks.gathered(), [entries(3)]);
        let intake = started.try_recv().unwrap();
        let taken = intake.take();
        assert_eq!(sinks.gathered(), [entries(3)]);
        intake.delivering(1, 0);
        assert_eq!(sinks.gathered(), [entries(2)]);
        drop(taken);
        intake.delivering(0, 1);
        assert_eq!(sinks.gathered(), [entries(2)]);
    }

    #[test]
    fn without_delivery_entries_are_dropped() {
        let sinks = Sinks::default();
        let sink = sinks.open(spec("a"), Arc::default());
        let mut probe = Probe::default();
        sink.push(&probe.exchange(), b"1".to_vec());
        assert_eq!((sink.dropped(), sinks.waiting_bytes()), (1, 0));
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
