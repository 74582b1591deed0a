//! The workers' threads: their start and their stop.
#![expect(
    clippy::disallowed_types,
    reason = "copies of sockets are for the control side; no worker takes the lock"
)]

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use sdk::meters::Meters;
use snapshot::Reader;

use crate::listener::{BACKLOG, Listener};
use crate::rt;
use crate::settings::Settings;
use crate::stage::Stage;
use crate::watch::{Member, Watch};
use crate::worker::{Start, serve};

/// Sockets for datagrams.
#[derive(Debug, Default)]
pub struct Datagrams {
    /// A set for each worker.
    pub sockets: Vec<Vec<UdpSocket>>,
    /// Where the process whose place this one takes had a port of HTTP/3: a line to each of its sockets, in their
    /// order.
    pub lines: Vec<(SocketAddr, OwnedFd)>,
}

/// All workers of the process.
#[derive(Debug)]
pub struct Workers {
    stage: rt::Signaller,
    threads: Vec<JoinHandle<()>>,
    watch: Watch,
    /// Copies of listening sockets, for [`Workers::sockets`].
    copies: Mutex<Receiver<io::Result<Vec<OwnedFd>>>>,
}

impl Workers {
    /// Opens one set of listening sockets for each worker, so that an address in use is
    /// known before anything starts. The error names the address.
    ///
    /// Workers share each address by `SO_REUSEPORT`, by which another process could share it as
    /// well, unnoticed. So the first socket takes the address for itself alone, and is opened to the
    /// others only once it listens; `reuse_port` leaves that out.
    ///
    /// # Errors
    /// The address, and why it cannot be had.
    pub fn listen(
        settings: &Settings,
        workers: usize,
    ) -> Result<Vec<Vec<TcpListener>>, (SocketAddr, io::Error)> {
        let open = |worker: usize, listener: &Listener| {
            let shared = worker > 0 || settings.reuse_port;
            let addr = listener.address;
            let served = listener.front().and_then(|_| rt::listen(addr, BACKLOG, shared));
            served.map_err(|error| (addr, error))
        };
        let set = |worker| settings.listen.iter().map(|listener| open(worker, listener)).collect();
        (0..workers).map(set).collect()
    }

    /// The same for datagrams ([`crate::Streams::udp`]).
    ///
    /// # Errors
    /// As there.
    pub fn listen_udp(
        settings: &Settings,
        workers: usize,
    ) -> Result<Vec<Vec<UdpSocket>>, (SocketAddr, io::Error)> {
        let open = |worker: usize, addr: &SocketAddr| {
            rt::listen_udp(*addr, worker > 0 || settings.reuse_port).map_err(|error| (*addr, error))
        };
        let set = |worker| settings.streams.udp.iter().map(|addr| open(worker, addr)).collect();
        (0..workers).map(set).collect()
    }

    /// Starts a worker for each reader and its set of listening sockets. Returns when all of them
    /// serve.
    ///
    /// # Errors
    /// Which worker cannot serve, and why; none does then.
    pub fn start(
        settings: Arc<Settings>,
        sockets: Vec<Vec<TcpListener>>,
        readers: Vec<Reader>,
        meters: &Arc<Meters>,
    ) -> io::Result<Workers> {
        Workers::start_with(settings, sockets, Datagrams::default(), readers, meters)
    }

