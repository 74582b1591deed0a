//! hot path
//!
//! The request's body: into memory for a stage that asked, or on to the upstream.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use sdk::chain::LocalFuture;
use sdk::engine::Withheld;
use sdk::exchange::{Body, Chunk};
use sdk::{Exchange, RequestFilter, Step};
use wire::h1::hop::is_of_identity;
use wire::{Fields, Framing};

use super::fault::{BodyLimit, Fault, FaultKind};
use super::phases;
use crate::down::{Downstream, RequestBody};
use crate::io::{End, Failed};
use crate::rt;
use crate::up;
use crate::worker::Worker;

/// Reads the request's body into the exchange, up to `limit` bytes. The bytes that were read of a
/// longer one stay there as its prefix.
pub(crate) async fn buffer(
    worker: &Worker,
    down: &mut Downstream<'_>,
    x: &mut Exchange<'_>,
    limit: usize,
) -> Result<(), Fault> {
    let spared = std::mem::take(&mut x.engine_mut().body_optional);
    match x.body_state() {
        Body::Streaming => {}
        Body::TooLarge if x.engine().messages.body.len() <= limit => {}
        Body::TooLarge => {
            // More than that is buffered already. The limit is noted, so that no plugin asks for ever.
            x.engine_mut().body_asked = x.body_asked().max(limit);
            return Ok(());
        }
        _ => return Ok(()),
    }
    x.engine_mut().body_asked = x.body_asked().max(limit);
    if let Framing::Length(length) = x.request().framing
        && length > limit as u64
        && !x.engine().body_prefix_wanted
    {
        x.engine_mut().body_state = Body::TooLarge;
        return Ok(());
    }
    let (mut body, mut response) = down.split(worker);
    body.limit(worker, x);
    response.go_on().await?;
    loop {
        if !body.take(false)? {
            body.read().await?;
            continue;
        }
        let held = hold(worker, x, body.piece(), limit);
        if spared && held.is_err() {
            // The piece stays where it is, and goes out behind what is held.
            let engine = x.engine_mut();
            (engine.body_state, engine.body_over_budget) = (Body::TooLarge, true);
            return Ok(());
        }
        // Held or not, it is counted as taken: left here, it would be the next request.
        body.used();
        held?;
        // A longer one is too large, also where its end is here already: it is not for the cut of
        // the packets to say which.
        if x.engine().messages.body.len() > limit {
            x.engine_mut().body_state = Body::TooLarge;
            return Ok(());
        }
        if body.is_complete() {
            let messages = &mut *x.engine_mut().messages;
            if body.trailers().is_some() {
                let withheld = messages.withheld();
                add_allowed_trailers(&mut messages.request_trailers, body.trailers(), &withheld);
            }
            x.engine_mut().body_state = Body::Whole;
            body.release();
            return Ok(());
        }
    }
}

/// Buffers more of the body and counts it against the worker's budget. Announced bytes need not arrive, so
/// memory is reserved only as they do.
fn hold(worker: &Worker, x: &mut Exchange<'_>, bytes: &[u8], limit: usize) -> Result<(), Fault> {
    let messages = &mut *x.engine_mut().messages;
    // The body is not shared before it goes out.
    let body = Rc::make_mut(&mut messages.body);
    let most = match messages.request.framing {
        Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX).min(limit),
        _ => limit,
    };
    if messages.body_held.reserve(&worker.budget, body, bytes.len(), most).is_err() {
        return Err(match body.len() + bytes.len() > worker.settings.budgets.held_bodies {
            true => Fault::client(FaultKind::BodyTooLarge(BodyLimit::Held)),
            false => Fault::gateway(FaultKind::HeldTooMuch),
        });
    }
    body.extend_from_slice(bytes);
    Ok(())
}

/// How far sending a request's body has come; looked at by the receiving side.
#[derive(Debug, Default)]
pub(crate) struct UploadState {
    /// When the last byte of the request was written, in the clock's coarse milliseconds.
    pub(crate) done_at: Cell<Option<u64>>,
    /// Bytes were taken from the client that are not in memory any more, or the request was answered:
    /// it is not to be sent again.
    pub(crate) lost: Cell<bool>,
    /// Some bytes of the request may have reached the server.
    pub(crate) sent: Cell<bool>,
    /// Writing to the upstream failed; its answer may still be there to read.
    pub(crate) failed: Cell<Option<Failed>>,
    /// The response has begun, so a half-closed client is known to be served.
    pub(crate) answered: Cell<bool>,
    /// Since when, in the clock's coarse milliseconds, filters of the response have had a piece of its
    /// body, which they may wait with.
    pub(crate) filtering: Cell<Option<u64>>,
}

