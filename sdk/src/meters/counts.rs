//! A worker's counters that have no labels.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

macro_rules! counts {
    ($($name:ident,)*) => {
        /// A worker's counters that have no labels.
        #[derive(Debug, Default)]
        pub(super) struct WorkerCounts {
            $(pub(super) $name: AtomicU64,)*
            /// Written by the scraping side: series it retired of this shard.
            pub(super) retired: AtomicU64,
            /// Written by the scraping side: lines of output of the series it took in from this shard.
            pub(super) taken: AtomicUsize,
        }

        /// The sums of all workers' counters. They are read while the workers continue, so related
        /// counts may be briefly inconsistent.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Totals {
            $(pub $name: u64,)*
        }

        impl Totals {
            pub(super) fn add(&mut self, worker: &WorkerCounts) {
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
    calls_unwatched,
    handshakes,
    handshakes_resumed,
    handshakes_failed,
    metric_errors,
}

impl WorkerCounts {
    pub(super) fn retire(&self, count: u64) {
        self.retired.fetch_add(count, Relaxed);
    }
}
