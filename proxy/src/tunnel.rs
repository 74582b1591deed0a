//! Bytes both ways, once two connections have become one (RFC 9110 section 7.8, RFC 8441). They are frames of
//! WebSocket, which are followed so that both ends can get a Close frame when the gateway stops.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sdk::engine::Held;
use wire::websocket::{CLOSE_OF_SERVER, Frames, close_of_client};

use crate::buffers::{Buffer, Lent};
use crate::clock::Waiter;
use crate::down::{h2, h3};
use crate::exchange::fault::FaultRecord;
use crate::h2::Stream;
use crate::io::{self, Failed};
use crate::rt::{self, ReadHalf, WriteHalf};
use crate::up;
use crate::worker::Worker;

/// A switched connection to an upstream, or a stream of one.
pub(crate) enum Switched {
    H1(Box<up::h1::Conn>),
    H2(Box<up::h2::Switched>),
}

/// A tunnel, but for the client's side of it.
pub(crate) struct Tunnel {
    pub(crate) conn: Switched,
    /// Bytes that came behind the upstream's 101.
    pub(crate) bytes: Option<Buffer>,
    /// With no byte in either direction for so long, the tunnel ends.
    pub(crate) idle_timeout: Duration,
    /// Values that plugins keep until the tunnel is over.
    pub(crate) holds: Vec<Held>,
    /// The record for the log if the stream to the upstream is reset because its client stalls.
    pub(crate) stalled: Option<Box<FaultRecord>>,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("idle_timeout", &self.idle_timeout).finish_non_exhaustive()
    }
}

