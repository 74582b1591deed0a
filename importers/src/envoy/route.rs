//! Routes: their conditions, and what they do.

use serde_json::{Map, Value, json};

use super::context::{Context, Report};
use super::draft::{Draft, Levels, merge_headers, set_host};
use super::headers::Edits;
use super::manager::{Around, Manager};
use super::matching::Matcher;
use super::plugins::Plugins;
use super::value::{boolean, text};
use super::{answer, cors, filters, forward, tracing};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// Reads a route.
pub(super) fn read(
    context: &mut Context<'_>,
    around: &mut Around<'_, '_>,
    levels: &Levels<'_>,
    linear: bool,
) -> Draft {
    let node = &levels.route;
    let mut report = Report::default();
    let matcher = match node.some("match") {
        Some(condition) => Matcher::read(&condition, linear, &mut report),
        None => {
            report.behaviour(node, "match", "a route without `match` takes no request");
            let mut matcher = Matcher::read(node, linear, &mut Report::default());
            matcher.never = true;
            matcher
        }
    };
    let action = report.findings.len();
    let mut draft = Draft {
        name: text(node, "name").unwrap_or_default().to_owned(),
        place: node.place(),
        matcher,
        plugins: Plugins::default(),
        upstream: None,
        timeout: None,
        websocket: around.manager.websocket,
        host_of_node: false,
        nowhere: false,
        report,
        filtered: Vec::new(),
    };
    report_fields(node, &mut draft.report);
    let unknown_clients = around.manager.behind_proxies && !around.manager.last_forwarded;
    let mut requests = Edits::new(unknown_clients);
    let mut responses = Edits::new(unknown_clients);
    let mut order = levels.all();
    if boolean(&levels.table, "most_specific_header_mutations_wins") == Some(true) {
        order.reverse();
    }
    for level in order {
        requests.read(level, "request", context.source.variables, &mut draft.report);
        responses.read(level, "response", context.source.variables, &mut draft.report);
    }
    if around.manager.client_is_forwarded {
        let all = json!(["0.0.0.0/0", "::/0"]);
        let real = json!({"source": "http_x_forwarded_for", "trusted_addresses": all});
        draft.plugins.set("real-ip", real);
    }
    match &around.manager.traces {
        Some((name, settings)) => {
            draft.plugins.set(name, settings.clone());
            if let Some(operation) = tracing::operation(node) {
                responses.set("X-Envoy-Decorator-Operation", operation);
            }
        }
        None => {
            if let Some(decorator) = node.some("decorator") {
                decorator.whole();
                draft.report.cosmetic(&decorator, "decorator", "names of traces are not used");
            }
        }
    }
    let mut rewrite = Map::new();
    let mut answers = false;
    if let Some(action) = node.some("direct_response") {
        answer::direct(context, &action, &mut draft);
        answers = true;
    } else if let Some(action) = node.some("redirect") {
        answer::redirect(&action, around.manager.raw_targets, &mut draft);
        answers = true;
    } else if let Some(action) = node.some("route") {
        forward::read(context, around, levels, &action, &mut draft, &mut rewrite);
        cors::apply(around.manager, levels, Some(&action), &mut draft);
    } else if node.get("non_forwarding_action").is_some() {
        draft.matcher.never = true;
    } else {
        let other = node.some("filter_action");
        if let Some(other) = &other {
            other.whole();
        }
        let place = other.unwrap_or_else(|| node.clone());
        draft.report.behaviour(&place, "routes[]", "the route has no action that is known; it answers 503");
    }
    if answers {
        cors::apply(around.manager, levels, None, &mut draft);
    }
    let only_redirects = require_tls(levels, around.manager, action, &mut draft);
    let (headers, host) = requests.of_requests();
    if !headers.is_empty() && !answers {
        let known = rewrite.entry("headers").or_insert_with(|| json!({}));
        merge_headers(known, headers);
    }
    if let Some(host) = host.filter(|_| !answers && !rewrite.contains_key("host")) {
        set_host(&mut rewrite, &host);
    }
    if !rewrite.is_empty() {
        draft.plugins.set("proxy-rewrite", Value::Object(rewrite));
    }
    let headers = responses.of_responses();
    if !headers.is_empty() && !only_redirects {
        draft.plugins.set_member("response-rewrite", "headers", Value::Object(headers));
    }
    filters::apply(context, around, levels, &mut draft);
    let answered = ["mocking", "redirect"].iter().any(|name| draft.plugins.has(name));
    draft.nowhere = draft.upstream.is_none() && !answered;
    draft
}

/// Redirects clients of HTTP, before any other action of the route. Returns whether no request reaches the action.
///
/// The findings of the action begin with number `action`; the ones before are of the conditions.
fn require_tls(levels: &Levels<'_>, manager: &Manager<'_>, action: usize, draft: &mut Draft) -> bool {
    let Some(required) = super::value::enumerated(&levels.host, "require_tls") else { return false };
    if required == "NONE" || manager.tls {
        return false;
    }
    // A proxy in front may have ended TLS.
    let by_header = !manager.uses_remote_address;
    let taken = draft.plugins.has("redirect") && (by_header || required == "EXTERNAL_ONLY");
    if !taken {
        let target = if manager.raw_targets { "${real_request_uri}" } else { "${normal_request_uri}" };
        let mut redirect = json!({"uri": format!("https://${{http_host}}{target}"), "ret_code": 301});
        if by_header {
            redirect["_meta"] = json!({"filter": [["http_x_forwarded_proto", "~=", "https"]]});
        }
        draft.plugins.set("redirect", redirect);
    }
    let unreachable = !taken && !by_header;
    if unreachable {
        let findings = draft.report.findings[action..].iter_mut();
        findings
            .filter(|finding| finding.severity == Behaviour)
            .for_each(|finding| finding.severity = Cosmetic);
    }
    if let Some(node) = levels.host.some("require_tls") {
        if taken {
            draft.report.behaviour(
                &node,
                "require_tls",
                "a route that redirects does so for clients of HTTP as well",
            );
        }
        if by_header && !taken {
            draft.report.behaviour(
                &node,
                format!("require_tls: {required}"),
                "`X-Forwarded-Proto: https` counts from the proxies in `apisix.trusted_addresses` alone: behind another one that ends TLS, clients are redirected without end; redirects have the route's `response_headers_to_add` as well",
            );
            draft.report.hint("name the proxies that end TLS in `apisix.trusted_addresses` of config.yaml");
        }
        if required == "EXTERNAL_ONLY" {
            draft.report.behaviour(
                &node,
                "require_tls: EXTERNAL_ONLY",
                "clients within the network are redirected as well",
            );
        }
    }
    unreachable
}

fn report_fields(node: &Node<'_>, report: &mut Report) {
    report.fields(
        node,
        &[
            ("tracing", Cosmetic, "routes are traced alike"),
            ("metadata", Cosmetic, "metadata of routes is not used"),
            ("stat_prefix", Cosmetic, "statistics have other names"),
            ("per_request_buffer_limit_bytes", Cosmetic, "bodies have the gateway's own bounds"),
            ("request_body_buffer_limit", Behaviour, "bodies have the gateway's own bounds"),
        ],
    );
}
