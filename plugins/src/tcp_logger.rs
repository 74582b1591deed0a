//! tcp-logger: sends entries to a server, a batch over a TCP connection of its own.
//!
//! Settings as in APISIX 3.18. A batch of one (`batch_max_size: 1`) is the entry itself, a longer one a JSON
//! array; nothing stands before or behind it.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct TcpLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    host: String,
    port: i64,
    tls: bool,
    /// The server's name in the handshake.
    tls_options: Option<String>,
    /// Milliseconds.
    timeout: u64,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

impl Plugin for TcpLogger {
    const NAME: &'static str = "tcp-logger";
    const PRIORITY: i32 = 405;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "host": {"type": "string"},
            "port": {"type": "integer", "minimum": 0},
            "tls": {"type": "boolean", "default": false},
            "tls_options": {"type": "string"},
            "timeout": {"type": "integer", "minimum": 1, "default": 1000},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "tcp logger"),
            "required": ["host", "port"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<TcpLogger, Invalid> {
        let Config { host, port, tls, tls_options, timeout, options, batching } = config;
        let logger = Logger::build(options, cx)?;
        let port = logger::port(port)?;
        // As in APISIX, the server's certificate is not looked at.
        let name = tls_options.filter(|name| !name.is_empty());
        let settings = json!({
            "format": if batching.batch_max_size == 1 { "plain" } else { "array" },
            "tls": tls.then(|| json!({"name": name, "verify": false})),
            "timeout": timeout,
        });
        let target = Destination::server("tcp", host, port, settings);
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(TcpLogger { logger, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        self.sink.push(x, self.logger.entry(x, None));
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::default();
        let build = |config| probe.stage::<TcpLogger>(config).map(drop);
        assert_eq!(build(json!({"host": "h", "port": 3000, "tls": false})), Ok(()));
        assert_eq!(build(json!({"host": "h", "port": 3000, "tls": true, "tls_options": "a.b"})), Ok(()));
        assert_eq!(build(json!({"host": "h"})).unwrap_err().reason, "property \"port\" is required");
        for (config, pointer) in [
            (json!({"host": "h", "port": 0}), "/port"),
            (json!({"host": "h", "port": 65_536}), "/port"),
            (json!({"host": "h", "port": 1, "timeout": "10"}), "/timeout"),
        ] {
            assert_eq!(build(config.clone()).unwrap_err().pointer, pointer, "{config}");
        }
    }
}
