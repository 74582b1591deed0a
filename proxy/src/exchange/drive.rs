//! hot path
//!
//! One exchange from the decoded head to the log phase.

use std::rc::Rc;
use std::sync::Arc;

use sdk::exchange::{Body, Source};
use sdk::{Chain, Client, Doubtful, Exchange, Phase, Reply};
use snapshot::router::Found;
use snapshot::{Plan, Snapshot};
use wire::h1::Refusal;
use wire::{Framing, Method};

use super::Scratch;
use super::answer;
use super::fault::{Fault, FaultKind, FaultRecord};
use super::forward::{Forward, Forwarded};
use super::io;
use super::phases::{self, Chains, Flow};
use super::upload;
use crate::down::Down;
use crate::handoff::{Admission, Handoff, HandoffRequest};
use crate::tunnel::Tunnel;
use crate::worker::Worker;

/// What becomes of the client's connection.
#[derive(Debug)]
pub(crate) enum After {
    /// It may carry the next request.
    Next,
    /// It ends.
    Close,
    /// It ends, but the client may still be sending: read a little so that it sees the answer.
    Linger,
    /// It ends, and the client must notice that the response is not whole.
    Abort,
    /// Both connections are a tunnel.
    Tunnel(Tunnel),
}

/// Serves the request whose head is in `scratch`.
pub(crate) async fn drive(
    worker: &Rc<Worker>,
    down: &mut Down,
    client: &Client,
    scratch: &mut Scratch,
    last_request: bool,
) -> After {
    let Scratch { messages, up_out, down_out, chunk } = scratch;
    let lease = worker.lease();
    let told = told_client(worker, client, &messages.request);
    let client = told.as_ref().unwrap_or(client);
    if messages.request.tells_of_others {
        forget_hearsay(worker, client, &mut messages.request);
    }
    let mut x = Exchange::new(messages, client, &lease.consumers, &**worker);
    x.timing.received = down.head_bytes;
    x.timing.connection_requests = down.requests;
    worker.shard.request_began();
    // The clock is read only if somebody will ask how long things took: the access log, stages of
    // the global rules, and where finding the route may wait for the body.
    let global = lease.global.as_deref();
    let access_log = worker.access_log.as_ref();
    let from_the_start =
        access_log.is_some() || Chains { global, plan: None }.has(Phase::Log) || lease.router.needs_body();
    let mut began = from_the_start.then(|| worker.clock.micros());

    let mut plan = None;
    let flow = prepare(worker, down, &lease, &mut x, &mut plan).await;
    let plan_chain = plan.and_then(|plan: &Plan| plan.chain.as_ref());
    let mut merged: Option<Arc<Chain>> = None;
    let mut chains = Chains { global, plan: plan_chain.map(|chain| &**chain) };
    let may_log = chains.has(Phase::Log) || !chains.are_none() && lease.consumers.bring(Phase::Log);
    if may_log && began.is_none() {
        began = Some(worker.clock.micros());
    }
    let flow = match flow {
        Flow::Go => before_upstream(worker, down, &mut x, chains, plan_chain, &mut merged).await,
        flow => flow,
    };
    if let Some(chain) = merged.as_deref() {
        chains.plan = Some(chain);
    }
    let flow = match (flow, plan) {
        (Flow::Go, Some(_)) => {
            match phases::run(worker, down, chains.global, Phase::BeforeProxy, &mut x).await {
                Flow::Go => phases::run(worker, down, chains.plan, Phase::BeforeProxy, &mut x).await,
                flow => flow,
            }
        }
        (Flow::Go, None) => Flow::Fault(Fault::gateway(FaultKind::NoRoute)),
        (flow, _) => flow,
    };

    // A client that wanted a tunnel may already speak another protocol.
    let keep_client =
        x.request().keep_alive && !last_request && !worker.is_draining() && x.method() != Method::Connect;
    let mut fault = None;
    let began = began.filter(|_| access_log.is_some() || chains.has(Phase::Log));
    if let Some(began) = began {
        // Where no stage ran and no body was waited for, nothing took time since.
        let at_once = chains.are_none() && !lease.router.needs_body();
        x.timing.asked_us = if at_once { began } else { worker.clock.micros() };
    }
    let mut after = match (flow, plan) {
        (Flow::Go, Some(plan)) => {
            let forward = Forward {
                worker,
                snapshot: &lease,
                plan,
                chains,
                up_out,
                down_out: &mut *down_out,
                chunk,
                keep_client,
            };
            match forward.run(down, &mut x).await {
                Ok(Forwarded::Done { keep_client: true }) => After::Next,
                Ok(Forwarded::Done { keep_client: false }) => After::Linger,
                Ok(Forwarded::Broken(broken)) => {
                    fault = Some(broken);
                    After::Abort
                }
                Ok(Forwarded::Switched { conn, bytes, idle_timeout }) => {
                    After::Tunnel(Tunnel { conn, bytes, idle_timeout })
                }
                Err(failed) => {
                    fault = Some(failed);
                    let reply = answer::of_fault(failed);
                    answer(worker, down, &mut x, chains, reply, Source::Gateway, keep_client, down_out).await
                }
            }
        }
        (Flow::Reply(reply), _) => {
            answer(worker, down, &mut x, chains, reply, Source::Plugin, keep_client, down_out).await
        }
        (Flow::Fault(failed), _) => {
            fault = Some(failed);
            // Who sends what servers read in different ways may mean the next request in two ways, too.
            let keep_client = keep_client && !matches!(failed.kind, FaultKind::BadRequest(_));
            let reply = answer::of_fault(failed);
            answer(worker, down, &mut x, chains, reply, Source::Gateway, keep_client, down_out).await
        }
        // Without a plan the flow is never `Go`: that became `NoRoute` above.
        (Flow::Go, None) => After::Close,
    };
    if let Some(fault) = fault {
        if fault.kind == FaultKind::ClientGone {
            // As nginx tells it: the answer's own status once a part of it was sent.
            if !matches!(after, After::Abort) {
                x.messages.response.status = 499;
                (x.timing.sent, x.timing.body_sent) = (0, 0);
            }
            after = After::Close;
        }
        tell(worker, &x, fault);
    }
    if let Some(began) = began {
        let ended = worker.clock.micros();
        x.timing.total_us = ended.saturating_sub(began) + down.head_took_ms * 1000;
        // What was read of a body without being sent on piece by piece.
        x.timing.received += (x.client_body_len() + down.body_at_hand().unwrap_or(0)) as u64;
        if x.upstream_addr.is_some() {
            x.timing.upstream_us = ended.saturating_sub(x.timing.asked_us);
        }
        chains.log(worker, &mut x);
        if let Some(log) = access_log {
            log.add(&x, worker.clock.unix_ms(ended));
        }
    }
    worker.shard.request_ended();
    if matches!(after, After::Next) && !down.finish_body() {
        after = After::Linger;
    }
    // The client said that this was its last request, and has sent no more than that: there is
    // nothing that the close could answer with a reset.
    if matches!(after, After::Linger) && !x.request().keep_alive && down.finish_body() && !down.has_more() {
        after = After::Close;
    }
    after
}

