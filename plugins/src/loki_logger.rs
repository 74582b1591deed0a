//! loki-logger: pushes entries to Grafana Loki, in streams by their labels.
//!
//! Settings as in APISIX 3.18; of several servers, each batch goes to the next one.

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Sink};
use sdk::template::Template;
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::logger::{self, Logger, Options, endpoint, logger_phases};

/// The plugin instance.
pub struct LokiLogger {
    pub(crate) logger: Logger,
    labels: Labels,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint_addrs: Vec<String>,
    endpoint_uri: String,
    tenant_id: String,
    #[serde(default)]
    headers: Map<String, Value>,
    log_labels: Map<String, Value>,
    ssl_verify: bool,
    /// Milliseconds.
    timeout: u64,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

/// The labels of an entry, by name.
struct Labels(Vec<(String, Label)>);

struct Label {
    text: String,
    value: Template,
}

impl Plugin for LokiLogger {
    const NAME: &'static str = "loki-logger";
    const PRIORITY: i32 = 414;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let texts = || json!({".*": {"type": "string", "minLength": 1}});
        let own = json!({
            "endpoint_addrs": {"type": "array", "minItems": 1, "items": endpoint::uri_schema()},
            "endpoint_uri": {"type": "string", "minLength": 1, "default": "/loki/api/v1/push"},
            "tenant_id": {"type": "string", "default": "fake"},
            "headers": {"type": "object", "patternProperties": texts()},
            "log_labels": {"type": "object", "patternProperties": texts(), "default": {"job": "apisix"}},
            "ssl_verify": {"type": "boolean", "default": false},
            "timeout": {"type": "integer", "minimum": 1, "maximum": 60000, "default": 3000},
            "keepalive": {"type": "boolean", "default": true},
            "keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 60000},
            "keepalive_pool": {"type": "integer", "minimum": 1, "default": 5},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "loki logger"),
            "required": ["endpoint_addrs"],
            "encrypt_fields": ["headers"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<LokiLogger, Invalid> {
        let Config { endpoint_addrs, endpoint_uri, tenant_id, headers, log_labels, .. } = config;
        let Config { ssl_verify, timeout, options, batching, .. } = config;
        let logger = Logger::build(options, cx)?;
        let (servers, endpoints) =
            endpoint::all(endpoint::listed(&endpoint_addrs), &endpoint_uri, ssl_verify)?;
        endpoint::check_value(&tenant_id, "/tenant_id")?;
        let mut fields = json!({});
        endpoint::add_fields(&mut fields, &headers, "/headers")?;
        if let Value::Object(fields) = &mut fields {
            fields.retain(|name, _| {
                !["x-scope-orgid", "content-type"].iter().any(|own| name.eq_ignore_ascii_case(own))
            });
        }
        fields["X-Scope-OrgID"] = tenant_id.into();
        fields["Content-Type"] = "application/json".into();
        let settings = json!({"endpoints": endpoints, "headers": fields, "timeout": timeout});
        let target = Destination { sink: "loki", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(LokiLogger { logger, labels: Labels::new(&log_labels), sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        let Some(mut record) = self.logger.record(x, Some(logger::UNMATCHED)) else { return };
        record.fields.push(("labels", self.labels.json(x)));
        let nanoseconds = u128::from(x.start_ms()) * 1_000_000;
        record.fields.push(("time", nanoseconds.to_string().into_bytes()));
        self.sink.push(x, record);
    }
}

impl Labels {
    fn new(written: &Map<String, Value>) -> Labels {
        let label = |(name, value): (&String, &Value)| {
            let text = value.as_str().unwrap_or_default().to_owned();
            (name.clone(), Label { value: Template::parse(&text), text })
        };
        Labels(written.iter().map(label).collect())
    }

    /// A label whose variables are all absent is its own text, as in APISIX.
    fn json(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut out = vec![b'{'];
        for (at, (name, label)) in self.0.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            json_text(name.as_bytes(), &mut out);
            out.push(b':');
            let mut value = Vec::new();
            if label.value.render(x, &mut value) == 0 {
                value = label.text.clone().into_bytes();
            }
            json_text(&value, &mut out);
        }
        out.push(b'}');
        out
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn labels_have_variables() {
        let mut probe = Probe::get("/a?x=\"");
        let labels = json!({"a": "b", "c": "$arg_x-${uri}", "none": "$http_none", "some": "$http_none$uri"});
        let labels = Labels::new(labels.as_object().unwrap());
        let text = labels.json(&probe.exchange());
        let found: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(found, json!({"a": "b", "c": "\"-/a", "none": "$http_none", "some": "/a"}));
    }

    #[test]
    fn mistakes_are_named() {
        let build = |more: Value| {
            let mut config = json!({"endpoint_addrs": ["http://h"]});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Probe::default().stage::<LokiLogger>(config).map(drop)
        };
        assert_eq!(build(json!({"headers": {"Authorization": "Bearer x"}})), Ok(()));
        for (more, pointer) in [
            (json!({"endpoint_uri": "/a b"}), "/endpoint_addrs/0"),
            (json!({"endpoint_addrs": ["http://h", "ftp://h"]}), "/endpoint_addrs/1"),
            (json!({"tenant_id": "a\nb"}), "/tenant_id"),
            (json!({"headers": {"Content-Length": "0"}}), "/headers/Content-Length"),
            (json!({"timeout": 60_001}), "/timeout"),
        ] {
            assert_eq!(build(more.clone()).unwrap_err().pointer, pointer, "{more}");
        }
    }
}
