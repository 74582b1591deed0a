//! hot path
//!
//! The upstream's response: its head, and its body on to the client.

use std::time::Duration;

use sdk::Exchange;
use sdk::exchange::{Chunk, Source};
use wire::h1::Progress;
use wire::{Framing, Method, Name, Version};

use super::answer::{self, Ending};
use super::body::{Frame, Incoming, Outgoing};
use super::fault::{Fault, FaultKind};
use super::io::{self, Failed};
use super::phases::Chains;
use super::upload::UploadState;
use crate::buffers::{Buffer, Lent, SMALL};
use crate::clock::Waiter;
use crate::rt::{ReadHalf, WriteHalf};
use crate::worker::Worker;

/// Interim responses an upstream may send before its final one.
pub(crate) const MAX_INTERIM: usize = 16;

/// How a response ended.
#[derive(Debug)]
pub(crate) enum Received {
    /// It was sent whole.
    Done { keep_upstream: bool, keep_client: bool },
    /// It broke off after its head was sent; the client must see that.
    Broken(Fault),
    /// 101: the connections are a tunnel from here on. Bytes that came with the head.
    Switched(Option<Buffer>),
}

/// What receiving needs.
pub(crate) struct Receiver<'a, 'b, 'x> {
    pub(crate) worker: &'a Worker,
    pub(crate) waiter: &'a Waiter,
    pub(crate) from: &'a mut ReadHalf<'b>,
    pub(crate) to: &'a mut WriteHalf<'b>,
    pub(crate) x: &'a mut Exchange<'x>,
    pub(crate) chains: Chains<'a>,
    pub(crate) state: &'a UploadState,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) chunk: &'a mut Chunk,
    pub(crate) read_timeout: Duration,
    /// The method that was sent: whether the answer has a body depends on it.
    pub(crate) sent_method: Method,
    /// The connection has carried a request before this one.
    pub(crate) reused: bool,
    /// The client asked for another protocol and the plan allows it.
    pub(crate) switching: bool,
    /// The client's connection may serve another request.
    pub(crate) keep_client: bool,
    /// Bytes of the final response were written to the client.
    pub(crate) head_sent: bool,
    /// The last read filled a small buffer.
    pub(crate) long: bool,
}

