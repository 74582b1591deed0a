//! Virtual hosts: which routes a request's Host leads to, and their order.
//!
//! Envoy searches the domains of a route table for the best one (the exact name, then the longest `*.suffix`, then
//! the longest `prefix.*`, then `*`) and looks at the routes of that virtual host alone.

use std::cmp::Reverse;

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::context::{Context, Report};
use super::draft::{Draft, Levels};
use super::manager::Around;
use super::matching::{Path, Pattern};
use super::order::{self, Entry, Placed};
use super::plugins::Plugins;
use super::value::{boolean, escaped, items, text, texts};
use super::{require_tls, route};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::Node;

/// A virtual host.
struct Host {
    name: String,
    drafts: Vec<Draft>,
    domains: Domains,
    /// Its redirect to HTTPS leaves internal clients out, in Envoy alone.
    spares_internal: bool,
}

/// The domains of a virtual host by kind.
#[derive(Default)]
struct Domains {
    /// Names and `*.suffix`.
    names: Vec<String>,
    /// A condition on the port in the Host, if there is one.
    port: Option<Value>,
    /// `prefix.*`.
    prefixes: Vec<String>,
    any: bool,
}

/// A group of routes that are looked at together.
struct Group<'d> {
    hosts: Vec<String>,
    members: Vec<Member<'d>>,
}

struct Member<'d> {
    host: &'d Host,
    /// `None` is the end of the virtual host: no route matches.
    draft: Option<usize>,
    vars: Vec<Value>,
}

/// Reads a route table. Returns, for each route that was written, its key and the filters that apply.
pub(super) fn read(
    context: &mut Context<'_>,
    around: &mut Around<'_, '_>,
    table: &Node<'_>,
    listener: &[Value],
) -> Vec<(Key, Vec<bool>)> {
    let mut report = Report::default();
    table_fields(table, &mut report);
    let mut hosts = Vec::new();
    for node in items(table, "virtual_hosts") {
        host_fields(&node, &mut report);
        let mut drafts = around.manager.health_checks();
        drafts.extend(require_tls::read(context, around, &node));
        let fronts = drafts.len();
        for node_of_route in items(&node, "routes") {
            let levels = Levels { route: node_of_route, host: node.clone(), table: table.clone() };
            drafts.push(route::read(context, around, &levels, around.manager.linear));
        }
        share(&mut drafts, &items(&node, "routes"), fronts);
        let ignores_port =
            around.manager.strips_port || boolean(table, "ignore_port_in_host_matching") == Some(true);
        let domains = Domains::read(&texts(&node, "domains"), ignores_port);
        hosts.push(Host {
            name: text(&node, "name").unwrap_or_default().to_owned(),
            drafts,
            domains,
            spares_internal: text(&node, "require_tls") == Some("EXTERNAL_ONLY"),
        });
    }
    context.report.take(report, &[]);
    if hosts.len() == 1 && hosts[0].domains.any {
        // Nothing else could be the best domain.
        hosts[0].domains = Domains { any: true, ..Domains::default() };
    }
    let written = write(context, &hosts, listener);
    // Findings of a route concern all of its copies.
    for host in hosts {
        for (at, draft) in host.drafts.into_iter().enumerate() {
            let keys: Vec<Key> = written
                .iter()
                .filter(|(name, index, ..)| *name == host.name && *index == at)
                .map(|(_, _, key, _)| key.clone())
                .collect();
            if keys.is_empty() {
                // The route takes no request, so its findings are of no interest but for being named.
                let mut report = draft.report;
                report.findings.retain(|finding| finding.severity != Severity::Guard);
                if !draft.matcher.never && !host.spares_internal {
                    // An earlier route takes its requests, in Envoy as well.
                    report.findings.iter_mut().for_each(|finding| finding.severity = Cosmetic);
                }
                context.report.take(report, &[]);
            } else {
                context.report.take(draft.report, &keys);
            }
        }
    }
    written.into_iter().map(|(_, _, key, filtered)| (key, filtered)).collect()
}

type Written = (String, usize, Key, Vec<bool>);

