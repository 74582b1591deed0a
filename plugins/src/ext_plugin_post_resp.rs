//! ext-plugin-post-resp: a runner decides about the responses of the upstream.
//!
//! Settings, priority and statuses as in APISIX 3.18, which forwards the request itself here, without balancing, retries
//! and health checks. This is a filter of the response, which is held until the runner has decided.

use model::Invalid;
use sdk::budget::Reservation;
use sdk::chain::Phases;
use sdk::exchange::Source;
use sdk::{Build, Chunk, Exchange, Method, Phase, Plugin, Step};
use serde_json::Value;

use crate::ext_plugin::{Config, External, schema};

/// The longest body that is held, in bytes.
const MOST_RESPONSE: usize = 8 << 20;

/// The stage.
pub struct ExtPluginPostResp(External);

/// A note of [`ExtPluginPostResp`]: the body so far, and whether the runner has decided.
#[derive(Default)]
struct Held {
    body: Vec<u8>,
    memory: Reservation,
    is_decided: bool,
}

impl Plugin for ExtPluginPostResp {
    const NAME: &'static str = "ext-plugin-post-resp";
    const PRIORITY: i32 = -4000;
    const PHASES: Phases = Phases::HEADER_FILTER.with(Phases::BODY_FILTER);

    type Config = Config;

    fn schema() -> Value {
        schema()
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ExtPluginPostResp, Invalid> {
        Ok(ExtPluginPostResp(External::build(Self::NAME, config, cx)?))
    }

    fn header_action(&self, x: &mut Exchange<'_>) -> Step {
        if x.source() != Source::Upstream {
            // The runner's own response, or one in the place of a body that is held so far.
            x.take_note::<Held>();
            return Step::Next;
        }
        if x.status() == 101 {
            return self.0.refuse(x, "a runner cannot decide about a tunnel");
        }
        x.set_note(Held::default());
        // Body filters see nothing of these.
        match x.method() == Method::Head || matches!(x.status(), 204 | 205 | 304) {
            true => Step::Wait,
            false => Step::Next,
        }
    }

    fn filters_body(&self, x: &Exchange<'_>) -> bool {
        x.note::<Held>().is_some_and(|held| !held.is_decided)
    }

    fn holds_body(&self, x: &Exchange<'_>) -> bool {
        self.filters_body(x)
    }

    fn body_action(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let budget = x.world().budget();
        let Some(held) = x.note_mut::<Held>().filter(|held| !held.is_decided) else { return Step::Next };
        let is_long = held.body.len() + chunk.data.len() > MOST_RESPONSE;
        if is_long || held.memory.reserve(budget, &mut held.body, chunk.data.len(), MOST_RESPONSE).is_err() {
            held.is_decided = true;
            chunk.refused = true;
            return Step::Next;
        }
        held.body.append(&mut chunk.data);
        if chunk.last { Step::Wait } else { Step::Next }
    }

    async fn wait(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        self.decide(x).await.1
    }

    async fn wait_body(&self, x: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        let (body, step) = self.decide(x).await;
        chunk.data = body;
        step
    }
}

impl ExtPluginPostResp {
    /// Returns the body of the upstream, and the response that takes its place.
    async fn decide(&self, x: &mut Exchange<'_>) -> (Vec<u8>, Step) {
        let held = x.note_mut::<Held>().map(|held| {
            held.is_decided = true;
            (std::mem::take(&mut held.body), std::mem::take(&mut held.memory))
        });
        let (body, _memory) = held.unwrap_or_default();
        self.0.decide_response(x, body).await
    }
}
