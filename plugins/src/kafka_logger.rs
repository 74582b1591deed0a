//! kafka-logger: sends entries to a topic of Apache Kafka.
//!
//! Settings as in APISIX 3.18. A batch is one message: the entry itself (`batch_max_size: 1`), or a JSON array. Each
//! message is acknowledged before the next one is sent, with either `producer_type`.

use std::collections::BTreeMap;

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct KafkaLogger {
    pub(crate) logger: Logger,
    origin: Option<Origin>,
    sink: Sink,
}

/// How the request itself is sent, in place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Plain,
    /// As a text of JSON, for an array of them.
    Text,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    meta_format: MetaFormat,
    broker_list: Option<BTreeMap<String, i64>>,
    brokers: Option<Vec<Broker>>,
    tls: Option<Tls>,
    kafka_topic: String,
    required_acks: i16,
    key: Option<String>,
    /// Seconds.
    timeout: u64,
    meta_refresh_interval: u64,
    producer_batch_size: usize,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MetaFormat {
    Default,
    Origin,
}

#[derive(Debug, Deserialize)]
struct Broker {
    host: String,
    port: i64,
    sasl_config: Option<Sasl>,
}

#[derive(Debug, Deserialize)]
struct Sasl {
    mechanism: String,
    user: String,
    password: String,
}

#[derive(Debug, Deserialize)]
struct Tls {
    #[serde(default)]
    verify: bool,
}

/// A smaller batch would be no batch.
const SMALLEST: usize = 1 << 10;

impl Plugin for KafkaLogger {
    const NAME: &'static str = "kafka-logger";
    const PRIORITY: i32 = 403;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let port = || json!({"type": "integer", "minimum": 1, "maximum": 65535});
        let count = |default: u64| json!({"type": "integer", "minimum": 1, "default": default});
        let sasl = json!({
            "type": "object",
            "properties": {
                "mechanism": {
                    "type": "string",
                    "default": "PLAIN",
                    "enum": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
                },
                "user": {"type": "string"},
                "password": {"type": "string"},
            },
            "required": ["user", "password"],
        });
        let own = json!({
            "meta_format": {"type": "string", "default": "default", "enum": ["default", "origin"]},
            "broker_list": {"type": "object", "minProperties": 1, "patternProperties": {".*": port()}},
            "brokers": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {"host": {"type": "string"}, "port": port(), "sasl_config": sasl},
                    "required": ["host", "port"],
                },
                "uniqueItems": true,
            },
            "tls": {"type": "object", "properties": {"verify": {"type": "boolean", "default": false}}},
            "kafka_topic": {"type": "string"},
            "producer_type": {"type": "string", "default": "async", "enum": ["async", "sync"]},
            "required_acks": {"type": "integer", "default": 1, "enum": [1, -1]},
            "key": {"type": "string"},
            "timeout": count(3),
            "cluster_name": count(1),
            "producer_batch_num": count(200),
            "producer_batch_size": {"type": "integer", "minimum": 0, "default": 1_048_576},
            "producer_max_buffering": count(50_000),
            "producer_time_linger": count(1),
            "meta_refresh_interval": count(30),
            "api_version": {"type": "integer", "default": 1, "enum": [0, 1, 2]},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "kafka logger"),
            "oneOf": [{"required": ["broker_list", "kafka_topic"]}, {"required": ["brokers", "kafka_topic"]}],
            "encrypt_fields": ["brokers.sasl_config.password"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<KafkaLogger, Invalid> {
        let Config { meta_format, broker_list, brokers, tls, kafka_topic, required_acks, key, .. } = config;
        let Config { timeout, meta_refresh_interval, producer_batch_size, options, mut batching, .. } =
            config;
        let logger = Logger::build(options, cx)?;
        let is_single = batching.batch_max_size == 1;
        let origin = (meta_format == MetaFormat::Origin).then_some(if is_single {
            Origin::Plain
        } else {
            Origin::Text
        });
        // The limit of Kafka's topics.
        if kafka_topic.is_empty() || kafka_topic.len() > 249 {
            return Err(Invalid::new("a topic has 1 to 249 bytes").at("/kafka_topic"));
        }
        let mut login = Value::Null;
        let mut servers = Vec::new();
        for Broker { host, port, sasl_config } in brokers.unwrap_or_default() {
            servers.push((host, logger::port(port)?));
            // As in APISIX, the first account counts for all brokers.
            if let (Value::Null, Some(Sasl { mechanism, user, password })) = (&login, sasl_config) {
                login = json!({"mechanism": mechanism, "user": user, "password": password});
            }
        }
        for (host, port) in broker_list.unwrap_or_default() {
            servers.push((host, logger::port(port)?));
        }
        let settings = json!({
            "topic": kafka_topic,
            "key": key,
            "acks": required_acks,
            "format": if is_single { "plain" } else { "array" },
            "timeout": timeout.saturating_mul(1000),
            "refresh": meta_refresh_interval,
            "verify": tls.map(|tls| tls.verify),
            "login": login,
        });
        // A batch is a message, and brokers refuse one that is longer than about this.
        batching.max_bytes = batching.max_bytes.min((producer_batch_size / 8 * 7).max(SMALLEST));
        let target = Destination { sink: "kafka", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(KafkaLogger { logger, origin, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        let entry = match self.origin {
            None => self.logger.entry(x, None),
            Some(Origin::Plain) => self.request(x),
            Some(Origin::Text) => {
                let request = self.request(x);
                let mut text = Vec::with_capacity(request.len() + 64);
                json_text(&request, &mut text);
                text
            }
        };
        self.sink.push(x, entry);
    }
}

impl KafkaLogger {
    /// The request as it came: its line, its headers and, if wanted, its body.
    fn request(&self, x: &Exchange<'_>) -> Vec<u8> {
        let head = x.request();
        let mut out = Vec::with_capacity(512);
        let line =
            [head.method_bytes(), b" ", head.target(), b" ", head.version.as_str().as_bytes(), b"\r\n"];
        line.iter().for_each(|part| out.extend_from_slice(part));
        for (name, value, _) in head.fields.iter() {
            out.extend(name.iter().map(u8::to_ascii_lowercase));
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        if let Some(body) = self.logger.logged_request_body(x) {
            out.extend_from_slice(body);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn stage(more: Value) -> Result<KafkaLogger, Invalid> {
        let mut config = json!({"brokers": [{"host": "k", "port": 9092}], "kafka_topic": "t"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Probe::default().stage(config)
    }

    #[test]
    fn the_request_itself_may_be_sent() {
        let mut probe = Probe::request("GET", "/a?b=c", &[("Host", "h"), ("X-A", "b")]);
        let plugin = stage(json!({"meta_format": "origin", "batch_max_size": 1})).unwrap();
        assert_eq!(plugin.origin, Some(Origin::Plain));
        assert_eq!(plugin.request(&probe.exchange()), b"GET /a?b=c HTTP/1.1\r\nhost: h\r\nx-a: b\r\n\r\n");
        assert_eq!(stage(json!({"meta_format": "origin"})).unwrap().origin, Some(Origin::Text));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(stage(json!({"tls": {}})).is_ok());
        for (more, pointer) in [
            (json!({"kafka_topic": ""}), "/kafka_topic"),
            (json!({"kafka_topic": "t".repeat(250)}), "/kafka_topic"),
            (json!({"brokers": []}), "/brokers"),
            (json!({"broker_list": {"k": 9092}}), ""),
            (json!({"required_acks": 0}), "/required_acks"),
        ] {
            assert_eq!(stage(more.clone()).err().unwrap().pointer, pointer, "{more}");
        }
    }
}
