//! hot path
//!
//! limit-conn on streams: limits concurrent connections per key; a few more wait first.
//!
//! Settings as in APISIX 3.18, which are fewer than on routes: no rules, no counting across nodes, no
//! words for a refusal. A connection counts until it is over.

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::{Build, Exchange, Plugin, Step};
use serde_json::{Value, json};

use crate::limit_conn as http;

/// The plugin instance.
pub struct LimitConn(http::LimitConn);

impl Plugin for LimitConn {
    const NAME: &'static str = http::LimitConn::NAME;
    const PRIORITY: i32 = http::LimitConn::PRIORITY;
    const PHASES: Phases = Phases::PREREAD;

    type Config = Value;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "conn": {"type": "integer", "exclusiveMinimum": 0},
                "burst": {"type": "integer", "minimum": 0},
                "default_conn_delay": {"type": "number", "exclusiveMinimum": 0},
                "only_use_default_delay": {"type": "boolean", "default": false},
                "key": {"type": "string"},
                "key_type": {"type": "string", "enum": ["var", "var_combination"], "default": "var"},
            },
            "required": ["conn", "burst", "default_conn_delay", "key"],
        })
    }

    fn build(config: Value, cx: &mut Build<'_>) -> Result<LimitConn, Invalid> {
        http::LimitConn::build(http::Config::of_stream(config)?, cx).map(LimitConn)
    }

    fn preread(&self, x: &mut Exchange<'_>) -> Step {
        self.0.access(x)
    }

    async fn wait(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        self.0.wait(phase, x).await
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn one_too_many_is_refused_until_another_is_over() {
        let config = json!({"conn": 1, "burst": 0, "default_conn_delay": 0.1, "key": "remote_addr"});
        let mut one = Probe::stream();
        let plugin: LimitConn = one.stage(config.clone()).unwrap();
        let mut first = one.exchange();
        assert!(matches!(plugin.preread(&mut first), Step::Next));
        let mut two = Probe::stream();
        let step = plugin.preread(&mut two.exchange());
        assert!(matches!(step, Step::Reply(reply) if reply.status == 503));
        first.engine_mut().messages.holds.clear();
        let mut three = Probe::stream();
        assert!(matches!(plugin.preread(&mut three.exchange()), Step::Next));
    }

    #[test]
    fn settings_are_those_of_streams() {
        let probe = Probe::stream();
        let refused =
            probe.stage::<LimitConn>(json!({"conn": "$a", "burst": 0, "default_conn_delay": 1, "key": "a"}));
        assert_eq!(refused.err().unwrap().pointer, "/conn");
        let refused = probe.stage::<LimitConn>(json!({"conn": 1}));
        assert_eq!(refused.err().unwrap().reason, "property \"burst\" is required");
    }
}
