//! hot path
//!
//! One try with one server: a connection to it, the exchange over it, and its end.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sdk::{Exchange, RequestFilter};
use snapshot::{Endpoint, Upstream};
use wire::{Framing, Name};

use super::fault::{Fault, FaultKind};
use super::fault_log;
use super::forward::{Forward, Forwarded};
use super::outbound::{self, Outbound};
use super::receive::{Delivery, Received, TurnsAway};
use super::retry::Try;
use super::tries::FailedTry;
use super::upload::{Held, Upload, UploadState};
use crate::clock::Waiter;
use crate::down::{Downstream, RequestBody, Response};
use crate::tunnel::{Switched, Tunnel};
use crate::up::connect::{Place, Secured, connect};
use crate::up::h1::Wish;
use crate::up::links::Target;
use crate::up::pool::Peer;
use crate::up::tls::server_name;
use crate::up::{self, Head, Size};

/// One try with one server.
pub(super) struct Attempt<'u> {
    pub(super) upstream: &'u Arc<Upstream>,
    pub(super) endpoint: &'u Endpoint,
    /// It must be on a new connection.
    pub(super) fresh: bool,
    /// Bounds the attempt, connecting included, until its response begins.
    pub(super) per_try: Option<Duration>,
    /// When that time is over; without a bound, never.
    pub(super) head_by: u64,
    /// Answers that another try follows.
    pub(super) turns_away: Option<TurnsAway<'u>>,
    /// The cookie that brings the client back to this server.
    pub(super) cookie: Option<&'u [u8]>,
    /// Another address of the server.
    pub(super) second: Option<SocketAddr>,
}

/// The request's body on its way out, for every try of an exchange.
pub(super) struct Outgoing {
    pub(super) size: Size,
    /// In the chunks in which it comes.
    pub(super) framed: bool,
    pub(super) held: Held,
    pub(super) filters: Vec<Box<dyn RequestFilter>>,
    /// Bytes of it were taken from the client that are not in memory any more.
    pub(super) lost: bool,
}

/// A connection to the server of a try.
struct Connection {
    conn: up::Upstream,
    /// Under which it is kept for the next request.
    peer: Peer,
}

