//! hot path
//!
//! prometheus: counts requests, their latency and their bytes, by route, service,
//! consumer and node, under APISIX 3.18's names.
//!
//! It counts on the worker and never waits; what is printed is the business of the
//! metrics listener, or, where that is switched off, of a route with public-api.

use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use model::Invalid;
use sdk::chain::{Phase, Phases};
use sdk::endpoint::MetricsPage;
use sdk::exchange::Source;
use sdk::meters::{Addresses, Labels, OVERFLOW, Sample};
use sdk::vars::Var;
use sdk::{Build, Endpoint, Exchange, Method, Plugin, Reply, Step};
use serde::Deserialize;
use serde_json::{Map, Value, json};

const STATUS: [&str; 11] = [
    "code",
    "route",
    "matched_uri",
    "matched_host",
    "service",
    "consumer",
    "node",
    "request_type",
    "request_llm_model",
    "llm_model",
    "response_source",
];
const LATENCY: [&str; 8] =
    ["type", "route", "service", "consumer", "node", "request_type", "request_llm_model", "llm_model"];

/// The other metrics of APISIX's exporter whose labels metadata may disable; nothing here counts them.
const AI: [(&str, &[&str]); 10] = [
    ("llm_latency", &["type", "route_id", "service_id"]),
    ("llm_prompt_tokens", &["route_id", "service_id"]),
    ("llm_completion_tokens", &["route_id", "service_id"]),
    (
        "llm_active_connections",
        &["route", "route_id", "matched_uri", "matched_host", "service", "service_id"],
    ),
    ("llm_prompt_tokens_dist", &["route_id", "service_id"]),
    ("llm_completion_tokens_dist", &["route_id", "service_id"]),
    ("ai_cache_hits_total", &["layer", "route", "route_id", "service", "service_id"]),
    ("ai_cache_misses_total", &["route", "route_id", "service", "service_id"]),
    ("ai_cache_bypasses_total", &["route", "route_id", "service", "service_id"]),
    ("ai_cache_embedding_latency", &["route", "route_id", "service", "service_id"]),
];
/// The labels all of those end with.
const AI_TAIL: [&str; 5] = ["consumer", "node", "request_type", "request_llm_model", "llm_model"];

/// Labels that tell the series of a metric apart and cannot be disabled.
const STRUCTURAL: [&str; 3] = ["code", "type", "layer"];

/// Bytes of a variable's value that stand in a label at most.
const MAX_EXTRA: usize = 256;

/// The stage.
pub struct Prometheus {
    prefer_name: bool,
    /// It stands in a global rule, and leaves routes that count themselves alone.
    global: bool,
    status: Metric,
    latency: Metric,
    bandwidth: Metric,
    /// A metric has extra labels.
    has_extra: bool,
    page: Option<Arc<MetricsPage>>,
}

/// How the labels of one metric differ from APISIX's default.
#[derive(Debug, Default)]
struct Metric {
    /// A bit for each label that metadata disables: it is printed empty.
    disabled: u16,
    /// `plugin_attr.prometheus.metrics.<name>.extra_labels`.
    extra: Vec<(String, Var)>,
}

#[derive(Debug, Deserialize)]
pub struct Config {
    prefer_name: bool,
}

/// Noted on an exchange whose route has this plugin: the global rule need not count it.
struct RouteCounts;

/// Noted on an exchange that the global rule has counted.
struct Counted;

impl Plugin for Prometheus {
    const NAME: &'static str = "prometheus";
    const PRIORITY: i32 = 500;
    const PHASES: Phases = Phases::LOG.with(Phases::HEADER_FILTER);
    const VERSION: &'static str = "0.2";

