//! hot path
//!
//! A request from an HTTP/3 client, and its body.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use quinn::RecvStream;
use wire::Fields;
use wire::field_list::Bad;
use wire::h1::chunked::may_be_trailer;
use wire::h3::{code, frame, qpack};
use wire::parts::speaks_of_connection;

use super::Shared;
use super::frames::{Broken, Frames};
use super::response::Output;
use crate::clock::Waiter;
use crate::credit::RESET;
use crate::exchange::fault::{Fault, FaultKind};
use crate::exchange::max_body::MaxBody;
use crate::io::{End, Failed};
use crate::worker::Worker;

/// How far a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Body,
    /// The trailers' list of fields is being read.
    Trailers,
    /// Nothing but the end may follow.
    End,
}

/// The kind of the current frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Current {
    Data,
    Headers,
    Other,
}

/// The result of reading a head.
pub(super) enum Read {
    /// Its list of fields is in [`Input::coded`]; true if nothing follows.
    Whole(bool),
    TooLarge,
}

/// The receiving side of a stream.
pub(crate) struct Input {
    frames: Frames,
    shared: Rc<Shared>,
    stage: Stage,
    current: Current,
    /// A list of fields, as it came.
    pub(super) coded: Vec<u8>,
    piece: Bytes,
    /// The length of the body by Content-Length.
    expected: Option<u64>,
    /// No piece comes after the one that was taken.
    complete: bool,
    /// It counts for the connection's window.
    has_body: bool,
    /// DATA is for a tunnel; the exchange sees no body.
    tunnels: bool,
    received: u64,
    trailers: Fields,
    /// Why it cannot be read on.
    pub(super) broken: Option<Broken>,
}

impl Input {
    pub(super) fn new(stream: RecvStream, shared: Rc<Shared>) -> Input {
        Input {
            frames: Frames::new(stream, shared.clone()),
            shared,
            stage: Stage::Head,
            current: Current::Other,
            coded: Vec::new(),
            piece: Bytes::new(),
            expected: None,
            complete: false,
            has_body: false,
            tunnels: false,
            received: 0,
            trailers: Fields::new(),
            broken: None,
        }
    }

    /// Notes what the head says of the body.
    pub(super) fn begin_body(&mut self, ends: bool, expected: Option<u64>) {
        (self.complete, self.expected) = (ends, expected);
        if !ends {
            self.has_body = true;
            self.shared.begin_body();
        }
    }

    /// The exchange sees no body: what comes is for the tunnel.
    pub(super) fn keep_for_tunnel(&mut self) {
        self.tunnels = true;
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Reads the head.
    pub(super) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Read, Broken>> {
        let limits = &self.shared.worker.settings.request;
        // Coded, text may be longer than it is, but seldom is.
        let most = (limits.head + 16 * limits.fields) as u64;
        while self.stage == Stage::Head {
            if self.frames.left() > 0 {
                if self.current == Current::Other {
                    ready!(self.frames.poll_skip(cx))?;
                    continue;
                }
                ready!(self.frames.poll_rest(&mut self.coded, cx))?;
                self.stage = Stage::Body;
                continue;
            }
            match ready!(self.frames.poll_head(cx))? {
                None => return Poll::Ready(Err(Broken::Stream(code::REQUEST_INCOMPLETE))),
                Some((frame::HEADERS, length)) if length > most => return Poll::Ready(Ok(Read::TooLarge)),
                Some((frame::HEADERS, 0)) => self.stage = Stage::Body,
                Some((frame::HEADERS, _)) => self.current = Current::Headers,
                Some((frame::DATA, _)) => {
                    return Poll::Ready(Err(Broken::Connection(code::FRAME_UNEXPECTED)));
                }
                Some((kind, length)) => self.note_other(kind, length)?,
            }
        }
        Poll::Ready(Ok(Read::Whole(self.frames.is_over(cx))))
    }

    /// A frame that is of no request.
    fn note_other(&mut self, kind: u64, length: u64) -> Result<(), Broken> {
        let belongs_elsewhere = matches!(
            kind,
            frame::SETTINGS | frame::GOAWAY | frame::CANCEL_PUSH | frame::MAX_PUSH_ID | frame::PUSH_PROMISE
        );
        if belongs_elsewhere || frame::is_of_http2(kind) {
            return Err(Broken::Connection(code::FRAME_UNEXPECTED));
        }
        self.shared.spend(1 + (length.min(1 << 30) >> 8) as i64);
        self.current = Current::Other;
        Ok(())
    }

    /// Takes the next piece, or the end. An error is a stream that was broken off.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ()>> {
        let polled = ready!(self.poll_message(cx));
        Poll::Ready(polled.map_err(|broken| self.note_broken(broken)))
    }

