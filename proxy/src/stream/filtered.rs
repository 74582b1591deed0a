//! Streams whose bytes plugins see: every piece goes through the chain before it goes on.
//!
//! A direction reads nothing while it writes, nor while a plugin waits with bytes of it. Beside what plugins keep, which
//! counts against the worker's budget, a stream holds one piece for each direction.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

use sdk::exchange::Chunk;
use sdk::{Chain, Exchange, Step};

use super::Outcome;
use super::first::First;
use super::tcp::{Carried, Way};
use crate::buffers::{Buffer, Lent};
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::phases::guarded;
use crate::io::{self, Failed};
use crate::relay::{Ended, Side};
use crate::rt::{self, Io, ReadHalf, WriteHalf};

/// The work of a piece at the least, in bytes: plugins run for each.
const LEAST: u64 = 4 << 10;

/// The plugins of a stream, which both directions show their bytes.
struct Filters<'f, 's> {
    way: Way<'f>,
    x: RefCell<&'f mut Exchange<'s>>,
    chain: &'f Chain,
    /// Neither side may be silent for longer.
    alive: Cell<u64>,
    /// Plugins keep bytes of the client, and of the upstream.
    keeps: [Cell<bool>; 2],
}

/// One direction.
struct Direction<'d, 'io> {
    from: Side,
    read: &'d mut ReadHalf<'io>,
    write: &'d mut WriteHalf<'io>,
    /// Bytes that came ahead.
    early: Option<Buffer>,
    received: &'d Cell<u64>,
}

/// Passes bytes both ways through the plugins. The outcome is theirs, if they have ended the stream.
pub(super) async fn run(
    way: Way<'_>,
    io: &mut Io,
    up: &mut Io,
    mut first: First<'_>,
    x: &mut Exchange<'_>,
    chain: &Chain,
) -> (Carried, Option<Outcome>) {
    let (received, sent) = (Cell::new(0), Cell::new(0));
    let early = first.buffer.take();
    drop(first);
    let alive = Cell::new(way.worker.clock.after(way.idle_timeout));
    let filters = Filters { way, x: RefCell::new(x), chain, alive, keeps: Default::default() };
    let (mut from_client, mut to_client) = io.split();
    let (mut from_up, mut to_up) = up.split();
    let upwards = Direction {
        from: Side::Client,
        read: &mut from_client,
        write: &mut to_up,
        early,
        received: &received,
    };
    let downwards = Direction {
        from: Side::Upstream,
        read: &mut from_up,
        write: &mut to_client,
        early: None,
        received: &sent,
    };
    let mut upwards = pin!(filters.carry_upwards(upwards));
    let mut downwards = pin!(filters.carry(downwards));
    let mut done = (false, false);
    let outcome = poll_fn(|cx| {
        if !done.0 {
            match upwards.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => done.0 = true,
                Poll::Ready(Err(outcome)) => return Poll::Ready(outcome),
                Poll::Pending => {}
            }
        }
        if !done.1 {
            match downwards.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => done.1 = true,
                Poll::Ready(Err(outcome)) => return Poll::Ready(outcome),
                Poll::Pending => {}
            }
        }
        if done == (true, true) { Poll::Ready(Outcome::Relayed(Ended::Closed)) } else { Poll::Pending }
    })
    .await;
    let carried = |ended| Carried { ended, received: received.get(), sent: sent.get() };
    match outcome {
        Outcome::Relayed(Ended::Idle) if filters.keeps.iter().any(Cell::get) => {
            (carried(Ended::Broken(Side::Client)), None)
        }
        Outcome::Relayed(ended) => (carried(ended), None),
        // Each side may have got only a part.
        outcome => (carried(Ended::Broken(Side::Client)), Some(outcome)),
    }
}

impl Filters<'_, '_> {
    /// The client's direction begins with the PROXY protocol header, if there is one.
    async fn carry_upwards(&self, direction: Direction<'_, '_>) -> Result<(), Outcome> {
        let Way { worker, waiters, header, idle_timeout } = self.way;
        if !header.is_empty() {
            let written = io::write_all(worker, &waiters[0], direction.write, header, idle_timeout).await;
            if let Err(failed) = written {
                direction.early.into_iter().for_each(|buffer| worker.buffers.give(buffer));
                return Err(unwritten(failed, Side::Client));
            }
        }
        self.carry(direction).await
    }

