//! grpc-transcode: HTTP requests become calls of a gRPC method, and its messages JSON.
//!
//! Settings, sentences and statuses as in APISIX 3.18, with these differences: a method that streams sends each
//! message as a line of JSON when it arrives (APISIX decodes the first only); a call that fails behind its head gets the
//! status of its outcome; integers are exact. Messages have limits of length and depth; large ones are transcoded
//! on the background threads.

mod decode;
mod encode;
mod plan;
mod read;
mod status;
#[cfg(test)]
mod tests;
mod types;
mod write;

use std::sync::Arc;

use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::NotSet;
use sdk::grpc::PREFIX;
use sdk::{Build, Chunk, Exchange, Method, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use decode::Limits;
use plan::{ENCODED, Form, Made, Plan, next_frame};
use read::Fault;

/// The stage.
pub struct GrpcTranscode {
    /// Shared with the work on background threads.
    plan: Result<Arc<Plan>, &'static str>,
    /// Path of the call.
    path: Box<[u8]>,
    /// `grpc-timeout`, if there is one.
    deadline: Option<Box<[u8]>>,
    show_status: bool,
    max_request: usize,
    max_response: usize,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    proto_id: Value,
    service: String,
    method: String,
    deadline: f64,
    pb_option: Vec<String>,
    show_status_in_body: bool,
    status_detail_type: Option<String>,
    max_req_body_size: u64,
    max_resp_body_size: u64,
}

/// A call on its way.
struct Call {
    /// Whose: the plugin may stand on a global rule and on the route.
    stage: usize,
    answer: Answer,
    /// Bytes of messages that are not complete.
    body: Vec<u8>,
    memory: Reservation,
}

/// The use of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It is passed on.
    Unchanged,
    /// One message.
    Message,
    /// Any number of messages.
    Stream,
    /// The call has failed, and the body says so.
    Failed,
}

/// Bodies up to this length are transcoded on the worker: less than a millisecond.
const LONGEST_HERE: usize = 64 << 10;

/// The JSON of a message may be this many times as long as the limit of the message, and first gets memory for as many
/// times the length of the message itself.
const GROWTH: usize = 4;

/// The least room that JSON gets, divided by [`GROWTH`].
const LEAST: usize = 4 << 10;

const NO_PROTO: &str = "the proto of grpc-transcode does not exist or is invalid";
const NOT_DECODED: &str = "the gRPC response cannot be transcoded";

