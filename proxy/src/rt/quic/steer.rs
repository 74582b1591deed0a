#![expect(clippy::disallowed_types, reason = "quinn wants its socket to be `Sync`; one thread alone uses it")]
//! Datagrams find the worker that has their connection.
//!
//! The workers' sockets share a port, and the kernel chooses one of them by the addresses of a datagram. That
//! is always the same one, until a client's address changes: a phone that leaves its network, a router that
//! forgets a mapping. The connection is with another worker then. So a connection's id says whose it is, in
//! a form that only the workers can read, and a worker that gets what is another's passes it on.
//!
//! The kernel could do this itself by a program attached to the port (`SO_ATTACH_REUSEPORT_EBPF`). That takes
//! privileges which containers seldom have, and a program in another language; and what would be saved is
//! one copy, for the few datagrams of clients that have moved.
//!
//! The same ids tell whose a connection is at an upgrade, when two processes have the sockets: see
//! [`super::handover`].

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, UdpPoller};
use quinn_proto::{InvalidCid, RandomConnectionIdGenerator};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::handover::{Elder, Gate, Heir};

/// Random bytes of an id …
const NONCE: usize = 8;
/// … and those that say whose it is. Of 65,536 ids from elsewhere, not one passes for an own one by chance.
const OWNER: usize = 4;
const ID: usize = NONCE + OWNER;

/// Datagrams that may wait for a worker which is not their socket's. Further ones are dropped, as on any
/// network.
const WAITING: usize = 256;

/// One worker's place among those that share a port.
#[derive(Debug)]
pub(crate) struct Post {
    routes: Arc<Routes>,
    me: usize,
    inbox: Receiver<Datagram>,
    /// Among the elders, the one whose socket this worker has now.
    elder: usize,
}

/// Where each worker of a port gets its datagrams from others.
struct Routes {
    inboxes: Box<[Sender<Datagram>]>,
    key: RandomState,
    /// The workers of the process whose place this one takes.
    elders: Arc<[Elder]>,
}

#[derive(Debug)]
struct Datagram {
    bytes: Box<[u8]>,
    /// Of what it came with: its lengths are those of several.
    meta: RecvMeta,
}

/// Returns the places of workers that share a port. `elders` are all those of the port; the socket of the first
/// worker is that of the elder number `first`, and so on.
pub(crate) fn posts(workers: usize, elders: &Arc<[Elder]>, first: usize) -> Vec<Post> {
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel(WAITING)).unzip();
    let (inboxes, elders) = (inboxes.into(), elders.clone());
    let routes = Arc::new(Routes { inboxes, key: RandomState::new(), elders });
    let post = |(me, inbox)| Post { routes: routes.clone(), me, inbox, elder: first + me };
    receivers.into_iter().enumerate().map(post).collect()
}

impl Post {
    /// The workers of the process whose place this one takes, and the one of them that this worker passes on to.
    pub(crate) fn elders(&self) -> (Arc<[Elder]>, usize) {
        let elders = self.routes.elders.clone();
        let mine = self.me % elders.len().max(1);
        (elders, mine)
    }

    /// The number of the elder whose socket this worker has now.
    #[cfg(test)]
    pub(crate) fn elder(&self) -> usize {
        self.elder
    }

    /// Makes the ids of this worker's connections.
    pub(super) fn ids(&self) -> impl Fn() -> Box<dyn ConnectionIdGenerator> + Send + Sync + use<> {
        let (routes, me) = (self.routes.clone(), self.me);
        move || Box::new(Ids { routes: routes.clone(), me, nonces: RandomConnectionIdGenerator::new(NONCE) })
    }

    /// The worker's socket, which takes what others pass on as well.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn receive(self, socket: Arc<dyn AsyncUdpSocket>, heir: Arc<Heir>) -> io::Result<Socket> {
        let Post { routes, me, inbox, elder } = self;
        let gate = routes.elders.get(elder).map(Elder::gate).transpose()?.unwrap_or_default();
        Ok(Socket { socket, routes, me, inbox: Mutex::new(inbox), heir, gate })
    }
}

impl Routes {
    /// The mask that hides an owner's number.
    fn mask(&self, nonce: &[u8]) -> u32 {
        self.key.hash_one(nonce) as u32
    }

    fn id(&self, nonce: &[u8], owner: usize) -> ConnectionId {
        let mut id = [0; ID];
        id[..NONCE].copy_from_slice(nonce);
        id[NONCE..].copy_from_slice(&(owner as u32 ^ self.mask(nonce)).to_be_bytes());
        ConnectionId::new(&id)
    }

    /// Whose connection an id is of, if it was made here.
    fn owner(&self, id: &[u8]) -> Option<usize> {
        let (nonce, owner) = id.split_at_checked(NONCE)?;
        let hidden = u32::from_be_bytes(owner.try_into().ok()?);
        let owner = (hidden ^ self.mask(nonce)) as usize;
        (owner < self.inboxes.len()).then_some(owner)
    }

