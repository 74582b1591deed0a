//! hot path
//!
//! Idle upstream connections, kept by the worker from exchange to exchange.
//!
//! Keyed by address, protocol and TLS identity, so they outlive configuration changes. Last in, first out:
//! the connection used next is the one least likely to have been closed by the
//! other side.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use hashbrown::HashMap;
use rustls::pki_types::ServerName;
use snapshot::certs::ClientTls;
use snapshot::upstream::Keepalive;

use super::h1::Conn;

/// Where a connection leads and what is spoken on it. A connection serves no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    addr: SocketAddr,
    protocol: Protocol,
    tls: TlsIdentity,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    /// A protocol of plugins.
    Raw,
}

/// How a connection's TLS was set up: a keyed digest of server name, verification and client
/// certificate, so long that no two are alike. 0 is no TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TlsIdentity([u64; 2]);

/// One word for what is usual, an IPv4 address without TLS: every request looks here twice.
impl Hash for Peer {
    #[inline]
    fn hash<H: Hasher>(&self, to: &mut H) {
        let rest = u64::from(self.addr.port()) << 8 | self.protocol as u64;
        match self.addr.ip() {
            IpAddr::V4(ip) => to.write_u64(u64::from(ip.to_bits()) << 32 | rest),
            IpAddr::V6(ip) => {
                to.write_u128(ip.to_bits());
                to.write_u64(rest);
            }
        }
        if self.tls.0[0] != 0 {
            // It is a digest already.
            to.write_u64(self.tls.0[0]);
        }
    }
}

impl Peer {
    /// The same server, spoken to in HTTP/2.
    pub(crate) fn with_h2(self) -> Peer {
        Peer { protocol: Protocol::Http2, ..self }
    }

    /// The same at another address.
    pub(crate) fn at(self, addr: SocketAddr) -> Peer {
        Peer { addr, ..self }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// HTTP/1 without TLS.
    #[inline]
    pub(crate) fn plain(addr: SocketAddr) -> Peer {
        Peer { addr, protocol: Protocol::Http1, tls: TlsIdentity([0; 2]) }
    }
}

#[derive(Debug)]
struct Idle {
    conn: Box<Conn>,
    /// Milliseconds of the worker's clock: when it was put back, and when it must go.
    since: u64,
    until: u64,
    /// Later ones have larger numbers.
    number: u64,
}

/// The idle connections to one peer.
#[derive(Debug, Default)]
struct Server {
    idle: Vec<Idle>,
    /// Sweeps since it was last asked for: the place of a server is kept also while all of its
    /// connections are in use.
    sweeps: u8,
}

/// A worker's idle upstream connections.
#[derive(Debug)]
pub(crate) struct Pools {
    by_peer: RefCell<HashMap<Peer, Server, foldhash::fast::RandomState>>,
    len: Cell<usize>,
    /// Bound of all together.
    max: usize,
    given: Cell<u64>,
    /// One for each address with connections, which share it.
    counted: RefCell<HashMap<SocketAddr, Rc<()>, foldhash::fast::RandomState>>,
    /// Keyed, so that clients cannot choose names with equal digests.
    digests: [RandomState; 2],
}

/// After this many milliseconds of idleness the kernel is asked whether a connection still
/// lives before a request is put on it.
const TRUSTED_MS: u64 = 500;

/// From this many peers on, those without idle connections are forgotten at once.
const PLACES: usize = 16 << 10;

/// A peer without idle connections is forgotten after this many sweeps.
const FORGET_AFTER: u8 = 60;

impl Pools {
    /// Keeps at most `max` connections, to whichever servers.
    pub(crate) fn new(max: usize) -> Pools {
        Pools {
            by_peer: RefCell::default(),
            len: Cell::new(0),
            max,
            given: Cell::new(0),
            counted: RefCell::default(),
            digests: Default::default(),
        }
    }

    /// HTTP/1 over TLS with a server of this name.
    pub(crate) fn over_tls(&self, addr: SocketAddr, tls: &ClientTls, name: &ServerName<'_>) -> Peer {
        // Never that of a connection without TLS.
        let digest = |by: &RandomState| by.hash_one((tls.identity(), name)) | 1;
        let [one, other] = &self.digests;
        Peer { addr, protocol: Protocol::Http1, tls: TlsIdentity([digest(one), digest(other)]) }
    }

