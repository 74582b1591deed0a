//! The settings that all instances share: the collector, the resource, the bounds of the queue.

use model::Invalid;
use sdk::otlp::{REQUEST_BYTES, Signal};
use sdk::sink::{Batching, Destination, Spec};
use serde_json::{Value, json};

use crate::collector::Collector;

/// Where the metadata does not say otherwise, as in APISIX's library.
const QUEUE: u64 = 2048;
const BATCH: u64 = 256;
const BATCH_TIMEOUT: f64 = 5.0;
const INACTIVE_TIMEOUT: f64 = 2.0;

/// How often a batch is sent again, if the collector is busy.
const RETRIES: u64 = 1;

pub(super) struct Settings {
    pub of_request_id: bool,
    pub sets_variables: bool,
    target: Destination,
    batching: Batching,
    max_spans: usize,
}

pub(super) fn schema() -> Value {
    let values = || json!({"oneOf": [{"type": "boolean"}, {"type": "number"}, {"type": "string"}]});
    json!({
        "type": "object",
        "properties": {
            "trace_id_source": {"type": "string", "enum": ["x-request-id", "random"], "default": "random"},
            "resource": {"type": "object", "additionalProperties": values()},
            "collector": {
                "type": "object",
                "properties": {
                    "address": {"type": "string", "default": "127.0.0.1:4318"},
                    "protocol": {"type": "string", "enum": ["http", "grpc"], "default": "http"},
                    "request_timeout": {"type": "integer", "default": 3},
                    "request_headers": {"type": "object", "additionalProperties": values()},
                },
                "default": {"address": "127.0.0.1:4318", "request_timeout": 3},
            },
            "batch_span_processor": {
                "type": "object",
                "properties": {
                    "drop_on_queue_full": {"type": "boolean"},
                    "max_queue_size": {"type": "integer"},
                    "batch_timeout": {"type": "number"},
                    "inactive_timeout": {"type": "number"},
                    "max_export_batch_size": {"type": "integer"},
                },
                "default": {},
            },
            "set_ngx_var": {"type": "boolean", "default": false},
        },
    })
}

impl Settings {
    /// # Errors
    /// An address that is not valid, or a header that cannot be sent.
    pub(super) fn read(written: &Value) -> Result<Settings, Invalid> {
        let at = |pointer: &str| written.pointer(pointer);
        let target = Collector::of_opentelemetry(written).destination(Signal::Traces)?;
        let processor = |name: &str| at(&format!("/batch_span_processor/{name}"));
        let count = |name: &str, default: u64| {
            let count = processor(name).and_then(Value::as_u64).filter(|&count| count > 0);
            usize::try_from(count.unwrap_or(default)).unwrap_or(usize::MAX)
        };
        let seconds = |name: &str, default: f64| {
            let seconds = processor(name).and_then(Value::as_f64).filter(|&seconds| seconds > 0.0);
            seconds.unwrap_or(default).ceil() as u64
        };
        Ok(Settings {
            of_request_id: at("/trace_id_source").and_then(Value::as_str) == Some("x-request-id"),
            sets_variables: at("/set_ngx_var").and_then(Value::as_bool).unwrap_or(false),
            target,
            batching: Batching {
                batch_max_size: count("max_export_batch_size", BATCH),
                inactive_timeout: seconds("inactive_timeout", INACTIVE_TIMEOUT),
                buffer_duration: seconds("batch_timeout", BATCH_TIMEOUT),
                max_retry_count: RETRIES,
                max_bytes: REQUEST_BYTES,
                ..Batching::at_once("opentelemetry")
            },
            max_spans: count("max_queue_size", QUEUE),
        })
    }

    /// The sink that all instances with these settings share.
    pub(super) fn spec(&self, plugin: &'static str) -> Spec {
        Spec {
            plugin,
            owner: None,
            target: self.target.clone(),
            batching: self.batching.clone(),
            max_entries: self.max_spans,
            max_bytes: usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_apisix_s() {
        let settings = Settings::read(&json!({})).unwrap();
        assert!(!settings.of_request_id && !settings.sets_variables);
        assert_eq!(settings.target.servers, [("127.0.0.1".to_owned(), 4318)]);
        assert_eq!(settings.target.settings["endpoints"], json!([{"uri": "/v1/traces", "tls": null}]));
        assert_eq!(settings.target.settings["resource"]["service.name"], "APISIX");
        let Batching { batch_max_size, inactive_timeout, buffer_duration, .. } = settings.batching;
        assert_eq!(
            (batch_max_size, inactive_timeout, buffer_duration, settings.max_spans),
            (256, 2, 5, 2048)
        );
    }

    #[test]
    fn all_of_it_is_read() {
        let settings = Settings::read(&json!({
            "trace_id_source": "x-request-id", "set_ngx_var": true,
            "resource": {"service.name": "gate", "n": 1.5, "b": true},
            "collector": {"address": "https://h:1/", "request_timeout": 9, "request_headers": {"A": "t", "n": 2}},
            "batch_span_processor": {"max_queue_size": 7, "batch_timeout": 1.2, "inactive_timeout": 0.1, "max_export_batch_size": 3},
        }))
        .unwrap();
        assert!(settings.of_request_id && settings.sets_variables);
        let sink = &settings.target.settings;
        assert_eq!(sink["endpoints"], json!([{"uri": "/v1/traces", "tls": {"verify": true}}]));
        assert_eq!(sink["headers"], json!({"A": "t", "n": "2", "Content-Type": "application/x-protobuf"}));
        assert_eq!((&sink["timeout"], &sink["resource"]["service.name"]), (&json!(9000), &json!("gate")));
        let Batching { batch_max_size, inactive_timeout, buffer_duration, .. } = settings.batching;
        assert_eq!((batch_max_size, inactive_timeout, buffer_duration, settings.max_spans), (3, 1, 2, 7));
    }

    #[test]
    fn a_collector_may_be_one_of_grpc() {
        let settings =
            Settings::read(&json!({"collector": {"address": "c.test:4317", "protocol": "grpc"}})).unwrap();
        assert_eq!(settings.target.servers, [("c.test".to_owned(), 4317)]);
        let sink = &settings.target.settings;
        assert_eq!(sink["endpoints"], json!([{"uri": Signal::Traces.method(), "tls": null}]));
        assert_eq!((&sink["grpc"], &sink["headers"]), (&json!(true), &json!({})));
    }

    #[test]
    fn mistakes_are_named() {
        for (written, pointer) in [
            (json!({"collector": {"address": "ftp://h"}}), "/collector/address"),
            (json!({"collector": {"request_headers": {"a": "b\n"}}}), "/collector/request_headers/a"),
        ] {
            let invalid = Settings::read(&written).err().unwrap();
            assert_eq!(invalid.pointer, pointer);
        }
    }
}
