//! The page as APISIX's exporter writes it, and what is documented of it.

use sdk::meters::{Labels, Meters, OVERFLOW, Sample, Shard};

use super::*;
use crate::metrics::facts::{PluginMetric, Shape};

fn labels(route: &str) -> Labels {
    Labels {
        route: route.into(),
        status: format!("code=\"200\",route=\"{route}\""),
        latency: format!("route=\"{route}\""),
        bandwidth: format!("route=\"{route}\""),
    }
}

fn count(shard: &Shard, route: &str, sample: Sample) {
    let make = |overflow| labels(if overflow { OVERFLOW } else { route });
    shard.http(None, |key| key.extend_from_slice(route.as_bytes()), make, &sample);
}

fn scrape(meters: &Meters) -> String {
    scrape_at(meters, 1)
}

fn scrape_at(meters: &Meters, now_ms: u64) -> String {
    let facts =
        Facts { hostname: "h\"1", version: "0.1.0", steady_ms: now_ms, secrets: (1, 0), ..Facts::default() };
    String::from_utf8(page(meters, &facts).concat()).unwrap()
}

fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn shards_are_summed_and_printed_as_apisix_prints_them() {
    let meters = Meters::default();
    let (one, two) = (meters.shard(0), meters.shard(1));
    count(&one, "1", Sample { total_us: 1_500, upstream_us: Some(1_000), received: 100, sent: 200 });
    count(&two, "1", Sample { total_us: 70_000_000, upstream_us: None, received: 1, sent: 2 });
    count(&two, "", Sample::default());
    one.connection_opened();
    two.connection_opened();
    two.connection_closed();
    one.waiting(1);
    one.request_began();
    one.request_ended();
    let text = scrape(&meters);
    for (line, expected) in [
        ("apisix_http_status{code=\"200\",route=\"1\"}", 2.0),
        ("apisix_http_status{code=\"200\",route=\"\"}", 1.0),
        ("apisix_bandwidth{type=\"ingress\",route=\"1\"}", 101.0),
        ("apisix_bandwidth{type=\"egress\",route=\"1\"}", 202.0),
        ("apisix_http_latency_bucket{type=\"request\",route=\"1\",le=\"1\"}", 0.0),
        ("apisix_http_latency_bucket{type=\"request\",route=\"1\",le=\"2\"}", 1.0),
        ("apisix_http_latency_bucket{type=\"request\",route=\"1\",le=\"60000\"}", 1.0),
        ("apisix_http_latency_bucket{type=\"request\",route=\"1\",le=\"+Inf\"}", 2.0),
        ("apisix_http_latency_bucket{type=\"upstream\",route=\"1\",le=\"1\"}", 1.0),
        ("apisix_http_latency_count{type=\"upstream\",route=\"1\"}", 1.0),
        ("apisix_http_latency_sum{type=\"request\",route=\"1\"}", 70_001.5),
        ("apisix_http_latency_sum{type=\"apisix\",route=\"1\"}", 70_000.5),
        ("apisix_http_requests_total", 1.0),
        ("apisix_nginx_http_current_connections{state=\"accepted\"}", 2.0),
        ("apisix_nginx_http_current_connections{state=\"active\"}", 1.0),
        ("apisix_nginx_http_current_connections{state=\"waiting\"}", 1.0),
        ("apisix_nginx_http_current_connections{state=\"reading\"}", 0.0),
        ("apisix_nginx_metric_errors_total", 0.0),
        ("apisix_node_info{hostname=\"h\\\"1\",version=\"0.1.0\"}", 1.0),
        ("sluice_panics_total", 0.0),
    ] {
        assert_eq!(value(&text, line), Some(expected), "{line} in\n{text}");
    }
    // An upstream that was never asked has no histogram.
    assert!(!text.contains("type=\"upstream\",route=\"\""));
    // Each metric has one head, and its lines stand together.
    let heads: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE apisix_")).collect();
    assert!(heads.is_sorted() && heads.len() >= 6, "{heads:?}");
}

#[test]
fn metrics_of_plugins_in_webassembly_are_printed() {
    let metric = |name: &str, plugin, value, shape| PluginMetric { plugin, name: name.into(), value, shape };
    let plugin_metrics = [
        metric("hits", "a", 3, Shape::Counter),
        metric("hits", "b", 4, Shape::Counter),
        metric("level", "a", u64::MAX, Shape::Gauge),
        metric("took", "a", 12, Shape::Histogram { bounds: &[1, 10], counts: vec![2, 0, 1] }),
    ];
    let facts = Facts { plugin_metrics: &plugin_metrics, ..Facts::default() };
    let text = String::from_utf8(page(&Meters::default(), &facts).concat()).unwrap();
    for (line, expected) in [
        ("sluice_wasm_hits{plugin=\"a\"}", 3.0),
        ("sluice_wasm_hits{plugin=\"b\"}", 4.0),
        ("sluice_wasm_level{plugin=\"a\"}", -1.0),
        ("sluice_wasm_took_bucket{plugin=\"a\",le=\"1\"}", 2.0),
        ("sluice_wasm_took_bucket{plugin=\"a\",le=\"10\"}", 2.0),
        ("sluice_wasm_took_bucket{plugin=\"a\",le=\"+Inf\"}", 3.0),
        ("sluice_wasm_took_sum{plugin=\"a\"}", 12.0),
        ("sluice_wasm_took_count{plugin=\"a\"}", 3.0),
    ] {
        assert_eq!(value(&text, line), Some(expected), "{line}\n{text}");
    }
    assert_eq!(text.matches("# TYPE sluice_wasm_hits counter").count(), 1);
}

#[test]
fn a_page_comes_in_pieces_of_whole_lines() {
    let meters = Meters::default();
    let shard = meters.shard(0);
    (0..100).for_each(|route| count(&shard, &format!("route-{route}"), Sample::default()));
    let pieces = page(&meters, &Facts::default());
    assert!(pieces.len() > 3, "{}", pieces.len());
    for piece in &pieces {
        assert!(piece.ends_with(b"\n") && piece.len() < 68 << 10);
    }
}

/// `docs/operating.md` lists the metrics that APISIX does not have, with their kind and meaning.
#[test]
fn metrics_of_our_own_are_documented() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating.md");
    let docs = std::fs::read_to_string(file).unwrap();
    let text = scrape(&Meters::default());
    let field = |line: &str, start: &str| {
        let (name, rest) = line.strip_prefix(start)?.split_once(' ')?;
        name.starts_with("sluice_").then(|| (name.to_owned(), rest.to_owned()))
    };
    let helps: Vec<_> = text.lines().filter_map(|line| field(line, "# HELP ")).collect();
    let kinds: Vec<_> = text.lines().filter_map(|line| field(line, "# TYPE ")).collect();
    assert!(!helps.is_empty());
    let rows: Vec<&str> = docs.lines().filter(|line| line.starts_with("| `sluice_")).collect();
    for ((name, help), (_, kind)) in helps.iter().zip(&kinds) {
        let row = format!("| `{name}` | {kind} | {help} |");
        assert!(rows.contains(&row.as_str()), "docs/operating.md lacks the line\n{row}");
    }
    assert_eq!(rows.len(), helps.len(), "docs/operating.md has a metric that is not there");
}
