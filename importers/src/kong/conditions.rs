//! The conditions of routes that are no hosts, paths or methods, as expressions on variables.

use serde_json::{Value, json};

use super::Output;
use super::entities::{Entity, Route};
use super::order::Host;
use super::paths::{PathRule, anchored, escape};
use crate::node::Node;

/// Conditions that all must hold.
pub(super) type Conditions = Vec<Value>;

/// Of several conditions one must hold.
pub(super) fn any_of(mut conditions: Vec<Value>) -> Value {
    if conditions.len() == 1 {
        return conditions.remove(0);
    }
    conditions.insert(0, "OR".into());
    Value::Array(conditions)
}

/// The conditions of a route on headers, server names, addresses and odd methods and hosts.
pub(super) fn of_route(route: &Route<'_>, out: &mut Output) -> Conditions {
    let mut all = Conditions::new();
    if !route.methods.iter().all(|method| is_known(method)) {
        all.push(json!(["request_method", "in", upper(&route.methods)]));
    }
    if hosts(route).is_none() {
        all.push(any_of(route.hosts.iter().map(|host| host_condition(host)).collect()));
    }
    for (name, values) in &route.headers {
        all.push(header(name, values));
    }
    if !route.snis.is_empty() {
        let names: Vec<&str> = route.snis.iter().map(|sni| sni.trim_end_matches('.')).collect();
        all.push(json!(["OR", ["scheme", "~=", "https"], ["ssl_server_name", "in", names]]));
    }
    if !route.is_stream() {
        all.extend(addresses(&route.sources, "remote_addr", "remote_port", out));
        all.extend(addresses(&route.destinations, "server_addr", "server_port", out));
    }
    all
}

/// The condition that a path matches one of these.
pub(super) fn of_paths(paths: &[&PathRule]) -> Option<Value> {
    if !paths.iter().any(|path| path.needs_condition()) {
        return None;
    }
    let patterns: Vec<String> = paths.iter().map(|path| path.pattern()).collect();
    let pattern = match patterns.as_slice() {
        [pattern] => anchored(pattern),
        _ => format!("^(?:{})", patterns.join("|")),
    };
    Some(json!(["uri", "~~", pattern]))
}

/// The hosts of a route as the router has them; none if it cannot have them all.
pub(super) fn hosts(route: &Route<'_>) -> Option<Vec<Host>> {
    if route.hosts.is_empty() {
        return Some(vec![Host::Any]);
    }
    let valid = |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b));
    let host = |host: &String| match host.strip_prefix('*') {
        Some(suffix) if valid(suffix) && !suffix.contains(':') && !suffix.is_empty() => {
            Some(Host::Suffix(suffix.to_owned()))
        }
        None if valid(host) => Some(Host::Exact(host.clone())),
        _ => None,
    };
    route.hosts.iter().map(host).collect()
}

fn host_condition(host: &str) -> Value {
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let pattern = name.split('*').map(escape).collect::<Vec<_>>().join(".+");
    match port {
        "" => json!(["host", "~*", format!("^{pattern}$")]),
        port => json!(["http_host", "~*", format!("^{pattern}:{port}$")]),
    }
}

fn header(name: &str, values: &[String]) -> Value {
    let variable = format!("http_{}", name.replace('-', "_"));
    if let [value] = values
        && let Some(pattern) = value.strip_prefix("~*")
    {
        return json!([variable, "~*", pattern]);
    }
    let values: Vec<String> = values.iter().map(|value| escape(value)).collect();
    match values.as_slice() {
        [value] => json!([variable, "~*", format!("^{value}$")]),
        _ => json!([variable, "~*", format!("^(?:{})$", values.join("|"))]),
    }
}

/// The condition on addresses and ports of one end.
fn addresses(nodes: &[Node<'_>], address: &str, port: &str, out: &mut Output) -> Option<Value> {
    let mut any = Vec::new();
    for node in nodes {
        let entity = Entity::new(node.clone());
        let mut both = vec![Value::from("AND")];
        both.extend(entity.text("ip").map(|ip| json!([address, "ipmatch", [ip]])));
        both.extend(entity.u64("port").map(|number| json!([port, "==", number])));
        match both.len() {
            1 => out.cosmetic(node, "an empty entry has no effect"),
            2 => any.extend(both.pop()),
            _ => any.push(Value::Array(both)),
        }
    }
    (!any.is_empty()).then(|| any_of(any))
}

/// The methods in upper case.
pub(super) fn upper(methods: &[String]) -> Vec<String> {
    let mut upper: Vec<String> = methods.iter().map(|method| method.to_ascii_uppercase()).collect();
    upper.dedup();
    let mut seen = std::collections::HashSet::new();
    upper.retain(|method| seen.insert(method.clone()));
    upper
}

/// Whether a route may name this method.
pub(super) fn is_known(method: &str) -> bool {
    let known = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];
    known.iter().any(|name| name.eq_ignore_ascii_case(method))
}
