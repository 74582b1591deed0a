//! hot path
//!
//! Bytes both ways between two connections, until both have ended.
//!
//! A direction holds a buffer only while bytes are in hand, and reads no more than it could write: a
//! slow reader holds up its sender, and no memory grows. Nothing is allocated for a piece.
//! A [`Tap`] may inspect passing bytes, hold them back, and end it all.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

pub(crate) use sdk::stream::Side;

use crate::buffers::{Buffer, Lent, SMALL};
use crate::clock::Waiter;
use crate::io::{self, Failed};
use crate::rt::{self, ReadHalf, WriteHalf};
use crate::worker::Worker;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Both sides have said all they had.
    Closed,
    /// Neither said anything for too long.
    Idle,
    /// The first, or the second, broke.
    Broken(Side),
}

/// Looks at the bytes of one direction before they go on.
pub(crate) trait Tap {
    /// Looks at the next bytes. Bytes that are held back are shown again after the wait.
    ///
    /// # Errors
    /// It must not go on at all, and neither direction goes any further.
    fn look(&mut self, bytes: &[u8]) -> Result<Passed, Stop>;

    /// It looks at nothing.
    fn is_blind(&self) -> bool {
        false
    }
}

/// The decision on bytes that were looked at.
pub(crate) struct Passed {
    /// How many go on now: all of them, unless `hold` says how long the rest waits.
    pub(crate) now: usize,
    pub(crate) hold: Option<Duration>,
}

/// The bytes must not go on; the tap has noted why.
pub(crate) struct Stop;

/// Passes all bytes without looking.
pub(crate) struct Blind;

impl Tap for Blind {
    #[inline]
    fn look(&mut self, bytes: &[u8]) -> Result<Passed, Stop> {
        Ok(Passed { now: bytes.len(), hold: None })
    }

    fn is_blind(&self) -> bool {
        true
    }
}

/// One end: both halves of its connection, what was read of it before, and what was written to it.
pub(crate) struct End<'a, 'io, T> {
    pub(crate) read: &'a mut ReadHalf<'io>,
    pub(crate) write: &'a mut WriteHalf<'io>,
    pub(crate) waiter: &'a Waiter,
    /// Bytes that came ahead, for the other end.
    pub(crate) early: Option<Buffer>,
    /// Counts bytes that were read, those that came ahead included.
    pub(crate) received: &'a Cell<u64>,
    /// Looks at them.
    pub(crate) tap: T,
}

/// Passes bytes on until both have ended, one has broken, or neither says anything for so long.
pub(crate) async fn run(
    worker: &Worker,
    client: End<'_, '_, impl Tap>,
    upstream: End<'_, '_, impl Tap>,
    idle_timeout: Duration,
) -> Ended {
    let alive = Cell::new(worker.clock.after(idle_timeout));
    let from_client = From {
        read: client.read,
        early: client.early,
        received: client.received,
        tap: client.tap,
        side: Side::Client,
    };
    let from_upstream = From {
        read: upstream.read,
        early: upstream.early,
        received: upstream.received,
        tap: upstream.tap,
        side: Side::Upstream,
    };
    let mut upwards = pin!(copy(worker, client.waiter, from_client, upstream.write, &alive, idle_timeout));
    let mut downwards =
        pin!(copy(worker, upstream.waiter, from_upstream, client.write, &alive, idle_timeout));
    let mut done = (false, false);
    poll_fn(|cx| {
        if !done.0 {
            match upwards.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => done.0 = true,
                Poll::Ready(Err(ended)) => return Poll::Ready(ended),
                Poll::Pending => {}
            }
        }
        if !done.1 {
            match downwards.as_mut().poll(cx) {
                Poll::Ready(Ok(())) => done.1 = true,
                Poll::Ready(Err(ended)) => return Poll::Ready(ended),
                Poll::Pending => {}
            }
        }
        if done == (true, true) { Poll::Ready(Ended::Closed) } else { Poll::Pending }
    })
    .await
}

struct From<'a, 'io, T> {
    read: &'a mut ReadHalf<'io>,
    early: Option<Buffer>,
    received: &'a Cell<u64>,
    tap: T,
    side: Side,
}

