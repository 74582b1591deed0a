//! A connection for a library that asks for tokio's traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that a library reads from and writes to.
pub(crate) trait Line {
    /// Reads available bytes, at most `most`, and passes them to `take`; none is the end. They lie in a buffer of
    /// the line's: the library's room is not initialised, and is larger than most reads.
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        most: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<()>>;
    fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>>;
    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// The library's hold on a line; the room keeps another.
#[derive(Debug)]
pub(crate) struct Duplex<L>(pub(crate) Rc<L>);

impl<L: Line> AsyncRead for Duplex<L> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        self.0.poll_read(cx, room, &mut |bytes| buf.put_slice(bytes))
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
