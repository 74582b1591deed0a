//! hot path
//!
//! The HTTP/1 client: one request and its response on a connection to an upstream.
//!
//! Both halves work beside each other within one task, as a server may answer at any time. Used by
//! exchanges ([`crate::exchange::forward`]) and by plugins' own requests ([`crate::fetch`]).

mod conn;

use std::time::Duration;

use wire::h1::Progress;
use wire::h1::encode::{BadTarget, decimal, request_line};
use wire::{Field, Fields, Framing, Method, Name, ResponseHead};

use super::{Head, Lines, Size};
use crate::buffers::{Buffer, LARGE, Lent, SMALL};
use crate::clock::Waiter;
use crate::exchange::fault::{Fault, FaultKind};
use crate::h1::{Body, Writer};
use crate::io::{self, Failed};
use crate::rt::ReadHalf;
use crate::worker::Worker;

pub(crate) use conn::Conn;

/// Interim responses a server may send before its final one.
const MAX_INTERIM: usize = 16;

/// How the connection is to be used after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Keep,
    Close,
    /// A tunnel.
    Websocket,
}

/// Sends one request.
pub(crate) struct Sender<'a>(Writer<'a>);

/// Reads the response to it.
pub(crate) struct Receiver<'a> {
    worker: &'a Worker,
    waiter: &'a Waiter,
    from: ReadHalf<'a>,
    lent: Lent<'a>,
    progress: Progress,
    /// Interim responses so far.
    interim: usize,
    /// A byte of the response has come.
    heard: bool,
    body: Body,
    keep_alive: bool,
    /// An interim response announced a body, or that the connection ends.
    distrusted: bool,
    /// The last read filled a small buffer.
    long: bool,
}

impl Conn {
    /// Begins a request. The first waiter is for sending it, the second for its response; `out` holds
    /// what is to be written, and is memory that is used again.
    pub(crate) fn begin<'a>(
        &'a mut self,
        worker: &'a Worker,
        waiters: [&'a Waiter; 2],
        out: &'a mut Vec<u8>,
        send_timeout: Duration,
    ) -> (Sender<'a>, Receiver<'a>) {
        self.requests += 1;
        let (from, to) = self.io.split();
        out.clear();
        let [sending, receiving] = waiters;
        let writer = Writer { worker, waiter: sending, to, out, chunked: false, timeout: send_timeout };
        let receiver = Receiver {
            worker,
            waiter: receiving,
            from,
            lent: Lent::none(&worker.buffers),
            progress: Progress::default(),
            interim: 0,
            heard: false,
            body: Body::new(Framing::None),
            keep_alive: false,
            distrusted: false,
            long: false,
        };
        (Sender(writer), receiver)
    }
}

impl Sender<'_> {
    /// Makes the head (RFC 9112 section 3). It goes out with the first piece of the body.
    #[inline]
    pub(crate) fn head(&mut self, head: &impl Head, size: Size, wish: Wish) -> Result<(), BadTarget> {
        let out = &mut *self.0.out;
        out.clear();
        request_line(head.method(), |out| head.target(out), out)?;
        out.extend_from_slice(b"Host: ");
        out.extend_from_slice(head.authority());
        out.extend_from_slice(b"\r\n");
        head.fields(&mut Text(out));
        match wish {
            Wish::Keep => {}
            Wish::Close => out.extend_from_slice(b"Connection: close\r\n"),
            Wish::Websocket => {
                out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n");
                return Ok(());
            }
        }
        match size {
            Size::None => out.extend_from_slice(b"\r\n"),
            Size::Exactly(length) => {
                out.extend_from_slice(b"Content-Length: ");
                decimal(length, out);
                out.extend_from_slice(b"\r\n\r\n");
            }
            Size::Open => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n"),
        }
        self.0.chunked = size == Size::Open;
        Ok(())
    }

    /// Writes a piece of the body, and its end with the last one.
    #[inline]
    pub(crate) async fn write(
        &mut self,
        bytes: &[u8],
        last: bool,
        trailers: Option<&Fields>,
    ) -> Result<(), Failed> {
        self.0.write(bytes, last, trailers).await
    }

    /// Writes a piece that is in chunked coding already.
    #[inline]
    pub(crate) async fn relay(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.0.relay(bytes).await
    }

    /// Writes a head that no body follows, or not yet.
    #[inline]
    pub(crate) async fn flush(&mut self) -> Result<(), Failed> {
        self.0.flush().await
    }
}

