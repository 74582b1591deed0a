//! Connections to servers that carry many requests at a time, shared by all exchanges of a worker.
//!
//! Each connection has a task that connects, reads and writes. Exchanges ask for a place on it.

mod drive;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hashbrown::HashMap;
use snapshot::upstream::Keepalive;

use super::claims::Claims;
use super::connect::Secured;
use super::pool::Peer;
use crate::clock::{Clock, Waiter};
use crate::exchange::fault::{Fault, FaultKind};
use crate::h2;
use crate::rt;
use crate::windows::{Enlarging, Windows};
use crate::worker::Worker;

/// The window that every connection has (RFC 9113 section 6.9.2), but for a byte.
const FIRST_WINDOW: u32 = 64 << 10;

/// The window of a stream where no more may be promised to servers: sixteen of them share the first window of their
/// connection, so that none can use up what another needs.
const NARROW: u32 = FIRST_WINDOW / 16;

/// Milliseconds between two looks for stalled streams, and at an idle connection.
const LOOK: u64 = 1000;

/// How often another connection is tried for one place.
const TRIES: usize = 4;

/// A worker's connections, by where they lead.
#[derive(Default)]
pub(crate) struct Links {
    by_peer: RefCell<HashMap<Peer, Vec<Rc<Link>>, foldhash::fast::RandomState>>,
    /// When stalled streams are looked for again, in the clock's coarse milliseconds.
    look: Cell<u64>,
}

/// The parameters of a new connection.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) peer: Peer,
    pub(crate) place: super::connect::Place,
    pub(crate) secured: Option<Secured>,
    pub(crate) connect_timeout: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) keepalive: Keepalive,
}

/// One connection.
pub(crate) struct Link {
    state: RefCell<State>,
    /// Exchanges that wait for the connection to be there.
    waiting: RefCell<Vec<Waker>>,
    /// Of the connection's own task.
    driver: RefCell<Option<Waker>>,
    /// Places that are taken.
    open: Cell<usize>,
    /// Since when there are none, in the clock's coarse milliseconds.
    idle_since: Cell<u64>,
    /// When its task looks at it without being woken.
    looks_at: Cell<u64>,
    /// Longest time in milliseconds between two looks while it is idle.
    idle_look: u64,
    /// Requests it has carried.
    carried: Cell<u64>,
    /// No further request is to go on it.
    closing: Cell<bool>,
    /// The server's settings are known.
    settled: Cell<bool>,
    /// Why the server refused a certificate of ours, if it did.
    refused: Cell<Option<&'static str>>,
    windows: Windows,
    /// The connection's window as it was set last.
    window: Cell<u32>,
    claims: Claims,
    clock: Rc<Clock>,
    pub(super) tls: bool,
}

enum State {
    Connecting,
    Ready(h2::SharedMux),
    Over(Fault),
}

/// A stream's part of a connection's window.
#[derive(Clone)]
pub(crate) struct Claim {
    link: Rc<Link>,
    index: usize,
}

/// An exchange's place on a connection.
pub(crate) struct Place {
    claim: Claim,
    stream: h2::Stream,
    /// The connection has carried a request before this one.
    pub(super) reused: bool,
    /// Where no other was under way on it: how many it had carried with this one.
    idle_until: Option<u64>,
}

/// Counts a place for as long as it is taken.
struct Taken(Option<Rc<Link>>);

