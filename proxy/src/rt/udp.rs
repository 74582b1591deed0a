//! hot path
//!
//! UDP sockets on tokio's runtime.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A socket on a worker.
#[derive(Debug)]
pub(crate) struct Udp(UdpSocket);

/// Opens a socket that shares its port with the other workers' sockets, by the rules of
/// [`super::listen`]. The kernel gives all datagrams of one client to the same socket.
pub(crate) fn listen_udp(addr: SocketAddr, shared: bool) -> io::Result<StdSocket> {
    let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.set_reuse_port(true)?;
    Ok(socket.into())
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Udp {
    pub(crate) fn new(socket: StdSocket) -> io::Result<Udp> {
        UdpSocket::from_std(socket).map(Udp)
    }

    /// A socket that exchanges datagrams with this server alone.
    pub(crate) fn connect(addr: SocketAddr) -> io::Result<Udp> {
        let any = match addr {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.bind(&any.into())?;
        // Nothing is sent for it, so it does not block.
        socket.connect(&addr.into())?;
        Udp::new(socket.into())
    }

    /// Waits for a datagram or an error without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_recv_ready(cx)
    }

    /// A datagram that is there, and who sent it.
    #[inline]
    pub(crate) fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.try_recv_from(buf)
    }

    #[inline]
    pub(crate) fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_recv(buf)
    }

    /// Sends a datagram at once or not at all. The kernel is asked itself: the runtime does not know of a
    /// socket that is new that it can be written to.
    #[inline]
    pub(crate) fn try_send(&self, datagram: &[u8]) -> io::Result<usize> {
        socket2::SockRef::from(&self.0).send(datagram)
    }

    /// Reads if the kernel has reported something; its answer that there is nothing clears that report.
    pub(super) fn when_readable(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        self.0.try_io(Interest::READABLE, read)
    }

    pub(super) fn poll_send(&self, cx: &mut Context<'_>, datagram: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_send(cx, datagram)
    }

    #[inline]
    pub(crate) fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        datagram: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_send_to(cx, datagram, to)
    }
}
