//! elasticsearch-logger: sends entries to Elasticsearch or OpenSearch with the bulk API.
//!
//! Settings as in APISIX 3.18, with a difference: documents that the server reports as failed are sent again, where
//! their failure may pass, or counted as dropped. Times in the name of the index are UTC.

mod index;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::logger::{self, Logger, Options, endpoint, logger_phases};
use index::Index;

/// The plugin instance.
pub struct ElasticsearchLogger {
    pub(crate) logger: Logger,
    index: Index,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint_addr: Option<String>,
    endpoint_addrs: Option<Vec<String>>,
    field: Field,
    auth: Option<Auth>,
    #[serde(default)]
    headers: Map<String, Value>,
    /// Seconds.
    timeout: u64,
    ssl_verify: bool,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Deserialize)]
struct Field {
    index: String,
}

#[derive(Debug, Deserialize)]
struct Auth {
    username: String,
    password: String,
}

impl Plugin for ElasticsearchLogger {
    const NAME: &'static str = "elasticsearch-logger";
    const PRIORITY: i32 = 413;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let address = || json!({"type": "string", "pattern": "[^/]$"});
        let own = json!({
            "endpoint_addr": address(),
            "endpoint_addrs": {"type": "array", "minItems": 1, "items": address()},
            "field": {"type": "object", "properties": {"index": {"type": "string"}}, "required": ["index"]},
            "auth": {
                "type": "object",
                "properties": {
                    "username": {"type": "string", "minLength": 1},
                    "password": {"type": "string", "minLength": 1},
                },
                "oneOf": [{"required": ["username", "password"]}],
            },
            "headers": {
                "type": "object",
                "minProperties": 1,
                "patternProperties": {"^[^:]+$": {"type": "string", "minLength": 1}},
                "additionalProperties": false,
            },
            "timeout": {"type": "integer", "minimum": 1, "default": 10},
            "ssl_verify": {"type": "boolean", "default": true},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "elasticsearch-logger"),
            "oneOf": [{"required": ["endpoint_addr", "field"]}, {"required": ["endpoint_addrs", "field"]}],
            "encrypt_fields": ["auth.password", "headers"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ElasticsearchLogger, Invalid> {
        let Config { endpoint_addr, endpoint_addrs, field, auth, headers, .. } = config;
        let Config { timeout, ssl_verify, options, batching, .. } = config;
        let logger = Logger::build(options, cx)?;
        let index = Index::parse(&field.index)?;
        let addresses = endpoint::either(endpoint_addr.as_deref(), endpoint_addrs.as_deref());
        let (servers, endpoints) = endpoint::all(addresses, "/_bulk", ssl_verify)?;
        let mut fields = json!({
            "Content-Type": "application/x-ndjson",
            "Accept": "application/vnd.elasticsearch+json",
            "Authorization": auth.map(|Auth { username, password }| {
                format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
            }),
        });
        if let Value::Object(fields) = &mut fields {
            fields.retain(|name, _| !headers.keys().any(|other| other.eq_ignore_ascii_case(name)));
        }
        endpoint::add_fields(&mut fields, &headers, "/headers")?;
        let settings =
            json!({"endpoints": endpoints, "headers": fields, "timeout": timeout.saturating_mul(1000)});
        let target = Destination { sink: "elasticsearch", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(ElasticsearchLogger { logger, index, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        let Some(mut record) = self.logger.record(x, None) else { return };
        record.fields.push(("index", self.index.name(x)));
        self.sink.push(x, record);
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn mistakes_are_named() {
        let build = |more: Value| {
            let mut config = json!({"endpoint_addr": "http://h:9200", "field": {"index": "a"}});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Probe::default().stage::<ElasticsearchLogger>(config).map(drop)
        };
        assert_eq!(build(json!({"auth": {"username": "u", "password": "p"}})), Ok(()));
        for (more, pointer) in [
            (json!({"endpoint_addr": "h:9200"}), "/endpoint_addr"),
            (json!({"endpoint_addr": "http://h/"}), "/endpoint_addr"),
            (json!({"field": {"index": "a-{%Q}"}}), "/field/index"),
            (json!({"headers": {"a b": "c"}}), "/headers/a b"),
            (json!({"endpoint_addrs": ["http://h"]}), ""),
        ] {
            assert_eq!(build(more.clone()).unwrap_err().pointer, pointer, "{more}");
        }
    }
}