/// Copies one direction to its end, then passes the end on.
async fn copy(
    worker: &Worker,
    waiter: &Waiter,
    from: From<'_, '_, impl Tap>,
    to: &mut WriteHalf<'_>,
    alive: &Cell<u64>,
    idle_timeout: Duration,
) -> Result<(), Ended> {
    let From { read, early, received, mut tap, side } = from;
    let mut out = Out { worker, waiter, to, alive, idle_timeout, side };
    if let Some(mut buffer) = early {
        received.set(received.get() + buffer.len() as u64);
        let passed = out.pass(&mut buffer, &mut tap).await;
        worker.buffers.give(buffer);
        passed?;
    }
    // While the other direction holds something back, the stream lives as long as that takes.
    let live_on = || alive.set(alive.get().max(worker.clock.after(idle_timeout)));
    // A read that fills its buffer is likely to be one of many.
    let mut large = false;
    let mut turn = rt::TURN;
    loop {
        // No buffer is held while nothing comes.
        while waiter.until(alive.get(), |cx| read.poll_readable(cx)).await.is_err() {
            // The other direction may have moved the deadline meanwhile.
            if worker.clock.is_over(alive.get()) {
                return Err(Ended::Idle);
            }
        }
        let mut lent = Lent::none(&worker.buffers);
        lent.get();
        if large {
            lent.enlarge();
        }
        let buffer = lent.get();
        let n = match io::read_until(waiter, read, buffer, alive.get()).await {
            Ok(n) => n,
            // It was readable for nothing.
            Err(Failed::Timeout) if !worker.clock.is_over(alive.get()) => continue,
            Err(Failed::Timeout) => return Err(Ended::Idle),
            Err(_) => return Err(Ended::Broken(side)),
        };
        live_on();
        if n == 0 {
            let _ = waiter.until(alive.get(), |cx| out.to.poll_shutdown(cx)).await;
            return Ok(());
        }
        received.set(received.get() + n as u64);
        large = n >= SMALL;
        out.pass(buffer, &mut tap).await?;
        live_on();
        turn = turn.saturating_sub(n as u64);
        if turn == 0 {
            turn = rt::TURN;
            rt::events().await;
        }
    }
}

/// Where a direction goes.
struct Out<'a, 'io> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    to: &'a mut WriteHalf<'io>,
    alive: &'a Cell<u64>,
    idle_timeout: Duration,
    /// Where it comes from.
    side: Side,
}

