//! hot path
//!
//! One exchange from the decoded head to the log phase.

use std::rc::Rc;
use std::sync::Arc;

use sdk::exchange::{Body, Source};
use sdk::meters::Shard;
use sdk::{Chain, Client, Doubtful, Exchange, Phase, Reply};
use snapshot::router::RouteLookup;
use snapshot::{Plan, Snapshot};
use wire::h1::Refusal;
use wire::{Framing, Method};

use super::answer;
use super::counts::count;
use super::fault::{Blame, Fault, FaultKind};
use super::fault_log::report;
use super::forward::{Forward, Forwarded, failure_status};
use super::handover::hand_over;
use super::live;
use super::max_body::MaxBody;
use super::outcome::Outcome;
use super::phases::{self, Chains, Flow};
use super::proven;
use super::stopwatch::Stopwatch;
use super::trusted;
use super::upload;
use super::{Scratch, asks_for_tunnel};
use crate::consumer_chains::ConsumerChains;
use crate::down::Downstream;
use crate::worker::Worker;

/// Serves the request whose head is in `scratch`.
pub(crate) async fn drive(
    worker: &Rc<Worker>,
    down: &mut Downstream<'_>,
    client: &Client,
    scratch: &mut Scratch,
) -> Outcome {
    let Scratch { messages, up_out, chunk, .. } = scratch;
    let lease = worker.lease();
    let trusted = trusted::client(&worker.settings, client, &messages.request);
    let client = trusted.as_ref().unwrap_or(client);
    let mut hops = 0;
    if messages.request.has_forwarded {
        hops = trusted::hops(&messages.request);
        trusted::remove_untrusted(&worker.settings, client, &mut messages.request);
    }
    let explains = match worker.settings.explain.as_deref() {
        Some(explain) => live::take(explain, &mut messages.request),
        None => false,
    };
    let arrival = down.arrival();
    let mut x = Exchange::new(messages, client, &lease.consumers, &**worker);
    x.engine_mut().forward.hops = hops;
    x.engine_mut().series_memo = Some(&lease.series);
    let timing = &mut x.engine_mut().timing;
    timing.received = arrival.head_bytes;
    timing.connection_requests = arrival.requests;
    let counted = Counted::new(&worker.shard);
    let global = lease.global.as_deref();
    let mut stopwatch = Stopwatch::start(worker, &lease, global);

    let mut plan = None;
    // Changed where it lies: an answer of a plugin is large to move.
    let mut flow = prepare(worker, down, &lease, &mut x, &mut plan).await;
    if explains {
        // It asks the conditions of routes once more. A panic there costs the account, not the request.
        let _ = phases::guarded(worker, || live::begin(&mut x, &lease, plan));
    }
    let plan_chain = plan.and_then(|plan: &Plan| plan.chain.as_ref());
    let mut merged: Option<Arc<Chain>> = None;
    let mut chains = Chains { global, plan: plan_chain.map(|chain| &**chain) };
    let may_log = chains.has(Phase::Log) || !chains.are_none() && lease.consumers.bring(Phase::Log);
    if may_log {
        stopwatch.expect_log();
    }
    if !chains.are_none()
        && let Flow::Go = flow
    {
        stopwatch.share(&x);
        let consumer_chains = (plan_chain, &lease.consumer_chains);
        if let Some(end) = before_upstream(worker, down, &mut x, chains, consumer_chains, &mut merged).await {
            flow = end;
        }
    }
    if let Some(chain) = merged.as_deref() {
        chains.plan = Some(chain);
    }
    // Behind the plugins, which may set the limit.
    if let (Flow::Go, Framing::Length(length)) = (&flow, x.request().framing)
        && let Err(fault) = MaxBody::of(&x, worker.settings.limits.body).check(length)
    {
        flow = Flow::Fault(fault);
    }
    if plan.is_none()
        && let Flow::Go = flow
    {
        flow = Flow::Fault(Fault::gateway(FaultKind::NoRoute));
    }
    if let Flow::Go = flow
        && let Some(halt) = chains.run(worker, Phase::BeforeProxy, &mut x)
        && let Some(end) = halt.resolve(worker, down, &mut x).await
    {
        flow = end;
    }

    if let Flow::Go = flow
        && x.engine().reply_at_end.is_some()
    {
        flow = match phases::guarded(worker, || x.take_reply_at_end()) {
            Ok(reply) => reply.map_or(Flow::Go, Flow::Reply),
            Err(fault) => Flow::Fault(fault),
        };
    }

    let mut fault = None;
    stopwatch.forwards(&mut x, chains);
    let mut outcome = match (flow, plan) {
        (Flow::Go, Some(plan)) => {
            let forward = Forward { worker, snapshot: &lease, plan, chains, up_out, chunk };
            match forward.run(down, &mut x).await {
                Ok(Forwarded::Done) => Outcome::Answered,
                Ok(Forwarded::Broken(broken)) => {
                    fault = Some(broken);
                    Outcome::Broken
                }
                Ok(Forwarded::Instead(reply)) => {
                    answer::send(worker, down, &mut x, chains, reply, Source::Plugin).await
                }
                Ok(Forwarded::Switched(mut tunnel)) => {
                    tunnel.holds = std::mem::take(&mut x.engine_mut().messages.holds);
                    Outcome::Tunnel(tunnel)
                }
                Err(failed) => {
                    fault = Some(failed);
                    let status = failure_status(&lease, plan, &x, failed);
                    let reply = answer::of_fault_as(failed, status);
                    let reply = filtered(worker, &mut x, reply, failed.kind.is_exit());
                    answer::send(worker, down, &mut x, chains, reply, Source::Gateway).await
                }
            }
        }
        (Flow::Reply(reply), _) => {
            let reply = filtered(worker, &mut x, reply, true);
            answer::send(worker, down, &mut x, chains, reply, Source::Plugin).await
        }
        (Flow::Fault(failed), _) => {
            fault = Some(failed);
            match failed.kind {
                // After a request that servers may read in different ways, the next one may be ambiguous, too.
                FaultKind::BadRequest(_) => down.distrust(),
                // Only another handshake changes that.
                FaultKind::RulesChanged => down.end_gently(),
                _ => {}
            }
            let reply = filtered(worker, &mut x, answer::of_fault(failed), failed.kind.is_exit());
            answer::send(worker, down, &mut x, chains, reply, Source::Gateway).await
        }
        // Without a plan the flow is never `Go`: that became `NoRoute` above.
        (Flow::Go, None) => Outcome::Gone,
    };
    // The client has its answer and may ask again at once: it must not be counted twice.
    x.engine_mut().messages.holds.clear();
    if let Some(fault) = fault {
        outcome = settle(worker, down, &mut x, fault, outcome);
    }
    let took = stopwatch.stop(&mut x, chains, arrival.head_took_ms, down.body_received(), |x| {
        matches!(outcome, Outcome::Broken) || has_failed(x, fault)
    });
    if !client.is_subrequest() {
        let received = arrival.head_bytes + down.body_received();
        count(worker, &lease, plan, &x, took, received);
    }
    drop(counted);
    outcome
}