/// The client as a trusted peer tells of it.
#[inline]
fn told_client(worker: &Worker, client: &Client, head: &wire::RequestHead) -> Option<Client> {
    let real_ip = worker.settings.real_ip.as_ref()?;
    let mut values = head.fields.all(real_ip.header.as_bytes()).rev().peekable();
    values.peek()?;
    if !(real_ip.from)(client.peer.ip().to_canonical()) {
        return None;
    }
    // Several lines are one list (RFC 9110 section 5.3): the last of them is the nearest hop's.
    let mut found = None;
    for value in values {
        let Some(ip) = real_ip.read(value) else { break };
        found = Some(ip);
        if !real_ip.recursive || !(real_ip.from)(ip) {
            break;
        }
    }
    let mut told = client.clone();
    told.set_ip(found?);
    Some(told)
}

/// Takes out what a peer tells of those before it if it is not to be believed, before a route,
/// a stage or the upstream can take it for true (APISIX 3.18: `trusted_addresses`).
#[cold]
fn forget_hearsay(worker: &Worker, client: &Client, head: &mut wire::RequestHead) {
    use wire::Name;
    let trusted = worker.settings.trusted.as_ref().map(|trusted| trusted(client.peer.ip().to_canonical()));
    if trusted == Some(true) {
        return;
    }
    head.fields.retain(|id, _, _| match id {
        Name::Forwarded | Name::XForwardedHost | Name::XForwardedPort | Name::XForwardedProto => false,
        // Where nobody said who is to be believed, the list goes on, to be judged by the upstream.
        Name::XForwardedFor => trusted.is_none(),
        _ => true,
    });
}

