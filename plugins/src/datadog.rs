//! datadog: sends metrics of each request to a DogStatsD server over UDP.
//!
//! Settings, names and tags as in APISIX 3.18. The metrics of a request are the lines of one datagram, or one datagram
//! each if they are longer than an agent reads. Characters that end a tag or a metric are replaced in the values of tags.

use std::fmt::Write;

use model::Invalid;
use sdk::chain::Phases;
use sdk::sink::{Batching, Destination, Sink};
use sdk::vars::Var;
use sdk::{Build, Exchange, Plugin};
use serde::Deserialize;
use serde_json::Value;

use crate::logger::{self, full};

/// The plugin instance.
pub struct Datadog {
    /// The namespace and its dot.
    prefix: String,
    /// The constant tags, behind the mark of tags.
    tags: String,
    prefer_name: bool,
    include_path: bool,
    include_method: bool,
    host: Var,
    scheme: Var,
    sink: Sink,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    prefer_name: bool,
    include_path: bool,
    include_method: bool,
    constant_tags: Vec<String>,
    #[serde(flatten)]
    batching: Batching,
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Metadata {
    host: String,
    port: i64,
    namespace: String,
    constant_tags: Vec<String>,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            host: "127.0.0.1".to_owned(),
            port: 8125,
            namespace: "apisix".to_owned(),
            constant_tags: vec!["source:apisix".to_owned()],
        }
    }
}

/// The longest datagram that an agent reads (`dogstatsd_buffer_size`).
const DATAGRAM: usize = 8192;

/// Milliseconds for a batch.
const TIMEOUT: u64 = 3000;

impl Plugin for Datadog {
    const NAME: &'static str = "datadog";
    const PRIORITY: i32 = 495;
    const PHASES: Phases = Phases::LOG;

    type Config = Config;

    fn schema() -> Value {
        crate::apisix_schema(Self::NAME)
    }

    fn metadata_schema() -> Option<Value> {
        crate::apisix_metadata_schema(Self::NAME)
    }

    fn check_metadata(metadata: &Value, _cx: &Build<'_>) -> Result<(), Invalid> {
        logger::port(Metadata::read(Some(metadata))?.port).map(drop)
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Datadog, Invalid> {
        let Metadata { host, port, namespace, mut constant_tags } = Metadata::read(cx.metadata())?;
        let port = logger::port(port)?;
        constant_tags.extend(config.constant_tags);
        let settings = serde_json::json!({"format": "plain", "timeout": TIMEOUT});
        let target = Destination::server("udp", host, port, settings);
        let sink = cx.own_sink(Self::NAME, target, config.batching);
        let dot = if namespace.is_empty() { "" } else { "." };
        Ok(Datadog {
            prefix: format!("{namespace}{dot}"),
            tags: format!("|#{}", constant_tags.join(",")),
            prefer_name: config.prefer_name,
            include_path: config.include_path,
            include_method: config.include_method,
            host: Var::parse("host"),
            scheme: Var::parse("upstream_scheme"),
            sink,
        })
    }

    fn log(&self, x: &mut Exchange<'_>) {
        let text = self.metrics(x);
        if text.len() <= DATAGRAM {
            self.sink.push(x, text.into_bytes());
        } else {
            text.split('\n').for_each(|line| self.sink.push(x, line.to_owned().into_bytes()));
        }
    }
}

impl Metadata {
    fn read(metadata: Option<&Value>) -> Result<Metadata, Invalid> {
        let Some(metadata) = metadata else { return Ok(Metadata::default()) };
        Metadata::deserialize(metadata).map_err(|error| Invalid::new(error.to_string()))
    }
}

impl Datadog {
    /// The metrics of a request that has ended, a line each.
    fn metrics(&self, x: &Exchange<'_>) -> String {
        let tags = self.tags(x);
        let timing = x.timing();
        let mut out = String::with_capacity(6 * (self.prefix.len() + tags.len() + 32));
        let mut add = |name: &str, value: &str, kind: &str| {
            let line_end = if out.is_empty() { "" } else { "\n" };
            // Writing to memory does not fail.
            let _ = write!(out, "{line_end}{}{name}:{value}|{kind}{tags}", self.prefix);
        };
        add("request.counter", "1", "c");
        add("request.latency", &milliseconds(timing.total_us), "h");
        let mut own = timing.total_us;
        if x.upstream_addr().is_some() {
            add("upstream.latency", &milliseconds(timing.upstream_us), "h");
            own = own.saturating_sub(timing.upstream_us);
        }
        add("apisix.latency", &milliseconds(own), "h");
        add("ingress.size", &timing.received.to_string(), "ms");
        add("egress.size", &timing.sent.to_string(), "ms");
        out
    }