fn write(context: &mut Context<'_>, hosts: &[Host], listener: &[Value]) -> Vec<Written> {
    let mut groups = Vec::new();
    let mut hostless = Vec::new();
    let several = hosts.len() > 1;
    for host in hosts {
        if !host.domains.names.is_empty() {
            let vars: Vec<Value> = host.domains.port.iter().cloned().collect();
            let mut members = members(host, &vars);
            if several || host.domains.any {
                members.push(Member { host, draft: None, vars });
            }
            groups.push(Group { hosts: host.domains.names.clone(), members });
        }
        for prefix in &host.domains.prefixes {
            let vars = vec![json!(["http_host", "~*", format!("^{}.", escaped(prefix))])];
            let mut list = members(host, &vars);
            list.push(Member { host, draft: None, vars });
            hostless.push((prefix.len(), list));
        }
    }
    hostless.sort_by_key(|(length, _)| Reverse(*length));
    let mut members_of_none: Vec<Member<'_>> = hostless.into_iter().flat_map(|(_, list)| list).collect();
    for host in hosts.iter().filter(|host| host.domains.any) {
        members_of_none.extend(members(host, &[]));
    }
    groups.push(Group { hosts: Vec::new(), members: members_of_none });
    groups.iter().flat_map(|group| write_group(context, group, listener)).collect()
}

fn members<'d>(host: &'d Host, vars: &[Value]) -> Vec<Member<'d>> {
    let one = |at| Member { host, draft: Some(at), vars: vars.to_vec() };
    (0..host.drafts.len()).filter(|at| !host.drafts[*at].matcher.never).map(one).collect()
}

fn write_group(context: &mut Context<'_>, group: &Group<'_>, listener: &[Value]) -> Vec<Written> {
    let root = || vec![Pattern::Prefix("/".to_owned())];
    let entry = |member: &Member<'_>| {
        let draft = member.draft.map(|at| &member.host.drafts[at]);
        // A condition on the Host is the same for all of a group that has names.
        let free = !group.hosts.is_empty() || member.vars.is_empty();
        Entry {
            patterns: draft.map_or_else(root, |draft| draft.matcher.patterns.clone()),
            unconditional: free && draft.is_none_or(|draft| draft.matcher.is_unconditional()),
        }
    };
    let entries: Vec<Entry> = group.members.iter().map(entry).collect();
    let mut written = Vec::new();
    for (member, placed) in group.members.iter().zip(order::place(&entries)) {
        let Some(at) = member.draft else {
            if placed.hidden_by.is_none() {
                write_end(context, group, member, &placed, listener);
            }
            continue;
        };
        let draft = &member.host.drafts[at];
        if let Some(by) = placed.hidden_by {
            hidden(context, group, draft, by);
            continue;
        }
        let mut value = Map::new();
        if !draft.name.is_empty() {
            value.insert("name".to_owned(), json!(draft.name.chars().take(250).collect::<String>()));
        }
        set_uris(&mut value, &placed.patterns);
        set_hosts(&mut value, &group.hosts);
        if !draft.matcher.methods.is_empty() {
            value.insert("methods".to_owned(), json!(draft.matcher.methods));
        }
        let vars: Vec<Value> =
            listener.iter().chain(&member.vars).chain(&draft.matcher.vars).cloned().collect();
        if !vars.is_empty() {
            value.insert("vars".to_owned(), Value::Array(vars));
        }
        if placed.priority > 0 {
            value.insert("priority".to_owned(), json!(placed.priority));
        }
        if !draft.plugins.is_empty() {
            value.insert("plugins".to_owned(), draft.plugins.value());
        }
        if draft.nowhere {
            value.insert("upstream".to_owned(), json!({"nodes": []}));
        } else if let Some(upstream) = &draft.upstream {
            value.insert("upstream_id".to_owned(), json!(upstream.id));
        }
        if let Some(timeout) = &draft.timeout {
            value.insert("timeout".to_owned(), timeout.clone());
        }
        if draft.websocket {
            value.insert("enable_websocket".to_owned(), json!(true));
        }
        let key = context.key(Kind::Route, &[&member.host.name, &path_name(draft)]);
        context.add(key.clone(), value, draft.place.clone());
        written.push((member.host.name.clone(), at, key, draft.filtered.clone()));
    }
    written
}

/// A part of an id that tells the route from its neighbours.
fn path_name(draft: &Draft) -> String {
    if !draft.name.is_empty() {
        return draft.name.clone();
    }
    match &draft.matcher.path {
        Path::Exact(path) | Path::Prefix(path) | Path::Separated(path) => {
            path.trim_matches('/').replace('/', "-")
        }
        Path::Regex(_) => "regex".to_owned(),
    }
}

