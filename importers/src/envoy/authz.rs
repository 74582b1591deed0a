//! `ext_authz`: another server decides.

mod grpc;

use serde_json::{Map, Value, json};

use super::cluster::Clusters;
use super::context::Report;
use super::format;
use super::value::{boolean, items, number, percent, seconds, text};
use crate::Variables;
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

pub(super) use grpc::of_route;

/// Reports a filter that is not on for all requests.
fn report_share(config: &Node<'_>, report: &mut Report) {
    if let Some(share) = config.some("filter_enabled")
        && percent(&share).unwrap_or(100.0) < 100.0
    {
        report.behaviour(&share, "ext_authz.filter_enabled", "all requests are checked");
    }
}

/// Reads the filter.
pub(super) fn read(
    config: &Node<'_>,
    clusters: &Clusters,
    variables: Variables<'_>,
    report: &mut Report,
) -> Map<String, Value> {
    if let Some(service) = config.some("grpc_service") {
        return grpc::read(config, &service, clusters, report);
    }
    let Some(service) = config.some("http_service") else {
        config.whole();
        report.guard(config, "ext_authz", "no server is named");
        return Map::new();
    };
    report.fields(
        config,
        &[
            ("transport_api_version", Cosmetic, "the server is asked by HTTP"),
            ("clear_route_cache", Behaviour, "the route is not chosen again"),
            ("stat_prefix", Cosmetic, "statistics have other names"),
            ("metadata_context_namespaces", Cosmetic, "metadata is not sent"),
            ("typed_metadata_context_namespaces", Cosmetic, "metadata is not sent"),
            ("route_metadata_context_namespaces", Cosmetic, "metadata is not sent"),
            ("include_peer_certificate", Cosmetic, "not sent to servers of HTTP"),
            ("include_tls_session", Cosmetic, "not sent to servers of HTTP"),
            ("bootstrap_metadata_labels_key", Cosmetic, "not sent to servers of HTTP"),
            ("failure_mode_allow_header_add", Behaviour, "no header tells servers that the check failed"),
            ("emit_filter_state_stats", Cosmetic, "statistics have other names"),
            ("encode_raw_headers", Cosmetic, "not used"),
            ("charge_cluster_response_stats", Cosmetic, "statistics have other names"),
            ("validate_mutations", Cosmetic, "headers are always checked"),
            (
                "decoder_header_mutation_rules",
                Behaviour,
                "headers are changed as the server says, among those that are allowed",
            ),
            ("filter_metadata", Cosmetic, "metadata is not used"),
            ("enable_dynamic_metadata_ingestion", Cosmetic, "metadata is not used"),
            ("deny_at_disable", Behaviour, "the filter is on"),
            ("filter_enabled_metadata", Behaviour, "the filter is on"),
            ("disallowed_headers", Cosmetic, "only the listed headers are sent"),
        ],
    );
    report_share(config, report);
    let Some(target) = server(&service, clusters, report) else { return Map::new() };
    let prefix = text(&service, "path_prefix").unwrap_or_default().trim_end_matches('/').to_owned();
    let mut settings = json!({"uri": format!("{target}{prefix}"), "original_request": true});
    if let Some(body) = config.some("with_request_body") {
        // The method stays that of the request.
        settings["request_method"] = json!("POST");
        if let Some(most) = number(&body, "max_request_bytes").filter(|most| *most > 0) {
            settings["max_req_body_size"] = json!(most);
        }
        if boolean(&body, "allow_partial_message") == Some(true) {
            report.behaviour(
                &body,
                "ext_authz.with_request_body",
                "a request with a longer body gets 413, instead of being judged by its beginning",
            );
        }
        report.fields(&body, &[("pack_as_bytes", Cosmetic, "not used by servers of HTTP")]);
    }
    let mut asked = vec!["authorization".to_owned()];
    asked.extend(names(config, "allowed_headers", report));
    if let Some(request) = service.some("authorization_request") {
        asked.extend(names(&request, "allowed_headers", report));
        let mut extra = Map::new();
        for header in items(&request, "headers_to_add") {
            let key = text(&header, "key").unwrap_or_default();
            match format::template(text(&header, "value").unwrap_or_default(), variables) {
                Ok(content) => _ = extra.insert(key.to_owned(), json!(content)),
                Err(problem) => report.behaviour(
                    &header,
                    "ext_authz.headers_to_add",
                    format!("the header is not sent: {problem}"),
                ),
            }
        }
        if !extra.is_empty() {
            settings["extra_headers"] = Value::Object(extra);
        }
    }
    asked.retain(|name| !name.starts_with(':') && !name.eq_ignore_ascii_case("host"));
    asked.sort();
    asked.dedup();
    settings["request_headers"] = json!(asked);
    if let Some(response) = service.some("authorization_response") {
        for (theirs, ours) in
            [("allowed_upstream_headers", "upstream_headers"), ("allowed_client_headers", "client_headers")]
        {
            let list = names(&response, theirs, report);
            if !list.is_empty() {
                settings[ours] = json!(list);
            }
        }
        report.fields(
            &response,
            &[
                (
                    "allowed_upstream_headers_to_append",
                    Behaviour,
                    "these headers of the answer are not added",
                ),
                (
                    "allowed_client_headers_on_success",
                    Behaviour,
                    "these headers of the answer are not sent to clients",
                ),
                ("dynamic_metadata_from_headers", Cosmetic, "metadata is not used"),
            ],
        );
    }
    if boolean(config, "failure_mode_allow") == Some(true) {
        settings["allow_degradation"] = json!(true);
    }
    if let Some(code) = status_on_error(config) {
        settings["status_on_error"] = json!(code);
    }
    let server = service.some("server_uri");
    if let Some(timeout) = server.as_ref().and_then(|server| seconds(server, "timeout")) {
        settings["timeout"] = json!(((timeout * 1000.0) as u64).clamp(1, 60_000));
    }
    Map::from_iter([("forward-auth".to_owned(), settings)])
}

