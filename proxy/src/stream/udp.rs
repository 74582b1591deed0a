//! hot path
//!
//! UDP sessions: the datagrams of one client, and what its server answers.
//!
//! A session begins with a client's first datagram and ends when neither side has sent one for a while. Its
//! server is chosen once. A client's datagrams go to the server's socket straight from the listener's
//! task; a session's own task passes the answers back. Datagrams that cannot be sent at once are dropped,
//! as on any network.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use hashbrown::HashMap;
use sdk::engine::Messages;
use sdk::stream::{Protocol, Stream};
use sdk::{Chain, Client, Exchange, Phase};
use snapshot::Scheme;
use snapshot::streams::{Arrival, StreamPlan};

use super::forward::choose;
use super::{Outcome, end, preread};
use crate::buffers::Lent;
use crate::clock::TICK;
use crate::exchange::fault::{Fault, FaultKind};
use crate::failed::is_shortage;
use crate::relay::{Ended, Side};
use crate::rt::{self, Udp};
use crate::stage::Stage;
use crate::worker::{Lease, Worker};

/// Datagrams that one listener takes before everything else that is ready gets its turn.
const TURN: u32 = 64;

/// The datagrams that wait in all sessions of a worker may have as many bytes as those of this many full sessions.
const WAITING_SESSIONS: usize = 64;

/// The sessions of one listener.
#[derive(Default)]
struct Sessions(RefCell<HashMap<SocketAddr, Rc<Session>, foldhash::fast::RandomState>>);

#[derive(Default)]
struct Session {
    /// The server's socket, once there is one.
    upstream: RefCell<Option<Rc<Udp>>>,
    /// Datagrams that came before that, and their bytes.
    waiting: RefCell<Vec<Vec<u8>>>,
    waiting_bytes: Cell<usize>,
    received: Cell<u64>,
    passed_on: Cell<u64>,
    /// When the session ends unless either side sends.
    alive: Cell<u64>,
    /// The server does not take what is sent to it.
    refused: Cell<bool>,
    /// Nothing more is taken.
    over: Cell<bool>,
    task: RefCell<Option<Waker>>,
}

/// Takes datagrams for as long as the worker lives, or until another process takes them.
pub(crate) async fn listen(worker: Rc<Worker>, socket: Rc<Udp>, local: SocketAddr, mut signal: rt::Signal) {
    let sessions = Rc::new(Sessions::default());
    let mut done_this_turn = 0;
    loop {
        let readable = pin!(poll_fn(|cx| socket.poll_readable(cx)));
        let changed = pin!(rt::changed(&mut signal));
        match rt::either(readable, changed).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                rt::sleep(TICK).await;
                continue;
            }
            // Later datagrams begin a session there; answers still go out from here.
            Err(Stage::HandOver | Stage::Stop) => break,
            Err(Stage::Run | Stage::Drain) => continue,
        }
        let mut lent = Lent::none(&worker.buffers);
        lent.get();
        lent.enlarge();
        loop {
            // Waiting datagrams belong to the other process: no session may begin here, as it would be lost.
            if worker.stage() >= Stage::HandOver {
                return;
            }
            match socket.try_recv_from(lent.get().space()) {
                Ok((n, peer)) => {
                    sessions.take(&worker, &socket, local, peer, &lent.get().space()[..n]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An earlier answer to some client has failed, which does not matter here.
                Err(_) => {}
            }
            done_this_turn += 1;
            if done_this_turn >= TURN {
                done_this_turn = 0;
                rt::turn().await;
            }
        }
    }
}

impl Sessions {
    /// Passes a client's datagram on, in its session.
    fn take(
        self: &Rc<Sessions>,
        worker: &Rc<Worker>,
        socket: &Rc<Udp>,
        local: SocketAddr,
        peer: SocketAddr,
        datagram: &[u8],
    ) {
        let known = self.0.borrow().get(&peer).cloned();
        let session = match known {
            Some(session) => session,
            None => match self.begin(worker, socket, local, peer) {
                Some(session) => session,
                None => return worker.drop_datagram(),
            },
        };
        session.received.set(session.received.get() + datagram.len() as u64);
        session.alive.set(worker.clock.after(worker.settings.streams.udp_idle_timeout));
        if let Some(upstream) = &*session.upstream.borrow() {
            return session.send(worker, upstream, datagram);
        }
        if session.over.get() {
            return;
        }
        let bytes = session.waiting_bytes.get() + datagram.len();
        let queue = worker.settings.streams.udp_queue;
        let all = worker.udp_waiting.get() + datagram.len();
        // An empty datagram is one, too.
        let many = session.waiting.borrow().len() >= 64;
        if bytes > queue || all > queue.saturating_mul(WAITING_SESSIONS) || many {
            return worker.drop_datagram();
        }
        session.waiting_bytes.set(bytes);
        worker.udp_waiting.set(all);
        session.waiting.borrow_mut().push(datagram.to_vec());
    }

