//! `rbac`: rules about who may do what.

use serde_json::{Map, Value, json};

use super::context::Report;
use super::matching::{header_condition, joined, negated, template_pattern};
use super::plugins::refusal;
use super::value::{enumerated, items, network, number, string_match, text};
use crate::finding::Severity::Cosmetic;
use crate::node::Node;

/// A condition that holds for every request.
fn always() -> Value {
    json!(["request_method", "~~", "^"])
}

/// Reads the filter: a rule that refuses requests, which the policies allow or deny.
pub(super) fn read(config: &Node<'_>, report: &mut Report) -> Map<String, Value> {
    report.fields(
        config,
        &[
            ("shadow_rules", Cosmetic, "rules that only count have no effect"),
            ("shadow_matcher", Cosmetic, "rules that only count have no effect"),
            ("shadow_rules_stat_prefix", Cosmetic, "statistics have other names"),
            ("rules_stat_prefix", Cosmetic, "statistics have other names"),
            ("track_per_rule_stats", Cosmetic, "statistics have other names"),
        ],
    );
    if let Some(matcher) = config.some("matcher") {
        matcher.whole();
        report.guard(&matcher, "rbac.matcher", "rules as a tree of matchers are not carried over");
    }
    let Some(rules) = config.some("rules") else { return Map::new() };
    report.fields(&rules, &[("audit_logging_options", Cosmetic, "decisions are not logged apart")]);
    let action = enumerated(&rules, "action").unwrap_or_else(|| "ALLOW".to_owned());
    let mut any = Vec::new();
    let policies = rules.some("policies").map(|policies| policies.members()).unwrap_or_default();
    for (name, policy) in policies {
        match self::policy(&policy) {
            Ok(condition) => any.push(condition),
            Err(problem) => {
                policy.whole();
                report.guard(
                    &policy,
                    format!("rbac.policies.{name}"),
                    format!("the policy is not carried over: {problem}"),
                );
            }
        }
    }
    match action.as_str() {
        "ALLOW" if any.is_empty() => refusal(json!([always()]), 403),
        "ALLOW" => refusal(json!([negated(joined("OR", any))]), 403),
        "DENY" if any.is_empty() => Map::new(),
        "DENY" => refusal(json!([joined("OR", any)]), 403),
        _ => Map::new(),
    }
}

fn policy(policy: &Node<'_>) -> Result<Value, String> {
    for name in ["condition", "checked_condition", "cel_config"] {
        if policy.some(name).is_some() {
            return Err(format!("`{name}` is not evaluated"));
        }
    }
    let permissions: Result<Vec<_>, _> = items(policy, "permissions").iter().map(term).collect();
    let principals: Result<Vec<_>, _> = items(policy, "principals").iter().map(term).collect();
    let or = |list: Vec<Value>| if list.is_empty() { negated(always()) } else { joined("OR", list) };
    Ok(joined("AND", vec![or(permissions?), or(principals?)]))
}

/// A permission or principal.
fn term(node: &Node<'_>) -> Result<Value, String> {
    let several = |list: &Node<'_>, name: &str, operator: &str| {
        let terms: Result<Vec<_>, _> = items(list, name).iter().map(term).collect();
        terms.map(|terms| joined(operator, terms))
    };
    for (name, operator, member) in [
        ("and_rules", "AND", "rules"),
        ("or_rules", "OR", "rules"),
        ("and_ids", "AND", "ids"),
        ("or_ids", "OR", "ids"),
    ] {
        if let Some(list) = node.some(name) {
            return several(&list, member, operator);
        }
    }
    if let Some(any) = node.some("any") {
        return Ok(if any.bool() == Some(false) { negated(always()) } else { always() });
    }
    if let Some(inner) = node.any(&["not_rule", "not_id"]) {
        return term(&inner).map(negated);
    }
    if let Some(header) = node.some("header") {
        return header_condition(&header);
    }
    if let Some(path) = node.some("url_path") {
        let matcher =
            path.some("path").and_then(|path| string_match(&path)).ok_or("the path is not readable")?;
        return Ok(matcher.on("uri"));
    }
    if let Some(template) = node.some("uri_template") {
        let config = super::value::extension(&template).config.ok_or("the template is missing")?;
        let pattern =
            text(&config, "path_template").map(template_pattern).ok_or("the template is missing")?;
        return Ok(json!(["uri", "~~", format!("^{pattern}$")]));
    }
    for (name, variable) in [
        ("remote_ip", "remote_addr"),
        ("source_ip", "remote_addr"),
        ("direct_remote_ip", "realip_remote_addr"),
        ("destination_ip", "server_addr"),
    ] {
        if let Some(range) = node.some(name) {
            let network = network(&range).ok_or("the network is not readable")?;
            return Ok(json!([variable, "ipmatch", [network]]));
        }
    }
    if let Some(port) = number(node, "destination_port") {
        return Ok(json!(["server_port", "==", port.to_string()]));
    }
    if let Some(range) = node.some("destination_port_range") {
        let bound = |name: &str| number(&range, name).unwrap_or_default();
        return Ok(json!(["AND", ["server_port", ">=", bound("start")], ["server_port", "<", bound("end")]]));
    }
    if let Some(name) = node.some("requested_server_name") {
        return string_match(&name)
            .map(|matcher| matcher.on("ssl_server_name"))
            .ok_or_else(|| "the name is not readable".to_owned());
    }
    if let Some(authenticated) = node.get("authenticated") {
        if authenticated.some("principal_name").is_some() {
            return Err("names in certificates of clients are not compared".to_owned());
        }
        return Ok(json!(["ssl_client_verify", "==", "SUCCESS"]));
    }
    let what = node.names().next().unwrap_or("nothing");
    Err(format!("`{what}` has no counterpart"))
}
