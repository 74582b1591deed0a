//! Filters that map to one plugin, and those that are only named.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::filters::Filter;
use super::matching::header_condition;
use super::value::{self, boolean, items, number, seconds, seconds_json, text, texts};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// Filters without an effect on requests.
const SILENT: &[(&str, &str)] = &[
    ("grpc_stats", "statistics have other names"),
    ("tap", "requests are not recorded"),
    ("file_system_buffer", "bodies have the gateway's own bounds"),
    ("on_demand", "routes of a control plane are not loaded"),
    ("alternate_protocols_cache", "HTTP/3 is not spoken with servers"),
];

/// Filters that change requests or answers without protecting anything.
const NAMED: &[(&str, &str)] = &[
    ("grpc_json_transcoder", "JSON requests are not translated into gRPC calls; gRPC itself passes"),
    ("transcoder", "JSON requests are not translated into gRPC calls; gRPC itself passes"),
    ("header_to_metadata", "headers do not become metadata"),
    ("json_to_metadata", "bodies do not become metadata"),
    ("set_metadata", "metadata is not set"),
    ("cache", "answers are not kept; the plugin proxy-cache does that"),
    ("decompressor", "bodies are not decompressed"),
    ("dynamic_forward_proxy", "servers are not found by the Host of requests"),
    ("stateful_session", "clients do not stay with a server; `sluice.sticky` of an upstream does that"),
    ("grpc_http1_bridge", "HTTP/1.1 requests do not become gRPC calls"),
    ("grpc_http1_reverse_bridge", "gRPC calls do not become HTTP/1.1 requests"),
    ("aws_request_signing", "requests are not signed"),
    ("aws_lambda", "functions are not called"),
    ("kill_request", "the gateway does not end by a request"),
    ("original_src", "servers see the address of the gateway"),
];

/// The settings of the router itself.
pub(super) fn router(config: &Node<'_>, report: &mut Report) {
    // Read by routes.
    let _ = config.get("suppress_envoy_headers");
    report.fields(
        config,
        &[
            ("dynamic_stats", Cosmetic, "statistics have other names"),
            ("start_child_span", Cosmetic, "a request has the spans of the plugin"),
            ("upstream_log", Cosmetic, "tries are logged with their request"),
            ("upstream_log_options", Cosmetic, "tries are logged with their request"),
            ("strict_check_headers", Cosmetic, "`X-Envoy-*` of clients has no effect"),
            ("respect_expected_rq_timeout", Behaviour, "`X-Envoy-Expected-Rq-Timeout-Ms` has no effect"),
            ("suppress_grpc_request_failure_code_stats", Cosmetic, "statistics have other names"),
            ("upstream_http_filters", Behaviour, "filters of clusters are not carried over"),
        ],
    );
}

/// A filter without settings.
pub(super) fn without_settings(filter: &Filter<'_>, report: &mut Report) -> Map<String, Value> {
    if filter.is(&["grpc_web", "GrpcWeb"]) {
        return grpc_web();
    }
    if filter.is(&["gzip", "compressor"]) {
        return Map::from_iter([("gzip".to_owned(), gzip_settings(Vec::new(), None))]);
    }
    named(filter, report);
    Map::new()
}

/// A filter with settings.
pub(super) fn read(filter: &Filter<'_>, config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    if filter.is(&["grpc_web", "GrpcWeb"]) {
        return grpc_web();
    }
    if filter.is(&["compressor", "Compressor", "gzip", "Gzip"]) {
        return compressor(filter, config, report);
    }
    if filter.is(&["fault", "HTTPFault"]) {
        return fault(config, report);
    }
    if filter.is(&["buffer", "Buffer", "BufferPerRoute"]) {
        return buffer(config);
    }
    if filter.is(&["health_check", "HealthCheck"]) {
        return health_check(filter, config, report);
    }
    if filter.is(&["header_mutation", "HeaderMutation"]) {
        return header_mutation(config, report);
    }
    config.whole();
    named(filter, report);
    Map::new()
}

