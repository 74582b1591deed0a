//! A worker whose connections are in memory and whose clock jumps: for tests that run whole exchanges
//! without a socket, a thread or a pause.

mod defaults;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sdk::Client;
use sdk::meters::{Meters, Shard};
use snapshot::{Publisher, Reader, Snapshot};

use crate::down::{self, h3};
use crate::rt::quic::{self, memory::Net};
use crate::rt::{self, Io, memory};
use crate::stream;
use crate::watch::Watch;
use crate::worker::Worker;
use crate::{Settings, Stage, StreamPort};

pub use crate::rt::memory::{Cut, End, Schedule, pair, serve};

/// Where HTTP/3 is served.
pub const H3: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9443));

/// A worker under test.
pub struct Gateway {
    worker: Rc<Worker>,
    stage: rt::Signaller,
}

/// A worker's port for HTTP/3, and the network around it.
pub struct Port {
    net: Net,
}

/// Makes workers, one after the other, each as if the others had never been.
pub struct Gateways {
    settings: Arc<Settings>,
    readers: Vec<Reader>,
    shard: Box<dyn Fn() -> Shard>,
    _publisher: Publisher,
}

impl Iterator for Gateways {
    type Item = Gateway;

    fn next(&mut self) -> Option<Gateway> {
        memory::install();
        let reader = self.readers.pop()?;
        let settings = self.settings.clone();
        let worker = Worker::new(0, settings, reader, (self.shard)(), Arc::default(), Watch::new(1));
        Some(Gateway { worker, stage: rt::signaller() })
    }
}

/// Runs a test beside up to `workers` workers that serve this snapshot. Upstreams are declared by [`serve`]
/// once the worker is there.
pub fn run<T: 'static>(
    settings: Settings,
    snapshot: Snapshot,
    meters: &Arc<Meters>,
    workers: usize,
    test: impl AsyncFnOnce(Gateways) -> T + 'static,
) -> std::io::Result<T> {
    let (publisher, readers) = Publisher::new(snapshot, workers);
    let meters = meters.clone();
    rt::run_paused(async move {
        let shard = Box::new(move || meters.shard(0));
        let settings = Arc::new(settings);
        test(Gateways { settings, readers, shard, _publisher: publisher }).await
    })
}

/// Starts something that runs beside the test.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    rt::spawn(future);
}

/// Waits, by the clock that jumps.
pub async fn sleep(time: Duration) {
    rt::sleep(time).await;
}

/// The future's result, or none if it takes longer by the clock that jumps.
pub async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    rt::within(time, future).await
}

/// Lets everything else go first.
pub async fn turn() {
    rt::turn().await;
}

impl Gateway {
    /// A client's HTTP/1 connection. The first schedule is for the gateway's end.
    pub fn connect(&self, theirs: Schedule, ours: Schedule) -> End {
        let (end, io, client) = connection(theirs, ours, false);
        self.worker.hold(move |worker| down::h1::serve(worker, io, client, false));
        end
    }

    /// A client's connection to a port where HTTP/2 is served as well.
    pub fn connect_any(&self, theirs: Schedule, ours: Schedule) -> End {
        let (end, io, client) = connection(theirs, ours, false);
        self.worker.hold(move |worker| down::h1::serve(worker, io, client, true));
        end
    }

    /// A client's connection of which it is agreed that HTTP/2 is spoken on it.
    pub fn connect_h2(&self, theirs: Schedule, ours: Schedule) -> End {
        let (end, io, client) = connection(theirs, ours, false);
        self.worker.hold(move |worker| down::h2::serve(worker, io, client, None));
        end
    }

    /// A client's connection to a port where TLS is spoken, and in it HTTP/1 or HTTP/2.
    pub fn connect_tls(&self, theirs: Schedule, ours: Schedule) -> End {
        let (end, io, client) = connection(theirs, ours, true);
        self.worker.hold(move |worker| down::tls::serve(worker, io, client, true));
        end
    }

    /// A client's connection to a port of streams, which is what their routes see of it.
    pub fn connect_stream(&self, theirs: Schedule, ours: Schedule, number: u16, port: StreamPort) -> End {
        let (end, io, client) = connection(theirs, ours, false);
        let local = SocketAddr::new(client.local.ip(), number);
        let client = Client::new(client.peer, local, false);
        self.worker.hold(move |worker| stream::tcp::serve(worker, io, client, local, port));
        end
    }

    /// Takes datagrams of streams from this socket as if they had come to a port of that number.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn open_datagrams(&self, socket: UdpSocket, number: u16) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let local = SocketAddr::new(socket.local_addr()?.ip(), number);
        let socket = Rc::new(rt::Udp::new(socket)?);
        rt::spawn(stream::udp::listen(self.worker.clone(), socket, local, self.stage.subscribe()));
        Ok(())
    }

    /// Sessions of datagrams that are open, and bytes that wait in them.
    pub fn datagrams(&self) -> (usize, usize) {
        (self.worker.udp_sessions.get(), self.worker.udp_waiting.get())
    }

    /// Opens an address for HTTP/3, [`H3`] or one that is all of its machine's.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn open_h3(&self, at: SocketAddr) -> io::Result<Port> {
        let net = Net::default();
        // Another process would be given it.
        let copy = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let post = quic::posts(1, &Arc::from([]), 0).pop().ok_or(io::ErrorKind::NotFound)?;
        let port = h3::Port::over(&self.worker.settings, net.place(at), copy, post)?;
        rt::spawn(h3::listen(self.worker.clone(), port, self.stage.subscribe()));
        Ok(Port { net })
    }

    /// Clients' connections that are open.
    pub fn connections(&self) -> usize {
        self.worker.connections()
    }

    /// Asks clients that are idle to give way to others; says whether there are any.
    pub fn close_idle_clients(&self) -> bool {
        self.worker.close_idle_clients()
    }

    /// Idle connections to upstreams.
    pub fn idle_upstreams(&self) -> usize {
        self.worker.pools.len()
    }

    /// Closes them.
    pub fn close_idle_upstreams(&self) {
        self.worker.close_idle_upstreams(usize::MAX);
    }

    /// Bytes of bodies held in memory.
    pub fn held(&self) -> usize {
        self.worker.budget.taken()
    }

    /// Bytes that clients may send beyond what every connection may.
    pub fn promised(&self) -> usize {
        self.worker.windows.taken()
    }

    /// Every request is the last on its connection from now on.
    pub fn drain(&self) {
        self.enter(Stage::Drain);
    }

    /// Tunnels are to end.
    pub fn end_tunnels(&self) {
        self.worker.tunnels_until.set(0);
        self.worker.clock.wake_all();
    }

    /// Tells the worker, and who listens.
    pub fn enter(&self, stage: Stage) {
        self.worker.set_stage(stage);
        self.stage.send_replace(stage);
        self.worker.clock.wake_all();
    }
}

