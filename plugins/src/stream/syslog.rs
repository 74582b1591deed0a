//! syslog on streams: sends an entry for each ended connection to a syslog server.
//!
//! Settings as in APISIX 3.18, which are those on routes without anything about requests. An entry is
//! made by `log_format`, in the settings or in the plugin's metadata; it is required.

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::Batching;
use sdk::{Build, Exchange, Plugin};
use serde_json::{Value, json};

use crate::{logger, syslog as http};

/// The plugin instance.
pub struct Syslog {
    http: http::Syslog,
    has_format: bool,
}

impl Plugin for Syslog {
    const NAME: &'static str = http::Syslog::NAME;
    const PRIORITY: i32 = http::Syslog::PRIORITY;
    const PHASES: Phases = Phases::LOG;

    type Config = Value;

    fn schema() -> Value {
        let own = json!({
            "host": {"type": "string"},
            "port": {"type": "integer"},
            "flush_limit": {"type": "integer", "minimum": 1, "default": 4096},
            "drop_limit": {"type": "integer", "default": 1_048_576},
            "timeout": {"type": "integer", "minimum": 1, "default": 3000},
            "log_format": {"type": "object"},
            "sock_type": {"type": "string", "default": "tcp", "enum": ["tcp", "udp"]},
            "pool_size": {"type": "integer", "minimum": 5, "default": 5},
            "tls": {"type": "boolean", "default": false},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(own, "stream sys logger"),
            "required": ["host", "port"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Value, cx: &mut Build<'_>) -> Result<Syslog, Invalid> {
        let filled = |value: &Value| value.as_object().is_some_and(|fields| !fields.is_empty());
        let has_format = config.get("log_format").is_some()
            || cx.metadata().and_then(|metadata| metadata.get("log_format")).is_some_and(filled);
        let http = http::Syslog::build(http::Config::of_stream(config)?, cx)?;
        Ok(Syslog { http, has_format })
    }

    fn log(&self, x: &mut Exchange<'_>) {
        if self.has_format {
            self.http.log(x);
        } else {
            x.complain(Self::NAME, "it has no log_format, without which no stream is logged");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use sdk::sink::Sinks;
    use sdk::testing::{FixedNames, Probe};

    use super::*;

    #[test]
    fn an_entry_is_what_its_format_says() {
        let mut probe = Probe::stream();
        let config =
            json!({"host": "s", "port": 514, "log_format": {"client": "$remote_addr", "over": "$protocol"}});
        let plugin: Syslog = probe.stage(config).unwrap();
        let record = plugin.http.record(&probe.exchange());
        assert_eq!(record.fields[1], ("host", Vec::new()));
        let entry = String::from_utf8(record.bytes).unwrap();
        assert_eq!(entry, "{\"client\":\"127.0.0.1\",\"over\":\"TCP\",\"route_id\":\"1\"}");
    }

    /// The settings' format or the metadata's makes an entry; without one that is said, and nothing is sent.
    #[test]
    fn without_a_format_there_is_no_entry() {
        let format = json!({"client": "$remote_addr"});
        for (own, metadata, logs) in [
            (None, None, false),
            (None, Some(json!({"log_format": {}})), false),
            (None, Some(json!({"log_format": format})), true),
            (Some(json!({})), None, true),
            (Some(format.clone()), Some(json!({"log_format": {}})), true),
        ] {
            let (to, started) = channel();
            let mut probe = Probe::stream();
            probe.services.sinks = Arc::new(Sinks::new(1 << 20, move |intake| to.send(intake).unwrap()));
            let mut config = json!({"host": "127.0.0.1", "port": 514});
            if let Some(own) = &own {
                config["log_format"] = own.clone();
            }
            let plugin: Syslog = probe.stage_with(config, metadata.as_ref(), &FixedNames::default()).unwrap();
            plugin.log(&mut probe.exchange());
            let complaints = probe.world.complaints.borrow().len();
            assert_eq!(
                (started.try_recv().is_ok(), complaints),
                (logs, usize::from(!logs)),
                "{own:?} {metadata:?}"
            );
        }
        let metadata = model::Schema::new(&Syslog::metadata_schema().unwrap()).unwrap();
        for (format, fits) in [(json!({}), true), (json!(1), false)] {
            assert_eq!(metadata.check(&json!({"log_format": format})).is_ok(), fits, "{format}");
        }
    }
}
