//! `ext_authz` with a server of gRPC, and the settings of a route.

use serde_json::{Map, Value, json};

use super::{report_share, status_on_error, target};
use crate::envoy::cluster::Clusters;
use crate::envoy::context::Report;
use crate::envoy::value::{boolean, items, number, seconds, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// Reads the filter.
pub(super) fn read(
    config: &Node<'_>,
    service: &Node<'_>,
    clusters: &Clusters,
    report: &mut Report,
) -> Map<String, Value> {
    const METADATA: &str = "metadata is not sent to the server";
    report.fields(
        config,
        &[
            ("clear_route_cache", Behaviour, "the route is not chosen again"),
            ("stat_prefix", Cosmetic, "statistics have other names"),
            ("metadata_context_namespaces", Behaviour, METADATA),
            ("typed_metadata_context_namespaces", Behaviour, METADATA),
            ("route_metadata_context_namespaces", Behaviour, METADATA),
            ("route_typed_metadata_context_namespaces", Behaviour, METADATA),
            (
                "include_peer_certificate",
                Behaviour,
                "the certificate of the client is not sent to the server",
            ),
            ("include_tls_session", Cosmetic, "the server name of the TLS session is always sent"),
            ("bootstrap_metadata_labels_key", Behaviour, "labels are not sent to the server"),
            ("failure_mode_allow_header_add", Behaviour, "no header tells servers that the check failed"),
            ("emit_filter_state_stats", Cosmetic, "statistics have other names"),
            ("encode_raw_headers", Behaviour, "headers are sent in `headers`, as text"),
            ("charge_cluster_response_stats", Cosmetic, "statistics have other names"),
            ("validate_mutations", Cosmetic, "headers are always checked"),
            ("decoder_header_mutation_rules", Behaviour, "all headers are changed as the server says"),
            ("disallowed_headers", Behaviour, "these headers are sent to the server, too"),
            ("filter_metadata", Cosmetic, "metadata is not used"),
            ("enable_dynamic_metadata_ingestion", Cosmetic, "metadata is not used"),
            ("deny_at_disable", Behaviour, "the filter is on"),
            ("filter_enabled_metadata", Behaviour, "the filter is on"),
        ],
    );
    report_share(config, report);
    let Some(uri) = server(service, clusters, report) else {
        config.whole();
        return Map::new();
    };
    let version = text(config, "transport_api_version");
    let is_v2 = version == Some("V2")
        || version.is_none() && text(config, "@type").is_some_and(|kind| kind.contains(".v2."));
    let path = match (is_v2, boolean(config, "use_alpha")) {
        (_, Some(true)) => "/envoy.service.auth.v2alpha.Authorization/Check",
        (true, _) => "/envoy.service.auth.v2.Authorization/Check",
        _ => "",
    };
    let mut settings = json!({"uri": format!("{uri}{path}")});
    if let Some(timeout) = seconds(service, "timeout") {
        settings["timeout"] = json!(((timeout * 1000.0) as u64).clamp(1, 60_000));
    }
    let mut metadata = Map::new();
    for header in items(service, "initial_metadata") {
        let (key, value) = (text(&header, "key"), text(&header, "value"));
        metadata.insert(key.unwrap_or_default().to_owned(), json!(value.unwrap_or_default()));
    }
    if !metadata.is_empty() {
        settings["metadata"] = Value::Object(metadata);
    }
    if let Some(body) = config.some("with_request_body") {
        with_body(&body, &mut settings);
    }
    if let Some(list) = config.some("allowed_headers") {
        let (mut names, mut are_exact) = (Vec::new(), true);
        for pattern in items(&list, "patterns") {
            let _ = pattern.get("ignore_case");
            match text(&pattern, "exact") {
                Some(exact) => names.push(exact.to_ascii_lowercase()),
                None => {
                    pattern.whole();
                    are_exact = false;
                }
            }
        }
        if !are_exact {
            report.behaviour(&list, "ext_authz.allowed_headers", "all headers are sent to the server");
        } else if !names.is_empty() {
            settings["request_headers"] = json!(names);
        }
    }
    if boolean(config, "failure_mode_allow") == Some(true) {
        settings["allow_degradation"] = json!(true);
    }
    if let Some(code) = status_on_error(config) {
        settings["status_on_error"] = json!(code);
    }
    Map::from_iter([("ext-authz".to_owned(), settings)])
}

/// The address of the server.
fn server(service: &Node<'_>, clusters: &Clusters, report: &mut Report) -> Option<String> {
    const CONSTRUCT: &str = "ext_authz.grpc_service";
    report.fields(service, &[("retry_policy", Behaviour, "the server is asked once")]);
    if let Some(google) = service.some("google_grpc") {
        report.fields(&google, &[("stat_prefix", Cosmetic, "statistics have other names")]);
        let uri = text(&google, "target_uri").unwrap_or_default();
        let address = uri.strip_prefix("dns:").unwrap_or(uri).trim_start_matches('/');
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let with_credentials =
            ["channel_credentials", "call_credentials"].iter().any(|name| google.some(name).is_some());
        if with_credentials || !has_port || address.contains('/') {
            google.whole();
            let effect = "the server cannot be asked: its address or its credentials are not carried over";
            report.guard(&google, CONSTRUCT, effect);
            return None;
        }
        return Some(format!("http://{address}"));
    }
    let Some(envoy) = service.some("envoy_grpc") else {
        report.guard(service, CONSTRUCT, "no server is named");
        return None;
    };
    report
        .fields(&envoy, &[("authority", Behaviour, "`:authority` of the call is the address of the server")]);
    target(&envoy, CONSTRUCT, text(&envoy, "cluster_name").unwrap_or_default(), clusters, report)
}

fn with_body(body: &Node<'_>, settings: &mut Value) {
    if let Some(most) = number(body, "max_request_bytes").filter(|most| *most > 0) {
        settings["max_request_bytes"] = json!(most.min(64 << 20));
    }
    let flags = [("allow_partial_message", "allow_partial_body"), ("pack_as_bytes", "pack_as_bytes")];
    for (theirs, ours) in flags {
        if boolean(body, theirs) == Some(true) {
            settings[ours] = json!(true);
        }
    }
}

/// The plugins of a filter with the settings of a route; `None` if those of the filter hold.
pub(in crate::envoy) fn of_route(
    settings: &Node<'_>,
    plugins: &Map<String, Value>,
    report: &mut Report,
) -> Option<Map<String, Value>> {
    let checks = settings.some("check_settings")?;
    let mut changed = plugins.clone();
    for name in ["grpc_service", "http_service"] {
        if let Some(service) = checks.some(name) {
            service.whole();
            let effect = "the server of this route is not asked, but that of the filter";
            report.guard(&service, "ext_authz.check_settings", effect);
        }
    }
    let no_body = boolean(&checks, "disable_request_body_buffering") == Some(true);
    if let Some(own) = changed.get_mut("ext-authz") {
        if let Some(extensions) = checks.some("context_extensions") {
            own["context_extensions"] = json!(extensions.whole());
        }
        if no_body && let Some(own) = own.as_object_mut() {
            own.remove("max_request_bytes");
        }
        if let Some(body) = checks.some("with_request_body") {
            with_body(&body, own);
        }
        return Some(changed);
    }
    report.fields(&checks, &[("context_extensions", Cosmetic, "not sent to servers of HTTP")]);
    let own = changed.get_mut("forward-auth")?;
    if no_body {
        own["request_method"] = json!("GET");
    }
    if let Some(body) = checks.some("with_request_body") {
        own["request_method"] = json!("POST");
        if let Some(most) = number(&body, "max_request_bytes").filter(|most| *most > 0) {
            own["max_req_body_size"] = json!(most);
        }
        report.fields(
            &body,
            &[
                ("allow_partial_message", Behaviour, "a request with a longer body gets 413"),
                ("pack_as_bytes", Cosmetic, "not used by servers of HTTP"),
            ],
        );
    }
    Some(changed)
}
