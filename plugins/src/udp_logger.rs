//! udp-logger: sends entries to a server in datagrams.
//!
//! Settings as in APISIX 3.18. A batch of one (`batch_max_size: 1`) is the entry itself, a longer one a JSON array.
//! Where APISIX loses a batch that is longer than a datagram, this one is split; a longer entry is dropped and counted.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct UdpLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    host: String,
    port: i64,
    /// Seconds.
    timeout: u64,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

impl Plugin for UdpLogger {
    const NAME: &'static str = "udp-logger";
    const PRIORITY: i32 = 400;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "host": {"type": "string"},
            "port": {"type": "integer", "minimum": 0},
            "timeout": {"type": "integer", "minimum": 1, "default": 3},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "udp logger"),
            "required": ["host", "port"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<UdpLogger, Invalid> {
        let Config { host, port, timeout, options, batching } = config;
        let logger = Logger::build(options, cx)?;
        let port = logger::port(port)?;
        let settings = json!({
            "format": if batching.batch_max_size == 1 { "plain" } else { "array" },
            "timeout": timeout.saturating_mul(1000),
        });
        let target = Destination::server("udp", host, port, settings);
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(UdpLogger { logger, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        self.sink.push(x, self.logger.entry(x, None));
    }
}
