//! response-rewrite: changes the status, headers and body of a response.
//!
//! Settings and order as in APISIX 3.18. Filters decode a body in gzip, brotli or zstd, and the client gets
//! it plain; one in another coding passes unfiltered, and the error log says so. So does a part of a
//! body (206). A body that filters look at is held whole; what a worker holds in all is bounded by
//! `nginx_config.http.held_bodies`. While filters work, this counts the body and the new one that a
//! filter writes once it has found a match. Work of more than about a millisecond runs on the
//! background threads (`nginx_config.http.background_threads`), for `plugin_wait_timeout` at most.

mod work;

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use sdk::budget::Budget;
use sdk::chain::Phases;
use sdk::expr::Expr;
use sdk::offload::Until;
use sdk::pattern::Substitution;
use sdk::{Build, Chunk, Exchange, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::decode::{Coded, Coding};
use crate::edits::{self, Edit};
use crate::expiry::{self, Expiry};
use work::{Pause, Work};

/// The stage.
pub struct ResponseRewrite {
    status: Option<u16>,
    edits: Vec<Edit>,
    body: Option<Vec<u8>>,
    /// Shared with what runs on background threads.
    filters: Arc<[Substitution]>,
    vars: Option<Expr>,
    max_body: usize,
    expires: Option<Expiry>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    status_code: Option<u16>,
    #[serde(default)]
    headers: Value,
    body: Option<String>,
    body_base64: bool,
    vars: Option<Value>,
    #[serde(default)]
    filters: Vec<FilterConfig>,
    max_resp_body_size: usize,
    expires: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct FilterConfig {
    regex: String,
    scope: String,
    replace: String,
    options: String,
}

/// The decision of the header filter, and the body gathered so far.
struct Held {
    /// Whose: the plugin may stand on a global rule and on the route.
    stage: usize,
    body: Vec<u8>,
    /// How the upstream has compressed it.
    coding: Option<Coding>,
    /// How long the upstream said the body is; 0 if it did not.
    announced: usize,
    /// The memory it takes from the worker's budget, until the client has taken the body.
    memory: sdk::budget::Reservation,
    /// The body is longer than `max_resp_body_size`.
    cut: bool,
    /// All of the body is here, and the filters are not done with it.
    work: Option<Work>,
}

/// The stages at work on one exchange: one, or two.
struct AtWork(SmallVec<[Held; 1]>);

impl Plugin for ResponseRewrite {
    const NAME: &'static str = "response-rewrite";
    const PRIORITY: i32 = 899;
    const PHASES: Phases = Phases::ACCESS.with(Phases::HEADER_FILTER).with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        let map = json!({
            "type": "object", "minProperties": 1,
            "patternProperties": {"^[^:]+$": {"oneOf": [{"type": "string"}, {"type": "number"}]}},
        });
        json!({
            "type": "object",
            "properties": {
                "max_resp_body_size": {
                    "type": "integer", "minimum": 1, "default": 67_108_864,
                    "description": "maximum response body size in bytes buffered into memory when filters are applied; larger responses are truncated",
                },
                "headers": {
                    "description": "new headers for response",
                    "anyOf": [
                        map,
                        {"properties": {
                            "add": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+:[^:]*[^/]$"}},
                            "set": map,
                            "remove": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^:]+$"}},
                        }},
                    ],
                },
                "body": {"description": "new body for response", "type": "string"},
                "body_base64": {
                    "description": "whether new body for response need base64 decode before return",
                    "type": "boolean", "default": false,
                },
                "status_code": {
                    "description": "new status code for response",
                    "type": "integer", "minimum": 200, "maximum": 598,
                },
                "vars": {"type": "array"},
                "expires": expiry::schema(),
                "filters": {
                    "description": "a group of filters that modify response bodyby replacing one specified string by another",
                    "type": "array", "minItems": 1,
                    "items": {
                        "description": "filter that modifies response body",
                        "type": "object", "required": ["regex", "replace"],
                        "properties": {
                            "regex": {"description": "match pattern on response body", "type": "string", "minLength": 1},
                            "scope": {
                                "description": "regex substitution range",
                                "type": "string", "enum": ["once", "global"], "default": "once",
                            },
                            "replace": {"description": "regex substitution content", "type": "string"},
                            "options": {"description": "regex options", "type": "string", "default": "jo"},
                        },
                    },
                },
            },
            "dependencies": {
                "body": {"not": {"required": ["filters"]}},
                "filters": {"not": {"required": ["body"]}},
            },
        })
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<ResponseRewrite, Invalid> {
        let body = match (config.body, config.body_base64) {
            (body, false) => body.map(String::into_bytes),
            (body, true) => {
                let decoded =
                    body.filter(|body| !body.is_empty()).and_then(|body| STANDARD.decode(body).ok());
                let decoded = decoded.ok_or_else(|| Invalid::new("invalid base64 content").at("/body"))?;
                Some(decoded)
            }
        };
        let vars = match &config.vars {
            Some(vars) => Some(Expr::compile(vars).map_err(|error| {
                Invalid::new(format!("failed to validate the 'vars' expression: {error}")).at("/vars")
            })?),
            None => None,
        };
        let filter = |(index, filter): (usize, FilterConfig)| {
            let invalid = |error: Invalid| {
                let reason = format!("regex \"{}\" validation failed: {error}", filter.regex);
                Invalid::new(reason).within(index).under("/filters")
            };
            let (any_case, global) = (filter.options.contains('i'), filter.scope == "global");
            Substitution::new(&filter.regex, any_case, &filter.replace, global).map_err(invalid)
        };
        Ok(ResponseRewrite {
            status: config.status_code,
            edits: edits::read(&config.headers).map_err(|error| error.under("/headers"))?,
            body,
            filters: config.filters.into_iter().enumerate().map(filter).collect::<Result<_, _>>()?,
            vars,
            max_body: config.max_resp_body_size,
            expires: config.expires.map(Expiry::new),
        })
    }

    fn phases(&self) -> Phases {
        let mut phases = Phases::HEADER_FILTER;
        if self.body.is_some() || !self.filters.is_empty() {
            phases = phases | Phases::BODY_FILTER;
        }
        if self.vars.as_ref().is_some_and(Expr::may_be_undecided) {
            phases = phases | Phases::ACCESS;
        }
        phases
    }

    /// The request's values that `vars` reads must be here, and readable, before there is a response.
    fn access(&self, x: &mut Exchange<'_>) -> Step {
        self.vars.as_ref().map_or(Step::Next, |vars| vars.check_early(x))
    }

    fn header_filter(&self, x: &mut Exchange<'_>) {
        // Of an answer that failed, when this is the gateway's own in its place.
        if let Some(AtWork(all)) = x.note_mut::<AtWork>() {
            all.retain(|held| held.stage != self.id());
        }
        if self.vars.as_ref().is_some_and(|vars| !vars.matches(x)) {
            return;
        }
        // Before the status is another.
        let is_part = x.status() == 206;
        if let Some(status) = self.status {
            x.set_status(status);
        }
        let mut coding = None;
        let filtered = !self.filters.is_empty()
            && match Coded::of(x) {
                _ if is_part => {
                    x.complain(Self::NAME, "the filters did not run: the response is a part of a body (206)");
                    false
                }
                Coded::Plain => true,
                Coded::As(known) => {
                    coding = Some(known);
                    true
                }
                Coded::Unknown => {
                    x.complain(
                        Self::NAME,
                        "the filters did not run: the Content-Encoding is not gzip, br or zstd",
                    );
                    false
                }
            };
        if filtered || self.body.is_some() {
            let length =
                x.response_header("Content-Length").and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
            let announced = length.unwrap_or(0);
            for name in ["Content-Length", "Content-Encoding", "Last-Modified", "ETag"] {
                x.remove_response_header(name);
            }
            let held = Held {
                stage: self.id(),
                body: Vec::new(),
                coding,
                announced,
                memory: Default::default(),
                cut: false,
                work: None,
            };
            match x.note_mut::<AtWork>() {
                Some(AtWork(all)) => all.push(held),
                None => x.set_note(AtWork(SmallVec::from_iter([held]))),
            }
        }
        if let Some(expiry) = self.expires.as_ref().filter(|_| expiry::applies(x.status())) {
            // Both values are valid.
            let _ = x.set_response_header("Expires", expiry.date(x).as_bytes());
            let _ = x.set_response_header("Cache-Control", expiry.control.as_bytes());
        }
        edits::on_response(&self.edits, x);
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<AtWork>().is_some_and(|AtWork(all)| all.iter().any(|held| held.stage == self.id()))
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.body.is_none() && self.filters_body(x)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let world = x.world();
        let Some(held) = self.held(x) else { return Step::Next };
        if self.body.is_some() {
            chunk.data.clear();
            if chunk.last {
                chunk.data.extend_from_slice(self.body.as_deref().unwrap_or_default());
            }
            return Step::Next;
        }
        let room = self.max_body.saturating_sub(held.body.len());
        let piece = &chunk.data[..chunk.data.len().min(room)];
        let cut = piece.len() < chunk.data.len() && !held.cut;
        held.cut |= cut;
        let budget = world.budget();
        let needed = held.body.len() + piece.len();
        let more = match held.body.capacity() {
            capacity if capacity < needed => {
                believed(needed, held.announced.min(self.max_body)) - held.body.len()
            }
            _ => piece.len(),
        };
        let Held { memory, body, .. } = &mut *held;
        if memory.reserve(budget, body, more, self.max_body).is_err()
            && memory.reserve(budget, body, piece.len(), self.max_body).is_err()
        {
            chunk.refused = true;
            return Step::Next;
        }
        held.body.extend_from_slice(piece);
        chunk.data.clear();
        if chunk.last {
            let (body, coding, cut) = (std::mem::take(&mut held.body), held.coding, held.cut);
            held.work = Some(Work::new(self.filters.clone(), body, coding, self.max_body, cut));
        }
        if cut {
            x.complain(Self::NAME, CUT);
        }
        if chunk.last { self.begin(x, chunk) } else { Step::Next }
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let world = x.world();
        let Some(held) = self.held(x) else { return Step::Next };
        let Some(mut work) = held.work.take() else { return Step::Next };
        let mut memory = std::mem::take(&mut held.memory);
        loop {
            let room = memory.bytes();
            let job = world.offload(memory, move |turn| {
                let pause = work.go_on(room, &mut Until::TimeSlice(turn));
                (work, pause)
            });
            let pause;
            ((work, pause), memory) = job.await;
            match pause {
                None => return self.finish(x, chunk, work, memory),
                Some(Pause::Time) => {}
                Some(Pause::Room { least, wanted }) => {
                    if !grant(&mut memory, world.budget(), least, wanted) {
                        chunk.refused = true;
                        return Step::Next;
                    }
                }
            }
        }
    }
}

const UNDECODABLE: &str = "the response's body cannot be decoded as its Content-Encoding says";
const CUT: &str = "the response's body is longer than max_resp_body_size: its end is left out";

/// Takes as many bytes from the budget as are wanted, or as are needed at least; whether that could be had.
fn grant(memory: &mut sdk::budget::Reservation, budget: &Budget, least: usize, wanted: usize) -> bool {
    memory.resize(budget, wanted).or_else(|_| memory.resize(budget, least)).is_ok()
}

/// Returns the room to hold for a body from the bytes here and the length announced. A body that is moved
/// as it grows leaves its old places behind, so it is moved seldom; but an upstream that announces a long
/// body has to send some of it before room is held for more.
fn believed(needed: usize, announced: usize) -> usize {
    const FIRST: usize = 1 << 20;
    needed.max(announced.min(needed.saturating_mul(8).max(FIRST)))
}

impl ResponseRewrite {
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn held<'x>(&self, x: &'x mut Exchange<'_>) -> Option<&'x mut Held> {
        x.note_mut::<AtWork>()?.0.iter_mut().find(|held| held.stage == self.id())
    }

    /// Lets the filters work on the whole body for as long as the worker has time. They go on elsewhere if that is not
    /// enough.
    fn begin(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let budget = x.world().budget();
        let Some(held) = self.held(x) else { return Step::Next };
        let Some(mut work) = held.work.take() else { return Step::Next };
        let mut until = Until::ON_WORKER;
        loop {
            match work.go_on(held.memory.bytes(), &mut until) {
                None => break,
                Some(Pause::Time) => {
                    held.work = Some(work);
                    return Step::Wait;
                }
                Some(Pause::Room { least, wanted }) => {
                    if !grant(&mut held.memory, budget, least, wanted) {
                        chunk.refused = true;
                        return Step::Next;
                    }
                }
            }
        }
        let memory = std::mem::take(&mut held.memory);
        self.finish(x, chunk, work, memory)
    }

    /// Puts what came of the filters into the chunk.
    fn finish(
        &self,
        x: &mut Exchange<'_>,
        chunk: &mut Chunk,
        work: Work,
        mut memory: sdk::budget::Reservation,
    ) -> Step {
        let found = work.found;
        chunk.data = work.into_body();
        chunk.refused |= memory.resize(x.world().budget(), chunk.data.capacity()).is_err();
        if let Some(held) = self.held(x) {
            held.memory = memory;
        }
        if found.broken {
            x.complain(Self::NAME, UNDECODABLE);
            return Step::Reply(Reply::status(502).because(UNDECODABLE));
        }
        if found.cut {
            x.complain(Self::NAME, CUT);
        }
        if found.undecided {
            x.complain(
                Self::NAME,
                "a filter gave up searching the response's body and left the rest of it as it was: its pattern takes too many steps",
            );
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests;