/// Passes a reply through the filter that a plugin has set ([`Exchange::filter_replies`]).
#[inline]
fn filtered(worker: &Worker, x: &mut Exchange<'_>, reply: Reply, is_exit: bool) -> Reply {
    match x.engine_mut().reply_filter.take().filter(|_| is_exit && !reply.is_final) {
        None => reply,
        Some(filter) => phases::guarded(worker, || filter(x, reply)).unwrap_or_else(answer::of_fault),
    }
}

/// Ends an exchange that failed: its reason is logged, and its connection with it where that is due.
#[cold]
fn settle(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    fault: Fault,
    outcome: Outcome,
) -> Outcome {
    if matches!(fault.kind, FaultKind::ClientSlow | FaultKind::ClientStalled) {
        down.end_if_last();
    }
    let gone = fault.kind == FaultKind::ClientGone;
    let engine = x.engine_mut();
    // As in nginx, the response's own status is logged once a part of it was sent.
    if gone && !matches!(outcome, Outcome::Broken) {
        engine.messages.response.status = 499;
        (engine.timing.sent, engine.timing.body_sent) = (0, 0);
    }
    engine.reason = fault.kind.words();
    report(worker, x, fault);
    if gone { Outcome::Gone } else { outcome }
}

/// Whether the response counts against a change that waits to be confirmed. One that any client can cause does not.
fn has_failed(x: &Exchange<'_>, fault: Option<Fault>) -> bool {
    let is_of_client = match fault {
        Some(fault) => fault.blame == Blame::Client,
        None => x.source() == Source::Gateway && asks_for_tunnel(x.request()),
    };
    // 508 of the upstream, too: clients choose where the hops begin to count.
    x.status() >= 500 && x.status() != 508 && !is_of_client
}

/// Counts a request until it is over, however that comes about.
struct Counted<'a>(&'a Shard);

