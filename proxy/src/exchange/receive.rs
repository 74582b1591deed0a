//! hot path
//!
//! The upstream's response: its head, and its body on to the client.

use std::time::Duration;

use sdk::exchange::{Chunk, Source};
use sdk::{Exchange, Reply};
use snapshot::health::Statuses;
use wire::{Framing, Method, Name, Version};

use super::add_trailers;
use super::answer;
use super::asks_for_tunnel;
use super::fault::{Fault, FaultKind};
use super::live;
use super::phases::{Chains, Flow};
use super::upload::UploadState;
use crate::buffers::Buffer;
use crate::down::Response;
use crate::io::Failed;
use crate::rt;
use crate::up::{self, Receiver, Size};
use crate::worker::Worker;

/// How a response ended.
#[derive(Debug)]
pub(crate) enum Received {
    /// It was sent whole.
    Done { keep_upstream: bool },
    /// It broke off after its head was sent; the client must see that.
    Broken(Fault),
    /// A filter has an answer of its own; nothing was sent to the client yet.
    Instead(Reply),
    /// 101: the connections are a tunnel from here on. Bytes that came with the head.
    Switched(Option<Buffer>),
}

/// Takes a response from the upstream's end and gives it to the client's.
pub(crate) struct Delivery<'a, 'b, 'x> {
    pub(crate) worker: &'a Worker,
    pub(crate) from: Receiver<'a>,
    pub(crate) to: &'a mut Response<'b>,
    pub(crate) x: &'a mut Exchange<'x>,
    pub(crate) chains: Chains<'a>,
    pub(crate) state: &'a UploadState,
    pub(crate) chunk: &'a mut Chunk,
    pub(crate) read_timeout: Duration,
    /// When the head must be here; other bytes that are read do not extend it.
    pub(crate) head_by: u64,
    pub(crate) turns_away: Option<TurnsAway<'a>>,
    /// The cookie that brings the client back to this server.
    pub(crate) cookie: Option<&'a [u8]>,
    /// The time until the head came is measured.
    pub(crate) measures: bool,
    /// The method that was sent: whether the answer has a body depends on it.
    pub(crate) sent_method: Method,
    /// The connection has carried a request before this one.
    pub(crate) reused: bool,
    /// The client asked for a tunnel and the plan allows it.
    pub(crate) websocket: bool,
}

/// How long the first part of a short body waits for the rest.
const GATHER: Duration = Duration::from_millis(20);

/// Answers after which another server is asked instead; it is known that there is one.
#[derive(Clone, Copy)]
pub(crate) struct TurnsAway<'a> {
    pub(crate) statuses: &'a Statuses,
    /// There is no time for another try after this ([`Clock::is_over`]).
    ///
    /// [`Clock::is_over`]: crate::clock::Clock::is_over
    pub(crate) until: u64,
    pub(crate) retries: &'a dyn Retries,
}

/// An upstream's allowance of retries.
pub(crate) trait Retries {
    /// Takes one for this exchange; false if no more is allowed.
    fn reserve(&self, worker: &Worker) -> bool;
}

