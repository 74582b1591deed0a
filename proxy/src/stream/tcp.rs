//! TCP streams.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use sdk::engine::Messages;
use sdk::stream::{Protocol, Stream};
use sdk::{Chain, Client, Exchange, Phase};
use snapshot::Scheme;
use snapshot::streams::{Arrival, StreamPlan};
use wire::proxy_protocol::{self, Ends};

use super::first::First;
use super::{Outcome, end, filtered, forward, preread, protocol};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::io;
use crate::listener::StreamPort;
use crate::relay::{self, Blind, Ended, Side, Tap};
use crate::rt::Io;
use crate::up::connect::Secured;
use crate::up::tls::server_name;
use crate::worker::{Lease, Worker};

/// Serves a connection to a listener to its end.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    mut io: Io,
    client: Client,
    listener: SocketAddr,
    port: StreamPort,
) {
    let began = worker.clock.micros();
    let waiters = [worker.clock.waiter(), worker.clock.waiter()];
    let mut first = First::new(&worker);
    let mut stream = Stream { protocol: Protocol::Tcp, listener: Some(listener), ..Stream::default() };
    // Where TLS ends here, the name is known from the handshake.
    let asked = if worker.lease().streams.asks_for_name(client.local.port()) && !client.tls {
        first.server_name(&mut io, &waiters[0]).await
    } else {
        Ok(None)
    };
    let lease = worker.lease();
    let plan: Result<Arc<StreamPlan>, Fault> = asked.and_then(|name| {
        let of_session = || client.session.as_ref().and_then(|session| session.server_name.clone());
        stream.server_name = name.or_else(of_session);
        let arrival =
            Arrival { remote: client.ip(), server: client.local, name: stream.server_name.as_deref() };
        lease.streams.find(&arrival).cloned().ok_or(Fault::gateway(FaultKind::NoRoute))
    });
    let mut messages = Messages::default();
    let mut x = Exchange::new(&mut messages, &client, &worker.nobody, &*worker);
    let engine = x.engine_mut();
    engine.stream = Some(Box::new(stream));
    engine.matched.route = plan.as_ref().ok().map(|plan| &plan.plan.info);
    let outcome = match &plan {
        Ok(plan) => match pass(
            Session { worker: &worker, waiters: &waiters, port },
            lease,
            &mut io,
            &mut x,
            plan,
            first,
        )
        .await
        {
            Ok(ended) => Outcome::Relayed(ended),
            Err(outcome) => outcome,
        },
        Err(fault) => Outcome::Failed(*fault),
    };
    if matches!(outcome, Outcome::Relayed(Ended::Broken(_))) {
        // The client's data is incomplete, and a reset shows that.
        io.abort();
    }
    end(&worker, &mut x, plan.as_deref().ok(), outcome, began);
}

/// Constant parts of a stream's session.
struct Session<'s> {
    worker: &'s Worker,
    waiters: &'s [Waiter; 2],
    port: StreamPort,
}

/// Everything from the plugins to the last byte.
async fn pass(
    session: Session<'_>,
    lease: Rc<Lease>,
    io: &mut Io,
    x: &mut Exchange<'_>,
    plan: &StreamPlan,
    mut first: First<'_>,
) -> Result<Ended, Outcome> {
    let Session { worker, waiters, port } = session;
    if let Some(chain) = plan.plan.chain.as_deref()
        && chain.phases().has(Phase::Preread)
    {
        preread(worker, chain, io, x, &mut first, &waiters[0]).await?;
    }
    let failed = |kind| Outcome::Failed(Fault::gateway(kind));
    let upstream = lease.target(&plan.plan, x).map_err(|failure| failed(FaultKind::Plan(failure)))?;
    // The snapshot is not needed any more, and the stream may last.
    drop(lease);
    if upstream.endpoints.is_empty() {
        return Err(failed(FaultKind::NoNode));
    }
    if let Some(why) = upstream.tls.as_ref().and_then(|tls| tls.lacks) {
        return Err(failed(FaultKind::TlsFailed(why)));
    }
    // In front of TLS a header would have to go out in the clear, which nothing here does.
    let to_tls = upstream.scheme == Scheme::Tls && upstream.tls.is_some() && !port.proxy_protocol_to_upstream;
    if !to_tls && !matches!(upstream.scheme, Scheme::Http | Scheme::Tcp) {
        return Err(failed(FaultKind::UnsupportedScheme));
    }
    let (connect_timeout, idle_timeout) = forward::timeouts(worker, &upstream);
    // As in APISIX the server is asked for by the name that the client asked for.
    let asked = x.client().session.as_ref().and_then(|session| session.server_name.clone());
    let connect = async |endpoint: &snapshot::Endpoint| {
        let secured = upstream.tls.as_ref().map(|tls| {
            let authority = asked.as_deref().unwrap_or(&endpoint.authority);
            let name = tls.name.clone().unwrap_or_else(|| server_name(authority.as_bytes(), endpoint.addr));
            Secured { tls: tls.clone(), name, h2: false }
        });
        forward::open(worker, &waiters[1], endpoint, secured.as_ref(), connect_timeout).await
    };
    let (mut up, chosen) = forward::choose(worker, &upstream, x, connect).await.map_err(Outcome::Failed)?;
    let mut header = Vec::new();
    if port.proxy_protocol_to_upstream {
        let source = std::net::SocketAddr::new(x.client().ip(), x.client().port());
        proxy_protocol::write_v1(Some(&Ends { source, destination: x.client().local }), &mut header);
    }
    let way = Way { worker, waiters, header: &header, idle_timeout };
    let chain = plan.plan.chain.as_deref().filter(|chain| chain.phases().has(Phase::StreamData));
    // Boxed, as inspection needs more memory, and most streams are passed on unseen.
    let (carried, failed) = match (chain, plan.protocol.as_deref()) {
        (None, None) => (run(way, io, &mut up, first, (Blind, Blind)).await, None),
        (Some(chain), _) => {
            let (carried, failed) = Box::pin(filtered::run(way, io, &mut up, first, x, chain)).await;
            if matches!(failed, Some(Outcome::Failed(_))) {
                io.abort();
            }
            (carried, failed)
        }
        (None, Some(protocol)) => {
            let (carried, fault) = Box::pin(protocol::run(way, io, &mut up, first, x, protocol)).await;
            (carried, fault.map(Outcome::Failed))
        }
    };
    let engine = x.engine_mut();
    engine.timing.received = carried.received;
    engine.timing.sent = carried.sent;
    if let Some(stream) = &mut engine.stream {
        stream.upstream_sent = carried.received + header.len() as u64;
        stream.upstream_received = carried.sent;
    }
    let ended = carried.ended;
    chosen.done(ended != Ended::Broken(Side::Upstream));
    if matches!(ended, Ended::Broken(_)) {
        up.abort();
    }
    failed.map_or(Ok(ended), Err)
}