impl Counted<'_> {
    #[inline]
    fn new(shard: &Shard) -> Counted<'_> {
        shard.request_began();
        Counted(shard)
    }
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.request_ended();
    }
}

/// Refusals, handed-over requests and the choice of the route.
async fn prepare<'s>(
    worker: &Rc<Worker>,
    down: &mut Downstream<'_>,
    snapshot: &'s Snapshot,
    x: &mut Exchange<'s>,
    plan: &mut Option<&'s Plan>,
) -> Flow {
    match x.request().framing {
        Framing::None | Framing::Length(0) => {}
        _ => x.engine_mut().body_state = Body::Streaming,
    }
    if matches!(x.method(), Method::Connect | Method::Trace) {
        return Flow::Fault(Fault::client(FaultKind::MethodNotAllowed));
    }
    // A plugin's own requests never reach the control side: who sends them is not who wrote them.
    let handoff = worker.settings.handoff.as_deref();
    let handoff = handoff.filter(|handoff| !x.client().is_subrequest() && handoff.takes(x.path()));
    // First, so that every rule about paths judges the same path.
    if handoff.is_none() && snapshot.router.normalize(x).is_err() {
        return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
    }
    if let Some(session) = &x.client().session
        && let Err(fault) = proven::check(snapshot, session, x.request(), x.searches())
    {
        return Flow::Fault(fault);
    }
    if let Some(handoff) = handoff {
        if x.request().doubtful.meets(Doubtful::REFUSED) {
            return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
        }
        return hand_over(worker, down, x, handoff).await;
    }
    let mut found = phases::guarded(worker, || snapshot.router.find(x));
    if let Ok(RouteLookup::NeedsBody) = found {
        if let Err(fault) = upload::buffer(worker, down, x, worker.settings.bounds.body).await {
            return Flow::Fault(fault);
        }
        found = phases::guarded(worker, || snapshot.router.find(x));
    }
    let found = match found {
        Ok(RouteLookup::Plan(plan)) => Some(&**plan),
        Ok(RouteLookup::Nothing | RouteLookup::NeedsBody) => None,
        Ok(RouteLookup::Refused(why)) => return Flow::Fault(Fault::client(FaultKind::Undecidable(why))),
        Err(fault) => return Flow::Fault(fault),
    };
    let doubtful = x.request().doubtful;
    if !doubtful.is_empty() && doubtful.meets(refused_in_path(snapshot, found)) {
        return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
    }
    *plan = found;
    // Behind the choice of the route, so that the log names the one that leads back here.
    if x.engine().forward.hops > worker.settings.limits.hops {
        x.engine_mut().forward.is_loop = true;
        return Flow::Fault(Fault::client(FaultKind::LoopDetected));
    }
    Flow::Go
}

/// Returns which doubtful paths this plan refuses: its own setting goes before that of the global
/// rules.
#[cold]
fn refused_in_path(snapshot: &Snapshot, plan: Option<&Plan>) -> Doubtful {
    let chains = [plan.and_then(|plan| plan.chain.as_deref()), snapshot.global.as_deref()];
    chains.into_iter().flatten().find_map(Chain::refused_in_path).unwrap_or(Doubtful::REFUSED)
}

/// The phases up to `access`, in APISIX's order (3.17 and later): global rewrite, route rewrite
/// (which may find the consumer), the consumer's own rewrite, global access, access. Returns the
/// end of the exchange, if it ends here.
#[inline]
async fn before_upstream(
    worker: &Rc<Worker>,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    mut chains: Chains<'_>,
    (plan_chain, consumer_chains): (Option<&Arc<Chain>>, &ConsumerChains),
    merged: &mut Option<Arc<Chain>>,
) -> Option<Flow> {
    if let Some(halt) = chains.run(worker, Phase::Rewrite, x)
        && let Some(end) = halt.resolve(worker, down, x).await
    {
        return Some(end);
    }
    if let Some(brought) = x.consumer().and_then(|consumer| consumer.chain.clone()) {
        *merged = Some(consumer_chains.merged(plan_chain, &brought));
        let own = Chains { global: None, plan: Some(&*brought) };
        if let Some(halt) = own.run(worker, Phase::Rewrite, x)
            && let Some(end) = halt.resolve(worker, down, x).await
        {
            return Some(end);
        }
        chains.plan = merged.as_deref();
    }
    match chains.run(worker, Phase::Access, x) {
        Some(halt) => halt.resolve(worker, down, x).await,
        None => None,
    }
}
