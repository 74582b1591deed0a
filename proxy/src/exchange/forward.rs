//! hot path
//!
//! A request on its way to an upstream: choosing a server, connecting, sending,
//! and trying again where that is safe.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sdk::exchange::{self, Body, Chunk};
use sdk::{Exchange, Phase, Reply, RequestFilter};
use snapshot::{Endpoint, PassHost, Plan, Snapshot, Upstream};
use wire::{Framing, Name, Version};

use super::fault::{Blame, Fault, FaultKind};
use super::outbound::{self, Outbound};
use super::phases::{self, Chains};
use super::receive::{Delivery, Received, TurnsAway};
use super::retry::Try;
use super::tries::Tries;
use super::upload::{self, Held, Upload, UploadState};
use crate::down::Downstream;
use crate::tunnel::{Switched, Tunnel};
use crate::up::connect::{Place, Secured, connect};
use crate::up::h1::Wish;
use crate::up::links::Target;
use crate::up::pool::Peer;
use crate::up::tls::server_name;
use crate::up::{self, Head, Size};
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

/// What one exchange brings to its tries.
pub(crate) struct Forward<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) plan: &'a Plan,
    pub(crate) chains: Chains<'a>,
    /// What is being written to the server.
    pub(crate) up_out: &'a mut Vec<u8>,
    pub(crate) chunk: &'a mut Chunk,
}

/// A try that came to nothing.
pub(super) struct FailedTry {
    pub(super) fault: Fault,
    pub(super) state: Try,
    /// Microseconds until its answer came, if one did and somebody wants to know.
    pub(super) took: Option<u64>,
}

/// What is particular to one try.
#[derive(Clone, Copy)]
struct Once<'u> {
    /// It must be on a new connection.
    fresh: bool,
    /// The bound of this try, until its response has begun.
    per_try: Option<Duration>,
    /// Answers that another try follows.
    turns_away: Option<TurnsAway<'u>>,
    /// What the client is given to come back to this server.
    cookie: Option<&'u [u8]>,
    /// Another address of the server.
    second: Option<SocketAddr>,
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

