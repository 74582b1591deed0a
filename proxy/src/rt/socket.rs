//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::stream::Stream;

/// Opens a listening socket that shares its port with the other workers' sockets
/// (`SO_REUSEPORT`), so that the kernel spreads connections over them.
pub(crate) fn listen(addr: SocketAddr, backlog: i32) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// A listening socket on a worker.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) fn new(listener: StdListener) -> io::Result<Listener> {
        TcpListener::from_std(listener).map(Listener)
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (tcp, peer) = self.0.accept().await?;
        Ok((Stream::new(tcp), peer))
    }

    /// A connection that already waits, if there is one.
    pub(crate) fn accept_now(&self) -> Option<io::Result<(Stream, SocketAddr)>> {
        match self.0.poll_accept(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(Ok((tcp, peer))) => Some(Ok((Stream::new(tcp), peer))),
            Poll::Ready(Err(error)) => Some(Err(error)),
            Poll::Pending => None,
        }
    }
}