fn named(filter: &Filter<'_>, report: &mut Report) {
    let name = filter.name();
    let word = filter.word();
    let of = |table: &[(&str, &'static str)]| {
        table.iter().find(|(known, _)| *known == word).map(|(_, effect)| *effect)
    };
    if matches!(word, "ratelimit" | "rate_limit") {
        let effect = "the rate limit service is not asked, so its limits do not hold";
        report.guard(filter.place(), name, effect);
        report.hint("limit-count with the policy `redis` counts requests of all gateways together");
    } else if let Some(effect) = of(SILENT) {
        report.cosmetic(filter.place(), name, effect);
    } else if let Some(effect) = of(NAMED) {
        report.behaviour(filter.place(), name, effect);
    } else {
        report.guard(filter.place(), name, "the filter is not carried over, and may refuse requests");
    }
}

fn grpc_web() -> Map<String, Value> {
    // Other requests pass unchanged.
    let calls = json!([["http_content_type", "~~", "^application/grpc-web"]]);
    Map::from_iter([("grpc-web".to_owned(), json!({"_meta": {"filter": calls}}))])
}

/// Types that Envoy compresses by default.
const TYPES: [&str; 9] = [
    "application/javascript",
    "application/json",
    "application/xhtml+xml",
    "image/svg+xml",
    "text/css",
    "text/html",
    "text/plain",
    "text/xml",
    "application/x-javascript",
];

fn gzip_settings(types: Vec<String>, least: Option<u64>) -> Value {
    let types = if types.is_empty() { TYPES.iter().map(|kind| (*kind).to_owned()).collect() } else { types };
    json!({"types": types, "min_length": least.unwrap_or(30).max(1), "vary": true})
}

fn compressor(filter: &Filter<'_>, config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    let direction = config.some("response_direction_config");
    let inner = direction.as_ref().and_then(|direction| direction.some("common_config"));
    let common = inner.or_else(|| config.some("compressor")).unwrap_or_else(|| config.clone());
    let mut types = texts(&common, "content_type");
    types.retain(|kind| !kind.is_empty());
    let mut settings = gzip_settings(
        types,
        number(&common, "min_content_length").or_else(|| number(&common, "content_length")),
    );
    if let Some(share) = common.some("enabled") {
        let off = boolean(&share, "default_value") == Some(false);
        share.whole();
        if off {
            return Map::new();
        }
    }
    let mut plugin = "gzip";
    if let Some(library) = config.some("compressor_library") {
        let library = value::extension(&library);
        let level = library.config.as_ref().and_then(|config| {
            let level = config.any(&["compression_level", "quality", "compression_strategy"])?;
            level.u64().or_else(|| level.str()?.rsplit('_').next()?.parse().ok())
        });
        if let Some(config) = &library.config {
            report.opaque(config, "compressor_library", "only the level is used");
        }
        match library.kind.as_str() {
            "Brotli" | "brotli" => {
                plugin = "brotli";
                if let Some(level) = level {
                    settings["comp_level"] = json!(level.min(11));
                }
            }
            "Zstd" | "zstd" => {
                plugin = "zstd";
                if let Some(level) = level {
                    settings["comp_level"] = json!(level.clamp(1, 19));
                }
            }
            "Gzip" | "gzip" => {
                if let Some(level) = level {
                    settings["comp_level"] = json!(level.clamp(1, 9));
                }
            }
            other => {
                report.behaviour(
                    filter.place(),
                    filter.name(),
                    format!("answers are not compressed by `{other}`"),
                );
                config.whole();
                return Map::new();
            }
        }
    }
    for part in [&common, config] {
        report.fields(
            part,
            &[
                ("disable_on_etag_header", Behaviour, "answers with an ETag are compressed as well"),
                (
                    "remove_accept_encoding_header",
                    Behaviour,
                    "servers see the `Accept-Encoding` of the client",
                ),
                ("request_direction_config", Behaviour, "bodies of requests are not compressed"),
                ("runtime_enabled", Cosmetic, "the filter is on"),
                ("choose_first", Cosmetic, "the client's preference decides"),
                ("memory_level", Cosmetic, "memory is bounded by the gateway's own rules"),
                ("compression_level", Cosmetic, "the level is that of the plugin"),
                ("compression_strategy", Cosmetic, "the strategy is that of the plugin"),
                ("window_bits", Cosmetic, "the window is that of the plugin"),
                ("chunk_size", Cosmetic, "pieces have the gateway's own size"),
            ],
        );
    }
    if let Some(direction) = direction {
        report.fields(
            &direction,
            &[
                ("disable_on_etag_header", Behaviour, "answers with an ETag are compressed as well"),
                (
                    "remove_accept_encoding_header",
                    Behaviour,
                    "servers see the `Accept-Encoding` of the client",
                ),
                ("uncompressible_response_codes", Behaviour, "answers of all statuses are compressed"),
                (
                    "status_header_enabled",
                    Cosmetic,
                    "responses have no header with the state of the compression",
                ),
            ],
        );
    }
    Map::from_iter([(plugin.to_owned(), settings)])
}

fn fault(config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    let mut settings = Map::new();
    let mut conditions = Vec::new();
    for header in items(config, "headers") {
        match header_condition(&header) {
            Ok(condition) => conditions.push(condition),
            Err(problem) => {
                report.behaviour(&header, "fault.headers", format!("faults are left out: {problem}"));
                config.whole();
                return Map::new();
            }
        }
    }
    for (name, member) in [("delay", "delay"), ("abort", "abort")] {
        let Some(part) = config.some(name) else { continue };
        let share = part
            .some("percentage")
            .and_then(|share| value::percent(&share))
            .or_else(|| number(&part, "percent").map(|percent| percent as f64));
        // Absent is 0 in protobuf.
        let share = share.unwrap_or(0.0);
        let mut fault = json!({});
        if name == "delay" {
            let Some(delay) = seconds(&part, "fixed_delay") else {
                part.whole();
                report.behaviour(&part, "fault.delay", "delays that clients ask for are not carried over");
                continue;
            };
            fault["duration"] = seconds_json(delay);
            let _ = part.get("type");
        } else {
            let Some(status) = number(&part, "http_status").filter(|status| (200..600).contains(status))
            else {
                part.whole();
                report.behaviour(
                    &part,
                    "fault.abort",
                    "faults with a gRPC status, or that clients ask for, are not carried over",
                );
                continue;
            };
            fault["http_status"] = json!(status);
            fault["body"] = json!("fault filter abort");
        }
        if share <= 0.0 {
            continue;
        }
        let rounded = share.round().clamp(1.0, 100.0);
        if (rounded - share).abs() > 1e-9 {
            report.behaviour(
                &part,
                format!("fault.{name}.percentage"),
                format!("shares are whole percents here: {rounded}"),
            );
        }
        fault["percentage"] = json!(rounded as u64);
        if !conditions.is_empty() {
            fault["vars"] = json!([conditions]);
        }
        settings.insert(member.to_owned(), fault);
    }
    report.fields(
        config,
        &[
            ("upstream_cluster", Behaviour, "faults hit requests to all clusters"),
            ("downstream_nodes", Behaviour, "faults hit requests of all nodes"),
            ("max_active_faults", Behaviour, "the number of faults at a time has no bound"),
            ("response_rate_limit", Behaviour, "answers are not slowed down"),
            ("delay_percent_runtime", Cosmetic, "shares are those of the file"),
            ("abort_percent_runtime", Cosmetic, "shares are those of the file"),
            ("delay_duration_runtime", Cosmetic, "delays are those of the file"),
            ("abort_http_status_runtime", Cosmetic, "statuses are those of the file"),
            ("abort_grpc_status_runtime", Cosmetic, "statuses are those of the file"),
            ("max_active_faults_runtime", Cosmetic, "not used"),
            ("response_rate_limit_percent_runtime", Cosmetic, "not used"),
            ("disable_downstream_cluster_stats", Cosmetic, "statistics have other names"),
            ("filter_metadata", Cosmetic, "metadata is not used"),
        ],
    );
    if settings.is_empty() {
        return Map::new();
    }
    Map::from_iter([("fault-injection".to_owned(), Value::Object(settings))])
}

fn buffer(config: &Node<'_>) -> Map<String, Value> {
    let Some(most) = number(config, "max_request_bytes") else { return Map::new() };
    Map::from_iter([("client-control".to_owned(), json!({"max_body_size": most.max(1)}))])
}

fn health_check(filter: &Filter<'_>, config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    let passes = boolean(config, "pass_through_mode") == Some(true);
    if passes {
        let cached = config.some("cache_time").is_some();
        config.whole();
        if cached {
            report.behaviour(filter.place(), filter.name(), "answers to health checks are not kept");
        }
        return Map::new();
    }
    let headers = items(config, "headers");
    if headers.iter().any(|header| header_condition(header).is_err()) {
        config.whole();
        report.behaviour(filter.place(), filter.name(), "health checks are not answered by the gateway");
        return Map::new();
    }
    let _ = text(config, "endpoint");
    report.fields(
        config,
        &[
            (
                "cluster_min_healthy_percentages",
                Behaviour,
                "health checks are answered 200, also if nodes are unhealthy",
            ),
            ("cache_time", Cosmetic, "answers are not kept"),
        ],
    );
    Map::new()
}

/// Changes of headers that a filter makes.
fn header_mutation(config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    let mut plugins = Map::new();
    let Some(mutations) = config.some("mutations") else { return plugins };
    for (side, plugin) in [("request", "proxy-rewrite"), ("response", "response-rewrite")] {
        let mut edits = super::headers::Edits::default();
        let none = |_: &str| None;
        for mutation in items(&mutations, &format!("{side}_mutations")) {
            if let Some(name) = text(&mutation, "remove") {
                edits.remove(name);
            } else if let Some(add) = mutation.some("append") {
                edits.add(&add, side, &none, report);
            } else {
                mutation.whole();
                report.behaviour(&mutation, "header_mutation", "this change is not carried over");
            }
        }
        let headers = if side == "request" { edits.of_requests().0 } else { edits.of_responses() };
        if !headers.is_empty() {
            plugins.insert(plugin.to_owned(), json!({"headers": headers}));
        }
    }
    plugins
}