/// How the request's body goes out, with every try alike.
struct Outgoing {
    size: Size,
    /// In the chunks in which it comes.
    framed: bool,
    held: Held,
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
        let upstream = match x.engine().forward.upstream {
            None => self.snapshot.upstream(self.plan),
            Some(chosen) => self.snapshot.chosen(chosen),
        };
        let upstream = match upstream {
            Ok(upstream) => upstream,
            Err(failure) => return Err(Fault::gateway(FaultKind::Plan(failure))),
        };
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
        let outgoing = prepare(worker, down, x, !filters.is_empty(), chunks).await?;
        let mut body_lost = false;
        let mut tries = Tries::new(worker, upstream, x)?;
        // Of the try before: why it failed, and its place of `limits.connections`.
        let (mut before, mut kept) = (None, None);
        let names_server =
            self.chains.has(Phase::Log) || worker.access_log.as_ref().is_some_and(|log| log.names_server);
        loop {
            let (index, fresh) = tries.next(worker, x)?;
            let endpoint = &upstream.endpoints[index];
            if let Some(before) = x.engine_mut().upstream_addr.replace(endpoint.addr) {
                let took_us = match x.timing().asked_us {
                    0 => 0,
                    asked => {
                        let before: u64 = x.tried().iter().map(|tried| tried.took_us).sum();
                        worker.clock.micros().saturating_sub(asked + before)
                    }
                };
                let status = std::mem::take(&mut x.engine_mut().upstream_status);
                x.engine_mut().tried.push(exchange::Try { addr: before, status, took_us });
            }
            if names_server {
                x.engine_mut().forward.server = Some(x.intern(endpoint.authority.as_bytes()));
            }
            x.engine_mut().forward.server_host = match &upstream.pass_host {
                PassHost::Pass => None,
                PassHost::Node => Some(x.intern(endpoint.authority.as_bytes())),
                PassHost::Rewrite(host) => Some(x.intern(host.as_bytes())),
            };
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
            let once = Once {
                fresh,
                per_try: tries.per_try(),
                turns_away: tries.turns_away(worker, index, outbound::method(x).is_idempotent()),
                cookie: tries.cookie(index),
                second: upstream.second(index),
            };
            let scores = upstream.keeps_score();
            let measures = scores || upstream.takes_times();
            let began = if measures { worker.clock.micros() } else { 0 };
            let scored = scores.then(|| Scored::begin(worker, upstream, index, endpoint.addr, began));
            let result = self
                .attempt(down, x, upstream, endpoint, &outgoing, &mut filters, once, &mut body_lost)
                .await;
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

    /// One try with one server.
    #[allow(clippy::too_many_arguments)]
    async fn attempt(
        &mut self,
        down: &mut Downstream<'_>,
        x: &mut Exchange<'_>,
        upstream: &Arc<Upstream>,
        endpoint: &Endpoint,
        outgoing: &Outgoing,
        filters: &mut [Box<dyn RequestFilter>],
        once: Once<'_>,
        body_lost: &mut bool,
    ) -> Result<Forwarded, FailedTry> {
        let worker = self.worker;
        let timeouts = self.plan.timeouts(upstream);
        let mut state = Try { reused: false, fresh: once.fresh, sent: false, body_lost: *body_lost };
        let failed = |fault, state| FailedTry { fault, state, took: None };

        let connect_timeout = once.per_try.map_or(timeouts.connect, |bound| bound.min(timeouts.connect));
        let head_by = once.per_try.map_or(u64::MAX, |bound| worker.clock.after(bound));
        let (mut body, mut response) = down.split(worker);
        let secured: Option<Secured> = upstream.tls.as_ref().map(|tls| {
            let outbound = Outbound { x, upstream, endpoint };
            Secured { tls: tls.clone(), name: server_name(outbound.authority(), endpoint.addr), h2: false }
        });
        let mut peer = match &secured {
            None => Peer::plain(endpoint.addr),
            Some(Secured { tls, name, .. }) => worker.pools.over_tls(endpoint.addr, tls, name),
        };
        let place = Place { addr: endpoint.addr, second: once.second };
        let careful = !outbound::method(x).is_idempotent();
        let now = worker.clock.coarse_ms();
        let http2 = upstream.scheme.is_http2();
        let idle = |peer| if once.fresh || http2 { None } else { worker.pools.take(peer, now, careful) };
        let mut pooled = idle(peer);
        // A server that answers on its second address alone has its connections there.
        if let (None, Some(second)) = (&pooled, once.second) {
            pooled = idle(peer.at(second));
            if pooled.is_some() {
                peer = peer.at(second);
                x.engine_mut().upstream_addr = Some(second);
            }
        }
        let found = match (http2, pooled) {
            (true, _) => {
                let target = Target {
                    peer: peer.with_h2(),
                    place,
                    secured: secured.map(|secured| Secured { h2: true, ..secured }),
                    connect_timeout,
                    send_timeout: timeouts.send,
                    keepalive: upstream.keepalive,
                };
                // Boxed, as it is larger than what HTTP/1 needs.
                let place = Box::pin(worker.links.place(worker, body.waiter(), target, once.fresh));
                let grpc = upstream.scheme.is_grpc();
                place.await.map(|place| up::Upstream::H2(Box::new(up::h2::Stream::new(place, grpc))))
            }
            (false, Some(conn)) => Ok(up::Upstream::H1(conn)),
            (false, None) => {
                let connecting = connect(worker, body.waiter(), place, secured.as_ref(), connect_timeout);
                connecting.await.map(|(conn, addr)| {
                    if addr != place.addr {
                        peer = peer.at(addr);
                        x.engine_mut().upstream_addr = Some(addr);
                    }
                    up::Upstream::H1(conn)
                })
            }
        };
        let mut conn = match found {
            Ok(conn) => conn,
            Err(fault) => return Err(failed(fault, state)),
        };
        state.reused = conn.is_reused();

        let websocket = self.plan.websocket && asks_for_websocket(x.request());
        if let (true, up::Upstream::H2(stream)) = (websocket, &conn)
            && !stream.takes_tunnels(body.waiter(), worker.clock.after(connect_timeout)).await
        {
            return Err(failed(Fault::upstream(FaultKind::NoTunnels), state));
        }
        let wish = if websocket { Wish::Websocket } else { Wish::Keep };
        let waiters = [body.waiter(), response.waiter()];
        let (mut to, from) = conn.begin(worker, waiters, self.up_out, timeouts.send);
        if to.head(&Outbound { x, upstream, endpoint }, outgoing.size, wish).is_err() {
            return Err(failed(Fault::gateway(FaultKind::BrokenStage), state));
        }
        let sent_method = outbound::method(x);
        let upload = UploadState::default();
        let result = {
            let held = &outgoing.held;
            let mut sender =
                Upload { worker, body: &mut body, state: &upload, framed: outgoing.framed, held, filters };
            let mut sending = pin!(sender.run(&mut to));
            let mut delivery = Delivery {
                worker,
                from,
                to: &mut response,
                x: &mut *x,
                chains: self.chains,
                state: &upload,
                chunk: &mut *self.chunk,
                read_timeout: timeouts.read,
                head_by,
                turns_away: once.turns_away,
                cookie: once.cookie,
                measures: upstream.takes_times(),
                sent_method,
                reused: state.reused,
                websocket,
            };
            let mut receiving = pin!(delivery.run());
            poll_fn(|cx| {
                // The response first: it is what most wake-ups are about. What lies there before the
                // request was sent shows that the connection is not to be used.
                if let Poll::Ready(received) = receiving.as_mut().poll(cx) {
                    return Poll::Ready(received);
                }
                sending.as_mut().poll(cx).map(Err)
            })
            .await
        };
        *body_lost |= upload.lost.get();
        match result {
            // Of the response, or of an interim one, some is on its way: no other can be told from it.
            Err(fault) if response.has_begun() => Ok(Forwarded::Broken(fault)),
            Ok(Received::Done { keep_upstream }) => {
                if keep_upstream && let up::Upstream::H1(conn) = conn {
                    worker.pools.give(peer, conn, &upstream.keepalive, worker.clock.coarse_ms());
                }
                Ok(Forwarded::Done)
            }
            Ok(Received::Broken(fault)) => Ok(Forwarded::Broken(fault)),
            Ok(Received::Instead(reply)) => Ok(Forwarded::Instead(reply)),
            Ok(Received::Switched(bytes)) => {
                let conn = match conn {
                    up::Upstream::H1(conn) => Some(Switched::H1(conn)),
                    up::Upstream::H2(stream) => stream.into_switched().map(Box::new).map(Switched::H2),
                };
                let Some(conn) = conn else {
                    return Ok(Forwarded::Broken(Fault::upstream(FaultKind::UnaskedInterim)));
                };
                let idle_timeout = timeouts.read;
                let tunnel = Tunnel { conn, bytes, idle_timeout, holds: Vec::new() };
                Ok(Forwarded::Switched(Box::new(tunnel)))
            }
            Err(mut fault) => {
                if fault.kind == FaultKind::ClosedEarly
                    && !state.reused
                    && let Some(why) = conn.refusal()
                {
                    fault.kind = FaultKind::TlsFailed(why);
                }
                state.body_lost = *body_lost;
                state.sent = upload.sent.get();
                Err(failed(fault, state))
            }
        }
    }
}

/// Asks for the body, and takes what is here of it. So what is malformed is refused before any upstream
/// hears of the request, and what is whole goes out with its head in one write and can be sent again.
#[inline]
async fn prepare(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    filtered: bool,
    chunks: bool,
) -> Result<Outgoing, Fault> {
    let (mut body, mut response) = down.split(worker);
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
        });
    }
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
    Ok(Outgoing { size, framed, held: Held { bytes, whole: false, trailers, withheld } })
}

/// Whether the client wants a tunnel for WebSocket (RFC 6455 section 4.1). No other protocol is
/// switched to: what follows an upgrade to HTTP/2 would be requests that no route has seen. Nor
/// is there a switch behind a body, which the upstream might take for the first bytes of the tunnel,
/// or for a request.
#[inline]
fn asks_for_websocket(head: &wire::RequestHead) -> bool {
    head.upgrade
        && matches!(head.framing, Framing::None | Framing::Length(0))
        && head.fields.get(Name::Upgrade).is_some_and(|value| value.eq_ignore_ascii_case(b"websocket"))
}

/// Whether the client asks for its stream to become a tunnel (RFC 8441, RFC 9220). It takes every answer of success for
/// one, so none may be given that is not.
#[inline]
pub(super) fn asks_for_tunnel(head: &wire::RequestHead) -> bool {
    head.upgrade && head.version >= Version::Http2
}
