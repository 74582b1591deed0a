//! hot path
//!
//! Reads and writes with a time bound.

use std::future::poll_fn;
use std::io::IoSlice;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::buffers::{Buffer, Lent};
use crate::clock::Waiter;
use crate::rt::{Io, ReadHalf, WriteHalf};
use crate::worker::Worker;

pub(crate) use crate::failed::Failed;

/// Writes everything.
#[inline]
pub(crate) async fn write_all(
    worker: &Worker,
    waiter: &Waiter,
    to: &mut WriteHalf<'_>,
    bytes: &[u8],
    timeout: Duration,
) -> Result<(), Failed> {
    let written = if bytes.is_empty() { 0 } else { write_at_once(to, bytes).await? };
    write_rest(worker, waiter, to, bytes, written, timeout).await
}

/// Writes as much as possible without waiting; returns the number of bytes. Most messages are written whole, and need
/// no deadline.
#[inline]
pub(crate) async fn write_at_once(to: &mut WriteHalf<'_>, bytes: &[u8]) -> Result<usize, Failed> {
    poll_fn(|cx| match to.poll_write(cx, bytes) {
        Poll::Ready(Ok(n)) => Poll::Ready(Ok(n)),
        Poll::Ready(Err(_)) => Poll::Ready(Err(Failed::Closed)),
        Poll::Pending => Poll::Ready(Ok(0)),
    })
    .await
}

/// Writes the rest behind the first `written` bytes.
pub(crate) async fn write_rest(
    worker: &Worker,
    waiter: &Waiter,
    to: &mut WriteHalf<'_>,
    bytes: &[u8],
    mut written: usize,
    timeout: Duration,
) -> Result<(), Failed> {
    while written < bytes.len() {
        let deadline = worker.clock.after(timeout);
        match waiter.until(deadline, |cx| to.poll_write(cx, &bytes[written..])).await {
            Ok(Ok(0) | Err(_)) => return Err(if written > 0 { Failed::Broken } else { Failed::Closed }),
            Ok(Ok(n)) => written += n,
            Err(_) => return Err(Failed::Timeout),
        }
    }
    flush(worker, waiter, to, timeout).await
}

/// Writes three pieces one after the other, in one call if they go at once.
pub(crate) async fn write_pieces(
    worker: &Worker,
    waiter: &Waiter,
    to: &mut WriteHalf<'_>,
    pieces: [&[u8]; 3],
    timeout: Duration,
) -> Result<(), Failed> {
    let mut slices = pieces.map(IoSlice::new);
    let mut rest = &mut slices[..];
    let mut begun = false;
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let deadline = worker.clock.after(timeout);
        match waiter.until(deadline, |cx| to.poll_write_vectored(cx, rest)).await {
            Ok(Ok(0) | Err(_)) => return Err(if begun { Failed::Broken } else { Failed::Closed }),
            Ok(Ok(n)) => {
                begun = true;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(_) => return Err(Failed::Timeout),
        }
    }
    flush(worker, waiter, to, timeout).await
}

/// Waits until what was written is with the kernel, which it is at once without TLS.
#[inline]
async fn flush(
    worker: &Worker,
    waiter: &Waiter,
    to: &mut WriteHalf<'_>,
    timeout: Duration,
) -> Result<(), Failed> {
    if to.is_direct() {
        return Ok(());
    }
    let deadline = worker.clock.after(timeout);
    match waiter.until(deadline, |cx| to.poll_flush(cx)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Failed::Broken),
        Err(_) => Err(Failed::Timeout),
    }
}

/// Reads into the buffer's free room, which must not be empty. `Ok(0)` is the end.
#[inline]
pub(crate) async fn read(
    worker: &Worker,
    waiter: &Waiter,
    from: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    timeout: Duration,
) -> Result<usize, Failed> {
    let deadline = worker.clock.after(timeout);
    read_until(waiter, from, buffer, deadline).await
}