/// How bytes go on.
#[derive(Clone, Copy)]
pub(super) struct Way<'w> {
    pub(super) worker: &'w Worker,
    pub(super) waiters: &'w [Waiter; 2],
    /// The PROXY protocol header that is sent to the server first, if any.
    pub(super) header: &'w [u8],
    pub(super) idle_timeout: std::time::Duration,
}

/// How many bytes went each way, and how the stream ended.
pub(super) struct Carried {
    pub(super) ended: Ended,
    pub(super) received: u64,
    pub(super) sent: u64,
}

/// Bytes both ways. The taps look at the client's, and at the server's.
pub(super) async fn run(
    way: Way<'_>,
    io: &mut Io,
    up: &mut Io,
    mut first: First<'_>,
    taps: (impl Tap, impl Tap),
) -> Carried {
    let Way { worker, waiters, header, idle_timeout } = way;
    let (received, sent) = (Cell::new(0), Cell::new(0));
    let (mut from_client, mut to_client) = io.split();
    let (mut from_up, mut to_up) = up.split();
    let mut early = first.buffer.take();
    drop(first);
    let mut ended = None;
    if !header.is_empty() {
        // In one packet with the client's first bytes, unless a tap must look at them.
        let unseen = early.take_if(|_| taps.0.is_blind());
        let data = unseen.as_ref().map_or(&[][..], |buffer| buffer.data());
        received.set(data.len() as u64);
        let pieces = [header, data, &[]];
        let written = io::write_pieces(worker, &waiters[1], &mut to_up, pieces, idle_timeout).await;
        if let Some(buffer) = unseen {
            worker.buffers.give(buffer);
        }
        if written.is_err() {
            ended = Some(Ended::Broken(Side::Upstream));
        }
    }
    let ended = match ended {
        Some(ended) => {
            early.into_iter().for_each(|buffer| worker.buffers.give(buffer));
            ended
        }
        None => {
            let client = relay::End {
                read: &mut from_client,
                write: &mut to_client,
                waiter: &waiters[0],
                early,
                received: &received,
                tap: taps.0,
            };
            let upstream = relay::End {
                read: &mut from_up,
                write: &mut to_up,
                waiter: &waiters[1],
                early: None,
                received: &sent,
                tap: taps.1,
            };
            relay::run(worker, client, upstream, idle_timeout).await
        }
    };
    Carried { ended, received: received.get(), sent: sent.get() }
}

/// Runs the plugins. Each may ask for a client's first bytes, or wait.
async fn preread(
    worker: &Worker,
    chain: &Chain,
    io: &mut Io,
    x: &mut Exchange<'_>,
    first: &mut First<'_>,
    waiter: &Waiter,
) -> Result<(), Outcome> {
    let mut cursor = 0;
    while let Some(wanted) = preread::wanted(worker, chain, &mut cursor, x).await? {
        while first.bytes().len() < wanted {
            if !first.more(io, waiter).await.map_err(Outcome::Failed)? {
                break;
            }
        }
        preread::show(x, first.bytes(), wanted);
    }
    Ok(())
}