/// The buffered part of a request's body, and its trailers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// The bytes, if any were buffered.
    pub(crate) bytes: Option<Rc<Vec<u8>>>,
    /// That is all of it.
    pub(crate) whole: bool,
    /// Trailers that a plugin has set, which go out behind it beside those that come.
    pub(crate) trailers: Option<Fields>,
    /// Names that none of those that come may have.
    pub(crate) withheld: Withheld,
}

/// Sends a request's body, from the client's end to the upstream's.
pub(crate) struct Upload<'a, 'b> {
    pub(crate) worker: &'a Worker,
    pub(crate) body: &'a mut RequestBody<'b>,
    pub(crate) state: &'a UploadState,
    /// Both ends speak in chunks, and no plugin looks at the body between them.
    pub(crate) framed: bool,
    pub(crate) held: &'a Held,
    /// The plugins' filters that the body passes through.
    pub(crate) filters: &'a mut [Box<dyn RequestFilter>],
}

impl Upload<'_, '_> {
    /// Sends the request, then watches whether the client goes away. Ends only with a fault. The
    /// upstream may answer at any time, so that is listened for meanwhile.
    pub(crate) async fn run(&mut self, to: &mut up::Sender<'_>) -> Fault {
        let begun = if self.filters.is_empty() { self.begin(to).await } else { self.filtered(to).await };
        match begun {
            Ok(true) => {}
            Ok(false) => {
                if let Err(fault) = self.stream(to).await {
                    return fault;
                }
            }
            Err(fault) => return fault,
        }
        if self.state.failed.get().is_some() {
            // Only the upstream's answer, if there is one, can end this exchange now.
            return pending().await;
        }
        self.state.done_at.set(Some(self.worker.clock.coarse_ms()));
        watch(self.worker, self.body, self.state).await
    }

    /// Sends what is at hand; true if that is all. It stays at hand until something else follows, so
    /// the request can be sent again.
    #[inline]
    async fn begin(&mut self, to: &mut up::Sender<'_>) -> Result<bool, Fault> {
        self.state.sent.set(true);
        let mut all = self.held.whole;
        let written = if let Some(held) = &self.held.bytes {
            to.write(held, self.held.whole, self.held.trailers.as_ref()).await
        } else if self.body.take(self.framed)? {
            all = self.body.is_complete();
            send(to, self.body, self.framed, self.held).await
        } else {
            to.flush().await
        };
        match written {
            Ok(()) => {}
            Err(Failed::Closed) => {
                // A connection that took no byte has not carried this request.
                self.state.sent.set(false);
                return Err(Fault::upstream(FaultKind::ClosedEarly));
            }
            Err(failed) => {
                self.failed(failed)?;
                all = true;
            }
        }
        if !all && self.held.bytes.is_none() && !self.body.piece().is_empty() {
            // There is room for more of the body now.
            self.body.used();
            self.state.lost.set(true);
        }
        Ok(all)
    }