    /// The same with sockets for datagrams, of streams and, on the addresses of listeners that have it, of
    /// HTTP/3.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(
        settings: Arc<Settings>,
        sockets: Vec<Vec<TcpListener>>,
        datagrams: Datagrams,
        readers: Vec<Reader>,
        meters: &Arc<Meters>,
    ) -> io::Result<Workers> {
        let stage = rt::signaller();
        let count = readers.len();
        let watch = Watch::new(count);
        let (copy, copies) = channel();
        let mut workers = Workers { stage, threads: Vec::new(), watch, copies: Mutex::new(copies) };
        let (ready, started) = channel();
        let pressure = Arc::<AtomicU64>::default();
        let Datagrams { sockets: mut datagrams, lines } = datagrams;
        let mut posts = posts(&settings, &datagrams, lines, count)?;
        for (index, (sockets, reader)) in sockets.into_iter().zip(readers).enumerate() {
            let start = Start {
                index,
                settings: settings.clone(),
                sockets,
                datagrams: datagrams.get_mut(index).map(std::mem::take).unwrap_or_default(),
                posts: posts.iter_mut().filter_map(Iterator::next).collect(),
                reader,
                shard: meters.shard(index),
                signal: workers.stage.subscribe(),
                pressure: pressure.clone(),
                watch: workers.watch.clone(),
                copies: copy.clone(),
                ready: ready.clone(),
            };
            let spawned =
                std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || run(start));
            match spawned {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    workers.stop();
                    let text = format!("only {index} of {count} threads could be started: {error}");
                    return Err(io::Error::new(error.kind(), text));
                }
            }
        }
        drop(ready);
        // Ends when every worker has either said that it serves or ended.
        let serving = started.iter().count();
        if serving < count {
            let watch = workers.watch.clone();
            workers.stop();
            return Err(io::Error::other(match watch.ended().into_iter().next() {
                Some((index, why)) => format!("worker {index} of {count} cannot serve: {why}"),
                None => "a worker ended at its start".to_owned(),
            }));
        }
        Ok(workers)
    }

    /// Copies of all listening sockets, those for datagrams included, for another process. Blocks for a
    /// tick or two.
    ///
    /// # Errors
    /// No descriptors are left, or a worker does not answer in time.
    pub fn sockets(&self, patience: Duration) -> io::Result<Vec<OwnedFd>> {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        // Copies that came too late for an earlier call.
        copies.try_iter().for_each(drop);
        for member in &self.watch.0.members {
            member.copy_sockets.store(true, Ordering::Release);
        }
        let mut all = Vec::new();
        for _ in &self.watch.0.members {
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "a worker does not answer");
            all.extend(copies.recv_timeout(patience).map_err(late)??);
        }
        Ok(all)
    }

    /// Tells all workers; returns at once.
    pub fn set_stage(&self, stage: Stage) {
        self.watch.0.stopping.store(stage != Stage::Run, Ordering::Release);
        self.stage.send_replace(stage);
    }

    /// How they are.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// All workers have ended.
    pub fn finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits for all workers to end.
    ///
    /// # Errors
    /// Why a worker failed, or ended without being asked to.
    pub fn join(self) -> io::Result<()> {
        for thread in self.threads {
            // A thread that panicked has noted that as its end.
            let _ = thread.join();
        }
        match self.watch.0.members.iter().find_map(Member::end) {
            Some(end) => Err(io::Error::other(end)),
            None => Ok(()),
        }
    }

    fn stop(self) {
        self.set_stage(Stage::Stop);
        let _ = self.join();
    }
}

/// For each port of HTTP/3, the workers' places.
fn posts(
    settings: &Settings,
    sockets: &[Vec<UdpSocket>],
    lines: Vec<(SocketAddr, OwnedFd)>,
    workers: usize,
) -> io::Result<Vec<std::vec::IntoIter<rt::quic::Post>>> {
    let of_h3 = |sockets: &Vec<UdpSocket>| -> Vec<SocketAddr> {
        let addresses = sockets.iter().filter_map(|socket| socket.local_addr().ok());
        addresses.filter(|local| settings.is_h3(*local)).collect()
    };
    let ports = sockets.iter().map(of_h3).max_by_key(Vec::len).unwrap_or_default();
    let mut elders: HashMap<SocketAddr, Vec<rt::quic::Elder>> = HashMap::new();
    for (address, line) in lines {
        elders.entry(address).or_default().push(rt::quic::Elder::new(line)?);
    }
    let elders: HashMap<SocketAddr, Arc<[rt::quic::Elder]>> =
        elders.into_iter().map(|(address, all)| (address, all.into())).collect();
    let mut posts = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        // After an upgrade to fewer workers, each has several sockets of one address.
        let earlier = ports[..index].iter().filter(|other| *other == port).count();
        let elders = elders.get(port).cloned().unwrap_or_default();
        posts.push(rt::quic::posts(workers, &elders, earlier * workers).into_iter());
    }
    Ok(posts)
}

