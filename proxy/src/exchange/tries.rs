//! hot path
//!
//! The tries of one exchange: which server is next, whether another one may follow, and what the
//! upstream learns of each. An upstream that asks for nothing beyond APISIX's `retries` pays for
//! nothing else.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use sdk::Exchange;
use snapshot::Upstream;
use snapshot::balance::ExcludedServers;
use snapshot::health::TryFailure;
use snapshot::load::{Limit, Permit};

use super::fault::{Blame, Fault, FaultKind};
use super::phases;
use super::receive::{Retries, TurnsAway};
use super::retry::{self, Again, Try};
use crate::down::Downstream;
use crate::rt;
use crate::worker::Worker;

/// The poll interval of requests that wait for a connection. Connections come back on other workers, too, which
/// do not know the requests that wait here.
const LOOK: Duration = Duration::from_millis(5);

/// The poll interval of the first `NEXT` waiters.
const LOOK_OF_NEXT: Duration = Duration::from_millis(1);
const NEXT: u32 = 8;

/// The longest poll interval. Requests with more waiters ahead poll less often, so that many waiters take no time
/// from requests that are served.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// A try without a response for the client.
pub(super) struct FailedTry {
    pub(super) fault: Fault,
    pub(super) state: Try,
    /// Microseconds until its answer came, if one did and it was measured.
    pub(super) took: Option<u64>,
}

/// The tries of one exchange.
pub(super) struct Tries<'u> {
    upstream: &'u Arc<Upstream>,
    /// Servers that are not tried, or not again.
    tried: ExcludedServers,
    picked: bool,
    left: u32,
    /// When no other server is tried any more.
    give_up: u64,
    /// The server to try once more, on a fresh connection.
    same: Option<usize>,
    /// The server that the client's cookie names (`sluice.sticky`).
    stays: Option<usize>,
    /// Pauses made so far.
    pauses: u32,
    _request: Option<Permit<'u>>,
    /// Where retries under way are limited, once this exchange has had one.
    retry: OnceCell<Option<Permit<'u>>>,
    /// The next retry is paid for: an answer was thrown away for it.
    reserved: Cell<bool>,
}

