//! body-transformer: makes another body of the request's, or of the response's, by a template.
//!
//! Settings, order, words and statuses as in APISIX 3.18. Templates have the syntax of
//! lua-resty-template with a part of Lua (see [`parse`]); what is not understood is refused when the
//! configuration is written. A run is bounded in steps, by default about 10 ms
//! (`plugin_attr.body-transformer.max_steps`), and in bytes (`max_output_size`); beyond that the request
//! gets 503, and the error log says why. Work of more than about a millisecond runs on the background
//! threads, for `plugin_wait_timeout` at most. Its memory counts against the worker's budget.

mod library;
mod members;
mod parse;
mod run;
mod tokens;
mod value;
mod work;
mod xml;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use model::boot::Section;
use sdk::chain::Phases;
use sdk::exchange::{Body, NotSet};
use sdk::{Build, Chunk, Exchange, Method, Phase, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

use parse::Template;
use work::{Given, Work};

/// The stage.
pub struct BodyTransformer {
    /// Shared with the work on background threads.
    request: Option<Arc<Transform>>,
    response: Option<Arc<Transform>>,
    max_request: usize,
    max_response: usize,
    bounds: Bounds,
}

/// Bounds of a run, from `plugin_attr`.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Bytes of the output.
    output: usize,
    /// Steps of the template.
    steps: u64,
}

struct Transform {
    format: Option<Format>,
    /// The template is in Base64 for certain.
    base64: bool,
    plain: Option<Template>,
    decoded: Option<Template>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Xml,
    Json,
    Encoded,
    Args,
    Plain,
    Multipart,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    request: Option<TransformConfig>,
    response: Option<TransformConfig>,
    max_req_body_size: usize,
    max_resp_body_size: usize,
}

#[derive(Debug, Deserialize)]
struct TransformConfig {
    input_format: Option<Format>,
    template: String,
    #[serde(default)]
    template_is_base64: bool,
}

/// Why there is no other body.
#[derive(Debug)]
struct Failed {
    status: u16,
    words: String,
}

/// A response's body, while it is gathered.
struct Held {
    /// Whose: the plugin may stand on a global rule and on the route.
    stage: usize,
    format: Option<Format>,
    body: Vec<u8>,
    memory: sdk::budget::Reservation,
    cut: bool,
}

struct AtWork(SmallVec<[Held; 1]>);

impl Plugin for BodyTransformer {
    const NAME: &'static str = "body-transformer";
    const PRIORITY: i32 = 1080;
    const PHASES: Phases = Phases::REWRITE.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let transform = json!({
            "type": "object",
            "properties": {
                "input_format": {"type": "string", "enum": ["xml", "json", "encoded", "args", "plain", "multipart"]},
                "template": {"type": "string"},
                "template_is_base64": {"type": "boolean"},
            },
            "required": ["template"],
        });
        json!({
            "type": "object",
            "properties": {
                "request": transform,
                "response": transform,
                "max_req_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum request body size in bytes buffered into memory; larger request bodies are rejected",
                },
                "max_resp_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum response body size in bytes buffered into memory; larger responses are truncated",
                },
            },
            "anyOf": [{"required": ["request"]}, {"required": ["response"]}, {"required": ["request", "response"]}],
        })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<BodyTransformer, Invalid> {
        let transform = |config: Option<TransformConfig>, name: &str| {
            let built = config.map(Transform::build).transpose();
            built.map(|built| built.map(Arc::new)).map_err(|error| error.at("/template").within(name))
        };
        let attr = Section::attr("/plugin_attr/body-transformer", cx.attr);
        Ok(BodyTransformer {
            request: transform(config.request, "request")?,
            response: transform(config.response, "response")?,
            max_request: config.max_req_body_size,
            max_response: config.max_resp_body_size,
            bounds: Bounds { output: attr.number("/max_output_size"), steps: attr.count("/max_steps") },
        })
    }

    fn phases(&self) -> Phases {
        let request = if self.request.is_some() { Phases::REWRITE } else { Phases::NONE };
        let response = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);
        request | if self.response.is_some() { response } else { Phases::NONE }
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        let Some(transform) = &self.request else { return Step::Next };
        if x.lacks_body(self.max_request) {
            return Step::Body(self.max_request);
        }
        if x.body_state() == Body::TooLarge || x.body().len() > self.max_request {
            return Step::Reply(Reply::status(413).because(crate::TOO_LARGE));
        }
        match transform.try_here(x, self.given_request(x, transform), self.bounds) {
            Some(made) => settle_request(x, made),
            None => Step::Wait,
        }
    }

    /// The same on a background thread.
    async fn wait(&self, _phase: Phase, x: &mut Exchange<'_>) -> Step {
        let Some(transform) = &self.request else { return Step::Next };
        let (given, mut memory) = (self.given_request(x, transform), sdk::budget::Reservation::default());
        // It is copied, as the exchange keeps its own.
        if memory.resize(x.world().budget(), given.body.len()).is_err() {
            return settle_request(x, Err(work::spent(given.side)));
        }
        let work = Work::new(x, transform, given, given.body.to_vec(), self.bounds);
        let (made, _, memory) = work.run(x, memory).await;
        drop(memory);
        settle_request(x, made)
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        // Of an answer that failed, when this is the gateway's own in its place.
        if let Some(AtWork(all)) = x.note_mut::<AtWork>() {
            all.retain(|held| held.stage != self.id());
        }
        let Some(transform) = &self.response else { return };
        if x.response_header("Content-Encoding").is_some() {
            x.complain(Self::NAME, "the template did not run: the response has a Content-Encoding");
            return;
        }
        let format =
            transform.format.or_else(|| by_type(x.response_header("Content-Type").unwrap_or_default()));
        for name in ["Content-Length", "Last-Modified", "ETag"] {
            x.remove_response_header(name);
        }
        let held =
            Held { stage: self.id(), format, body: Vec::new(), memory: Default::default(), cut: false };
        match x.note_mut::<AtWork>() {
            Some(AtWork(all)) => all.push(held),
            None => x.set_note(AtWork(SmallVec::from_iter([held]))),
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<AtWork>().is_some_and(|AtWork(all)| all.iter().any(|held| held.stage == self.id()))
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.filters_body(x)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let budget = x.world().budget();
        let (Some(transform), Some(held)) = (&self.response, self.held(x)) else { return Step::Next };
        let room = self.max_response.saturating_sub(held.body.len());
        let piece = &chunk.data[..chunk.data.len().min(room)];
        held.cut |= piece.len() < chunk.data.len();
        if held.memory.reserve(budget, &mut held.body, piece.len(), self.max_response).is_err() {
            chunk.refused = true;
            return Step::Next;
        }
        held.body.extend_from_slice(piece);
        chunk.data.clear();
        if !chunk.last {
            return Step::Next;
        }
        let (body, format, cut) = (std::mem::take(&mut held.body), held.format, held.cut);
        if cut {
            x.complain(
                Self::NAME,
                "the response's body is longer than max_resp_body_size: its end is left out",
            );
        }
        match transform.try_here(x, given_response(x, format, &body), self.bounds) {
            Some(made) => self.settle_response(x, chunk, made, body),
            None => {
                if let Some(held) = self.held(x) {
                    held.body = body;
                }
                Step::Wait
            }
        }
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let (Some(transform), Some(held)) = (&self.response, self.held(x)) else { return Step::Next };
        let (body, format) = (std::mem::take(&mut held.body), held.format);
        let memory = std::mem::take(&mut held.memory);
        let work = Work::new(x, transform, given_response(x, format, &[]), body, self.bounds);
        let (made, body, memory) = work.run(x, memory).await;
        if let Some(held) = self.held(x) {
            held.memory = memory;
        }
        self.settle_response(x, chunk, made, body)
    }
}

