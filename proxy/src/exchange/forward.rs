//! hot path
//!
//! A request on its way to an upstream: choosing a server, connecting, sending,
//! and trying again where that is safe.

use std::net::SocketAddr;
use std::sync::Arc;

use sdk::exchange::{self, Body, Chunk};
use sdk::{Exchange, Reply, RequestFilter};
use snapshot::{Failure, PassHost, Plan, Snapshot, Upstream};
use wire::Framing;

use super::asks_for_tunnel;
use super::attempt::{Attempt, Outgoing};
use super::fault::{Blame, Fault, FaultKind};
use super::outbound;
use super::phases::{self, Chains};
use super::tries::{FailedTry, Tries};
use super::upload::{self, Held};
use crate::down::Downstream;
use crate::tunnel::Tunnel;
use crate::up::Size;
use crate::worker::Worker;

/// How forwarding ended, once something was sent to the client.
#[derive(Debug)]
pub(crate) enum Forwarded {
    Done,
    Broken(Fault),
    /// A filter has an answer of its own; nothing was sent yet.
    Instead(Reply),
    /// The client's connection and the server's are a tunnel now.
    Switched(Box<Tunnel>),
}

/// The parts of an exchange that its tries use.
pub(crate) struct Forward<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) plan: &'a Plan,
    pub(crate) chains: Chains<'a>,
    /// Bytes being written to the server.
    pub(crate) up_out: &'a mut Vec<u8>,
    pub(crate) chunk: &'a mut Chunk,
}

/// A server that counts as in use until this is dropped.
struct Scored<'a> {
    worker: &'a Worker,
    upstream: &'a Arc<Upstream>,
    index: usize,
    addr: SocketAddr,
    began: u64,
    ok: bool,
}

impl<'a> Scored<'a> {
    fn begin(
        worker: &'a Worker,
        upstream: &'a Arc<Upstream>,
        index: usize,
        addr: SocketAddr,
        began: u64,
    ) -> Scored<'a> {
        worker.with_score(upstream, |state| state.begin(index, addr));
        Scored { worker, upstream, index, addr, began, ok: false }
    }

    fn end(mut self, ok: bool) {
        self.ok = ok;
    }
}

impl Drop for Scored<'_> {
    fn drop(&mut self) {
        let micros = self.worker.clock.micros().saturating_sub(self.began);
        self.worker.with_score(self.upstream, |state| state.done(self.index, self.addr, micros, self.ok));
    }
}

impl Forward<'_> {
    /// Tries servers until one answers. An error means that nothing was sent to the client.
    pub(crate) async fn run(
        mut self,
        down: &mut Downstream<'_>,
        x: &mut Exchange<'_>,
    ) -> Result<Forwarded, Fault> {
        let worker = self.worker;
        if !self.plan.websocket && asks_for_tunnel(x.request()) {
            return Err(Fault::client(FaultKind::NoWebsocket));
        }
        if x.engine().forward.lacks_text {
            return Err(Fault::gateway(FaultKind::LacksText));
        }
        let made = snapshot::made(x);
        let upstream = usable_upstream_of(self.snapshot, self.plan, made.as_ref(), x)?;
        let mut filters = std::mem::take(&mut x.engine_mut().request_filters);
        if x.body_state() == Body::None {
            filters.clear();
        }
        if !filters.is_empty() && x.body_state() == Body::Whole {
            // Filtered once, as one piece, it has a length, and can be sent to several servers.
            let filtered = upload::filter_held(worker, x, &mut filters);
            phases::unless_gone(worker, down, filtered).await??;
            filters.clear();
        }
        let chunks = !upstream.scheme.is_http2();
        let mut outgoing = prepare(worker, down, x, filters, chunks).await?;
        let mut tries = Tries::new(worker, upstream, x)?;
        // Of the try before: why it failed, and its place of `limits.connections`.
        let (mut before, mut kept) = (None, None);
        let names_server =
            self.chains.will_log(x) || worker.access_log.as_ref().is_some_and(|log| log.names_server);
        loop {
            let (index, fresh) = tries.next(worker, x)?;
            let endpoint = &upstream.endpoints[index];
            if let Some(before) = x.engine_mut().upstream_addr.replace(endpoint.addr) {
                record_try(worker, x, before);
            }
            if names_server {
                x.engine_mut().forward.server = Some(x.intern(endpoint.authority.as_bytes()));
            }
            x.engine_mut().forward.server_host = match &upstream.pass_host {
                PassHost::Pass => None,
                PassHost::Node => Some(x.intern(endpoint.authority.as_bytes())),
                PassHost::Rewrite(host) => Some(x.intern(host.as_bytes())),
            };
            if x.engine().forward.lacks_text {
                return Err(Fault::gateway(FaultKind::LacksText));
            }
            let patience = self.plan.timeouts(upstream).connect;
            let place = match kept.take() {
                Some(place) => Some(place),
                None => {
                    let found = tries.connection(worker, down, patience).await;
                    found.map_err(|fault| match (fault.kind, before) {
                        // Why the try before failed says more than that there is no place for another.
                        (FaultKind::AtLimit(_), Some(before)) => before,
                        _ => fault,
                    })?
                }
            };
            let per_try = tries.per_try();
            let attempt = Attempt {
                upstream,
                endpoint,
                fresh,
                per_try,
                head_by: per_try.map_or(u64::MAX, |bound| worker.clock.after(bound)),
                turns_away: tries.turns_away(worker, index, outbound::method(x).is_idempotent()),
                cookie: tries.cookie(index),
                second: upstream.second(index),
            };
            let scores = upstream.keeps_score();
            let measures = scores || upstream.needs_response_times();
            let began = if measures { worker.clock.micros() } else { 0 };
            let scored = scores.then(|| Scored::begin(worker, upstream, index, endpoint.addr, began));
            let result = attempt.run(&mut self, down, x, &mut outgoing).await;
            if let Some(scored) = scored {
                scored.end(result.is_ok());
            }
            let took = x.timing().answered_us.checked_sub(began);
            let failed = match result {
                Ok(forwarded) => {
                    tries.answered(index, x.upstream_status(), took);
                    return Ok(forwarded);
                }
                Err(failed) => FailedTry { took, ..failed },
            };
            if failed.fault.blame == Blame::Upstream {
                x.engine_mut().upstream_status = failed.fault.kind.status();
            }
            let idempotent = outbound::method(x).is_idempotent();
            before = Some(failed.fault);
            kept = tries.again(worker, down, index, failed, idempotent, place).await?;
            worker.shard.upstream_retried();
        }
    }
}