impl Port {
    /// A client at this address.
    ///
    /// # Errors
    /// The error of `quinn`.
    pub fn client(&self, at: SocketAddr) -> io::Result<quinn::Endpoint> {
        quic::memory::client(self.net.place(at))
    }

    /// Lets this many more datagrams through to `to`; all, if it is `None`.
    pub fn lets_through(&self, to: SocketAddr, datagrams: Option<usize>) {
        self.net.lets_through(to, datagrams);
    }

    /// Returns how many of those are left.
    pub fn room(&self, to: SocketAddr) -> Option<usize> {
        self.net.room(to)
    }

    /// Loses all datagrams from there, from now on.
    pub fn silence(&self, whom: SocketAddr) {
        self.net.silence(whom);
    }

    /// How often clients were asked to prove their addresses.
    pub fn retries(&self) -> usize {
        self.net.retries()
    }

    /// Bytes that have come to [`H3`] from there, and those that were sent back.
    pub fn traffic(&self, client: SocketAddr) -> (u64, u64) {
        (self.net.sent(client, H3), self.net.sent(H3, client))
    }

    /// The client has this address from now on.
    ///
    /// # Errors
    /// As there.
    pub fn move_client(&self, client: &quinn::Endpoint, to: SocketAddr) -> io::Result<()> {
        client.rebind_abstract(self.net.place(to))
    }
}

/// Runs a test beside a worker that has nothing to serve.
#[cfg(test)]
pub(crate) fn beside_worker(settings: Settings, test: impl AsyncFnOnce(Rc<Worker>, &Meters) + 'static) {
    beside(settings, crate::worker::tests::empty(), test);
}

/// Runs a test beside a worker that serves this.
#[cfg(test)]
pub(crate) fn beside(
    settings: Settings,
    snapshot: Snapshot,
    test: impl AsyncFnOnce(Rc<Worker>, &Meters) + 'static,
) {
    let meters = Arc::new(Meters::default());
    let read = meters.clone();
    let ran = run(settings, snapshot, &meters, 1, async move |mut gateways| {
        let worker = gateways.next().map(|gateway| gateway.worker).ok_or("no worker")?;
        test(worker, &read).await;
        Ok::<_, &str>(())
    });
    assert!(matches!(ran, Ok(Ok(()))), "{ran:?}");
}

/// Passes on many bytes that are all there, each way, to where there is room for all of them, and sees that
/// something else has its turn meanwhile.
#[cfg(test)]
pub(crate) fn beside_many_bytes(pass: impl AsyncFnOnce(Rc<Worker>, Io, Io) + 'static) {
    use std::cell::Cell;

    const MANY: usize = 4 << 20;
    let meters = Arc::new(Meters::default());
    let snapshot = crate::worker::tests::empty();
    let turns = run(Settings::default(), snapshot, &meters, 1, async move |mut gateways| {
        let worker = gateways.next().map(|gateway| gateway.worker).ok_or("no worker")?;
        let roomy = || Schedule { room: 2 * MANY, ..Schedule::default() };
        let mut ends = Vec::new();
        let mut passed = Vec::new();
        for _ in 0..2 {
            let (near, far) = pair(roomy(), roomy());
            near.write_all(&vec![0; MANY]).await.map_err(|_| "no room")?;
            near.shut_down();
            ends.push(near);
            passed.push(Io::Memory(far));
        }
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        spawn(async move {
            loop {
                turn().await;
                counted.set(counted.get() + 1);
            }
        });
        // It is there.
        turn().await;
        turns.set(0);
        let (upstream, client) = (passed.pop().ok_or("one")?, passed.pop().ok_or("two")?);
        pass(worker, client, upstream).await;
        let mut whole = vec![0; MANY + 1];
        for end in &ends {
            let mut n = 0;
            while let Ok(more @ 1..) = end.read(&mut whole[n..]).await {
                n += more;
            }
            assert_eq!(n, MANY, "all of it arrives");
        }
        Ok::<_, &str>(turns.get())
    });
    let turns = turns.map_err(|error| error.to_string()).and_then(|turns| turns.map_err(str::to_owned));
    let least = (MANY as u64 / rt::TURN) as usize - 1;
    assert!(turns.as_ref().is_ok_and(|turns| *turns >= least), "{turns:?} turns of {least}");
}

fn connection(theirs: Schedule, ours: Schedule, tls: bool) -> (End, Io, Client) {
    let (end, io) = pair(ours, theirs);
    let peer = SocketAddr::from(([127, 0, 0, 1], 40_000));
    let local = SocketAddr::from(([127, 0, 0, 1], 9080));
    (end, Io::Memory(io), Client::new(peer, local, tls))
}
