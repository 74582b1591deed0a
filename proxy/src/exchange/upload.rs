//! hot path
//!
//! The request's body: into memory for a stage that asked, or on to the upstream.

use std::cell::Cell;

use sdk::Exchange;
use sdk::exchange::Body;
use wire::Framing;
use wire::h1::encode;

use super::body::{Incoming, Outgoing};
use super::fault::{Fault, FaultKind};
use super::io::{self, Failed};
use crate::buffers::{Buffer, LARGE, SMALL};
use crate::clock::Waiter;
use crate::down::Down;
use crate::rt::{ReadHalf, WriteHalf};
use crate::worker::Worker;

pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Reads the request's body into `x.messages.body`, up to `limit` bytes. What is read of a
/// longer one stays there as its beginning.
pub(crate) async fn buffer(
    worker: &Worker,
    down: &mut Down,
    x: &mut Exchange<'_>,
    limit: usize,
) -> Result<(), Fault> {
    match x.body_state {
        Body::Streaming => {}
        Body::TooLarge if x.messages.body.len() <= limit => {}
        _ => return Ok(()),
    }
    if let Framing::Length(length) = x.messages.request.framing {
        if length > limit as u64 {
            x.body_state = Body::TooLarge;
            return Ok(());
        }
        // What is announced need not come, so only as much is set aside as one read may bring.
        x.messages.body.reserve(length.min(LARGE as u64) as usize);
    }
    down.say_continue(worker).await?;
    loop {
        if let Some(buffer) = &mut down.buffer {
            let taken = down.incoming.decode(buffer.data_mut());
            let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
            x.messages.body.extend_from_slice(&buffer.data()[..taken.emit]);
            buffer.consume(taken.consumed);
            if taken.done {
                x.body_state = Body::Whole;
                down.incoming = Incoming::None;
                down.return_empty(worker);
                return Ok(());
            }
            let max = worker.settings.max_body;
            if max > 0 && x.messages.body.len() as u64 > max {
                return Err(Fault::client(FaultKind::BodyTooLarge));
            }
            if x.messages.body.len() > limit {
                x.body_state = Body::TooLarge;
                return Ok(());
            }
        }
        down.read_more(worker, worker.settings.body_timeout).await?;
    }
}

/// How far sending a request's body has come; looked at by the receiving side.
#[derive(Debug, Default)]
pub(crate) struct UploadState {
    /// When the last byte of the request was written, in the clock's coarse milliseconds.
    pub(crate) done_at: Cell<Option<u64>>,
    /// Bytes were taken from the client that are not in memory any more.
    pub(crate) lost: Cell<bool>,
    /// Writing to the upstream failed; its answer may still be there to read.
    pub(crate) failed: Cell<Option<Failed>>,
    /// The response has begun, so a half-closed client is known to be served.
    pub(crate) answered: Cell<bool>,
    /// Body bytes taken from the client.
    pub(crate) received: Cell<u64>,
}

/// What sending needs of the connection to the client.
pub(crate) struct Sender<'a, 'b> {
    pub(crate) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(crate) from: &'a mut ReadHalf<'b>,
    pub(crate) buffer: &'a mut Option<Buffer>,
    pub(crate) incoming: &'a mut Incoming,
    pub(crate) state: &'a UploadState,
}

impl Sender<'_, '_> {
    /// Sends the rest of the body, then watches whether the client goes away. Ends only
    /// with a fault of the client.
    pub(crate) async fn run(
        mut self,
        to: &mut WriteHalf<'_>,
        outgoing: Outgoing,
        send_timeout: std::time::Duration,
    ) -> Fault {
        if !self.incoming.is_done()
            && let Err(fault) = self.stream(to, outgoing, send_timeout).await
        {
            return fault;
        }
        if self.state.failed.get().is_some() {
            // Only the upstream's answer, if there is one, can end this exchange now.
            return std::future::pending().await;
        }
        self.state.done_at.set(Some(self.worker.clock.coarse_ms()));
        self.watch().await
    }