/// A worker's thread.
fn run(start: Start) {
    let (index, watch) = (start.index, start.watch.clone());
    // Dropped last, so the end is reported even after a panic.
    let mut end = End { member: &watch.0.members[index], why: Some("it panicked".to_owned()) };
    let result = rt::run(serve(start));
    let stops = watch.0.stopping.load(Ordering::Acquire);
    end.why = match result.and_then(|served| served) {
        Ok(()) if stops => None,
        Ok(()) => Some("it stopped unasked".to_owned()),
        Err(error) => Some(error.to_string()),
    };
}

struct End<'a> {
    member: &'a Member,
    why: Option<String>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.member.note_end(self.why.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::{empty, free};
    use snapshot::Publisher;

    fn start(settings: Settings, count: usize) -> (io::Result<Workers>, Publisher) {
        let (publisher, readers) = Publisher::new(empty(), count);
        let sockets = Workers::listen(&settings, count).unwrap();
        (Workers::start(Arc::new(settings), sockets, readers, &Arc::default()), publisher)
    }

    #[test]
    fn a_port_of_datagrams_belongs_to_one_process() {
        let addr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut settings = Settings::default();
        settings.streams.udp = vec![addr];
        let open = |settings: &Settings| Workers::listen_udp(settings, 2);
        let first = open(&settings).unwrap();
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
        let (at, error) = open(&settings).unwrap_err();
        assert_eq!((at, error.kind()), (addr, io::ErrorKind::AddrInUse));
        drop(first);
        settings.reuse_port = true;
        let (_first, _second) = (open(&settings).unwrap(), open(&settings).unwrap());
    }

    #[test]
    fn a_worker_that_ends_unasked_is_noticed() {
        let (workers, _publisher) =
            start(Settings { listen: vec![Listener::http(free())], ..Settings::default() }, 2);
        let workers = workers.unwrap();
        let watch = workers.watch().clone();
        assert_eq!((watch.count(), watch.all_serve()), (2, Ok(())));
        // Unlike `set_stage`, this does not note that they are to stop.
        workers.stage.send_replace(Stage::Stop);
        for _ in 0..2000 {
            if watch.ended().len() == 2 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(watch.ended().len(), 2);
        assert_eq!(watch.all_serve(), Err("worker id: 0 has ended: it stopped unasked".to_owned()));
        assert!(workers.join().is_err());
    }

    #[test]
    fn listening_sockets_are_copied_and_outlive_their_workers() {
        let addr = free();
        let (workers, _publisher) =
            start(Settings { listen: vec![Listener::http(addr)], ..Settings::default() }, 2);
        let workers = workers.unwrap();
        let copies = workers.sockets(Duration::from_secs(30)).unwrap();
        assert_eq!(copies.len(), 2);
        assert_eq!(workers.sockets(Duration::from_secs(30)).unwrap().len(), 2, "as often as one likes");
        workers.set_stage(Stage::HandOver);
        workers.join().unwrap();
        let sockets: Vec<TcpListener> = copies.into_iter().map(TcpListener::from).collect();
        assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == addr));
        let _client = std::net::TcpStream::connect(addr).unwrap();
        let taken = sockets.iter().filter(|socket| socket.accept().is_ok()).count();
        assert_eq!(taken, 1, "no other worker has taken the connection, and it was not reset");
    }

    #[test]
    fn a_requested_stop_is_not_reported() {
        let (workers, _publisher) =
            start(Settings { listen: vec![Listener::http(free())], ..Settings::default() }, 2);
        let workers = workers.unwrap();
        let watch = workers.watch().clone();
        workers.set_stage(Stage::Stop);
        workers.join().unwrap();
        assert_eq!(watch.all_serve(), Ok(()));
    }

    #[test]
    fn a_worker_that_cannot_serve_fails_the_start_and_leaves_none_behind() {
        const COUNT: usize = 16;
        let (_publisher, readers) = Publisher::new(empty(), COUNT);
        let settings = Settings { listen: vec![Listener::http(free())], ..Settings::default() };
        let mut sockets = Workers::listen(&settings, COUNT).unwrap();
        // A descriptor that the runtime cannot wait for.
        sockets[COUNT - 1] =
            vec![std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap()).into()];
        let settings = Arc::new(settings);
        let failed = Workers::start(settings.clone(), sockets, readers, &Arc::default()).unwrap_err();
        // Each thread has them for as long as it runs.
        assert_eq!(Arc::strong_count(&settings), 1, "threads still run");
        assert!(failed.to_string().starts_with("worker 15 of 16 cannot serve: "), "{failed}");
        assert!(Workers::listen(&settings, 1).is_ok(), "the address is free");
    }

    #[test]
    fn where_a_worker_has_several_sockets_of_a_port_each_has_another_elder() {
        // As after an upgrade from four workers to two; the second port of HTTP/3 is a new one.
        let port = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            (socket.local_addr().unwrap(), socket)
        };
        let ((several, socket), (one, other), (streams, third)) = (port(), port(), port());
        let copy = |socket: &UdpSocket| socket.try_clone().unwrap();
        let own = || vec![copy(&socket), copy(&third), copy(&socket), copy(&other)];
        let h3 = |address| Listener {
            tls: true,
            traffic: crate::Traffic::Http(crate::Versions { h1: true, h2: true, h3: true }),
            ..Listener::http(address)
        };
        let mut settings = Settings { listen: vec![h3(several), h3(one)], ..Settings::default() };
        settings.streams.udp = vec![streams];
        let posts = posts(&settings, &[own(), own()], Vec::new(), 2).unwrap();
        let elders = posts.into_iter().map(|of_port| of_port.map(|post| post.elder()).collect::<Vec<_>>());
        assert_eq!(elders.collect::<Vec<_>>(), [[0, 1], [2, 3], [0, 1]]);
    }

    #[test]
    fn a_port_is_taken_alone_unless_it_is_to_be_shared() {
        let all = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let one = free();
        for (first, second) in [(one, one), (one, all(one.port())), (all(one.port()), one)] {
            let settings = |addr, reuse_port| Settings {
                listen: vec![Listener::http(addr)],
                reuse_port,
                ..Settings::default()
            };
            let held = Workers::listen(&settings(first, false), 3).unwrap();
            let (addr, refused) = Workers::listen(&settings(second, false), 3).unwrap_err();
            assert_eq!((addr, refused.kind()), (second, io::ErrorKind::AddrInUse));
            let shared = Workers::listen(&settings(second, true), 3);
            assert_eq!(shared.map(|sockets| sockets.len()).ok(), Some(3), "{first} and {second}");
            drop(held);
        }
    }

    #[test]
    fn the_kernel_spreads_connections_over_all_workers() {
        let addr = free();
        let sockets =
            Workers::listen(&Settings { listen: vec![Listener::http(addr)], ..Settings::default() }, 2)
                .unwrap();
        let clients: Vec<_> = (0..64).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
        let counts: Vec<usize> =
            sockets.iter().map(|own| std::iter::from_fn(|| own[0].accept().ok()).count()).collect();
        assert_eq!(counts.iter().sum::<usize>(), clients.len());
        assert!(counts.iter().all(|&count| count > 8), "{counts:?}");
    }
}
