//! ext-proc: a server of `envoy.service.ext_proc.v3.ExternalProcessor` reads and changes requests and responses.
//!
//! Native: APISIX has no such plugin. Each exchange has a stream of gRPC, on which messages are those of Envoy's filter
//! `ext_proc`, so servers that are made for it can be used unchanged.

mod bodies;
mod changes;
mod message;
mod mode;
mod session;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::Source;
use sdk::{Build, Chunk, Exchange, Fields, Framing, Method, Name, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use message::{Answer, Continue, Headers, Immediate, Part, Side, Verdict};
use mode::{BodyMode, Mode};
use session::{Failure, Held, INVALID, Message, Session};

use crate::envoy::{Server, Settings};
use crate::protobuf::Writer;

/// The method that servers offer.
const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// The configured plugin.
pub struct ExtProc {
    server: Server,
    config: Config,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(flatten)]
    server: Settings,
    #[serde(default)]
    processing_mode: Mode,
    allow_mode_override: bool,
    max_body_bytes: usize,
    max_message_bytes: usize,
}

/// The streams of an exchange, by the address of the plugin instance.
#[derive(Default)]
struct Streams(Vec<(usize, Rc<Stream>)>);

/// The stream of an instance.
struct Stream {
    session: Session,
    allow_degradation: bool,
    status_on_error: u16,
    /// The next part of the request.
    request: Cell<Stage>,
    /// The body that takes the place of the message's.
    replacement: RefCell<Held>,
    response: bodies::Response,
    /// The directions of which the server gets nothing more.
    done: [Cell<bool>; 2],
    /// The status of the exchange, once an immediate response or a failure has ended it: nothing that the server has not
    /// judged passes then.
    refused: Cell<Option<u16>>,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Headers,
    /// Its body is buffered for the server.
    Body,
    /// Its body is buffered, to be replaced.
    Replaced,
    /// Its body is sent in pieces.
    Pieces,
    Done,
}

impl Plugin for ExtProc {
    const NAME: &'static str = "ext-proc";
    const PRIORITY: i32 = 1999;
    const PHASES: Phases =
        Phases::ACCESS.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER).with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        let header = |default| json!({"type": "string", "enum": ["SEND", "SKIP"], "default": default});
        let body = json!({"type": "string", "enum": ["NONE", "STREAMED", "BUFFERED"], "default": "NONE"});
        let own = json!({
                "processing_mode": {
                    "type": "object",
                    "properties": {
                        "request_header_mode": header("SEND"),
                        "response_header_mode": header("SEND"),
                        "request_body_mode": body,
                        "response_body_mode": body,
                        "request_trailer_mode": header("SKIP"),
                        "response_trailer_mode": header("SKIP"),
                    },
                    "additionalProperties": false,
                },
                "allow_mode_override": {"type": "boolean", "default": false},
                "max_body_bytes": {"type": "integer", "minimum": 1, "maximum": 67_108_864, "default": 1_048_576},
                "max_message_bytes": {"type": "integer", "minimum": 1, "maximum": 134_217_728, "default": 4_194_304},
        });
        crate::envoy::schema(500, own)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ExtProc, Invalid> {
        let server = Server::build(&config.server, PROCESS, cx)?;
        let mode = config.processing_mode;
        let trailers = [
            (
                "request_trailer_mode",
                mode.request_trailers,
                mode.request_body == BodyMode::Buffered,
                "BUFFERED",
            ),
            (
                "response_trailer_mode",
                mode.response_trailers,
                mode.response_body != BodyMode::None,
                "STREAMED or BUFFERED",
            ),
        ];
        for (name, sends, is_possible, needed) in trailers {
            if sends && !is_possible {
                let body = name.replace("trailer", "body");
                return Err(Invalid::new("trailers can be sent behind a body only")
                    .within(name)
                    .under("/processing_mode")
                    .expected(format!("`{body}` {needed}")));
            }
        }
        Ok(ExtProc { server, config })
    }

    fn phases(&self) -> Phases {
        if self.config.processing_mode.sees_responses() || self.config.allow_mode_override {
            ExtProc::PHASES
        } else {
            Phases::ACCESS.with(Phases::LOG)
        }
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let stream = match self.stream(x) {
            Some(stream) => stream,
            None => match self.open(x) {
                Some(stream) => stream,
                None => return Step::Reply(Reply::status(self.config.server.status_on_error)),
            },
        };
        match stream.request.get() {
            Stage::Replaced => match crate::buffer_body(x, self.config.max_body_bytes) {
                Step::Wait => {
                    stream.request.set(Stage::Done);
                    replace(x, stream.replacement.take())
                }
                step => step,
            },
            _ if !stream.session.is_open() => Step::Next,
            Stage::Headers => Step::Wait,
            Stage::Body => crate::buffer_body(x, self.config.max_body_bytes),
            Stage::Pieces | Stage::Done => Step::Next,
        }
    }

    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        let Some(stream) = self.stream(x) else { return Step::Next };
        match stream.refused.get() {
            // The request was being sent, so only the status could be chosen.
            Some(status) if x.source() == Source::Upstream => Step::Reply(Reply::status(status)),
            None if stream.session.is_open() && stream.session.mode.get().sees_responses() => Step::Wait,
            _ => Step::Next,
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.stream(x).is_some_and(|stream| stream.filters_response())
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.stream(x).is_some_and(|stream| stream.holds_response())
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let Some(stream) = self.stream(x) else { return Step::Next };
        stream.take_piece(chunk, self.config.max_body_bytes)
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        match self.stream(x) {
            Some(stream) => match stream.response_body(x, chunk).await {
                Ok(step) => step,
                Err(failure) => stream.report_failure(x, failure),
            },
            None => Step::Next,
        }
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(stream) = self.stream(x) else { return Step::Next };
        let done = match phase {
            Phase::HeaderFilter => stream.response_headers(x).await,
            _ if stream.request.get() == Stage::Headers => {
                let done = self.request_headers(&stream, x).await;
                if matches!(stream.request.get(), Stage::Done | Stage::Replaced) {
                    stream.done(Side::Request);
                }
                done
            }
            _ => stream.request_body(x).await,
        };
        done.unwrap_or_else(|failure| stream.report_failure(x, failure))
    }

    fn log(&self, x: &mut Exchange<'_>) {
        // The stream ends with the exchange.
        let id = self.id();
        if let Some(streams) = x.note_mut::<Streams>() {
            streams.0.retain(|(own, stream)| {
                if *own == id {
                    stream.session.finish();
                }
                *own != id
            });
        }
    }
}