impl<'u> Tries<'u> {
    /// # Errors
    /// The upstream has as many requests as it may.
    #[inline]
    pub(super) fn new(
        worker: &Worker,
        upstream: &'u Arc<Upstream>,
        x: &Exchange<'_>,
    ) -> Result<Tries<'u>, Fault> {
        let request = match &upstream.load {
            Some(load) => load.request().map_err(at_limit)?,
            None => None,
        };
        if let Some(budget) = upstream.retry.as_ref().and_then(|retry| retry.budget) {
            worker.with_score(upstream, |state| state.save(budget));
        }
        Ok(Tries {
            upstream,
            tried: ExcludedServers::default(),
            picked: false,
            left: upstream.retries,
            give_up: match upstream.retry_timeout {
                bound if bound.is_zero() => u64::MAX,
                bound => worker.clock.after(bound),
            },
            same: None,
            stays: upstream.sticky.as_ref().and_then(|sticky| sticky.find(x)),
            pauses: 0,
            _request: request,
            retry: OnceCell::new(),
            reserved: Cell::new(false),
        })
    }

    /// The next server, and whether its connection has to be a fresh one.
    ///
    /// # Errors
    /// All were tried: 502, regardless of how the last one failed (APISIX's answer).
    #[inline]
    pub(super) fn next(&mut self, worker: &Worker, x: &Exchange<'_>) -> Result<(usize, bool), Fault> {
        let upstream = self.upstream;
        if let Some(index) = self.same.take() {
            return Ok((index, true));
        }
        if upstream.endpoints.len() == 1 {
            // A single server needs no memory of choices: with many routes, one cache line less.
            // It is tried as often as `retries` says, as in APISIX. Where scores are kept, those of
            // servers it took the place of are forgotten.
            if upstream.keeps_score() {
                worker.with_balance(upstream, |_| ());
            }
            return Ok((0, false));
        }
        let now = worker.clock.coarse_ms();
        let first = !std::mem::replace(&mut self.picked, true);
        let picked = worker.with_balance(upstream, |state| {
            if first && (upstream.health.is_some() || upstream.subset.is_some() || self.stays.is_some()) {
                let (picked, avoided) = upstream.pick_first(state, x, now, self.stays);
                self.tried = avoided;
                return picked;
            }
            upstream.pick(state, x, &self.tried, now)
        });
        picked.map(|index| (index, false)).ok_or(Fault::gateway(FaultKind::NoServerLeft))
    }

    /// The cookie that leads the client back to a server, unless it came with that.
    #[inline]
    pub(super) fn cookie(&self, index: usize) -> Option<&'u [u8]> {
        let sticky = self.upstream.sticky.as_ref()?;
        if self.stays == Some(index) { None } else { sticky.cookie(index) }
    }

    /// Takes the permit for a connection, where those are limited: waits for it up to `patience`, behind those
    /// that came before, if the queue has room.
    ///
    /// # Errors
    /// No connection came free in time, the queue is full, or the client is gone.
    #[inline]
    pub(super) async fn connection(
        &self,
        worker: &Worker,
        down: &mut Downstream<'_>,
        patience: Duration,
    ) -> Result<Option<Permit<'u>>, Fault> {
        let Some(load) = &self.upstream.load else { return Ok(None) };
        if let Ok(place) = load.connection() {
            return Ok(place);
        }
        let waiting = async {
            let waiting = load.wait()?;
            let end = worker.clock.after(patience);
            loop {
                match waiting.connection() {
                    Err(_) if worker.clock.is_over(end) => return Err(Limit::Connections),
                    Err(ahead) => rt::sleep(look(ahead)).await,
                    Ok(place) => return Ok(place),
                }
            }
        };
        phases::unless_gone(worker, down, Box::pin(waiting)).await?.map_err(at_limit)
    }

    /// The bound of one try.
    #[inline]
    pub(super) fn per_try(&self) -> Option<Duration> {
        self.upstream.retry.as_ref()?.per_try_timeout
    }

    /// Answers with a status of `sluice.retry.statuses` may be thrown away, if a retry is to be had then.
    #[inline]
    pub(super) fn turns_away(
        &self,
        worker: &Worker,
        index: usize,
        idempotent: bool,
    ) -> Option<TurnsAway<'_>> {
        let retry = self.upstream.retry.as_ref().filter(|retry| !retry.statuses.is_empty())?;
        let may = self.left > 0
            && (idempotent || retry.any_method)
            && !worker.clock.is_over(self.give_up)
            && self.upstream.has_another(&self.tried, index);
        may.then_some(TurnsAway { statuses: &retry.statuses, until: self.give_up, retries: self })
    }

    /// Records that a server has answered; with the microseconds until its head came, if they were measured.
    #[inline]
    pub(super) fn answered(&self, index: usize, status: u16, micros: Option<u64>) {
        if let Some(health) = &self.upstream.health {
            health.answered(index, status, micros.unwrap_or(0));
        }
        if let (Some(load), Some(micros)) = (&self.upstream.load, micros) {
            load.answered(micros);
        }
    }

    /// A try has failed. Makes ready for the next one, after a pause where one is asked for. Gives `place` back
    /// where the next try follows at once; during a pause, another request may have it.
    ///
    /// # Errors
    /// No try follows; the client gets this fault.
    pub(super) async fn again(
        &mut self,
        worker: &Worker,
        down: &mut Downstream<'_>,
        index: usize,
        failed: FailedTry,
        idempotent: bool,
        place: Option<Permit<'u>>,
    ) -> Result<Option<Permit<'u>>, Fault> {
        let upstream = self.upstream;
        let FailedTry { fault, state, took } = failed;
        let repeatable = idempotent || upstream.retry.as_ref().is_some_and(|retry| retry.any_method);
        let again = match retry::decide(fault, state, repeatable) {
            Again::NextServer if !self.is_wanted(fault) => Again::No,
            again => again,
        };
        match again {
            Again::SameServer => self.same = Some(index),
            Again::NextServer if self.left > 0 => {
                if worker.clock.is_over(self.give_up) {
                    self.record_failure(index, fault, Some(502), took);
                    return Err(Fault::gateway(FaultKind::NoTimeLeft));
                }
                if !self.reserve(worker) {
                    self.record_failure(index, fault, Some(fault.kind.status()), took);
                    return Err(fault);
                }
                self.reserved.set(false);
                self.left -= 1;
                upstream.note(&mut self.tried, index);
                self.record_failure(index, fault, None, took);
                return self.pause(worker, down, place).await;
            }
            _ => {
                self.record_failure(index, fault, Some(fault.kind.status()), took);
                return Err(fault);
            }
        }
        Ok(place)
    }

    /// Whether this failure is one of `sluice.retry.failures`.
    fn is_wanted(&self, fault: Fault) -> bool {
        let Some(retry) = &self.upstream.retry else { return true };
        match fault.kind {
            FaultKind::TurnedAway(_) => true,
            FaultKind::ConnectTimeout | FaultKind::ReadTimeout | FaultKind::SendTimeout => retry.on_timeout,
            FaultKind::ConnectRefused | FaultKind::ConnectFailed | FaultKind::NoDescriptor => {
                retry.on_connect
            }
            _ => retry.on_closed,
        }
    }

    /// Waits before another try, at random below a time that doubles with each, or until others had their turn,
    /// unless the client leaves.
    async fn pause(
        &mut self,
        worker: &Worker,
        down: &mut Downstream<'_>,
        place: Option<Permit<'u>>,
    ) -> Result<Option<Permit<'u>>, Fault> {
        let Some(retry) = self.upstream.retry.as_ref().filter(|retry| !retry.backoff.is_zero()) else {
            phases::unless_gone(worker, down, Box::pin(rt::events())).await?;
            return Ok(place);
        };
        drop(place);
        let most = retry.backoff.saturating_mul(1 << self.pauses.min(16)).min(retry.max_backoff);
        self.pauses += 1;
        let time = most.mul_f64(fastrand::f64());
        phases::unless_gone(worker, down, Box::pin(rt::sleep(time))).await?;
        Ok(None)
    }

    fn record_failure(&self, index: usize, fault: Fault, status: Option<u16>, took: Option<u64>) {
        record_failure(self.upstream, index, fault, status, took);
    }
}

