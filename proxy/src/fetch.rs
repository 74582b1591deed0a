//! Requests that stages make themselves, through the worker's own connections.

pub(crate) mod call;
mod permits;
mod tunnel;

use std::net::SocketAddr;
use std::rc::Rc;

use sdk::Client;
use sdk::budget::Reservation;
use sdk::world::{Fetch, FetchError, FetchTimeouts, Fetched, Keep};
use snapshot::upstream::Keepalive;
use wire::h1::encode::BadTarget;
use wire::{Method, Name, ResponseHead};

use crate::clock::Waiter;
use crate::down;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::retry::{self, Again, Try};
use crate::io;
use crate::rt::{self, memory};
use crate::up::connect::{Secured, connect_humbly};
use crate::up::h1::{Conn, Wish};
use crate::up::h2::Stream;
use crate::up::links;
use crate::up::pool::Peer;
use crate::up::tls::server_name;
use crate::up::{Head, Lines, Size, Upstream};
use crate::worker::Worker;

pub(crate) use permits::Fetches;
use permits::InFlight;

/// A kept connection is closed after this many requests.
const REQUESTS: u64 = 10_000;

/// The right to send one request; counts it until it is over.
pub(crate) struct Permit {
    worker: Rc<Worker>,
    target: Rc<InFlight>,
}

impl Worker {
    /// Lets one more request go out, unless too many are in flight: then it is counted as dropped.
    pub(crate) fn permit_fetch(&self, authority: &str) -> Option<Permit> {
        let worker = self.strong()?;
        let target = self.fetches.begin(&self.settings, authority);
        match target.is_some() {
            true => self.shard.fetch_began(),
            false => self.shard.fetch_dropped(),
        }
        Some(Permit { worker, target: target? })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.worker.fetches.end(&self.target);
        self.worker.shard.fetch_ended();
    }
}

impl Permit {
    /// Sends the request. The sender ignores the answer.
    pub(crate) async fn run(self, request: Fetch) {
        let _ = run(&self.worker, request).await;
    }
}

/// Sends the request to the first of the target's addresses that takes it, and reads the whole
/// answer. All of it has one deadline, however many addresses there are.
pub(crate) async fn run(worker: &Worker, request: Fetch) -> Result<Fetched, FetchError> {
    if request.tunnel.is_some() && (request.http2 || !request.target.tls) {
        return Err(FetchError::NoTunnel);
    }
    let FetchTimeouts { connect, send, read } = request.timeouts;
    let end = worker.clock.after(connect.saturating_add(send).saturating_add(read));
    let waiters = [worker.clock.waiter(), worker.clock.waiter()];
    let repeatable = request.repeatable || request.method.is_idempotent();
    let mut out = Vec::with_capacity(512 + request.body.len());
    let mut last = FetchError::Unresolved;
    for &addr in request.target.addresses.iter() {
        let Way { peer, secured, keepalive } = Way::to(worker, &request, addr);
        let mut pooled = match request.http2 {
            true => None,
            false => worker.pools.take(peer, worker.clock.coarse_ms(), true),
        };
        let mut fresh = false;
        loop {
            if worker.clock.is_over(end) {
                return Err(FetchError::Timeout);
            }
            let connected = match pooled.take() {
                Some(conn) => Ok(Upstream::H1(conn)),
                None if request.http2 => {
                    let target = links::Target {
                        peer: peer.with_h2(),
                        place: addr.into(),
                        secured: secured.clone(),
                        connect_timeout: connect,
                        send_timeout: send,
                        keepalive,
                    };
                    // Boxed, as it is larger than what HTTP/1 needs.
                    let place = Box::pin(worker.links.place(worker, &waiters[0], target, fresh)).await;
                    place.map(|place| Upstream::H2(Box::new(Stream::new(place, true))))
                }
                None if let Some((tunnel, secured)) = request.tunnel.as_ref().zip(secured.as_ref()) => {
                    let opened = tunnel::open(worker, &waiters, addr, tunnel, secured, request.timeouts, end);
                    match Box::pin(opened).await {
                        Ok(conn) => Ok(Upstream::H1(conn)),
                        Err(error) => {
                            last = last.or(error);
                            break;
                        }
                    }
                }
                None => connect_humbly(worker, &waiters[0], addr, secured.as_ref(), connect, end)
                    .await
                    .map(Upstream::H1),
            };
            let mut conn = match connected {
                Ok(conn) => conn,
                Err(fault) => {
                    last = last.or(error_of(fault));
                    break;
                }
            };
            let tried = exchange(worker, &waiters, &mut conn, &request, &mut out, end).await;
            let reused = conn.is_reused();
            let failed = match tried {
                Ok((fetched, keep)) => {
                    if let (true, Upstream::H1(conn)) = (keep, conn) {
                        worker.pools.give(peer, conn, &keepalive, worker.clock.coarse_ms());
                    }
                    return Ok(fetched);
                }
                Err(failed) => failed,
            };
            last = last.or(failed.error);
            let Some(fault) = failed.fault else { return Err(last) };
            let state = Try { reused, fresh, sent: failed.sent, body_lost: false };
            match retry::decide(fault, state, repeatable) {
                // A kept connection had died, which says nothing about the server.
                Again::SameServer => fresh = true,
                Again::NextServer => break,
                Again::No => return Err(last),
            }
        }
    }
    Err(last)
}