impl ExtProc {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn stream(&self, x: &Exchange<'_>) -> Option<Rc<Stream>> {
        let streams = x.note::<Streams>()?;
        streams.0.iter().find(|(id, _)| *id == self.id()).map(|(_, stream)| stream.clone())
    }

    /// Opens the stream; it connects when there is something to send.
    fn open(&self, x: &mut Exchange<'_>) -> Option<Rc<Stream>> {
        let world = x.world().owned()?;
        let config = &self.config;
        let call = world.call(self.server.request(x));
        let (mode, most) = (config.processing_mode, config.max_message_bytes);
        let session = Session::new(world, call, mode, self.server.timeout, most);
        Some(self.keep(session, x))
    }

    /// Keeps the stream for the exchange.
    fn keep(&self, session: Session, x: &mut Exchange<'_>) -> Rc<Stream> {
        let stream = Rc::new(Stream {
            session,
            allow_degradation: self.config.server.allow_degradation,
            status_on_error: self.config.server.status_on_error,
            request: Cell::new(Stage::Headers),
            replacement: RefCell::default(),
            response: bodies::Response::default(),
            done: Default::default(),
            refused: Cell::new(None),
        });
        let id = self.id();
        match x.note_mut::<Streams>() {
            Some(streams) => streams.0.push((id, stream.clone())),
            None => x.set_note(Streams(vec![(id, stream.clone())])),
        }
        stream
    }

    async fn request_headers(&self, stream: &Rc<Stream>, x: &mut Exchange<'_>) -> Result<Step, Failure> {
        let has_body = x.request().framing != Framing::None;
        let session = &stream.session;
        stream.request.set(Stage::Done);
        if session.mode.get().request_headers {
            let message = message::of_headers(Part::RequestHeaders, &request_headers(x), !has_body);
            let Some(answer) = stream.ask(Part::RequestHeaders, message).await? else {
                return Ok(Step::Next);
            };
            let answer = Answer::read(&answer).map_err(|_| INVALID)?;
            let mode = if self.config.allow_mode_override { answer.mode() } else { Ok(None) };
            let done = match stream.verdict(x, answer.verdict)? {
                Ok(done) => done,
                Err(reply) => return Ok(reply),
            };
            session.mode.set(mode.map_err(|_| INVALID)?.unwrap_or(session.mode.get()));
            changes::of_request(x, &done.headers).map_err(|_| INVALID)?;
            if done.replaces {
                let mode = session.mode.get();
                session.mode.set(Mode { request_body: BodyMode::None, request_trailers: false, ..mode });
                let Some(body) = done.body else { return Ok(Step::Next) };
                let body = Held::copy_of(&*session.world, body)?;
                if !has_body {
                    return Ok(replace(x, body));
                }
                stream.replacement.replace(body);
                stream.request.set(Stage::Replaced);
                return Ok(Step::Body(self.config.max_body_bytes));
            }
        }
        match session.mode.get().request_body {
            BodyMode::None => {}
            _ if !has_body => {}
            BodyMode::Buffered => {
                stream.request.set(Stage::Body);
                return Ok(match crate::buffer_body(x, self.config.max_body_bytes) {
                    // It is called again.
                    Step::Wait => Step::Body(self.config.max_body_bytes),
                    step => step,
                });
            }
            BodyMode::Streamed => {
                stream.request.set(Stage::Pieces);
                x.filter_request_body(Box::new(bodies::Upload::of(stream.clone())));
            }
        }
        Ok(Step::Next)
    }
}