    type Config = Config;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {"prefer_name": {"type": "boolean", "default": false}},
        })
    }

    fn metadata_schema() -> Option<Value> {
        let list = |labels: &mut dyn Iterator<Item = &&str>| {
            let names: Vec<_> = labels.filter(|label| !STRUCTURAL.contains(label)).collect();
            json!({"type": "array", "items": {"type": "string", "enum": names}})
        };
        let mut metrics = Map::new();
        metrics.insert("http_status".into(), list(&mut STATUS.iter()));
        metrics.insert("http_latency".into(), list(&mut LATENCY.iter()));
        metrics.insert("bandwidth".into(), list(&mut LATENCY.iter()));
        for (name, labels) in AI {
            metrics.insert(name.into(), list(&mut labels.iter().chain(&AI_TAIL)));
        }
        Some(json!({
            "type": "object",
            "properties": {
                "disabled_labels": {
                    "type": "object",
                    "properties": metrics,
                    "additionalProperties": false,
                },
            },
        }))
    }

    /// As in APISIX only where the metrics have no listener of their own.
    fn endpoints(attr: Option<&Value>) -> Vec<Endpoint> {
        let Some(attr) = attr.filter(|attr| attr["enable_export_server"] == false) else { return Vec::new() };
        let path = attr["export_uri"].as_str().unwrap_or("/apisix/prometheus/metrics");
        vec![Endpoint { method: Method::Get, path: path.to_owned() }]
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Prometheus, Invalid> {
        let metadata = cx.metadata();
        let metric = |name, labels| Metric::new(name, labels, metadata, cx.attr);
        let status = metric("http_status", &STATUS)?;
        let latency = metric("http_latency", &LATENCY)?;
        let bandwidth = metric("bandwidth", &LATENCY)?;
        Ok(Prometheus {
            prefer_name: config.prefer_name,
            global: cx.owner.collection == "global_rules",
            has_extra: [&status, &latency, &bandwidth].iter().any(|metric| !metric.extra.is_empty()),
            status,
            latency,
            bandwidth,
            page: cx.service(),
        })
    }

    fn serve(&self, _: &mut Exchange<'_>) -> Step {
        Step::Wait
    }

    async fn wait(&self, _: Phase, _: &mut Exchange<'_>) -> Step {
        let page = match &self.page {
            Some(page) => page.get().await,
            None => None,
        };
        Step::Reply(match page {
            Some(body) => Reply {
                status: 200,
                headers: vec![("Content-Type", b"text/plain; version=0.0.4; charset=utf-8".to_vec())],
                body,
                ..Reply::default()
            },
            None => Reply::status(500),
        })
    }

    fn phases(&self) -> Phases {
        if self.global { Phases::LOG } else { Self::PHASES }
    }

    /// Tells the global rule's stage, whose log phase comes first, that the route has its own.
    fn header_filter(&self, x: &mut Exchange<'_>) {
        x.set_note(RouteCounts);
    }

    fn log(&self, x: &mut Exchange<'_>) {
        if x.note::<Counted>().is_some() || self.global && x.note::<RouteCounts>().is_some() {
            return;
        }
        self.count(x);
        if self.global {
            x.set_note(Counted);
        }
    }
}

/// The label values of one request.
struct Request<'x> {
    code: u16,
    route: &'x str,
    matched_uri: &'x str,
    matched_host: &'x str,
    service: &'x str,
    consumer: &'x str,
    node: Option<IpAddr>,
    source: &'static str,
}

impl Prometheus {
    fn count(&self, x: &Exchange<'_>) {
        let timing = x.timing();
        let sample = Sample {
            total_us: timing.total_us,
            // As nginx's $upstream_response_time, also where the upstream failed to answer.
            upstream_us: x.upstream_addr().map(|_| timing.upstream_us),
            received: timing.received,
            sent: timing.sent,
        };
        x.world().meters().http(
            x.series_memo().filter(|_| !self.has_extra).map(|memo| (memo, self.addresses(x))),
            |key| self.key(&self.request(x), x, key),
            |overflow| self.labels(&self.request(x), x, overflow),
            &sample,
        );
    }

    /// Returns the addresses of the label values. Consumers are part of the snapshot, like routes.
    #[inline]
    fn addresses(&self, x: &Exchange<'_>) -> Addresses {
        Addresses {
            instance: std::ptr::from_ref(self).addr(),
            route: x.route().map_or(0, |route| std::ptr::from_ref(route).addr()),
            matched_uri: x.matched_uri().as_ptr().addr(),
            matched_host: x.matched_host().as_ptr().addr(),
            consumer: x.consumer().map_or(0, |consumer| std::ptr::from_ref(consumer).addr()),
            code: x.status(),
            source: x.source(),
            node: x.upstream_addr().map(|addr| addr.ip()),
        }
    }

    fn request<'x>(&self, x: &'x Exchange<'_>) -> Request<'x> {
        let named = |id: &'x str, name: &'x str| {
            if self.prefer_name && !name.is_empty() { name } else { id }
        };
        let (route, service) = match x.route() {
            Some(route) => (named(&route.id, &route.name), named(&route.service_id, &route.service_name)),
            None => ("", ""),
        };
        Request {
            code: x.status(),
            route,
            matched_uri: x.matched_uri(),
            matched_host: x.matched_host(),
            service,
            consumer: x.consumer().map_or("", |consumer| &consumer.name),
            node: x.upstream_addr().map(|addr| addr.ip()),
            source: match x.source() {
                Source::Upstream => "upstream",
                // An upstream was chosen and did not answer; in APISIX nginx makes that error.
                Source::Gateway if x.upstream_addr().is_some() => "nginx",
                Source::None | Source::Plugin | Source::Gateway => "apisix",
            },
        }
    }