    /// Carries one direction to its end, then passes the end on.
    async fn carry(&self, direction: Direction<'_, '_>) -> Result<(), Outcome> {
        let Direction { from, read, write, mut early, received } = direction;
        let Way { worker, waiters, idle_timeout, .. } = self.way;
        let waiter = &waiters[usize::from(from == Side::Upstream)];
        let live_on = || self.alive.set(self.alive.get().max(worker.clock.after(idle_timeout)));
        let mut chunk = Chunk::default();
        let (mut reads, mut at_end) = (true, false);
        let mut turn = rt::TURN;
        loop {
            reads = match early.take() {
                Some(buffer) => {
                    received.set(received.get() + buffer.len() as u64);
                    chunk.data.extend_from_slice(buffer.data());
                    worker.buffers.give(buffer);
                    self.show(from, &mut chunk)?
                }
                None => {
                    let next = waiter.until(self.alive.get(), |cx| match self.poll(from, &mut chunk, cx) {
                        Poll::Ready(passed) => Poll::Ready(Some(passed)),
                        Poll::Pending if reads && !at_end => read.poll_readable(cx).map(|_| None),
                        Poll::Pending => Poll::Pending,
                    });
                    match next.await {
                        Ok(Some(passed)) => passed?,
                        Ok(None) => match self.receive(from, read, &mut chunk, received).await? {
                            false => continue,
                            true => {
                                at_end = chunk.last;
                                self.show(from, &mut chunk)?
                            }
                        },
                        // The other direction may have moved the deadline meanwhile.
                        Err(_) if !worker.clock.is_over(self.alive.get()) => continue,
                        Err(_) => return Err(Outcome::Relayed(Ended::Idle)),
                    }
                }
            };
            live_on();
            let size = chunk.data.len() as u64;
            self.keeps[from as usize].set(size == 0 && !chunk.last);
            if size > 0 {
                io::write_all(worker, waiter, write, &chunk.data, idle_timeout)
                    .await
                    .map_err(|failed| unwritten(failed, from))?;
                // A plugin may have put more into it than a piece has.
                chunk.data = Vec::new();
                live_on();
            }
            if std::mem::take(&mut chunk.last) {
                let _ = waiter.until(self.alive.get(), |cx| write.poll_shutdown(cx)).await;
                return Ok(());
            }
            turn = turn.saturating_sub(size.max(LEAST));
            if turn == 0 {
                turn = rt::TURN;
                rt::events().await;
            }
        }
    }

    /// Reads a piece, or the end; false if there is nothing yet.
    async fn receive(
        &self,
        from: Side,
        read: &mut ReadHalf<'_>,
        chunk: &mut Chunk,
        received: &Cell<u64>,
    ) -> Result<bool, Outcome> {
        let mut lent = Lent::none(&self.way.worker.buffers);
        let buffer = lent.get();
        match io::read_now(read, buffer).await {
            Some(Ok(n)) => {
                received.set(received.get() + n as u64);
                chunk.data.extend_from_slice(buffer.data());
                buffer.consume(n);
                chunk.last = n == 0;
                Ok(true)
            }
            // It was readable for nothing.
            None => Ok(false),
            Some(Err(_)) => Err(Outcome::Relayed(Ended::Broken(from))),
        }
    }

    /// Shows a piece to the plugins; whether more of this side may be read.
    fn show(&self, from: Side, chunk: &mut Chunk) -> Result<bool, Outcome> {
        let mut x = self.x.borrow_mut();
        let x = &mut **x;
        let step = guarded(self.way.worker, || self.chain.stream_data(0, x, from, chunk));
        reads_on(x, step)
    }

    /// Polls the plugins for bytes that they have kept.
    fn poll(&self, from: Side, chunk: &mut Chunk, cx: &mut Context<'_>) -> Poll<Result<bool, Outcome>> {
        let mut x = self.x.borrow_mut();
        let x = &mut **x;
        match guarded(self.way.worker, || self.chain.poll_stream(x, from, chunk, cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(step)) => Poll::Ready(reads_on(x, Ok(step))),
            Err(fault) => Poll::Ready(Err(Outcome::Failed(fault))),
        }
    }
}

fn reads_on(x: &mut Exchange<'_>, step: Result<Step, Fault>) -> Result<bool, Outcome> {
    match step.map_err(Outcome::Failed)? {
        Step::Next => Ok(true),
        Step::Wait => Ok(false),
        Step::Reply(reply) => {
            x.engine_mut().reason = reply.reason;
            Err(Outcome::Refused(reply.status))
        }
        Step::Body(_) | Step::Refuse(_) => Err(Outcome::Failed(Fault::gateway(FaultKind::BrokenStage))),
    }
}

/// Bytes of a side cannot be written to the other.
fn unwritten(failed: Failed, from: Side) -> Outcome {
    Outcome::Relayed(match failed {
        Failed::Timeout => Ended::Idle,
        _ => Ended::Broken(from.other()),
    })
}