impl Plugin for GrpcTranscode {
    const NAME: &'static str = "grpc-transcode";
    const PRIORITY: i32 = 506;
    const PHASES: Phases = Phases::ACCESS.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let mut schema = crate::apisix_schema(Self::NAME);
        schema["properties"]["max_req_body_size"] =
            json!({"type": "integer", "minimum": 1, "default": 67_108_864});
        schema
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<GrpcTranscode, Invalid> {
        let id = config.proto_id.as_str().map_or_else(|| config.proto_id.to_string(), str::to_owned);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(GrpcTranscode {
            plan: cx.proto(&id).ok_or(NO_PROTO).and_then(|pool| Plan::new(&pool, &config)),
            path: format!("/{}/{}", config.service, config.method).into_bytes().into(),
            // At most eight digits.
            deadline: (config.deadline > 0.0)
                .then(|| format!("{}m", config.deadline.ceil().min(99_999_999.0)).into_bytes().into()),
            show_status: config.show_status_in_body,
            max_request: size(config.max_req_body_size),
            max_response: size(config.max_resp_body_size),
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        let plan = match &self.plan {
            Ok(plan) => plan,
            Err(reason) => return Step::Reply(Reply::status(503).because(reason)),
        };
        match crate::buffer_body(x, self.max_request) {
            Step::Wait => {}
            step => return step,
        }
        let (form, text) = given(x);
        if text.len() > LONGEST_HERE {
            return Step::Wait;
        }
        let framed = plan.framed(form, text);
        self.forward(x, framed)
    }

    /// The same on a background thread.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Ok(plan) = &self.plan else { return Step::Next };
        let (form, text) = given(x);
        let mut memory = Reservation::default();
        // The text is copied, as the exchange keeps its own, and becomes a message.
        if memory.resize(x.world().budget(), text.len().saturating_mul(1 + ENCODED)).is_err() {
            return crate::no_memory();
        }
        let (plan, text) = (plan.clone(), text.to_vec());
        let (framed, memory) = x.world().offload(memory, move |_| plan.framed(form, &text)).await;
        drop(memory);
        self.forward(x, framed)
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        if self.call(x).is_none() {
            return;
        }
        let answer = self.answer(x);
        // Also of a response that takes the place of one that has begun.
        x.set_note(Call { answer, ..Call::new(self.id()) });
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        self.call(x).is_some_and(|call| call.answer != Answer::Unchanged)
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.call(x).is_some_and(|call| call.answer == Answer::Message)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let Ok(plan) = &self.plan else { return Step::Next };
        let budget = x.world().budget();
        let Some(call) = x.note_mut::<Call>().filter(|call| call.stage == self.id()) else {
            return Step::Next;
        };
        let streams = match call.answer {
            Answer::Unchanged => return Step::Next,
            Answer::Failed => {
                chunk.data.clear();
                if chunk.last {
                    let head = &x.response().fields;
                    chunk.data = plan.outcome(head);
                }
                return Step::Next;
            }
            Answer::Message => false,
            Answer::Stream => true,
        };
        let most = self.max_response.saturating_add(PREFIX);
        if call.memory.reserve(budget, &mut call.body, chunk.data.len(), most).is_err() {
            return self.refuse(x, chunk);
        }
        call.body.append(&mut chunk.data);
        let is_ready = match next_frame(&call.body, self.max_response) {
            Err(fault) => return self.give_up(x, fault),
            Ok(_) if !streams && call.body.len() > most => return self.give_up(x, Fault::TooLong),
            Ok(frame) => chunk.last || streams && frame.is_some(),
        };
        if !is_ready {
            return Step::Next;
        }
        if !streams && let Some(reply) = self.failed_behind_the_head(plan, x) {
            return Step::Reply(reply);
        }
        let (body, mut memory) = self.take(x);
        let limits = self.limits(body.len());
        if memory.resize(budget, body.capacity().saturating_add(limits.memory())).is_err() {
            return self.refuse(x, chunk);
        }
        if body.len() <= LONGEST_HERE {
            match plan.json(&body, streams, limits) {
                Err(Fault::NoRoom) => {}
                made => return self.settle(x, chunk, streams, (made, body), memory),
            }
        }
        let answer = if streams { Answer::Stream } else { Answer::Message };
        x.set_note(Call { answer, body, memory, ..Call::new(self.id()) });
        Step::Wait
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let Ok(plan) = &self.plan else { return Step::Next };
        let streams = self.call(x).is_some_and(|call| call.answer == Answer::Stream);
        let (mut body, mut memory) = self.take(x);
        let mut limits = self.limits(body.len());
        loop {
            if memory.resize(x.world().budget(), body.capacity().saturating_add(limits.memory())).is_err() {
                return self.refuse(x, chunk);
            }
            let plan = plan.clone();
            let job = x.world().offload(memory, move |_| (plan.json(&body, streams, limits), body));
            let (made, held) = job.await;
            if made.0 != Err(Fault::NoRoom) {
                return self.settle(x, chunk, streams, made, held);
            }
            (body, memory) = (made.1, held);
            // Small messages may become much JSON, by fields without a value.
            limits.room = limits.room.saturating_mul(GROWTH);
        }
    }
}

impl GrpcTranscode {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn call<'x>(&self, x: &'x Exchange<'_>) -> Option<&'x Call> {
        x.note::<Call>().filter(|call| call.stage == self.id())
    }

    /// Takes the bytes that were collected.
    fn take(&self, x: &mut Exchange<'_>) -> (Vec<u8>, Reservation) {
        let call = x.note_mut::<Call>().filter(|call| call.stage == self.id());
        call.map(|call| (std::mem::take(&mut call.body), std::mem::take(&mut call.memory)))
            .unwrap_or_default()
    }

    /// The limits of messages of these bytes, before more room is needed.
    fn limits(&self, length: usize) -> Limits {
        Limits {
            message: self.max_response,
            json: self.max_response.max(LEAST).saturating_mul(GROWTH),
            room: length.max(LEAST).saturating_mul(GROWTH),
        }
    }

    /// Ends a response for which the worker has no memory.
    fn refuse(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        drop(self.take(x));
        chunk.data.clear();
        chunk.refused = true;
        Step::Next
    }

    /// Makes the request a call.
    fn forward(&self, x: &mut Exchange<'_>, framed: Result<Vec<u8>, String>) -> Step {
        let framed = match framed {
            Ok(framed) => framed,
            Err(why) => {
                let text = format!("failed to encode request data to protobuf: {why}");
                let reply = Reply::json(400, &json!({"error_msg": text}));
                return Step::Reply(reply.because("the request cannot be transcoded"));
            }
        };
        match x.set_body(framed) {
            Ok(()) => {}
            Err(NotSet::Spent | NotSet::Unread) => return crate::no_memory(),
        }
        x.set_upstream_method(Method::Post, b"POST");
        x.set_upstream_uri(&self.path);
        // The message is not compressed, and neither may be the answer.
        for name in ["Content-Encoding", "grpc-encoding", "grpc-accept-encoding"] {
            x.remove_header(name);
        }
        if let Some(deadline) = &self.deadline {
            // Digits can always stand in a head.
            let _ = x.set_header("grpc-timeout", deadline);
        }
        x.set_note(Call::new(self.id()));
        Step::Next
    }