/// How one of a target's addresses is reached.
struct Way {
    peer: Peer,
    secured: Option<Secured>,
    keepalive: Keepalive,
}

impl Way {
    fn to(worker: &Worker, request: &Fetch, addr: SocketAddr) -> Way {
        let secured: Option<Secured> = request.target.tls.then(|| {
            let common = &worker.settings.tls;
            let tls = if request.verify { &common.verifying } else { &common.trusting };
            let name = server_name(request.target.authority.as_bytes(), addr);
            Secured { tls: tls.clone(), name, h2: request.http2 }
        });
        let peer = match (&secured, &request.tunnel) {
            (None, _) => Peer::plain(addr),
            (Some(Secured { tls, name, .. }), None) => worker.pools.over_tls(addr, tls, name),
            (Some(Secured { tls, name, .. }), Some(tunnel)) => {
                worker.pools.raw(&(addr, tunnel, tls.identity(), name))
            }
        };
        let Keep { connections, idle } = request.keep;
        let keepalive = Keepalive { size: connections, idle_timeout: idle, requests: REQUESTS };
        Way { peer, secured, keepalive }
    }
}

/// Sends the request to this gateway, over a connection in memory that it serves as any other: it counts
/// against the worker's bound, a panic in it is counted, and the stop waits for it. When the waiting caller
/// is gone, so is that connection, and its exchange ends as one does whose client has left. The whole
/// answer must be here by the time-out for reading.
pub(crate) async fn dispatch(
    worker: &Rc<Worker>,
    client: Client,
    request: Fetch,
) -> Result<Fetched, FetchError> {
    let end = worker.clock.after(request.timeouts.read);
    let waiters = [worker.clock.waiter(), worker.clock.waiter()];
    let (ours, theirs) = memory::pair(Default::default(), Default::default());
    worker.hold(move |worker| down::h1::serve(worker, rt::Io::Memory(theirs), client, false));
    let mut conn = Upstream::H1(Conn::new(rt::Io::Memory(ours)));
    let answer = exchange(worker, &waiters, &mut conn, &request, &mut Vec::new(), end).await;
    answer.map(|(fetched, _)| fetched).map_err(|failed| failed.error)
}

/// Why a try failed.
struct Failed {
    error: FetchError,
    /// The server's fault; `None` if the try would fail with every server.
    fault: Option<Fault>,
    /// Bytes of the request may have reached it.
    sent: bool,
}

