//! A stream on its way to an upstream: choosing a server, and connecting.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sdk::Exchange;
use sdk::exchange::Try;
use snapshot::balance::ExcludedServers;
use snapshot::{Endpoint, Upstream};

use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::tries::record_failure;
use crate::rt::Io;
use crate::up::connect::{Secured, connect};
use crate::worker::Worker;

/// A server, which counts as in use until this is dropped.
pub(super) struct Chosen<'w> {
    worker: &'w Worker,
    upstream: Arc<Upstream>,
    index: usize,
    addr: SocketAddr,
    began: u64,
    ok: bool,
}

impl<'w> Chosen<'w> {
    fn begin(worker: &'w Worker, upstream: &Arc<Upstream>, index: usize) -> Chosen<'w> {
        let addr = upstream.endpoints[index].addr;
        if upstream.keeps_score() {
            worker.with_score(upstream, |state| state.begin(index, addr));
        }
        let began = worker.clock.micros();
        Chosen { worker, upstream: upstream.clone(), index, addr, began, ok: false }
    }

    /// The stream is over.
    pub(super) fn done(mut self, ok: bool) {
        self.ok = ok;
    }
}

impl Drop for Chosen<'_> {
    fn drop(&mut self) {
        if self.upstream.keeps_score() {
            let micros = self.worker.clock.micros().saturating_sub(self.began);
            self.worker
                .with_score(&self.upstream, |state| state.done(self.index, self.addr, micros, self.ok));
        }
    }
}

/// Time-outs of a stream with this upstream: for connecting, and for silence.
pub(super) fn timeouts(worker: &Worker, upstream: &Upstream) -> (Duration, Duration) {
    if upstream.own_timeouts {
        return (upstream.timeouts.connect, upstream.timeouts.read);
    }
    (worker.settings.streams.connect_timeout, worker.settings.streams.idle_timeout)
}

/// Chooses servers, one after the other, until `try_one` succeeds with one or the upstream's retries
/// are used up.
pub(super) async fn choose<'w, T>(
    worker: &'w Worker,
    upstream: &Arc<Upstream>,
    x: &mut Exchange<'_>,
    mut try_one: impl AsyncFnMut(&Endpoint) -> Result<T, Fault>,
) -> Result<(T, Chosen<'w>), Fault> {
    let mut tried = ExcludedServers::default();
    let mut fresh_start = upstream.health.is_some() || upstream.subset.is_some();
    let mut retries = upstream.retries;
    let give_up = match upstream.retry_timeout {
        bound if bound.is_zero() => u64::MAX,
        bound => worker.clock.after(bound),
    };
    let mut last = Fault::gateway(FaultKind::NoServerLeft);
    loop {
        let now = worker.clock.coarse_ms();
        let index = if upstream.endpoints.len() == 1 && !upstream.keeps_score() {
            0
        } else if upstream.endpoints.len() == 1 {
            worker.with_balance(upstream, |_| ());
            0
        } else {
            let picked = worker.with_balance(upstream, |state| {
                if std::mem::take(&mut fresh_start) {
                    let (picked, avoided) = upstream.pick_first(state, x, now, None);
                    tried = avoided;
                    return picked;
                }
                upstream.pick(state, x, &tried, now)
            });
            picked.ok_or(last)?
        };
        let endpoint = &upstream.endpoints[index];
        let engine = x.engine_mut();
        if let Some(before) = engine.upstream_addr.replace(endpoint.addr) {
            engine.tried.push(Try { addr: before, status: last.kind.status(), took_us: 0 });
        }
        let chosen = Chosen::begin(worker, upstream, index);
        match try_one(endpoint).await {
            Ok(made) => {
                let took = worker.clock.micros().saturating_sub(chosen.began);
                if let Some(stream) = &mut x.engine_mut().stream {
                    stream.connect_us = Some(took);
                }
                if let Some(health) = &upstream.health {
                    health.connected(index, took);
                }
                return Ok((made, chosen));
            }
            Err(fault) => {
                drop(chosen);
                last = fault;
                record_failure(upstream, index, fault, None, None);
            }
        }
        if retries == 0 || worker.clock.is_over(give_up) {
            return Err(last);
        }
        retries -= 1;
        upstream.note(&mut tried, index);
        worker.shard.upstream_retried();
    }
}

/// Connects to one of the upstream's servers.
pub(super) async fn open(
    worker: &Worker,
    waiter: &Waiter,
    endpoint: &Endpoint,
    tls: Option<&Secured>,
    timeout: Duration,
) -> Result<Io, Fault> {
    connect(worker, waiter, endpoint.addr.into(), tls, timeout).await.map(|(conn, _)| conn.io)
}