/// Refusals, handed-over requests and the choice of the route.
async fn prepare<'s>(
    worker: &Rc<Worker>,
    down: &mut Down,
    snapshot: &'s Snapshot,
    x: &mut Exchange<'s>,
    plan: &mut Option<&'s Plan>,
) -> Flow {
    match x.request().framing {
        Framing::None | Framing::Length(0) => {}
        Framing::Length(length) if worker.settings.max_body > 0 && length > worker.settings.max_body => {
            return Flow::Fault(Fault::client(FaultKind::BodyTooLarge));
        }
        _ => x.body_state = Body::Streaming,
    }
    if matches!(x.method(), Method::Connect | Method::Trace) {
        return Flow::Fault(Fault::client(FaultKind::MethodNotAllowed));
    }
    if let Some(handoff) = &worker.settings.handoff
        && handoff.takes(x.path())
    {
        if x.request().doubtful.meets(Doubtful::REFUSED) {
            return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
        }
        return hand_over(worker, down, x, &**handoff).await;
    }
    if snapshot.router.normalize(x).is_err() {
        return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
    }
    let mut found = phases::guarded(worker, || snapshot.router.find(x));
    if let Ok(Found::NeedsBody) = found {
        if let Err(fault) = upload::buffer(worker, down, x, worker.settings.bounds.body).await {
            return Flow::Fault(fault);
        }
        found = phases::guarded(worker, || snapshot.router.find(x));
    }
    let found = match found {
        Ok(Found::Plan(plan)) => Some(&**plan),
        Ok(Found::Nothing | Found::NeedsBody) => None,
        Ok(Found::Refused(why)) => return Flow::Fault(Fault::client(FaultKind::Unjudged(why))),
        Err(fault) => return Flow::Fault(fault),
    };
    let doubtful = x.request().doubtful;
    if !doubtful.is_empty() && doubtful.meets(refused_in_path(snapshot, found)) {
        return Flow::Fault(Fault::client(FaultKind::BadRequest(Refusal::BadPath)));
    }
    *plan = found;
    Flow::Go
}

/// What a path may not hold on its way to this plan: the plan's own word goes before that of the
/// global rules.
#[cold]
fn refused_in_path(snapshot: &Snapshot, plan: Option<&Plan>) -> Doubtful {
    let chains = [plan.and_then(|plan| plan.chain.as_deref()), snapshot.global.as_deref()];
    chains.into_iter().flatten().find_map(Chain::refused_in_path).unwrap_or(Doubtful::REFUSED)
}

/// The phases up to `access`, in APISIX's order (3.17 and later): global rewrite, route rewrite
/// (which may find the consumer), the consumer's own rewrite, global access, access.
#[inline]
async fn before_upstream(
    worker: &Rc<Worker>,
    down: &mut Down,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    plan_chain: Option<&Arc<Chain>>,
    merged: &mut Option<Arc<Chain>>,
) -> Flow {
    if chains.are_none() {
        return Flow::Go;
    }
    for chain in [chains.global, chains.plan] {
        match phases::run(worker, down, chain, Phase::Rewrite, x).await {
            Flow::Go => {}
            flow => return flow,
        }
    }
    if let Some(brought) = x.consumer().and_then(|consumer| consumer.chain.clone()) {
        *merged = Some(worker.consumer_chains.merged(plan_chain, &brought));
        match phases::run(worker, down, Some(&*brought), Phase::Rewrite, x).await {
            Flow::Go => {}
            flow => return flow,
        }
    }
    for chain in [chains.global, merged.as_deref().or(chains.plan)] {
        match phases::run(worker, down, chain, Phase::Access, x).await {
            Flow::Go => {}
            flow => return flow,
        }
    }
    Flow::Go
}

