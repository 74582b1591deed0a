//! The chain of a consumer whose group does not exist: APISIX finds such a consumer and then
//! answers 503, as it cannot know which plugins to run.

use std::any::Any;
use std::sync::Arc;

use sdk::chain::{Chain, LocalFuture, Phase, Phases};
use sdk::step::Reply;
use sdk::{Chunk, Exchange, Step};
use serde_json::json;

/// Refuses in the first phase there is after the consumer was found.
#[derive(Debug)]
pub(super) struct Refusing;

impl Chain for Refusing {
    fn phases(&self) -> Phases {
        Phases::REWRITE
    }

    fn run(&self, phase: Phase, _: &mut usize, _: &mut Exchange<'_>) -> Step {
        match phase {
            Phase::Rewrite => Step::Reply(Reply::json(
                503,
                &json!({
                    "error_msg": "503 Service Temporarily Unavailable",
                    "reason": "the consumer's group does not exist",
                }),
            )),
            _ => Step::Next,
        }
    }

    fn wait<'a>(&'a self, _: Phase, _: usize, _: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async { Step::Next })
    }

    fn header_filter(&self, _: &mut Exchange<'_>) {}

    fn body_filter(&self, _: &mut Exchange<'_>, _: &mut Chunk) {}

    fn log(&self, _: &mut Exchange<'_>) {}

    fn overlay(&self, _: &dyn Chain) -> Arc<dyn Chain> {
        Arc::new(Refusing)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn names(&self) -> Vec<&'static str> {
        Vec::new()
    }
}
