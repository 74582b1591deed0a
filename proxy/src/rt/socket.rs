//! hot path
//!
//! Sockets as the rest of the room sees them, whichever engine waits for them.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::{epoll, ring};

/// A listening socket on a worker.
#[derive(Debug)]
pub(crate) enum Listener {
    Ring(ring::Listener),
    Epoll(epoll::Listener),
}

/// A connected socket with Nagle's algorithm off.
#[derive(Debug)]
pub(crate) enum Stream {
    Ring(ring::Stream),
    Epoll(epoll::Stream),
}

/// The reading side, usable beside the writing side within one task.
#[derive(Debug)]
pub(crate) enum ReadHalf<'a> {
    Ring(&'a ring::Stream),
    Epoll(epoll::ReadHalf<'a>),
}

/// The writing side.
#[derive(Debug)]
pub(crate) enum WriteHalf<'a> {
    Ring(&'a ring::Stream),
    Epoll(epoll::WriteHalf<'a>),
}

/// Opens a listening socket that shares its port with the other workers' sockets
/// (`SO_REUSEPORT`), so that the kernel spreads connections over them. Unless it is `shared` from
/// the beginning, nobody else may have the port: not another socket of this address, nor one of
/// all addresses. What is accepted from it has Nagle's algorithm off, as the socket itself.
pub(crate) fn listen(addr: SocketAddr, backlog: i32, shared: bool) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog)?;
    // The kernel looks at this when the others bind. A program that tries for the port at the same
    // moment fails at its own `listen`, or makes this one fail.
    socket.set_reuse_port(true)?;
    Ok(socket.into())
}

/// Opens a connection. The time bound is the caller's.
pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Stream> {
    if ring::is_here() {
        ring::connect(addr).await.map(Stream::Ring)
    } else {
        epoll::connect(addr).await.map(Stream::Epoll)
    }
}

impl Listener {
    pub(crate) fn new(listener: StdListener) -> io::Result<Listener> {
        if ring::is_here() {
            ring::Listener::new(listener).map(Listener::Ring)
        } else {
            epoll::Listener::new(listener).map(Listener::Epoll)
        }
    }

    /// Whether a connection waits to be accepted. One system call.
    pub(crate) fn has_waiting(&self) -> bool {
        let socket = match self {
            Listener::Ring(listener) => listener.as_fd(),
            Listener::Epoll(listener) => listener.as_fd(),
        };
        let mut look = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Listener::Ring(listener) => {
                listener.accept().await.map(|(stream, peer)| (Stream::Ring(stream), peer))
            }
            Listener::Epoll(listener) => {
                listener.accept().await.map(|(stream, peer)| (Stream::Epoll(stream), peer))
            }
        }
    }

    /// A connection that already waits, if there is one.
    pub(crate) fn accept_now(&self) -> Option<io::Result<(Stream, SocketAddr)>> {
        match self {
            Listener::Ring(listener) => {
                Some(listener.accept_now()?.map(|(stream, peer)| (Stream::Ring(stream), peer)))
            }
            Listener::Epoll(listener) => {
                Some(listener.accept_now()?.map(|(stream, peer)| (Stream::Epoll(stream), peer)))
            }
        }
    }
}

impl Stream {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Ring(stream) => stream.local_addr(),
            Stream::Epoll(stream) => stream.local_addr(),
        }
    }

    /// How long it has waited to be accepted, in milliseconds: since its last byte, or since it came
    /// about. One system call.
    pub(crate) fn waited_ms(&self) -> u64 {
        match self {
            Stream::Ring(stream) => stream.waited_ms(),
            Stream::Epoll(stream) => stream.waited_ms(),
        }
    }

    #[inline]
    pub(crate) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        match self {
            Stream::Ring(stream) => (ReadHalf::Ring(stream), WriteHalf::Ring(stream)),
            Stream::Epoll(stream) => {
                let (read, write) = stream.split();
                (ReadHalf::Epoll(read), WriteHalf::Epoll(write))
            }
        }
    }

    /// Whether the kernel reported bytes, an end or an error since the last read
    /// found nothing more, or cannot tell. No system call.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        match self {
            Stream::Ring(stream) => stream.has_news(),
            Stream::Epoll(stream) => stream.has_news(),
        }
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Ring(stream) => stream.poll_readable(cx),
            Stream::Epoll(stream) => stream.poll_readable(cx),
        }
    }

    /// Asks the kernel: nothing to read and not closed. At most one system call. Where there was
    /// news of what is gone by now, there is none afterwards.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Stream::Ring(stream) => stream.is_quiet(),
            Stream::Epoll(stream) => stream.is_quiet(),
        }
    }

    /// Makes the coming close send RST, so that the other side cannot take what it got for whole.
    pub(crate) fn abort(&self) {
        match self {
            Stream::Ring(stream) => stream.abort(),
            Stream::Epoll(stream) => stream.abort(),
        }
    }
}

impl ReadHalf<'_> {
    /// Reads what is there. `Ok(0)` is the end. A short read leaves the socket marked as
    /// drained, so the next call waits for the kernel's word instead of asking in vain.
    #[inline]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ReadHalf::Ring(stream) => stream.poll_read(cx, buf),
            ReadHalf::Epoll(half) => half.poll_read(cx, buf),
        }
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ReadHalf::Ring(stream) => stream.poll_readable(cx),
            ReadHalf::Epoll(half) => half.poll_readable(cx),
        }
    }

    /// Looks at what waits to be read: `Ok(0)` is the end. If there is nothing, the next
    /// [`ReadHalf::poll_readable`] waits for the kernel's word.
    pub(crate) fn peek(&self) -> io::Result<usize> {
        match self {
            ReadHalf::Ring(stream) => stream.peek(),
            ReadHalf::Epoll(half) => half.peek(),
        }
    }
}

impl WriteHalf<'_> {
    #[inline]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            WriteHalf::Ring(stream) => stream.poll_write(cx, bytes),
            WriteHalf::Epoll(half) => half.poll_write(cx, bytes),
        }
    }

    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            WriteHalf::Ring(stream) => stream.poll_write_vectored(cx, slices),
            WriteHalf::Epoll(half) => half.poll_write_vectored(cx, slices),
        }
    }

    /// Says that no more will be written (FIN).
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteHalf::Ring(stream) => Poll::Ready(stream.shutdown()),
            WriteHalf::Epoll(half) => half.poll_shutdown(cx),
        }
    }
}
