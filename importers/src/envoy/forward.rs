//! Routes that forward: clusters, rewriting, timeouts, copies.

use serde_json::{Map, Value, json};

use super::answer::{is_same, note_query, prefix_pair};
use super::cluster::Clusters;
use super::context::{Context, Report};
use super::draft::{Draft, Levels, merge_headers, set_host};
use super::manager::{Around, Manager};
use super::retries;
use super::value::{self, boolean, items, number, regex_text, replacement, seconds, seconds_json, text};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::Node;

/// Seconds that stand for no bound.
const ENDLESS: f64 = 86_400.0;

/// A `RouteAction`.
pub(super) fn read(
    context: &mut Context<'_>,
    around: &mut Around<'_, '_>,
    levels: &Levels<'_>,
    action: &Node<'_>,
    draft: &mut Draft,
    rewrite: &mut Map<String, Value>,
) {
    paths(action, draft, rewrite);
    // A server that judges requests must see the path that the upstream gets.
    let manager = around.manager;
    if manager.raw_targets && !rewrite.contains_key("regex_uri") && !manager.asks_servers() {
        rewrite.insert("use_real_request_uri_unsafe".to_owned(), json!(true));
    }
    hosts(action, around, draft, rewrite);
    let mut settings = Map::new();
    retries::read(action, levels, &mut settings, &mut draft.report);
    clusters(context, around, action, draft, settings);
    timeouts(action, around, draft);
    added_headers(action, levels, around.manager, rewrite);
    mirror(action, levels, around.clusters, draft);
    for upgrade in items(action, "upgrade_configs") {
        self::upgrade(&upgrade, draft);
    }
    report_fields(action, &mut draft.report);
}

/// An `UpgradeConfig`.
fn upgrade(upgrade: &Node<'_>, draft: &mut Draft) {
    let kind = text(upgrade, "upgrade_type").unwrap_or_default();
    let enabled = boolean(upgrade, "enabled").unwrap_or(true);
    if kind.eq_ignore_ascii_case("websocket") {
        draft.websocket = enabled;
    } else if enabled {
        upgrade.whole();
        draft.report.behaviour(
            upgrade,
            "upgrade_configs",
            format!("connections are not upgraded to `{kind}`"),
        );
    }
}

fn report_fields(action: &Node<'_>, report: &mut Report) {
    report.fields(
        action,
        &[
            ("metadata_match", Behaviour, "requests go to all nodes of the cluster, not to a subset"),
            ("cluster_not_found_response_code", Cosmetic, "all clusters are known"),
            (
                "cluster_specifier_plugin",
                Behaviour,
                "the cluster is not chosen by a plugin; the route answers 503",
            ),
            (
                "inline_cluster_specifier_plugin",
                Behaviour,
                "the cluster is not chosen by a plugin; the route answers 503",
            ),
            ("host_rewrite_path_regex", Behaviour, "the Host is not made from the path"),
            ("append_x_forwarded_host", Cosmetic, "`X-Forwarded-Host` is always sent"),
            ("flush_timeout", Cosmetic, "time for writing is bounded by the timeout of the route"),
            ("priority", Cosmetic, "requests of both priorities share the limits of the cluster"),
            ("internal_redirect_policy", Behaviour, "redirects of servers go to the client"),
            ("internal_redirect_action", Behaviour, "redirects of servers go to the client"),
            ("max_internal_redirects", Cosmetic, "redirects of servers go to the client"),
            ("hedge_policy", Behaviour, "requests are not sent to two nodes at a time"),
            (
                "max_stream_duration",
                Behaviour,
                "the timeout of a gRPC call that its client sends is not enforced here",
            ),
            (
                "max_grpc_timeout",
                Behaviour,
                "the timeout of a gRPC call that its client sends is not enforced here",
            ),
            (
                "grpc_timeout_offset",
                Cosmetic,
                "the timeout of a gRPC call that its client sends is not enforced here",
            ),
            ("early_data_policy", Cosmetic, "no early data is sent"),
            ("include_vh_rate_limits", Cosmetic, "limits stand with the filter `ratelimit`"),
            ("rate_limits", Cosmetic, "limits stand with the filter `ratelimit`"),
        ],
    );
}

