//! syslog: sends entries as messages of RFC 5424 to a syslog server, over TCP or UDP.
//!
//! Settings as in APISIX 3.18, with two differences: a batch is also sent when it has `flush_limit` bytes,
//! and never waits for that longer than the batch processor's times, where APISIX keeps what is less for
//! ever; and over UDP each message is a datagram (RFC 5426 section 3.1), where APISIX puts several into one.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Record, Sink, Spec};
use sdk::vars::{self, Var};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, logger_phases};

/// The plugin instance.
pub struct Syslog {
    pub(crate) logger: Logger,
    sink: Sink,
    host: Var,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    host: String,
    port: i64,
    flush_limit: usize,
    drop_limit: i64,
    /// Milliseconds.
    timeout: u64,
    sock_type: SockType,
    tls: bool,
    #[serde(flatten)]
    options: Options,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SockType {
    Tcp,
    Udp,
}

impl Config {
    /// Of settings of a stream, which have nothing about bodies.
    ///
    /// # Errors
    /// Fails for settings that the schema of streams rules out.
    pub(crate) fn of_stream(mut stream: Value) -> Result<Config, Invalid> {
        stream["max_req_body_bytes"] = 1.into();
        stream["max_resp_body_bytes"] = 1.into();
        serde_json::from_value(stream).map_err(|error| Invalid::new(error.to_string()))
    }
}

impl Plugin for Syslog {
    const NAME: &'static str = "syslog";
    const PRIORITY: i32 = 401;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "host": {"type": "string"},
            "port": {"type": "integer"},
            "flush_limit": {"type": "integer", "minimum": 1, "default": 4096},
            "drop_limit": {"type": "integer", "default": 1_048_576},
            "timeout": {"type": "integer", "minimum": 1, "default": 3000},
            "sock_type": {"type": "string", "default": "tcp", "enum": ["tcp", "udp"]},
            "pool_size": {"type": "integer", "minimum": 5, "default": 5},
            "tls": {"type": "boolean", "default": false},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(Options::extend(own), "sys logger"),
            "required": ["host", "port"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Syslog, Invalid> {
        let Config { host, port, flush_limit, drop_limit, timeout, sock_type, tls, options, mut batching } =
            config;
        let logger = Logger::build(options, cx)?;
        // Datagrams would go out in the clear.
        if tls && sock_type == SockType::Udp {
            return Err(Invalid::new("datagrams are not sent over TLS").at("/tls").expected("sock_type tcp"));
        }
        let port = logger::port(port)?;
        let target = match sock_type {
            SockType::Tcp => {
                let tls = tls.then(|| json!({"verify": true}));
                let settings = json!({"format": "syslog", "tls": tls, "timeout": timeout, "keep": true});
                Destination::server("tcp", host, port, settings)
            }
            SockType::Udp => {
                let settings = json!({"format": "syslog", "timeout": timeout});
                Destination::server("udp", host, port, settings)
            }
        };
        batching.max_bytes = flush_limit;
        let sink = cx.sink(Spec {
            plugin: Self::NAME,
            owner: Some(cx.owner.clone()),
            target,
            batching,
            max_entries: cx.max_pending_entries(),
            max_bytes: usize::try_from(drop_limit).unwrap_or(0),
        });
        Ok(Syslog { logger, sink, host: Var::parse("host") })
    }

    logger_phases!();

    fn log(&self, x: &mut Exchange<'_>) {
        self.sink.push(x, self.record(x));
    }
}

impl Syslog {
    /// The entry, with the time and the host for the header that the sink writes.
    pub(crate) fn record(&self, x: &Exchange<'_>) -> Record {
        let (mut time, mut host) = (Vec::new(), Vec::new());
        vars::write_rfc3339(x.world().now_ms(), &mut time);
        // A stream has no host.
        if x.stream().is_none() {
            self.host.write(x, &mut host);
        }
        Record { fields: vec![("time", time), ("host", host)], bytes: self.logger.entry(x, None) }
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    #[test]
    fn a_record_has_the_time_and_the_host() {
        let mut probe = Probe::request("GET", "/a", &[("Host", "h.example:81")]);
        let config = json!({"host": "s", "port": 514, "log_format": {"uri": "$uri"}});
        let plugin: Syslog = probe.stage(config).unwrap();
        let record = plugin.record(&probe.exchange());
        let (time, host) = (b"2023-11-14T22:13:20.000Z".to_vec(), b"h.example".to_vec());
        assert_eq!(record.fields, [("time", time), ("host", host)]);
        assert_eq!(record.bytes, b"{\"uri\":\"/a\",\"route_id\":\"1\"}");
    }

    #[test]
    fn mistakes_are_named() {
        let probe = Probe::default();
        let build = |config| probe.stage::<Syslog>(config).map(drop);
        assert_eq!(build(json!({"host": "h", "port": 514, "sock_type": "udp"})), Ok(()));
        assert_eq!(build(json!({"host": "h", "port": 514, "tls": true})), Ok(()));
        for (config, pointer) in [
            (json!({"host": "h", "port": 514, "tls": true, "sock_type": "udp"}), "/tls"),
            (json!({"host": "h", "port": -1}), "/port"),
            (json!({"host": "h", "port": 1, "pool_size": 4}), "/pool_size"),
            (json!({"host": "h", "port": 1, "sock_type": "unix"}), "/sock_type"),
            (json!({"host": "h", "port": 1, "flush_limit": 0}), "/flush_limit"),
        ] {
            assert_eq!(build(config.clone()).unwrap_err().pointer, pointer, "{config}");
        }
    }
}