    async fn stream(
        &mut self,
        to: &mut WriteHalf<'_>,
        outgoing: Outgoing,
        send_timeout: std::time::Duration,
    ) -> Result<(), Fault> {
        let max = self.worker.settings.max_body;
        loop {
            if let Some(buffer) = self.buffer.as_mut().filter(|buffer| !buffer.is_empty()) {
                let data = buffer.data_mut();
                let taken = match outgoing {
                    Outgoing::Same => self.incoming.relay(data),
                    Outgoing::Chunked | Outgoing::Bare => self.incoming.decode(data),
                };
                let taken = taken.map_err(|refusal| Fault::client(FaultKind::BadBody(refusal)))?;
                self.state.received.set(self.state.received.get() + taken.emit as u64);
                if max > 0 && self.state.received.get() > max {
                    return Err(Fault::client(FaultKind::BodyTooLarge));
                }
                let bytes = &buffer.data()[..taken.emit];
                let mut frame = Vec::new();
                let pieces = match outgoing {
                    Outgoing::Same | Outgoing::Bare => [bytes, b"", b""],
                    Outgoing::Chunked => chunk_pieces(bytes, taken.done, &mut frame),
                };
                let written = io::write_pieces(self.worker, self.waiter, to, pieces, send_timeout).await;
                buffer.consume(taken.consumed);
                self.state.lost.set(true);
                if let Err(failed) = written {
                    self.state.failed.set(Some(failed));
                    return Ok(());
                }
                if taken.done {
                    *self.incoming = Incoming::None;
                    return Ok(());
                }
            }
            self.read_more().await?;
        }
    }

    async fn read_more(&mut self) -> Result<(), Fault> {
        let timeout = self.worker.settings.body_timeout;
        if self.buffer.is_none() {
            let deadline = self.worker.clock.after(timeout);
            if self.waiter.until(deadline, |cx| self.from.poll_readable(cx)).await.is_err() {
                return Err(Fault::client(FaultKind::BodyTimeout));
            }
        }
        let buffer = self.buffer.get_or_insert_with(|| self.worker.buffers.take());
        match io::read(self.worker, self.waiter, self.from, buffer, timeout).await {
            Ok(0) | Err(Failed::Closed | Failed::Broken) => Err(Fault::client(FaultKind::ClientGone)),
            Ok(n) => {
                if n == SMALL && buffer.len() == SMALL && buffer.capacity() == SMALL {
                    buffer.grow(LARGE);
                }
                Ok(())
            }
            Err(Failed::Timeout) => Err(Fault::client(FaultKind::BodyTimeout)),
        }
    }

    /// Ends when the client is certainly gone, or has closed its sending side and nothing of a
    /// response has come for a while. Requests that are sent ahead of the answer are read as far as
    /// one buffer holds them, as the client's end can be seen only behind them.
    async fn watch(&mut self) -> Fault {
        loop {
            // An error shows in the look that follows.
            let _ = std::future::poll_fn(|cx| self.from.poll_readable(cx)).await;
            match self.from.peek() {
                Ok(0) => break,
                Ok(_) => {}
                // What made it readable was read before.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => return Fault::client(FaultKind::ClientGone),
            }
            let buffer = self.buffer.get_or_insert_with(|| self.worker.buffers.take());
            if buffer.space().is_empty() {
                return std::future::pending().await;
            }
            match io::read_now(self.from, buffer).await {
                Some(Ok(0)) => break,
                Some(Ok(_)) | None => {}
                Some(Err(_)) => return Fault::client(FaultKind::ClientGone),
            }
        }
        let deadline = self.worker.clock.after(self.worker.settings.half_close_timeout);
        let _ = self.waiter.until(deadline, |_| std::task::Poll::<()>::Pending).await;
        if self.state.answered.get() {
            return std::future::pending().await;
        }
        Fault::client(FaultKind::ClientGone)
    }
}

/// A chunk's three parts; the frame holds the size line, and with the last chunk all of it.
pub(crate) fn chunk_pieces<'a>(bytes: &'a [u8], last: bool, frame: &'a mut Vec<u8>) -> [&'a [u8]; 3] {
    frame.clear();
    if bytes.is_empty() {
        return [if last { encode::LAST_CHUNK } else { b"" }, b"", b""];
    }
    encode::chunk_header(bytes.len(), frame);
    [frame, bytes, if last { b"\r\n0\r\n\r\n" } else { b"\r\n" }]
}