/// The address of the server of HTTP.
fn server(service: &Node<'_>, clusters: &Clusters, report: &mut Report) -> Option<String> {
    let server = service.some("server_uri")?;
    let _ = server.get("uri");
    let cluster = text(&server, "cluster").unwrap_or_default();
    let found = target(&server, "ext_authz.server_uri", cluster, clusters, report);
    if found.is_none() {
        service.whole();
    }
    found
}

/// The address of the first server of a cluster.
fn target(
    node: &Node<'_>,
    construct: &str,
    name: &str,
    clusters: &Clusters,
    report: &mut Report,
) -> Option<String> {
    let cluster = clusters.get(name);
    let endpoint = cluster.and_then(|cluster| cluster.hosts.first());
    let (Some(cluster), Some((host, _))) = (cluster, endpoint) else {
        let effect = format!("the cluster `{name}` has no endpoint, so no server can be asked");
        report.guard(node, construct, effect);
        return None;
    };
    if cluster.tls {
        report.guard(node, construct, "the server cannot be asked by TLS");
        return None;
    }
    if cluster.hosts.len() > 1 {
        report.behaviour(node, construct, format!("one server of the cluster is asked, {host}"));
    }
    cluster.url()
}

/// The names of a `ListStringMatcher`.
fn names(node: &Node<'_>, name: &str, report: &mut Report) -> Vec<String> {
    let Some(list) = node.some(name) else { return Vec::new() };
    let mut names = Vec::new();
    for pattern in items(&list, "patterns") {
        let _ = pattern.get("ignore_case");
        match text(&pattern, "exact") {
            Some(exact) => names.push(exact.to_ascii_lowercase()),
            None => {
                pattern.whole();
                report.behaviour(
                    &pattern,
                    format!("ext_authz.{name}"),
                    "headers are named one by one; a pattern is left out",
                );
            }
        }
    }
    names
}

fn status_on_error(config: &Node<'_>) -> Option<u64> {
    status_of(&config.some("status_on_error")?.some("code")?)
}

/// The number of a status that may be written as a word.
fn status_of(code: &Node<'_>) -> Option<u64> {
    let known = [
        ("BadRequest", 400),
        ("Unauthorized", 401),
        ("Forbidden", 403),
        ("NotFound", 404),
        ("TooManyRequests", 429),
        ("InternalServerError", 500),
        ("BadGateway", 502),
        ("ServiceUnavailable", 503),
        ("GatewayTimeout", 504),
    ];
    code.u64().or_else(|| {
        let word = code.str()?;
        known.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, status)| *status)
    })
}
