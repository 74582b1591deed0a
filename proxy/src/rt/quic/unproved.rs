#![expect(clippy::disallowed_types, reason = "as in `steer`: one thread alone uses what quinn wants `Sync`")]
//! An address that is not proved gets at most three times what came from it (RFC 9000 section 8.1).
//!
//! `quinn` counts as well, but sends a whole datagram while one byte of that is left. Here a datagram that does
//! not fit waits until more has come from the address, or until the address is proved: a packet was decrypted
//! that only a client which has read the handshake can have sent. The connection waits as for a socket
//! that is not writable, so nothing is lost and nothing is copied.
//!
//! The first packet of a client is counted before there is a connection, and without knowing whether there will be
//! one. Addresses of first packets are kept for a while, and there are at most 1,024 of them. A connection whose
//! first packet was forgotten begins with the least that can have come. All other addresses are those of connections
//! that `quinn` has, until they are proved.
//!
//! Addresses to which clients move are not counted here: see docs/threat-model.md.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::VERSION;
use super::steer::Socket;

/// Bytes sent for each that came.
const TIMES: u64 = 3;

/// The least that a datagram with a first packet can have (RFC 9000 section 14.1).
const FIRST: usize = 1200;

/// Addresses of first packets that are remembered at least, and half of those that are at most.
const RECENT: usize = 512;

/// `left` of an address that is proved.
const PROVED: u64 = u64::MAX;

/// The addresses of one socket that are not proved.
#[derive(Debug, Default)]
pub(crate) struct Unproved {
    addresses: Mutex<Addresses>,
    /// Whose address the connection has that is about to be made.
    beginning: Mutex<Option<Arc<Address>>>,
    /// The connection that sends next, if its address is not proved …
    sender: Mutex<Option<Arc<Sender>>>,
    /// … and whether there is one.
    has_sender: AtomicBool,
}

#[derive(Debug, Default)]
struct Addresses {
    /// Those of connections.
    of: HashMap<SocketAddr, Weak<Address>>,
    /// Bytes that may be sent to those from which first packets came lately. The second part is forgotten when the first
    /// is full.
    recent: [HashMap<SocketAddr, u64>; 2],
}

/// An address of connections.
pub(crate) struct Address {
    at: SocketAddr,
    /// Bytes that may be sent there.
    left: AtomicU64,
    /// Connections that wait for more of that.
    waiting: Mutex<Vec<Waker>>,
    all: Weak<Unproved>,
}

/// A connection to an address that is not proved.
#[derive(Debug)]
struct Sender {
    address: Arc<Address>,
    /// Bytes that are sent of the datagrams that go out together …
    sent: AtomicUsize,
    /// … and those that the next one waits for.
    lacks: AtomicU64,
}

impl Unproved {
    /// The address of a connection that is about to begin.
    pub(crate) fn begin(self: &Arc<Unproved>, at: SocketAddr) -> Arc<Address> {
        let mut addresses = lock(&self.addresses);
        if let Some(known) = addresses.of.get(&at).and_then(Weak::upgrade) {
            return known;
        }
        let recent = addresses.recent.iter_mut().filter_map(|recent| recent.remove(&at));
        let left = recent.reduce(u64::saturating_add).unwrap_or(TIMES * FIRST as u64);
        let (left, all) = (AtomicU64::new(left), Arc::downgrade(self));
        let address = Arc::new(Address { at, left, waiting: Mutex::default(), all });
        addresses.of.insert(at, Arc::downgrade(&address));
        address
    }

    /// The connection that `accept` makes has this address.
    pub(crate) fn connect<T>(&self, address: Option<Arc<Address>>, accept: impl FnOnce() -> T) -> T {
        *lock(&self.beginning) = address;
        let accepted = accept();
        *lock(&self.beginning) = None;
        accepted
    }

    /// Counts what has come.
    fn receive(&self, buf: &[u8], meta: &RecvMeta) {
        for datagram in buf[..meta.len].chunks(meta.stride.max(1)) {
            // All that comes before an address is proved has a long header.
            if datagram[0] & 0x80 != 0 {
                let known = lock(&self.addresses).receive(datagram, meta.addr);
                if let Some(address) = known {
                    address.grow(TIMES * datagram.len() as u64);
                }
            }
        }
    }

    /// Counts what is sent there that belongs to no connection.
    fn answer(&self, transmit: &Transmit<'_>) {
        if transmit.contents.first().is_some_and(|first| first & 0x80 != 0) {
            let bytes = transmit.contents.len() as u64;
            let known = lock(&self.addresses).answer(bytes, transmit.destination);
            if let Some(address) = known {
                address.spend(bytes);
            }
        }
    }
}

