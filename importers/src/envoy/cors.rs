//! The policy for requests from other sites.

use serde_json::json;

use super::draft::{Draft, Levels, override_of};
use super::manager::Manager;
use super::value::{Text, TextMatch, boolean, items, regex_text, string_match, text, whole};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// How the headers of the plugin differ from those of the filter.
const HEADERS: &str = "responses to allowed origins have `Vary: Origin`, without which caches would give them to others; Envoy leaves it out";

/// Adds the policy of a route, if the manager has the filter for it.
pub(super) fn apply(
    manager: &Manager<'_>,
    levels: &Levels<'_>,
    action: Option<&Node<'_>>,
    draft: &mut Draft,
) {
    let of_action = action.and_then(|action| action.some("cors"));
    let of_host = levels.host.some("cors");
    let found = of_action
        .or_else(|| override_of(levels, &["envoy.filters.http.cors", "envoy.cors", "cors"]))
        .or(of_host);
    let Some(policy) = found else { return };
    let _ = policy.get("@type");
    if !manager.has_cors {
        policy.whole();
        draft.report.cosmetic(
            &policy,
            "cors",
            "no effect, as the filter `envoy.filters.http.cors` is not listed",
        );
        return;
    }
    if boolean(&policy, "enabled") == Some(false) {
        policy.whole();
        return;
    }
    if let Some(share) = policy.some("filter_enabled") {
        match super::value::percent(&share) {
            Some(percent) if percent <= 0.0 => {
                policy.whole();
                return;
            }
            Some(percent) if percent < 100.0 => {
                draft.report.behaviour(&share, "cors.filter_enabled", "the policy applies to all requests");
            }
            _ => {}
        }
    }
    let Some((any, patterns)) = origins(&policy) else {
        draft.report.cosmetic(&policy, "cors", "no origin is allowed, so the policy has no effect");
        policy.whole();
        return;
    };
    let mut settings =
        json!({"allow_methods": "", "allow_headers": "", "max_age": -1, "preflight_headers_only": true});
    let credentials = boolean(&policy, "allow_credentials") == Some(true);
    for name in ["allow_methods", "allow_headers"] {
        if let Some(list) = text(&policy, name) {
            settings[name] = json!(if list == "*" { "**" } else { list });
        }
    }
    if let Some(list) = text(&policy, "expose_headers").filter(|list| !(credentials && *list == "*")) {
        settings["expose_headers"] = json!(list);
    }
    if let Some(seconds) = policy.some("max_age").and_then(|age| age.u64()) {
        settings["max_age"] = json!(seconds);
    }
    if credentials {
        settings["allow_credential"] = json!(true);
    }
    let from = if any {
        json!(["http_origin", "~~", "^"])
    } else {
        json!(["http_origin", "~~", patterns.join("|")])
    };
    settings["allow_origins"] = json!("**");
    if !any {
        settings["allow_origins_by_regex"] = json!(patterns);
    }
    settings["_meta"] = json!({"filter": [from]});
    draft.plugins.set("cors", settings);
    draft.report.behaviour(&policy, "cors", HEADERS);
    draft.report.fields(
        &policy,
        &[
            ("shadow_enabled", Cosmetic, "the policy is not tried out"),
            ("allow_private_network_access", Behaviour, "preflights for private networks are not allowed"),
            ("forward_not_matching_preflights", Behaviour, "preflights of other origins are forwarded"),
        ],
    );
}

/// Whether any origin is allowed, and the patterns of those that are.
fn origins(policy: &Node<'_>) -> Option<(bool, Vec<String>)> {
    let mut all: Vec<TextMatch> =
        items(policy, "allow_origin_string_match").iter().filter_map(string_match).collect();
    all.extend(items(policy, "allow_origin").iter().filter_map(Node::str).map(TextMatch::exact));
    all.extend(
        items(policy, "allow_origin_regex")
            .iter()
            .filter_map(regex_text)
            .map(|regex| TextMatch::pattern(whole(&regex))),
    );
    if all.is_empty() {
        return None;
    }
    Some((all.iter().any(takes_asterisk), all.iter().map(TextMatch::regex).collect()))
}

/// Envoy allows any origin if the matcher takes the text `*`.
fn takes_asterisk(matcher: &TextMatch) -> bool {
    match &matcher.text {
        Text::Exact(text) => text == "*",
        Text::Pattern(pattern) => {
            let inner = pattern.trim_start_matches('^').trim_end_matches('$');
            let inner = inner.strip_prefix("(?:").and_then(|inner| inner.strip_suffix(')')).unwrap_or(inner);
            inner
                .split('|')
                .any(|one| ["", "\\*", "*", ".*", ".+", ".", ".?", "[*]", "(.*)", ".*?"].contains(&one))
        }
    }
}
