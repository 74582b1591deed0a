//! Bodies: those of requests in pieces, and those of responses.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sdk::chain::LocalFuture;
use sdk::{Chunk, Exchange, Reply, RequestFilter, Step};

use super::message::{self, Answer, Part, Side, Verdict};
use super::mode::BodyMode;
use super::session::{Failure, Held, INVALID};
use super::{Stream, all, changes, status_of};

/// Sends the pieces of a request's body to the server.
pub(super) struct Upload(Rc<Stream>);

impl Upload {
    pub fn of(stream: Rc<Stream>) -> Upload {
        Upload(stream)
    }

    async fn piece(&self, chunk: &mut Chunk) -> Result<Step, Failure> {
        let message = message::of_body(Part::RequestBody, &chunk.data, chunk.last);
        let Some(answer) = self.0.ask(Part::RequestBody, message).await? else { return Ok(Step::Next) };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        match answer.verdict {
            Some(Verdict::Continue(_, done)) => {
                if let Some(body) = done.body {
                    chunk.data.clear();
                    chunk.data.extend_from_slice(body);
                }
                if chunk.last {
                    self.0.done(Side::Request);
                }
                Ok(Step::Next)
            }
            // The request is being sent, so only the status can be chosen.
            Some(Verdict::Immediate(answer)) => {
                let status = status_of(answer.status).unwrap_or(self.0.status_on_error);
                self.0.end_with(status);
                Ok(Step::Reply(Reply::status(status)))
            }
            None => Err(INVALID),
        }
    }
}

impl RequestFilter for Upload {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        match self.0.refused.get() {
            // The server has not judged it.
            Some(status) => Step::Reply(Reply::status(status)),
            None if self.0.session.is_open() && (chunk.last || !chunk.data.is_empty()) => Step::Wait,
            None => Step::Next,
        }
    }

    fn wait<'a>(&'a mut self, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(
            async move { self.piece(chunk).await.unwrap_or_else(|failure| self.0.failure_step(failure)) },
        )
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.done(Side::Request);
    }
}

/// The body of a response, as far as the server is concerned.
#[derive(Default)]
pub(super) struct Response {
    /// The body that takes its place; taken when it is passed on.
    replacement: RefCell<Held>,
    is_replaced: Cell<bool>,
    /// The server sees its body, as there is one.
    pub has_body: Cell<bool>,
    /// The buffered part.
    buffered: RefCell<Held>,
}

impl Response {
    pub fn replace(&self, body: Held) {
        self.is_replaced.set(true);
        self.replacement.replace(body);
    }
}

impl Stream {
    pub(super) fn filters_response(&self) -> bool {
        self.response.is_replaced.get() || self.response_mode() != BodyMode::None
    }

    pub(super) fn holds_response(&self) -> bool {
        self.response_mode() == BodyMode::Buffered
    }

    /// How the server sees the body of this response.
    fn response_mode(&self) -> BodyMode {
        if self.session.is_open() && self.response.has_body.get() {
            self.session.mode.get().response_body
        } else {
            BodyMode::None
        }
    }

    /// Takes a piece of the response's body: it is replaced, buffered, or sent to the server.
    pub(super) fn take_piece(&self, chunk: &mut Chunk, most: usize) -> Step {
        if self.response.is_replaced.get() {
            chunk.data.clear();
            chunk.data.append(&mut self.response.replacement.take().bytes);
            return Step::Next;
        }
        if !self.session.is_open() {
            let Held { bytes: mut whole, .. } = self.response.buffered.take();
            if !whole.is_empty() {
                whole.append(&mut chunk.data);
                chunk.data = whole;
            }
            return Step::Next;
        }
        let Held { bytes, held } = &mut *self.response.buffered.borrow_mut();
        match self.response_mode() {
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
        // It counts until the proxy counts the piece.
        let Held { bytes, held: _held } = self.response.buffered.take();
        if mode.response_body == BodyMode::Buffered {
            chunk.data = bytes;
        }
        let sends_trailers = chunk.last && mode.response_trailers && !x.response_trailers().is_empty();
        let message = message::of_body(Part::ResponseBody, &chunk.data, chunk.last && !sends_trailers);
        let Some(answer) = self.ask(Part::ResponseBody, message).await? else {
            return Ok(Step::Next);
        };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        let done = match self.verdict(x, answer.verdict)? {
            Ok(done) => done,
            Err(reply) => return Ok(reply),
        };
        if let Some(body) = done.body {
            chunk.data.clear();
            chunk.data.extend_from_slice(body);
        }
        if !sends_trailers || done.replaces {
            if chunk.last {
                self.done(Side::Response);
            }
            return Ok(Step::Next);
        }
        let message = message::of_headers(Part::ResponseTrailers, &all(x.response_trailers()), false);
        let Some(answer) = self.ask(Part::ResponseTrailers, message).await? else {
            return Ok(Step::Next);
        };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        match self.verdict(x, answer.verdict)? {
            Ok(done) => changes::of_response_trailers(x, &done.headers).map_err(|_| INVALID)?,
            Err(reply) => return Ok(reply),
        }
        self.done(Side::Response);
        Ok(Step::Next)
    }
}

const RESPONSE_TOO_LARGE: &str = "the response body exceeds max_body_bytes";
