//! hot path
//!
//! The live counts of a finished exchange, and the taps on it.

use sdk::Exchange;
use sdk::meters::live::Finished;
use sdk::tap::Times;
use snapshot::Plan;

use super::phases::Chains;
use crate::worker::{Lease, Worker};

/// Microseconds of an exchange, as far as they were measured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Took {
    total_us: Option<u64>,
    upstream_us: Option<u64>,
}

impl Took {
    pub(super) fn of(x: &Exchange<'_>) -> Took {
        let timing = x.timing();
        Took { total_us: Some(timing.total_us), upstream_us: x.upstream_addr().map(|_| timing.upstream_us) }
    }

    /// Of an exchange that only the live counts time. Without plugins the upstream has all of it.
    pub(super) fn sampled(total_us: u64, chains: Chains<'_>) -> Took {
        Took { total_us: Some(total_us), upstream_us: chains.are_none().then_some(total_us) }
    }
}

/// Counts an exchange for its route, and each attempt for its node.
#[inline]
pub(super) fn count(
    worker: &Worker,
    lease: &Lease,
    plan: Option<&Plan>,
    x: &Exchange<'_>,
    took: Took,
    received: u64,
) {
    let live = &worker.shard.live;
    let sent = x.timing().sent;
    let finished = Finished { status: x.status(), took_us: took.total_us, received, sent };
    let (at, id) = plan.map_or((0, ""), |plan| (std::ptr::from_ref(plan) as usize, &*plan.info.id));
    live.route(&lease.counted, at, id, &finished);
    if let Some(node) = x.upstream_addr() {
        let status = match x.upstream_status() {
            0 => finished.status,
            status => status,
        };
        live.node(node, &Finished { status, took_us: took.upstream_us, received, sent });
        for attempt in x.tried() {
            let took_us = Some(attempt.took_us).filter(|took| *took > 0);
            let failed = Finished { status: attempt.status, took_us, ..Finished::default() };
            live.node(attempt.addr, &failed);
        }
    }
}

/// Offers an exchange to the taps; the times are those of the worker's clock.
#[cold]
pub(super) fn tap(worker: &Worker, x: &Exchange<'_>, began: u64, ended: u64) {
    if x.client().is_subrequest() {
        return;
    }
    let timing = x.timing();
    let contacted = x.upstream_addr().is_some();
    let before = if timing.asked_us == 0 { ended } else { timing.asked_us };
    let times = Times {
        unix_ms: worker.clock.unix_ms(ended),
        total_us: timing.total_us,
        before_us: before.saturating_sub(began),
        wait_us: timing.answered_us.checked_sub(before).filter(|_| contacted),
        upstream_us: contacted.then_some(timing.upstream_us),
    };
    worker.tap.offer(x, &times);
}
