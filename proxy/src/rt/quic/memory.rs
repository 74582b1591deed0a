#![expect(clippy::disallowed_types, reason = "as in `steer`: one thread alone uses what quinn wants `Sync`")]
//! A network in memory for tests: every datagram arrives, in order and at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, TokioRuntime, UdpPoller};

use super::VERSION;

#[derive(Debug, Clone, Default)]
pub(crate) struct Net(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Datagrams under way, by receiver.
    inboxes: HashMap<SocketAddr, Inbox>,
    /// Datagrams for these are lost, once this many have arrived.
    deaf: HashMap<SocketAddr, usize>,
    /// Datagrams from these are lost.
    mute: HashSet<SocketAddr>,
    /// How often clients were asked to prove their addresses.
    retries: usize,
    /// Bytes that were sent, by sender and receiver, whether or not they arrive.
    sent: HashMap<(SocketAddr, SocketAddr), u64>,
}

#[derive(Debug, Default)]
struct Inbox {
    datagrams: VecDeque<Datagram>,
    reader: Option<Waker>,
}

#[derive(Debug)]
struct Datagram {
    from: SocketAddr,
    to: IpAddr,
    bytes: Box<[u8]>,
}

/// An address there, as a socket: one of a machine, or all of one.
#[derive(Debug)]
pub(crate) struct Place {
    net: Net,
    me: SocketAddr,
}

impl Net {
    pub(crate) fn place(&self, me: SocketAddr) -> Arc<Place> {
        self.lock().inboxes.entry(me).or_default();
        Arc::new(Place { net: self.clone(), me })
    }

    /// Lets this many more datagrams through to `to`; all, if it is `None`.
    pub(crate) fn lets_through(&self, to: SocketAddr, datagrams: Option<usize>) {
        match datagrams {
            Some(count) => self.lock().deaf.insert(to, count),
            None => self.lock().deaf.remove(&to),
        };
    }

    /// Returns how many of those are left.
    pub(crate) fn room(&self, to: SocketAddr) -> Option<usize> {
        self.lock().deaf.get(&to).copied()
    }

    pub(crate) fn silence(&self, whom: SocketAddr) {
        self.lock().mute.insert(whom);
    }

    pub(crate) fn retries(&self) -> usize {
        self.lock().retries
    }

    /// Bytes that one has sent to the other.
    pub(crate) fn sent(&self, from: SocketAddr, to: SocketAddr) -> u64 {
        self.lock().sent.get(&(from, to)).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Brings a datagram of the machine `me` to where it is for.
    fn send(&mut self, me: SocketAddr, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        // A Retry is known by the first bits of its packet (RFC 9000 section 17.2.5).
        self.retries += usize::from(datagram[0] & 0xf0 == 0xf0);
        if self.mute.contains(&me) {
            return;
        }
        *self.sent.entry((from, to)).or_default() += datagram.len() as u64;
        match self.deaf.get_mut(&to) {
            Some(0) => return,
            Some(left) => *left -= 1,
            None => {}
        }
        let place =
            if self.inboxes.contains_key(&to) { to } else { (Ipv4Addr::UNSPECIFIED, to.port()).into() };
        let Some(inbox) = self.inboxes.get_mut(&place) else { return };
        inbox.datagrams.push_back(Datagram { from, to: to.ip(), bytes: datagram.into() });
        if let Some(reader) = inbox.reader.take() {
            reader.wake();
        }
    }
}

/// A client's endpoint.
pub(crate) fn client(place: Arc<Place>) -> io::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![VERSION]);
    Endpoint::new_with_abstract_socket(config, None, place, Arc::new(TokioRuntime))
}

impl Drop for Place {
    /// Removes the inbox: the address has no receiver any more.
    fn drop(&mut self) {
        self.net.lock().inboxes.remove(&self.me);
    }
}

/// There is always room.
#[derive(Debug)]
struct Room;

impl UdpPoller for Room {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Place {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut net = self.net.lock();
        let from = SocketAddr::new(transmit.src_ip.unwrap_or(self.me.ip()), self.me.port());
        let size = transmit.segment_size.unwrap_or(transmit.contents.len().max(1));
        for datagram in transmit.contents.chunks(size) {
            net.send(self.me, from, transmit.destination, datagram);
        }
        Ok(())
    }

    /// As Linux does.
    fn max_transmit_segments(&self) -> usize {
        64
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut net = self.net.lock();
        let inbox = net.inboxes.entry(self.me).or_default();
        let mut n = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some(Datagram { from, to, bytes }) = inbox.datagrams.pop_front() else { break };
            let len = bytes.len();
            buf[..len].copy_from_slice(&bytes);
            *meta = RecvMeta { addr: from, len, stride: len, ecn: None, dst_ip: Some(to) };
            n += 1;
        }
        if n > 0 {
            return Poll::Ready(Ok(n));
        }
        inbox.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.me)
    }
}
