//! hot path
//!
//! client-control: the largest request body of a route, instead of `client_max_body_size`.
//!
//! Settings as in APISIX 3.18. A longer body gets 413: at once if its length is declared, otherwise as
//! soon as more bytes have come.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

/// The plugin instance.
pub struct ClientControl {
    max_body_size: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    max_body_size: Option<f64>,
}

impl Plugin for ClientControl {
    const NAME: &'static str = "client-control";
    const PRIORITY: i32 = 22000;
    const PHASES: Phases = Phases::REWRITE;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "max_body_size": {"type": "integer", "minimum": 0, "description": "Maximum message body size in bytes. No restriction when set to 0."},
            },
        })
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn build(config: Config, _cx: &mut Build<'_>) -> Result<ClientControl, Invalid> {
        Ok(ClientControl { max_body_size: config.max_body_size.map(|bytes| bytes as u64) })
    }

    fn rewrite(&self, x: &mut Exchange<'_>) -> Step {
        if let Some(bytes) = self.max_body_size {
            x.set_max_body(bytes);
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn it_sets_the_limit_of_the_request() {
        for (config, limit) in [
            (json!({}), None),
            (json!({"max_body_size": 0}), Some(0)),
            (json!({"max_body_size": 1_048_576}), Some(1 << 20)),
        ] {
            let mut probe = Probe::default();
            let plugin: ClientControl = probe.stage(config).unwrap();
            let mut x = probe.exchange();
            assert!(matches!(plugin.rewrite(&mut x), Step::Next));
            assert_eq!(x.max_body(), limit);
        }
    }
}
