//! The chain of a consumer whose group does not exist: APISIX finds such a consumer and then
//! answers 503, as it cannot know which plugins to run.

use std::sync::Arc;

use sdk::chain::Fitting;
use sdk::step::Reply;
use sdk::{Chain, Exchange, Instance, Phase, Phases, Step};
use serde_json::json;

/// Refuses in the first phase there is after the consumer was found.
struct Refusing;

pub(super) fn chain() -> Arc<Chain> {
    let fitting = Fitting { name: "", priority: i32::MAX, meta: None };
    Arc::new(Chain::of(fitting.stage(Refusing)))
}

impl Instance for Refusing {
    fn phases(&self) -> Phases {
        Phases::REWRITE
    }

    fn ask(&self, _: Phase, _: &mut Exchange<'_>) -> Step {
        Step::Reply(Reply::json(
            503,
            &json!({
                "error_msg": "503 Service Temporarily Unavailable",
                "reason": "the consumer's group does not exist",
            }),
        ))
    }
}
