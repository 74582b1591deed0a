//! What a worker counts of itself.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

macro_rules! counts {
    ($($name:ident,)*) => {
        /// What a worker counts of itself.
        #[derive(Debug, Default)]
        pub(super) struct WorkerCounts {
            $(pub(super) $name: AtomicU64,)*
            /// Written by the scraping side: series it retired of this shard.
            pub(super) retired: AtomicU64,
            /// Written by the scraping side: lines of output of the series it took in from this shard.
            pub(super) taken: AtomicUsize,
        }

        /// What all workers counted of themselves, together. The words of a worker are read one after the
        /// other while it goes on, so that what follows from two of them may be off for a moment.
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