/// Where one direction's bytes come from.
pub(crate) enum Source<'a> {
    /// A connection, and what was read from it before.
    Io(ReadHalf<'a>, Option<Buffer>),
    /// A stream of a client's connection.
    H2 {
        input: &'a mut h2::Input,
        stream: &'a Stream,
    },
    H3(&'a mut h3::Input),
    /// A stream of a connection to an upstream.
    Up {
        inlet: &'a mut up::h2::Inlet,
        stream: &'a Stream,
    },
}

/// Where one direction's bytes go.
pub(crate) enum Sink<'a> {
    Io(WriteHalf<'a>),
    H2(&'a Stream),
    H3 { output: &'a RefCell<h3::Output>, shared: &'a h3::Shared },
    Up(&'a Stream),
}

/// The client's side of a tunnel.
pub(crate) struct Ends<'a> {
    pub(crate) from: Source<'a>,
    pub(crate) to: Sink<'a>,
}

/// Runs until both sides have ended, one has failed, or neither has sent anything for too long. When the
/// worker drains, both sides get a Close frame. A client that stalls gets none: it reads nothing.
pub(crate) async fn run(worker: &Worker, waiters: [&Waiter; 2], down: Ends<'_>, tunnel: Tunnel) {
    let Tunnel { mut conn, bytes, idle_timeout, holds: _holds, stalled } = tunnel;
    let [upwards, downwards] = waiters;
    let claim = match &conn {
        Switched::H1(_) => None,
        Switched::H2(stream) => Some(stream.claim()),
    };
    let up = match &mut conn {
        Switched::H1(conn) => {
            let (from, to) = conn.io.split();
            (Source::Io(from, bytes), Sink::Io(to))
        }
        Switched::H2(stream) => {
            let (from, to) = stream.split();
            (Source::Up { inlet: from, stream: to }, Sink::Up(to))
        }
    };
    let alive = Cell::new(worker.clock.after(idle_timeout));
    let way = |waiter, masked| Way { worker, waiter, alive: &alive, idle_timeout, masked };
    let mut upwards = pin!(way(upwards, true).copy(down.from, up.1));
    let mut downwards = pin!(way(downwards, false).copy(up.0, down.to));
    let mut done = (false, false);
    let reset = poll_fn(|cx| {
        if claim.as_ref().is_some_and(|claim| claim.poll_reset(cx)) {
            return Poll::Ready(true);
        }
        for (one, future) in [(&mut done.0, 0), (&mut done.1, 1)] {
            if !*one {
                let polled =
                    if future == 0 { upwards.as_mut().poll(cx) } else { downwards.as_mut().poll(cx) };
                match polled {
                    Poll::Ready(Ok(())) => *one = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(false),
                    Poll::Pending => {}
                }
            }
        }
        if done == (true, true) { Poll::Ready(false) } else { Poll::Pending }
    })
    .await;
    if let Some(record) = stalled.filter(|_| reset) {
        worker.shard.fault();
        (worker.settings.on_fault)(*record);
    }
}

/// One direction.
struct Way<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    /// Until when the tunnel lives without a byte; shared by both directions.
    alive: &'a Cell<u64>,
    idle_timeout: Duration,
    /// It goes to a server, which wants frames masked.
    masked: bool,
}

/// Whether a direction is cut off, as the worker drains.
enum Cut {
    /// It goes on.
    Not,
    /// Nothing more of it is passed on. Whether the last that was is a Close frame.
    Behind { close: bool },
}

impl Way<'_> {
    /// Copies to the end, then passes the end on.
    async fn copy(self, mut from: Source<'_>, mut to: Sink<'_>) -> Result<(), Failed> {
        let mut frames = Frames::default();
        let mut cut = Cut::Not;
        let mut turn = rt::TURN;
        if let Source::Io(_, early) = &mut from
            && let Some(buffer) = early.take()
        {
            let written = self.pass_on(&mut to, &mut frames, buffer.data()).await;
            self.worker.buffers.give(buffer);
            cut = written?;
        }
        loop {
            if let Cut::Behind { close } = cut {
                self.end(&mut from, &mut to, frames, close).await?;
                break;
            }
            if self.leaves(&frames) {
                cut = Cut::Behind { close: frames.is_closed() };
                continue;
            }
            if turn == 0 {
                turn = rt::TURN;
                rt::events().await;
            }
            let piece = match &mut from {
                Source::Io(from, _) => {
                    // No buffer is held while nothing comes.
                    if self.until(&frames, |cx| from.poll_readable(cx).map(drop)).await?.is_none() {
                        continue;
                    }
                    let mut lent = Lent::none(&self.worker.buffers);
                    let buffer = lent.get();
                    let n = io::read(self.worker, self.waiter, from, buffer, self.idle_timeout).await?;
                    if n == 0 {
                        break;
                    }
                    self.lives();
                    turn = turn.saturating_sub(n as u64);
                    cut = self.pass_on(&mut to, &mut frames, buffer.data()).await?;
                    continue;
                }
                Source::H2 { input, stream } => {
                    self.until(&frames, |cx| input.poll_tunnel(stream, cx)).await?
                }
                Source::H3(input) => self.until(&frames, |cx| input.poll_tunnel(cx)).await?,
                Source::Up { inlet, stream } => {
                    self.until(&frames, |cx| inlet.poll_tunnel(stream, cx)).await?
                }
            };
            let Some(piece) = piece else { continue };
            let Some(piece) = piece? else { break };
            self.lives();
            turn = turn.saturating_sub(piece.len() as u64);
            cut = self.pass_on(&mut to, &mut frames, &piece).await?;
        }
        self.lives();
        match &mut to {
            Sink::Io(to) => {
                let _ = self.waiter.until(self.alive.get(), |cx| to.poll_shutdown(cx)).await;
                Ok(())
            }
            other => self.send(other, b"", true).await,
        }
    }

    fn lives(&self) {
        self.alive.set(self.worker.clock.after(self.idle_timeout));
    }

    /// The gateway goes, and nothing is in the way of saying so.
    fn leaves(&self, frames: &Frames) -> bool {
        frames.is_between() && self.worker.closes_tunnels()
    }

    /// Polls until it is ready, or the tunnel has been silent for too long. Nothing, if it is to end.
    async fn until<T>(
        &self,
        frames: &Frames,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Option<T>, Failed> {
        loop {
            let polled = self.waiter.until(self.alive.get(), |cx| match poll(cx) {
                Poll::Pending if self.leaves(frames) => Poll::Ready(None),
                polled => polled.map(Some),
            });
            if let Ok(value) = polled.await {
                return Ok(value);
            }
            // The other direction may have moved the deadline meanwhile.
            if self.worker.clock.is_over(self.alive.get()) {
                return Err(Failed::Timeout);
            }
        }
    }

    /// Passes bytes on; when the gateway goes, only to the end of the frame that is under way.
    async fn pass_on(&self, to: &mut Sink<'_>, frames: &mut Frames, bytes: &[u8]) -> Result<Cut, Failed> {
        if !self.worker.closes_tunnels() {
            frames.pass(bytes);
            self.send(to, bytes, false).await?;
            return Ok(Cut::Not);
        }
        let n = frames.pass_one(bytes);
        if n > 0 {
            self.send(to, &bytes[..n], false).await?;
        }
        if !frames.is_between() {
            return Ok(Cut::Not);
        }
        let close = frames.is_closed();
        frames.pass(&bytes[n..]);
        Ok(Cut::Behind { close })
    }

    /// Tells the one side that the gateway goes, and waits a while until the other has said that it has
    /// heard so, or ends.
    async fn end(
        &self,
        from: &mut Source<'_>,
        to: &mut Sink<'_>,
        mut frames: Frames,
        close: bool,
    ) -> Result<(), Failed> {
        if !close {
            let masked = close_of_client(fastrand::u32(..).to_be_bytes());
            self.send(to, if self.masked { &masked } else { &CLOSE_OF_SERVER }, false).await?;
        }
        let deadline = self.worker.clock.after(self.worker.settings.timeouts.send);
        let _ = self.waiter.until(deadline, |cx| poll_close(from, &mut frames, cx)).await;
        Ok(())
    }

    async fn send(&self, to: &mut Sink<'_>, bytes: &[u8], ends: bool) -> Result<(), Failed> {
        match to {
            Sink::Io(to) => io::write_all(self.worker, self.waiter, to, bytes, self.idle_timeout).await,
            Sink::H2(stream) | Sink::Up(stream) => {
                h2::send(self.worker, self.waiter, self.idle_timeout, stream, bytes, ends).await
            }
            Sink::H3 { output, shared } => {
                let (waits, time) = (self.waiter, self.idle_timeout);
                h3::send(self.worker, waits, time, output, shared, bytes, ends).await
            }
        }
    }
}

/// Drops what comes until that is a Close frame, or the end.
fn poll_close(from: &mut Source<'_>, frames: &mut Frames, cx: &mut Context<'_>) -> Poll<()> {
    let mut part = [0; 1024];
    while !frames.is_closed() {
        let piece = match from {
            Source::Io(from, _) => match ready!(from.poll_read(cx, &mut part)) {
                Ok(n) if n > 0 => {
                    frames.pass(&part[..n]);
                    continue;
                }
                _ => break,
            },
            Source::H2 { input, stream } => ready!(input.poll_tunnel(stream, cx)),
            Source::H3(input) => ready!(input.poll_tunnel(cx)),
            Source::Up { inlet, stream } => ready!(inlet.poll_tunnel(stream, cx)),
        };
        match piece {
            Ok(Some(piece)) => frames.pass(&piece),
            _ => break,
        }
    }
    Poll::Ready(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::beside_many_bytes;

    #[test]
    fn others_have_their_turn_beside_bytes_that_never_wait() {
        beside_many_bytes(async |worker, mut client, upstream| {
            let waiters = [worker.clock.waiter(), worker.clock.waiter()];
            let (from, to) = client.split();
            let ends = Ends { from: Source::Io(from, None), to: Sink::Io(to) };
            let conn = Switched::H1(up::h1::Conn::new(upstream));
            let idle_timeout = Duration::from_secs(60);
            let tunnel = Tunnel { conn, bytes: None, idle_timeout, holds: Vec::new(), stalled: None };
            run(&worker, [&waiters[0], &waiters[1]], ends, tunnel).await;
        });
    }
}
