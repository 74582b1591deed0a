//! splunk-hec-logging: sends entries to the HTTP Event Collector of Splunk.
//!
//! Settings and events as in APISIX 3.18.

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::{Bodies, EntryFormat, json_text};
use sdk::sink::{Batching, Destination, Sink};
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{self, Logger, Options, endpoint, full, wrapped};

/// The plugin instance.
pub struct SplunkHecLogging {
    logger: Logger,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    endpoint: Endpoint,
    ssl_verify: bool,
    log_format: Option<Value>,
    log_format_extra: Option<Value>,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    uri: String,
    token: String,
    channel: Option<String>,
    /// Seconds.
    timeout: u64,
}

impl Plugin for SplunkHecLogging {
    const NAME: &'static str = "splunk-hec-logging";
    const PRIORITY: i32 = 409;
    const PHASES: Phases = logger::PHASES;

    type Config = Config;

    fn schema() -> Value {
        let own = json!({
            "endpoint": {
                "type": "object",
                "properties": {
                    "uri": endpoint::uri_schema(),
                    "token": {"type": "string"},
                    "channel": {"type": "string"},
                    "timeout": {"type": "integer", "minimum": 1, "default": 10},
                    "keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 60000},
                },
                "required": ["uri", "token"],
            },
            "ssl_verify": {"type": "boolean", "default": true},
            "log_format": {"type": "object"},
            "log_format_extra": {"type": "object"},
        });
        json!({
            "type": "object",
            "properties": Batching::extend(own, "splunk-hec-logging"),
            "required": ["endpoint"],
            "encrypt_fields": ["endpoint.token"],
        })
    }

    fn metadata_schema() -> Option<Value> {
        Some(logger::metadata_schema())
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<SplunkHecLogging, Invalid> {
        let Config { endpoint, ssl_verify, log_format, log_format_extra, batching } = config;
        let logger = Logger::build(Options::without_bodies(log_format, log_format_extra), cx)?;
        let Endpoint { uri, token, channel, timeout } = endpoint;
        let (servers, endpoints) = endpoint::all([(&uri[..], "/endpoint/uri".to_owned())], "", ssl_verify)?;
        endpoint::check_value(&token, "/endpoint/token")?;
        endpoint::check_value(channel.as_deref().unwrap_or_default(), "/endpoint/channel")?;
        let settings = json!({
            "endpoints": endpoints,
            "headers": {
                "Content-Type": "application/json",
                "Authorization": format!("Splunk {token}"),
                "X-Splunk-Request-Channel": channel,
            },
            "timeout": timeout.saturating_mul(1000),
        });
        let target = Destination { sink: "splunk", servers, settings };
        let sink = cx.own_sink(Self::NAME, target, batching);
        Ok(SplunkHecLogging { logger, sink })
    }

    fn phases(&self) -> Phases {
        self.logger.phases()
    }

    fn access(&self, x: &mut Exchange<'_>) -> sdk::Step {
        self.logger.access(x)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = wrapped(x, || self.event(x)) {
            self.sink.push(x, record);
        }
    }
}

impl SplunkHecLogging {
    fn event(&self, x: &Exchange<'_>) -> Vec<u8> {
        let now = x.world().now_ms();
        let mut out = format!("{{\"time\":{}.{:03},\"host\":", now / 1000, now % 1000).into_bytes();
        full::hostname(x, &mut out);
        let source = b",\"source\":\"apache-apisix-splunk-hec-logging\",\"sourcetype\":\"_json\",\"event\":";
        out.extend_from_slice(source);
        match self.logger.full_format() {
            Some(extra) => fields(x, extra, &mut out),
            None => out.extend_from_slice(&self.logger.entry(x, None)),
        }
        out.push(b'}');
        out
    }
}

/// The event of a logger without a format of its own.
fn fields(x: &Exchange<'_>, extra: Option<&EntryFormat>, out: &mut Vec<u8>) {
    full::put(out, b"{\"request_url\":");
    full::url(x, out);
    full::put(out, b",\"request_method\":");
    json_text(x.request().method_bytes(), out);
    full::put(out, b",\"request_headers\":");
    full::headers(&x.request().fields, out);
    full::put(out, b",\"request_query\":");
    full::arguments(x.query(), out);
    full::put(out, b",\"request_size\":");
    full::number(x.timing().received, out);
    full::put(out, b",\"response_headers\":");
    full::headers(&x.response().fields, out);
    full::put(out, b",\"response_status\":");
    full::number(x.status().into(), out);
    full::put(out, b",\"response_size\":");
    full::number(x.timing().sent, out);
    full::put(out, b",\"latency\":");
    full::milliseconds(x.timing().total_us, out);
    if let Some(upstream) = full::upstream(x) {
        full::put(out, b",\"upstream\":");
        json_text(&upstream, out);
    }
    if let Some(extra) = extra {
        let taken = |name: &str| match name {
            "upstream" => x.upstream_addr().is_some(),
            "request_url" | "request_method" | "request_headers" | "request_query" | "request_size"
            | "response_headers" | "response_status" | "response_size" | "latency" => true,
            _ => false,
        };
        extra.write(x, Bodies::default(), taken, true, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    #[test]
    fn an_event_has_what_apisix_s_has() {
        let mut probe = Probe::request("GET", "/a?b=1", &[("Host", "h.example"), ("X-A", "b")]);
        let stage = |format: Value| {
            let mut config = json!({"endpoint": {"uri": "http://s/x", "token": "t"}});
            config.as_object_mut().unwrap().extend(format.as_object().unwrap().clone());
            Probe::default().stage::<SplunkHecLogging>(config).unwrap()
        };
        let extra = stage(json!({"log_format_extra": {"latency": "mine", "more": "$uri"}}));
        let own = stage(json!({"log_format": {"u": "$uri"}}));
        let mut x = probe.exchange();
        respond(&mut x, 404, &[("X-B", "c")]);
        x.engine_mut().timing.total_us = 1500;
        let event = |plugin: &SplunkHecLogging| -> Value {
            let mut event: Value = serde_json::from_slice(&plugin.event(&x)).unwrap();
            assert!(event.as_object_mut().unwrap().remove("host").unwrap().is_string());
            event
        };
        let (time, source) = (1_700_000_000.0, "apache-apisix-splunk-hec-logging");
        assert_eq!(
            event(&extra),
            json!({"time": time, "source": source, "sourcetype": "_json", "event": {
                "request_url": "http://h.example:9080/a?b=1", "request_method": "GET",
                "request_headers": {"host": "h.example", "x-a": "b"}, "request_query": {"b": "1"},
                "request_size": 0, "response_headers": {"x-b": "c"}, "response_status": 404,
                "response_size": 0, "latency": 1.5, "more": "/a",
            }})
        );
        assert_eq!(event(&own)["event"], json!({"u": "/a", "route_id": "1"}));
    }
}