    /// The tags with their mark; empty without any.
    fn tags(&self, x: &Exchange<'_>) -> String {
        let mut tags = self.tags.clone();
        let mut add = |name: &str, value: &[u8]| {
            if value.is_empty() {
                return;
            }
            let comma = if tags == "|#" { "" } else { "," };
            let value = String::from_utf8_lossy(value);
            let value = value.replace(|c: char| c.is_control() || matches!(c, '|' | ','), "_");
            let _ = write!(tags, "{comma}{name}:{value}");
        };
        let named = |name: &'_ str, id: &'_ str| {
            if self.prefer_name && !name.is_empty() { name.to_owned() } else { id.to_owned() }
        };
        let route = x.route();
        if let Some(route) = route {
            add("route_name", named(&route.name, &route.id).as_bytes());
        }
        if self.include_path {
            add("path", x.matched_uri().as_bytes());
        }
        if self.include_method {
            add("method", x.request().method_bytes());
        }
        match route {
            Some(route) => add("service_name", named(&route.service_name, &route.service_id).as_bytes()),
            None => add("service_name", &self.host.of(x).unwrap_or_default()),
        }
        if let Some(consumer) = x.consumer() {
            add("consumer", consumer.name.as_bytes());
        }
        if let Some(address) = x.upstream_addr() {
            add("balancer_ip", address.ip().to_string().as_bytes());
        }
        add("response_status", x.status().to_string().as_bytes());
        add("response_status_class", format!("{}xx", x.status() / 100).as_bytes());
        if x.upstream_addr().is_some() {
            add("scheme", &self.scheme.of(x).unwrap_or_default());
        }
        if tags == "|#" { String::new() } else { tags }
    }
}

fn milliseconds(micros: u64) -> String {
    let mut out = Vec::new();
    full::milliseconds(micros, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use sdk::exchange::RouteInfo;
    use sdk::testing::{FixedNames, Probe, respond};
    use serde_json::json;

    use super::*;

    fn metrics(config: Value, metadata: Option<Value>, prepare: impl FnOnce(&mut Probe)) -> String {
        let mut probe = Probe::request("GET", "/a", &[("Host", "h.test")]);
        prepare(&mut probe);
        let names = FixedNames::default();
        let plugin: Datadog = probe.stage_with(config, metadata.as_ref(), &names).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().upstream_addr = Some("127.0.0.2:80".parse().unwrap());
        let timing = &mut x.engine_mut().timing;
        (timing.total_us, timing.upstream_us, timing.received, timing.sent) = (12_345, 10_000, 100, 200);
        respond(&mut x, 201, &[]);
        plugin.metrics(&x)
    }

    #[test]
    fn a_request_has_six_metrics() {
        let text = metrics(json!({}), None, |_| {});
        let tags = "|#source:apisix,route_name:route-1,balancer_ip:127.0.0.2,response_status:201,\
                    response_status_class:2xx,scheme:http";
        let lines = [
            "request.counter:1|c",
            "request.latency:12.345|h",
            "upstream.latency:10|h",
            "apisix.latency:2.345|h",
            "ingress.size:100|ms",
            "egress.size:200|ms",
        ];
        assert_eq!(text, lines.map(|line| format!("apisix.{line}{tags}")).join("\n"));
    }

    #[test]
    fn names_and_tags_follow_settings_and_metadata() {
        let metadata = json!({"namespace": "", "constant_tags": []});
        let config = json!({"prefer_name": false, "include_path": true, "include_method": true, "constant_tags": ["a:b"]});
        let text = metrics(config, Some(metadata.clone()), |probe| probe.route.service_id = "s".into());
        assert!(
            text.starts_with("request.counter:1|c|#a:b,route_name:1,method:GET,service_name:s,balancer_ip:"),
            "{text}"
        );
        let text = metrics(json!({}), Some(metadata), |probe| {
            probe.route.service_id = "s".into();
            probe.route.service_name = "shop".into();
            probe.route.name = "a|b,c\nd".into();
        });
        assert!(text.starts_with("request.counter:1|c|#route_name:a_b_c_d,service_name:shop,"), "{text}");
        let text = metrics(json!({}), None, |probe| probe.route = RouteInfo::new("7", Default::default()));
        assert!(text.contains("route_name:7,"), "{text}");
    }

    #[test]
    fn a_request_without_a_route_has_its_host() {
        let mut probe = Probe::request("GET", "/a", &[("Host", "h.test")]);
        let plugin: Datadog = probe.stage(json!({})).unwrap();
        let mut x = probe.exchange();
        x.engine_mut().matched.route = None;
        respond(&mut x, 404, &[]);
        assert_eq!(
            plugin.tags(&x),
            "|#source:apisix,service_name:h.test,response_status:404,response_status_class:4xx"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let build =
            |config: Value| Probe::default().stage::<Datadog>(config).err().map(|invalid| invalid.pointer);
        for tag in ["a:", "1a", "", "a b"] {
            assert_eq!(build(json!({"constant_tags": [tag]})).as_deref(), Some("/constant_tags/0"), "{tag}");
        }
        assert_eq!(build(json!({"constant_tags": ["\u{e9}:b_c.d/e-f"]})), None);
    }
}
