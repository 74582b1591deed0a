//! hot path
//!
//! A connection to a peer, over whichever transport.
//!
//! Everything here is about plaintext: [`Io::is_idle`] and [`ReadHalf::poll_ahead`] must not count
//! a transport's own messages, such as a TLS session ticket, as bytes of the peer.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::memory;
use super::socket::Socket;
use super::tcp;
use super::tls::Tls;

/// A connection.
#[derive(Debug)]
pub(crate) enum Io {
    /// A TCP socket.
    Plain(tcp::Stream),
    /// TLS over one of the others.
    Tls(Box<Tls>),
    /// A pipe in memory: an exchange of the gateway with itself, or a test.
    Memory(memory::End),
    /// Of a plugin's raw connection.
    Socket(Box<Socket>),
}

/// The reading side, usable beside the writing side within one task.
#[derive(Debug)]
pub(crate) enum ReadHalf<'a> {
    Plain(tcp::ReadHalf<'a>),
    Tls(&'a Tls),
    Memory(&'a memory::End),
    Socket(&'a Socket),
}

/// The writing side.
#[derive(Debug)]
pub(crate) enum WriteHalf<'a> {
    Plain(tcp::WriteHalf<'a>),
    Tls(&'a Tls),
    Memory(&'a memory::End),
    Socket(&'a Socket),
}

/// Opens a connection. The time bound is the caller's.
pub(crate) async fn connect(addr: SocketAddr) -> io::Result<Io> {
    #[cfg(feature = "testing")]
    if let Some(connected) = memory::connect(addr) {
        return connected.map(Io::Memory);
    }
    tcp::connect(addr).await.map(Io::Plain)
}

impl Io {
    /// TLS, with what it has agreed on.
    #[inline]
    pub(crate) fn tls(&self) -> Option<&Tls> {
        match self {
            Io::Tls(tls) => Some(tls),
            Io::Plain(_) | Io::Memory(_) | Io::Socket(_) => None,
        }
    }

    /// The protocol that both ends agreed on in their handshake (ALPN) is HTTP/2.
    pub(crate) fn agreed_on_h2(&self) -> bool {
        self.tls().is_some_and(|tls| tls.agreed(|agreed| agreed.alpn_protocol() == Some(b"h2")))
    }

    #[inline]
    pub(crate) fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        match self {
            Io::Plain(stream) => {
                let (read, write) = stream.split();
                (ReadHalf::Plain(read), WriteHalf::Plain(write))
            }
            Io::Tls(tls) => (ReadHalf::Tls(tls), WriteHalf::Tls(tls)),
            Io::Memory(end) => (ReadHalf::Memory(end), WriteHalf::Memory(end)),
            Io::Socket(socket) => (ReadHalf::Socket(socket), WriteHalf::Socket(socket)),
        }
    }

    /// Whether bytes, an end or an error may have come since the last read found nothing more. Costs
    /// no system call, and may say yes for nothing; [`Io::is_idle`] then knows.
    #[inline]
    pub(crate) fn maybe_readable(&self) -> bool {
        match self {
            Io::Plain(stream) => stream.maybe_readable(),
            Io::Tls(tls) => tls.maybe_readable(),
            Io::Memory(end) => end.maybe_readable(),
            Io::Socket(socket) => socket.maybe_readable(),
        }
    }

    /// Open, with nothing to read. At most one system call.
    pub(crate) fn is_idle(&self) -> bool {
        match self {
            Io::Plain(stream) => stream.is_idle(),
            Io::Tls(tls) => tls.is_idle(),
            Io::Memory(end) => !end.is_readable(),
            Io::Socket(socket) => socket.is_idle(),
        }
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Io::Plain(stream) => stream.poll_readable(cx),
            Io::Tls(tls) => tls.poll_readable(cx),
            Io::Memory(end) => end.poll_readable(cx),
            Io::Socket(socket) => socket.poll_readable(cx),
        }
    }

    /// While the peer's kernel has not acknowledged all that was written: how many bytes it has. One system
    /// call.
    pub(crate) fn acknowledged(&self) -> Option<u64> {
        match self {
            Io::Plain(stream) => stream.acknowledged(),
            Io::Tls(tls) => tls.acknowledged(),
            Io::Memory(end) => end.acknowledged(),
            Io::Socket(_) => None,
        }
    }

    /// Makes the coming close a reset, so that the peer cannot take what it got for whole.
    pub(crate) fn abort(&self) {
        match self {
            Io::Plain(stream) => stream.abort(),
            Io::Tls(tls) => tls.abort(),
            Io::Memory(end) => end.abort(),
            Io::Socket(_) => {}
        }
    }
}

impl ReadHalf<'_> {
    /// Reads what is there. `Ok(0)` is the end.
    #[inline]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            ReadHalf::Plain(half) => half.poll_read(cx, buf),
            ReadHalf::Tls(tls) => tls.poll_read(cx, buf),
            ReadHalf::Memory(end) => end.poll_read(cx, buf),
            ReadHalf::Socket(socket) => socket.poll_read(cx, buf),
        }
    }

    /// Waits for bytes or an end without holding a buffer.
    #[inline]
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ReadHalf::Plain(half) => half.poll_readable(cx),
            ReadHalf::Tls(tls) => tls.poll_readable(cx),
            ReadHalf::Memory(end) => end.poll_readable(cx),
            ReadHalf::Socket(socket) => socket.poll_readable(cx),
        }
    }

    /// Waits until it is certain what comes next, and leaves it where it is: `Ok(0)` is the end, else
    /// there are bytes.
    pub(crate) fn poll_ahead(&self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self {
            ReadHalf::Plain(half) => half.poll_ahead(cx),
            ReadHalf::Tls(tls) => tls.poll_ahead(cx),
            ReadHalf::Memory(end) => end.poll_ahead(cx),
            ReadHalf::Socket(socket) => socket.poll_ahead(cx),
        }
    }
}

impl WriteHalf<'_> {
    #[inline]
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            WriteHalf::Plain(half) => half.poll_write(cx, bytes),
            WriteHalf::Tls(tls) => tls.poll_write(cx, &[IoSlice::new(bytes)]),
            WriteHalf::Memory(end) => end.poll_write(cx, bytes),
            WriteHalf::Socket(socket) => socket.poll_write(cx, bytes),
        }
    }

    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            WriteHalf::Plain(half) => half.poll_write_vectored(cx, slices),
            WriteHalf::Tls(tls) => tls.poll_write(cx, slices),
            WriteHalf::Memory(_) | WriteHalf::Socket(_) => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                self.poll_write(cx, first.map_or(&[], |slice| slice))
            }
        }
    }

    /// Whether written bytes go straight to the kernel, so that there is nothing to flush.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        !matches!(self, WriteHalf::Tls(_))
    }

    /// Waits until all written bytes are with the kernel. Without it, the last bytes may stay with the
    /// transport, which sends them beside reading.
    #[inline]
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteHalf::Plain(_) | WriteHalf::Memory(_) | WriteHalf::Socket(_) => Poll::Ready(Ok(())),
            WriteHalf::Tls(tls) => tls.poll_flush(cx),
        }
    }

    /// Says that no more will be written.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            WriteHalf::Plain(half) => half.poll_shutdown(cx),
            WriteHalf::Tls(tls) => tls.poll_shutdown(cx),
            WriteHalf::Memory(end) => {
                end.shut_down();
                Poll::Ready(Ok(()))
            }
            WriteHalf::Socket(socket) => Poll::Ready(socket.shut_down()),
        }
    }
}
