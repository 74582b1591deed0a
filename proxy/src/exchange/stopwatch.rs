//! hot path
//!
//! The times of an exchange. The clock is read only if they are consumed: by the access log, by the log phase of
//! plugins, by the watch over an unconfirmed change, by taps, and for some exchanges by the live counts.

use sdk::{Chain, Exchange, Phase};

use super::counts::{Took, tap};
use super::phases::Chains;
use crate::access_log::AccessLog;
use crate::worker::{Lease, Worker};

/// Microseconds are those of the worker's clock.
pub(super) struct Stopwatch<'w> {
    worker: &'w Worker,
    access_log: Option<&'w AccessLog>,
    watched: bool,
    tapped: bool,
    waits_for_body: bool,
    began: Option<u64>,
    /// Set instead of `began` if only the live counts time the exchange.
    sampled: Option<u64>,
}

impl<'w> Stopwatch<'w> {
    #[inline]
    pub(super) fn start(worker: &'w Worker, lease: &Lease, global: Option<&Chain>) -> Stopwatch<'w> {
        let access_log = worker.access_log.as_ref();
        let watched = worker.shard.is_watched();
        let tapped = worker.tap.is_on();
        // Finding the route may wait for the body, and plugins of the route may log: unknown as yet.
        let waits_for_body = lease.router.needs_body();
        let is_consumed = watched
            || tapped
            || access_log.is_some()
            || Chains { global, plan: None }.has(Phase::Log)
            || waits_for_body;
        let began = is_consumed.then(|| worker.clock.micros());
        let is_sampled = began.is_none() && worker.shard.live.is_timed();
        let sampled = is_sampled.then(|| worker.clock.micros());
        Stopwatch { worker, access_log, watched, tapped, waits_for_body, began, sampled }
    }

    /// The plugins of the route or of its consumers may have a log phase.
    #[inline]
    pub(super) fn expect_log(&mut self) {
        if self.began.is_none() {
            self.began = Some(self.worker.clock.micros());
        }
    }

    /// Spares the plugins before the upstream a reading of the clock.
    #[inline]
    pub(super) fn share(&self, x: &Exchange<'_>) {
        if let Some(began) = self.began {
            x.set_start_ms(self.worker.clock.unix_ms(began));
            if !self.waits_for_body {
                x.set_steady_ms(Some(self.worker.clock.steady_ms_at(began)));
            }
        }
    }

    /// The plugins before the upstream have run.
    #[inline]
    pub(super) fn forwards(&mut self, x: &mut Exchange<'_>, chains: Chains<'_>) {
        let is_consumed = self.watched || self.tapped || self.access_log.is_some() || chains.will_log(x);
        self.began = self.began.or(x.timing().log_asked_us).filter(|_| is_consumed);
        if let Some(began) = self.began {
            // Without plugins and without a wait for the body, no time has passed since.
            let at_once = chains.are_none() && !self.waits_for_body;
            x.engine_mut().timing.asked_us = if at_once { began } else { self.worker.clock.micros() };
        }
    }

    /// The exchange is over: its times go to the log phase, the access log and the taps. `head_took_ms` is the time
    /// that its head took to arrive.
    #[inline]
    pub(super) fn stop(
        self,
        x: &mut Exchange<'_>,
        chains: Chains<'_>,
        head_took_ms: u64,
        body_received: u64,
        has_failed: impl FnOnce(&Exchange<'_>) -> bool,
    ) -> Took {
        let worker = self.worker;
        let Some(began) = self.began else {
            let took = self.sampled.map(|sampled| worker.clock.micros().saturating_sub(sampled));
            return took.map_or_else(Took::default, |took| Took::sampled(took, chains));
        };
        let ended = worker.clock.micros();
        let engine = x.engine_mut();
        engine.timing.total_us = ended.saturating_sub(began) + head_took_ms * 1000;
        engine.timing.received += body_received;
        if engine.upstream_addr.is_some() {
            engine.timing.upstream_us = ended.saturating_sub(engine.timing.asked_us);
        }
        if self.watched {
            worker.shard.watched(x.timing().total_us, has_failed(x));
        }
        chains.log(worker, x);
        if let Some(log) = self.access_log {
            log.add(x, worker.clock.unix_ms(ended));
        }
        let took = Took::of(x);
        if self.tapped {
            tap(worker, x, began, ended);
        }
        took
    }
}