/// The status of the answer to a failed request: that of the fault, or `sluice.failure_status` of the upstream.
#[cold]
pub(super) fn failure_status(snapshot: &Snapshot, plan: &Plan, x: &Exchange<'_>, fault: Fault) -> u16 {
    let status = fault.kind.status();
    if !fault.kind.is_without_answer() {
        return status;
    }
    let made = snapshot::made(x);
    let upstream = upstream_of(snapshot, plan, made.as_ref(), x);
    upstream.ok().and_then(|upstream| upstream.failure_status).unwrap_or(status)
}

/// The upstream of the plan, or the one that a plugin chose or made.
#[inline]
fn upstream_of<'s>(
    snapshot: &'s Snapshot,
    plan: &Plan,
    made: Option<&'s Arc<Upstream>>,
    x: &Exchange<'_>,
) -> Result<&'s Arc<Upstream>, Failure> {
    match (made, x.engine().forward.upstream) {
        (Some(made), _) => Ok(made),
        (None, None) => snapshot.upstream(plan),
        (None, Some(chosen)) => snapshot.chosen(chosen),
    }
}

/// As [`upstream_of`], if requests can be sent to it.
#[inline]
fn usable_upstream_of<'s>(
    snapshot: &'s Snapshot,
    plan: &Plan,
    made: Option<&'s Arc<Upstream>>,
    x: &mut Exchange<'_>,
) -> Result<&'s Arc<Upstream>, Fault> {
    let upstream = upstream_of(snapshot, plan, made, x);
    let upstream = upstream.map_err(|failure| Fault::gateway(FaultKind::Plan(failure)))?;
    if upstream.endpoints.is_empty() {
        return Err(Fault::gateway(FaultKind::NoNode));
    }
    if let Some(why) = upstream.tls.as_ref().and_then(|tls| tls.lacks) {
        return Err(Fault::gateway(FaultKind::TlsFailed(why)));
    }
    x.engine_mut().forward.scheme = upstream.scheme.as_str();
    if !upstream.scheme.is_http() {
        return Err(Fault::gateway(FaultKind::UnsupportedScheme));
    }
    Ok(upstream)
}

/// Records a failed try of the server at `addr`.
#[cold]
fn record_try(worker: &Worker, x: &mut Exchange<'_>, addr: SocketAddr) {
    let took_us = match x.timing().asked_us {
        0 => 0,
        asked => {
            let before: u64 = x.tried().iter().map(|tried| tried.took_us).sum();
            worker.clock.micros().saturating_sub(asked + before)
        }
    };
    let status = std::mem::take(&mut x.engine_mut().upstream_status);
    x.engine_mut().tried.push(exchange::Try { addr, status, took_us });
}

/// Asks for the body, and takes what is here of it. So what is malformed is refused before any upstream
/// hears of the request, and what is whole goes out with its head in one write and can be sent again.
#[inline]
async fn prepare(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    filters: Vec<Box<dyn RequestFilter>>,
    chunks: bool,
) -> Result<Outgoing, Fault> {
    let (mut body, mut response) = down.split(worker);
    body.limit(worker, x);
    response.go_on().await?;
    let withheld = x.engine_mut().messages.withheld();
    let trailers = x.request_trailers();
    let held = &x.engine().messages.body;
    if x.body_state() == Body::Whole {
        let size = if trailers.is_empty() { Size::Exactly(held.len() as u64) } else { Size::Open };
        let trailers = (!trailers.is_empty()).then(|| trailers.clone());
        return Ok(Outgoing {
            size,
            framed: false,
            held: Held { bytes: Some(held.clone()), whole: true, trailers, withheld },
            filters,
            lost: false,
        });
    }
    let filtered = !filters.is_empty();
    let size = match x.request().framing {
        Framing::None => Size::None,
        Framing::Length(length) if trailers.is_empty() && !filtered => Size::Exactly(length),
        _ => Size::Open,
    };
    // The beginning of a longer body was taken out of its coding, so the rest is, too.
    let bytes = (!held.is_empty()).then(|| held.clone());
    let trailers = (!trailers.is_empty()).then(|| trailers.clone());
    // Nor does anything go out as it came whose beginning was looked at, though none of it is held.
    let streams = x.body_state() == Body::Streaming;
    let framed = chunks && streams && body.is_chunked() && bytes.is_none() && trailers.is_none() && !filtered;
    if bytes.is_none() {
        body.take(framed)?;
    }
    let held = Held { bytes, whole: false, trailers, withheld };
    Ok(Outgoing { size, framed, held, filters, lost: false })
}
