//! The chain of what cannot be guarded as its configuration says, and is refused instead of being served
//! without: a consumer whose group does not exist (APISIX finds such a consumer and then answers 503), and
//! routes, stream routes and global rules that need a secret which cannot be read.

use std::sync::Arc;

use sdk::chain::Fitting;
use sdk::step::Reply;
use sdk::{Chain, Exchange, Instance, Phase, Phases, Step};
use serde_json::json;

/// Refuses in the first phase there is after the consumer was found, and says why; to a stream nothing is said.
struct Refusing(&'static str);

/// A group that does not exist.
pub(super) const NO_GROUP: &str = "the consumer's group does not exist";

/// A secret without a value, in a route.
pub(super) const ROUTE_LACKS_SECRET: &str = "a secret that the route needs cannot be read";

/// A secret without a value, in a global rule.
pub(super) const RULE_LACKS_SECRET: &str = "a secret that a global rule needs cannot be read";

pub(super) fn chain(reason: &'static str) -> Arc<Chain> {
    let fitting = Fitting { name: "", priority: i32::MAX, meta: None };
    Arc::new(Chain::of(fitting.stage(Refusing(reason))))
}

impl Instance for Refusing {
    fn phases(&self) -> Phases {
        Phases::REWRITE.with(Phases::PREREAD)
    }

    fn ask(&self, _: Phase, _: &mut Exchange<'_>) -> Step {
        Step::Reply(Reply::json(
            503,
            &json!({
                "error_msg": "503 Service Temporarily Unavailable",
                "reason": self.0,
            }),
        ))
    }
}