    /// Whose a datagram is.
    fn whose(&self, datagram: &[u8]) -> Whose {
        let short = |id| self.owner(id).map_or(Whose::Foreign, Whose::Worker);
        match datagram {
            [first, id @ ..] if first & 0x80 == 0 => id.get(..ID).map_or(Whose::Unknown, short),
            // It belongs to a handshake, in which clients do not move. Its version is in four bytes, its id may be
            // the client's own invention.
            [_, _, _, _, _, length, id @ ..] if usize::from(*length) == ID => match id.get(..ID) {
                Some(id) if self.owner(id).is_none() => Whose::Perhaps,
                Some(_) => Whose::Here,
                None => Whose::Unknown,
            },
            _ => Whose::Unknown,
        }
    }

    /// Leaves a datagram to the process that handed over to this one. False if that is gone, or never was.
    fn give_elder(&self, from: usize, datagram: &[u8], meta: &RecvMeta) -> bool {
        // Any of them passes it on to the right one.
        let elder = self.elders.get(from % self.elders.len().max(1));
        elder.is_some_and(|elder| elder.pass(datagram, meta))
    }

    fn give(&self, owner: usize, datagram: &[u8], meta: &RecvMeta) {
        let _ = self.inboxes[owner].try_send(Datagram { bytes: datagram.into(), meta: *meta });
    }
}

/// Whose a datagram is, by its connection's id.
enum Whose {
    /// This worker's of this process.
    Worker(usize),
    /// Of a handshake that this process has under way.
    Here,
    /// No worker here owns it.
    Foreign,
    /// The first of a connection, or one of a handshake elsewhere.
    Perhaps,
    /// It has no id that anybody here or before has made.
    Unknown,
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
        ID
    }

    /// Rejects ids of connections that were never here, so that no stateless reset is sent for them.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.routes.owner(id).map(drop).ok_or(InvalidCid)
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
    heir: Arc<Heir>,
    gate: Gate,
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

    /// Takes what the process has passed on that takes this one's place. True if the socket is that one's.
    fn poll_heir(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> (usize, bool) {
        let mut n = 0;
        let over = self.heir.poll(cx, |datagram, came| {
            match self.routes.whose(datagram) {
                Whose::Worker(owner) if owner != self.me => self.routes.give(owner, datagram, &came),
                Whose::Worker(_) | Whose::Here => {
                    let (Some(buf), Some(meta)) = (bufs.get_mut(n), meta.get_mut(n)) else { return false };
                    let length = datagram.len().min(buf.len());
                    buf[..length].copy_from_slice(&datagram[..length]);
                    *meta = RecvMeta { len: length, stride: length, ..came };
                    n += 1;
                }
                // Of a process yet older, or of none.
                Whose::Foreign | Whose::Perhaps | Whose::Unknown => {
                    self.routes.give_elder(self.me, datagram, &came);
                }
            }
            n < bufs.len().min(meta.len())
        });
        (n, over)
    }

    /// Passes on what is others' of the datagrams in a buffer, and closes the gaps.
    fn keep_own(&self, buf: &mut [u8], meta: &mut RecvMeta) {
        let (all, stride) = (meta.len, meta.stride.max(1));
        let (mut kept, mut from) = (0, 0);
        while from < all {
            let end = (from + stride).min(all);
            let datagram = &buf[from..end];
            let keep = match self.routes.whose(datagram) {
                Whose::Worker(owner) if owner != self.me => {
                    self.routes.give(owner, datagram, meta);
                    false
                }
                Whose::Foreign => !self.routes.give_elder(self.me, datagram, meta),
                // To whom it means nothing, that one drops it.
                Whose::Perhaps => {
                    self.routes.give_elder(self.me, datagram, meta);
                    true
                }
                Whose::Worker(_) | Whose::Here | Whose::Unknown => true,
            };
            if keep {
                if kept < from {
                    buf.copy_within(from..end, kept);
                }
                kept += end - from;
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
        let alone = self.routes.inboxes.len() == 1;
        if !alone {
            let handed = self.poll_inbox(cx, bufs, meta);
            if handed > 0 {
                return Poll::Ready(Ok(handed));
            }
        }
        let (handed, over) = self.poll_heir(cx, bufs, meta);
        if handed > 0 {
            return Poll::Ready(Ok(handed));
        }
        if over {
            return Poll::Pending;
        }
        ready!(self.gate.poll_open(cx));
        let received = self.socket.poll_recv(cx, bufs, meta);
        if let Poll::Ready(Ok(n)) = received
            && !(alone && self.routes.elders.is_empty())
        {
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
mod tests;
