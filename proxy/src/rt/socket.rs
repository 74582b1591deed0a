//! Sockets of plugins' raw connections that are not TCP: of the file system, and of datagrams.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::UnixStream;

use super::udp::Udp;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    /// Each read and each write is a datagram.
    Udp(Udp),
}

impl Socket {
    pub(crate) async fn unix(path: &Path) -> io::Result<Socket> {
        UnixStream::connect(path).await.map(Socket::Unix)
    }

    pub(crate) fn udp(addr: SocketAddr) -> io::Result<Socket> {
        Udp::connect(addr).map(Socket::Udp)
    }

    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Socket::Unix(stream) => stream.poll_read_ready(cx),
            Socket::Udp(udp) => udp.poll_readable(cx),
        }
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_readable(cx))?;
            let read = match self {
                Socket::Unix(stream) => stream.try_read(buf),
                Socket::Udp(udp) => udp.try_recv(buf),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    /// As [`super::ReadHalf::poll_ahead`].
    pub(super) fn poll_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_readable(cx))?;
            match self.when_readable(|| self.peek()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                seen => return Poll::Ready(seen),
            }
        }
    }

    /// As [`super::Io::maybe_readable`].
    pub(super) fn maybe_readable(&self) -> bool {
        self.when_readable(|| Ok(0)).is_ok()
    }

    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let written = match self {
                Socket::Unix(stream) => {
                    ready!(stream.poll_write_ready(cx))?;
                    stream.try_write(bytes)
                }
                Socket::Udp(udp) => return udp.poll_send(cx, bytes),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    pub(super) fn shut_down(&self) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write),
            Socket::Udp(_) => Ok(()),
        }
    }

    /// As [`super::Io::is_idle`].
    pub(super) fn is_idle(&self) -> bool {
        self.peek().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads if the kernel has reported something; its answer that there is nothing clears that report.
    fn when_readable(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => stream.try_io(Interest::READABLE, read),
            Socket::Udp(udp) => udp.when_readable(read),
        }
    }

    fn peek(&self) -> io::Result<usize> {
        socket2::SockRef::from(self).peek(&mut [MaybeUninit::uninit(); 1])
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Udp(udp) => udp.as_fd(),
        }
    }
}