/// Fields as lines.
struct Text<'a>(&'a mut Vec<u8>);

// Always inline, as names are mostly constants, which then are written without a call.
impl Lines for Text<'_> {
    #[inline(always)]
    fn name(&mut self, _: Name, name: &'static [u8]) {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(b": ");
    }

    #[inline(always)]
    fn value(&mut self, part: &[u8]) {
        self.0.extend_from_slice(part);
    }

    #[inline]
    fn number(&mut self, number: u64) {
        decimal(number, self.0);
    }

    #[inline(always)]
    fn end(&mut self) {
        self.0.extend_from_slice(b"\r\n");
    }

    #[inline(always)]
    fn field(&mut self, _: Name, name: &[u8], value: &[u8]) {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(b": ");
        self.0.extend_from_slice(value);
        self.0.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn copy<'a>(&mut self, fields: &Fields, some: impl Iterator<Item = &'a Field>) {
        fields.write_lines(some, self.0);
    }
}

impl Receiver<'_> {
    /// Reads the next head: an interim response, a switch of protocols or the final response. When
    /// `deadline` has passed, `late` says how much longer it may take.
    #[inline]
    pub(crate) async fn head(
        &mut self,
        head: &mut ResponseHead,
        method: Method,
        deadline: &mut u64,
        late: impl Fn() -> Result<u64, Fault>,
    ) -> Result<(), Fault> {
        let limits = &self.worker.settings.response;
        loop {
            if !self.lent.is_none() && !self.lent.get().is_empty() {
                self.heard = true;
                let buffer = self.lent.get();
                let decoded = wire::h1::response(buffer.data(), &mut self.progress, head, method, limits);
                match decoded.map_err(bad_response)? {
                    Some(n) => {
                        buffer.consume(n);
                        if head.status >= 200 || head.status == 101 {
                            self.body = Body::new(head.framing);
                            self.keep_alive = head.keep_alive && !self.distrusted;
                            return Ok(());
                        }
                        self.distrusted |= !head.keep_alive;
                        self.interim += 1;
                        if self.interim > MAX_INTERIM {
                            return Err(Fault::upstream(FaultKind::TooManyInterim));
                        }
                        return Ok(());
                    }
                    None if buffer.space().is_empty() => buffer.grow(limits.head),
                    None => {}
                }
            }
            if self.lent.is_none() {
                // No buffer is held while the upstream thinks.
                match self.waiter.until(*deadline, |cx| self.from.poll_readable(cx)).await {
                    Ok(ready) => ready.map_err(|_| closed_early())?,
                    Err(_) => {
                        *deadline = late()?;
                        continue;
                    }
                }
            }
            match io::read_until(self.waiter, &mut self.from, self.lent.get(), *deadline).await {
                Ok(0) | Err(Failed::Closed | Failed::Broken) => return Err(closed_early()),
                Ok(_) => {}
                Err(Failed::Timeout) => *deadline = late()?,
            }
        }
    }

    /// The rest of the body is still to come, and fits into what is read next.
    #[inline]
    pub(crate) fn rest_fits(&mut self) -> bool {
        self.body.fits(self.lent.peek_mut())
    }

    /// Takes a piece of the body from what was read: in chunked coding as it is, if `framed`, or else
    /// without any. False if more must be read.
    #[inline]
    pub(crate) fn take(&mut self, framed: bool) -> Result<bool, Fault> {
        self.body.take(self.lent.peek_mut(), framed).map_err(bad_response)
    }

    /// The piece that was taken.
    #[inline]
    pub(crate) fn piece(&self) -> &[u8] {
        self.body.piece(self.lent.peek())
    }

    /// The piece is done with.
    #[inline]
    pub(crate) fn used(&mut self) {
        self.body.used(self.lent.peek_mut());
    }

    /// No piece comes after the one that was taken.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_complete()
    }

    /// The body comes in chunks, which can go on as they are.
    #[inline]
    pub(crate) fn is_chunked(&self) -> bool {
        self.body.is_chunked()
    }

    /// The trailers behind a body that was taken out of its coding.
    #[inline]
    pub(crate) fn trailers(&self) -> Option<&Fields> {
        self.body.trailers()
    }

    /// Uses a small buffer if the client accepts less than a large one holds, since it may stop reading.
    pub(crate) fn fit(&mut self, window: usize) {
        if window < LARGE {
            self.long = false;
            self.lent.reduce();
        }
    }

    /// Reads more of the body.
    #[inline]
    pub(crate) async fn read(&mut self, deadline: u64) -> Result<(), Fault> {
        if self.long {
            self.lent.enlarge();
        }
        match io::read_until(self.waiter, &mut self.from, self.lent.get(), deadline).await {
            Ok(0) if self.body.end() => Ok(()),
            Ok(0) | Err(Failed::Closed | Failed::Broken) => Err(Fault::upstream(FaultKind::Truncated)),
            Ok(n) => {
                // A long body: the next reads take more at once.
                self.long = n == SMALL;
                Ok(())
            }
            Err(Failed::Timeout) => Err(Fault::upstream(FaultKind::ReadTimeout)),
        }
    }

    /// Drops the bytes that are here of an unwanted body.
    pub(crate) fn skip(&mut self) {
        // A malformed body stays, so the connection is not used again.
        while let Ok(true) = self.take(false) {
            self.used();
            if self.is_complete() {
                break;
            }
        }
    }

    /// Whether another request may follow: the response was read to its end and nothing lies behind it,
    /// which would show that the server and we disagree about where it ended.
    pub(crate) fn may_be_reused(&self) -> bool {
        self.keep_alive
            && self.body.is_over()
            && !self.body.ends_with_connection()
            && self.lent.peek().is_none_or(Buffer::is_empty)
    }

    /// Whether a byte of a response has come.
    pub(crate) fn was_answered(&self) -> bool {
        self.heard
    }

    /// Returns the bytes that were read behind the head, where the connection becomes a tunnel.
    pub(crate) fn take_rest(&mut self) -> Option<Buffer> {
        self.lent.take_inner()
    }
}