impl Retries for Tries<'_> {
    fn reserve(&self, worker: &Worker) -> bool {
        if self.reserved.get() {
            return true;
        }
        let place = match (self.retry.get(), &self.upstream.load) {
            (None, Some(load)) => match load.retry() {
                Ok(place) => Some(place),
                Err(_) => return false,
            },
            _ => None,
        };
        let mut may = true;
        if let Some(budget) = self.upstream.retry.as_ref().and_then(|retry| retry.budget) {
            worker.with_score(self.upstream, |state| may = state.spend(budget));
        }
        if let (true, Some(place)) = (may, place) {
            let _ = self.retry.set(place);
        }
        self.reserved.set(may);
        may
    }
}

/// The poll interval of a request with this many waiters ahead.
fn look(ahead: u32) -> Duration {
    if ahead < NEXT { LOOK_OF_NEXT } else { LOOK.saturating_mul(1 + ahead / 64).min(LONGEST_LOOK) }
}

/// Records a failed try in an upstream's health: whether another one follows, or this status; and after how many
/// microseconds the answer came, if there was one.
#[cold]
pub(crate) fn record_failure(
    upstream: &Upstream,
    index: usize,
    fault: Fault,
    status: Option<u16>,
    took: Option<u64>,
) {
    let Some(health) = &upstream.health else { return };
    match failure(fault) {
        None => {}
        Some(Failure::Answered(status)) => health.answered(index, status, took.unwrap_or(0)),
        Some(Failure::Broken(how)) => health.failed(index, how, status),
    }
}

/// How a failed try counts against its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Answered(u16),
    Broken(TryFailure),
}

fn failure(fault: Fault) -> Option<Failure> {
    match fault.kind {
        _ if fault.blame != Blame::Upstream => None,
        // Clients that use up the descriptors must not make servers look broken.
        FaultKind::NoDescriptor => None,
        FaultKind::TurnedAway(status) => Some(Failure::Answered(status)),
        kind if kind.status() == 504 => Some(Failure::Broken(TryFailure::Timeout)),
        _ => Some(Failure::Broken(TryFailure::Connection)),
    }
}

fn at_limit(limit: Limit) -> Fault {
    Fault::gateway(FaultKind::AtLimit(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_further_back_in_line_the_rarer_the_looks() {
        assert_eq!((look(0), look(NEXT - 1)), (LOOK_OF_NEXT, LOOK_OF_NEXT));
        assert!(LOOK_OF_NEXT < LOOK);
        assert_eq!((look(NEXT), look(63), look(64), look(128)), (LOOK, LOOK, LOOK * 2, LOOK * 3));
        assert_eq!(look(u32::MAX), LONGEST_LOOK);
    }

    #[test]
    fn a_server_is_blamed_for_what_is_its_fault() {
        let of = |kind| failure(Fault::upstream(kind));
        assert_eq!(of(FaultKind::ConnectFailed), Some(Failure::Broken(TryFailure::Connection)));
        assert_eq!(of(FaultKind::ConnectTimeout), Some(Failure::Broken(TryFailure::Timeout)));
        assert_eq!(of(FaultKind::TurnedAway(503)), Some(Failure::Answered(503)));
        assert_eq!(of(FaultKind::NoDescriptor), None);
        assert_eq!(failure(Fault::client(FaultKind::ClientGone)), None);
        assert_eq!(failure(Fault::gateway(FaultKind::ConnectFailed)), None);
    }
}
