//! Publishes snapshots from one publisher to many readers, without a lock for readers.
//!
//! A reader checks one number per exchange and takes the new snapshot only when that number has
//! changed. The publisher keeps every snapshot until no reader holds it, so old ones are always
//! freed on the publisher's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use futures_util::task::AtomicWaker;

use crate::{Snapshot, StreamPlan};

#[derive(Debug)]
struct Published {
    current: ArcSwap<Snapshot>,
    /// Incremented with each publication.
    version: AtomicU64,
    /// The store revision each reader holds.
    held: Box<[AtomicU64]>,
    /// Readers waiting for a newer snapshot.
    waiting: Box<[AtomicWaker]>,
}

/// The control plane's end, through which all configuration reaches the workers.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Published>,
    /// Snapshots that a reader may still hold, the current one last.
    kept: Vec<Arc<Snapshot>>,
    /// Plans of streams that outlive their snapshots.
    plans: Vec<Arc<StreamPlan>>,
}

/// A worker's end.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Published>,
    index: usize,
    version: u64,
    current: Arc<Snapshot>,
}

/// Observes published and held revisions, from any thread.
#[derive(Debug, Clone)]
pub struct Observer {
    shared: Arc<Published>,
}

impl Publisher {
    /// Starts with a snapshot and makes one reader for each worker.
    pub fn new(first: Snapshot, workers: usize) -> (Publisher, Vec<Reader>) {
        let first = Arc::new(first);
        let shared = Arc::new(Published {
            current: ArcSwap::new(first.clone()),
            version: AtomicU64::new(0),
            held: (0..workers).map(|_| AtomicU64::new(first.revision)).collect(),
            waiting: (0..workers).map(|_| AtomicWaker::new()).collect(),
        });
        let readers = (0..workers)
            .map(|index| Reader { shared: shared.clone(), index, version: 0, current: first.clone() })
            .collect();
        (Publisher { shared, kept: vec![first], plans: Vec::new() }, readers)
    }

    /// Publishes a snapshot. Returns as soon as it is visible to readers.
    pub fn publish(&mut self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        self.kept.push(snapshot.clone());
        self.shared.current.store(snapshot);
        self.shared.version.fetch_add(1, Ordering::Release);
        for reader in &self.shared.waiting {
            reader.wake();
        }
        self.free_unused();
    }

    /// Frees old snapshots that no reader holds. Must be called periodically.
    pub fn free_unused(&mut self) {
        self.plans.retain(|plan| Arc::strong_count(plan) > 1);
        let (streams, plans) = (self.current().streams.clone(), &mut self.plans);
        self.kept.retain(|snapshot| {
            // The current one also has the publisher's own reference.
            let keep = Arc::strong_count(snapshot) > 1;
            if !keep && !Arc::ptr_eq(&snapshot.streams, &streams) {
                // A stream holds only its plan. This thread must hold the last reference.
                plans.extend(snapshot.streams.all().iter().cloned());
            }
            keep
        });
    }

    /// Snapshots still in memory, the current one included.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    pub fn current(&self) -> &Arc<Snapshot> {
        &self.kept[self.kept.len() - 1]
    }

    pub fn observer(&self) -> Observer {
        Observer { shared: self.shared.clone() }
    }
}

impl Reader {
    /// The current snapshot. One relaxed load when nothing changed.
    #[inline]
    pub fn current(&mut self) -> &Arc<Snapshot> {
        if self.is_stale() {
            self.refresh();
        }
        &self.current
    }

