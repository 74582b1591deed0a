//! A connection for a library that asks for tokio's traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that one read brings at most. Room is zeroed before it is lent, so more would cost more.
const ONE_READ: usize = 16 << 10;

/// What a library reads from and writes to.
pub(crate) trait Line {
    /// Reads what is there. `Ok(0)` is the end.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
    fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The library's hold on a line; the room keeps another.
#[derive(Debug)]
pub(crate) struct Duplex<L>(pub(crate) Rc<L>);

impl<L: Line> AsyncRead for Duplex<L> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining().min(ONE_READ);
        let read = self.0.poll_read(cx, buf.initialize_unfilled_to(room));
        read.map_ok(|n| buf.advance(n))
    }
}

impl<L: Line> AsyncWrite for Duplex<L> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown(cx)
    }
}