    /// Bytes that differ where any label differs.
    #[inline]
    fn key(&self, request: &Request<'_>, x: &Exchange<'_>, key: &mut Vec<u8>) {
        let texts =
            [request.route, request.matched_uri, request.matched_host, request.service, request.consumer];
        // Short values have fixed places before the texts. The sources differ in their first letters.
        let mut short = [0; 48];
        short[..2].copy_from_slice(&request.code.to_ne_bytes());
        for (at, metric) in [(2, &self.status), (4, &self.latency), (6, &self.bandwidth)] {
            short[at..at + 2].copy_from_slice(&metric.disabled.to_ne_bytes());
        }
        short[8] = request.source.bytes().next().unwrap_or_default();
        match request.node {
            Some(IpAddr::V4(ip)) => {
                short[9] = 4;
                short[12..16].copy_from_slice(&ip.octets());
            }
            Some(IpAddr::V6(ip)) => {
                short[9] = 6;
                short[12..28].copy_from_slice(&ip.octets());
            }
            None => {}
        }
        for (place, text) in short[28..].chunks_exact_mut(4).zip(texts) {
            place.copy_from_slice(&(text.len() as u32).to_ne_bytes());
        }
        key.extend_from_slice(&short);
        for text in texts {
            key.extend_from_slice(text.as_bytes());
        }
        if !self.has_extra {
            return;
        }
        for metric in [&self.status, &self.latency, &self.bandwidth] {
            for (_, var) in &metric.extra {
                // Each value has its length before it: any byte may occur in a value.
                let from = key.len() + 2;
                key.extend_from_slice(&[0; 2]);
                var.write(x, key);
                // As long as the label shows it.
                key.truncate(from + MAX_EXTRA);
                let length = (key.len() - from) as u16;
                key[from - 2..from].copy_from_slice(&length.to_ne_bytes());
            }
        }
    }

    /// The label texts. Past the bound of series all is blank but the route, which says so.
    #[cold]
    fn labels(&self, request: &Request<'_>, x: &Exchange<'_>, overflow: bool) -> Labels {
        let blank = Request {
            code: request.code,
            route: OVERFLOW,
            matched_uri: "",
            matched_host: "",
            service: "",
            consumer: "",
            node: None,
            source: "",
        };
        let request = if overflow { &blank } else { request };
        let node = request.node.map(|ip| ip.to_string()).unwrap_or_default();
        let code = if overflow { String::new() } else { request.code.to_string() };
        let status = [
            &code,
            request.route,
            request.matched_uri,
            request.matched_host,
            request.service,
            request.consumer,
            &node,
            "traditional_http",
            "",
            "",
            request.source,
        ];
        // `type` differs within a series and is printed before these.
        let others =
            ["", request.route, request.service, request.consumer, &node, "traditional_http", "", ""];
        let x = (!overflow).then_some(x);
        Labels {
            route: request.route.to_owned(),
            status: self.status.text(&STATUS, &status, x),
            latency: self.latency.text(&LATENCY, &others, x),
            bandwidth: self.bandwidth.text(&LATENCY, &others, x),
        }
    }
}

impl Metric {
    fn new(
        name: &str,
        labels: &[&str],
        metadata: Option<&Value>,
        attr: Option<&Value>,
    ) -> Result<Metric, Invalid> {
        let mut metric = Metric::default();
        let disabled = metadata.and_then(|metadata| metadata.pointer(&format!("/disabled_labels/{name}")));
        for label in disabled.and_then(Value::as_array).into_iter().flatten() {
            if let Some(index) = labels.iter().position(|known| label == known) {
                metric.disabled |= 1 << index;
            }
        }
        let pointer = format!("/metrics/{name}/extra_labels");
        let extra = attr.and_then(|attr| attr.pointer(&pointer)).and_then(Value::as_array);
        for label in extra.into_iter().flatten() {
            let pair = label.as_object().and_then(|pairs| pairs.iter().next());
            let Some((label, Some(var))) = pair.map(|(label, value)| (label, value.as_str())) else {
                return Err(Invalid::new(format!(
                    "plugin_attr.prometheus{pointer} must hold objects of one string"
                ))
                .expected("{label: $variable}"));
            };
            metric.extra.push((label.clone(), Var::parse(var.trim_start_matches('$'))));
        }
        Ok(metric)
    }

    /// `name="value",…` in order, without `type`. Without an exchange extra labels are blank.
    fn text(&self, names: &[&str], values: &[&str], x: Option<&Exchange<'_>>) -> String {
        let mut text = Vec::with_capacity(256);
        for (index, (name, value)) in names.iter().zip(values).enumerate() {
            if *name != "type" {
                let value = if self.disabled & (1 << index) == 0 { *value } else { "" };
                push(&mut text, name, value);
            }
        }
        for (name, var) in &self.extra {
            let value = x.and_then(|x| var.of(x)).unwrap_or_default();
            push(&mut text, name, &String::from_utf8_lossy(&value[..value.len().min(MAX_EXTRA)]));
        }
        String::from_utf8(text).unwrap_or_default()
    }
}

/// Appends a label, its value escaped as the text format wants it.
fn push(text: &mut Vec<u8>, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(b',');
    }
    // Writing to memory does not fail.
    let _ = write!(text, "{name}=\"");
    for byte in value.bytes() {
        match byte {
            b'\\' => text.extend_from_slice(b"\\\\"),
            b'"' => text.extend_from_slice(b"\\\""),
            b'\n' => text.extend_from_slice(b"\\n"),
            byte => text.push(byte),
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests;
