//! Traces of requests: the plugins opentelemetry and zipkin.

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::value::{self, boolean, seconds, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

const NONE: &str = "traces are not sent: servers get none of their headers (`traceparent`, `tracestate`, `x-b3-traceid` and so on), and clients no `x-envoy-decorator-operation`";

/// Reads `tracing` of a connection manager: the plugin of its routes.
pub(super) fn read(
    context: &mut Context<'_>,
    clusters: &Clusters,
    manager: &Node<'_>,
    report: &mut Report,
) -> Option<(&'static str, Value)> {
    let node = manager.some("tracing")?;
    let Some(provider) = node.some("provider") else {
        node.whole();
        report.cosmetic(&node, "tracing", "traces are not sent");
        return None;
    };
    let extension = value::extension(&provider);
    let config = extension.config.unwrap_or_else(|| provider.clone());
    let sampled = share(&node, "random_sampling") * share(&node, "overall_sampling");
    let found = match extension.kind.as_str() {
        "OpenTelemetryConfig" => opentelemetry(context, clusters, &config, sampled, report),
        "ZipkinConfig" => zipkin(clusters, &config, sampled, report),
        _ => None,
    };
    if found.is_none() {
        node.whole();
        report.behaviour(&node, "tracing", NONE);
        return None;
    }
    let _ = (provider.get("name"), config.get("@type"));
    if manager.value().to_string().contains("\"decorator\"") {
        let effect = "`x-envoy-decorator-operation` is also in answers to requests for an upgraded connection that are refused";
        report.behaviour(&node, "decorator", effect);
    }
    report.fields(
        &node,
        &[
            ("client_sampling", Cosmetic, "requests with `X-Client-Trace-Id` are sampled like others"),
            ("verbose", Cosmetic, "spans have no events"),
            ("max_path_tag_length", Cosmetic, "paths in spans are not cut"),
            ("custom_tags", Behaviour, "spans have no tags of the configuration"),
            ("spawn_upstream_span", Cosmetic, "a request has the spans of the plugin"),
            ("operation", Cosmetic, "spans have the names of the plugin"),
            ("upstream_operation", Cosmetic, "spans have the names of the plugin"),
        ],
    );
    found
}

/// The part of a `Percent`.
fn share(node: &Node<'_>, name: &str) -> f64 {
    let percent =
        node.some(name).map(|percent| percent.some("value").and_then(|value| value.f64()).unwrap_or(0.0));
    percent.unwrap_or(100.0).clamp(0.0, 100.0) / 100.0
}

/// The name of the operation that clients get in the response.
pub(super) fn operation<'n>(route: &Node<'n>) -> Option<&'n str> {
    let decorator = route.some("decorator")?;
    let name = text(&decorator, "operation").filter(|name| !name.is_empty());
    name.filter(|_| boolean(&decorator, "propagate") != Some(false))
}

fn opentelemetry(
    context: &mut Context<'_>,
    clusters: &Clusters,
    config: &Node<'_>,
    sampled: f64,
    report: &mut Report,
) -> Option<(&'static str, Value)> {
    let mut collector = Map::new();
    if let Some(service) = config.some("http_service") {
        let uri = service.some("http_uri")?;
        let (name, address) = (text(&uri, "cluster")?, text(&uri, "uri")?);
        collector.insert("address".to_owned(), json!(clusters.get(name)?.url()?));
        if !address.ends_with("/v1/traces") {
            report.behaviour(&uri, "http_uri", "spans are posted to `/v1/traces`");
        }
        if let Some(time) = seconds(&uri, "timeout") {
            collector.insert("request_timeout".to_owned(), json!(time.ceil().clamp(1.0, 60.0) as u64));
        }
        report.fields(
            &service,
            &[("request_headers_to_add", Behaviour, "spans are posted without these headers")],
        );
    } else {
        let service = config.some("grpc_service")?;
        let name =
            service.some("envoy_grpc").and_then(|grpc| text(&grpc, "cluster_name").map(str::to_owned))?;
        collector.insert("address".to_owned(), json!(clusters.get(&name)?.url()?));
        collector.insert("protocol".to_owned(), json!("grpc"));
        if let Some(time) = seconds(&service, "timeout") {
            collector.insert("request_timeout".to_owned(), json!(time.ceil().clamp(1.0, 60.0) as u64));
        }
        report.fields(&service, &[("initial_metadata", Behaviour, "spans are posted without these headers")]);
    }
    report.fields(
        config,
        &[
            ("resource_detectors", Behaviour, "spans have the service name alone"),
            ("sampler", Behaviour, "requests are sampled by the shares of `tracing`"),
            ("max_cache_size", Cosmetic, "the queue of spans has the plugin's own bounds"),
        ],
    );
    let service =
        text(config, "service_name").filter(|name| !name.is_empty()).unwrap_or("unknown_service:envoy");
    let metadata = json!({"collector": collector, "resource": {"service.name": service}});
    let key = Key::new(Kind::PluginMetadata, "opentelemetry");
    match context.import.resources.iter().find(|resource| resource.key == key) {
        Some(known) if known.value != metadata => {
            report.behaviour(
                config,
                "tracing",
                "spans go to the collector of the first listener, with its service name",
            );
        }
        Some(_) => {}
        None => {
            let value = metadata.as_object().cloned().unwrap_or_default();
            context.add(key, value, config.place());
        }
    }
    let root = match sampled {
        all if all >= 1.0 => json!({"name": "always_on"}),
        part => json!({"name": "trace_id_ratio", "options": {"fraction": part}}),
    };
    Some(("opentelemetry", json!({"sampler": {"name": "parent_base", "options": {"root": root}}})))
}

fn zipkin(
    clusters: &Clusters,
    config: &Node<'_>,
    sampled: f64,
    report: &mut Report,
) -> Option<(&'static str, Value)> {
    let (name, path) = (text(config, "collector_cluster")?, text(config, "collector_endpoint")?);
    let endpoint = format!("{}{path}", clusters.get(name)?.url()?);
    report.fields(
        config,
        &[
            ("collector_hostname", Cosmetic, "the collector gets its own name as Host"),
            ("shared_span_context", Cosmetic, "the gateway has spans of its own"),
            ("collector_endpoint_version", Cosmetic, "spans are JSON of version 2"),
            ("trace_id_128bit", Cosmetic, "traces have identifiers of 128 bits"),
            ("split_spans_for_request", Cosmetic, "a request has the spans of the plugin"),
        ],
    );
    Some((
        "zipkin",
        json!({"endpoint": endpoint, "sample_ratio": sampled.max(0.000_01), "service_name": "envoy"}),
    ))
}
