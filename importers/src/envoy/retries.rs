//! Retry policies and hash policies, which belong to upstreams here.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::draft::Levels;
use super::format::header_variable;
use super::value::{items, number, seconds, seconds_json, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// Statuses of `5xx`.
const SERVER_ERRORS: [u16; 11] = [500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511];

/// Reads the retry policy that applies to a route into settings of its upstream.
pub(super) fn read(
    action: &Node<'_>,
    levels: &Levels<'_>,
    settings: &mut Map<String, Value>,
    report: &mut Report,
) {
    let inner = action.some("retry_policy");
    let Some(policy) = inner.or_else(|| levels.host.some("retry_policy")) else { return };
    let (mut failures, mut statuses, mut grpc) = (Vec::new(), Vec::new(), false);
    let conditions = text(&policy, "retry_on").unwrap_or_default();
    for condition in conditions.split(',').map(str::trim).filter(|condition| !condition.is_empty()) {
        match condition {
            "5xx" => {
                failures.extend(["connect", "closed", "timeout"]);
                statuses.extend(SERVER_ERRORS);
            }
            "gateway-error" => {
                failures.extend(["connect", "closed", "timeout"]);
                statuses.extend([502, 503, 504]);
            }
            "reset" => failures.extend(["closed", "timeout"]),
            "reset-before-request" | "refused-stream" | "http3-post-connect-failure" => {
                failures.push("closed")
            }
            "connect-failure" => failures.push("connect"),
            "retriable-4xx" => statuses.push(409),
            "envoy-ratelimited" => statuses.push(429),
            "retriable-status-codes" => {
                let codes = items(&policy, "retriable_status_codes");
                let codes = codes.iter().filter_map(Node::u64).filter_map(|code| u16::try_from(code).ok());
                statuses.extend(codes.filter(|code| (400..=599).contains(code)));
            }
            "cancelled" | "deadline-exceeded" | "internal" | "resource-exhausted" | "unavailable" => {
                grpc = true
            }
            other => {
                report.behaviour(&policy, format!("retry_on: {other}"), "this condition has no counterpart");
            }
        }
    }
    if grpc {
        report.behaviour(&policy, "retry_policy.retry_on", "the status of a gRPC call is not looked at");
    }
    for list in [policy.get("retriable_status_codes")].into_iter().flatten() {
        list.whole();
    }
    let retries = number(&policy, "num_retries").unwrap_or(1).min(100);
    if failures.is_empty() && statuses.is_empty() {
        policy.whole();
        report.cosmetic(
            &policy,
            "retry_policy",
            "it names no condition that is known, so requests are tried once",
        );
        return;
    }
    statuses.sort_unstable();
    statuses.dedup();
    let mut kinds = Vec::new();
    for failure in failures {
        if !kinds.contains(&failure) {
            kinds.push(failure);
        }
    }
    let mut retry = json!({"failures": kinds, "any_method": true});
    if !statuses.is_empty() {
        retry["statuses"] = json!(statuses);
    }
    if let Some(timeout) = seconds(&policy, "per_try_timeout").filter(|timeout| *timeout > 0.0) {
        retry["per_try_timeout"] = seconds_json(timeout.min(86_400.0));
    }
    let (mut base, mut most) = (0.025, None);
    if let Some(backoff) = policy.some("retry_back_off") {
        base = seconds(&backoff, "base_interval").unwrap_or(base).max(0.001);
        most = seconds(&backoff, "max_interval");
    }
    retry["backoff"] = seconds_json(base);
    retry["max_backoff"] = seconds_json(most.unwrap_or(base * 10.0).clamp(0.001, 86_400.0));
    settings.insert("retries".to_owned(), json!(retries));
    settings.insert("sluice".to_owned(), json!({"retry": retry}));
    report.fields(
        &policy,
        &[
            ("per_try_idle_timeout", Behaviour, "a try is bounded by `per_try_timeout` alone"),
            ("retry_priority", Behaviour, "retries go to nodes of the same priority"),
            ("retry_host_predicate", Cosmetic, "retries go to other nodes where there are some"),
            ("host_selection_retry_max_attempts", Cosmetic, "retries go to other nodes where there are some"),
            ("retry_options_predicates", Behaviour, "retries are alike"),
            ("rate_limited_retry_back_off", Behaviour, "pauses do not follow headers of answers"),
            ("retriable_headers", Behaviour, "headers of answers are not looked at"),
            ("retriable_request_headers", Behaviour, "requests are retried regardless of their headers"),
        ],
    );
}

/// Reads the hash policies of a route to a cluster that hashes.
pub(super) fn hashing(action: &Node<'_>, settings: &mut Map<String, Value>, report: &mut Report) {
    let mut keys: Vec<(&'static str, String)> = Vec::new();
    for policy in items(action, "hash_policy") {
        let _ = policy.get("terminal");
        if let Some(header) = policy.some("header") {
            let name = text(&header, "header_name").unwrap_or_default();
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            match (name.chars().all(plain), header_variable(name, "http_")) {
                (true, _) => keys.push(("header", name.to_owned())),
                (false, Some(variable)) => keys.push(("vars_combinations", format!("${variable}"))),
                (false, None) => {}
            }
            report.fields(&header, &[("regex_rewrite", Behaviour, "the header is hashed as it is")]);
        } else if let Some(cookie) = policy.some("cookie") {
            keys.push(("cookie", text(&cookie, "name").unwrap_or_default().to_owned()));
            for name in ["ttl", "path", "attributes"] {
                if let Some(part) = cookie.some(name) {
                    part.whole();
                    report.behaviour(
                        &part,
                        format!("hash_policy.cookie.{name}"),
                        "the cookie is not made where it is absent",
                    );
                }
            }
        } else if let Some(connection) = policy.some("connection_properties") {
            if super::value::boolean(&connection, "source_ip") != Some(true) {
                continue;
            }
            keys.push(("vars", "remote_addr".to_owned()));
        } else if let Some(parameter) = policy.some("query_parameter") {
            keys.push(("vars", format!("arg_{}", text(&parameter, "name").unwrap_or_default())));
        } else {
            policy.whole();
            report.behaviour(&policy, "hash_policy", "this value cannot be hashed, and is left out");
        }
    }
    let variable = |(kind, key): &(&'static str, String)| match *kind {
        "header" => format!("${{http_{}}}", key.to_ascii_lowercase().replace('-', "_")),
        "cookie" => format!("${{cookie_{key}}}"),
        "vars" => format!("${{{key}}}"),
        _ => key.clone(),
    };
    let (kind, key) = match &keys[..] {
        [] => return,
        [(kind, key)] => (*kind, key.clone()),
        several => ("vars_combinations", several.iter().map(variable).collect()),
    };
    settings.insert("type".to_owned(), json!("chash"));
    settings.insert("hash_on".to_owned(), json!(kind));
    settings.insert("key".to_owned(), json!(key));
}
