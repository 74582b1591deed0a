//! clickhouse-logger: inserts entries into a table of ClickHouse over its HTTP interface.
//!
//! Settings as in APISIX 3.18. A batch is one `INSERT` in the format JSONEachRow.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, endpoint, logger_phases};

/// The plugin instance.
pub struct ClickhouseLogger {
    pub(crate) logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint_addr: Option<String>,
    endpoint_addrs: Option<Vec<String>>,
    user: String,
    password: String,
    database: String,
    logtable: String,
    /// Seconds.
    timeout: u64,
    ssl_verify: bool,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

/// A table of a ClickHouse server, and who writes to it.
pub(crate) struct Table<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub database: &'a str,
    pub name: &'a str,
    /// The pointer of the settings.
    pub pointer: &'a str,
}

impl Table<'_> {
    /// Where batches are inserted into the table; `timeout` is in milliseconds.
    pub(crate) fn destination(
        &self,
        servers: Vec<(String, u16)>,
        endpoints: &[Value],
        timeout: u64,
    ) -> Result<Destination, Invalid> {
        let Table { user, password, database, name, pointer } = self;
        for (value, field) in [(user, "user"), (password, "password"), (database, "database")] {
            endpoint::check_value(value, &format!("{pointer}/{field}"))?;
        }
        let settings = json!({
            "endpoints": endpoints,
            "format": "spaces",
            "before": format!("INSERT INTO {name} FORMAT JSONEachRow "),
            "headers": {
                "Content-Type": "application/json",
                "X-ClickHouse-User": user,
                "X-ClickHouse-Key": password,
                "X-ClickHouse-Database": database,
            },
            "timeout": timeout,
        });
        Ok(Destination { sink: "http", servers, settings })
    }
}

impl Plugin for ClickhouseLogger {
    const NAME: &'static str = "clickhouse-logger";
    const PRIORITY: i32 = 398;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let text = || json!({"type": "string", "default": ""});
        let own = json!({
            "endpoint_addr": endpoint::uri_schema(),
            "endpoint_addrs": {"type": "array", "minItems": 1, "items": endpoint::uri_schema()},
            "user": text(),
            "password": text(),
            "database": text(),
            "logtable": text(),
            "timeout": {"type": "integer", "minimum": 1, "default": 3},
            "ssl_verify": {"type": "boolean", "default": true},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "clickhouse-logger"),
            "oneOf": [
                {"required": ["endpoint_addr", "user", "password", "database", "logtable"]},
                {"required": ["endpoint_addrs", "user", "password", "database", "logtable"]},
            ],
            "encrypt_fields": ["password"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<ClickhouseLogger, Invalid> {
        let Config { endpoint_addr, endpoint_addrs, user, password, database, .. } = config;
        let Config { logtable, timeout, ssl_verify, options, batching, .. } = config;
        let logger = Logger::build(options, cx)?;
        let addresses = endpoint::either(endpoint_addr.as_deref(), endpoint_addrs.as_deref());
        let (servers, endpoints) = endpoint::all(addresses, "", ssl_verify)?;
        let table =
            Table { user: &user, password: &password, database: &database, name: &logtable, pointer: "" };
        let target = table.destination(servers, &endpoints, timeout.saturating_mul(1000))?;
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(ClickhouseLogger { logger, sink })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = self.logger.record(x, None) {
            self.sink.push(x, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn mistakes_are_named() {
        let build = |more: Value| {
            let mut config = json!({"endpoint_addr": "http://h", "user": "u", "password": "p", "database": "d", "logtable": "t"});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Probe::default().stage::<ClickhouseLogger>(config).map(drop)
        };
        assert_eq!(build(json!({})), Ok(()));
        for (more, pointer) in [
            (json!({"endpoint_addr": "http://h/a b"}), "/endpoint_addr"),
            (json!({"password": "a\nb"}), "/password"),
            (json!({"timeout": 0}), "/timeout"),
            (json!({"endpoint_addrs": ["http://h"]}), ""),
        ] {
            assert_eq!(build(more.clone()).unwrap_err().pointer, pointer, "{more}");
        }
    }
}