    /// Sends all of the body through the filters. Nothing of it can be sent a second time. Boxed, as it
    /// is rare.
    fn filtered<'s>(&'s mut self, to: &'s mut up::Sender<'_>) -> LocalFuture<'s, Result<bool, Fault>> {
        Box::pin(async move {
            self.state.sent.set(true);
            self.state.lost.set(true);
            let mut budgeted = sdk::budget::Reservation::default();
            let mut chunk = Chunk::default();
            // The buffered prefix of a longer body goes first.
            let mut beginning = self.held.bytes.clone();
            loop {
                chunk.data.clear();
                if let Some(bytes) = beginning.take() {
                    chunk.data.extend_from_slice(&bytes);
                    chunk.last = false;
                } else if self.body.take(false)? {
                    chunk.data.extend_from_slice(self.body.piece());
                    self.body.used();
                    chunk.last = self.body.is_complete();
                } else {
                    // The head need not wait for a body that does not come yet.
                    if let Err(failed) = to.flush().await {
                        return self.failed(failed).map(|()| true);
                    }
                    self.body.read().await?;
                    continue;
                }
                let filtering = filter(self.worker, self.filters, &mut chunk, &mut budgeted);
                unless_gone(self.worker, self.body, self.state, filtering).await?;
                if !chunk.last && chunk.data.is_empty() {
                    continue;
                }
                let trailers = if chunk.last { trailers(self.body, self.held) } else { None };
                if let Err(failed) = to.write(&chunk.data, chunk.last, trailers.as_ref()).await {
                    return self.failed(failed).map(|()| true);
                }
                if chunk.last {
                    return Ok(true);
                }
            }
        })
    }

    /// The upstream takes no more. It may have answered before, and closed since it wanted no more
    /// than that; one that neither reads nor answers has failed.
    fn failed(&self, failed: Failed) -> Result<(), Fault> {
        if failed == Failed::Timeout && !self.state.answered.get() {
            return Err(Fault::upstream(FaultKind::SendTimeout));
        }
        self.state.failed.set(Some(failed));
        Ok(())
    }

    async fn stream(&mut self, to: &mut up::Sender<'_>) -> Result<(), Fault> {
        let mut left = rt::TURN;
        loop {
            if !self.body.take(self.framed)? {
                self.body.read().await?;
                continue;
            }
            // From here on it is not at hand any more, also where this write is cut off.
            self.state.lost.set(true);
            let piece = self.body.piece().len() as u64;
            let written = send(to, self.body, self.framed, self.held).await;
            self.body.used();
            if let Err(failed) = written {
                return self.failed(failed);
            }
            if self.body.is_complete() {
                return Ok(());
            }
            left = left.saturating_sub(piece);
            if left == 0 {
                left = rt::TURN;
                rt::events().await;
            }
        }
    }
}

/// Ends when the client is certainly gone, or has closed its sending side and nothing of a
/// response has come for a while.
async fn watch(worker: &Worker, body: &mut RequestBody<'_>, state: &UploadState) -> Fault {
    if body.end(worker).await == End::Gone {
        return Fault::client(FaultKind::ClientGone);
    }
    let (clock, timeout) = (&worker.clock, worker.settings.timeouts.half_close);
    loop {
        let _ = body.waiter().until(clock.after(timeout), |_| Poll::<()>::Pending).await;
        // One to which the response is on its way is known to be served, as long as it is.
        let stands_still = match state.filtering.get() {
            Some(since) => u128::from(clock.coarse_ms() - since) >= timeout.as_millis(),
            None => !state.answered.get(),
        };
        if stands_still {
            return Fault::client(FaultKind::ClientGone);
        }
    }
}

/// Waits for filters, and gives up when the client is gone.
async fn unless_gone(
    worker: &Worker,
    body: &mut RequestBody<'_>,
    state: &UploadState,
    filtering: impl Future<Output = Result<(), Fault>>,
) -> Result<(), Fault> {
    let mut filtering = pin!(filtering);
    let mut gone = pin!(watch(worker, body, state));
    poll_fn(|cx| match filtering.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(done),
        Poll::Pending => gone.as_mut().poll(cx).map(Err),
    })
    .await
}

/// Passes a piece through filters. Their output counts against the worker's budget.
async fn filter(
    worker: &Worker,
    filters: &mut [Box<dyn RequestFilter>],
    chunk: &mut Chunk,
    budgeted: &mut sdk::budget::Reservation,
) -> Result<(), Fault> {
    let last = chunk.last;
    for filter in filters {
        let mut step = phases::guarded(worker, || filter.filter(chunk))?;
        if matches!(step, Step::Wait) {
            step = phases::in_time(worker, filter.wait(chunk)).await?;
        }
        match step {
            Step::Next => {}
            Step::Refuse(why) => return Err(Fault::client(FaultKind::Undecidable(why))),
            Step::Reply(reply) => return Err(Fault::client(FaultKind::BodyRejected(reply.status))),
            Step::Wait | Step::Body(_) => {
                return Err(Fault::gateway(FaultKind::BrokenStage));
            }
        }
        // Where a body ends is not a filter's to say.
        chunk.last = last;
        if chunk.refused || budgeted.resize(&worker.budget, chunk.data.capacity()).is_err() {
            return Err(Fault::gateway(FaultKind::HeldTooMuch));
        }
    }
    Ok(())
}