    /// A raw connection of plugins, by all that it depends on.
    pub(crate) fn raw(&self, of: &impl Hash) -> Peer {
        let [one, other] = &self.digests;
        let tls = TlsIdentity([one.hash_one(of) | 1, other.hash_one(of)]);
        Peer { addr: SocketAddr::from(([0; 4], 0)), protocol: Protocol::Raw, tls }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// An idle connection to this server that is still open, as far as can be known. With
    /// `careful` (a request that must not be sent twice) the kernel is asked in any case; else
    /// only after a while, or when something happened on it. That may be nothing but the late
    /// report of a response's last piece, which was read along with the piece before.
    pub(crate) fn take(&self, peer: Peer, now: u64, careful: bool) -> Option<Box<Conn>> {
        let mut all = self.by_peer.borrow_mut();
        let server = all.get_mut(&peer)?;
        server.sweeps = 0;
        while let Some(candidate) = server.idle.pop() {
            self.len.set(self.len.get() - 1);
            let io = &candidate.conn.io;
            let ask = careful || now.saturating_sub(candidate.since) > TRUSTED_MS || io.maybe_readable();
            if candidate.until > now && (!ask || io.is_idle()) {
                return Some(candidate.conn);
            }
        }
        None
    }

    /// Idle connections to this server.
    pub(crate) fn count(&self, peer: Peer) -> usize {
        self.by_peer.borrow().get(&peer).map_or(0, |server| server.idle.len())
    }

    /// How many more may be kept without another one giving way.
    pub(crate) fn room(&self) -> usize {
        self.max.saturating_sub(self.len.get())
    }

    /// Keeps a connection whose response was read to its end.
    pub(crate) fn give(&self, peer: Peer, mut conn: Box<Conn>, keepalive: &Keepalive, now: u64) {
        if conn.requests >= keepalive.requests || keepalive.size == 0 {
            return;
        }
        if self.len.get() >= self.max {
            if self.max == 0 {
                return;
            }
            // Several at once, as finding the oldest looks at all.
            self.close_oldest(self.max.div_ceil(16));
        }
        let mut all = self.by_peer.borrow_mut();
        if all.len() >= PLACES {
            // Names that clients choose make peers; places without a connection are for convenience.
            all.retain(|_, server| !server.idle.is_empty());
        }
        let server = all.entry(peer).or_default();
        if server.idle.len() >= keepalive.size {
            // The oldest gives way, as in NGINX: it is the likeliest to have been closed by the server.
            let more = server.idle.len() + 1 - keepalive.size;
            server.idle.drain(..more);
            self.len.set(self.len.get() - more);
        }
        conn.reused = true;
        let number = self.given.get();
        self.given.set(number + 1);
        // Zero is no limit, as in APISIX.
        let until = match keepalive.idle_timeout.as_millis() as u64 {
            0 => u64::MAX,
            millis => now.saturating_add(millis),
        };
        server.idle.push(Idle { conn, since: now, until, number });
        self.len.set(self.len.get() + 1);
    }

    /// Closes those that have been idle longest, whichever servers they lead to. Says how many.
    #[cold]
    pub(crate) fn close_oldest(&self, most: usize) -> usize {
        let mut all = self.by_peer.borrow_mut();
        let mut numbers: Vec<u64> =
            all.values().flat_map(|server| server.idle.iter().map(|one| one.number)).collect();
        let count = most.min(numbers.len());
        if count == 0 {
            return 0;
        }
        let (_, &mut last, _) = numbers.select_nth_unstable(count - 1);
        for server in all.values_mut() {
            server.idle.retain(|one| one.number > last);
        }
        self.len.set(self.len.get() - count);
        count
    }

    /// The share of a new connection in the count of its address.
    pub(crate) fn counted(&self, addr: SocketAddr) -> Rc<()> {
        self.counted.borrow_mut().entry(addr).or_default().clone()
    }

    /// Passes on the connections that are not idle, each with a request, by address. Called once a second.
    pub(crate) fn in_use(&self, mut add: impl FnMut(SocketAddr, usize)) {
        let mut counted = self.counted.borrow_mut();
        counted.retain(|_, count| Rc::strong_count(count) > 1);
        if counted.is_empty() {
            return;
        }
        let all = self.by_peer.borrow();
        let mut idle: HashMap<SocketAddr, usize, foldhash::fast::RandomState> = HashMap::default();
        for (peer, server) in all.iter().filter(|(_, server)| !server.idle.is_empty()) {
            let known = server.idle.iter().filter(|one| one.conn.counted.is_some()).count();
            *idle.entry(peer.addr).or_default() += known;
        }
        for (addr, count) in &*counted {
            let open = Rc::strong_count(count) - 1;
            add(*addr, open.saturating_sub(idle.get(addr).copied().unwrap_or_default()));
        }
    }

    /// Closes what has been idle too long or was closed by the other side. Called once a second.
    pub(crate) fn sweep(&self, now: u64) {
        let mut all = self.by_peer.borrow_mut();
        all.retain(|_, server| {
            server.idle.retain(|one| {
                let io = &one.conn.io;
                one.until > now && (!io.maybe_readable() || io.is_idle())
            });
            server.sweeps = server.sweeps.saturating_add(1);
            !server.idle.is_empty() || server.sweeps < FORGET_AFTER
        });
        self.len.set(all.values().map(|server| server.idle.len()).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt;
    use std::net::TcpListener;
    use std::time::Duration;

    const KEEP: Keepalive = Keepalive { size: 100, idle_timeout: Duration::from_secs(60), requests: 10 };

    /// Runs with servers that take connections and say nothing.
    fn with_servers<const N: usize>(test: impl AsyncFnOnce([Peer; N]) + 'static) {
        let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addrs = std::array::from_fn(|at| Peer::plain(listeners[at].local_addr().unwrap()));
        rt::run(async move { test(addrs).await }).unwrap();
    }

    async fn open(peer: Peer) -> Box<Conn> {
        let mut conn = Conn::new(rt::connect(peer.addr).await.unwrap());
        conn.requests = 1;
        conn
    }

    fn at(pools: &Pools, addr: Peer) -> usize {
        pools.by_peer.borrow().get(&addr).map_or(0, |server| server.idle.len())
    }

    #[test]
    fn a_connection_is_for_the_server_and_the_identity_it_was_made_with() {
        let pools = Pools::new(1);
        let addr = "10.0.0.1:443".parse().unwrap();
        let trusting = snapshot::certs::CommonTls::default().trusting;
        let mut peers = vec![Peer::plain(addr)];
        for tls in [&*trusting, &trusting.lacking("another identity")] {
            for number in 0..16 {
                let name = ServerName::try_from(format!("{number}.example")).unwrap();
                let peer = pools.over_tls(addr, tls, &name);
                assert!(peer == pools.over_tls(addr, tls, &name));
                assert!(peers.iter().all(|other| *other != peer), "{number}.example");
                peers.push(peer);
            }
        }
    }

    #[test]
    fn the_bound_is_for_all_servers_and_the_oldest_go() {
        with_servers(async |[a, b]: [Peer; 2]| {
            let pools = Pools::new(4);
            for addr in [a, a, b, b, b] {
                pools.give(addr, open(addr).await, &KEEP, 0);
            }
            assert_eq!((pools.len(), at(&pools, a), at(&pools, b)), (4, 1, 3));
            assert_eq!(pools.close_oldest(2), 2);
            assert_eq!((pools.len(), at(&pools, a), at(&pools, b)), (2, 0, 2));
            assert_eq!(pools.close_oldest(8), 2, "no more than there are");
            assert_eq!((pools.len(), pools.close_oldest(1)), (0, 0));
            let none = Pools::new(0);
            none.give(a, open(a).await, &KEEP, 0);
            assert_eq!(none.len(), 0);
        });
    }

    #[test]
    fn connections_with_a_request_are_counted_by_address() {
        with_servers(async |[a, b]: [Peer; 2]| {
            let pools = Pools::new(4);
            let in_use = |pools: &Pools| {
                let mut all = Vec::new();
                pools.in_use(|addr, count| all.push((addr, count)));
                all
            };
            let counted = async |peer: Peer| {
                let mut conn = open(peer).await;
                conn.counted = Some(pools.counted(peer.addr));
                conn
            };
            let (first, second) = (counted(a).await, counted(a).await);
            // Connections without a count, idle or not, change nothing.
            pools.give(a, open(a).await, &KEEP, 0);
            assert_eq!(in_use(&pools), [(a.addr, 2)]);
            pools.give(a, first, &KEEP, 0);
            assert_eq!(in_use(&pools), [(a.addr, 1)]);
            let again = pools.take(a, 0, false).unwrap();
            assert_eq!(in_use(&pools), [(a.addr, 2)]);
            drop((again, second));
            assert!(in_use(&pools).is_empty() && pools.counted.borrow().is_empty());
            let other = counted(b).await;
            assert_eq!(in_use(&pools), [(b.addr, 1)]);
            drop(other);
        });
    }

    #[test]
    fn each_limit_of_a_server_holds() {
        with_servers(async |[a]: [Peer; 1]| {
            let pools = Pools::new(100);
            let two = Keepalive { size: 2, ..KEEP };
            for _ in 0..3 {
                pools.give(a, open(a).await, &two, 0);
            }
            assert_eq!(pools.len(), 2, "size");
            let mut used = pools.take(a, 0, false).unwrap();
            assert!(used.reused);
            used.requests = KEEP.requests;
            pools.give(a, used, &KEEP, 0);
            assert_eq!(pools.len(), 1, "requests");
            let used = pools.take(a, 0, false).unwrap();
            pools.give(a, used, &Keepalive { idle_timeout: Duration::ZERO, ..KEEP }, 0);
            assert!(pools.take(a, 1 << 40, false).is_some(), "0 is no limit");
            pools.give(a, open(a).await, &KEEP, 1000);
            pools.give(a, open(a).await, &KEEP, 2000);
            for now in [61_000, 61_001] {
                pools.sweep(now);
                assert_eq!(pools.len(), 1, "its time is over");
            }
            assert!(pools.take(a, 62_000, false).is_none(), "and that of the other, by now");
            assert_eq!(pools.len(), 0);
        });
    }

    #[test]
    fn the_place_of_a_server_in_use_is_kept() {
        with_servers(async |[a]: [Peer; 1]| {
            let pools = Pools::new(100);
            pools.give(a, open(a).await, &KEEP, 0);
            for _ in 0..200 {
                let conn = pools.take(a, 0, false).unwrap();
                pools.sweep(0);
                assert!(pools.by_peer.borrow().get(&a).is_some_and(|server| server.idle.capacity() > 0));
                pools.give(a, conn, &KEEP, 0);
            }
            drop(pools.take(a, 0, false));
            for _ in 0..FORGET_AFTER {
                pools.sweep(0);
            }
            assert!(pools.by_peer.borrow().is_empty(), "no request asks for it");
        });
    }

    #[test]
    fn what_the_other_side_closed_is_not_given_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = Peer::plain(listener.local_addr().unwrap());
        rt::run(async move {
            let pools = Pools::new(100);
            pools.give(addr, open(addr).await, &KEEP, 0);
            drop(listener.accept().unwrap());
            assert!(pools.take(addr, 0, true).is_none(), "the kernel was asked");
            pools.give(addr, open(addr).await, &KEEP, 0);
            drop(listener.accept().unwrap());
            assert!(pools.take(addr, TRUSTED_MS + 1, false).is_none(), "after a while as well");
        })
        .unwrap();
    }

    #[test]
    fn what_is_kept_is_counted() {
        with_servers(async |[a, b]: [Peer; 2]| {
            let pools = Pools::new(4);
            for addr in [a, a, b] {
                pools.give(addr, open(addr).await, &KEEP, 0);
            }
            assert_eq!((pools.count(a), pools.count(b), pools.room()), (2, 1, 1));
            assert_eq!((pools.count(a.with_h2()), Pools::new(4).room()), (0, 4));
        });
    }

    #[test]
    fn a_peer_is_an_address_a_protocol_and_an_identity() {
        let [one, other] = ["10.0.0.1:80", "10.0.0.2:80"].map(|addr| addr.parse().unwrap());
        let plain = Peer::plain(one);
        assert_ne!(plain.with_h2(), plain);
        assert_eq!((plain.at(other), plain.at(one)), (Peer::plain(other), plain));
    }

    #[test]
    fn places_without_a_connection_go_only_when_there_are_many() {
        with_servers(async |[a, b, c]: [Peer; 3]| {
            let pools = Pools::new(100);
            let has = |peer: &Peer| pools.by_peer.borrow().contains_key(peer);
            pools.give(a, open(a).await, &KEEP, 0);
            let used = pools.take(a, 0, false);
            pools.give(b, open(b).await, &KEEP, 0);
            assert!(used.is_some() && has(&a));
            let many = (0..PLACES as u32)
                .map(|n| Peer::plain(SocketAddr::from((std::net::Ipv4Addr::from_bits(n), 1))));
            pools.by_peer.borrow_mut().extend(many.map(|peer| (peer, Server::default())));
            pools.give(c, open(c).await, &KEEP, 0);
            assert_eq!((pools.by_peer.borrow().len(), has(&b), has(&c)), (2, true, true));
        });
    }

    #[test]
    fn what_the_other_side_closed_is_swept() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = Peer::plain(listener.local_addr().unwrap());
        rt::run(async move {
            let pools = Pools::new(100);
            pools.give(addr, open(addr).await, &KEEP, 0);
            let kept = listener.accept().unwrap();
            pools.sweep(0);
            assert_eq!(pools.len(), 1);
            drop(kept);
            // It is swept once the kernel has reported it.
            for _ in 0..1000 {
                rt::sleep(Duration::from_millis(1)).await;
                pools.sweep(0);
                if pools.len() == 0 {
                    return;
                }
            }
            panic!("it is still there");
        })
        .unwrap();
    }
}