impl Failed {
    /// The bound that the template exceeded.
    fn bound(&self) -> Option<&'static str> {
        [run::TOO_MANY_STEPS, work::TOO_MANY_RUNS].into_iter().find(|bound| self.words.ends_with(bound))
    }
}

impl BodyTransformer {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn held<'x>(&self, x: &'x mut Exchange<'_>) -> Option<&'x mut Held> {
        x.note_mut::<AtWork>()?.0.iter_mut().find(|held| held.stage == self.id())
    }

    fn given_request<'x>(&self, x: &'x Exchange<'_>, transform: &Transform) -> Given<'x> {
        let kind = x.header("Content-Type").unwrap_or_default();
        let get = x.method() == Method::Get;
        let format = if get { Some(Format::Args) } else { transform.format.or_else(|| by_type(kind)) };
        Given { side: "request", format, kind, query: x.query(), body: x.body(), get }
    }

    fn settle_response(
        &self,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
        made: Result<Vec<u8>, Failed>,
        body: Vec<u8>,
    ) -> Step {
        chunk.data = made.unwrap_or_else(|failed| {
            if let Some(bound) = failed.bound() {
                x.complain(Self::NAME, bound);
            }
            x.complain(
                Self::NAME,
                "the response stays as it is: its body could not be read, or the template failed",
            );
            body
        });
        let budget = x.world().budget();
        if let Some(held) = self.held(x) {
            chunk.refused |= held.memory.resize(budget, chunk.data.capacity()).is_err();
        }
        Step::Next
    }
}

fn given_response<'x>(x: &'x Exchange<'_>, format: Option<Format>, body: &'x [u8]) -> Given<'x> {
    let kind = x.response_header("Content-Type").unwrap_or_default();
    Given { side: "response", format, kind, query: x.query(), body, get: false }
}

fn settle_request(x: &mut Exchange<'_>, made: Result<Vec<u8>, Failed>) -> Step {
    match made.map(|made| x.set_body(made)) {
        Ok(Ok(())) => Step::Next,
        Ok(Err(NotSet::Spent | NotSet::Unread)) => crate::no_memory(),
        Err(failed) => {
            if let Some(bound) = failed.bound() {
                x.complain(BodyTransformer::NAME, bound);
            }
            Step::Reply(
                Reply::json(failed.status, &json!({"message": failed.words}))
                    .because("the body cannot be transformed"),
            )
        }
    }
}

impl Transform {
    fn build(config: TransformConfig) -> Result<Transform, Invalid> {
        let text = config.template.as_bytes();
        let decoded = STANDARD.decode(text).ok().filter(|decoded| std::str::from_utf8(decoded).is_ok());
        let always = config.template_is_base64;
        // Which of the two it is depends on the format, which a request may choose.
        let decoded = decoded.map(|decoded| Template::parse(&decoded)).transpose()?;
        let plain = if always && decoded.is_some() { None } else { Some(Template::parse(text)?) };
        Ok(Transform { format: config.input_format, base64: always, plain, decoded })
    }
}

/// The format that a Content-Type tells of.
fn by_type(kind: &[u8]) -> Option<Format> {
    let kind = String::from_utf8_lossy(kind);
    let lower = kind.to_ascii_lowercase();
    if kind.contains("text/xml") {
        Some(Format::Xml)
    } else if kind.contains("application/json") {
        Some(Format::Json)
    } else if lower.contains("application/x-www-form-urlencoded") {
        Some(Format::Encoded)
    } else if lower.contains("multipart/") {
        Some(Format::Multipart)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