impl Links {
    /// A place on a connection to the target, opened if need be; with `fresh`, on one that has carried
    /// nothing yet.
    pub(crate) async fn place(
        &self,
        worker: &Worker,
        waiter: &Waiter,
        target: Target,
        fresh: bool,
    ) -> Result<Place, Fault> {
        let deadline = worker.clock.after(target.connect_timeout);
        let mut last = Fault::upstream(FaultKind::ConnectFailed);
        for _ in 0..TRIES {
            let Some(link) = self.choose(worker, &target, fresh) else { break };
            let taken = Taken::new(&link);
            let ready = waiter.until(deadline, |cx| link.poll_ready(cx)).await;
            let mux = match ready {
                Ok(Ok(mux)) => mux,
                Ok(Err(fault)) if fault.kind == FaultKind::ClosedEarly => {
                    last = fault;
                    continue;
                }
                Ok(Err(fault)) => return Err(fault),
                Err(_) => return Err(Fault::upstream(FaultKind::ConnectTimeout)),
            };
            if link.open.get() > mux.borrow().peer_streams().max(1) {
                // The server takes fewer at a time than we thought.
                continue;
            }
            let takes = waiter.until(deadline, |cx| mux.borrow_mut().poll_streams(cx));
            if takes.await.is_err() {
                return Err(Fault::upstream(FaultKind::ConnectTimeout));
            }
            let stream = h2::Stream::begin(&mux);
            match waiter.until(deadline, |cx| stream.poll_room(cx)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    link.closing.set(true);
                    if let Some(why) = link.refusal() {
                        return Err(Fault::upstream(FaultKind::TlsFailed(why)));
                    }
                    last = Fault::upstream(FaultKind::ClosedEarly);
                    continue;
                }
                Err(_) => return Err(Fault::upstream(FaultKind::ConnectTimeout)),
            }
            return Ok(Place::new(taken.keep(), stream, &target));
        }
        Err(last)
    }

    /// As [`Links::place`]; `None` if the caller has to wait. A connection that is missing is being opened then.
    pub(crate) fn place_now(&self, worker: &Worker, target: &Target, fresh: bool) -> Option<Place> {
        let link = self.choose(worker, target, fresh)?;
        let stream = match &*link.state.borrow() {
            State::Ready(mux) if mux.borrow_mut().takes_streams(link.open.get()) => h2::Stream::begin(mux),
            _ => return None,
        };
        Some(Place::new(Taken::new(&link).keep(), stream, target))
    }

    /// A connection with room, or a new one.
    fn choose(&self, worker: &Worker, target: &Target, fresh: bool) -> Option<Rc<Link>> {
        let most = worker.settings.http2.upstream_streams as usize;
        let mut all = self.by_peer.borrow_mut();
        let links = all.entry(target.peer).or_default();
        for link in links.iter().filter(|link| link.open.get() == 0 && link.is_paused()) {
            // It would only be kept for a request that it does not take.
            link.distrust();
        }
        let stream = worker.settings.http2.stream_window;
        // The first with room: what is needed rarely stays idle, and goes.
        let find = |narrow: bool| {
            links.iter().find(|link| {
                let open = link.open.get();
                link.is_narrow(stream) == narrow
                    && !link.closing.get()
                    && open < link.room(most)
                    && !(fresh && link.carried.get() > 0)
                    && link.windows.has_room(open + 1)
            })
        };
        let wide = find(false);
        let left = worker.upstream_windows.left();
        // While nothing is under way to a server, its first window needs nothing of the budget.
        let is_idle = links.iter().all(|link| link.open.get() == 0);
        let first = if is_idle { FIRST_WINDOW } else { 0 };
        let short = wide.is_none() && left < stream.saturating_sub(first) as usize;
        let found = if short { find(true) } else { wide }.cloned();
        if let Some(link) = &found {
            // Before others take what is left.
            link.windows.fit(link.open.get() + 1);
        }
        let link = found.or_else(|| {
            let stream = if short { stream.min(NARROW) } else { stream };
            let link = Link::open(worker, target, stream)?;
            links.push(link.clone());
            Some(link)
        });
        drop(all);
        if short {
            self.reset_stalled(worker);
        }
        link
    }

    /// Resets up to one stalled stream for each stream with a narrow window, the longest stalled first.
    #[cold]
    fn reset_stalled(&self, worker: &Worker) {
        let (now, bounds) = (worker.clock.coarse_ms(), &worker.settings.http2);
        let timeout = u64::try_from(bounds.stall_timeout.as_millis()).unwrap_or(u64::MAX);
        if timeout == 0 || now < self.look.get() {
            return;
        }
        self.look.set(now + LOOK);
        let Some(until) = now.checked_sub(timeout) else { return };
        let all = self.by_peer.borrow();
        // The stream that is about to begin is one.
        let (mut narrow, mut stalled) = (1, Vec::new());
        for link in all.values().flatten() {
            if link.is_narrow(bounds.stream_window) {
                narrow += link.open.get();
            } else {
                link.claims.stalled(until, |since, index| stalled.push((since, link, index)));
            }
        }
        stalled.sort_unstable_by_key(|(since, ..)| *since);
        for (_, link, index) in stalled.iter().take(narrow) {
            link.claims.reset(*index);
        }
    }

    /// Passes on how many streams each connection carries, with its address.
    pub(crate) fn in_use(&self, mut add: impl FnMut(SocketAddr, usize)) {
        for (peer, links) in &*self.by_peer.borrow() {
            links.iter().for_each(|link| add(peer.addr(), link.open.get()));
        }
    }

    /// Connections that carry nothing now.
    pub(crate) fn close_idle(&self) -> usize {
        let mut closed = 0;
        for link in self.by_peer.borrow().values().flatten() {
            if link.open.get() == 0 && !link.closing.replace(true) {
                link.wake_driver();
                closed += 1;
            }
        }
        closed
    }

    fn remove(&self, peer: Peer, link: &Rc<Link>) {
        let mut all = self.by_peer.borrow_mut();
        if let Some(links) = all.get_mut(&peer) {
            links.retain(|one| !Rc::ptr_eq(one, link));
            if links.is_empty() {
                all.remove(&peer);
            }
        }
    }
}