    /// A new session, if there may be one more.
    fn begin(
        self: &Rc<Sessions>,
        worker: &Rc<Worker>,
        socket: &Rc<Udp>,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Rc<Session>> {
        let count = worker.udp_sessions.get();
        if worker.stage() != Stage::Run || count >= worker.settings.streams.max_udp_sessions {
            return None;
        }
        worker.udp_sessions.set(count + 1);
        let session = Rc::new(Session::default());
        self.0.borrow_mut().insert(peer, session.clone());
        let guard = Counted { worker: worker.clone(), sessions: self.clone(), peer };
        let (worker, socket, own) = (worker.clone(), socket.clone(), session.clone());
        rt::spawn(async move {
            let _guard = guard;
            serve(worker, &socket, local, peer, &own).await;
        });
        Some(session)
    }
}

/// Counts a session until its task ends, however it ends.
struct Counted {
    worker: Rc<Worker>,
    sessions: Rc<Sessions>,
    peer: SocketAddr,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.worker.shard.panicked();
        }
        if let Some(session) = self.sessions.0.borrow_mut().remove(&self.peer) {
            session.take_waiting(&self.worker);
        }
        self.worker.udp_sessions.set(self.worker.udp_sessions.get() - 1);
    }
}

impl Session {
    /// The datagrams that wait, which count no longer.
    fn take_waiting(&self, worker: &Worker) -> Vec<Vec<u8>> {
        worker.udp_waiting.set(worker.udp_waiting.get() - self.waiting_bytes.take());
        self.waiting.take()
    }

    fn send(&self, worker: &Worker, upstream: &Udp, datagram: &[u8]) {
        match upstream.try_send(datagram) {
            Ok(sent) => self.passed_on.set(self.passed_on.get() + sent as u64),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.refused.set(true);
                if let Some(task) = self.task.borrow_mut().take() {
                    task.wake();
                }
            }
            Err(_) => worker.drop_datagram(),
        }
    }

    fn poll(&self, upstream: &Udp, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.refused.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
        drop(task);
        upstream.poll_readable(cx)
    }
}

/// A session from its route to its end.
async fn serve(worker: Rc<Worker>, socket: &Udp, local: SocketAddr, peer: SocketAddr, session: &Session) {
    let began = worker.clock.micros();
    let client = Client::new(peer, local, false);
    let lease = worker.lease();
    let arrival = Arrival { remote: client.ip(), server: local, name: None };
    let found = lease.streams.find(&arrival).cloned();
    let mut messages = Messages::default();
    let mut x = Exchange::new(&mut messages, &client, &worker.nobody, &*worker);
    let engine = x.engine_mut();
    engine.stream =
        Some(Box::new(Stream { protocol: Protocol::Udp, listener: Some(local), ..Stream::default() }));
    engine.matched.route = found.as_ref().map(|plan| &plan.plan.info);
    let outcome = match &found {
        Some(plan) => match pass(&worker, lease, &mut x, plan, socket, peer, session).await {
            Ok(ended) => Outcome::Relayed(ended),
            Err(outcome) => outcome,
        },
        None => Outcome::Failed(Fault::gateway(FaultKind::NoRoute)),
    };
    let engine = x.engine_mut();
    engine.timing.received = session.received.get();
    if let Some(stream) = &mut engine.stream {
        stream.upstream_sent = session.passed_on.get();
    }
    if !matches!(outcome, Outcome::Relayed(_)) {
        // A refused session stays for a second, as refusing each of the client's datagrams would cost more.
        session.over.set(true);
        session.take_waiting(&worker);
        let pause = worker.clock.after(std::time::Duration::from_secs(1));
        let waiter = worker.clock.waiter();
        let _ = waiter.until(pause, |_| Poll::<()>::Pending).await;
    }
    end(&worker, &mut x, found.as_deref(), outcome, began);
}

async fn pass(
    worker: &Rc<Worker>,
    lease: Rc<Lease>,
    x: &mut Exchange<'_>,
    plan: &StreamPlan,
    socket: &Udp,
    peer: SocketAddr,
    session: &Session,
) -> Result<Ended, Outcome> {
    let failed = |kind| Outcome::Failed(Fault::gateway(kind));
    if let Some(chain) = plan.plan.chain.as_deref() {
        if chain.phases().has(Phase::StreamData) {
            return Err(failed(FaultKind::NeedsTcp));
        }
        if chain.phases().has(Phase::Preread) {
            preread(worker, chain, x, session).await?;
        }
    }
    let upstream = lease.target(&plan.plan, x).map_err(|failure| failed(FaultKind::Plan(failure)))?;
    drop(lease);
    if upstream.endpoints.is_empty() {
        return Err(failed(FaultKind::NoNode));
    }
    // As in nginx a session goes on over what it came over, unless the upstream asks for TLS.
    if !matches!(upstream.scheme, Scheme::Http | Scheme::Tcp | Scheme::Udp) {
        return Err(failed(FaultKind::UnsupportedScheme));
    }
    let open = async |endpoint: &snapshot::Endpoint| {
        Udp::connect(endpoint.addr).map_err(|error| {
            Fault::upstream(if is_shortage(&error) {
                FaultKind::NoDescriptor
            } else {
                FaultKind::ConnectFailed
            })
        })
    };
    let (up, chosen) = choose(worker, &upstream, x, open).await.map_err(Outcome::Failed)?;
    let up = Rc::new(up);
    for datagram in session.take_waiting(worker) {
        session.send(worker, &up, &datagram);
    }
    session.upstream.replace(Some(up.clone()));
    let ended = answers(worker, x, &up, socket, peer, session).await;
    session.upstream.replace(None);
    chosen.done(ended == Ended::Idle);
    match ended {
        Ended::Broken(Side::Upstream) if x.timing().sent == 0 => {
            Err(Outcome::Failed(Fault::upstream(FaultKind::ConnectRefused)))
        }
        ended => Ok(ended),
    }
}

