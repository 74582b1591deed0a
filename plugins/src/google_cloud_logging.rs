//! google-cloud-logging: writes entries to Google Cloud Logging with a service account.
//!
//! Settings and fields as in APISIX 3.18. The access token is kept until shortly before its end. Where APISIX's entry has
//! no format of its own, it is an `httpRequest` of Google's.

use std::borrow::Cow;

use model::Invalid;
use sdk::chain::Phases;
use sdk::log_entry::{Bodies, EntryFormat, json_text};
use sdk::sink::{Batching, Destination, Sink};
use sdk::vars::{Var, write_rfc3339};
use sdk::{Build, Exchange, Plugin, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::logger::{Logger, Options, full, wrapped};

/// The plugin instance.
pub struct GoogleCloudLogging {
    pub(crate) logger: Logger,
    /// The labels and the resource of each entry, as JSON.
    constant: String,
    request_id: Var,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    auth_config: Option<AuthConfig>,
    auth_file: Option<String>,
    ssl_verify: bool,
    resource: Value,
    log_id: String,
    log_format: Option<Value>,
    log_format_extra: Option<Value>,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Deserialize)]
struct AuthConfig {
    client_email: String,
    private_key: String,
    project_id: String,
    token_uri: String,
    scope: Vec<String>,
    /// Takes the place of `scope`.
    scopes: Option<Vec<String>>,
    entries_uri: String,
}

