#![expect(clippy::disallowed_types, reason = "quinn wants its socket to be `Sync`; one thread alone uses it")]
//! Datagrams find the worker that has their connection.
//!
//! The workers' sockets share a port, and the kernel chooses one of them by the addresses of a datagram. That
//! is always the same one, until a client's address changes: a phone that leaves its network, a router that
//! forgets a mapping. The connection is with another worker then. So a connection's id says whose it is, in
//! a form that tells nobody else, and a worker that gets what is another's passes it on.
//!
//! The kernel could do this itself by a program attached to the port (`SO_ATTACH_REUSEPORT_EBPF`). That takes
//! privileges which containers seldom have, and a program in another language; and what would be saved is
//! one copy, for the few datagrams of clients that have moved.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, UdpPoller};
use quinn_proto::RandomConnectionIdGenerator;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Random bytes of an id …
const NONCE: usize = 8;
/// … and those that say whose it is.
const OWNER: usize = 2;

/// Datagrams that may wait for a worker which is not their socket's. What is more is dropped, as on any
/// network.
const WAITING: usize = 256;

/// One worker's place among those that share a port.
#[derive(Debug)]
pub(crate) struct Post {
    routes: Arc<Routes>,
    me: usize,
    inbox: Receiver<Datagram>,
}

/// Where each worker of a port gets its datagrams from others.
struct Routes {
    inboxes: Box<[Sender<Datagram>]>,
    key: RandomState,
}

#[derive(Debug)]
struct Datagram {
    bytes: Box<[u8]>,
    meta: RecvMeta,
}

/// Places for so many workers that share a port.
pub(crate) fn posts(workers: usize) -> Vec<Post> {
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel(WAITING)).unzip();
    let routes = Arc::new(Routes { inboxes: inboxes.into(), key: RandomState::new() });
    receivers.into_iter().enumerate().map(|(me, inbox)| Post { routes: routes.clone(), me, inbox }).collect()
}

impl Post {
    /// Makes the ids of this worker's connections.
    pub(super) fn ids(&self) -> impl Fn() -> Box<dyn ConnectionIdGenerator> + Send + Sync + use<> {
        let (routes, me) = (self.routes.clone(), self.me);
        move || Box::new(Ids { routes: routes.clone(), me, nonces: RandomConnectionIdGenerator::new(NONCE) })
    }

    /// The worker's socket, which takes what others pass on as well.
    pub(super) fn receive(self, socket: Arc<dyn AsyncUdpSocket>) -> Socket {
        let Post { routes, me, inbox } = self;
        Socket { socket, routes, me, inbox: Mutex::new(inbox) }
    }
}

impl Routes {
    /// What an owner's number is hidden behind.
    fn mask(&self, nonce: &[u8]) -> u16 {
        self.key.hash_one(nonce) as u16
    }

    fn id(&self, nonce: &[u8], owner: usize) -> ConnectionId {
        let mut id = [0; NONCE + OWNER];
        id[..NONCE].copy_from_slice(nonce);
        id[NONCE..].copy_from_slice(&(owner as u16 ^ self.mask(nonce)).to_be_bytes());
        ConnectionId::new(&id)
    }

    /// Whose connection an id is of, if it was made here.
    fn owner(&self, id: &[u8]) -> Option<usize> {
        let (nonce, owner) = id.split_at_checked(NONCE)?;
        let hidden = u16::from_be_bytes([*owner.first()?, *owner.get(1)?]);
        let owner = usize::from(hidden ^ self.mask(nonce));
        (owner < self.inboxes.len()).then_some(owner)
    }

    /// Whose a datagram is. One with a long header belongs to a handshake, in which clients do not move; its
    /// id may be the client's own invention.
    fn owner_of(&self, datagram: &[u8]) -> Option<usize> {
        match datagram {
            [first, id @ ..] if first & 0x80 == 0 => self.owner(id.get(..NONCE + OWNER)?),
            _ => None,
        }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("workers", &self.inboxes.len()).finish_non_exhaustive()
    }
}

struct Ids {
    routes: Arc<Routes>,
    me: usize,
    nonces: RandomConnectionIdGenerator,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.routes.id(&self.nonces.generate_cid(), self.me)
    }

    fn cid_len(&self) -> usize {
        NONCE + OWNER
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A worker's socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: Arc<dyn AsyncUdpSocket>,
    routes: Arc<Routes>,
    me: usize,
    inbox: Mutex<Receiver<Datagram>>,
}

impl Socket {
    /// Takes what others have passed on.
    fn poll_inbox(&self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> usize {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut n = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Poll::Ready(Some(datagram)) = inbox.poll_recv(cx) else { break };
            let length = datagram.bytes.len().min(buf.len());
            buf[..length].copy_from_slice(&datagram.bytes[..length]);
            *meta = RecvMeta { len: length, stride: length, ..datagram.meta };
            n += 1;
        }
        n
    }

