//! otlp-logger: sends entries as log records to an OpenTelemetry collector, by OTLP over HTTP or gRPC.
//!
//! A plugin of our own. Without `endpoint` the collector is that of `plugin_attr.opentelemetry`. The attributes of a
//! record follow OpenTelemetry's semantic conventions; with a `log_format` the entry is the body instead. A request
//! with a span of [opentelemetry](opentelemetry.md) has its trace and span in the record.

mod record;

use model::Invalid;
use sdk::chain::Phases;
use sdk::otlp::{REQUEST_BYTES, Signal};
use sdk::sink::{Batching, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::collector::{Collector, Own};
use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct OtlpLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint: Option<String>,
    protocol: Option<Protocol>,
    headers: Option<Map<String, Value>>,
    /// Seconds.
    timeout: Option<u64>,
    ssl_verify: bool,
    resource: Option<Map<String, Value>>,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Protocol {
    Http,
    Grpc,
}

impl Plugin for OtlpLogger {
    const NAME: &'static str = "otlp-logger";
    const PRIORITY: i32 = 416;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "endpoint": {"type": "string", "minLength": 1},
            "protocol": {"type": "string", "enum": ["http", "grpc"]},
            "headers": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
            "timeout": {"type": "integer", "minimum": 1, "maximum": 60},
            "ssl_verify": {"type": "boolean", "default": true},
            "resource": {
                "type": "object",
                "additionalProperties": {"oneOf": [{"type": "boolean"}, {"type": "number"}, {"type": "string"}]},
            },
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "otlp logger"),
            "encrypt_fields": ["headers"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<OtlpLogger, Invalid> {
        let collector = config.collector(cx.attr_of("opentelemetry").unwrap_or(&Value::Null));
        let target = collector.destination(Signal::Logs)?;
        let logger = Logger::build(config.options, cx)?;
        let batching = Batching { max_bytes: REQUEST_BYTES, ..config.batching };
        Ok(OtlpLogger { logger, sink: cx.own_sink(Self::NAME, target, batching) })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = record::of(&self.logger, x) {
            self.sink.push(x, record);
        }
    }
}

impl Config {
    fn collector(&self, opentelemetry: &Value) -> Collector {
        let own = Own {
            endpoint: self.endpoint.clone(),
            grpc: self.protocol.map(|protocol| protocol == Protocol::Grpc),
            headers: self.headers.clone(),
            timeout: self.timeout.map(|seconds| seconds * 1000),
            verify: self.ssl_verify,
            resource: self.resource.clone(),
            pointers: ["/endpoint", "/headers"],
        };
        own.with(opentelemetry)
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn config(more: Value) -> Config {
        let schema = model::Schema::new(&OtlpLogger::schema()).unwrap();
        serde_json::from_value(schema.parse(more).unwrap()).unwrap()
    }

    #[test]
    fn settings_that_are_absent_are_those_of_opentelemetry() {
        let shared = json!({
            "collector": {"address": "c.test:4317", "protocol": "grpc", "request_timeout": 9, "request_headers": {"Authorization": "s3cr3t"}},
            "resource": {"service.name": "gate"},
        });
        let alone = config(json!({})).collector(&Value::Null);
        assert_eq!((&alone.address[..], alone.grpc, alone.timeout), ("127.0.0.1:4318", false, 3000));
        let same = config(json!({})).collector(&shared);
        assert_eq!((&same.address[..], same.grpc, same.timeout), ("c.test:4317", true, 9000));
        assert_eq!(
            (&same.headers["Authorization"], &same.resource["service.name"]),
            (&json!("s3cr3t"), &json!("gate"))
        );
        let own = config(json!({"endpoint": "http://own.test", "resource": {"a": 1}, "ssl_verify": false}));
        let own = own.collector(&shared);
        assert_eq!((&own.address[..], own.grpc, own.timeout), ("http://own.test", false, 3000));
        assert!(own.headers.is_empty() && !own.verify && own.resource.len() == 1, "{own:?}");
        let part =
            config(json!({"protocol": "http", "timeout": 1, "headers": {"X-A": "b"}})).collector(&shared);
        assert_eq!((&part.address[..], part.grpc, part.timeout), ("c.test:4317", false, 1000));
        assert_eq!(Value::from(part.headers), json!({"X-A": "b"}));
    }

    #[test]
    fn mistakes_are_named() {
        let build = |config: Value| Probe::default().stage::<OtlpLogger>(config).map(drop);
        assert_eq!(build(json!({})), Ok(()));
        assert_eq!(
            build(json!({"endpoint": "https://c.test/otlp", "headers": {"Authorization": "a b"}})),
            Ok(())
        );
        for (config, pointer) in [
            (json!({"endpoint": "ftp://c.test"}), "/endpoint"),
            (json!({"endpoint": "http://c.test:x"}), "/endpoint"),
            (json!({"protocol": "udp"}), "/protocol"),
            (json!({"headers": {"a b": "c"}}), "/headers/a b"),
            (json!({"headers": {"Content-Length": "1"}}), "/headers/Content-Length"),
            (json!({"resource": {"a": []}}), "/resource/a"),
            (json!({"include_req_body_expr": [["a"]]}), "/include_req_body_expr"),
        ] {
            assert_eq!(build(config.clone()).unwrap_err().pointer, pointer, "{config}");
        }
    }
}
