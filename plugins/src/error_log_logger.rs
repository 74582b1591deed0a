//! error-log-logger: sends the gateway's error log to a server.
//!
//! Settings as in APISIX 3.18: they are the plugin's metadata, and the plugin works as soon as it is enabled and has some.
//! Only lines that the gateway logs at all are sent (`nginx_config.error_log_level`). Lines about its own deliveries are
//! not sent, as each would cause another.

use model::Invalid;
use sdk::chain::Phases;
use sdk::error_log::{ErrorLog, Listening, Severity};
use sdk::log_entry::json_text;
use sdk::sink::{Batching, Destination, Record, Spec};
use sdk::{Build, Plugin, vars};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::clickhouse_logger::Table;
use crate::logger::{self, endpoint};

/// The plugin instance. One on a route does nothing, as in APISIX.
pub struct ErrorLogLogger {
    /// Ends with the instance.
    _listening: Option<Listening>,
}

#[derive(Debug, Deserialize)]
pub struct Config {}

#[derive(Debug, Deserialize)]
struct Metadata {
    tcp: Option<Tcp>,
    skywalking: Option<Skywalking>,
    clickhouse: Option<Clickhouse>,
    kafka: Option<Kafka>,
    /// Of older settings, where `tcp` stands now.
    host: Option<String>,
    port: Option<i64>,
    #[serde(default)]
    tls: bool,
    tls_server_name: Option<String>,
    level: Level,
    timeout: u64,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Deserialize)]