/// Why a response does not go on as it came.
enum Stop {
    Fault(Fault),
    Reply(Reply),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl Delivery<'_, '_, '_> {
    /// Receives and delivers. An error means that nothing was sent to the client yet.
    pub(crate) async fn run(&mut self) -> Result<Received, Fault> {
        if let Err(fault) = self.read_head().await {
            // An interim response may have broken off within its head.
            return if self.to.has_begun() { Ok(Received::Broken(fault)) } else { Err(fault) };
        }
        if self.measures {
            self.x.engine_mut().timing.answered_us = self.worker.clock.micros();
        }
        if self.x.status() == 101 {
            return self.switch().await;
        }
        if let Some(away) = self.turns_away
            && away.statuses.contains(self.x.response().status)
            && !self.worker.clock.is_over(away.until)
            && !self.state.lost.get()
            && !self.to.has_begun()
            && away.retries.reserve(self.worker)
        {
            return Err(Fault::upstream(FaultKind::TurnedAway(self.x.response().status)));
        }
        let size = match self.prepare().await {
            Ok(size) => size,
            Err(Stop::Fault(fault)) => return Err(fault),
            Err(Stop::Reply(reply)) => return Ok(Received::Instead(reply)),
        };
        let has_body = !matches!(self.x.status(), 204 | 205 | 304)
            && size != Size::None
            && self.x.method() != Method::Head;
        let filtered = has_body && self.chains.filter_body(self.x);
        if self.worker.settings.explain.is_some() {
            live::add_to_head(self.worker, self.x, self.chains);
        }
        let head_len = self.to.start(self.x, size);
        // Counted as it goes: this may be cut off by the client's leaving.
        self.x.engine_mut().timing.sent = head_len;
        self.state.answered.set(true);

        let sent = if !has_body {
            self.from.skip();
            self.to.end().await.map_err(|failed| client_failed(failed).into())
        } else if filtered {
            self.deliver_filtered(size).await
        } else {
            self.deliver().await.map_err(Stop::Fault)
        };
        if let Err(stop) = sent {
            let begun = self.to.has_begun();
            let fault = match stop {
                Stop::Fault(fault) => fault,
                Stop::Reply(reply) if !begun => {
                    self.x.engine_mut().timing.body_sent = 0;
                    return Ok(Received::Instead(reply));
                }
                // It comes too late: a part of the response is out.
                Stop::Reply(_) => Fault::gateway(FaultKind::BrokenStage),
            };
            if begun {
                return Ok(Received::Broken(fault));
            }
            // The client has seen nothing yet, and gets an error answer. But the server has answered: it is
            // not asked again.
            self.state.lost.set(true);
            self.state.answered.set(false);
            return Err(fault);
        }
        let keep_upstream = self.state.done_at.get().is_some() && self.from.may_be_reused();
        Ok(Received::Done { keep_upstream })
    }

