//! hot path
//!
//! The socket of an HTTP/2 connection: reads into lent buffers, writes all waiting frames in one call, and detects a
//! peer that has stopped reading.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::receive::Event;
use super::stream::SharedMux;
use crate::buffers::{Buffer, Lent};
use crate::rt::Io;
use crate::worker::Worker;

/// Bytes to read before the task yields.
const TURN: usize = 128 << 10;

pub(crate) struct Transport {
    worker: Rc<Worker>,
    pub(crate) io: Io,
    /// Bytes that were read and not parsed yet: part of a frame, or bytes read before the protocol was known.
    rest: Vec<u8>,
    /// `rest` was not parsed yet.
    fresh: bool,
    /// Written bytes may still be buffered by the transport.
    unflushed: bool,
    /// Reading is paused until the peer reads.
    output_full: bool,
    /// When the peer stopped reading, in the clock's coarse milliseconds.
    blocked: Option<u64>,
}

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// The peer has closed its sending side.
    End,
    /// The task yields; it is already woken again.
    Turn,
}

impl Transport {
    /// `early` was read from the connection before.
    pub(crate) fn new(worker: &Rc<Worker>, io: Io, early: Option<Buffer>) -> Transport {
        let rest = early.as_ref().map_or_else(Vec::new, |buffer| buffer.data().to_vec());
        if let Some(buffer) = early {
            worker.buffers.give(buffer);
        }
        Transport {
            worker: worker.clone(),
            io,
            rest,
            fresh: true,
            unflushed: false,
            output_full: false,
            blocked: None,
        }
    }

    /// Reads the preface; false if the bytes are something else.
    pub(crate) fn poll_preface(&mut self, cx: &mut Context<'_>, preface: &[u8]) -> Poll<io::Result<bool>> {
        while self.rest.len() < preface.len() {
            let mut part = [0; 32];
            let most = part.len().min(preface.len() - self.rest.len());
            let n = ready!(self.io.split().0.poll_read(cx, &mut part[..most]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.rest.extend_from_slice(&part[..n]);
            if !preface.starts_with(&self.rest) {
                return Poll::Ready(Ok(false));
            }
        }
        let starts = self.rest.starts_with(preface);
        self.rest.drain(..preface.len());
        Poll::Ready(Ok(starts))
    }

    /// Passes received bytes to the connection and its events to `event`, until nothing more is readable.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mux: &SharedMux,
        mut event: impl FnMut(Event),
    ) -> Poll<io::Result<Read>> {
        if std::mem::take(&mut self.fresh) {
            let rest = std::mem::take(&mut self.rest);
            let taken = feed(mux, &rest, &mut event);
            self.rest = rest[taken..].to_vec();
        }
        let mut read = 0;
        loop {
            {
                let mux = mux.borrow();
                self.output_full = mux.is_output_full();
                if mux.over().is_some() || self.output_full {
                    return Poll::Pending;
                }
            }
            // No buffer is held while waiting.
            ready!(self.io.poll_readable(cx))?;
            let mut lent = Lent::none(&self.worker.buffers);
            let buffer = lent.get();
            let before = self.rest.len();
            // An incomplete frame may be nearly as long as the buffer.
            buffer.grow(before + (1 << 10));
            buffer.space()[..before].copy_from_slice(&self.rest);
            buffer.filled(before);
            let n = ready!(self.io.split().0.poll_read(cx, buffer.space()))?;
            if n == 0 {
                return Poll::Ready(Ok(Read::End));
            }
            buffer.filled(n);
            let taken = feed(mux, buffer.data(), &mut event);
            self.rest.clear();
            self.rest.shrink_to(1 << 10);
            self.rest.extend_from_slice(&buffer.data()[taken..]);
            read += n;
            if read >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Ready(Ok(Read::Turn));
            }
        }
    }