struct Tcp {
    host: String,
    port: i64,
    tls: bool,
    tls_server_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Skywalking {
    endpoint_addr: String,
    service_name: String,
    service_instance_name: String,
}

#[derive(Debug, Deserialize)]
struct Clickhouse {
    endpoint_addr: String,
    user: String,
    password: String,
    database: String,
    logtable: String,
}

#[derive(Debug, Deserialize)]
struct Kafka {
    brokers: Vec<Broker>,
    tls: Option<Tls>,
    kafka_topic: String,
    required_acks: i64,
    key: Option<String>,
    meta_refresh_interval: u64,
}

#[derive(Debug, Deserialize)]
struct Broker {
    host: String,
    port: i64,
    sasl_config: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Tls {
    verify: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Level {
    Stderr,
    Emerg,
    Alert,
    Crit,
    Err,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

/// The text before and after a line, which is JSON between them.
struct Form {
    before: Vec<u8>,
    after: &'static [u8],
}

impl Plugin for ErrorLogLogger {
    const NAME: &'static str = "error-log-logger";
    const PRIORITY: i32 = 1091;
    const PHASES: Phases = Phases::NONE;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn metadata_schema() -> Option<Value> {
        crate::apisix_metadata_schema(Self::NAME)
    }

    fn check_metadata(metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        Metadata::read(metadata)?.target().map(drop)
    }

    fn build(_config: Config, cx: &mut Build<'_>) -> Result<ErrorLogLogger, Invalid> {
        let (true, Some(log), Some(metadata)) =
            (cx.owner.collection == "plugin_metadata", cx.service::<ErrorLog>(), cx.metadata())
        else {
            return Ok(ErrorLogLogger { _listening: None });
        };
        let metadata = Metadata::read(metadata)?;
        let (target, form) = metadata.target()?;
        let least = metadata.level.severity();
        let mut batching = metadata.batching;
        // Each line is a message.
        batching.batch_max_size = if target.sink == "kafka" { 1 } else { batching.batch_max_size.max(1) };
        let sink = cx.sink(Spec {
            plugin: Self::NAME,
            owner: Some(cx.owner.clone()),
            target,
            batching,
            max_entries: cx.max_pending_entries(),
            max_bytes: usize::MAX,
        });
        let listening = log.listen(least, sink, move |line| form.record(line));
        Ok(ErrorLogLogger { _listening: Some(listening) })
    }
}

impl Metadata {
    /// With defaults, which metadata that is compiled may lack.
    fn read(metadata: &Value) -> Result<Metadata, Invalid> {
        let mut complete = metadata.clone();
        if let Some(schema) = ErrorLogLogger::metadata_schema() {
            model::Schema::new(&schema)?.fill_defaults(&mut complete);
        }
        serde_json::from_value(complete).map_err(|error| Invalid::new(error.to_string()))
    }

    /// Where lines go, and in which form.
    fn target(&self) -> Result<(Destination, Form), Invalid> {
        let timeout = self.timeout.saturating_mul(1000);
        if let Some(skywalking) = &self.skywalking {
            let (servers, endpoints) = endpoint::all(
                [(&skywalking.endpoint_addr[..], "/skywalking/endpoint_addr".to_owned())],
                "",
                false,
            )?;
            let settings = json!({
                "endpoints": endpoints,
                "format": "array",
                "headers": {"Content-Type": "application/json"},
                "timeout": timeout,
            });
            let instance = match &skywalking.service_instance_name[..] {
                "$hostname" => vars::hostname(),
                name => name,
            };
            let (service, instance) = (json!(skywalking.service_name), json!(instance));
            let before = format!(
                "{{\"service\":{service},\"serviceInstance\":{instance},\"endpoint\":\"\",\"body\":{{\"text\":{{\"text\":"
            );
            return Ok((Destination { sink: "http", servers, settings }, Form::new(&before, "}}}")));
        }
        if let Some(clickhouse) = &self.clickhouse {
            let Clickhouse { endpoint_addr, user, password, database, logtable } = clickhouse;
            let (servers, endpoints) =
                endpoint::all([(&endpoint_addr[..], "/clickhouse/endpoint_addr".to_owned())], "", false)?;
            let table = Table { user, password, database, name: logtable, pointer: "/clickhouse" };
            let target = table.destination(servers, &endpoints, timeout)?;
            return Ok((target, Form::new("{\"data\":", "}")));
        }
        if let Some(kafka) = &self.kafka {
            if kafka.kafka_topic.is_empty() || kafka.kafka_topic.len() > 249 {
                return Err(Invalid::new("a topic has 1 to 249 bytes").at("/kafka/kafka_topic"));
            }
            let port = |broker: &Broker| logger::port(broker.port).map(|port| (broker.host.clone(), port));
            let servers = kafka.brokers.iter().map(port).collect::<Result<_, _>>()?;
            // As in APISIX, the first account counts for all brokers.
            let login = kafka.brokers.iter().find_map(|broker| broker.sasl_config.clone());
            let settings = json!({
                "topic": kafka.kafka_topic,
                "key": kafka.key,
                // Without an acknowledgement a lost batch could not be counted.
                "acks": if kafka.required_acks == 0 { 1 } else { kafka.required_acks },
                "format": "plain",
                "timeout": timeout,
                "refresh": kafka.meta_refresh_interval,
                "verify": kafka.tls.as_ref().map(|tls| tls.verify),
                "login": login,
            });
            return Ok((Destination { sink: "kafka", servers, settings }, Form::new("", "")));
        }
        let (host, port, tls, name) = match (&self.tcp, &self.host, self.port) {
            (Some(tcp), ..) => (&tcp.host, tcp.port, tcp.tls, &tcp.tls_server_name),
            (None, Some(host), Some(port)) => (host, port, self.tls, &self.tls_server_name),
            _ => return Err(Invalid::new("it names no server")),
        };
        // As in APISIX, the server's certificate is not looked at.
        let settings = json!({
            "format": "plain",
            "tls": tls.then(|| json!({"name": name, "verify": false})),
            "timeout": timeout,
        });
        let port = logger::port(port).map_err(|invalid| match self.tcp {
            Some(_) => invalid.under("/tcp"),
            None => invalid,
        })?;
        let target = Destination::server("tcp", host.clone(), port, settings);
        Ok((target, Form { before: Vec::new(), after: b"\n" }))
    }
}

impl Level {
    fn severity(self) -> Severity {
        match self {
            Level::Stderr | Level::Emerg | Level::Alert | Level::Crit | Level::Err | Level::Error => {
                Severity::Error
            }
            Level::Warn => Severity::Warn,
            Level::Notice | Level::Info => Severity::Info,
            Level::Debug => Severity::Debug,
        }
    }
}

impl Form {
    /// A form in which lines are JSON.
    fn new(before: &str, after: &'static str) -> Form {
        Form { before: before.as_bytes().to_vec(), after: after.as_bytes() }
    }

    fn record(&self, line: &[u8]) -> Record {
        if self.after == b"\n" {
            return Record::from([line, self.after].concat());
        }
        let mut out = Vec::with_capacity(self.before.len() + line.len() + 16);
        out.extend_from_slice(&self.before);
        json_text(line, &mut out);
        out.extend_from_slice(self.after);
        Record::from(out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sdk::build::{Owner, Services};
    use sdk::sink::{Next, Sinks};
    use sdk::testing::FixedNames;

    use super::*;

    fn check(metadata: Value) -> Result<(), Invalid> {
        model::Schema::new(&ErrorLogLogger::metadata_schema().unwrap()).unwrap().check(&metadata)?;
        let (owner, services, names) = (owner(), Services::for_tests(), FixedNames::default());
        ErrorLogLogger::check_metadata(&metadata, &Build::new(&owner, &services, &names))
    }

    fn owner() -> Owner {
        Owner { collection: "plugin_metadata", id: "error-log-logger".to_owned() }
    }

    /// The destination of a line, and its record.
    fn sent(metadata: &Value, severity: Severity) -> Option<(Destination, String)> {
        let (start, started) = std::sync::mpsc::channel();
        let mut services = Services::for_tests();
        services.sinks = Arc::new(Sinks::new(1 << 20, move |intake| start.send(intake).unwrap()));
        let log = Arc::new(ErrorLog::default());
        services.extensions = services.extensions.clone().with(log.clone());
        let (owner, names, read) = (owner(), FixedNames::default(), || Some(metadata));
        let mut cx = Build::new(&owner, &services, &names).with_metadata(&read);
        let plugin = ErrorLogLogger::build(Config {}, &mut cx).unwrap();
        log.add(severity, b"WARN a \"line\"");
        let intake = started.try_recv().ok()?;
        let Some(Next::Entries(taken)) = intake.take() else { panic!("there is no entry") };
        drop(plugin);
        assert!(!log.wants(Severity::Error), "it ends with the plugin");
        Some((intake.spec().target.clone(), String::from_utf8(taken.bytes().to_vec()).unwrap()))
    }

    #[test]
    fn lines_have_the_form_of_their_server() {
        let quoted = "\"WARN a \\\"line\\\"\"";
        let server = |metadata: Value| {
            let (target, text) = sent(&metadata, Severity::Warn).unwrap();
            (target.sink, target.servers[0].clone(), text)
        };
        assert_eq!(
            server(json!({"tcp": {"host": "a.test", "port": 99}})),
            ("tcp", ("a.test".to_owned(), 99), "WARN a \"line\"\n".to_owned())
        );
        assert_eq!(server(json!({"host": "b.test", "port": 98})).1, ("b.test".to_owned(), 98));
        assert_eq!(
            server(
                json!({"clickhouse": {"user": "u", "password": "p", "database": "d", "logtable": "t", "endpoint_addr": "http://c"}})
            ),
            ("http", ("c".to_owned(), 80), format!("{{\"data\":{quoted}}}"))
        );
        assert_eq!(
            server(json!({"skywalking": {"service_name": "s"}})),
            (
                "http",
                ("127.0.0.1".to_owned(), 12900),
                format!(
                    "{{\"service\":\"s\",\"serviceInstance\":\"APISIX Service Instance\",\"endpoint\":\"\",\"body\":{{\"text\":{{\"text\":{quoted}}}}}}}"
                )
            )
        );
        assert_eq!(
            server(json!({"kafka": {"brokers": [{"host": "k", "port": 9092}], "kafka_topic": "t"}})),
            ("kafka", ("k".to_owned(), 9092), quoted.to_owned())
        );
    }

    #[test]
    fn the_level_decides() {
        let tcp = |level: &str| json!({"tcp": {"host": "a", "port": 1}, "level": level});
        for (level, least) in
            [("CRIT", Severity::Error), ("NOTICE", Severity::Info), ("DEBUG", Severity::Debug)]
        {
            for severity in [Severity::Error, Severity::Warn, Severity::Info, Severity::Debug] {
                assert_eq!(sent(&tcp(level), severity).is_some(), severity <= least, "{level} {severity:?}");
            }
        }
        assert!(
            sent(&json!({"tcp": {"host": "a", "port": 1}}), Severity::Info).is_none(),
            "WARN is the default"
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(check(json!({"tcp": {"host": "a", "port": 1}})), Ok(()));
        for (metadata, pointer) in [
            (json!({"tcp": {"host": "a", "port": 70_000}}), "/tcp/port"),
            (json!({"skywalking": {"endpoint_addr": "ftp://a"}}), "/skywalking/endpoint_addr"),
            (
                json!({"clickhouse": {"endpoint_addr": "http://a", "user": "u", "password": "a\nb", "database": "", "logtable": ""}}),
                "/clickhouse/password",
            ),
            (
                json!({"kafka": {"brokers": [{"host": "k", "port": 1}], "kafka_topic": ""}}),
                "/kafka/kafka_topic",
            ),
        ] {
            assert_eq!(check(metadata.clone()).unwrap_err().pointer, pointer, "{metadata}");
        }
        for wrong in [
            json!({}),
            json!({"level": "x", "host": "a", "port": 1}),
            json!({"host": "a"}),
            json!({"skywalking": {}, "tcp": {"host": "a", "port": 1}}),
            json!({"skywalking": {"endpoint_addr": 1}}),
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
