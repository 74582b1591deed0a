//! The parts that ext-plugin-pre-req, ext-plugin-post-req and ext-plugin-post-resp share: they call a runner, a process
//! beside the gateway, with plugins in other languages.
//!
//! The runner protocol, settings and statuses are APISIX's, so its runners for Go, Java and Python work.

mod call;
mod changes;
mod flat;
mod messages;
mod runner;

use std::sync::atomic::Ordering;

use model::Invalid;
use sdk::budget::Reservation;
use sdk::exchange::Body;
use sdk::{Build, Exchange, Reply, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use call::{Caller, Failure, Subject};
use messages::{Action, Changed};
pub use runner::Runner;

/// The longest request body that the runner may read or replace.
const MOST_BODY: usize = messages::LONGEST - (1 << 16);

#[derive(Debug, Deserialize)]
pub struct Config {
    #[serde(default)]
    conf: Vec<Named>,
    allow_degradation: bool,
}

/// The settings of a plugin in the runner, as it wants them: usually JSON.
#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    value: String,
}

pub(crate) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "conf": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "maxLength": 128, "minLength": 1},
                        "value": {"type": "string"},
                    },
                    "required": ["name", "value"],
                },
                "minItems": 1,
            },
            "allow_degradation": {"type": "boolean", "default": false},
        },
    })
}

/// A plugin instance that calls the runner.
pub(crate) struct External {
    plugin: &'static str,
    caller: Caller,
    allow_degradation: bool,
}

impl External {
    pub(crate) fn build(plugin: &'static str, config: Config, cx: &Build<'_>) -> Result<External, Invalid> {
        let runner = cx.service::<Runner>().ok_or_else(|| Invalid::new("this program has no runner"))?;
        let allow_degradation = config.allow_degradation;
        Ok(External { plugin, caller: Caller::new(plugin, config, runner, cx), allow_degradation })
    }

    /// The answer to a call that failed.
    fn failed(&self, x: &Exchange<'_>, failure: Failure) -> Step {
        let words = match failure {
            Failure::Broken(words) => words,
            Failure::NeedsBody => return Step::Body(MOST_BODY),
            Failure::NoMemory => return crate::no_memory(),
            Failure::UnknownToken | Failure::Stale => "the runner does not answer",
        };
        x.complain(self.plugin, words);
        match self.allow_degradation {
            true => Step::Next,
            false => Step::Reply(Reply::status(503).because(words)),
        }
    }

    /// The answer where the runner cannot be asked.
    pub(crate) fn refuse(&self, x: &Exchange<'_>, words: &'static str) -> Step {
        self.failed(x, Failure::Broken(words))
    }

    /// Before the call for a request.
    pub(crate) fn begin(&self, x: &mut Exchange<'_>) -> Step {
        if let Some(Pending { body, held }) = x.take_note::<Pending>() {
            return self.replace_body(x, body, held);
        }
        if self.caller.wants_body.load(Ordering::Relaxed) && x.lacks_body(MOST_BODY) {
            return Step::Body(MOST_BODY);
        }
        Step::Wait
    }

    /// Calls the runner with a request, and does what it decides.
    pub(crate) async fn decide(&self, x: &mut Exchange<'_>) -> Step {
        let request = Subject::Request(changes::request(x));
        let answer = match self.caller.call(x, &request).await {
            Ok(answer) => answer,
            Err(failure) => return self.failed(x, failure),
        };
        let Some(action) = Action::read(&answer.bytes) else {
            return self.failed(x, Failure::Broken("the runner's answer is invalid"));
        };
        match action {
            Action::None => Step::Next,
            Action::Stop { status, headers, body } => Step::Reply(changes::reply(status, &headers, body)),
            Action::Rewrite { path, headers, args, response_headers, body } => {
                changes::rewrite(x, path, &headers, &args, &response_headers);
                if body.is_empty() {
                    return Step::Next;
                }
                let (body, mut held) = (body.to_vec(), Reservation::default());
                if held.resize(x.world().budget(), body.len()).is_err() {
                    return crate::no_memory();
                }
                self.replace_body(x, body, held)
            }
        }
    }

    /// Replaces the request's body; the client's own is received before.
    fn replace_body(&self, x: &mut Exchange<'_>, body: Vec<u8>, held: Reservation) -> Step {
        match x.body_state() {
            Body::Streaming if x.lacks_body(MOST_BODY) => {
                x.set_note(Pending { body, held });
                return Step::Body(MOST_BODY);
            }
            Body::TooLarge => return Step::Reply(Reply::status(413)),
            _ => {}
        }
        drop(held);
        match x.set_body(body) {
            Ok(()) => Step::Next,
            Err(_) => crate::no_memory(),
        }
    }
}

impl External {
    /// Calls the runner with a response of the upstream. Returns its body, and the response that takes its place.
    pub(crate) async fn decide_response(&self, x: &mut Exchange<'_>, body: Vec<u8>) -> (Vec<u8>, Step) {
        let call = Subject::Response(changes::response(x), &body);
        let answer = self.caller.call(x, &call).await;
        let step = match &answer {
            Ok(answer) => match Changed::read(&answer.bytes) {
                Some(changed) => Step::Reply(changes::changed(x, &changed, &body)),
                None => self.failed(x, Failure::Broken("the runner's answer is invalid")),
            },
            Err(failure) => self.failed(x, *failure),
        };
        (body, step)
    }
}

/// A note: the body that the runner has made, while that of the client is received.
struct Pending {
    body: Vec<u8>,
    held: Reservation,
}

#[cfg(test)]
mod tests;