impl Receiver<'_, '_, '_> {
    /// Receives and delivers. An error means that nothing was sent to the client yet.
    pub(crate) async fn run(mut self) -> Result<Received, Fault> {
        let worker = self.worker;
        let mut lent = Lent::none(&worker.buffers);
        if let Err(fault) = self.read_head(&mut lent).await {
            // An interim response may have broken off within its head.
            return if self.head_sent { Ok(Received::Broken(fault)) } else { Err(fault) };
        }
        let head = &mut self.x.messages.response;
        if head.status == 101 {
            return self.switch(lent).await;
        }
        let mut incoming = Incoming::new(head.framing);
        let keep_upstream = head.keep_alive && head.framing != Framing::UntilClose;
        let (ending, outgoing) = self.prepare()?;
        self.out.clear();
        answer::write_head(worker, self.x, ending, self.keep_client, self.out);
        let head_len = self.out.len() as u64;
        self.state.answered.set(true);

        let has_body = ending != Ending::Nothing && self.x.method() != Method::Head;
        let filtered = has_body && self.chains.filter_body(self.x);
        let sent = if !has_body {
            self.skip(&mut lent, &mut incoming);
            self.flush().await
        } else if filtered {
            self.deliver_filtered(&mut lent, &mut incoming, ending, outgoing).await
        } else {
            self.deliver(&mut lent, &mut incoming, outgoing).await
        };
        self.x.timing.sent = head_len + self.x.timing.body_sent;
        if let Err(fault) = sent {
            if self.head_sent {
                return Ok(Received::Broken(fault));
            }
            // The client has seen nothing yet, and is told why. But the server has answered: it is not
            // asked again.
            self.state.lost.set(true);
            self.state.answered.set(false);
            self.out.clear();
            return Err(fault);
        }
        // Bytes behind the message: the upstream and we disagree about where it ended. And a body
        // that nobody wanted is still on its way.
        let clean = (lent.is_none() || lent.get().is_empty()) && (has_body || incoming.is_done());
        Ok(Received::Done {
            keep_upstream: keep_upstream && clean && self.state.done_at.get().is_some(),
            keep_client: self.keep_client && ending != Ending::Close,
        })
    }

    /// Reads until a final response head, or 101, is in `x`.
    async fn read_head(&mut self, lent: &mut Lent<'_>) -> Result<(), Fault> {
        let mut progress = Progress::default();
        let limits = &self.worker.settings.response;
        let mut interim = 0;
        let mut deadline = self.worker.clock.after(self.read_timeout);
        loop {
            if !lent.is_none() && !lent.get().is_empty() {
                let buffer = lent.get();
                let head = &mut self.x.messages.response;
                let decoded =
                    wire::h1::response(buffer.data(), &mut progress, head, self.sent_method, limits);
                match decoded.map_err(|refusal| Fault::upstream(FaultKind::BadResponse(refusal)))? {
                    // No answer to a request that is still to be sent: the server is done with us.
                    Some(_) if self.reused && !self.state.sent.get() => return Err(closed_early()),
                    Some(n) => {
                        buffer.consume(n);
                        if head.status >= 200 || head.status == 101 {
                            return Ok(());
                        }
                        interim += 1;
                        if interim > MAX_INTERIM {
                            return Err(Fault::upstream(FaultKind::UnaskedInterim));
                        }
                        self.pass_interim().await?;
                        continue;
                    }
                    None if buffer.space().is_empty() => buffer.grow(limits.head),
                    None => {}
                }
            }
            if lent.is_none() {
                // No buffer is held while the upstream thinks.
                match self.waiter.until(deadline, |cx| self.from.poll_readable(cx)).await {
                    Ok(ready) => ready.map_err(|_| closed_early())?,
                    Err(_) => {
                        deadline = self.more_time()?;
                        continue;
                    }
                }
            }
            match io::read_until(self.waiter, self.from, lent.get(), deadline).await {
                Ok(0) | Err(Failed::Closed | Failed::Broken) => return Err(closed_early()),
                Ok(_) => {}
                Err(Failed::Timeout) => deadline = self.more_time()?,
            }
        }
    }

    /// Until when the upstream may take to answer, after a time-out: its time begins with the last
    /// byte of the request. While the body is on its way, the upload has time-outs of its own.
    #[cold]
    fn more_time(&self) -> Result<u64, Fault> {
        let clock = &self.worker.clock;
        let until = match (self.state.done_at.get(), self.state.failed.get()) {
            (Some(at), _) => clock.after(self.read_timeout) - (clock.coarse_ms() - at),
            (None, None) => clock.after(self.read_timeout),
            (None, Some(_)) => 0,
        };
        if clock.is_over(until) { Err(Fault::upstream(FaultKind::ReadTimeout)) } else { Ok(until) }
    }

    /// 102, 103 and the like go on to clients that know of them; 100 answered our own wish.
    async fn pass_interim(&mut self) -> Result<(), Fault> {
        let head = &mut self.x.messages.response;
        if head.status == 100 || self.x.messages.request.version == Version::Http10 {
            return Ok(());
        }
        wire::h1::hop::strip_response(head, false);
        self.out.clear();
        wire::h1::encode::status_line(head.status, self.out);
        head.fields.write_to(self.out);
        self.out.extend_from_slice(b"\r\n");
        self.flush().await?;
        // Of the final response, nothing is out yet.
        self.head_sent = false;
        Ok(())
    }

    /// Puts the response head into the form the client gets, and says how the body goes out. What
    /// counts is what the stages made of the status.
    fn prepare(&mut self) -> Result<(Ending, Outgoing), Fault> {
        let x = &mut *self.x;
        let status = x.messages.response.status;
        x.upstream_status = status;
        x.source = Source::Upstream;
        wire::h1::hop::strip_response(&mut x.messages.response, false);
        x.apply_early_edits();
        answer::tell_upstream_status(self.worker, x);
        self.chains.header_filter(self.worker, x);
        if !self.state.taken.get() || self.worker.is_draining() {
            // An early response: what is left of the request's body would be taken for a request.
            self.keep_client = false;
        }
        let head = &x.messages.response;
        let length = head
            .fields
            .get(Name::ContentLength)
            .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        match head.status {
            204 | 304 => return Ok((Ending::Nothing, Outgoing::Bare)),
            200..=999 => {}
            // A stage's own: it would not end the exchange.
            _ => return Err(Fault::gateway(FaultKind::BrokenStage)),
        }
        if x.messages.request.method == Method::Head {
            return Ok((length.map_or(Ending::Nothing, Ending::Length), Outgoing::Bare));
        }
        let filtered = self.chains.filter_body(x);
        Ok(match (head.framing, length) {
            // What is passed on as it is has the length it came with, whatever a stage made of the field.
            (Framing::Length(announced), _) if !filtered => (Ending::Length(announced), Outgoing::Bare),
            // The field of an answer without a body (304) tells of another one's.
            (Framing::None, _) if !filtered => (Ending::Length(0), Outgoing::Bare),
            (Framing::Length(_) | Framing::Chunked | Framing::UntilClose, Some(length)) if filtered => {
                (Ending::Length(length), Outgoing::Bare)
            }
            _ if x.messages.request.version == Version::Http10 => {
                self.keep_client = false;
                (Ending::Close, Outgoing::Bare)
            }
            (Framing::Chunked, _) if !filtered => (Ending::Chunked, Outgoing::Same),
            _ => (Ending::Chunked, Outgoing::Chunked),
        })
    }

    /// Drops what is here of a body that is not passed on.
    fn skip(&self, lent: &mut Lent<'_>, incoming: &mut Incoming) {
        if lent.is_none() {
            return;
        }
        let buffer = lent.get();
        // What is malformed stays, so the connection is not used again.
        if let Ok(taken) = incoming.decode(buffer.data_mut()) {
            buffer.consume(taken.consumed);
            if taken.done {
                *incoming = Incoming::None;
            }
        }
    }

    /// The body as it comes. The head, still in `out`, leaves with the first bytes of it.
    #[inline]
    async fn deliver(
        &mut self,
        lent: &mut Lent<'_>,
        incoming: &mut Incoming,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let mut frame = Frame::default();
        loop {
            let buffer = lent.get();
            let mut done = incoming.is_done();
            if !buffer.is_empty() && !done {
                let data = buffer.data_mut();
                let taken = match outgoing {
                    Outgoing::Same => incoming.relay(data),
                    Outgoing::Chunked | Outgoing::Bare => incoming.decode(data),
                };
                let taken = taken.map_err(|refusal| Fault::upstream(FaultKind::BadResponse(refusal)))?;
                done = taken.done;
                self.x.timing.body_sent += taken.emit as u64;
                let body = &buffer.data()[..taken.emit];
                if self.out.is_empty() {
                    let pieces = match outgoing {
                        Outgoing::Chunked => frame.around(body, false, None),
                        Outgoing::Same | Outgoing::Bare => [body, b"", b""],
                    };
                    let timeout = self.worker.settings.send_timeout;
                    io::write_pieces(self.worker, self.waiter, self.to, pieces, timeout)
                        .await
                        .map_err(client_failed)?;
                } else {
                    // Copying a few kilobytes behind the head costs less than a second piece.
                    if outgoing == Outgoing::Chunked && !body.is_empty() {
                        wire::h1::encode::chunk_header(body.len(), self.out);
                        self.out.extend_from_slice(body);
                        self.out.extend_from_slice(b"\r\n");
                    } else {
                        self.out.extend_from_slice(body);
                    }
                    self.flush().await?;
                }
                buffer.consume(taken.consumed);
            }
            if done {
                return self.flush().await;
            }
            self.flush().await?;
            let n = self.read_body(lent).await?;
            if n == 0 {
                if !matches!(incoming, Incoming::UntilClose) {
                    return Err(Fault::upstream(FaultKind::Truncated));
                }
                if outgoing == Outgoing::Chunked {
                    self.out.extend_from_slice(wire::h1::encode::LAST_CHUNK);
                }
                return self.flush().await;
            }
        }
    }

    /// The body through the stages that look at it. Where one of them gives nothing on before it has
    /// seen all, the head waits as well: the stage may still find that it cannot do its work.
    async fn deliver_filtered(
        &mut self,
        lent: &mut Lent<'_>,
        incoming: &mut Incoming,
        ending: Ending,
        outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let mut announced = match ending {
            Ending::Length(length) => Some(length),
            _ => None,
        };
        let held = self.chains.hold_body(self.x);
        let mut frame = Frame::default();
        let mut done = incoming.is_done();
        loop {
            self.chunk.data.clear();
            if !done {
                let buffer = lent.get();
                let taken = incoming.decode(buffer.data_mut());
                let taken = taken.map_err(|refusal| Fault::upstream(FaultKind::BadResponse(refusal)))?;
                self.chunk.data.extend_from_slice(&buffer.data()[..taken.emit]);
                buffer.consume(taken.consumed);
                done = taken.done;
            }
            self.chunk.last = done;
            if done || !self.chunk.data.is_empty() {
                self.chains.body_filter(self.worker, self.x, self.chunk)?;
            }
            let data = &self.chunk.data[..];
            if let Some(left) = &mut announced {
                *left = left.checked_sub(data.len() as u64).ok_or(Fault::gateway(FaultKind::BrokenStage))?;
            }
            self.x.timing.body_sent += data.len() as u64;
            let pieces = match outgoing {
                Outgoing::Chunked => frame.around(data, done, incoming.trailers()),
                Outgoing::Same | Outgoing::Bare => [b"", data, b""],
            };
            if done || !held || !data.is_empty() {
                self.head_sent |= !self.out.is_empty() || !data.is_empty();
                send(self.worker, self.waiter, self.to, self.out, pieces).await.map_err(client_failed)?;
            }
            if done {
                return match announced {
                    Some(left) if left > 0 => Err(Fault::gateway(FaultKind::BrokenStage)),
                    _ => Ok(()),
                };
            }
            if self.read_body(lent).await? == 0 {
                if !matches!(incoming, Incoming::UntilClose) {
                    return Err(Fault::upstream(FaultKind::Truncated));
                }
                done = true;
            }
        }
    }

    /// Reads more of the body; 0 is the end of the connection.
    #[inline]
    async fn read_body(&mut self, lent: &mut Lent<'_>) -> Result<usize, Fault> {
        if self.long {
            lent.enlarge();
        }
        let buffer = lent.get();
        match io::read(self.worker, self.waiter, self.from, buffer, self.read_timeout).await {
            Ok(n) => {
                // A long body: the next reads take more at once.
                self.long = n == SMALL;
                Ok(n)
            }
            Err(Failed::Closed | Failed::Broken) => Err(Fault::upstream(FaultKind::Truncated)),
            Err(Failed::Timeout) => Err(Fault::upstream(FaultKind::ReadTimeout)),
        }
    }

    /// 101 (RFC 9110 section 15.2.2): only if it was asked for.
    async fn switch(mut self, lent: Lent<'_>) -> Result<Received, Fault> {
        let head = &mut self.x.messages.response;
        let agreed = head.fields.get(Name::Upgrade).is_some_and(|to| to.eq_ignore_ascii_case(b"websocket"));
        if !self.switching || !head.upgrade || !agreed {
            return Err(Fault::upstream(FaultKind::UnaskedInterim));
        }
        self.x.source = Source::Upstream;
        self.x.upstream_status = 101;
        wire::h1::hop::strip_response(head, true);
        self.x.apply_early_edits();
        self.chains.header_filter(self.worker, self.x);
        let head = &self.x.messages.response;
        self.out.clear();
        wire::h1::encode::status_line(101, self.out);
        self.out.extend_from_slice(b"Connection: Upgrade\r\n");
        head.fields.write_to(self.out);
        self.out.extend_from_slice(b"\r\n");
        self.state.answered.set(true);
        if let Err(fault) = self.flush().await {
            return Ok(Received::Broken(fault));
        }
        Ok(Received::Switched(lent.into_inner()))
    }

    /// Writes what is in `out`.
    #[inline]
    async fn flush(&mut self) -> Result<(), Fault> {
        if self.out.is_empty() {
            return Ok(());
        }
        self.head_sent = true;
        let timeout = self.worker.settings.send_timeout;
        let written = io::write_all(self.worker, self.waiter, self.to, self.out, timeout).await;
        self.out.clear();
        written.map_err(client_failed)
    }
}

/// Writes what is in `out` and three pieces behind it; a long one from where it lies.
async fn send(
    worker: &Worker,
    waiter: &Waiter,
    to: &mut WriteHalf<'_>,
    out: &mut Vec<u8>,
    [before, data, after]: [&[u8]; 3],
) -> Result<(), Failed> {
    let timeout = worker.settings.send_timeout;
    out.extend_from_slice(before);
    let written = if data.len() > SMALL {
        io::write_pieces(worker, waiter, to, [out, data, after], timeout).await
    } else {
        out.extend_from_slice(data);
        out.extend_from_slice(after);
        io::write_all(worker, waiter, to, out, timeout).await
    };
    out.clear();
    written
}

fn closed_early() -> Fault {
    Fault::upstream(FaultKind::ClosedEarly)
}

fn client_failed(failed: Failed) -> Fault {
    Fault::client(match failed {
        Failed::Closed | Failed::Broken => FaultKind::ClientGone,
        Failed::Timeout => FaultKind::ClientSlow,
    })
}