impl From<FetchError> for Failed {
    fn from(error: FetchError) -> Failed {
        Failed { error, fault: None, sent: true }
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Failed {
        Failed { error: error_of(fault), fault: Some(fault), sent: true }
    }
}

fn error_of(fault: Fault) -> FetchError {
    match fault.kind {
        FaultKind::ConnectRefused | FaultKind::ConnectFailed | FaultKind::NoDescriptor => FetchError::Refused,
        FaultKind::TlsFailed(why) => FetchError::Untrusted(why),
        FaultKind::ConnectTimeout | FaultKind::SendTimeout | FaultKind::ReadTimeout => FetchError::Timeout,
        _ => FetchError::Broken,
    }
}

async fn exchange(
    worker: &Worker,
    [sending, receiving]: &[Waiter; 2],
    conn: &mut Upstream,
    request: &Fetch,
    out: &mut Vec<u8>,
    end: u64,
) -> Result<(Fetched, bool), Failed> {
    let FetchTimeouts { send, read, .. } = request.timeouts;
    let (mut to, mut from) = conn.begin(worker, [sending, receiving], out, send);
    let has_body =
        !request.body.is_empty() || matches!(request.method, Method::Post | Method::Put | Method::Patch);
    let size = if has_body { Size::Exactly(request.body.len() as u64) } else { Size::None };
    // `head` rejects a target that would end the request line (CVE-2023-25690).
    let wish = if request.keep.connections == 0 { Wish::Close } else { Wish::Keep };
    to.head(request, size, wish).map_err(|_| FetchError::Broken)?;
    match to.write(&request.body, true, None).await {
        Ok(()) => {}
        Err(io::Failed::Closed) => {
            return Err(Failed { sent: false, ..Fault::upstream(FaultKind::ClosedEarly).into() });
        }
        Err(io::Failed::Broken) => return Err(Fault::upstream(FaultKind::ClosedEarly).into()),
        Err(io::Failed::Timeout) => return Err(Fault::upstream(FaultKind::SendTimeout).into()),
    }
    let mut head = ResponseHead::default();
    let late = || Err(Fault::upstream(FaultKind::ReadTimeout));
    let mut deadline = end.min(worker.clock.after(read));
    loop {
        match from.head(&mut head, request.method, &mut deadline, late).await {
            Ok(()) => {}
            // A failure within an answer is no sign of a dead connection.
            Err(fault) if from.was_answered() => return Err(error_of(fault).into()),
            Err(fault) => return Err(fault.into()),
        }
        match head.status {
            200.. => break,
            // The request asked for no other protocol.
            101 => return Err(FetchError::Broken.into()),
            _ => {}
        }
    }
    let (mut body, mut held) = (Vec::new(), Reservation::default());
    loop {
        if !from.take(false).map_err(error_of)? {
            let deadline = end.min(worker.clock.after(read));
            from.read(deadline).await.map_err(error_of)?;
            continue;
        }
        if body.len() + from.piece().len() > request.max_body {
            return Err(FetchError::TooLarge.into());
        }
        let room = held.reserve(&worker.budget, &mut body, from.piece().len(), request.max_body);
        room.map_err(|_| FetchError::TooLarge)?;
        body.extend_from_slice(from.piece());
        from.used();
        if from.is_complete() {
            break;
        }
    }
    let keep = from.may_be_reused();
    let trailers = from.trailers().cloned().unwrap_or_default();
    Ok((Fetched { status: head.status, fields: head.fields, body, trailers, held }, keep))
}

impl Head for Fetch {
    fn method(&self) -> &[u8] {
        match self.method {
            Method::Other => &self.method_name,
            method => method.as_str().as_bytes(),
        }
    }

    fn target(&self, out: &mut Vec<u8>) -> Result<(), BadTarget> {
        out.extend_from_slice(&self.uri);
        Ok(())
    }

    fn authority(&self) -> &[u8] {
        self.fields.get(Name::Host).unwrap_or(self.target.authority.as_bytes())
    }

    fn fields(&self, to: &mut impl Lines) {
        for (name, value, id) in self.fields.iter() {
            // Framing and connection are the client's business; a copied head may hold them.
            if !matches!(
                id,
                Name::Host
                    | Name::ContentLength
                    | Name::TransferEncoding
                    | Name::Connection
                    | Name::KeepAlive
                    | Name::Upgrade
                    | Name::Expect
                    | Name::Te
                    | Name::Trailer
            ) {
                to.field(id, name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::notice::Notice;
    use crate::settings::Settings;

    #[test]
    fn as_many_requests_are_in_flight_as_may_be_and_no_more() {
        let settings = Settings::with(|settings| {
            settings.limits.fetches = 3;
            settings.limits.fetches_per_target = 2;
        });
        crate::testing::beside_worker(settings, async |worker, _| {
            for _ in 0..3 {
                let first = worker.permit_fetch("a").unwrap();
                let _second = worker.permit_fetch("a").unwrap();
                drop(first);
                let _third = worker.permit_fetch("a").unwrap();
                assert!(worker.permit_fetch("a").is_none(), "two to one target");
                let other = worker.permit_fetch("b").unwrap();
                assert!(worker.permit_fetch("c").is_none(), "three to all");
                drop(other);
                assert!(worker.permit_fetch("c").is_some());
            }
            assert_eq!(worker.fetches.targets(), 1, "what is over and lost nothing is forgotten");
            let notices = RefCell::new(Vec::new());
            worker.fetches.report_dropped(&worker.settings, |notice| notices.borrow_mut().push(notice));
            let of_a = |notice: &Notice| matches!(notice, Notice::FetchesDropped { target, dropped: 3, .. } if target == "a");
            assert!(notices.borrow().iter().any(of_a), "{notices:?}");
        });
    }

    #[test]
    fn a_failed_request_is_reported_in_the_words_of_plugins() {
        for (kind, error) in [
            (FaultKind::ConnectRefused, FetchError::Refused),
            (FaultKind::ConnectFailed, FetchError::Refused),
            (FaultKind::NoDescriptor, FetchError::Refused),
            (FaultKind::TlsFailed("why"), FetchError::Untrusted("why")),
            (FaultKind::ConnectTimeout, FetchError::Timeout),
            (FaultKind::SendTimeout, FetchError::Timeout),
            (FaultKind::ReadTimeout, FetchError::Timeout),
            (FaultKind::ClosedEarly, FetchError::Broken),
        ] {
            assert_eq!(error_of(Fault::upstream(kind)), error, "{kind:?}");
        }
    }
}