/// The description of a route that stands for the end of a virtual host.
pub(super) const NO_ROUTE: &str = "No route of the virtual host matches";

/// Answers 404 where no route of a virtual host matches, as its requests are not for another one.
fn write_end(
    context: &mut Context<'_>,
    group: &Group<'_>,
    member: &Member<'_>,
    placed: &Placed,
    listener: &[Value],
) {
    let mut plugins = Plugins::default();
    plugins.answer(404);
    let mut value = Map::new();
    set_uris(&mut value, &placed.patterns);
    set_hosts(&mut value, &group.hosts);
    let vars: Vec<Value> = listener.iter().chain(&member.vars).cloned().collect();
    if !vars.is_empty() {
        value.insert("vars".to_owned(), Value::Array(vars));
    }
    if placed.priority > 0 {
        value.insert("priority".to_owned(), json!(placed.priority));
    }
    value.insert("desc".to_owned(), json!(NO_ROUTE));
    value.insert("plugins".to_owned(), plugins.value());
    let key = context.key(Kind::Route, &[&member.host.name, "no-route"]);
    let place = member.host.drafts.first().map(|draft| draft.place.clone());
    let place = place.unwrap_or(crate::Place {
        file: context.source.file.into(),
        position: model::Position { line: 1, column: 1 },
    });
    context.add(key, value, place);
}

fn hidden(context: &mut Context<'_>, group: &Group<'_>, draft: &Draft, by: usize) {
    let earlier = group.members[by].draft.map(|at| &group.members[by].host.drafts[at]);
    let line = earlier.map_or(0, |earlier| earlier.place.position.line);
    let known = context
        .report
        .findings
        .iter()
        .any(|finding| finding.place == draft.place && finding.construct == "routes[]");
    if !known {
        context.report.findings.push(crate::Finding {
            place: draft.place.clone(),
            severity: Cosmetic,
            construct: "routes[]".to_owned(),
            effect: format!(
                "the route takes no request, as the one in line {line} stands before it; it is left out"
            ),
            hint: None,
            resources: Vec::new(),
        });
    }
}

fn set_uris(value: &mut Map<String, Value>, patterns: &[Pattern]) {
    let uris: Vec<String> = patterns.iter().map(Pattern::uri).collect();
    match &uris[..] {
        [uri] => _ = value.insert("uri".to_owned(), json!(uri)),
        _ => _ = value.insert("uris".to_owned(), json!(uris)),
    }
}

fn set_hosts(value: &mut Map<String, Value>, hosts: &[String]) {
    match hosts {
        [] => {}
        [host] => _ = value.insert("host".to_owned(), json!(host)),
        _ => _ = value.insert("hosts".to_owned(), json!(hosts)),
    }
}

impl Domains {
    fn read(all: &[String], ignores_port: bool) -> Domains {
        let mut domains = Domains::default();
        let lower: Vec<String> = all.iter().map(|domain| domain.to_ascii_lowercase()).collect();
        let mut with_port = Vec::new();
        let mut any_port = Vec::new();
        for domain in &lower {
            let name_and_port =
                domain.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
            if domain == "*" {
                domains.any = true;
            } else if let Some(name) =
                domain.strip_suffix(":*").filter(|name| lower.iter().any(|other| other == name))
            {
                any_port.push(escaped(name).replace("\\*", ".*"));
            } else if domain.ends_with('*') && !domain.starts_with('*') {
                domains.prefixes.push(domain.trim_end_matches('*').to_owned());
            } else if name_and_port.is_some() && !domain.starts_with('*') {
                with_port.push(domain.clone());
                domains.names.push(domain.clone());
            } else {
                domains.names.push(domain.clone());
            }
        }
        domains.names.dedup();
        let plain = domains.names.len() - with_port.len();
        if plain > 0 && plain > any_port.len() && !ignores_port {
            // Envoy compares the Host with its port.
            let mut allowed = vec![json!(["http_host", "!", "~~", ":[0-9]+$"])];
            if !with_port.is_empty() {
                allowed.push(json!(["http_host", "in", with_port]));
            }
            if !any_port.is_empty() {
                allowed.push(json!(["http_host", "~*", format!("^(?:{}):", any_port.join("|"))]));
            }
            domains.port = Some(super::matching::joined("OR", allowed));
        }
        domains
    }
}

