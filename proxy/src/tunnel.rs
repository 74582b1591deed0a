//! Bytes both ways, once two connections have become one (RFC 9110 section 7.8).

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::buffers::{Buffer, Lent};
use crate::clock::Waiter;
use crate::down;
use crate::io::{self, Failed};
use crate::rt::{ReadHalf, WriteHalf};
use crate::up;
use crate::worker::Worker;

/// A switched connection to an upstream.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) conn: up::h1::Conn,
    /// Bytes that came behind the upstream's 101.
    pub(crate) bytes: Option<Buffer>,
    /// With no byte in either direction for so long, the tunnel ends.
    pub(crate) idle_timeout: Duration,
    /// What plugins keep until the tunnel is over.
    pub(crate) holds: Vec<Box<dyn Any>>,
}

/// Runs until both sides have ended, one has failed, or neither has said anything for too long.
pub(crate) async fn run(worker: &Worker, down: &mut down::h1::Conn, tunnel: Tunnel) {
    let Tunnel { mut conn, bytes, idle_timeout, holds: _holds } = tunnel;
    let early = down.buffer.take();
    let (mut from_client, mut to_client) = down.io.split();
    let (mut from_up, mut to_up) = conn.io.split();
    let alive = Cell::new(worker.clock.after(idle_timeout));
    let mut upwards =
        pin!(copy(worker, &down.waiters[0], &mut from_client, &mut to_up, early, &alive, idle_timeout));
    let mut downwards =
        pin!(copy(worker, &down.waiters[1], &mut from_up, &mut to_client, bytes, &alive, idle_timeout));
    let mut done = (false, false);
    poll_fn(|cx| {
        for (one, future) in [(&mut done.0, 0), (&mut done.1, 1)] {
            if !*one {
                let polled =
                    if future == 0 { upwards.as_mut().poll(cx) } else { downwards.as_mut().poll(cx) };
                match polled {
                    Poll::Ready(Ok(())) => *one = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => {}
                }
            }
        }
        if done == (true, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Copies one direction to its end, then passes the end on.
async fn copy(
    worker: &Worker,
    waiter: &Waiter,
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    mut early: Option<Buffer>,
    alive: &Cell<u64>,
    idle_timeout: Duration,
) -> Result<(), Failed> {
    if let Some(buffer) = early.take() {
        let written = io::write_all(worker, waiter, to, buffer.data(), idle_timeout).await;
        worker.buffers.give(buffer);
        written?;
    }
    loop {
        // No buffer is held while nothing comes.
        while waiter.until(alive.get(), |cx| from.poll_readable(cx)).await.is_err() {
            // The other direction may have moved the deadline meanwhile.
            if worker.clock.is_over(alive.get()) {
                return Err(Failed::Timeout);
            }
        }
        let mut lent = Lent::none(&worker.buffers);
        let buffer = lent.get();
        let n = io::read(worker, waiter, from, buffer, idle_timeout).await?;
        alive.set(worker.clock.after(idle_timeout));
        if n == 0 {
            let _ = waiter.until(alive.get(), |cx| to.poll_shutdown(cx)).await;
            return Ok(());
        }
        io::write_all(worker, waiter, to, buffer.data(), idle_timeout).await?;
    }
}