    /// Whether [`Reader::current`] would take a newer snapshot.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.shared.version.load(Ordering::Relaxed) != self.version
    }

    /// Ready if there is a newer snapshot than the one held; otherwise wakes the task once there
    /// is. Supports one task per reader.
    pub fn poll_stale(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.waiting[self.index].register(cx.waker());
        // Checked after registering, so that a publication in between is not missed.
        if self.shared.version.load(Ordering::Acquire) == self.version {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    #[cold]
    fn refresh(&mut self) {
        self.version = self.shared.version.load(Ordering::Acquire);
        self.current = self.shared.current.load_full();
        self.shared.held[self.index].store(self.current.revision, Ordering::Release);
    }
}

impl Observer {
    /// The revision of the published snapshot.
    pub fn published(&self) -> u64 {
        self.shared.current.load().revision
    }

    /// The revision each worker holds.
    pub fn held(&self) -> Vec<u64> {
        self.shared.held.iter().map(|held| held.load(Ordering::Acquire)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::{Mode, Options, Router};

    fn at(revision: u64) -> Snapshot {
        Snapshot {
            revision,
            router: Router::new(Mode::HostUri, Options::default()),
            upstreams: Default::default(),
            warm: std::sync::Arc::default(),
            consumers: Arc::default(),
            certificates: Default::default(),
            global: None,
            streams: Arc::default(),
        }
    }

    #[test]
    fn readers_see_published_snapshots_and_the_publisher_frees_old_ones() {
        let (mut publisher, mut readers) = Publisher::new(at(1), 2);
        let lease = readers[0].current().clone();
        publisher.publish(at(2));
        assert_eq!(readers[0].current().revision, 2);
        assert_eq!(publisher.observer().held(), [2, 1]);
        publisher.free_unused();
        assert_eq!(publisher.kept(), 2, "a lease and the second reader hold the first snapshot");
        drop(lease);
        assert_eq!(readers[1].current().revision, 2);
        publisher.free_unused();
        assert_eq!(publisher.kept(), 1);
        assert_eq!((publisher.observer().published(), publisher.observer().held()), (2, vec![2, 2]));
    }

    fn stream(id: &str) -> Arc<StreamPlan> {
        let plan = crate::Plan::new(sdk::RouteInfo::new(id, Default::default()));
        Arc::new(StreamPlan { rule: Default::default(), plan, protocol: None })
    }

    /// A stream may last for days; its plan must not keep the whole snapshot alive, and must still
    /// be freed here.
    #[test]
    fn a_stream_plan_outlives_its_snapshot() {
        let with = |revision, plans: &[&Arc<StreamPlan>]| {
            let streams = crate::Streams::new(plans.iter().map(|plan| Arc::clone(plan)).collect());
            Snapshot { streams: Arc::new(streams), ..at(revision) }
        };
        let (used, idle, stays) = (stream("used"), stream("idle"), stream("stays"));
        let (mut publisher, mut readers) = Publisher::new(with(1, &[&used, &idle, &stays]), 1);
        let [of_used, of_idle, of_stays] = [&used, &idle, &stays].map(Arc::downgrade);
        drop(idle);
        let next = with(2, &[&stays]);
        let same_streams = Snapshot { streams: next.streams.clone(), ..at(3) };
        publisher.publish(next);
        assert!(publisher.plans.is_empty(), "the snapshot that is still read holds them");
        readers[0].current();
        publisher.free_unused();
        assert_eq!(publisher.kept(), 1);
        publisher.free_unused();
        assert_eq!(of_idle.strong_count(), 0, "no stream uses it");
        drop(used);
        assert_eq!(of_used.strong_count(), 1, "the stream was not the last to hold it");
        publisher.free_unused();
        assert_eq!(of_used.strong_count(), 0);
        // Plans in the current snapshot need no extra reference.
        publisher.publish(same_streams);
        readers[0].current();
        publisher.free_unused();
        assert_eq!((publisher.kept(), publisher.plans.len()), (1, 1), "{of_stays:?}");
    }

    #[test]
    fn a_task_waiting_for_a_newer_snapshot_is_woken() {
        struct Woken(AtomicU64);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Woken>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Woken(AtomicU64::new(0)));
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let (mut publisher, mut readers) = Publisher::new(at(1), 1);
        let reader = &mut readers[0];
        assert!(reader.poll_stale(&mut cx).is_pending() && !reader.is_stale());
        publisher.publish(at(2));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(reader.poll_stale(&mut cx).is_ready() && reader.is_stale());
        assert_eq!(reader.current().revision, 2);
        assert!(reader.poll_stale(&mut cx).is_pending() && !reader.is_stale());
    }
}
