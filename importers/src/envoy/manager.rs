//! The HTTP connection manager.

use serde_json::{Value, json};

use super::access_log;
use super::cluster::Clusters;
use super::context::{Context, Report};
use super::draft::{Draft, front};
use super::filters::{self, Filter};
use super::format;
use super::matching::Matcher;
use super::paths::PathForm;
use super::plugins::Plugins;
use super::tracing;
use super::value::{self, boolean, enumerated, items, number, seconds, text};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::Node;

/// Settings of a connection manager that routes depend on.
pub(super) struct Manager<'a> {
    pub(super) filters: Vec<Filter<'a>>,
    pub(super) has_cors: bool,
    /// All routes have one path in the router: grpc-web cuts off the path by which a route was found.
    pub(super) linear: bool,
    pub(super) websocket: bool,
    /// Servers get the target as the client sent it.
    pub(super) raw_targets: bool,
    /// No route of it lets connections be upgraded, so Envoy answers such requests itself.
    pub(super) refuses_upgrades: bool,
    pub(super) strips_port: bool,
    /// The address of a client is the last one in `X-Forwarded-For`.
    pub(super) last_forwarded: bool,
    /// So, and headers of routes name it: all routes of the manager have `real-ip`.
    pub(super) client_is_forwarded: bool,
    /// The address of clients is sent in `X-Envoy-External-Address`.
    pub(super) sends_address: bool,
    /// The router adds no `X-Envoy-*`.
    pub(super) suppresses_headers: bool,
    /// The plugin that traces requests, and its settings.
    pub(super) traces: Option<(&'static str, Value)>,
    /// Addresses of clients are those that proxies in front tell of.
    pub(super) behind_proxies: bool,
    /// Seconds of `stream_idle_timeout`.
    pub(super) idle: Option<f64>,
    pub(super) request_ids: bool,
    /// The client's certificate in `X-Forwarded-Client-Cert` is not passed on.
    pub(super) hides_certificates: bool,
    pub(super) http1_only: bool,
    /// Its clients use TLS.
    pub(super) tls: bool,
    table: Option<Node<'a>>,
    fronts: Vec<(Node<'a>, Matcher)>,
    node: Node<'a>,
}

const FIELDS: &[(&str, Severity, &str)] = &[
    ("stat_prefix", Cosmetic, "statistics have other names"),
    ("add_user_agent", Behaviour, "`User-Agent` and `X-Envoy-Downstream-Service-Cluster` are not set"),
    ("http_protocol_options", Cosmetic, "HTTP/1 is read by the gateway's own rules"),
    ("http2_protocol_options", Cosmetic, "limits of HTTP/2 are those of config.yaml"),
    ("http3_protocol_options", Behaviour, "HTTP/3 is set up in config.yaml"),
    ("server_name", Behaviour, "answers have the gateway's own `Server`"),
    ("server_header_transformation", Behaviour, "answers have the gateway's own `Server`"),
    ("scheme_header_transformation", Behaviour, "the scheme is that of the connection"),
    ("max_request_headers_kb", Cosmetic, "heads have the gateway's own bounds"),
    (
        "request_timeout",
        Behaviour,
        "the time for a request's body is bounded by `client_body_timeout` in config.yaml",
    ),
    (
        "request_headers_timeout",
        Behaviour,
        "the time for a request's head is bounded by `client_header_timeout` in config.yaml",
    ),
    ("drain_timeout", Cosmetic, "connections are drained by the gateway's own rules"),
    ("delayed_close_timeout", Cosmetic, "connections are closed by the gateway's own rules"),
    ("access_log_flush_interval", Cosmetic, "the access log is written by the gateway's own rules"),
    ("flush_access_log_on_new_request", Cosmetic, "a request is logged at its end"),
    ("access_log_options", Cosmetic, "a request is logged at its end"),
    (
        "original_ip_detection_extensions",
        Behaviour,
        "trusted proxies are set up in config.yaml: `nginx_config.http.real_ip_from`",
    ),
    ("early_header_mutation_extensions", Behaviour, "headers are changed by routes alone"),
    (
        "internal_address_config",
        Behaviour,
        "no address counts as internal, and servers get no `X-Envoy-External-Address` and `X-Envoy-Internal`",
    ),
    ("skip_xff_append", Behaviour, "`X-Forwarded-For` always gets the client's address"),
    ("via", Behaviour, "`Via` is not set"),
    ("preserve_external_request_id", Cosmetic, "an `X-Request-Id` of the client is kept"),
    ("always_set_request_id_in_response", Behaviour, "answers have no `X-Request-Id`"),
    ("set_current_client_cert_details", Behaviour, "`X-Forwarded-Client-Cert` is not written"),
    ("proxy_100_continue", Cosmetic, "`Expect: 100-continue` is answered by the gateway's own rules"),
    ("represent_ipv4_remote_address_as_ipv4_mapped_ipv6", Cosmetic, "addresses of IPv4 are written as such"),
    ("path_with_escaped_slashes_action", Behaviour, "`%2F` in a path stays as it is"),
    ("request_id_extension", Cosmetic, "identifiers are random UUIDs"),
    ("local_reply_config", Behaviour, "errors of the gateway have its own body"),
    (
        "stream_error_on_invalid_http_message",
        Cosmetic,
        "invalid messages end a connection by the gateway's own rules",
    ),
    ("strip_trailing_host_dot", Cosmetic, "hosts are compared without a final dot"),
    ("proxy_status_config", Behaviour, "`Proxy-Status` is not set"),
    ("typed_header_validation_config", Cosmetic, "heads are checked by the gateway's own rules"),
    ("append_x_forwarded_port", Cosmetic, "`X-Forwarded-Port` is always sent"),
    ("append_local_overload", Cosmetic, "not used"),
    ("http_filters_preserve_order", Cosmetic, "not used"),
];

impl<'a> Manager<'a> {
    /// Reads a connection manager.
    pub(super) fn read(context: &mut Context<'_>, clusters: &Clusters, node: &Node<'a>) -> Manager<'a> {
        let mut report = Report::default();
        let _ = node.get("@type");
        report.fields(node, FIELDS);
        let traces = tracing::read(context, clusters, node, &mut report);
        // None is the default.
        if let Some(hops) = node.some("xff_num_trusted_hops").filter(|hops| hops.u64() != Some(0)) {
            let effect = "trusted proxies are set up in config.yaml: `nginx_config.http.real_ip_from`";
            report.behaviour(&hops, "xff_num_trusted_hops", effect);
        }
        let codec = enumerated(node, "codec_type");
        if let Some(kind) = node.some("codec_type") {
            match codec.as_deref() {
                Some("HTTP2") => {
                    report.cosmetic(&kind, "codec_type: HTTP2", "clients of HTTP/1.1 are served as well")
                }
                Some("HTTP3") => {
                    report.behaviour(&kind, "codec_type: HTTP3", "HTTP/3 is set up in config.yaml")
                }
                _ => {}
            }
        }
        for log in items(node, "access_log") {
            access_log::read(context, &log, &mut report);
        }
        let mut manager = Manager {
            filters: Vec::new(),
            has_cors: false,
            linear: false,
            websocket: false,
            raw_targets: ["normalize_path", "merge_slashes"]
                .iter()
                .all(|name| boolean(node, name) != Some(true)),
            refuses_upgrades: node.some("rds").is_none()
                && node.some("scoped_routes").is_none()
                && !node.value().to_string().contains("\"upgrade_configs\""),
            strips_port: boolean(node, "strip_any_host_port") == Some(true)
                || boolean(node, "strip_matching_host_port") == Some(true),
            // Without `use_remote_address` the last address of `X-Forwarded-For` counts.
            behind_proxies: boolean(node, "use_remote_address") != Some(true)
                || number(node, "xff_num_trusted_hops").unwrap_or(0) > 0
                || !items(node, "original_ip_detection_extensions").is_empty(),
            last_forwarded: items(node, "original_ip_detection_extensions").is_empty()
                && number(node, "xff_num_trusted_hops").unwrap_or(0)
                    == u64::from(boolean(node, "use_remote_address") == Some(true)),
            client_is_forwarded: false,
            sends_address: boolean(node, "use_remote_address") == Some(true)
                && node.some("internal_address_config").is_none(),
            suppresses_headers: false,
            traces,
            idle: seconds(node, "stream_idle_timeout"),
            request_ids: boolean(node, "generate_request_id").unwrap_or(true),
            hides_certificates: true,
            http1_only: codec.as_deref() == Some("HTTP1"),
            tls: false,
            table: node.some("route_config"),
            fronts: Vec::new(),
            node: node.clone(),
        };
        if let Some(generate) = node.some("generate_request_id").filter(|generate| generate.bool().is_none())
        {
            report.cosmetic(
                &generate,
                "generate_request_id",
                "the comma is part of the value; it is read without it",
            );
        }
        for upgrade in items(node, "upgrade_configs") {
            let kind = text(&upgrade, "upgrade_type").unwrap_or_default();
            if kind.eq_ignore_ascii_case("websocket") {
                manager.websocket = boolean(&upgrade, "enabled").unwrap_or(true);
                report.fields(
                    &upgrade,
                    &[("filters", Behaviour, "connections that are upgraded have the same filters")],
                );
            } else {
                upgrade.whole();
                report.behaviour(
                    &upgrade,
                    "upgrade_configs",
                    format!("connections are not upgraded to `{kind}`"),
                );
            }
        }
        manager.client_is_forwarded = manager.last_forwarded && headers_name_client(node.value());
        manager.certificates(node, &mut report);
        manager.differences(node, &mut report);
        manager.bounds(node, &mut report);
        context.report.take(report, &[]);
        manager.filters = filters::read(context, clusters, &items(node, "http_filters"));
        manager.suppresses_headers = filters::suppresses_headers(&manager.filters);
        manager.has_cors = manager.filters.iter().any(|filter| filter.is(&["cors", "Cors"]));
        manager.linear = manager.filters.iter().any(|filter| filter.is(&["grpc_web", "GrpcWeb"]));
        manager.fronts = manager.filters.iter().filter_map(filters::health_check).collect();
        manager
    }

    /// Whether a filter asks another server about requests.
    pub(super) fn asks_servers(&self) -> bool {
        self.filters.iter().any(|filter| filter.is(&["ext_authz", "ExtAuthz"]))
    }

    /// The table of routes, or the file that it is in.
    pub(super) fn table(&self) -> Option<Node<'a>> {
        self.table.clone()
    }

    /// The routes that answer health checks themselves, in front of a virtual host.
    pub(super) fn health_checks(&self) -> Vec<Draft> {
        let mut plugins = Plugins::default();
        plugins.answer(200);
        let one = |(node, matcher): &(Node<'a>, Matcher)| {
            front(node, "health-check", matcher.clone(), plugins.clone())
        };
        self.fronts.iter().map(one).collect()
    }

    /// The form in which its routes compare paths.
    pub(super) fn paths(&self) -> PathForm {
        let is_set = |name: &str| boolean(&self.node, name) == Some(true);
        PathForm {
            place: self.node.place(),
            normalized: is_set("normalize_path"),
            merged: is_set("merge_slashes"),
        }
    }

    /// Reports where routes come from, if it is not this file.
    pub(super) fn report_absent_table(&self, report: &mut Report) {
        for name in ["rds", "scoped_routes"] {
            if let Some(source) = self.node.some(name) {
                source.whole();
                report.behaviour(&source, name, "routes of a control plane are not loaded");
            }
        }
    }

    fn certificates(&mut self, node: &Node<'_>, report: &mut Report) {
        let Some(mode) = enumerated(node, "forward_client_cert_details") else { return };
        let Some(place) = node.some("forward_client_cert_details") else { return };
        match mode.as_str() {
            "SANITIZE" => {}
            "FORWARD_ONLY" | "ALWAYS_FORWARD_ONLY" => self.hides_certificates = false,
            _ => report.behaviour(
                &place,
                format!("forward_client_cert_details: {mode}"),
                "`X-Forwarded-Client-Cert` is removed, and not written here",
            ),
        }
    }

    /// Differences that each connection manager has.
    fn differences(&self, node: &Node<'_>, report: &mut Report) {
        report.behaviour(
            node,
            "http_connection_manager",
            "servers get `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `X-Real-IP` in the gateway's own way, and clients no `X-Envoy-Upstream-Service-Time`; errors and missing routes are answered with the gateway's own bodies",
        );
    }

    fn bounds(&self, node: &Node<'_>, report: &mut Report) {
        let Some(common) = node.some("common_http_protocol_options") else { return };
        report.fields(
            &common,
            &[
                ("idle_timeout", Cosmetic, "idle connections end after `keepalive_timeout` in config.yaml"),
                ("max_connection_duration", Behaviour, "connections have no bound on their age"),
                ("max_headers_count", Cosmetic, "heads have the gateway's own bounds"),
                (
                    "max_stream_duration",
                    Behaviour,
                    "the duration of a request is bounded by its timeouts alone",
                ),
                (
                    "max_requests_per_connection",
                    Cosmetic,
                    "connections serve `keepalive_requests` requests, as in config.yaml",
                ),
                ("max_response_headers_kb", Cosmetic, "heads have the gateway's own bounds"),
            ],
        );
        if let Some(action) = common.some("headers_with_underscores_action") {
            let effect = match enumerated(&common, "headers_with_underscores_action").as_deref() {
                Some("ALLOW") => return,
                Some("DROP_HEADER") => "headers with `_` in their names are passed on; Envoy removes them",
                _ => "requests with a header with `_` in its name are served; Envoy answers 400",
            };
            report.behaviour(&action, "headers_with_underscores_action", effect);
        }
    }
}

/// Conditions of a listener as JSON for a plugin that all routes share.
pub(super) fn ports_condition(ports: &[u16]) -> Value {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    json!(["server_port", "in", ports])
}

/// Whether a header that routes of a manager add has the address of the client.
fn headers_name_client(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(name, value)| match name.as_str() {
            "request_headers_to_add" | "response_headers_to_add" => format::names_client(&value.to_string()),
            _ => headers_name_client(value),
        }),
        Value::Array(items) => items.iter().any(headers_name_client),
        _ => false,
    }
}

/// The type of a network filter.
pub(super) fn kind_of(filter: &value::Extension<'_>) -> &'static str {
    match filter.kind.as_str() {
        "HttpConnectionManager" | "http_connection_manager" => "http",
        "TcpProxy" | "tcp_proxy" => "tcp",
        _ => "other",
    }
}

/// The surroundings that all routes of a connection manager share.
pub(super) struct Around<'m, 'a> {
    pub(super) manager: &'m Manager<'a>,
    pub(super) clusters: &'m mut Clusters,
}