impl Addresses {
    /// Counts a datagram, unless it came from the address of a connection, which is returned.
    fn receive(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Arc<Address>> {
        let known = self.of.get(&from).and_then(Weak::upgrade);
        if known.is_none() && is_first(datagram) {
            let more = TIMES * datagram.len() as u64;
            let [young, old] = &mut self.recent;
            if let Some(left) = young.get_mut(&from).or_else(|| old.get_mut(&from)) {
                *left = left.saturating_add(more);
            } else {
                if young.len() == RECENT {
                    mem::swap(young, old);
                    young.clear();
                }
                young.insert(from, more);
            }
        }
        known
    }

    /// Counts what is sent, in the same way.
    fn answer(&mut self, bytes: u64, to: SocketAddr) -> Option<Arc<Address>> {
        for recent in &mut self.recent {
            if let Some(left) = recent.get_mut(&to) {
                *left = left.saturating_sub(bytes);
            }
        }
        self.of.get(&to).and_then(Weak::upgrade)
    }
}

/// Whether a connection may begin with it (RFC 9000 section 17.2.2).
fn is_first(datagram: &[u8]) -> bool {
    datagram.len() >= FIRST && datagram[0] & 0xf0 == 0xc0 && datagram[1..5] == VERSION.to_be_bytes()
}

impl Address {
    /// The client has received what was sent there.
    pub(crate) fn prove(&self) {
        if self.left.swap(PROVED, Relaxed) == PROVED {
            return;
        }
        if let Some(all) = self.all.upgrade() {
            lock(&all.addresses).of.remove(&self.at);
        }
        self.wake();
    }

    fn grow(&self, bytes: u64) {
        self.left.store(self.left.load(Relaxed).saturating_add(bytes), Relaxed);
        self.wake();
    }

    fn spend(&self, bytes: u64) {
        let left = self.left.load(Relaxed);
        if left != PROVED {
            self.left.store(left.saturating_sub(bytes), Relaxed);
        }
    }

    fn wake(&self) {
        mem::take(&mut *lock(&self.waiting)).into_iter().for_each(Waker::wake);
    }
}

impl Drop for Address {
    /// No connection has it any more.
    fn drop(&mut self) {
        if self.left.load(Relaxed) != PROVED
            && let Some(all) = self.all.upgrade()
        {
            lock(&all.addresses).of.remove(&self.at);
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("at", &self.at).field("left", &self.left).finish_non_exhaustive()
    }
}

impl Sender {
    /// Nothing waits, and nothing will.
    fn is_over(&self) -> bool {
        self.address.left.load(Relaxed) == PROVED && self.sent.load(Relaxed) == 0
    }

    /// Whether it has to wait for what may be sent.
    fn is_waiting(&self, cx: &mut Context<'_>) -> bool {
        let waits = self.lacks.load(Relaxed) > self.address.left.load(Relaxed);
        if waits {
            let mut waiting = lock(&self.address.waiting);
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
        }
        waits
    }

    /// Sends as many of these datagrams as it may. The same ones are given again if that was not all.
    fn send(&self, all: &Transmit<'_>, send: impl FnOnce(&Transmit<'_>) -> io::Result<()>) -> io::Result<()> {
        let sent = self.sent.load(Relaxed);
        let rest = all.contents.get(sent..).unwrap_or_default();
        let size = all.segment_size.unwrap_or(rest.len()).max(1);
        let left = usize::try_from(self.address.left.load(Relaxed)).unwrap_or(usize::MAX);
        let fits = if rest.len() <= left { rest.len() } else { left / size * size };
        if fits > 0 {
            send(&Transmit {
                contents: &rest[..fits],
                segment_size: all.segment_size.filter(|size| fits > *size),
                ..all.clone()
            })?;
            self.address.spend(fits as u64);
        }
        if fits == rest.len() {
            self.sent.store(0, Relaxed);
            self.lacks.store(0, Relaxed);
            return Ok(());
        }
        self.sent.store(sent + fits, Relaxed);
        self.lacks.store(size.min(rest.len() - fits) as u64, Relaxed);
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// A worker's socket, on which addresses that are not proved get no more than they may.
#[derive(Debug)]
pub(super) struct Limited {
    socket: Arc<Socket>,
    unproved: Arc<Unproved>,
}

impl Limited {
    pub(super) fn new(socket: Socket, unproved: Arc<Unproved>) -> Limited {
        Limited { socket: Arc::new(socket), unproved }
    }
}

impl AsyncUdpSocket for Limited {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let address = lock(&self.unproved.beginning).take();
        let sender = address
            .map(|address| Arc::new(Sender { address, sent: AtomicUsize::new(0), lacks: AtomicU64::new(0) }));
        let poller = self.socket.clone().create_io_poller();
        match sender {
            None => poller,
            sender => Box::pin(Poller { poller, sender, unproved: self.unproved.clone() }),
        }
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.unproved.has_sender.load(Relaxed) {
            self.unproved.has_sender.store(false, Relaxed);
            if let Some(sender) = lock(&self.unproved.sender).take() {
                return sender.send(transmit, |part| self.socket.try_send(part));
            }
        }
        self.unproved.answer(transmit);
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(cx, bufs, meta))?;
        for (buf, meta) in bufs.iter().zip(&*meta).take(received) {
            self.unproved.receive(buf, meta);
        }
        Poll::Ready(Ok(received))
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

/// A connection polls this before each time it sends, and sends right after that.
#[derive(Debug)]
struct Poller {
    poller: Pin<Box<dyn UdpPoller>>,
    /// Until the address is proved.
    sender: Option<Arc<Sender>>,
    unproved: Arc<Unproved>,
}

impl UdpPoller for Poller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sender.as_ref().is_some_and(|sender| sender.is_over()) {
            self.sender = None;
        }
        if self.sender.as_ref().is_some_and(|sender| sender.is_waiting(cx)) {
            return Poll::Pending;
        }
        ready!(self.poller.as_mut().poll_writable(cx))?;
        if let Some(sender) = &self.sender {
            *lock(&self.unproved.sender) = Some(sender.clone());
            self.unproved.has_sender.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
