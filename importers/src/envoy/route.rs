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
    of_manager(around.manager, &mut draft);
    match &around.manager.traces {
        Some(_) => {
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
    if !headers.is_empty() {
        draft.plugins.set_member("response-rewrite", "headers", Value::Object(headers));
    }
    filters::apply(context, around, Some(levels), &mut draft);
    let answered = ["mocking", "redirect"].iter().any(|name| draft.plugins.has(name));
    draft.nowhere = draft.upstream.is_none() && !answered;
    draft
}

/// Sets the plugins that all routes of a connection manager have.
pub(super) fn of_manager(manager: &Manager<'_>, draft: &mut Draft) {
    if manager.client_is_forwarded {
        let all = json!(["0.0.0.0/0", "::/0"]);
        let real = json!({"source": "http_x_forwarded_for", "trusted_addresses": all});
        draft.plugins.set("real-ip", real);
    }
    if let Some((name, settings)) = &manager.traces {
        draft.plugins.set(name, settings.clone());
    }
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