fn closed_early() -> Fault {
    Fault::upstream(FaultKind::ClosedEarly)
}

fn bad_response(refusal: wire::h1::Refusal) -> Fault {
    Fault::upstream(FaultKind::BadResponse(refusal))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::*;
    use crate::Settings;
    use crate::rt::Io;
    use crate::rt::memory::{Schedule, pair};
    use crate::testing::beside_worker;

    #[test]
    fn no_buffer_is_held_while_there_is_nothing_to_read() {
        beside_worker(Settings::default(), async |worker, _| {
            let (server, io) = pair(Schedule::default(), Schedule::default());
            let mut conn = Conn::new(Io::Memory(io));
            let (waiter, mut out) = (worker.clock.waiter(), Vec::new());
            let (_to, mut from) = conn.begin(&worker, [&waiter, &waiter], &mut out, Duration::from_secs(1));
            for (says, holds) in [(&b""[..], false), (b"HTTP/1.1 200 ", true)] {
                server.write_all(says).await.unwrap();
                let (mut head, mut deadline) = (ResponseHead::default(), u64::MAX);
                let mut reading = Box::pin(from.head(&mut head, Method::Get, &mut deadline, || Ok(u64::MAX)));
                assert!(reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                drop(reading);
                assert_eq!(!from.lent.is_none(), holds);
            }
        });
    }

    #[test]
    fn a_long_body_is_read_into_large_buffers_while_the_client_takes_that_much() {
        beside_worker(Settings::default(), async |worker, _| {
            let (server, io) = pair(Schedule::default(), Schedule::default());
            let mut conn = Conn::new(Io::Memory(io));
            let (waiter, mut out) = (worker.clock.waiter(), Vec::new());
            let (_to, mut from) = conn.begin(&worker, [&waiter, &waiter], &mut out, Duration::from_secs(1));
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
            let (mut head, mut deadline) = (ResponseHead::default(), u64::MAX);
            from.head(&mut head, Method::Get, &mut deadline, || Ok(u64::MAX)).await.unwrap();
            for (window, size) in
                [(LARGE, SMALL), (LARGE, LARGE), (LARGE - 1, SMALL), (0, SMALL), (LARGE, LARGE)]
            {
                server.write_all(&[b'x'; SMALL]).await.unwrap();
                from.fit(window);
                from.read(u64::MAX).await.unwrap();
                while from.take(false).unwrap() {
                    from.used();
                }
                assert_eq!(from.lent.get().capacity(), size, "{window}");
            }
        });
    }
}
