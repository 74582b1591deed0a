//! hot path
//!
//! Sockets on the ring: bytes come through it, and go by system calls.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::kernel::{POLLIN, POLLOUT};
use super::reactor::{Key, Reactor};

/// No signal when the other side is gone, and no waiting.
const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A place in the reactor, given back when dropped.
struct Place {
    reactor: Rc<Reactor>,
    key: Key,
}

/// A listening socket.
///
/// The ring waits for an epoll instance that holds it, not for the socket itself: what the ring
/// waits for outlives a process that is killed by some milliseconds, and such a socket would
/// still take connections, which its successor on the same port would seem to lose.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    place: Place,
}

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Stream(Place);

impl Place {
    fn new(socket: impl Into<OwnedFd>) -> io::Result<Place> {
        let reactor = super::reactor()?;
        let key = reactor.open(Some(socket.into()));
        Ok(Place { reactor, key })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.reactor.close(self.key);
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

/// Waits.
pub(crate) async fn sleep(duration: Duration) {
    let Ok(reactor) = super::reactor() else { return };
    let key = reactor.open(None);
    let place = Place { reactor, key };
    poll_fn(|cx| place.reactor.poll_timeout(place.key, duration, cx)).await;
}

/// Opens a connection. The time bound is the caller's.
pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Stream> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    let place = Place::new(socket)?;
    match poll_fn(|cx| place.reactor.poll_connect(place.key, addr, cx)).await {
        0 => Ok(Stream(place)),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

impl Listener {
    /// Takes a socket in non-blocking mode.
    pub(crate) fn new(socket: TcpListener) -> io::Result<Listener> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Listener { socket, place: Place::new(epoll)? })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            match self.accept_now() {
                Some(accepted) => return accepted,
                None => poll_fn(|cx| self.place.reactor.poll_event(self.place.key, POLLIN, cx)).await,
            }
        }
    }

    /// A connection that already waits, if there is one.
    pub(crate) fn accept_now(&self) -> Option<io::Result<(Stream, SocketAddr)>> {
        match self.socket.accept() {
            Ok((socket, peer)) => Some(Place::new(socket).map(|place| (Stream(place), peer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }
}

#[cfg(test)]
impl Stream {
    pub(super) fn accepted(socket: std::net::TcpStream) -> io::Result<Stream> {
        Place::new(socket).map(Stream)
    }

    pub(super) fn untaken(&self) -> usize {
        self.0.reactor.untaken(self.0.key)
    }
}

impl Stream {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = self.call(|socket| socket.local_addr())?;
        addr.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub(crate) fn waited_ms(&self) -> u64 {
        self.0.reactor.call(self.0.key, |fd| Ok(crate::rt::age::since_last_byte(fd))).unwrap_or(0)
    }

    fn call<T>(&self, call: impl FnOnce(SockRef<'_>) -> io::Result<T>) -> io::Result<T> {
        self.0.reactor.call(self.0.key, |fd| call(SockRef::from(&fd)))
    }

    /// There are bytes, an end or an error, or the kernel was not asked. No system call.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.0.reactor.has_news(self.0.key)
    }

    /// Waits for bytes or an end.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.reactor.poll_readable(self.0.key, cx).map(Ok)
    }

    /// Nothing to read and not closed, as far as the kernel knows.
    pub(crate) fn is_quiet(&self) -> bool {
        if self.0.reactor.is_receiving(self.0.key) && super::collect().is_err() {
            return false;
        }
        let nothing =
            |seen: io::Result<usize>| seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        if !nothing(self.peek()) {
            return false;
        }
        const PEEK: i32 = 2;
        const DONTWAIT: i32 = 0x40;
        let mut byte = [MaybeUninit::uninit(); 1];
        self.0.reactor.is_receiving(self.0.key)
            || nothing(self.call(|socket| socket.recv_with_flags(&mut byte, PEEK | DONTWAIT)))
    }

    /// Makes the coming close send RST.
    pub(crate) fn abort(&self) {
        let _ = self.call(|socket| socket.set_linger(Some(Duration::ZERO)));
    }

    #[inline]
    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.reactor.poll_read(self.0.key, cx, buf)
    }

    /// What there is to read; see [`Reactor::peek`].
    pub(crate) fn peek(&self) -> io::Result<usize> {
        self.0.reactor.peek(self.0.key)
    }

    #[inline]
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |reactor, key| reactor.call(key, |fd| Ok(send(fd, bytes, SEND)?)))
    }

    #[inline]
    pub(crate) fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut nothing = SendAncillaryBuffer::default();
        self.poll_send(cx, |reactor, key| {
            reactor.call(key, |fd| Ok(sendmsg(fd, slices, &mut nothing, SEND)?))
        })
    }

    #[inline]
    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        mut send: impl FnMut(&Reactor, Key) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let Place { reactor, key } = &self.0;
        loop {
            match send(reactor, *key) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
            if reactor.poll_event(*key, POLLOUT, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Says that no more will be written (FIN).
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        self.call(|socket| socket.shutdown(Shutdown::Write))
    }
}