impl Plugin for GoogleCloudLogging {
    const NAME: &'static str = "google-cloud-logging";
    const PRIORITY: i32 = 407;
    const PHASES: Phases = Phases::ACCESS.with(Phases::LOG);

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn metadata_schema() -> Option<Value> {
        crate::apisix_metadata_schema(Self::NAME)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<GoogleCloudLogging, Invalid> {
        let Config { auth_config, auth_file, ssl_verify, resource, log_id, .. } = config;
        let logger = Logger::build(Options::without_bodies(config.log_format, config.log_format_extra), cx)?;
        let account = auth_config.map(AuthConfig::read).transpose()?;
        let settings = json!({"auth_config": account, "auth_file": auth_file, "ssl_verify": ssl_verify, "log_id": log_id});
        // The servers of an account in a file are known only to the sink, which resolves the names.
        let target = Destination { sink: "google", servers: Vec::new(), settings };
        let sink = cx.own_sink(Self::NAME, target, config.batching);
        let labels = json!({"source": "apache-apisix-google-cloud-logging"});
        Ok(GoogleCloudLogging {
            logger,
            constant: format!("\"labels\":{labels},\"resource\":{resource}"),
            request_id: Var::parse("request_id"),
            sink,
        })
    }

    fn phases(&self) -> Phases {
        self.logger.phases()
    }

    fn access(&self, x: &mut Exchange<'_>) -> Step {
        self.logger.access(x)
    }

    fn log(&self, x: &mut Exchange<'_>) {
        if let Some(record) = wrapped(x, || self.entry(x)) {
            self.sink.push(x, record);
        }
    }
}

impl AuthConfig {
    /// The account as the sink reads it.
    fn read(self) -> Result<Value, Invalid> {
        for (uri, field) in [(&self.token_uri, "token_uri"), (&self.entries_uri, "entries_uri")] {
            crate::remote::Remote::parse(uri)
                .map_err(|why| Invalid::new(why).at(format!("/auth_config/{field}")).got(uri.as_str()))?;
        }
        Ok(json!({
            "client_email": self.client_email,
            "private_key": self.private_key,
            "project_id": self.project_id,
            "token_uri": self.token_uri,
            "scope": self.scopes.unwrap_or(self.scope),
            "entries_uri": self.entries_uri,
        }))
    }
}

impl GoogleCloudLogging {
    /// The entry of an exchange that has ended, without the name of its log.
    fn entry(&self, x: &Exchange<'_>) -> Vec<u8> {
        let mut out = b"{".to_vec();
        match self.logger.full_format() {
            Some(extra) => fields(x, extra, &mut out),
            None => {
                full::put(&mut out, b"\"jsonPayload\":");
                out.extend_from_slice(&self.logger.entry(x, None));
            }
        }
        full::put(&mut out, b",\"timestamp\":\"");
        write_rfc3339(x.world().now_ms(), &mut out);
        full::put(&mut out, b"\",\"insertId\":");
        json_text(&self.request_id.of(x).unwrap_or_default(), &mut out);
        out.push(b',');
        full::put(&mut out, self.constant.as_bytes());
        out.push(b'}');
        out
    }
}

/// The request and the payload of an entry that has no format of its own.
fn fields(x: &Exchange<'_>, extra: Option<&EntryFormat>, out: &mut Vec<u8>) {
    full::put(out, b"\"httpRequest\":{\"requestMethod\":");
    json_text(x.request().method_bytes(), out);
    full::put(out, b",\"requestUrl\":");
    full::url(x, out);
    full::put(out, b",\"requestSize\":");
    full::number(x.timing().received, out);
    full::put(out, b",\"status\":");
    full::number(x.status().into(), out);
    full::put(out, b",\"responseSize\":");
    full::number(x.timing().sent, out);
    let texts = [
        (&b",\"userAgent\":"[..], x.header("User-Agent").map(Cow::Borrowed)),
        (b",\"remoteIp\":", Some(Cow::Borrowed(x.client().ip_text()))),
        (b",\"serverIp\":", full::upstream(x)),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            full::put(out, name);
            json_text(&text, out);
        }
    }
    let milliseconds = (x.timing().total_us + 500) / 1000;
    let latency = format!(",\"latency\":\"{}.{:03}s\"", milliseconds / 1000, milliseconds % 1000);
    full::put(out, latency.as_bytes());
    full::put(out, b"},\"jsonPayload\":{");
    if let Some(route) = x.route() {
        full::put(out, b"\"route_id\":");
        json_text(route.id.as_bytes(), out);
        out.push(b',');
    }
    full::put(out, b"\"service_id\":");
    json_text(x.route().map_or(x.request().host(), |route| route.service_id.as_bytes()), out);
    if let Some(extra) = extra {
        let has = |name: &str| name == "service_id" || name == "route_id" && x.route().is_some();
        extra.write(x, Bodies::default(), has, true, out);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use sdk::testing::{Probe, respond};

    use super::*;

    fn config(more: Value) -> Value {
        let mut config = json!({"auth_config": {
            "client_email": "e@x.test", "private_key": "k", "project_id": "p", "token_uri": "http://127.0.0.1/token",
        }});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    fn entry(more: Value) -> Value {
        let headers = [("Host", "h.test"), ("User-Agent", "a\"b")];
        let mut probe = Probe::request("GET", "/a?q=1", &headers).from_ip("10.1.2.3");
        probe.route.service_id = "s".into();
        let plugin: GoogleCloudLogging = probe.stage(config(more)).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().upstream_addr = Some("127.0.0.2:80".parse().unwrap());
        let timing = &mut x.engine_mut().timing;
        (timing.total_us, timing.received, timing.sent) = (1_012_345, 100, 200);
        respond(&mut x, 201, &[]);
        serde_json::from_slice(&plugin.entry(&x)).unwrap()
    }

    #[test]
    fn an_entry_has_a_request_and_a_payload() {
        let mut own = entry(json!({"log_format_extra": {"q": "$arg_q", "route_id": "other"}}));
        let id = own["insertId"].take();
        assert!(id.as_str().is_some_and(|id| id.len() == 32), "{id}");
        assert_eq!(
            own,
            json!({
                "httpRequest": {
                    "requestMethod": "GET", "requestUrl": "http://h.test:9080/a?q=1", "requestSize": 100, "status": 201,
                    "responseSize": 200, "userAgent": "a\"b", "remoteIp": "10.1.2.3", "serverIp": "127.0.0.2:80",
                    "latency": "1.012s",
                },
                "jsonPayload": {"route_id": "1", "service_id": "s", "q": "1"},
                "timestamp": "2023-11-14T22:13:20.000Z", "insertId": null,
                "labels": {"source": "apache-apisix-google-cloud-logging"}, "resource": {"type": "global"},
            })
        );
    }

    #[test]
    fn an_own_format_is_the_payload() {
        let own =
            entry(json!({"log_format": {"q": "$arg_q"}, "resource": {"type": "t", "labels": {"a": "b"}}}));
        assert_eq!(own["jsonPayload"], json!({"q": "1", "route_id": "1", "service_id": "s"}));
        assert_eq!(own["resource"], json!({"type": "t", "labels": {"a": "b"}}));
        assert_eq!(own.get("httpRequest"), None);
    }

    #[test]
    fn mistakes_are_named() {
        let build = |config: Value| Probe::default().stage::<GoogleCloudLogging>(config).map(drop);
        assert_eq!(build(config(json!({}))), Ok(()));
        assert_eq!(build(json!({"auth_file": "/etc/account.json"})), Ok(()));
        assert!(build(json!({})).is_err());
        assert!(build(config(json!({"auth_file": "a"}))).is_err());
        let mut wrong = config(json!({}));
        wrong["auth_config"]["token_uri"] = json!("ftp://h");
        assert_eq!(build(wrong).unwrap_err().pointer, "/auth_config/token_uri");
    }
}
