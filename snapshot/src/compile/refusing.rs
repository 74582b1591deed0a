//! Chains that refuse everything. Resources whose guard cannot be built are refused instead of
//! served unguarded: a consumer whose group does not exist (APISIX identifies such a consumer and
//! then answers 503), and routes, stream routes and global rules whose secret cannot be read.

use std::sync::Arc;

use sdk::chain::Fitting;
use sdk::step::Reply;
use sdk::{Chain, Exchange, Instance, Phase, Phases, Step};
use serde_json::json;

/// Refuses in the first phase after the consumer is identified, with a reason; streams are closed
/// without one.
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
