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
use sdk::meters::{Labels, OVERFLOW, Sample};
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

/// Noted on an exchange that was counted.
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
    fn endpoint(attr: Option<&Value>) -> Option<Endpoint> {
        let attr = attr.filter(|attr| attr["enable_export_server"] == false)?;
        let path = attr["export_uri"].as_str().unwrap_or("/apisix/prometheus/metrics");
        Some(Endpoint { method: Method::Get, path: path.to_owned() })
    }

    fn build(config: Config, cx: &mut Build<'_>) -> Result<Prometheus, Invalid> {
        let metadata = cx.metadata();
        let metric = |name, labels| Metric::new(name, labels, metadata, cx.attr);
        Ok(Prometheus {
            prefer_name: config.prefer_name,
            global: cx.owner.collection == "global_rules",
            status: metric("http_status", &STATUS)?,
            latency: metric("http_latency", &LATENCY)?,
            bandwidth: metric("bandwidth", &LATENCY)?,
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
                reason: "",
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
        x.set_note(Counted);
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
        let request = self.request(x);
        let timing = x.timing();
        let sample = Sample {
            total_us: timing.total_us,
            // As nginx's $upstream_response_time, also where the upstream failed to answer.
            upstream_us: x.upstream_addr().map(|_| timing.upstream_us),
            received: timing.received,
            sent: timing.sent,
        };
        x.world().meters().http(
            |key| self.key(&request, x, key),
            |overflow| self.labels(&request, x, overflow),
            &sample,
        );
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
        key.extend_from_slice(&request.code.to_ne_bytes());
        for metric in [&self.status, &self.latency, &self.bandwidth] {
            key.extend_from_slice(&metric.disabled.to_ne_bytes());
        }
        match request.node {
            Some(IpAddr::V4(ip)) => key.extend_from_slice(&ip.octets()),
            Some(IpAddr::V6(ip)) => key.extend_from_slice(&ip.octets()),
            None => {}
        }
        let texts = [
            request.source,
            request.route,
            request.matched_uri,
            request.matched_host,
            request.service,
            request.consumer,
        ];
        for text in texts {
            key.push(0xff);
            key.extend_from_slice(text.as_bytes());
        }
        for metric in [&self.status, &self.latency, &self.bandwidth] {
            for (_, var) in &metric.extra {
                key.push(0xff);
                let from = key.len();
                var.write(x, key);
                // As long as the label shows it.
                key.truncate(from + MAX_EXTRA);
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
mod tests {
    use sdk::build::Owner;
    use sdk::meters::Kind;
    use sdk::testing::{FixedNames, Probe, respond};

    use super::*;

    /// A probe whose worker counts into the services' meters.
    fn probe(target: &str) -> Probe {
        let mut probe = Probe::get(target);
        probe.world.shard = probe.services.meters.shard(0);
        probe
    }

    fn build(
        probe: &Probe,
        collection: &'static str,
        metadata: Option<&Value>,
        attr: Option<&Value>,
    ) -> Prometheus {
        let owner = Owner { collection, id: "1".into() };
        let names = FixedNames::default();
        let metadata = || metadata;
        let mut cx = Build::new(&owner, &probe.services, &names).with_metadata(&metadata);
        cx.attr = attr;
        Prometheus::build(Config { prefer_name: false }, &mut cx).unwrap()
    }

    fn scrape(probe: &Probe) -> String {
        probe.services.meters.read(1, |reading| {
            let mut text = String::new();
            for (labels, requests) in reading.status() {
                text += &format!("apisix_http_status{{{labels}}} {requests}\n");
            }
            for (labels, received, sent) in reading.bandwidth() {
                text += &format!("apisix_bandwidth{{type=\"ingress\",{labels}}} {received}\n");
                text += &format!("apisix_bandwidth{{type=\"egress\",{labels}}} {sent}\n");
            }
            for (kind, name) in
                [(Kind::Own, "apisix"), (Kind::Request, "request"), (Kind::Upstream, "upstream")]
            {
                for (labels, histogram) in reading.latency(kind) {
                    let (labels, mut count) = (format!("type=\"{name}\",{labels}"), 0);
                    for (bound, more) in reading.settings().buckets_ms.iter().zip(&histogram.counts) {
                        count += more;
                        text += &format!("apisix_http_latency_bucket{{{labels},le=\"{bound}\"}} {count}\n");
                    }
                    let sum = histogram.sum_us as f64 / 1000.0;
                    text += &format!("apisix_http_latency_sum{{{labels}}} {sum}\n");
                }
            }
            text
        })
    }

    /// An exchange that got an answer of the upstream.
    fn served(x: &mut Exchange<'_>) {
        x.engine_mut().matched.uri = "/he*";
        x.engine_mut().upstream_addr = Some("10.0.0.1:80".parse().unwrap());
        x.engine_mut().timing.total_us = 3_000;
        x.engine_mut().timing.upstream_us = 1_500;
        x.engine_mut().timing.received = 90;
        x.engine_mut().timing.sent = 4_200;
        respond(x, 200, &[]);
    }

    #[test]
    fn lines_are_those_of_apisix() {
        let mut probe = probe("/hello");
        let stage = build(&probe, "routes", None, None);
        let mut x = probe.exchange();
        served(&mut x);
        stage.header_filter(&mut x);
        stage.log(&mut x);
        drop(x);
        let text = scrape(&probe);
        let tail = "service=\"\",consumer=\"\",node=\"10.0.0.1\",request_type=\"traditional_http\",\
                    request_llm_model=\"\",llm_model=\"\"";
        for line in [
            format!(
                "apisix_http_status{{code=\"200\",route=\"1\",matched_uri=\"/he*\",matched_host=\"\",{tail},\
                 response_source=\"upstream\"}} 1"
            ),
            format!("apisix_http_latency_bucket{{type=\"upstream\",route=\"1\",{tail},le=\"2\"}} 1"),
            format!("apisix_http_latency_sum{{type=\"apisix\",route=\"1\",{tail}}} 1.5"),
            format!("apisix_bandwidth{{type=\"ingress\",route=\"1\",{tail}}} 90"),
            format!("apisix_bandwidth{{type=\"egress\",route=\"1\",{tail}}} 4200"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn it_is_told_who_made_the_answer() {
        for (source, asked, label) in [
            (Source::Upstream, true, "upstream"),
            (Source::Gateway, true, "nginx"),
            (Source::Gateway, false, "apisix"),
            (Source::Plugin, true, "apisix"),
        ] {
            let mut probe = probe("/hello");
            let stage = build(&probe, "routes", None, None);
            let mut x = probe.exchange();
            served(&mut x);
            x.engine_mut().source = source;
            if !asked {
                x.engine_mut().upstream_addr = None;
            }
            stage.log(&mut x);
            drop(x);
            let text = scrape(&probe);
            assert!(
                text.contains(&format!(",response_source=\"{label}\"}} 1")),
                "{source:?} {asked}:\n{text}"
            );
        }
    }

    #[test]
    fn unmatched_requests_have_an_empty_route() {
        let mut probe = probe("/nowhere");
        let stage = build(&probe, "global_rules", None, None);
        let mut x = probe.exchange();
        x.engine_mut().matched.route = None;
        x.engine_mut().messages.response.status = 404;
        x.engine_mut().source = Source::Gateway;
        stage.log(&mut x);
        drop(x);
        assert!(scrape(&probe).contains(
            "apisix_http_status{code=\"404\",route=\"\",matched_uri=\"\",matched_host=\"\",service=\"\",\
             consumer=\"\",node=\"\",request_type=\"traditional_http\",request_llm_model=\"\",llm_model=\"\",\
             response_source=\"apisix\"} 1"
        ));
    }

    #[test]
    fn a_request_is_counted_once_and_by_its_route() {
        let mut probe = probe("/hello");
        let global = build(&probe, "global_rules", None, None);
        let mut own = build(&probe, "routes", None, None);
        own.prefer_name = true;
        assert_eq!(global.phases(), Phases::LOG);
        let mut x = probe.exchange();
        served(&mut x);
        own.header_filter(&mut x);
        global.log(&mut x);
        own.log(&mut x);
        drop(x);
        let text = scrape(&probe);
        assert!(text.contains("route=\"route-1\"") && !text.contains("route=\"1\""), "{text}");
        // A request that broke off before its header filter is counted by the first instance.
        probe.messages.clear();
        let mut x = probe.exchange();
        served(&mut x);
        global.log(&mut x);
        own.log(&mut x);
        drop(x);
        let counted: u64 = scrape(&probe)
            .lines()
            .filter(|line| line.starts_with("apisix_http_status{"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(counted, 2);
    }

    /// Requests that differ in one label only are counted apart, and the others together.
    #[test]
    fn a_series_is_all_that_its_labels_say() {
        let mut probe = probe("/hello?who=a");
        let attr = json!({"metrics": {"http_status": {"extra_labels": [{"who": "$arg_who"}]}}});
        let stage = build(&probe, "routes", None, Some(&attr));
        let long = format!("/hello?who={}", "b".repeat(MAX_EXTRA + 1));
        type Change = fn(&mut Exchange<'_>);
        let changes: [Change; 6] = [
            |_| {},
            |x| x.set_status(404),
            |x| x.engine_mut().matched.uri = "/other",
            |x| x.engine_mut().upstream_addr = Some("10.0.0.2:80".parse().unwrap()),
            |x| x.engine_mut().upstream_addr = Some("[::1]:80".parse().unwrap()),
            |x| {
                x.engine_mut().upstream_addr = None;
                x.engine_mut().source = Source::Gateway;
            },
        ];
        let targets = ["/hello?who=a", "/hello?who=ab", "/hello", &long];
        for (target, change) in targets.iter().flat_map(|target| changes.map(|change| (target, change))) {
            for _ in 0..2 {
                probe.ask("GET", target, &[]);
                let mut x = probe.exchange();
                served(&mut x);
                change(&mut x);
                stage.header_filter(&mut x);
                stage.log(&mut x);
            }
        }
        let text = scrape(&probe);
        let series: Vec<_> = text.lines().filter(|line| line.starts_with("apisix_http_status{")).collect();
        assert_eq!(series.len(), targets.len() * changes.len(), "{text}");
        assert!(series.iter().all(|line| line.ends_with("} 2")), "{text}");
    }

    /// Parts of a value that its label does not show make no series of their own.
    #[test]
    fn a_value_counts_as_far_as_its_label_shows_it() {
        let attr =
            json!({"metrics": {"http_status": {"extra_labels": [{"who": "$arg_who"}, {"how": "$arg_how"}]}}});
        let key = |who: &str, how: &str| {
            let mut probe = probe(&format!("/hello?who={who}&how={how}"));
            let stage = build(&probe, "routes", None, Some(&attr));
            let (x, mut key) = (probe.exchange(), Vec::new());
            stage.key(&stage.request(&x), &x, &mut key);
            key
        };
        let long = "a".repeat(MAX_EXTRA);
        assert_eq!(key(&format!("{long}b"), "1"), key(&format!("{long}c"), "1"));
        assert_ne!(key(&format!("{long}b"), "1"), key(&format!("{long}b"), "2"));
        assert_ne!(key(&format!("{}b", &long[1..]), "1"), key(&format!("{}c", &long[1..]), "1"));
    }

    #[test]
    fn labels_can_be_disabled_and_added() {
        let mut probe = probe("/hello?who=a%22b");
        let metadata =
            json!({"disabled_labels": {"http_status": ["matched_uri", "node"], "bandwidth": ["route"]}});
        let attr = json!({"metrics": {"http_status": {"extra_labels": [{"who": "$arg_who"}, {"m": "$request_method"}]}}});
        let stage = build(&probe, "routes", Some(&metadata), Some(&attr));
        let mut x = probe.exchange();
        served(&mut x);
        stage.log(&mut x);
        drop(x);
        let text = scrape(&probe);
        assert!(
            text.contains("matched_uri=\"\",matched_host=\"\",service=\"\",consumer=\"\",node=\"\""),
            "{text}"
        );
        assert!(text.contains(",response_source=\"upstream\",who=\"a\\\"b\",m=\"GET\"} 1"), "{text}");
        assert!(text.contains("apisix_bandwidth{type=\"ingress\",route=\"\","));
        assert!(text.contains("apisix_http_latency_sum{type=\"request\",route=\"1\","));
    }

    #[test]
    fn it_has_a_path_where_its_metrics_have_no_listener() {
        for (attr, path) in [
            (None, None),
            (Some(json!({})), None),
            (Some(json!({"enable_export_server": true, "export_uri": "/m"})), None),
            (Some(json!({"enable_export_server": false})), Some("/apisix/prometheus/metrics")),
            (Some(json!({"enable_export_server": false, "export_uri": "/m"})), Some("/m")),
        ] {
            let endpoint =
                Prometheus::endpoint(attr.as_ref()).map(|endpoint| (endpoint.method, endpoint.path));
            assert_eq!(endpoint, path.map(|path| (Method::Get, path.to_owned())), "{attr:?}");
        }
    }

    #[test]
    fn metadata_names_only_labels_that_may_go() {
        let schema = model::Schema::new(&Prometheus::metadata_schema().unwrap()).unwrap();
        assert!(
            schema
                .check(&json!({"disabled_labels": {"http_latency": ["node"], "llm_latency": ["node"]}}))
                .is_ok()
        );
        for wrong in [
            json!({"disabled_labels": {"http_status": ["code"]}}),
            json!({"disabled_labels": {"bandwidth": ["type"]}}),
            json!({"disabled_labels": {"http_latency": ["matched_uri"]}}),
            json!({"disabled_labels": {"requests": []}}),
        ] {
            assert!(schema.check(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_escaped() {
        let mut text = Vec::new();
        push(&mut text, "a", "x\"\\\ny");
        assert_eq!(text, b"a=\"x\\\"\\\\\\ny\"");
    }
}
