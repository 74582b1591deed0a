//! A connection under the `h2` crate: counts what comes, and notices a peer that takes nothing.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::meter::Meter;
use super::{Backlog, Unread};
use crate::buffers::{Buffer, Lent};
use crate::exchange::fault::Flood;
use crate::rt::{self, Io};
use crate::worker::Worker;

/// Bytes of a client's preface (RFC 9113 section 3.4).
const PREFACE: usize = 24;

/// Room for the library's reason at the end of GOAWAY.
const LAST: usize = 48;

pub(crate) struct Line {
    worker: Rc<Worker>,
    io: RefCell<Io>,
    /// Bytes that were read before it was known what is spoken.
    early: RefCell<Option<Buffer>>,
    meter: Meter,
    /// Of a client.
    backlog: Option<Backlog>,
    /// Whether floods are looked for.
    guarded: bool,
    /// The end of what was written last. Where the library has ended the connection, its reason stands there, and
    /// nowhere else.
    last: Cell<[u8; LAST]>,
    /// Since when, in the clock's coarse milliseconds, the peer takes nothing of what is to be written.
    blocked: Cell<Option<u64>>,
}

impl Line {
    /// A client's connection. `early` was read from it before.
    pub(crate) fn from_client(worker: &Rc<Worker>, io: Io, early: Option<Buffer>) -> Rc<Line> {
        let bounds = &worker.settings.http2;
        let list = worker.settings.header_list();
        let unread = Unread::new(bounds.unread, list, &worker.windows);
        let now = worker.clock.coarse_ms();
        let meter = Meter::new(PREFACE, bounds.control_frames, now, Some(unread));
        let backlog = Backlog::new(bounds.send_buffer as usize, &worker.send_windows);
        Line::new(worker, io, early, meter, Some(backlog))
    }

    /// A connection to a server.
    pub(crate) fn to_server(worker: &Rc<Worker>, io: Io) -> Rc<Line> {
        Line::new(worker, io, None, Meter::new(0, 0, 0, None), None)
    }

    fn new(
        worker: &Rc<Worker>,
        io: Io,
        early: Option<Buffer>,
        meter: Meter,
        backlog: Option<Backlog>,
    ) -> Rc<Line> {
        Rc::new(Line {
            worker: worker.clone(),
            io: RefCell::new(io),
            early: RefCell::new(early),
            meter,
            guarded: backlog.is_some(),
            backlog,
            last: Cell::new([0; LAST]),
            blocked: Cell::new(None),
        })
    }

    /// Returns the flood that the peer sends: frames that ask for nothing, or too much unread data.
    pub(crate) fn flood(&self) -> Option<Flood> {
        if !self.guarded {
            return None;
        }
        if self.meter.credit().is_flood(self.worker.clock.coarse_ms()) {
            return Some(Flood::Frames);
        }
        self.meter.unread()?.flood()
    }

    /// Returns the flood for which the library has ended the connection.
    #[cold]
    pub(crate) fn ended_for(&self) -> Flood {
        Flood::named(&self.last.get())
    }