    /// Sets the head of the response, and returns what becomes of its body.
    fn answer(&self, x: &mut Exchange<'_>) -> Answer {
        let is_grpc =
            |kind: &[u8]| kind.starts_with(b"application/grpc") && !kind.starts_with(b"application/grpc-web");
        // Other responses are those of the gateway, or of a server that does not speak gRPC.
        if x.status() >= 300 || !x.response_header("Content-Type").is_some_and(is_grpc) {
            return Answer::Unchanged;
        }
        let failed = x.response_header("grpc-status").filter(|status| *status != b"0").map(status::http);
        let streams = self.plan.as_ref().is_ok_and(|plan| plan.method.streams);
        let answer = match failed {
            Some(_) if self.show_status => Answer::Failed,
            Some(_) => Answer::Unchanged,
            None if streams => Answer::Stream,
            None => Answer::Message,
        };
        let kind: &[u8] =
            if answer == Answer::Stream { b"application/x-ndjson" } else { b"application/json" };
        // Constants can always stand in a head.
        let _ = x.set_response_header("Content-Type", kind);
        if let Some(status) = failed {
            x.set_status(status);
        }
        if answer != Answer::Unchanged {
            x.remove_response_header("Content-Length");
        }
        answer
    }

    /// The response to a call whose failure is known only when its body ends.
    fn failed_behind_the_head(&self, plan: &Plan, x: &mut Exchange<'_>) -> Option<Reply> {
        let trailers = x.response_trailers();
        let status = trailers.get_named(b"grpc-status").filter(|status| !matches!(*status, b"" | b"0"))?;
        let mut reply = Reply::status(status::http(status)).header("Content-Type", "application/json");
        for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
            if let Some(value) = trailers.get_named(name.as_bytes()) {
                reply = reply.header(name, value);
            }
        }
        if self.show_status {
            reply.body = plan.outcome(trailers).into();
        }
        x.clear_response_trailers();
        Some(reply)
    }

    /// Puts the JSON in the place of the messages.
    fn settle(
        &self,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
        streams: bool,
        (made, mut body): (Made, Vec<u8>),
        mut memory: Reservation,
    ) -> Step {
        let (json, read) = match made {
            Ok(made) => made,
            Err(fault) => return self.give_up(x, fault),
        };
        body.drain(..read);
        if chunk.last && !body.is_empty() {
            return self.give_up(x, Fault::Malformed);
        }
        chunk.data = json;
        if chunk.last
            && streams
            && let Ok(plan) = &self.plan
        {
            let trailers = x.response_trailers();
            if trailers.get_named(b"grpc-status").is_some_and(|status| !matches!(status, b"" | b"0")) {
                chunk.data.extend_from_slice(&plan.outcome(trailers));
                chunk.data.push(b'\n');
            }
        }
        let held = body.capacity() + chunk.data.capacity();
        chunk.refused |= memory.resize(x.world().budget(), held).is_err();
        let answer = if streams { Answer::Stream } else { Answer::Message };
        x.set_note(Call { answer, body, memory, ..Call::new(self.id()) });
        Step::Next
    }

    /// Ends a response that cannot be transcoded: by 502, or in the middle of a stream.
    fn give_up(&self, x: &mut Exchange<'_>, fault: Fault) -> Step {
        drop(self.take(x));
        x.complain(
            Self::NAME,
            match fault {
                Fault::Malformed => "the response is not a message of the proto's type, or it is compressed",
                Fault::TooDeep => "the messages of the response nest too deeply",
                Fault::TooLong | Fault::NoRoom => {
                    "the response, or the JSON made of it, is longer than max_resp_body_size allows"
                }
            },
        );
        x.clear_response_trailers();
        let reply = Reply::json(502, &json!({"error_msg": "failed to decode response data by protobuf"}));
        Step::Reply(reply.because(NOT_DECODED))
    }
}

impl Call {
    fn new(stage: usize) -> Call {
        Call { stage, answer: Answer::Unchanged, body: Vec::new(), memory: Reservation::default() }
    }
}

/// The part of a request that has the fields of the message.
fn given<'x>(x: &'x Exchange<'_>) -> (Form, &'x [u8]) {
    const JSON: &[u8] = b"application/json";
    let is_json = |kind: &[u8]| kind.windows(JSON.len()).any(|part| part.eq_ignore_ascii_case(JSON));
    match x.method() {
        Method::Post | Method::Put | Method::Patch
            if !x.body().is_empty() && x.header("Content-Type").is_some_and(is_json) =>
        {
            (Form::Json, x.body())
        }
        Method::Post => (Form::Arguments, x.body()),
        _ => (Form::Arguments, x.query()),
    }
}