/// The headers that Envoy adds to requests.
fn added_headers(
    action: &Node<'_>,
    levels: &Levels<'_>,
    manager: &Manager<'_>,
    rewrite: &mut Map<String, Value>,
) {
    let mut set = Map::new();
    if manager.sends_address {
        set.insert("X-Envoy-External-Address".to_owned(), json!("$remote_addr"));
    }
    if !manager.suppresses_headers {
        let uri = if manager.raw_targets { "$real_request_uri" } else { "$normal_request_uri" };
        let prefix = text(action, "prefix_rewrite").filter(|prefix| !prefix.is_empty());
        if prefix.is_some() || action.some("regex_rewrite").is_some() {
            set.insert("X-Envoy-Original-Path".to_owned(), json!(uri));
        }
        let has_host = |headers: &Value| headers.pointer("/set/Host").is_some();
        if rewrite.contains_key("host") || rewrite.get("headers").is_some_and(has_host) {
            set.insert("X-Envoy-Original-Host".to_owned(), json!("$http_host"));
        }
        if let Some(time) = expected_time(action, levels) {
            set.insert("X-Envoy-Expected-Rq-Timeout-Ms".to_owned(), json!(time.to_string()));
        }
    }
    if !set.is_empty() {
        let headers = rewrite.entry("headers").or_insert_with(|| json!({}));
        merge_headers(headers, Map::from_iter([("set".to_owned(), Value::Object(set))]));
    }
}

/// The milliseconds that a server has for its answer: those of a try, or else of the whole request.
fn expected_time(action: &Node<'_>, levels: &Levels<'_>) -> Option<u64> {
    let whole = seconds(action, "timeout").unwrap_or(15.0);
    let policy = action.some("retry_policy").or_else(|| levels.host.some("retry_policy"));
    let of_try = policy.and_then(|policy| seconds(&policy, "per_try_timeout")).unwrap_or(0.0);
    if action.some("max_stream_duration").is_some() {
        return None;
    }
    let fits = of_try > 0.0 && (whole <= 0.0 || of_try < whole);
    Some(((if fits { of_try } else { whole }) * 1000.0).round() as u64).filter(|time| *time > 0)
}

fn paths(action: &Node<'_>, draft: &mut Draft, rewrite: &mut Map<String, Value>) {
    if let Some(prefix) = text(action, "prefix_rewrite").filter(|prefix| !prefix.is_empty())
        && !is_same(&draft.matcher.path, prefix)
    {
        let (pattern, replaced) = prefix_pair(&draft.matcher.path, draft.matcher.ignore_case, prefix);
        note_query(action, &replaced, draft);
        rewrite.insert("regex_uri".to_owned(), json!([pattern, replaced]));
    }
    if let Some(regex) = action.some("regex_rewrite") {
        let pattern = regex.some("pattern").and_then(|pattern| regex_text(&pattern)).unwrap_or_default();
        let substitution = replacement(text(&regex, "substitution").unwrap_or_default());
        if value::is_balanced(&pattern) {
            note_query(&regex, &substitution, draft);
            let anchored = pattern.starts_with('^') || pattern.ends_with('$');
            rewrite.insert("regex_uri".to_owned(), json!([pattern, substitution]));
            if !anchored {
                draft.report.behaviour(&regex, "regex_rewrite", "only the first match in a path is replaced");
            }
        } else {
            draft.report.behaviour(
                &regex,
                "regex_rewrite",
                "the pattern is invalid; the path is not rewritten",
            );
        }
    }
    for name in ["path_rewrite_policy", "path_rewrite"] {
        if let Some(policy) = action.some(name) {
            policy.whole();
            draft.report.behaviour(&policy, name, "the path is not rewritten");
        }
    }
}

