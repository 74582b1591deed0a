//! Bytes both ways, once two connections have become one (RFC 9110 section 7.8, RFC 8441).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::buffers::{Buffer, Lent};
use crate::clock::Waiter;
use crate::down::{h2, h3};
use crate::h2::Line;
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

/// Where one direction's bytes come from.
pub(crate) enum Source<'a> {
    /// A connection, and what was read from it before.
    Io(ReadHalf<'a>, Option<Buffer>),
    /// A stream of a client's connection.
    H2(&'a mut h2::Input),
    H3(&'a mut h3::Input),
}

/// Where one direction's bytes go.
pub(crate) enum Sink<'a> {
    Io(WriteHalf<'a>),
    H2 { output: &'a RefCell<h2::Output>, line: &'a Line },
    H3 { output: &'a RefCell<h3::Output>, shared: &'a h3::Shared },
}

/// The client's side of a tunnel.
pub(crate) struct Ends<'a> {
    pub(crate) from: Source<'a>,
    pub(crate) to: Sink<'a>,
}

/// Runs until both sides have ended, one has failed, or neither has said anything for too long.
pub(crate) async fn run(worker: &Worker, waiters: [&Waiter; 2], down: Ends<'_>, tunnel: Tunnel) {
    let Tunnel { mut conn, bytes, idle_timeout, holds: _holds } = tunnel;
    let [upwards, downwards] = waiters;
    let (from_up, to_up) = conn.io.split();
    let up = (Source::Io(from_up, bytes), Sink::Io(to_up));
    let alive = Cell::new(worker.clock.after(idle_timeout));
    let way = |waiter| Way { worker, waiter, alive: &alive, idle_timeout };
    let mut upwards = pin!(way(upwards).copy(down.from, up.1));
    let mut downwards = pin!(way(downwards).copy(up.0, down.to));
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

/// One direction.
struct Way<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    /// Until when the tunnel lives without a byte; shared by both directions.
    alive: &'a Cell<u64>,
    idle_timeout: Duration,
}

impl Way<'_> {
    /// Copies to the end, then passes the end on.
    async fn copy(self, mut from: Source<'_>, mut to: Sink<'_>) -> Result<(), Failed> {
        if let Source::Io(_, early) = &mut from
            && let Some(buffer) = early.take()
        {
            let written = self.write(&mut to, buffer.data()).await;
            self.worker.buffers.give(buffer);
            written?;
        }
        loop {
            match &mut from {
                Source::Io(from, _) => {
                    // No buffer is held while nothing comes.
                    self.until(|cx| from.poll_readable(cx).map(drop)).await?;
                    let mut lent = Lent::none(&self.worker.buffers);
                    let buffer = lent.get();
                    let n = io::read(self.worker, self.waiter, from, buffer, self.idle_timeout).await?;
                    if n == 0 {
                        break;
                    }
                    self.lives();
                    self.write(&mut to, buffer.data()).await?;
                }
                Source::H2(input) => {
                    let Some(piece) = self.until(|cx| input.poll_tunnel(cx)).await?? else { break };
                    self.lives();
                    self.write(&mut to, &piece).await?;
                }
                Source::H3(input) => {
                    let Some(piece) = self.until(|cx| input.poll_tunnel(cx)).await?? else { break };
                    self.lives();
                    self.write(&mut to, &piece).await?;
                }
            }
        }
        self.lives();
        match &mut to {
            Sink::Io(to) => {
                let _ = self.waiter.until(self.alive.get(), |cx| to.poll_shutdown(cx)).await;
                Ok(())
            }
            Sink::H2 { output, line } => h2::send(self.worker, self.waiter, output, line, b"", true).await,
            Sink::H3 { output, shared } => {
                h3::send(self.worker, self.waiter, output, shared, b"", true).await
            }
        }
    }

    fn lives(&self) {
        self.alive.set(self.worker.clock.after(self.idle_timeout));
    }

    /// Polls until it is ready, or the tunnel has been silent for too long.
    async fn until<T>(
        &self,
        mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>,
    ) -> Result<T, Failed> {
        loop {
            if let Ok(value) = self.waiter.until(self.alive.get(), &mut poll).await {
                return Ok(value);
            }
            // The other direction may have moved the deadline meanwhile.
            if self.worker.clock.is_over(self.alive.get()) {
                return Err(Failed::Timeout);
            }
        }
    }

    async fn write(&self, to: &mut Sink<'_>, bytes: &[u8]) -> Result<(), Failed> {
        match to {
            Sink::Io(to) => io::write_all(self.worker, self.waiter, to, bytes, self.idle_timeout).await,
            Sink::H2 { output, line } => h2::send(self.worker, self.waiter, output, line, bytes, false).await,
            Sink::H3 { output, shared } => {
                h3::send(self.worker, self.waiter, output, shared, bytes, false).await
            }
        }
    }
}