impl Link {
    /// A connection to the target whose streams have so large a window each.
    fn open(worker: &Worker, target: &Target, stream: u32) -> Option<Rc<Link>> {
        let link = Rc::new(Link {
            state: RefCell::new(State::Connecting),
            waiting: RefCell::default(),
            driver: RefCell::default(),
            open: Cell::new(0),
            idle_since: Cell::new(worker.clock.coarse_ms()),
            looks_at: Cell::new(u64::MAX),
            idle_look: match target.keepalive.idle_timeout.as_millis() as u64 {
                // No limit.
                0 => LOOK,
                ms => ms.min(LOOK),
            },
            carried: Cell::new(0),
            closing: Cell::new(false),
            settled: Cell::new(false),
            refused: Cell::new(None),
            windows: Windows::new(&worker.upstream_windows, FIRST_WINDOW, stream, Enlarging::Counts),
            window: Cell::new(FIRST_WINDOW),
            claims: Claims::default(),
            clock: worker.clock.clone(),
            tls: target.secured.is_some(),
        });
        link.windows.fit(1);
        // A worker that is gone has no exchanges that could wait.
        let worker = worker.strong()?;
        let driven = drive::Driven { worker, peer: target.peer, link: link.clone() };
        rt::spawn(drive::drive(driven, target.clone()));
        Some(link)
    }

    /// Its streams have less of a window than they should.
    fn is_narrow(&self, stream: u32) -> bool {
        self.windows.stream() < stream
    }

    /// Places it has, as far as is known.
    fn room(&self, most: usize) -> usize {
        match &*self.state.borrow() {
            State::Ready(mux) => mux.borrow().peer_streams().clamp(1, most),
            State::Connecting => most,
            State::Over(_) => 0,
        }
    }

    /// The server takes no requests on it for now (`SETTINGS_MAX_CONCURRENT_STREAMS` of 0), as some announce before
    /// they stop. Requests that would wait there until they time out go on another connection.
    fn is_paused(&self) -> bool {
        matches!(&*self.state.borrow(), State::Ready(mux) if mux.borrow().peer_streams() == 0)
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<h2::SharedMux, Fault>> {
        match &*self.state.borrow() {
            State::Ready(mux) => Poll::Ready(Ok(mux.clone())),
            State::Over(fault) => Poll::Ready(Err(*fault)),
            State::Connecting => {
                self.wait(cx);
                Poll::Pending
            }
        }
    }

    fn set(&self, state: State) {
        *self.state.borrow_mut() = state;
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Whether the server takes tunnels (RFC 8441), once its settings are known.
    pub(super) fn poll_tunnels(&self, cx: &mut Context<'_>) -> Poll<bool> {
        match &*self.state.borrow() {
            State::Ready(mux) if self.settled.get() => return Poll::Ready(mux.borrow().peer_connects()),
            State::Over(_) => return Poll::Ready(false),
            State::Ready(_) | State::Connecting => {}
        }
        self.wait(cx);
        Poll::Pending
    }

    fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
    }

    /// Nothing is on it any more. Its task is woken only if that is to have an effect soon: between the requests of
    /// one client, a connection is often idle for a moment.
    fn note_idle(&self) {
        let now = self.clock.coarse_ms();
        self.idle_since.set(now);
        let is_large = self.windows.whole() > FIRST_WINDOW;
        if self.closing.get() || is_large || self.looks_at.get() > now + self.idle_look {
            self.wake_driver();
        }
    }

    fn wake_driver(&self) {
        if let Some(waker) = &*self.driver.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Nothing is known of whether the server still lives: what comes goes on another connection.
    pub(super) fn distrust(&self) {
        self.closing.set(true);
        self.wake_driver();
    }

    /// As [`super::Upstream::refusal`].
    #[cold]
    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refused.get()
    }
}

impl Claim {
    /// Something came for the client.
    #[inline]
    pub(super) fn came(&self) {
        self.link.claims.came(self.index, self.link.clock.coarse_ms());
    }