/// A share of the requests that the next route, with the same condition, completes.
fn share(drafts: &mut [Draft], nodes: &[Node<'_>], fronts: usize) {
    let condition = |node: &Node<'_>| {
        let mut condition = node.value().get("match").cloned().unwrap_or_default();
        if let Some(members) = condition.as_object_mut() {
            members.remove("runtime_fraction");
            members.remove("runtime");
        }
        condition
    };
    for at in 0..nodes.len() {
        let Some(percent) = drafts[fronts + at].matcher.fraction else { continue };
        let next = nodes.get(at + 1).filter(|next| condition(next) == condition(&nodes[at]));
        let ends = next.is_some() && drafts[fronts + at + 1].matcher.fraction.is_none();
        let upstreams = drafts[fronts + at]
            .upstream
            .clone()
            .zip(next.and(drafts.get(fronts + at + 1)).and_then(|draft| draft.upstream.clone()));
        let alike = drafts.get(fronts + at + 1).is_some_and(|next| {
            let draft = &drafts[fronts + at];
            let is_guard = |finding: &crate::Finding| finding.severity == Severity::Guard;
            next.plugins == draft.plugins
                && next.filtered == draft.filtered
                && !next.report.findings.iter().any(is_guard)
        });
        if upstreams.is_some() && ends && !alike {
            for number in [at, at + 1] {
                drafts[fronts + number].report.guard(
                    &nodes[at],
                    "match.runtime_fraction",
                    "the routes that share requests treat them in different ways, which is not carried over",
                );
            }
        }
        let draft = &mut drafts[fronts + at];
        draft.matcher.fraction = None;
        match upstreams.filter(|_| alike) {
            Some((first, second)) if ends && !draft.plugins.has("traffic-split") => {
                let (weight, rest) =
                    ((percent * 100.0).round() as u64, ((100.0 - percent) * 100.0).round() as u64);
                let parts = json!([{"upstream_id": first.id, "weight": weight}, {"upstream_id": second.id, "weight": rest}]);
                draft.plugins.set("traffic-split", json!({"rules": [{"weighted_upstreams": parts}]}));
            }
            _ => {
                let effect = if percent < 50.0 {
                    "the route takes no request"
                } else {
                    "the route takes all requests"
                };
                draft.matcher.never = percent < 50.0;
                draft.report.behaviour(
                    &nodes[at],
                    "match.runtime_fraction",
                    format!("requests are not drawn at random: {effect}"),
                );
            }
        }
    }
}

fn table_fields(table: &Node<'_>, report: &mut Report) {
    // Labels.
    let _ = (table.get("name"), table.get("@type"), table.get("most_specific_header_mutations_wins"));
    for name in ["typed_per_filter_config", "per_filter_config"] {
        let _ = table.get(name);
    }
    report.fields(
        table,
        &[
            ("validate_clusters", Cosmetic, "a route to an unknown cluster is named in a finding"),
            ("internal_only_headers", Behaviour, "headers of clients outside of the network are not removed"),
            ("vhds", Behaviour, "virtual hosts of a control plane are not loaded"),
            ("max_direct_response_body_size_bytes", Cosmetic, "bodies of answers are those of the file"),
            ("cluster_specifier_plugins", Cosmetic, "named where routes use them"),
            ("metadata", Cosmetic, "metadata is not used"),
        ],
    );
}

fn host_fields(host: &Node<'_>, report: &mut Report) {
    for name in ["typed_per_filter_config", "per_filter_config", "cors", "retry_policy"] {
        let _ = host.get(name);
    }
    report.fields(
        host,
        &[
            ("virtual_clusters", Cosmetic, "statistics have other names"),
            ("rate_limits", Cosmetic, "limits stand with the filter `ratelimit`"),
            ("include_request_attempt_count", Cosmetic, "`X-Envoy-Attempt-Count` is not sent"),
            ("include_attempt_count_in_response", Behaviour, "`X-Envoy-Attempt-Count` is not sent"),
            ("include_is_timeout_retry_header", Cosmetic, "`X-Envoy-Is-Timeout-Retry` is not sent"),
            ("hedge_policy", Behaviour, "requests are not sent to two nodes at a time"),
            ("matcher", Behaviour, "routes of a `matcher` are not carried over"),
            ("metadata", Cosmetic, "metadata is not used"),
            ("per_request_buffer_limit_bytes", Cosmetic, "bodies have the gateway's own bounds"),
            ("request_body_buffer_limit", Behaviour, "bodies have the gateway's own bounds"),
        ],
    );
}
