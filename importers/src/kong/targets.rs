//! Kong's upstreams: targets, balancing and health checks.

use serde_json::{Map, Value, json};

use super::Output;
use super::entities::{Entity, Upstream};
use crate::finding::Severity;
use crate::node::Node;

/// The nodes, the balancer and the checks of an upstream.
pub(super) fn members(upstream: &Upstream<'_>, out: &mut Output) -> Map<String, Value> {
    let mut value = Map::new();
    let mut nodes: Vec<Value> = Vec::new();
    for node in &upstream.targets {
        let entity = Entity::new(node.clone());
        let Some(target) = entity.text("target") else { continue };
        let weight = entity.u64("weight").unwrap_or(100);
        let (host, port) = split(&target);
        match is_host(host) {
            true => nodes.push(json!({"host": host, "port": port.unwrap_or(8000), "weight": weight})),
            false => out.behaviour(node, "no host, so it gets no requests"),
        }
    }
    value.insert("nodes".to_owned(), Value::Array(nodes));
    balancer(&upstream.entity, &mut value, out);
    for name in ["slots", "use_srv_name"] {
        if let Some(node) = upstream.entity.get(name)
            && name == "use_srv_name"
            && node.bool() == Some(true)
        {
            out.behaviour(&node, "not supported: `Host` is the target's name");
        }
    }
    if let Some(node) = upstream.entity.get("healthchecks") {
        checks(&Entity::new(node), &mut value, out);
    }
    value
}

/// Host and port of a target.
fn split(target: &str) -> (&str, Option<u16>) {
    match target.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.starts_with('[')) => {
            (host.trim_matches(['[', ']']), port.parse().ok())
        }
        _ => (target.trim_matches(['[', ']']), None),
    }
}

/// Whether a node may have this host.
pub(super) fn is_host(host: &str) -> bool {
    let name = |host: &str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    !host.is_empty() && (name(host) || host.parse::<std::net::IpAddr>().is_ok())
}

fn balancer(entity: &Entity<'_>, value: &mut Map<String, Value>, out: &mut Output) {
    let hash = entity.text("hash_on").filter(|hash| hash != "none");
    let algorithm = entity.text("algorithm").unwrap_or_else(|| match hash {
        Some(_) => "consistent-hashing".to_owned(),
        None => "round-robin".to_owned(),
    });
    let kind = match algorithm.as_str() {
        "consistent-hashing" if hash.is_some() => "chash",
        "least-connections" => "least_conn",
        "latency" => "ewma",
        "round-robin" | "consistent-hashing" => "roundrobin",
        _ => {
            if let Some(node) = entity.get("algorithm") {
                out.behaviour(&node, format!("`{algorithm}` is not supported; targets take turns"));
            }
            "roundrobin"
        }
    };
    value.insert("type".to_owned(), json!(kind));
    let read = |name: &str| entity.text(name);
    let (header, cookie) = (read("hash_on_header"), read("hash_on_cookie"));
    let (argument, path) = (read("hash_on_query_arg"), read("hash_on_cookie_path"));
    if kind == "chash" {
        let (on, key) = match hash.as_deref() {
            Some("consumer") => ("consumer", None),
            Some("header") => ("header", header),
            Some("cookie") => ("cookie", cookie),
            Some("path") => ("vars", Some("uri".to_owned())),
            Some("query_arg") => ("vars", argument.map(|name| format!("arg_{name}"))),
            _ => ("vars", Some("remote_addr".to_owned())),
        };
        if let (Some("uri_capture"), Some(node)) = (hash.as_deref(), entity.get("hash_on_uri_capture")) {
            out.behaviour(&node, "not supported: clients are distinguished by their address");
        }
        if let (Some("cookie"), Some(node)) = (hash.as_deref(), entity.get("hash_on")) {
            out.behaviour(
                &node,
                "the cookie is used but not set: clients without it are distinguished by nothing else",
            );
        }
        value.insert("hash_on".to_owned(), json!(on));
        if on != "consumer" {
            let fits = |key: &String| key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
            match key.filter(fits) {
                Some(key) => value.insert("key".to_owned(), json!(key)),
                None => {
                    value.insert("hash_on".to_owned(), json!("vars"));
                    value.insert("key".to_owned(), json!("remote_addr"))
                }
            };
        }
        if let Some(node) = entity.get("hash_fallback").filter(|node| node.str() != Some("none")) {
            out.behaviour(
                &node,
                "not supported: requests without the hashed value are not hashed by another one",
            );
        }
    }
    drop(path);
    for name in [
        "hash_fallback",
        "hash_fallback_header",
        "hash_fallback_query_arg",
        "hash_fallback_uri_capture",
        "hash_on_uri_capture",
        "sticky_sessions_cookie",
        "sticky_sessions_cookie_path",
    ] {
        entity.get(name).map(|node| node.whole());
    }
}

/// The parts of a health check's configuration.
struct Part<'a>(Option<Entity<'a>>);

impl<'a> Part<'a> {
    fn of(parent: &Part<'a>, name: &str) -> Part<'a> {
        Part(parent.0.as_ref().and_then(|parent| parent.get(name)).map(Entity::new))
    }

    fn u64(&self, name: &str) -> u64 {
        self.0.as_ref().and_then(|entity| entity.u64(name)).unwrap_or(0)
    }

    fn get(&self, name: &str) -> Option<Node<'a>> {
        self.0.as_ref()?.get(name)
    }

