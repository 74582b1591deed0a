//! example-plugin: sends the requests of a route to the server named in its settings.
//!
//! APISIX 3.18 has it as the example of a plugin, in its list of plugins by default: `ip` and `port` take the place of
//! the route's upstream, the other settings and the metadata have no effect, and the control API answers
//! `GET /v1/plugin/example-plugin/hello`. APISIX also logs each phase; this plugin logs nothing.

use model::Invalid;
use sdk::chain::Phases;
use sdk::endpoint::{ControlReply, ControlRequest};
use sdk::{Build, Exchange, Plugin, Step, UpstreamHandle};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::query::{Arg, find};

/// The configured plugin.
pub struct ExamplePlugin {
    upstream: Option<UpstreamHandle>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    ip: Option<String>,
    port: Option<Value>,
}

impl Plugin for ExamplePlugin {
    const NAME: &'static str = "example-plugin";
    const PRIORITY: i32 = 0;
    const PHASES: Phases = Phases::ACCESS;

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "i": {"type": "number", "minimum": 0},
                "s": {"type": "string"},
                "t": {"type": "array", "minItems": 1},
                "ip": {"type": "string"},
                "port": {"type": "integer"},
            },
            "required": ["i"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(json!({
            "type": "object",
            "properties": {"ikey": {"type": "number", "minimum": 0}, "skey": {"type": "string"}},
            "required": ["ikey", "skey"],
        }))
    }

    fn control(request: &ControlRequest) -> Option<ControlReply> {
        if (request.method.as_str(), request.path()) != ("GET", "/v1/plugin/example-plugin/hello") {
            return None;
        }
        let query = request.uri.split_once('?').map_or("", |(_, query)| query);
        let (kind, body) = match find(query.as_bytes(), b"json") {
            Arg::Absent => ("text/plain; charset=utf-8", "world\n"),
            Arg::One(_) | Arg::Other => ("application/json", "{\"msg\":\"world\"}\n"),
        };
        let headers = vec![("Content-Type".to_owned(), kind.into())];
        Some(ControlReply { status: 200, headers, body: body.into() })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ExamplePlugin, Invalid> {
        let Some(ip) = config.ip else { return Ok(ExamplePlugin { upstream: None }) };
        let mut node = json!({"host": ip, "weight": 1});
        if let Some(port) = config.port {
            node["port"] = port;
        }
        let upstream = cx.upstream(&json!({"type": "roundrobin", "nodes": [node]}));
        // The pointers of its errors lead into an upstream that is not in the settings.
        let upstream = upstream.map_err(|invalid| Invalid::new(format!("invalid ip or port: {invalid}")))?;
        Ok(ExamplePlugin { upstream: Some(upstream) })
    }

    fn phases(&self) -> Phases {
        if self.upstream.is_some() { Self::PHASES } else { Phases::NONE }
    }

    fn is_pure(&self) -> bool {
        true
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        if let Some(upstream) = &self.upstream {
            x.choose_upstream(upstream);
        }
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn only_settings_with_an_address_choose_an_upstream() {
        let mut probe = Probe::get("/");
        let stage: ExamplePlugin = probe.stage(json!({"i": 1, "ip": "127.0.0.1", "port": 80})).unwrap();
        // It stands for an upstream that compile has made.
        stage.upstream.as_ref().unwrap().place(3);
        let mut x = probe.exchange();
        assert!(matches!(stage.access(&mut x), Step::Next));
        assert!(x.engine().forward.upstream.is_some());
        let plain: ExamplePlugin = Probe::get("/").stage(json!({"i": 1, "s": "a", "t": [1]})).unwrap();
        assert_eq!(plain.phases(), Phases::NONE);
    }

    #[test]
    fn invalid_settings_are_rejected() {
        for (config, text) in [
            (json!({}), "property \"i\" is required"),
            (json!({"i": 1, "ip": "127.0.0.1", "port": 65536}), "invalid ip or port: "),
            (json!({"i": 1, "ip": "not a host"}), "invalid ip or port: "),
        ] {
            let invalid = Probe::get("/").stage::<ExamplePlugin>(config.clone()).err().unwrap();
            assert!(invalid.to_string().contains(text), "{config}: {invalid}");
        }
    }
}