fn hosts(action: &Node<'_>, around: &Around<'_, '_>, draft: &mut Draft, rewrite: &mut Map<String, Value>) {
    if let Some(literal) =
        action.any(&["host_rewrite_literal", "host_rewrite"]).filter(|node| node.value().is_string())
    {
        let host = literal.str().unwrap_or_default();
        if host.contains("${") {
            draft.report.behaviour(
                &literal,
                "host_rewrite_literal",
                format!("`{host}` is a template whose variable is not set; the Host is not rewritten"),
            );
        } else if !host.is_empty() {
            set_host(rewrite, host);
        }
        return;
    }
    if let Some(header) = action.any(&["host_rewrite_header", "auto_host_rewrite_header"]) {
        let name = header.str().unwrap_or_default();
        if let Some(variable) = super::format::header_variable(name, "http_") {
            rewrite.insert("headers".to_owned(), json!({"set": {"Host": format!("${{{variable}}}")}}));
            draft.report.behaviour(
                &header,
                "host_rewrite_header",
                "a request without this header is refused",
            );
        }
        return;
    }
    if boolean(action, "auto_host_rewrite") != Some(true) {
        return;
    }
    let names = match text(action, "cluster") {
        Some(name) => vec![name.to_owned()],
        None => Vec::new(),
    };
    let hosts = names.iter().filter_map(|name| around.clusters.get(name)).filter(|cluster| cluster.by_name);
    let mut hosts: Vec<&str> =
        hosts.flat_map(|cluster| cluster.hosts.iter().map(|(host, _)| host.as_str())).collect();
    hosts.dedup();
    match hosts[..] {
        [host] => set_host(rewrite, host),
        [] => {}
        _ => draft.host_of_node = true,
    }
}

/// The upstream, or the parts of the traffic for several.
fn clusters(
    context: &mut Context<'_>,
    around: &mut Around<'_, '_>,
    action: &Node<'_>,
    draft: &mut Draft,
    mut settings: Map<String, Value>,
) {
    if draft.host_of_node {
        settings.insert("pass_host".to_owned(), json!("node"));
    }
    let mut find = |context: &mut Context<'_>, draft: &mut Draft, place: &Node<'_>, name: &str| {
        let Some(cluster) = around.clusters.get(name) else {
            draft.report.behaviour(
                place,
                "cluster",
                format!("the cluster `{name}` is not declared; requests for it get 503"),
            );
            return None;
        };
        let mut settings = settings.clone();
        if cluster.hashes {
            retries::hashing(action, &mut settings, &mut draft.report);
        }
        around.clusters.upstream(context, name, &Value::Object(settings))
    };
    if let Some(cluster) = action.some("cluster") {
        let name = cluster.text().unwrap_or_default();
        draft.upstream = find(context, draft, &cluster, &name);
    } else if let Some(weighted) = action.some("weighted_clusters") {
        let mut parts = Vec::new();
        for part in items(&weighted, "clusters") {
            let name = text(&part, "name").unwrap_or_default().to_owned();
            let weight = number(&part, "weight").unwrap_or(0);
            draft.report.fields(
                &part,
                &[
                    (
                        "request_headers_to_add",
                        Behaviour,
                        "headers of a single part of the traffic are not changed",
                    ),
                    (
                        "request_headers_to_remove",
                        Behaviour,
                        "headers of a single part of the traffic are not changed",
                    ),
                    (
                        "response_headers_to_add",
                        Behaviour,
                        "headers of a single part of the traffic are not changed",
                    ),
                    (
                        "response_headers_to_remove",
                        Behaviour,
                        "headers of a single part of the traffic are not changed",
                    ),
                    (
                        "host_rewrite_literal",
                        Behaviour,
                        "the Host of a single part of the traffic is not rewritten",
                    ),
                    (
                        "typed_per_filter_config",
                        Severity::Guard,
                        "filters are the same for all parts of the traffic",
                    ),
                    (
                        "per_filter_config",
                        Severity::Guard,
                        "filters are the same for all parts of the traffic",
                    ),
                    ("metadata_match", Behaviour, "requests go to all nodes of the cluster, not to a subset"),
                    ("cluster_header", Behaviour, "a part of the traffic cannot be chosen by a header"),
                ],
            );
            if let Some(key) = find(context, draft, &part, &name) {
                parts.push(json!({"upstream_id": key.id, "weight": weight}));
                draft.upstream.get_or_insert(key);
            }
        }
        let _ = weighted.get("total_weight");
        draft.report.fields(
            &weighted,
            &[
                ("runtime_key_prefix", Cosmetic, "weights are those of the file"),
                (
                    "header_name",
                    Behaviour,
                    "the part of the traffic is drawn for each request, not by this header",
                ),
                (
                    "use_hash_policy",
                    Behaviour,
                    "the part of the traffic is drawn for each request, not by a hash",
                ),
                (
                    "random_value_header",
                    Behaviour,
                    "the part of the traffic is drawn for each request, not by this header",
                ),
            ],
        );
        if parts.len() > 20 {
            draft.report.behaviour(
                &weighted,
                "weighted_clusters",
                "traffic is split among at most 20 clusters; the others get none",
            );
            parts.truncate(20);
        }
        if parts.len() > 1 {
            draft.plugins.set("traffic-split", json!({"rules": [{"weighted_upstreams": parts}]}));
        }
    } else if let Some(header) = action.some("cluster_header") {
        let name = header.text().unwrap_or_default();
        let variable =
            super::format::header_variable(&name, "http_").unwrap_or_else(|| "http_none".to_owned());
        let names: Vec<String> = around.clusters.names().map(str::to_owned).collect();
        let mut rules = Vec::new();
        for name in names {
            if let Some(key) = around.clusters.upstream(context, &name, &Value::Object(settings.clone())) {
                rules.push(json!({
                    "match": [{"vars": [[variable, "==", name]]}],
                    "weighted_upstreams": [{"upstream_id": key.id}],
                }));
            }
        }
        draft.plugins.set("traffic-split", json!({"rules": rules}));
    }
}