    fn note_broken(&mut self, broken: Broken) {
        self.broken = Some(broken);
        match broken {
            Broken::Gone => {}
            Broken::Stream(code) => self.frames.stop(code),
            Broken::Connection(code) => self.shared.fail(code),
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        while !self.complete {
            if self.frames.left() > 0 {
                match self.current {
                    Current::Data => {
                        self.piece = ready!(self.frames.poll_piece(cx))?;
                        self.received += self.piece.len() as u64;
                        if self.frames.is_over(cx) {
                            self.end()?;
                        }
                        return Poll::Ready(Ok(()));
                    }
                    Current::Headers => ready!(self.frames.poll_rest(&mut self.coded, cx))?,
                    Current::Other => ready!(self.frames.poll_skip(cx))?,
                }
            }
            if self.stage == Stage::Trailers {
                self.take_trailers()?;
                self.stage = Stage::End;
            }
            match ready!(self.frames.poll_head(cx))? {
                None => self.end()?,
                Some((frame::DATA | frame::HEADERS, _)) if self.stage == Stage::End => {
                    return Poll::Ready(Err(Broken::Connection(code::FRAME_UNEXPECTED)));
                }
                // Of the frames that are known, only DATA is of a tunnel (RFC 9114 section 4.4).
                Some((frame::HEADERS, _)) if self.tunnels => {
                    return Poll::Ready(Err(Broken::Connection(code::FRAME_UNEXPECTED)));
                }
                Some((frame::DATA, 0)) => self.shared.spend(1),
                Some((frame::DATA, length)) => {
                    self.current = Current::Data;
                    if self.expected.is_some_and(|expected| length > expected - self.received) {
                        return Poll::Ready(Err(Broken::Stream(code::MESSAGE_ERROR)));
                    }
                }
                Some((frame::HEADERS, length)) => {
                    if length > self.shared.worker.settings.request.head as u64 {
                        return Poll::Ready(Err(Broken::Stream(code::EXCESSIVE_LOAD)));
                    }
                    (self.current, self.stage) = (Current::Headers, Stage::Trailers);
                    self.coded.clear();
                }
                Some((kind, length)) => self.note_other(kind, length)?,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) -> Result<(), Broken> {
        if self.expected.is_some_and(|expected| expected != self.received) {
            return Err(Broken::Stream(code::MESSAGE_ERROR));
        }
        self.complete = true;
        Ok(())
    }

    /// Takes trailers over, but for those that could be taken for framing, routing or authentication.
    fn take_trailers(&mut self) -> Result<(), Broken> {
        let limits = &self.shared.worker.settings.request;
        let mut list = self.shared.list.borrow_mut();
        qpack::decode(&self.coded, &mut list, limits.head, limits.fields).map_err(|bad| match bad {
            Bad::Coding => Broken::Connection(code::QPACK_DECOMPRESSION_FAILED),
            _ => Broken::Stream(code::EXCESSIVE_LOAD),
        })?;
        for (name, value, id) in list.iter() {
            // RFC 9114 sections 4.2 and 4.3.
            let of_connection = speaks_of_connection(id, value);
            if of_connection || name.starts_with(b":") || name.iter().any(u8::is_ascii_uppercase) {
                return Err(Broken::Stream(code::MESSAGE_ERROR));
            }
            if may_be_trailer(name) {
                self.trailers.append(name, value).map_err(|_| Broken::Stream(code::MESSAGE_ERROR))?;
            }
        }
        self.coded = Vec::new();
        Ok(())
    }

    /// The next bytes of a tunnel; none at its end.
    pub(crate) fn poll_tunnel(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failed>> {
        self.piece = Bytes::new();
        loop {
            if self.complete {
                return Poll::Ready(Ok(None));
            }
            if ready!(self.poll(cx)).is_err() {
                return Poll::Ready(Err(Failed::Closed));
            }
            if !self.piece.is_empty() {
                return Poll::Ready(Ok(Some(std::mem::take(&mut self.piece))));
            }
        }
    }

    /// Why the response is broken off, if it is.
    pub(super) fn code(&self) -> u32 {
        match self.broken {
            Some(Broken::Stream(code) | Broken::Connection(code)) => code,
            Some(Broken::Gone) => code::REQUEST_CANCELLED,
            None => code::INTERNAL_ERROR,
        }
    }

    /// The client has broken the request off, which cost us more than it.
    pub(super) fn note_reset(&self) {
        if self.broken == Some(Broken::Gone) {
            self.shared.spend(RESET);
        }
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        if self.has_body {
            self.shared.end_body();
        }
    }
}

pub(crate) struct RequestBody<'a> {
    pub(super) worker: &'a Worker,
    pub(in crate::down) max: MaxBody,
    pub(crate) waiter: &'a Waiter,
    pub(super) input: &'a mut Input,
    pub(super) output: &'a RefCell<Output>,
}

impl RequestBody<'_> {
    pub(crate) fn take(&mut self) -> Result<bool, Fault> {
        if !self.input.piece.is_empty() || self.is_complete() {
            return Ok(true);
        }
        // A caller that gets `false` waits in `read`, so nothing is woken here.
        let mut cx = Context::from_waker(Waker::noop());
        match self.input.poll(&mut cx) {
            Poll::Ready(Ok(())) => self.measured().map(|()| true),
            Poll::Ready(Err(())) => Err(self.break_off()),
            Poll::Pending => Ok(false),
        }
    }

    /// Whose request cannot be read, or is taken back, gets no response either.
    #[cold]
    fn break_off(&self) -> Fault {
        self.output.borrow_mut().reset(self.input.code());
        Fault::client(FaultKind::ClientGone)
    }

    fn measured(&self) -> Result<(), Fault> {
        self.max.check(self.input.received)
    }

    pub(crate) fn piece(&self) -> &[u8] {
        &self.input.piece
    }

    /// The piece is done with. The client may send as much more since it was taken.
    pub(crate) fn used(&mut self) {
        self.input.piece = Bytes::new();
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.input.complete || self.input.tunnels
    }

    pub(crate) fn trailers(&self) -> Option<&Fields> {
        Some(&self.input.trailers).filter(|trailers| !trailers.is_empty())
    }

    pub(crate) async fn read(&mut self) -> Result<(), Fault> {
        if !self.input.piece.is_empty() {
            return Ok(());
        }
        let deadline = self.worker.clock.after(self.worker.settings.timeouts.body);
        match self.waiter.until(deadline, |cx| self.input.poll(cx)).await {
            Ok(Ok(())) => self.measured(),
            Ok(Err(())) => Err(self.break_off()),
            Err(_) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// A stream whose client has sent all is no sign of anything; one on which it takes nothing is.
    pub(crate) async fn end(&mut self) -> End {
        poll_fn(|cx| self.output.borrow_mut().poll_stopped(cx)).await;
        End::Gone
    }
}