impl Stream {
    /// Returns the step after a failure, and logs failures of the server.
    fn report_failure(&self, x: &Exchange<'_>, failure: Failure) -> Step {
        let step = self.failure_step(failure);
        if matches!(step, Step::Reply(_)) && matches!(failure, Failure::Broken(_) | Failure::Timeout) {
            x.complain(ExtProc::NAME, failure.as_str());
        }
        step
    }

    /// Returns the step after a failure; where failures are ignored, the server is not called again.
    fn failure_step(&self, failure: Failure) -> Step {
        self.session.abort();
        let status = match failure {
            Failure::Refused(status) => status,
            Failure::NoMemory => 503,
            _ if self.allow_degradation => return Step::Next,
            _ => self.status_on_error,
        };
        self.refused.set(Some(status));
        Step::Reply(Reply::status(status).because(failure.as_str()))
    }

    /// Ends the exchange with this status: the rest of it is refused.
    fn end_with(&self, status: u16) {
        self.refused.set(Some(status));
        self.session.finish();
    }

    /// Ends the stream if this direction was the last.
    fn done(&self, side: Side) {
        self.done[side as usize].set(true);
        let [request, response] = &self.done;
        if request.get() && (response.get() || !self.session.mode.get().sees_responses()) {
            self.session.finish();
        }
    }

    /// As [`Session::ask`].
    async fn ask(&self, part: Part, message: Writer) -> Result<Option<Message>, Failure> {
        let answer = self.session.ask(part, message).await?;
        match self.refused.get() {
            // By the other direction.
            Some(status) => Err(Failure::Refused(status)),
            None => Ok(answer),
        }
    }

    /// The changes of an answer, or the step for an immediate response.
    fn verdict<'m>(
        &self,
        x: &mut Exchange<'_>,
        verdict: Option<Verdict<'m>>,
    ) -> Result<Result<Continue<'m>, Step>, Failure> {
        match verdict {
            Some(Verdict::Continue(_, done)) => Ok(Ok(done)),
            Some(Verdict::Immediate(answer)) => {
                let reply = immediate(&answer, self.status_on_error);
                self.end_with(reply.status);
                let mut held = Reservation::default();
                held.resize(x.world().budget(), reply.body.len()).map_err(|_| Failure::NoMemory)?;
                x.hold(held);
                Ok(Err(Step::Reply(reply)))
            }
            None => Err(INVALID),
        }
    }

    /// Sends the buffered body of the request, and its trailers.
    async fn request_body(&self, x: &mut Exchange<'_>) -> Result<Step, Failure> {
        self.request.set(Stage::Done);
        let session = &self.session;
        let sends_trailers = session.mode.get().request_trailers && !x.request_trailers().is_empty();
        let message = message::of_body(Part::RequestBody, x.body(), !sends_trailers);
        let Some(answer) = self.ask(Part::RequestBody, message).await? else { return Ok(Step::Next) };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        let done = match self.verdict(x, answer.verdict)? {
            Ok(done) => done,
            Err(reply) => return Ok(reply),
        };
        changes::of_request(x, &done.headers).map_err(|_| INVALID)?;
        if let Some(body) = done.body {
            let trailers = x.request_trailers().clone();
            x.set_body(body.to_vec()).map_err(|_| Failure::NoMemory)?;
            for (name, value, _) in trailers.iter() {
                // They were valid before.
                let _ = x.set_request_trailer(&String::from_utf8_lossy(name), value);
            }
        }
        if !sends_trailers || done.replaces {
            self.done(Side::Request);
            return Ok(Step::Next);
        }
        let message = message::of_headers(Part::RequestTrailers, &all(x.request_trailers()), false);
        let Some(answer) = self.ask(Part::RequestTrailers, message).await? else { return Ok(Step::Next) };
        let answer = Answer::read(&answer).map_err(|_| INVALID)?;
        match self.verdict(x, answer.verdict)? {
            Ok(done) => changes::of_request_trailers(x, &done.headers).map_err(|_| INVALID)?,
            Err(reply) => return Ok(reply),
        }
        self.done(Side::Request);
        Ok(Step::Next)
    }

    async fn response_headers(&self, x: &mut Exchange<'_>) -> Result<Step, Failure> {
        let session = &self.session;
        let has_body = x.method() != Method::Head
            && !matches!(x.status(), 204 | 205 | 304)
            && !matches!(x.response().framing, Framing::None | Framing::Length(0));
        self.response.has_body.set(has_body);
        if session.mode.get().response_headers {
            let message = message::of_headers(Part::ResponseHeaders, &response_headers(x), !has_body);
            let Some(answer) = self.ask(Part::ResponseHeaders, message).await? else {
                return Ok(Step::Next);
            };
            let answer = Answer::read(&answer).map_err(|_| INVALID)?;
            let done = match self.verdict(x, answer.verdict)? {
                Ok(done) => done,
                Err(reply) => return Ok(reply),
            };
            changes::of_response(x, &done.headers).map_err(|_| INVALID)?;
            if done.replaces {
                let mode = session.mode.get();
                session.mode.set(Mode { response_body: BodyMode::None, response_trailers: false, ..mode });
                if let Some(body) = done.body.filter(|_| has_body) {
                    self.response.replace(Held::copy_of(&*session.world, body)?);
                }
            }
        }
        if self.filters_response() {
            x.remove_response_header("Content-Length");
        }
        if !has_body || session.mode.get().response_body == BodyMode::None {
            self.done(Side::Response);
        }
        Ok(Step::Next)
    }
}