    /// Writes all waiting frames.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, mux: &SharedMux) -> Poll<io::Result<()>> {
        let mut mux = mux.borrow_mut();
        let mut to = self.io.split().1;
        while !mux.unsent().is_empty() {
            match to.poll_write(cx, mux.unsent()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    mux.wrote(n);
                    (self.blocked, self.unflushed) = (None, true);
                    if self.output_full && !mux.is_output_full() {
                        self.output_full = false;
                        cx.waker().wake_by_ref();
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.blocked.get_or_insert(self.worker.clock.coarse_ms());
                    return Poll::Pending;
                }
            }
        }
        if self.unflushed && !to.is_direct() {
            ready!(to.poll_flush(cx))?;
        }
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// When a peer that does not read is disconnected.
    pub(crate) fn blocked_until(&self, timeout: Duration) -> Option<u64> {
        let clock = &self.worker.clock;
        Some(clock.after(timeout) - (clock.coarse_ms() - self.blocked?))
    }
}

/// Passes bytes to the connection; returns how many it consumed.
fn feed(mux: &SharedMux, bytes: &[u8], event: &mut impl FnMut(Event)) -> usize {
    let mut at = 0;
    loop {
        let (taken, came) = mux.borrow_mut().receive(&bytes[at..]);
        at += taken;
        match came {
            Some(came) => event(came),
            None => return at,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::task::Waker;

    use super::super::mux::{Budgets, Limits, Mux, Role};
    use super::*;
    use crate::Settings;
    use crate::rt::memory::{Schedule, pair};
    use crate::testing::{self, beside_worker};

    #[test]
    fn a_client_that_takes_what_it_was_sent_is_read_again() {
        beside_worker(Settings::default(), async |worker, _| {
            let narrow = Schedule { room: 1 << 10, ..Schedule::default() };
            let (client, io) = pair(narrow, Schedule::default());
            let mut transport = Transport::new(&worker, Io::Memory(io), None);
            let mut limits = Limits::of_server(&worker.settings);
            limits.control_frames = 100_000;
            let mux = SharedMux::new(RefCell::new(Mux::new(
                Role::Server,
                limits,
                Budgets { received: worker.windows.clone(), unsent: worker.send_windows.clone() },
                worker.clock.clone(),
            )));
            let (count, waker) = crate::clock::tests::count();
            let mut cx = Context::from_waker(&waker);
            let mut poll = || {
                let _ = transport.poll_read(&mut cx, &mux, |_| {});
                let _ = transport.poll_write(&mut cx, &mux);
                mux.borrow().is_output_full()
            };
            let mut sent = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
            (0..10_000).for_each(|_| sent.extend_from_slice(b"\0\0\x08\x06\0\0\0\0\0 a ping "));
            let (mut at, mut read) = (0, [0; 1 << 10]);
            while !poll() {
                client.write_all(&sent[at..at + 1000]).await.unwrap();
                at += 1000;
            }
            // Only a task that was woken looks again.
            let mut seen = count.so_far();
            while poll() {
                assert!(client.read(&mut read).await.unwrap() > 0);
                assert_ne!(std::mem::replace(&mut seen, count.so_far()), count.so_far());
            }
            assert_ne!(seen, count.so_far(), "there is room again, and nothing else wakes it");
        });
    }

    #[test]
    fn a_client_that_takes_nothing_is_waited_for_from_when_it_stopped() {
        beside_worker(Settings::default(), async |worker, _| {
            let narrow = Schedule { room: 8, ..Schedule::default() };
            let (client, io) = pair(narrow, Schedule::default());
            let mut transport = Transport::new(&worker, Io::Memory(io), None);
            let mux = SharedMux::new(RefCell::new(Mux::new(
                Role::Server,
                Limits::of_server(&worker.settings),
                Budgets { received: worker.windows.clone(), unsent: worker.send_windows.clone() },
                worker.clock.clone(),
            )));
            let timeout = Duration::from_secs(60);
            for _ in 0..2 {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(
                    transport.poll_write(&mut cx, &mux).is_pending(),
                    "there is room for eight bytes at a time"
                );
                let until = transport.blocked_until(timeout);
                assert!(until.is_some());
                for _ in 0..2 {
                    testing::sleep(Duration::from_secs(5)).await;
                    assert!(transport.poll_write(&mut cx, &mux).is_pending());
                    assert_eq!(transport.blocked_until(timeout), until);
                }
                assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 8);
            }
        });
    }
}