/// Sends an answer of our own.
#[allow(clippy::too_many_arguments)]
async fn answer(
    worker: &Worker,
    down: &mut Down,
    x: &mut Exchange<'_>,
    chains: Chains<'_>,
    reply: Reply,
    source: Source,
    keep_client: bool,
    out: &mut Vec<u8>,
) -> After {
    let keep_client = keep_client && down.body_at_hand().is_some();
    out.clear();
    let body = answer::write_reply(worker, x, chains, reply, source, keep_client, out);
    x.timing.sent = (out.len() + body.len()) as u64;
    let (_, mut to) = down.stream.split();
    let timeout = worker.settings.send_timeout;
    let written = if body.is_empty() {
        io::write_all(worker, &down.up_waiter, &mut to, out, timeout).await
    } else {
        io::write_pieces(worker, &down.up_waiter, &mut to, [out, &body, b""], timeout).await
    };
    match written {
        Ok(()) if keep_client => After::Next,
        Ok(()) => After::Linger,
        Err(_) => After::Close,
    }
}

/// Gives a whole request to the control side and makes its answer a reply.
async fn hand_over(worker: &Worker, down: &mut Down, x: &mut Exchange<'_>, handoff: &dyn Handoff) -> Flow {
    let head = x.request();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let request = HandoffRequest {
        peer: x.client.peer.ip(),
        method: text(head.method_bytes()),
        target: text(head.target()),
        headers: head.fields.iter().map(|(name, value, _)| (text(name), value.to_vec())).collect(),
        body: bytes::Bytes::new(),
    };
    let reply = match handoff.admit(request).await {
        Some(Admission::Refused(reply)) => Some(reply),
        Some(Admission::Granted(mut request)) => {
            if let Err(fault) = upload::buffer(worker, down, x, handoff.max_body()).await {
                return Flow::Fault(fault);
            }
            if x.body_state == Body::TooLarge {
                return Flow::Fault(Fault::client(FaultKind::BodyTooLarge));
            }
            request.body = bytes::Bytes::copy_from_slice(x.body());
            handoff.call(request).await
        }
        None => None,
    };
    let Some(reply) = reply else {
        return Flow::Fault(Fault::gateway(FaultKind::Stopping));
    };
    for (name, value) in &reply.headers {
        // What cannot stand in a head is left out.
        let _ = x.set_response_header(name, value);
    }
    Flow::Reply(Reply { status: reply.status, headers: Vec::new(), body: reply.body })
}

/// Tells of a failed exchange, for the log.
#[cold]
pub(crate) fn tell(worker: &Worker, x: &Exchange<'_>, fault: Fault) {
    if fault.kind == FaultKind::NoRoute {
        return;
    }
    worker.shard.fault();
    (worker.settings.on_fault)(record(worker, x, fault));
}

/// What is told of an exchange.
#[cold]
pub(crate) fn record(worker: &Worker, x: &Exchange<'_>, fault: Fault) -> FaultRecord {
    let mut request = String::from_utf8_lossy(x.request().method_bytes()).into_owned();
    request.push(' ');
    request.extend(String::from_utf8_lossy(x.path()).chars().take(200));
    FaultRecord {
        fault,
        status: x.status(),
        limit: fault.kind.limit(&worker.settings),
        client: x.client.ip(),
        upstream: x.upstream_addr,
        route: x.matched.route.map(|route| route.id.clone()).unwrap_or_default(),
        request,
    }
}