fn timeouts(action: &Node<'_>, around: &Around<'_, '_>, draft: &mut Draft) {
    let timeout = seconds(action, "timeout");
    let idle = seconds(action, "idle_timeout").or(around.manager.idle).unwrap_or(300.0);
    let idle = if idle > 0.0 { idle } else { ENDLESS };
    let read = match timeout {
        None => 15.0,
        Some(0.0) => idle,
        Some(timeout) => timeout.min(ENDLESS),
    };
    let read = read.min(idle);
    if (read - 15.0).abs() < 1e-9 {
        return;
    }
    let connect = text(action, "cluster")
        .and_then(|name| around.clusters.get(name))
        .map_or(5.0, |cluster| cluster.connect);
    draft.timeout = Some(
        json!({"connect": seconds_json(connect), "send": seconds_json(read), "read": seconds_json(read)}),
    );
}

fn mirror(action: &Node<'_>, levels: &Levels<'_>, clusters: &Clusters, draft: &mut Draft) {
    let mut policies = items(action, "request_mirror_policies");
    policies.extend(items(action, "request_mirror_policy"));
    for level in [&levels.host, &levels.table] {
        if policies.is_empty() {
            policies = items(level, "request_mirror_policies");
        }
    }
    for (at, policy) in policies.iter().enumerate() {
        draft.report.fields(
            policy,
            &[
                ("trace_sampled", Cosmetic, "copies are traced like other requests"),
                ("disable_shadow_host_suffix_append", Cosmetic, "the Host of a copy has no suffix"),
                ("cluster_header", Behaviour, "the server for copies cannot be chosen by a header"),
                ("request_headers_mutations", Behaviour, "headers of copies are not changed"),
                ("host_rewrite_literal", Behaviour, "the Host of copies is not rewritten"),
                ("runtime_key", Cosmetic, "the share is that of the file"),
            ],
        );
        let share = policy.some("runtime_fraction").and_then(|share| value::percent(&share)).unwrap_or(100.0);
        let name = text(policy, "cluster").unwrap_or_default();
        let target = clusters.get(name).and_then(|cluster| Some((cluster, cluster.hosts.first()?)));
        let Some((cluster, (host, _))) = target else {
            draft.report.behaviour(
                policy,
                "request_mirror_policies",
                format!("requests are not copied: the cluster `{name}` has no endpoint"),
            );
            continue;
        };
        if at > 0 {
            draft.report.behaviour(
                policy,
                "request_mirror_policies",
                "requests are copied to one server, the first",
            );
            continue;
        }
        if cluster.hosts.len() > 1 {
            draft.report.behaviour(
                policy,
                "request_mirror_policies",
                format!("copies go to one server of the cluster, {host}"),
            );
        }
        if share <= 0.0 || host.contains('_') {
            if share > 0.0 {
                draft.report.behaviour(
                    policy,
                    "request_mirror_policies",
                    format!("requests are not copied: `{host}` is not a host name"),
                );
            }
            continue;
        }
        let mut settings = json!({ "host": cluster.url() });
        if share < 100.0 {
            settings["sample_ratio"] = json!((share / 100.0).max(0.000_01));
        }
        draft.plugins.set("proxy-mirror", settings);
    }
}