    /// The client has taken so much of it.
    #[inline]
    pub(super) fn used(&self, bytes: usize) {
        self.link.windows.used(bytes);
        self.link.claims.taken(self.index, bytes, self.link.clock.coarse_ms());
    }

    /// The client has taken all of it.
    #[inline]
    pub(super) fn waits(&self) {
        self.link.claims.waits(self.index);
    }

    /// Whether the stream holds something that its client has not taken.
    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        let mut held = false;
        self.link.claims.stalled(u64::MAX, |_, index| held |= index == self.index);
        held
    }

    /// Whether the stream is to be reset because others want what it holds; else the task is woken when it is.
    #[inline]
    pub(crate) fn poll_reset(&self, cx: &Context<'_>) -> bool {
        self.link.claims.poll_reset(self.index, cx)
    }
}

impl Place {
    /// The link counts the stream as open.
    fn new(link: Rc<Link>, stream: h2::Stream, target: &Target) -> Place {
        stream.mux().borrow_mut().probe();
        let carried = link.carried.get() + 1;
        link.carried.set(carried);
        if carried >= target.keepalive.requests {
            link.closing.set(true);
        }
        let reused = carried > 1;
        let idle_until = Some(carried).filter(|_| reused && link.open.get() == 1);
        let claim = Claim { index: link.claims.begin(), link };
        Place { claim, stream, reused, idle_until }
    }

    pub(super) fn link(&self) -> &Link {
        &self.claim.link
    }

    pub(super) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The connection had been idle, and nothing but this request came since: the server may have closed it before.
    pub(super) fn may_have_been_gone(&self) -> bool {
        self.idle_until == Some(self.link().carried.get()) && self.stream.mux().borrow().goaway().is_none()
    }

    pub(super) fn stream(&self) -> &h2::Stream {
        &self.stream
    }

    pub(super) fn share(&self) -> Rc<Link> {
        self.claim.link.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.claim.link.claims.end(self.claim.index);
        drop(Taken(Some(self.share())));
    }
}

impl Taken {
    fn new(link: &Rc<Link>) -> Taken {
        link.open.set(link.open.get() + 1);
        Taken(Some(link.clone()))
    }

    /// Returns the link without giving the stream back: the caller does that.
    fn keep(mut self) -> Rc<Link> {
        match self.0.take() {
            Some(link) => link,
            None => unreachable!("it is taken out once"),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.open.set(link.open.get() - 1);
            if link.open.get() == 0 {
                link.note_idle();
            }
        }
    }
}

#[cfg(test)]
impl Target {
    /// A server that speaks HTTP/2 without TLS, for `requests` on a connection. Each time-out is one second.
    pub(crate) fn plain_http2(addr: std::net::SocketAddr, requests: u64) -> Target {
        let second = Duration::from_secs(1);
        Target {
            peer: Peer::plain(addr).with_h2(),
            place: addr.into(),
            secured: None,
            connect_timeout: second,
            send_timeout: second,
            keepalive: Keepalive { size: 1, idle_timeout: second, requests },
        }
    }
}

#[cfg(test)]
mod tests;