/// The response that the server makes: with `bad_status` if its own is invalid.
fn immediate(answer: &Immediate<'_>, bad_status: u16) -> Reply {
    let mut fields = changes::of_immediate(answer);
    let status = match answer.status {
        0 => 200,
        status => status_of(status).unwrap_or(bad_status),
    };
    if !answer.body.is_empty() && fields.get_named(b"content-type").is_none() {
        // The name and value are valid.
        let _ = fields.set(b"Content-Type", b"text/plain; charset=utf-8");
    }
    let body = Bytes::copy_from_slice(answer.body);
    let reply = Reply { body, fields: Some(Box::new(fields)), ..Reply::status(status) };
    reply.because("the processing server makes the response")
}

/// The status of an immediate response, if it may be one.
fn status_of(status: u64) -> Option<u16> {
    u16::try_from(status).ok().filter(|status| (200..=599).contains(status))
}

/// Replaces the request's body.
fn replace(x: &mut Exchange<'_>, body: Held) -> Step {
    // The exchange counts it itself.
    drop(body.held);
    match x.set_body(body.bytes) {
        Ok(()) => Step::Next,
        Err(_) => crate::no_memory(),
    }
}

fn request_headers(x: &Exchange<'_>) -> Headers {
    let head = x.request();
    // The normal form, by which routes are found and which the upstream gets.
    let mut path = Vec::with_capacity(head.target().len());
    head.write_normal_target(&mut path);
    let mut headers = Headers::default();
    headers.add(b":authority", head.authority());
    headers.add(b":method", head.method_bytes());
    headers.add(b":path", &path);
    let scheme = x.client().scheme().as_bytes();
    headers.add(b":scheme", scheme);
    // Clients cannot forge these.
    let is_forged = |name| matches!(name, Name::XForwardedFor | Name::XForwardedProto);
    add_those(&head.fields, &mut headers, |name| !is_forged(Name::from_lookalike(name)));
    headers.add(b"x-forwarded-for", x.client().ip_text());
    headers.add(b"x-forwarded-proto", scheme);
    headers
}

fn response_headers(x: &Exchange<'_>) -> Headers {
    let mut headers = Headers::default();
    headers.add(b":status", x.status().to_string().as_bytes());
    add_all(&x.response().fields, &mut headers);
    headers
}

fn all(fields: &Fields) -> Headers {
    let mut headers = Headers::default();
    add_all(fields, &mut headers);
    headers
}

fn add_all(fields: &Fields, headers: &mut Headers) {
    add_those(fields, headers, |_| true);
}

/// Adds wanted fields, with their names in lower case.
fn add_those(fields: &Fields, headers: &mut Headers, is_wanted: impl Fn(&[u8]) -> bool) {
    for (name, value, _) in fields.iter() {
        let name = name.to_ascii_lowercase();
        if name != b"host" && is_wanted(&name) {
            headers.add(&name, value);
        }
    }
}

#[cfg(test)]
mod tests;
