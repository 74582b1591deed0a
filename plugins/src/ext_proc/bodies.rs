//! Bodies: those of requests in pieces, and those of responses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sdk::budget::Reservation;
use sdk::chain::LocalFuture;
use sdk::{Chunk, Exchange, Reply, RequestFilter, Step};

use super::message::{self, Answer, Part, Verdict};
use super::mode::BodyMode;
use super::session::{Failure, INVALID, State};
use super::{Stream, all, changes};

/// Sends the pieces of a request's body to the server.
pub(super) struct Upload(Rc<Stream>);

impl Upload {
    pub fn of(stream: Rc<Stream>) -> Upload {
        Upload(stream)
    }

    async fn piece(&self, chunk: &mut Chunk) -> Result<Step, Failure> {
        let session = &self.0.session;
        let message = message::of_body(Part::RequestBody, &chunk.data, chunk.last);
        let Some(answer) = session.ask(Part::RequestBody, &message).await? else { return Ok(Step::Next) };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        match answer.verdict {
            Some(Verdict::Continue(_, done)) => {
                if let Some(body) = done.body {
                    chunk.data.clear();
                    chunk.data.extend_from_slice(body);
                }
                Ok(Step::Next)
            }
            // The request is on its way: only the status is left.
            Some(Verdict::Immediate(answer)) => {
                session.state.set(State::Over);
                let status = u16::try_from(answer.status).ok().filter(|status| (200..=599).contains(status));
                Ok(Step::Reply(Reply::status(status.ok_or(INVALID)?)))
            }
            None => Err(INVALID),
        }
    }
}

impl RequestFilter for Upload {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        match self.0.session.is_open() && (chunk.last || !chunk.data.is_empty()) {
            true => Step::Wait,
            false => Step::Next,
        }
    }

    fn wait<'a>(&'a mut self, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            self.piece(chunk).await.unwrap_or_else(|failure| {
                self.0.session.state.set(State::Over);
                match failure {
                    Failure::NoMemory => crate::no_memory(),
                    _ if self.0.allow_degradation => Step::Next,
                    _ => Step::Reply(Reply::status(self.0.status_on_error)),
                }
            })
        })
    }
}

/// The body of a response, as far as the server is concerned.
#[derive(Default)]
pub(super) struct Response {
    /// The body that takes its place; taken when it is passed on.
    replacement: RefCell<Option<Vec<u8>>>,
    is_replaced: Cell<bool>,
    /// The buffered part.
    buffered: RefCell<(Vec<u8>, Reservation)>,
}

impl Response {
    pub fn replace(&self, body: Option<&[u8]>) {
        if let Some(body) = body {
            self.is_replaced.set(true);
            *self.replacement.borrow_mut() = Some(body.to_vec());
        }
    }
}

impl Stream {
    pub(super) fn filters_response(&self) -> bool {
        self.response.is_replaced.get()
            || self.session.is_open() && self.session.mode.get().response_body != BodyMode::None
    }

    pub(super) fn holds_response(&self) -> bool {
        self.session.is_open() && self.session.mode.get().response_body == BodyMode::Buffered
    }

    /// Takes a piece of the response's body: it is replaced, buffered, or sent to the server.
    pub(super) fn take_piece(&self, chunk: &mut Chunk, most: usize) -> Step {
        if self.response.is_replaced.get() {
            chunk.data.clear();
            chunk.data.extend(self.response.replacement.take().unwrap_or_default());
            return Step::Next;
        }
        let (bytes, held) = &mut *self.response.buffered.borrow_mut();
        if !self.session.is_open() {
            if !bytes.is_empty() {
                let mut whole = std::mem::take(bytes);
                whole.append(&mut chunk.data);
                chunk.data = whole;
            }
            return Step::Next;
        }
        match self.session.mode.get().response_body {
            BodyMode::None => Step::Next,
            BodyMode::Streamed if chunk.last || !chunk.data.is_empty() => Step::Wait,
            BodyMode::Streamed => Step::Next,
            BodyMode::Buffered => {
                if bytes.len() + chunk.data.len() > most {
                    return Step::Reply(Reply::status(502).because(RESPONSE_TOO_LARGE));
                }
                if held.reserve(self.session.world.budget(), bytes, chunk.data.len(), most).is_err() {
                    chunk.refused = true;
                    return Step::Next;
                }
                bytes.append(&mut chunk.data);
                if chunk.last { Step::Wait } else { Step::Next }
            }
        }
    }

    /// Sends a piece of the response's body, or all of a buffered one, and behind the last one the trailers.
    pub(super) async fn response_body(
        &self,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
    ) -> Result<Step, Failure> {
        let mode = self.session.mode.get();
        let is_whole = mode.response_body == BodyMode::Buffered;
        if is_whole {
            chunk.data = std::mem::take(&mut self.response.buffered.borrow_mut().0);
        }
        let sends_trailers = chunk.last && mode.response_trailers && !x.response_trailers().is_empty();
        let message = message::of_body(Part::ResponseBody, &chunk.data, chunk.last && !sends_trailers);
        let Some(answer) = self.session.ask(Part::ResponseBody, &message).await? else {
            return Ok(Step::Next);
        };
        drop(message);
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        let done = match self.verdict(answer.verdict)? {
            Ok(done) => done,
            Err(reply) => return Ok(reply),
        };
        if let Some(body) = done.body {
            chunk.data.clear();
            chunk.data.extend_from_slice(body);
        }
        if !sends_trailers || done.replaces {
            return Ok(Step::Next);
        }
        let message = message::of_headers(Part::ResponseTrailers, &all(x.response_trailers()), false);
        let Some(answer) = self.session.ask(Part::ResponseTrailers, &message).await? else {
            return Ok(Step::Next);
        };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        match self.verdict(answer.verdict)? {
            Ok(done) => changes::of_response_trailers(x, &done.headers).map_err(|_| INVALID)?,
            Err(reply) => return Ok(reply),
        }
        Ok(Step::Next)
    }
}

const RESPONSE_TOO_LARGE: &str = "the response body exceeds max_body_bytes";