    /// Passes on what is others' of the datagrams in a buffer, and closes the gaps.
    fn keep_own(&self, buf: &mut [u8], meta: &mut RecvMeta) {
        let (all, stride) = (meta.len, meta.stride.max(1));
        let (mut kept, mut from) = (0, 0);
        while from < all {
            let end = (from + stride).min(all);
            match self.routes.owner_of(&buf[from..end]) {
                Some(owner) if owner != self.me => {
                    let meta = RecvMeta { len: end - from, stride: end - from, ..*meta };
                    let datagram = Datagram { bytes: buf[from..end].into(), meta };
                    let _ = self.routes.inboxes[owner].try_send(datagram);
                }
                _ => {
                    if kept < from {
                        buf.copy_within(from..end, kept);
                    }
                    kept += end - from;
                }
            }
            from = end;
        }
        meta.len = kept;
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.routes.inboxes.len() == 1 {
            return self.socket.poll_recv(cx, bufs, meta);
        }
        let handed = self.poll_inbox(cx, bufs, meta);
        if handed > 0 {
            return Poll::Ready(Ok(handed));
        }
        let received = self.socket.poll_recv(cx, bufs, meta);
        if let Poll::Ready(Ok(n)) = received {
            for (buf, meta) in bufs.iter_mut().zip(meta).take(n) {
                self.keep_own(buf, meta);
            }
        }
        received
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nowhere;

    impl AsyncUdpSocket for Nowhere {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            unreachable!("nothing is sent")
        }

        fn try_send(&self, _: &Transmit<'_>) -> io::Result<()> {
            Ok(())
        }

        fn poll_recv(
            &self,
            _: &mut Context<'_>,
            _: &mut [IoSliceMut<'_>],
            _: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
        }
    }

    fn sockets(workers: usize) -> Vec<(Box<dyn ConnectionIdGenerator>, Socket)> {
        let of = |post: Post| ((post.ids())(), post.receive(Arc::new(Nowhere)));
        posts(workers).into_iter().map(of).collect()
    }

    /// A short header and the id of a connection, then a few bytes.
    fn datagram(id: &ConnectionId, rest: u8) -> Vec<u8> {
        [&[0x40][..], id, &[rest; 20]].concat()
    }

    #[test]
    fn ids_say_whose_they_are_and_only_here() {
        let mut workers = sockets(3);
        let strangers = sockets(300);
        let (mut told, mut seen) = (0, std::collections::HashSet::new());
        for owner in 0..3 {
            for _ in 0..200 {
                let id = workers[owner].0.generate_cid();
                assert!(workers.iter().all(|(_, socket)| socket.routes.owner(&id) == Some(owner)));
                told += usize::from(strangers[0].1.routes.owner(&id) == Some(owner));
                assert!(seen.insert(id.to_vec()), "every id is new");
                assert_eq!(id.len(), workers[owner].0.cid_len());
            }
        }
        assert!(told < 30, "another key reads something else, and {told} of 600 times the same");
    }

    #[test]
    fn what_is_anothers_is_passed_on() {
        let mut workers = sockets(2);
        let [mine, theirs] = [0, 1].map(|owner| workers[owner].0.generate_cid());
        let own = datagram(&mine, 1);
        let foreign = datagram(&theirs, 2);
        let mut invented = datagram(&theirs, 3);
        invented[0] = 0xc0;
        let short = vec![0x40, 1, 2];
        // As the kernel gives them: several of one length, the last may be shorter.
        let mut buf = [&own[..], &foreign, &invented, &foreign, &short].concat();
        let stride = own.len();
        let mut meta = RecvMeta { len: buf.len(), stride, ..RecvMeta::default() };
        workers[0].1.keep_own(&mut buf, &mut meta);
        assert_eq!(buf[..meta.len], [&own[..], &invented, &short].concat());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let (mut one, mut two, mut three) = ([0; 64], [0; 64], [0; 64]);
        let mut bufs = [&mut one, &mut two, &mut three].map(|buf| IoSliceMut::new(buf));
        let mut metas = [RecvMeta::default(); 3];
        let got = workers[1].1.poll_recv(&mut cx, &mut bufs, &mut metas);
        assert!(matches!(got, Poll::Ready(Ok(2))), "{got:?}");
        for (buf, meta) in bufs.iter().zip(metas).take(2) {
            assert_eq!((&buf[..meta.len], meta.stride), (&foreign[..], foreign.len()));
        }
        assert!(workers[1].1.poll_recv(&mut cx, &mut bufs, &mut metas).is_pending());
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut workers = sockets(2);
        let foreign = datagram(&workers[1].0.generate_cid(), 2);
        for _ in 0..WAITING + 10 {
            let mut buf = foreign.clone();
            let mut meta = RecvMeta { len: buf.len(), stride: buf.len(), ..RecvMeta::default() };
            workers[0].1.keep_own(&mut buf, &mut meta);
            assert_eq!(meta.len, 0);
        }
        assert_eq!(workers[1].1.inbox.lock().unwrap().len(), WAITING);
    }
}
