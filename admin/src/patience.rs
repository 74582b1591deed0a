//! A timeout for peers that do not read.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Fails writes once the writer's buffer has not been emptied (its flush) within a time. The time runs until
/// the flush, so a peer that reads a byte now and then gains nothing.
pub(crate) struct Patience<S> {
    stream: S,
    within: Duration,
    /// Runs while data waits to be read by the peer.
    end: Option<Pin<Box<Sleep>>>,
    /// Whether data waits to be read by the peer.
    sends: Arc<AtomicBool>,
}

impl<S> Patience<S> {
    pub(crate) fn new(stream: S, within: Duration) -> Patience<S> {
        Patience { stream, within, end: None, sends: Arc::default() }
    }

    /// Returns the flag that is set while data waits to be read by the peer.
    pub(crate) fn sends(&self) -> Arc<AtomicBool> {
        self.sends.clone()
    }

    /// Fails a pending write with `TimedOut` if the time is over.
    fn wait<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            let within = self.within;
            self.sends.store(true, Ordering::Relaxed);
            ready!(self.end.get_or_insert_with(|| Box::pin(sleep(within))).as_mut().poll(cx));
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patience<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patience<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wait(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.wait(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end = None;
        self.sends.store(false, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