    fn note_last(&self, slices: &[IoSlice<'_>], mut written: usize) {
        for slice in slices {
            if written <= slice.len() {
                let end = &slice[..written];
                let mut last = [0; LAST];
                let n = end.len().min(LAST);
                last[..n].copy_from_slice(&end[end.len() - n..]);
                return self.last.set(last);
            }
            written -= slice.len();
        }
    }

    /// Unread data of a client.
    pub(crate) fn unread(&self) -> Option<&Unread> {
        self.meter.unread()
    }

    /// Response bodies that wait for a client's connection.
    pub(crate) fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// A request came.
    pub(crate) fn request(&self) {
        self.meter.credit().request();
    }

    /// A request was refused.
    pub(crate) fn refused(&self) {
        self.meter.credit().refused();
    }

    /// Counts bytes of a body that are on their way to the peer.
    pub(crate) fn sent(&self, bytes: usize) {
        self.meter.credit().sent(bytes);
    }

    /// The last stream that the peer may have looked at, once it has said that it takes no more.
    pub(crate) fn last_stream(&self) -> Option<u32> {
        self.meter.last_stream()
    }

    /// The peer's settings have come.
    pub(crate) fn is_settled(&self) -> bool {
        self.meter.is_settled()
    }

    /// When the peer counts as gone, as it takes nothing of what is to be written.
    pub(crate) fn blocked_until(&self, timeout: std::time::Duration) -> Option<u64> {
        let since = self.blocked.get()?;
        let clock = &self.worker.clock;
        Some(clock.after(timeout) - (clock.coarse_ms() - since))
    }

    pub(crate) fn io(&self) -> &RefCell<Io> {
        &self.io
    }

    /// Reads what came before the library was there. False if there is nothing of it.
    fn read_early(&self, most: usize, take: &mut dyn FnMut(&[u8])) -> bool {
        let mut early = self.early.borrow_mut();
        let Some(buffer) = early.as_mut() else { return false };
        let n = buffer.len().min(most);
        self.meter.note(&buffer.data()[..n]);
        take(&buffer.data()[..n]);
        buffer.consume(n);
        if buffer.is_empty()
            && let Some(buffer) = early.take()
        {
            self.worker.buffers.give(buffer);
        }
        n > 0
    }
}

impl rt::Line for Line {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        most: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<()>> {
        if self.flood().is_some() {
            // Nothing more is taken from it. The task that drives the connection checks for this.
            return Poll::Pending;
        }
        if self.read_early(most, take) {
            return Poll::Ready(Ok(()));
        }
        let mut lent = Lent::none(&self.worker.buffers);
        let buffer = lent.get().space();
        let most = most.min(buffer.len());
        let n = ready!(self.io.borrow_mut().split().0.poll_read(cx, &mut buffer[..most]))?;
        self.meter.note(&buffer[..n]);
        take(&buffer[..n]);
        Poll::Ready(Ok(()))
    }

    fn poll_write(&self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut io = self.io.borrow_mut();
        let written = io.split().1.poll_write_vectored(cx, slices);
        if let (Poll::Ready(Ok(n)), true) = (&written, self.guarded) {
            self.note_last(slices, *n);
        }
        match written {
            Poll::Ready(_) => self.blocked.set(None),
            Poll::Pending if self.blocked.get().is_none() => {
                self.blocked.set(Some(self.worker.clock.coarse_ms()));
            }
            Poll::Pending => {}
        }
        written
    }

    fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.borrow_mut().split().1.poll_shutdown(cx)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(buffer) = self.early.take() {
            self.worker.buffers.give(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::Settings;
    use crate::rt::Line as _;
    use crate::rt::memory::{Schedule, pair};
    use crate::testing::{self, beside_worker};

    #[test]
    fn requests_and_answers_pay_for_frames_and_what_is_refused_costs() {
        let mut settings = Settings::default();
        settings.http2.control_frames = 10;
        beside_worker(settings, async |worker, _| {
            let (_client, io) = pair(Schedule::default(), Schedule::default());
            let line = Line::from_client(&worker, Io::Memory(io), None);
            let is_flood = || line.flood().is_some();
            // As much as four requests bring; what is sent brings one more for each KiB.
            line.refused();
            assert!(is_flood());
            line.request();
            assert!(is_flood());
            line.request();
            assert!(!is_flood());
            line.refused();
            assert!(is_flood());
            line.sent(10 << 10);
            assert!(!is_flood());
        });
    }

    #[test]
    fn a_client_that_takes_nothing_is_waited_for_from_when_it_stopped() {
        beside_worker(Settings::default(), async |worker, _| {
            let narrow = Schedule { room: 4, ..Schedule::default() };
            let (client, io) = pair(narrow, Schedule::default());
            let line = Line::from_client(&worker, Io::Memory(io), None);
            let write = || line.poll_write(&mut Context::from_waker(Waker::noop()), &[IoSlice::new(b"1234")]);
            let timeout = Duration::from_secs(60);
            for _ in 0..2 {
                assert!(write().is_ready());
                assert_eq!(line.blocked_until(timeout), None);
                assert!(write().is_pending());
                let until = line.blocked_until(timeout);
                assert!(until.is_some());
                for _ in 0..2 {
                    testing::sleep(Duration::from_secs(5)).await;
                    assert!(write().is_pending());
                    assert_eq!(line.blocked_until(timeout), until);
                }
                assert_eq!(client.read(&mut [0; 4]).await.unwrap(), 4);
            }
        });
    }
}
