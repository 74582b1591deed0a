//! Active health checks of a cluster.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::value::{enumerated, items, number, seconds, seconds_json, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// Statuses that are registered.
const STATUSES: [u64; 60] = [
    200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308, 400, 401, 402,
    403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425,
    426, 428, 429, 431, 451, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511, 598, 599,
];

/// Reads the health checks of a cluster into `checks` of its upstream.
pub(super) fn read(cluster: &Node<'_>, scheme: &str, upstream: &mut Map<String, Value>, report: &mut Report) {
    let all = items(cluster, "health_checks");
    for more in all.iter().skip(1) {
        more.whole();
        report.behaviour(more, "health_checks", "an upstream has one health check; the first is used");
    }
    let Some(check) = all.first() else { return };
    let mut active = Map::new();
    let over_tls = matches!(scheme, "https" | "h2");
    if let Some(http) = check.some("http_health_check") {
        active.insert("type".to_owned(), json!(if over_tls { "https" } else { "http" }));
        if over_tls && upstream.get("tls").and_then(|tls| tls.get("verify")) != Some(&json!(true)) {
            active.insert("https_verify_certificate".to_owned(), json!(false));
        }
        self::http(&http, &mut active, report);
    } else {
        active.insert("type".to_owned(), json!("tcp"));
        if let Some(grpc) = check.some("grpc_health_check") {
            grpc.whole();
            report.behaviour(
                &grpc,
                "grpc_health_check",
                "the check opens a connection, without calling the health service of gRPC",
            );
        } else if let Some(tcp) = check.some("tcp_health_check") {
            let sends = tcp.some("send").is_some() || tcp.some("receive").is_some();
            tcp.whole();
            if sends {
                report.behaviour(
                    &tcp,
                    "tcp_health_check",
                    "the check opens a connection, without sending or expecting data",
                );
            }
        } else if let Some(custom) = check.some("custom_health_check") {
            custom.whole();
            report.behaviour(&custom, "custom_health_check", "the check opens a connection, nothing more");
        }
    }
    if let Some(timeout) = seconds(check, "timeout").filter(|timeout| *timeout > 0.0) {
        active.insert("timeout".to_owned(), seconds_json(timeout.max(0.001)));
    }
    let interval = seconds(check, "interval").unwrap_or(1.0);
    let rounded = (interval.ceil() as u64).max(1);
    if interval.fract() != 0.0 {
        report.cosmetic(
            check,
            "health_checks[].interval",
            format!("intervals are whole seconds here: {rounded}"),
        );
    }
    let (mut healthy, mut unhealthy) = (json!({"interval": rounded}), json!({"interval": rounded}));
    if let Some(number) = number(check, "healthy_threshold") {
        healthy["successes"] = json!(number.clamp(1, 254));
    }
    if let Some(number) = number(check, "unhealthy_threshold") {
        let number = json!(number.clamp(1, 254));
        for kind in ["http_failures", "tcp_failures", "timeouts"] {
            unhealthy[kind] = number.clone();
        }
    }
    if let Some(statuses) = active.remove("expected") {
        // A status that is not expected is a failure; those that are registered suffice.
        let expected: Vec<u64> =
            statuses.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        let others: Vec<u64> = STATUSES.into_iter().filter(|status| !expected.contains(status)).collect();
        healthy["http_statuses"] = json!(expected);
        if !others.is_empty() {
            unhealthy["http_statuses"] = json!(others);
        }
    }
    active.insert("healthy".to_owned(), healthy);
    active.insert("unhealthy".to_owned(), unhealthy);
    report.fields(
        check,
        &[
            ("no_traffic_interval", Cosmetic, "checks have the same interval without traffic"),
            ("no_traffic_healthy_interval", Cosmetic, "checks have the same interval without traffic"),
            ("unhealthy_interval", Cosmetic, "checks have the same interval in all states"),
            ("unhealthy_edge_interval", Cosmetic, "checks have the same interval in all states"),
            ("healthy_edge_interval", Cosmetic, "checks have the same interval in all states"),
            ("interval_jitter", Cosmetic, "checks have no random delay"),
            ("interval_jitter_percent", Cosmetic, "checks have no random delay"),
            ("initial_jitter", Cosmetic, "checks have no random delay"),
            ("reuse_connection", Cosmetic, "each check has a connection of its own"),
            ("event_log_path", Cosmetic, "changes of health are in the error log"),
            ("event_logger", Cosmetic, "changes of health are in the error log"),
            ("event_log", Cosmetic, "changes of health are in the error log"),
            ("event_service", Cosmetic, "changes of health are in the error log"),
            ("always_log_health_check_failures", Cosmetic, "changes of health are in the error log"),
            ("always_log_health_check_success", Cosmetic, "changes of health are in the error log"),
            ("alt_port", Behaviour, "checks use the port of the endpoint"),
            ("tls_options", Behaviour, "checks use the TLS settings of the cluster"),
            ("transport_socket_match_criteria", Behaviour, "checks use the TLS settings of the cluster"),
        ],
    );
    upstream.insert("checks".to_owned(), json!({"active": active}));
}

fn http(check: &Node<'_>, active: &mut Map<String, Value>, report: &mut Report) {
    active.insert("http_path".to_owned(), json!(text(check, "path").unwrap_or("/")));
    if let Some(host) = text(check, "host").filter(|host| !host.is_empty()) {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
        if host.chars().all(fits) {
            active.insert("host".to_owned(), json!(host));
        }
    }
    if let Some(method) = enumerated(check, "method").filter(|method| method != "METHOD_UNSPECIFIED") {
        active.insert("http_method".to_owned(), json!(method));
    }
    let mut expected = Vec::new();
    for range in items(check, "expected_statuses") {
        let bound = |name: &str| number(&range, name).unwrap_or_default();
        // Half open.
        expected
            .extend((bound("start")..bound("end")).filter(|status| (200..=599).contains(status)).take(400));
    }
    expected.dedup();
    if expected.is_empty() {
        expected.push(200);
    }
    active.insert("expected".to_owned(), json!(expected));
    let mut lines = Vec::new();
    for add in items(check, "request_headers_to_add") {
        let Some(header) = add.some("header") else { continue };
        add.whole();
        if let (Some(name), Some(content)) = (text(&header, "key"), text(&header, "value")) {
            lines.push(format!("{name}: {content}"));
        }
    }
    if !lines.is_empty() {
        active.insert("req_headers".to_owned(), json!(lines));
    }
    report.fields(
        check,
        &[
            ("retriable_statuses", Behaviour, "a status that is not expected counts as a failure"),
            ("request_headers_to_remove", Cosmetic, "checks have only the headers they need"),
            ("codec_client_type", Cosmetic, "checks are sent by HTTP/1.1"),
            ("use_http2", Cosmetic, "checks are sent by HTTP/1.1"),
            ("service_name_matcher", Behaviour, "the name of the service is not checked"),
            ("service_name", Behaviour, "the name of the service is not checked"),
            ("response_buffer_size", Cosmetic, "bodies of answers are not kept"),
            ("send", Behaviour, "checks have no body"),
            ("receive", Behaviour, "bodies of answers are not checked"),
        ],
    );
}
