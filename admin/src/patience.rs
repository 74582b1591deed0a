//! A connection whose peer must read what is sent to it.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Fails a write that has not gone out wholly when its time is over. What counts is the time until
/// the writer's buffer is empty (its flush), so a peer that takes a byte now and then gains nothing.
pub(crate) struct Patience<S> {
    stream: S,
    within: Duration,
    /// Runs while something waits to be taken.
    end: Option<Pin<Box<Sleep>>>,
    /// Whether something does.
    sends: Arc<AtomicBool>,
}

impl<S> Patience<S> {
    pub(crate) fn new(stream: S, within: Duration) -> Patience<S> {
        Patience { stream, within, end: None, sends: Arc::default() }
    }

    /// Whether something waits to be taken.
    pub(crate) fn sends(&self) -> Arc<AtomicBool> {
        self.sends.clone()
    }

    /// What a write comes to that could not be made at once.
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