/// Lets a body that is in memory go through filters, as one piece.
pub(crate) fn filter_held<'a>(
    worker: &'a Worker,
    x: &'a mut Exchange<'_>,
    filters: &'a mut [Box<dyn RequestFilter>],
) -> LocalFuture<'a, Result<(), Fault>> {
    Box::pin(async move {
        let mut chunk = Chunk { data: x.body().to_vec(), last: true, refused: false };
        let mut budgeted = sdk::budget::Reservation::default();
        budgeted
            .resize(&worker.budget, chunk.data.capacity())
            .map_err(|_| Fault::gateway(FaultKind::HeldTooMuch))?;
        filter(worker, filters, &mut chunk, &mut budgeted).await?;
        drop(budgeted);
        // It has its trailers still, as only its bytes were changed.
        let trailers = std::mem::take(&mut x.engine_mut().messages.request_trailers);
        x.set_body(chunk.data).map_err(|_| Fault::gateway(FaultKind::HeldTooMuch))?;
        x.engine_mut().messages.request_trailers = trailers;
        Ok(())
    })
}

/// Sends the piece that was taken, and behind the last one the trailers.
#[inline]
async fn send(
    to: &mut up::Sender<'_>,
    body: &RequestBody<'_>,
    framed: bool,
    held: &Held,
) -> Result<(), Failed> {
    let last = body.is_complete();
    match (framed, last) {
        (true, true) if body.trailers().is_some() => {
            // The piece ends before the trailers and the empty line behind them.
            let mut end = body.piece().to_vec();
            if let Some(trailers) = trailers(body, held) {
                trailers.write_to(&mut end);
            }
            end.extend_from_slice(b"\r\n");
            to.relay(&end).await
        }
        (true, _) => to.relay(body.piece()).await,
        (false, false) => to.write(body.piece(), false, None).await,
        (false, true) => to.write(body.piece(), true, trailers(body, held).as_ref()).await,
    }
}

/// Returns the trailers behind a request's body. Allocates only if there are any.
#[inline]
fn trailers(body: &RequestBody<'_>, held: &Held) -> Option<Fields> {
    if body.trailers().is_none() && held.trailers.is_none() {
        return None;
    }
    let mut trailers = held.trailers.clone().unwrap_or_default();
    add_allowed_trailers(&mut trailers, body.trailers(), &held.withheld);
    Some(trailers).filter(|trailers| !trailers.is_empty())
}

/// Adds the client's trailers to those that a plugin has set, which go before them. Some servers take trailers
/// for headers, so none is forwarded that would identify the client, or that has the name of a field which the
/// head has or a plugin has taken away.
fn add_allowed_trailers(trailers: &mut Fields, came: Option<&Fields>, withheld: &Withheld) {
    let set = trailers.len();
    for (name, value, id) in came.into_iter().flat_map(Fields::iter) {
        let is_set = || trailers.iter().take(set).any(|(own, _, _)| own.eq_ignore_ascii_case(name));
        if !is_of_identity(name) && !withheld.has(name) && !is_set() {
            trailers.append_checked(id, name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_say_nothing_that_is_not_the_client_s_to_say() {
        let fields = |names: &[&str]| {
            let mut fields = Fields::new();
            names.iter().for_each(|name| fields.append(name.as_bytes(), b"x").unwrap());
            fields
        };
        let came = fields(&[
            "X-Sum",
            "x-consumer-group-id",
            "X_Consumer_Any",
            "X-Credential-Any",
            "X-User",
            "x_user",
            "X-Users",
            "X-Set",
            "x_token",
            "X-Sum",
        ]);
        let mut trailers = fields(&["x-set", "X-Consumer-Own"]);
        let withheld = Withheld {
            edited: fields(&["x-uSER", "x-other"]).into(),
            head: fields(&["Host", "X-Token"]).into(),
        };
        add_allowed_trailers(&mut trailers, Some(&came), &withheld);
        let names: Vec<_> = trailers.iter().map(|(name, _, _)| String::from_utf8_lossy(name)).collect();
        assert_eq!(names, ["x-set", "X-Consumer-Own", "X-Sum", "X-Users", "X-Sum"]);
    }
}