impl Out<'_, '_> {
    /// Writes all that a buffer holds, as the tap lets it.
    #[inline]
    async fn pass(&mut self, buffer: &mut Buffer, tap: &mut impl Tap) -> Result<(), Ended> {
        let unwritten = |failed| match failed {
            Failed::Timeout => Ended::Idle,
            _ => Ended::Broken(self.side.other()),
        };
        loop {
            let Passed { now, hold } = tap.look(buffer.data()).map_err(|Stop| Ended::Broken(self.side))?;
            let bytes = &buffer.data()[..now];
            io::write_all(self.worker, self.waiter, self.to, bytes, self.idle_timeout)
                .await
                .map_err(unwritten)?;
            buffer.consume(now);
            let Some(time) = hold else { return Ok(()) };
            self.alive.set(self.worker.clock.after(time.saturating_add(self.idle_timeout)));
            // In memory of its own: hardly any direction ever waits.
            Box::pin(rt::sleep(time)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::Io;
    use crate::settings::Settings;
    use crate::testing::{self, beside_many_bytes, beside_worker, sleep};
    use std::rc::Rc;

    #[test]
    fn others_have_their_turn_beside_bytes_that_never_wait() {
        beside_many_bytes(async |worker, mut client, mut upstream| {
            let waiters = [worker.clock.waiter(), worker.clock.waiter()];
            let (mut from_client, mut to_client) = client.split();
            let (mut from_upstream, mut to_upstream) = upstream.split();
            let (received, sent) = (Cell::new(0), Cell::new(0));
            let client = End {
                read: &mut from_client,
                write: &mut to_client,
                waiter: &waiters[0],
                early: None,
                received: &received,
                tap: Blind,
            };
            let upstream = End {
                read: &mut from_upstream,
                write: &mut to_upstream,
                waiter: &waiters[1],
                early: None,
                received: &sent,
                tap: Blind,
            };
            assert_eq!(run(&worker, client, upstream, Duration::from_secs(60)).await, Ended::Closed);
        });
    }

    /// The outcome of a stream, once it is over.
    type Over = Rc<Cell<Option<(Ended, u64, u64)>>>;

    /// A stream that is given up after ten seconds without a byte: both peers, of which the upstream takes so much
    /// before it reads.
    fn stream(worker: &Rc<Worker>, room: usize) -> (testing::End, testing::End, Over) {
        let roomy = || testing::Schedule { room, ..testing::Schedule::default() };
        let ((client, near), (upstream, far)) =
            (testing::pair(roomy(), roomy()), testing::pair(roomy(), roomy()));
        let over = between(worker, Io::Memory(near), Io::Memory(far));
        (client, upstream, over)
    }

    /// The same between these two connections.
    fn between(worker: &Rc<Worker>, mut near: Io, mut far: Io) -> Over {
        let over = Over::default();
        let (ended, worker) = (over.clone(), worker.clone());
        testing::spawn(async move {
            let waiters = [worker.clock.waiter(), worker.clock.waiter()];
            let (mut from_client, mut to_client) = near.split();
            let (mut from_upstream, mut to_upstream) = far.split();
            let (received, sent) = (Cell::new(0), Cell::new(0));
            let mut early = worker.buffers.take();
            early.space()[..5].copy_from_slice(b"early");
            early.filled(5);
            let client = End {
                read: &mut from_client,
                write: &mut to_client,
                waiter: &waiters[0],
                early: Some(early),
                received: &received,
                tap: Blind,
            };
            let upstream = End {
                read: &mut from_upstream,
                write: &mut to_upstream,
                waiter: &waiters[1],
                early: None,
                received: &sent,
                tap: Blind,
            };
            let how = run(&worker, client, upstream, Duration::from_secs(10)).await;
            ended.set(Some((how, received.get(), sent.get())));
        });
        over
    }

    #[test]
    fn a_stream_is_over_when_neither_side_says_anything_for_so_long() {
        beside_worker(Settings::default(), async |worker, _| {
            let (client, upstream, over) = stream(&worker, 0);
            let mut part = [0; 64];
            assert_eq!(upstream.read(&mut part).await.unwrap(), 5, "what came ahead");
            for second in 0..4 {
                // Only one side speaks, in its turn.
                let (from, to) = if second % 2 == 0 { (&client, &upstream) } else { (&upstream, &client) };
                sleep(Duration::from_secs(8)).await;
                from.write_all(b"abc").await.unwrap();
                assert_eq!(to.read(&mut part).await.unwrap(), 3);
            }
            sleep(Duration::from_secs(8)).await;
            assert_eq!(over.get(), None);
            sleep(Duration::from_secs(3)).await;
            assert_eq!(over.get(), Some((Ended::Idle, 5 + 6, 6)));
        });
    }

    #[test]
    fn a_side_that_seemed_to_speak_and_did_not_ends_no_stream_on_which_the_other_speaks() {
        beside_worker(Settings::default(), async |worker, _| {
            let listener = rt::listen(([127, 0, 0, 1], 0).into(), 8, false).unwrap();
            let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            // A read that fills its buffer leaves the socket marked as readable, and nothing is there.
            std::io::Write::write_all(&mut client, &[b'x'; SMALL]).unwrap();
            let near = Io::Plain(rt::Listener::new(listener).unwrap().accept().await.unwrap().0);
            let mut all = [0; SMALL];
            while !matches!(peek(&near, &mut all).await, Ok(SMALL)) {
                testing::turn().await;
            }
            let (upstream, far) = testing::pair(Default::default(), Default::default());
            let over = between(&worker, near, Io::Memory(far));
            let (mut part, mut came) = ([0; 4096], 0);
            while came < 5 + SMALL {
                came += upstream.read(&mut part).await.unwrap();
            }
            for _ in 0..4 {
                sleep(Duration::from_secs(8)).await;
                assert_eq!(over.get(), None);
                upstream.write_all(b"abc").await.unwrap();
            }
            sleep(Duration::from_secs(12)).await;
            assert_eq!(over.get(), Some((Ended::Idle, 5 + SMALL as u64, 12)));
        });
    }

    /// Looks at the bytes that the kernel has for the gateway.
    async fn peek(io: &Io, buf: &mut [u8]) -> std::io::Result<usize> {
        let Io::Plain(stream) = io else { unreachable!("it is a socket") };
        poll_fn(|cx| stream.poll_peek(cx, buf)).await
    }

    #[test]
    fn a_side_that_takes_nothing_for_so_long_ends_it_and_one_that_closes_does_not() {
        beside_worker(Settings::default(), async |worker, _| {
            let (client, _upstream, over) = stream(&worker, 64);
            client.write_all(&[b'x'; 100]).await.unwrap();
            sleep(Duration::from_secs(12)).await;
            assert!(matches!(over.get(), Some((Ended::Idle, ..))), "{:?}", over.get());

            let (client, upstream, over) = stream(&worker, 64);
            client.shut_down();
            let mut part = [0; 64];
            assert_eq!(upstream.read(&mut part).await.unwrap(), 5);
            assert_eq!(upstream.read(&mut part).await.unwrap(), 0, "the end is passed on");
            upstream.write_all(b"late").await.unwrap();
            assert_eq!(client.read(&mut part).await.unwrap(), 4);
            upstream.shut_down();
            assert_eq!(client.read(&mut part).await.unwrap(), 0);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(over.get(), Some((Ended::Closed, 5, 4)));
        });
    }
}
