//! hot path
//!
//! TCP sockets on tokio's runtime.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, tcp};
use tokio::task::coop::has_budget_remaining;

/// A listening socket on a worker.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

/// A connected socket with Nagle's algorithm off.
#[derive(Debug)]
pub(crate) struct Stream(TcpStream);

/// The reading side, usable beside the writing side within one task.
#[derive(Debug)]
pub(crate) struct ReadHalf<'a>(tcp::ReadHalf<'a>);

/// The writing side.
#[derive(Debug)]
pub(crate) struct WriteHalf<'a>(tcp::WriteHalf<'a>);

/// Opens a listening socket that shares its port with the other workers' sockets
/// (`SO_REUSEPORT`), so that the kernel spreads connections over them. Unless it is `shared` from
/// the beginning, no other program may have the port: neither for this address, nor for all
/// addresses. Accepted connections have Nagle's algorithm off, as the socket itself.
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
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_nodelay(true)?;
    Ok(Stream(socket.connect(addr).await?))
}

impl Listener {
    pub(crate) fn new(listener: StdListener) -> io::Result<Listener> {
        TcpListener::from_std(listener).map(Listener)
    }

    /// Whether a connection waits to be accepted. One system call.
    pub(crate) fn has_waiting(&self) -> bool {
        let mut look = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (tcp, peer) = self.0.accept().await?;
        Ok((Stream(tcp), peer))
    }

    /// A connection that already waits, if there is one.
    pub(crate) fn accept_now(&self) -> Option<io::Result<(Stream, SocketAddr)>> {
        match self.0.poll_accept(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((tcp, peer))) => Some(Ok((Stream(tcp), peer))),
            Poll::Ready(Err(error)) => Some(Err(error)),
            Poll::Pending => None,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// How long it has waited to be accepted, in milliseconds: since its last byte, or since it came
    /// about. One system call.
    pub(crate) fn waited_ms(&self) -> u64 {
        super::tcp_info::since_last_byte(self.0.as_fd())
    }

    /// As [`super::Io::acknowledged`].
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        super::tcp_info::acknowledged(self.0.as_fd())
    }

    #[inline]
    pub(crate) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let (read, write) = self.0.split();
        (ReadHalf(read), WriteHalf(write))
    }

    /// Whether the kernel reported bytes, an end or an error since the last read
    /// found nothing more. No system call.
    #[inline]
    pub(crate) fn maybe_readable(&self) -> bool {
        is_marked_readable(&self.0)
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_readable(&self.0, cx)
    }

    /// Looks at what is there and leaves it where it is. `Ok(0)` is the end.
    pub(crate) fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_peek(cx, &mut ReadBuf::new(buf))
    }

    /// Asks the kernel: nothing to read and not closed. One system call. Readiness that was for bytes
    /// which are read by now is cleared.
    pub(crate) fn is_idle(&self) -> bool {
        let mut byte = [MaybeUninit::uninit(); 1];
        let mut look = || socket2::SockRef::from(&self.0).peek(&mut byte);
        let seen = if self.maybe_readable() { self.0.try_io(Interest::READABLE, look) } else { look() };
        seen.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Makes the coming close send RST, so that the other side cannot take what it got for whole.
    pub(crate) fn abort(&self) {
        let _ = socket2::SockRef::from(&self.0).set_linger(Some(std::time::Duration::ZERO));
    }
}

#[inline]
fn is_marked_readable(stream: &TcpStream) -> bool {
    stream.try_io(Interest::READABLE, || Ok(())).is_ok()
}

/// Waits for bytes or an end. The task is registered only if the kernel has reported nothing yet, or if the task has
/// used up its share of this turn.
#[inline]
fn poll_readable(stream: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    if is_marked_readable(stream) && has_budget_remaining() {
        return Poll::Ready(Ok(()));
    }
    stream.poll_read_ready(cx)
}

impl ReadHalf<'_> {
    /// Reads what is there. `Ok(0)` is the end. A short read leaves the socket marked as
    /// drained, so the next call waits for the kernel's word instead of asking in vain.
    #[inline]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        match Pin::new(&mut self.0).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(buf.filled().len())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_readable(self.0.as_ref(), cx)
    }

    /// Waits until there is something to read, and leaves it where it is: `Ok(0)` is the end.
    pub(crate) fn poll_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let stream: &TcpStream = self.0.as_ref();
        loop {
            // An error shows in the look that follows.
            if stream.poll_read_ready(cx).is_pending() {
                return Poll::Pending;
            }
            let mut byte = [MaybeUninit::uninit(); 1];
            let look = || socket2::SockRef::from(stream).peek(&mut byte);
            match stream.try_io(Interest::READABLE, look) {
                // The bytes that made it readable were read before.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                seen => return Poll::Ready(seen),
            }
        }
    }
}