/// Passes answers back until there are none for a while.
async fn answers(
    worker: &Worker,
    x: &mut Exchange<'_>,
    up: &Udp,
    socket: &Udp,
    peer: SocketAddr,
    session: &Session,
) -> Ended {
    let waiter = worker.clock.waiter();
    loop {
        match waiter.until(session.alive.get(), |cx| session.poll(up, cx)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Ended::Broken(Side::Upstream),
            // A datagram of the client may have moved the deadline meanwhile.
            Err(_) if worker.clock.is_over(session.alive.get()) => return Ended::Idle,
            Err(_) => continue,
        }
        let mut lent = Lent::none(&worker.buffers);
        lent.get();
        lent.enlarge();
        let n = match up.try_recv(lent.get().space()) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => return Ended::Broken(Side::Upstream),
        };
        session.alive.set(worker.clock.after(worker.settings.streams.udp_idle_timeout));
        let datagram = &lent.get().space()[..n];
        let sending = waiter.until(session.alive.get(), |cx| socket.poll_send_to(cx, datagram, peer)).await;
        if let Some(stream) = &mut x.engine_mut().stream {
            stream.upstream_received += n as u64;
        }
        match sending {
            Ok(Ok(sent)) => x.engine_mut().timing.sent += sent as u64,
            _ => worker.drop_datagram(),
        }
    }
}

/// Runs the plugins, which may look at the first datagram.
async fn preread(
    worker: &Worker,
    chain: &Chain,
    x: &mut Exchange<'_>,
    session: &Session,
) -> Result<(), Outcome> {
    // The listener's task puts it there as soon as this one first waits.
    rt::turn().await;
    let mut cursor = 0;
    while let Some(wanted) = preread::wanted(worker, chain, &mut cursor, x).await? {
        let waiting = session.waiting.borrow();
        preread::show(x, waiting.first().map_or(&[], Vec::as_slice), wanted);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;

    use sdk::meters::Meters;
    use snapshot::Publisher;

    use super::*;
    use crate::watch::Watch;

    #[test]
    fn a_datagram_that_cannot_be_sent_was_not_refused() {
        let (_publisher, mut readers) = Publisher::new(crate::worker::tests::empty(), 1);
        let reader = readers.pop().unwrap();
        let refused = rt::run(async move {
            let shard = Arc::new(Meters::default()).shard(0);
            let worker = Worker::new(0, Arc::default(), reader, shard, Arc::default(), Watch::new(1));
            let server = UdpSocket::bind("127.0.0.1:0").unwrap();
            let session = Session::default();
            session.send(&worker, &Udp::connect(server.local_addr().unwrap()).unwrap(), &[0; 70_000]);
            session.refused.get()
        });
        assert!(!refused.unwrap());
    }

    #[test]
    fn what_waits_at_a_hand_over_is_left_to_the_other_process() {
        let (_publisher, mut readers) = Publisher::new(crate::worker::tests::empty(), 1);
        let reader = readers.pop().unwrap();
        let left = rt::run(async move {
            let shard = Arc::new(Meters::default()).shard(0);
            let worker = Worker::new(0, Arc::default(), reader, shard, Arc::default(), Watch::new(1));
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            let (local, copy) = (socket.local_addr().unwrap(), socket.try_clone().unwrap());
            let socket = Rc::new(Udp::new(socket).unwrap());
            UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"one", local).unwrap();
            poll_fn(|cx| socket.poll_readable(cx)).await.unwrap();
            let signaller = rt::signaller();
            let signal = signaller.subscribe();
            signaller.send_replace(Stage::HandOver);
            worker.set_stage(Stage::HandOver);
            listen(worker, socket, local, signal).await;
            let mut bytes = [0; 8];
            copy.recv(&mut bytes).map(|n| bytes[..n].to_vec())
        });
        assert_eq!(left.unwrap().unwrap(), b"one");
    }
}