/// As [`read`] with a deadline instead of a time.
#[inline]
pub(crate) async fn read_until(
    waiter: &Waiter,
    from: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    deadline: u64,
) -> Result<usize, Failed> {
    match waiter.until(deadline, |cx| poll_into(from, buffer, cx)).await {
        Ok(Ok(n)) => Ok(n),
        Ok(Err(_)) => Err(Failed::Closed),
        Err(_) => Err(Failed::Timeout),
    }
}

/// Reads what is there already; `None` if that is nothing.
#[inline]
pub(crate) async fn read_now(from: &mut ReadHalf<'_>, buffer: &mut Buffer) -> Option<Result<usize, Failed>> {
    poll_fn(|cx| match poll_into(from, buffer, cx) {
        Poll::Ready(read) => Poll::Ready(Some(read.map_err(|_| Failed::Closed))),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Ends the sending direction, then reads and drops what the other side still sends, so that the close does not
/// become a reset that takes the last bytes with it (RFC 9112 section 9.6).
pub(crate) async fn linger(worker: &Worker, waiter: &Waiter, io: &mut Io) {
    let (mut from, mut to) = io.split();
    let deadline = worker.clock.after(worker.settings.timeouts.linger);
    let _ = waiter.until(deadline, |cx| to.poll_shutdown(cx)).await;
    let mut lent = Lent::none(&worker.buffers);
    let buffer = lent.get();
    let mut dropped = 0;
    while dropped < worker.settings.limits.linger_bytes {
        buffer.consume(buffer.len());
        match read_until(waiter, &mut from, buffer, deadline).await {
            Ok(n) if n > 0 => dropped += n,
            _ => break,
        }
    }
}

/// How a connection has ended while it was not read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It broke: the other side is gone.
    Gone,
    /// The other side has closed its sending direction, and may still read.
    HalfClosed,
}

/// Watches a connection until it ends. Bytes that arrive meanwhile are read, up to one buffer, as the
/// end can be seen only behind them; beyond that the watch sees nothing and never ends.
pub(crate) async fn end(worker: &Worker, from: &mut ReadHalf<'_>, buffer: &mut Option<Buffer>) -> End {
    loop {
        match poll_fn(|cx| from.poll_ahead(cx)).await {
            Ok(0) => return End::HalfClosed,
            Ok(_) => {}
            Err(_) => return End::Gone,
        }
        let buffer = buffer.get_or_insert_with(|| worker.buffers.take());
        if buffer.space().is_empty() {
            return std::future::pending().await;
        }
        match read_now(from, buffer).await {
            Some(Ok(0)) => return End::HalfClosed,
            Some(Ok(_)) | None => {}
            Some(Err(_)) => return End::Gone,
        }
    }
}

#[inline]
fn poll_into(
    from: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<usize>> {
    let space = buffer.space();
    debug_assert!(!space.is_empty());
    match from.poll_read(cx, space) {
        Poll::Ready(Ok(n)) => {
            buffer.filled(n);
            Poll::Ready(Ok(n))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::rt::memory::{Schedule, pair};
    use crate::testing::{beside_worker, spawn, turn};

    #[test]
    fn a_partial_write_is_distinguished_from_none() {
        beside_worker(Settings::default(), async |worker, _| {
            let waiter = worker.clock.waiter();
            for (taken, expected) in [(false, Failed::Closed), (true, Failed::Broken)] {
                let (near, far) = pair(Schedule { room: 10, ..Schedule::default() }, Schedule::default());
                let mut io = Io::Memory(far);
                if taken {
                    spawn(async move {
                        turn().await;
                        drop(near);
                    });
                } else {
                    drop(near);
                }
                let (_, mut to) = io.split();
                let written =
                    write_all(&worker, &waiter, &mut to, &[b'x'; 100], Duration::from_secs(1)).await;
                assert_eq!(written, Err(expected));
            }
        });
    }
}
