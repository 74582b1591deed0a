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
        for (kind, name) in [(Kind::Own, "apisix"), (Kind::Request, "request"), (Kind::Upstream, "upstream")]
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
fn the_source_of_an_answer_is_a_label() {
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
        assert!(text.contains(&format!(",response_source=\"{label}\"}} 1")), "{source:?} {asked}:\n{text}");
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
    // No byte of a value ends it.
    for byte in ["%FF", "%00"] {
        assert_ne!(key(&format!("a{byte}b"), "c"), key("a", &format!("b{byte}c")));
    }
    assert_ne!(key("ab", ""), key("a", "b"));
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
        let endpoint = Prometheus::endpoints(attr.as_ref()).pop();
        let endpoint = endpoint.map(|endpoint| (endpoint.method, endpoint.path));
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