    /// Reads until a final response head, or 101, is in `x`.
    async fn read_head(&mut self) -> Result<(), Fault> {
        let (worker, state, read_timeout, head_by) =
            (self.worker, self.state, self.read_timeout, self.head_by);
        let mut deadline = worker.clock.after(read_timeout).min(head_by);
        loop {
            let head = &mut self.x.engine_mut().messages.response;
            let late = || {
                if worker.clock.is_over(head_by) {
                    return Err(Fault::upstream(FaultKind::ReadTimeout));
                }
                more_time(worker, state, read_timeout).map(|until| until.min(head_by))
            };
            self.from.head(head, self.sent_method, &mut deadline, late).await?;
            if self.reused && !state.sent.get() {
                // No answer to a request that is still to be sent: the server is done with us.
                return Err(Fault::upstream(FaultKind::ClosedEarly));
            }
            match head.status {
                // It answered our own wish, if it was one.
                100 => {}
                // 102, 103 and the like go on.
                102..200 => {
                    wire::h1::hop::strip_response(head, false);
                    self.to.interim(head).await.map_err(client_failed)?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Puts the response head into the form the client gets, and says how much of a body follows. What
    /// counts is what the stages made of the status.
    async fn prepare(&mut self) -> Result<Size, Stop> {
        // The server has answered: it is not asked again, even if a filter fails.
        self.state.lost.set(true);
        let x = &mut *self.x;
        let engine = x.engine_mut();
        engine.upstream_status = engine.messages.response.status;
        engine.source = Source::Upstream;
        wire::h1::hop::strip_response(&mut engine.messages.response, false);
        // Before plugins look at the head: one that stores answers must see that this is for one client.
        if let Some(cookie) = self.cookie {
            // It is made of checked parts.
            let _ = engine.messages.response.fields.append_id(Name::SetCookie, cookie);
        }
        engine.apply_early_edits();
        answer::add_upstream_status(self.worker, x);
        match self.chains.header_filter(self.worker, x).await {
            Flow::Go => {}
            Flow::Reply(reply) => return Err(Stop::Reply(reply)),
            Flow::Fault(fault) => return Err(fault.into()),
        }
        let head = x.response();
        let length = || {
            let value = head.fields.get(Name::ContentLength)?;
            std::str::from_utf8(value).ok()?.parse().ok()
        };
        match head.status {
            200..=299 if asks_for_tunnel(x.request()) => {
                return Err(Fault::client(FaultKind::NoSwitch).into());
            }
            204 | 304 => return Ok(Size::None),
            // No content either, but clients differ on whether it needs saying (RFC 9110 section 15.3.6).
            205 => return Ok(Size::Exactly(0)),
            200..=999 => {}
            // A stage's own: it would not end the exchange.
            _ => return Err(Fault::gateway(FaultKind::BrokenStage).into()),
        }
        if x.request().method == Method::Head {
            return Ok(length().map_or(Size::None, Size::Exactly));
        }
        let framing = head.framing;
        let trailers = !x.response_trailers().is_empty();
        let filtered = self.chains.filter_body(x);
        Ok(match framing {
            // Behind a body of a known length there is no place for them.
            _ if trailers => Size::Open,
            // An unfiltered body keeps its original length, even if a plugin changed the field.
            Framing::Length(announced) if !filtered => Size::Exactly(announced),
            // The field of an answer without a body (304) tells of another one's.
            Framing::None if !filtered => Size::Exactly(0),
            Framing::Length(_) | Framing::Chunked | Framing::UntilClose if filtered => {
                length().map_or(Size::Open, Size::Exactly)
            }
            _ => Size::Open,
        })
    }

    /// The body as it comes. The head leaves with the first bytes of it.
    #[inline]
    async fn deliver(&mut self) -> Result<(), Fault> {
        self.gather().await?;
        let trailers = !self.x.response_trailers().is_empty();
        let framed = self.from.is_chunked() && self.to.is_chunked() && !trailers;
        let mut turn_ends = rt::TURN;
        loop {
            if !self.from.take(framed)? {
                self.to.flush().await.map_err(client_failed)?;
                self.read().await?;
                continue;
            }
            let (piece, last) = (self.from.piece(), self.from.is_complete());
            count(self.x, piece.len());
            let written = if framed {
                self.to.relay(piece).await
            } else {
                if last {
                    add_trailers(&mut self.x.engine_mut().messages.response_trailers, self.from.trailers());
                }
                self.to.write(piece, last, Some(self.x.response_trailers())).await
            };
            written.map_err(client_failed)?;
            self.from.used();
            if last {
                return Ok(());
            }
            let sent = self.x.timing().body_sent;
            if sent >= turn_ends {
                turn_ends = sent + rt::TURN;
                rt::events().await;
            }
        }
    }

    /// Reads a short body to its end, for a while: it costs the gateway, the network and the client less in
    /// one piece, and if it breaks off, the client can still get an error answer.
    #[inline]
    async fn gather(&mut self) -> Result<(), Fault> {
        if !self.worker.settings.gathers || !self.from.rest_fits() {
            return Ok(());
        }
        let clock = &self.worker.clock;
        let (until, deadline) = (clock.after(GATHER), clock.after(self.read_timeout));
        while self.from.rest_fits() {
            match self.from.read(until.min(deadline)).await {
                Err(fault) if fault.kind == FaultKind::ReadTimeout && until < deadline => return Ok(()),
                read => read?,
            }
        }
        Ok(())
    }

    /// The body through the stages that look at it. Where one of them gives nothing on before it has
    /// seen all, the head waits as well: the stage may still find that it cannot do its work.
    async fn deliver_filtered(&mut self, size: Size) -> Result<(), Stop> {
        let mut announced = match size {
            Size::Exactly(length) => Some(length),
            Size::None | Size::Open => None,
        };
        let held = self.chains.hold_body(self.worker, self.x)?;
        self.gather().await?;
        let mut turn = rt::TURN;
        loop {
            self.chunk.data.clear();
            let mut last = false;
            if self.from.take(false)? {
                // Of the server's bytes: a stage may give none of them on.
                turn = turn.saturating_sub(self.from.piece().len() as u64);
                self.chunk.data.extend_from_slice(self.from.piece());
                self.from.used();
                last = self.from.is_complete();
            }
            self.chunk.last = last;
            if last {
                add_trailers(&mut self.x.engine_mut().messages.response_trailers, self.from.trailers());
            }
            if last || !self.chunk.data.is_empty() {
                self.state.filtering.set(Some(self.worker.clock.coarse_ms()));
                let flow = self.chains.body_filter(self.worker, self.x, self.chunk).await;
                self.state.filtering.set(None);
                match flow {
                    Flow::Go => {}
                    Flow::Reply(reply) => return Err(Stop::Reply(reply)),
                    Flow::Fault(fault) => return Err(fault.into()),
                }
            }
            let data = &self.chunk.data[..];
            if let Some(left) = &mut announced {
                *left = left.checked_sub(data.len() as u64).ok_or(Fault::gateway(FaultKind::BrokenStage))?;
                if last && *left > 0 {
                    return Err(Fault::gateway(FaultKind::BrokenStage).into());
                }
            }
            count(self.x, data.len());
            if last || !data.is_empty() {
                let trailers = Some(self.x.response_trailers());
                self.to.write(data, last, trailers).await.map_err(client_failed)?;
            } else if !held {
                self.to.flush().await.map_err(client_failed)?;
            }
            if last {
                return Ok(());
            }
            if turn == 0 {
                turn = rt::TURN;
                rt::events().await;
            }
            self.read().await?;
        }
    }

    /// Reads more of the body.
    #[inline]
    async fn read(&mut self) -> Result<(), Fault> {
        if let Some(window) = self.to.window() {
            self.from.fit(window);
        }
        let deadline = self.worker.clock.after(self.read_timeout);
        self.from.read(deadline).await
    }

    /// 101 (RFC 9110 section 15.2.2): only if it was asked for, and behind the whole request. Else the
    /// tunnel's bytes would stand within a head that is still on its way.
    async fn switch(&mut self) -> Result<Received, Fault> {
        let engine = self.x.engine_mut();
        let head = &mut engine.messages.response;
        let agreed = head.fields.get(Name::Upgrade).is_some_and(|to| to.eq_ignore_ascii_case(b"websocket"));
        let sent = self.state.done_at.get().is_some();
        if !self.websocket || !head.upgrade || !agreed || !sent {
            return Err(Fault::upstream(FaultKind::UnaskedInterim));
        }
        // Elsewhere the client has a key of its own and sees to it.
        let request = &engine.messages.request;
        if matches!(request.version, Version::Http2 | Version::Http3)
            && let Some(key) = request.fields.get(Name::SecWebsocketKey)
            && head.fields.get_named(b"sec-websocket-accept") != Some(&up::h2::accept_of(key)[..])
        {
            return Err(Fault::upstream(FaultKind::WrongAccept));
        }
        engine.source = Source::Upstream;
        engine.upstream_status = 101;
        wire::h1::hop::strip_response(head, true);
        engine.apply_early_edits();
        self.state.lost.set(true);
        match self.chains.header_filter(self.worker, self.x).await {
            Flow::Go => {}
            Flow::Reply(reply) => return Ok(Received::Instead(reply)),
            Flow::Fault(fault) => return Err(fault),
        }
        self.state.answered.set(true);
        if self.worker.settings.explain.is_some() {
            live::add_to_head(self.worker, self.x, self.chains);
        }
        if let Err(failed) = self.to.switch(self.x.response()).await {
            return Ok(Received::Broken(client_failed(failed)));
        }
        Ok(Received::Switched(self.from.take_rest()))
    }
}

/// Until when the upstream may take to answer, after a time-out: its time begins with the last
/// byte of the request. While the body is on its way, the upload has time-outs of its own.
#[cold]
fn more_time(worker: &Worker, state: &UploadState, read_timeout: Duration) -> Result<u64, Fault> {
    let clock = &worker.clock;
    let until = match (state.done_at.get(), state.failed.get()) {
        (Some(at), _) => clock.after(read_timeout) - (clock.coarse_ms() - at),
        (None, None) => clock.after(read_timeout),
        (None, Some(_)) => 0,
    };
    if clock.is_over(until) { Err(Fault::upstream(FaultKind::ReadTimeout)) } else { Ok(until) }
}

/// Counts bytes of the body that go to the client.
#[inline]
fn count(x: &mut Exchange<'_>, bytes: usize) {
    let timing = &mut x.engine_mut().timing;
    timing.body_sent += bytes as u64;
    timing.sent += bytes as u64;
}

fn client_failed(failed: Failed) -> Fault {
    Fault::client(match failed {
        Failed::Closed | Failed::Broken => FaultKind::ClientGone,
        Failed::Timeout => FaultKind::ClientSlow,
    })
}