impl Attempt<'_> {
    pub(super) async fn run(
        &self,
        forward: &mut Forward<'_>,
        down: &mut Downstream<'_>,
        x: &mut Exchange<'_>,
        outgoing: &mut Outgoing,
    ) -> Result<Forwarded, FailedTry> {
        let worker = forward.worker;
        let (mut body, mut response) = down.split(worker);
        body.limit(worker, x);
        let mut connection = match self.connect(forward, body.waiter(), x).await {
            Ok(connection) => connection,
            Err(fault) => return Err(self.failed(fault, outgoing)),
        };
        let conn = &mut connection.conn;
        match self.exchange(forward, &mut body, &mut response, x, outgoing, conn).await {
            Ok(received) => Ok(self.settle(forward, x, connection, received)),
            // Part of the response, or of an interim one, has been sent, so the client would take another for its rest.
            Err(failed) if response.has_begun() => Ok(Forwarded::Broken(failed.fault)),
            Err(mut failed) => {
                if failed.fault.kind == FaultKind::ClosedEarly
                    && !failed.state.reused
                    && let Some(why) = connection.conn.refusal()
                {
                    failed.fault.kind = FaultKind::TlsFailed(why);
                }
                Err(failed)
            }
        }
    }

    /// A try that sent nothing.
    fn failed(&self, fault: Fault, outgoing: &Outgoing) -> FailedTry {
        let state = Try { reused: false, fresh: self.fresh, sent: false, body_lost: outgoing.lost };
        FailedTry { fault, state, took: None }
    }

    /// An idle connection, a stream of a shared one, or a new one.
    #[inline]
    async fn connect(
        &self,
        forward: &Forward<'_>,
        waiter: &Waiter,
        x: &mut Exchange<'_>,
    ) -> Result<Connection, Fault> {
        let &Attempt { upstream, endpoint, fresh, .. } = self;
        let worker = forward.worker;
        let secured: Option<Secured> = upstream.tls.as_ref().map(|tls| {
            let outbound = Outbound { x, upstream, endpoint };
            let name = tls.name.clone().unwrap_or_else(|| server_name(outbound.authority(), endpoint.addr));
            Secured { tls: tls.clone(), name, h2: false }
        });
        let mut peer = match &secured {
            None => Peer::plain(endpoint.addr),
            Some(Secured { tls, name, .. }) => worker.pools.over_tls(endpoint.addr, tls, name),
        };
        let place = Place { addr: endpoint.addr, second: self.second };
        let connect_timeout = self.connect_timeout(forward);
        if upstream.scheme.is_http2() {
            let timeouts = forward.plan.timeouts(upstream);
            let target = Target {
                peer: peer.with_h2(),
                place,
                secured: secured.map(|secured| Secured { h2: true, ..secured }),
                connect_timeout,
                send_timeout: timeouts.send,
                keepalive: upstream.keepalive,
            };
            let place = match worker.links.place_now(worker, &target, fresh) {
                Some(place) => place,
                // Boxed, as it is larger than what HTTP/1 needs.
                None => Box::pin(worker.links.place(worker, waiter, target, fresh)).await?,
            };
            let stream = up::h2::Stream::new(place, upstream.scheme.is_grpc());
            return Ok(Connection { conn: up::Upstream::H2(Box::new(stream)), peer });
        }
        let careful = !outbound::method(x).is_idempotent();
        let now = worker.clock.coarse_ms();
        let idle = |peer| if fresh { None } else { worker.pools.take(peer, now, careful) };
        let mut pooled = idle(peer);
        // A server that answers on its second address alone has its connections there.
        if let (None, Some(second)) = (&pooled, self.second) {
            pooled = idle(peer.at(second));
            if pooled.is_some() {
                peer = peer.at(second);
                x.engine_mut().upstream_addr = Some(second);
            }
        }
        if let Some(conn) = pooled {
            return Ok(Connection { conn: up::Upstream::H1(conn), peer });
        }
        let (conn, addr) = connect(worker, waiter, place, secured.as_ref(), connect_timeout).await?;
        if addr != place.addr {
            peer = peer.at(addr);
            x.engine_mut().upstream_addr = Some(addr);
        }
        Ok(Connection { conn: up::Upstream::H1(conn), peer })
    }

    fn connect_timeout(&self, forward: &Forward<'_>) -> Duration {
        let connect = forward.plan.timeouts(self.upstream).connect;
        self.per_try.map_or(connect, |bound| bound.min(connect))
    }

    /// Sends the request and delivers its response. An error within a response that has begun for the
    /// client cannot be mended by another try.
    #[inline]
    async fn exchange(
        &self,
        forward: &mut Forward<'_>,
        body: &mut RequestBody<'_>,
        response: &mut Response<'_>,
        x: &mut Exchange<'_>,
        outgoing: &mut Outgoing,
        conn: &mut up::Upstream,
    ) -> Result<Received, FailedTry> {
        let &Attempt { upstream, endpoint, .. } = self;
        let worker = forward.worker;
        let timeouts = forward.plan.timeouts(upstream);
        let reused = conn.is_reused();
        let failed = |fault, outgoing: &Outgoing| {
            let mut failed = self.failed(fault, outgoing);
            failed.state.reused = reused;
            failed
        };
        let websocket = forward.plan.websocket && asks_for_websocket(x.request());
        if let (true, up::Upstream::H2(stream)) = (websocket, &*conn) {
            let end = worker.clock.after(timeouts.connect).min(self.head_by);
            if !stream.takes_tunnels(body.waiter(), end).await {
                let kind = match worker.clock.is_over(self.head_by) {
                    true => FaultKind::ReadTimeout,
                    false => FaultKind::NoTunnels,
                };
                return Err(failed(Fault::upstream(kind), outgoing));
            }
        }
        let wish = if websocket { Wish::Websocket } else { Wish::Keep };
        let claim = conn.claim();
        let waiters = [body.waiter(), response.waiter()];
        let (mut to, from) = conn.begin(worker, waiters, forward.up_out, timeouts.send);
        if to.head(&Outbound { x, upstream, endpoint }, outgoing.size, wish).is_err() {
            return Err(failed(Fault::gateway(FaultKind::BrokenStage), outgoing));
        }
        let sent_method = outbound::method(x);
        let upload = UploadState::default();
        let result = {
            let Outgoing { framed, held, filters, .. } = &mut *outgoing;
            let mut sender = Upload { worker, body, state: &upload, framed: *framed, held, filters };
            let mut sending = pin!(sender.run(&mut to));
            let mut delivery = Delivery {
                worker,
                from,
                to: response,
                x,
                chains: forward.chains,
                state: &upload,
                chunk: &mut *forward.chunk,
                read_timeout: timeouts.read,
                head_by: self.head_by,
                turns_away: self.turns_away,
                cookie: self.cookie,
                measures: upstream.needs_response_times() || worker.tap.is_on(),
                sent_method,
                reused,
                websocket,
            };
            let mut receiving = pin!(delivery.run());
            poll_fn(|cx| {
                if claim.as_ref().is_some_and(|claim| claim.poll_reset(cx)) {
                    return Poll::Ready(Err(Fault::client(FaultKind::ClientStalled)));
                }
                // The response first: most wake-ups are for it. A response that is there before the
                // request was sent shows that the connection is not to be used.
                if let Poll::Ready(received) = receiving.as_mut().poll(cx) {
                    return Poll::Ready(received);
                }
                sending.as_mut().poll(cx).map(Err)
            })
            .await
        };
        outgoing.lost |= upload.lost.get();
        result.map_err(|fault| {
            let mut failed = failed(fault, outgoing);
            failed.state.sent = upload.sent.get();
            failed
        })
    }

    /// Keeps the connection, or makes a tunnel of it.
    fn settle(
        &self,
        forward: &Forward<'_>,
        x: &Exchange<'_>,
        connection: Connection,
        received: Received,
    ) -> Forwarded {
        let Connection { conn, peer } = connection;
        let worker = forward.worker;
        match received {
            Received::Done { keep_upstream } => {
                if keep_upstream && let up::Upstream::H1(conn) = conn {
                    worker.pools.give(peer, conn, &self.upstream.keepalive, worker.clock.coarse_ms());
                }
                Forwarded::Done
            }
            Received::Broken(fault) => Forwarded::Broken(fault),
            Received::Instead(reply) => Forwarded::Instead(reply),
            Received::Switched(bytes) => {
                let conn = match conn {
                    up::Upstream::H1(conn) => Some(Switched::H1(conn)),
                    up::Upstream::H2(stream) => stream.into_switched().map(Box::new).map(Switched::H2),
                };
                let Some(conn) = conn else {
                    return Forwarded::Broken(Fault::upstream(FaultKind::UnaskedInterim));
                };
                let idle_timeout = forward.plan.timeouts(self.upstream).read;
                // The exchange is over when the tunnel begins.
                let stalled = match conn {
                    Switched::H1(_) => None,
                    Switched::H2(_) => {
                        let fault = Fault::client(FaultKind::ClientStalled);
                        Some(Box::new(fault_log::record(worker, x, fault)))
                    }
                };
                let tunnel = Tunnel { conn, bytes, idle_timeout, holds: Vec::new(), stalled };
                Forwarded::Switched(Box::new(tunnel))
            }
        }
    }
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