    fn statuses(&self, value: &mut Value) {
        let list: Vec<u64> = self
            .get("http_statuses")
            .map(|node| node.items())
            .unwrap_or_default()
            .iter()
            .filter_map(|node| node.u64())
            .filter(|status| (200..600).contains(status))
            .collect();
        if !list.is_empty() {
            value["http_statuses"] = json!(list);
        }
    }
}

fn checks(entity: &Entity<'_>, value: &mut Map<String, Value>, out: &mut Output) {
    let top = Part(Some(entity.clone()));
    let active = active(&Part::of(&top, "active"), out);
    let passive = passive(&Part::of(&top, "passive"), out);
    if let Some(node) = entity.get("threshold").filter(|node| node.f64().unwrap_or(0.0) > 0.0) {
        out.behaviour(&node, "not supported: an upstream serves as long as one of its nodes is healthy");
    }
    match (active, passive) {
        (Some(active), Some((passive, ..))) => {
            value.insert("checks".to_owned(), json!({"active": active, "passive": passive}))
        }
        (Some(active), None) => value.insert("checks".to_owned(), json!({ "active": active })),
        (None, Some((_, failures, node))) => {
            out.report(Severity::Behaviour, &node, "without active checks a node is taken out after failures in a row, and comes back after 30 seconds instead of by hand");
            value.insert("sluice".to_owned(), json!({"outlier": {"consecutive_failures": failures}}))
        }
        (None, None) => None,
    };
}

/// A threshold; 0, which never acts, is the largest one.
fn threshold(number: u64) -> u64 {
    if number == 0 { 254 } else { number.min(254) }
}

fn active(part: &Part<'_>, out: &mut Output) -> Option<Value> {
    let (healthy, unhealthy) = (Part::of(part, "healthy"), Part::of(part, "unhealthy"));
    let (up, down) = (healthy.u64("interval"), unhealthy.u64("interval"));
    let counters = ["successes", "tcp_failures", "http_failures", "timeouts", "http_statuses"];
    for name in counters {
        for part in [&healthy, &unhealthy] {
            part.get(name).map(|node| node.whole());
        }
    }
    let text = |name: &str| part.get(name).and_then(|node| node.text());
    let kind = match text("type").as_deref() {
        Some("https") => "https",
        Some("tcp" | "grpc" | "grpcs") => "tcp",
        _ => "http",
    };
    let (path, sni) = (text("http_path"), part.get("https_sni"));
    let verify = part.get("https_verify_certificate").and_then(|node| node.bool());
    let (timeout, concurrency) = (part.u64("timeout"), part.u64("concurrency"));
    let headers = part.get("headers").map(|node| node.members()).unwrap_or_default();
    let headers: Vec<String> = headers
        .iter()
        .flat_map(|(name, node)| node.texts().into_iter().map(move |text| format!("{name}: {text}")))
        .collect();
    if up == 0 && down == 0 {
        return None;
    }
    if let Some(node) =
        part.get("type").filter(|node| node.str().is_some_and(|kind| kind.starts_with("grpc")))
    {
        out.behaviour(&node, "checks by gRPC are not supported; connections are checked");
    }
    if let Some(node) = sni {
        out.behaviour(&node, "not supported: the server name of checks is the node's host");
    }
    let mut value = json!({
        "type": kind,
        "healthy": {"interval": if up > 0 { up } else { down }, "successes": threshold(healthy.u64("successes"))},
        "unhealthy": {
            "interval": if down > 0 { down } else { up },
            "http_failures": threshold(unhealthy.u64("http_failures")),
            "tcp_failures": threshold(unhealthy.u64("tcp_failures")),
            "timeouts": threshold(unhealthy.u64("timeouts")),
        },
    });
    healthy.statuses(&mut value["healthy"]);
    unhealthy.statuses(&mut value["unhealthy"]);
    let numbers = [("timeout", timeout), ("concurrency", concurrency)];
    for (name, number) in numbers.into_iter().filter(|(_, number)| *number > 0) {
        value[name] = json!(number);
    }
    if let Some(path) = path {
        value["http_path"] = json!(path);
    }
    if verify == Some(false) {
        value["https_verify_certificate"] = json!(false);
    }
    if !headers.is_empty() {
        value["req_headers"] = json!(headers);
    }
    Some(value)
}

fn passive<'a>(part: &Part<'a>, out: &mut Output) -> Option<(Value, u64, Node<'a>)> {
    let node = part.0.as_ref()?.node.clone();
    let (healthy, unhealthy) = (Part::of(part, "healthy"), Part::of(part, "unhealthy"));
    let kind = match part.get("type").and_then(|node| node.text()).as_deref() {
        Some("https") => "https",
        Some("tcp" | "grpc" | "grpcs") => "tcp",
        _ => "http",
    };
    let counter = |name: &str| unhealthy.u64(name).min(254);
    let failures = ["http_failures", "tcp_failures", "timeouts"].map(counter);
    let successes = healthy.u64("successes").min(254);
    let mut value = json!({
        "type": kind,
        "healthy": {"successes": successes},
        "unhealthy": {"http_failures": failures[0], "tcp_failures": failures[1], "timeouts": failures[2]},
    });
    healthy.statuses(&mut value["healthy"]);
    unhealthy.statuses(&mut value["unhealthy"]);
    let least = failures.into_iter().filter(|count| *count > 0).min();
    if least.is_none() && successes > 0 {
        out.cosmetic(&node, "has no effect without a limit of failures");
    }
    least.map(|least| (value, least, node))
}