impl WriteHalf<'_> {
    #[inline]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    /// Says that no more will be written (FIN).
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::TcpStream as Peer;

    use super::*;
    use crate::rt;

    fn listener() -> (Listener, SocketAddr) {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 8, false).unwrap();
        let addr = listener.local_addr().unwrap();
        (Listener::new(listener).unwrap(), addr)
    }

    async fn pair() -> (Stream, Peer) {
        let (listener, addr) = listener();
        let peer = Peer::connect(addr).unwrap();
        (listener.accept().await.unwrap().0, peer)
    }

    fn is_pending<T>(poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> bool {
        poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Waits for what the kernel is about to do.
    fn comes_about(mut holds: impl FnMut() -> bool) {
        let start = std::time::Instant::now();
        while !holds() {
            assert!(start.elapsed().as_secs() < 10, "it did not come about");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_listener_knows_whether_somebody_waits() {
        rt::run(async {
            let (listener, addr) = listener();
            assert!(!listener.has_waiting() && listener.accept_now().is_none());
            let peers = [Peer::connect(addr).unwrap(), Peer::connect(addr).unwrap()];
            comes_about(|| listener.has_waiting());
            let (_, first) = listener.accept().await.unwrap();
            // The kernel may not have taken the other one in yet.
            comes_about(|| listener.has_waiting());
            let (_, second) = listener.accept_now().expect("it waits").unwrap();
            assert_eq!([first, second], peers.each_ref().map(|peer| peer.local_addr().unwrap()));
            assert!(!listener.has_waiting() && listener.accept_now().is_none());
        })
        .unwrap();
    }

    #[test]
    fn a_look_ahead_leaves_what_is_there_and_sees_no_more_than_that() {
        rt::run(async {
            let (mut stream, mut peer) = pair().await;
            let (mut from, _) = stream.split();
            assert!(is_pending(|cx| from.poll_ahead(cx)));
            assert!(is_pending(|cx| from.poll_readable(cx)));
            peer.write_all(b"ab").unwrap();
            poll_fn(|cx| from.poll_readable(cx)).await.unwrap();
            assert!(poll_fn(|cx| from.poll_ahead(cx)).await.unwrap() > 0);
            let mut two = [0; 2];
            assert_eq!(poll_fn(|cx| from.poll_read(cx, &mut two)).await.unwrap(), 2);
            assert_eq!(&two, b"ab");
            // The buffer was full, so the kernel has to be asked whether there is more.
            assert!(is_pending(|cx| from.poll_ahead(cx)));
            drop(peer);
            assert_eq!(poll_fn(|cx| from.poll_ahead(cx)).await.unwrap(), 0);
            let (mut stream, peer) = pair().await;
            socket2::SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop(peer);
            let seen = poll_fn(|cx| stream.split().0.poll_ahead(cx)).await;
            assert_eq!(seen.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        })
        .unwrap();
    }

    #[test]
    fn the_peer_sees_the_end_of_what_is_written() {
        rt::run(async {
            let (mut stream, mut peer) = pair().await;
            let (_from, mut to) = stream.split();
            assert_eq!(poll_fn(|cx| to.poll_write(cx, b"all")).await.unwrap(), 3);
            poll_fn(|cx| to.poll_shutdown(cx)).await.unwrap();
            let mut got = String::new();
            peer.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            peer.read_to_string(&mut got).unwrap();
            assert_eq!(got, "all");
        })
        .unwrap();
    }

    #[test]
    fn it_is_known_how_much_a_peer_has_of_what_it_does_not_read() {
        rt::run(async {
            let (listener, addr) = listener();
            // The accepted connection has room for less than is sent.
            socket2::SockRef::from(&listener).set_recv_buffer_size(4 << 10).unwrap();
            let mut stream = connect(addr).await.unwrap();
            let mut peer = listener.accept().await.unwrap().0;
            assert_eq!(stream.acknowledged(), None);
            let (mut written, mut part) = (0, [0; 64 << 10]);
            while let Poll::Ready(n) =
                stream.split().1.poll_write(&mut Context::from_waker(Waker::noop()), &part)
            {
                written += n.unwrap();
                // The reactor says when the kernel has made room.
                rt::turn().await;
            }
            let has = stream.acknowledged().expect("more than the peer has room for");
            assert!((2..written as u64).contains(&has), "{has} of {written}");
            let mut got = 0;
            while got < written {
                got += poll_fn(|cx| peer.split().0.poll_read(cx, &mut part)).await.unwrap();
            }
            while stream.acknowledged().is_some() {
                rt::turn().await;
            }
        })
        .unwrap();
    }
}
