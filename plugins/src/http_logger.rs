//! http-logger: sends entries to an HTTP server, a batch in the body of a POST.
//!
//! Settings as in APISIX 3.18. A batch of one (`batch_max_size: 1`) is the entry itself; longer ones are a
//! JSON array, or lines.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, endpoint, logger_phases};

/// The plugin instance.
pub struct HttpLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    uri: String,
    auth_header: Option<String>,
    /// Seconds.
    timeout: u64,
    concat_method: Concat,
    ssl_verify: bool,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Concat {
    Json,
    NewLine,
}

impl Plugin for HttpLogger {
    const NAME: &'static str = "http-logger";
    const PRIORITY: i32 = 410;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "uri": endpoint::uri_schema(),
            "auth_header": {"type": "string"},
            "timeout": {"type": "integer", "minimum": 1, "default": 3},
            "concat_method": {"type": "string", "default": "json", "enum": ["json", "new_line"]},
            "ssl_verify": {"type": "boolean", "default": false},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "http logger"),
            "required": ["uri"],
            "encrypt_fields": ["auth_header"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<HttpLogger, Invalid> {
        let Config { uri, auth_header, timeout, concat_method, ssl_verify, options, batching } = config;
        let logger = Logger::build(options, cx)?;
        let (servers, endpoints) = endpoint::all([(&uri[..], "/uri".to_owned())], "", ssl_verify)?;
        endpoint::check_value(auth_header.as_deref().unwrap_or_default(), "/auth_header")?;
        let (format, content_type) = match (concat_method, batching.batch_max_size) {
            (Concat::Json, 1) => ("plain", "application/json"),
            (Concat::Json, _) => ("array", "application/json"),
            (Concat::NewLine, _) => ("lines", "text/plain"),
        };
        let settings = json!({
            "endpoints": endpoints,
            "format": format,
            "headers": {"Host": servers[0].0, "Content-Type": content_type, "Authorization": auth_header},
            "timeout": timeout.saturating_mul(1000),
        });
        let target = Destination { sink: "http", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(HttpLogger { logger, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = self.logger.record(x, Some(logger::UNMATCHED)) {
            self.sink.push(x, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn refused(config: Value) -> Invalid {
        Probe::default().stage::<HttpLogger>(config).err().unwrap()
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(refused(json!({})).reason, "property \"uri\" is required");
        for (config, pointer) in [
            (json!({"uri": "http://h/a b"}), "/uri"),
            (json!({"uri": "https://h/a b"}), "/uri"),
            (json!({"uri": "http://h", "auth_header": "a\nb"}), "/auth_header"),
            (json!({"uri": "http://h", "timeout": 0}), "/timeout"),
            (json!({"uri": "http://h", "concat_method": "xml"}), "/concat_method"),
            (json!({"uri": "http://h", "batch_max_size": 0}), "/batch_max_size"),
        ] {
            assert_eq!(refused(config.clone()).pointer, pointer, "{config}");
        }
        let invalid = refused(
            json!({"uri": "http://h", "include_resp_body": true, "include_resp_body_expr": [["bar", "<>", "x"]]}),
        );
        assert!(
            invalid.reason.starts_with("failed to validate the 'include_resp_body_expr' expression: "),
            "{}",
            invalid.reason
        );
    }
}
