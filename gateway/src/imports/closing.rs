//! Closed routes: they match the same requests as before and serve none of them.
//!
//! A route that is left out instead would give its requests to a wider route.

use std::collections::{BTreeSet, HashSet};

use importers::{Finding, Import, Severity};
use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::Closed;

/// The kinds of resources that take traffic.
pub const CLOSABLE: [Kind; 2] = [Kind::Route, Kind::StreamRoute];

/// The fields of a route that decide which requests it takes, and those for people.
const KEPT: [&str; 18] = [
    "id",
    "name",
    "desc",
    "labels",
    "status",
    "uri",
    "uris",
    "host",
    "hosts",
    "methods",
    "remote_addr",
    "remote_addrs",
    "vars",
    "priority",
    "service_id",
    "server_addr",
    "server_port",
    "sni",
];

/// The routes that guards keep from being served, except those that `accepted` covers.
pub fn guarded(import: &Import, accepted: impl Fn(&Finding) -> bool) -> BTreeSet<Key> {
    let known: HashSet<&Key> = import.resources.iter().map(|one| &one.key).collect();
    let guards = import.findings.iter().filter(|finding| finding.severity == Severity::Guard);
    guards
        .filter(|finding| !accepted(finding))
        .flat_map(|finding| closed_by(import, &known, finding))
        .collect()
}

/// The routes that a guard keeps from being served. `known` are the keys of all resources.
pub fn closed_by(import: &Import, known: &HashSet<&Key>, finding: &Finding) -> BTreeSet<Key> {
    if finding.resources.is_empty() || finding.resources.iter().any(|key| !known.contains(key)) {
        let routes = import.resources.iter().map(|one| &one.key);
        return routes.filter(|key| CLOSABLE.contains(&key.kind)).cloned().collect();
    }
    let of = |key: &Key| match key.kind {
        Kind::Route | Kind::StreamRoute => vec![key.clone()],
        _ => users(import, key),
    };
    finding.resources.iter().flat_map(of).collect()
}

/// The routes that refer to a resource, directly or through others; all routes if none refers to it.
fn users(import: &Import, key: &Key) -> Vec<Key> {
    let mut reached: HashSet<&Key> = HashSet::from([key]);
    loop {
        let refers = |value: &Value, key: &Key| control::references::needed_by(key, value);
        let more: Vec<&Key> = import
            .resources
            .iter()
            .filter(|one| !reached.contains(&one.key))
            .filter(|one| refers(&one.value, &one.key).iter().any(|needed| reached.contains(needed)))
            .map(|one| &one.key)
            .collect();
        if more.is_empty() {
            break;
        }
        reached.extend(more);
    }
    let routes = import.resources.iter().map(|one| &one.key).filter(|key| CLOSABLE.contains(&key.kind));
    let users: Vec<Key> = routes.clone().filter(|key| reached.contains(key)).cloned().collect();
    if users.is_empty() { routes.cloned().collect() } else { users }
}

/// A route that takes the same requests and answers 503, or closes the connections of a stream.
pub fn closed(key: &Key, value: &Value, why: Closed) -> Value {
    let fields = value.as_object().cloned().unwrap_or_default();
    // An invalid condition is dropped: the route is then closed for more requests, never for fewer.
    let is_kept = |name: &str| KEPT.contains(&name) && (why == Closed::Guard || name != "vars");
    let mut kept: Map<String, Value> = fields.into_iter().filter(|(name, _)| is_kept(name)).collect();
    if key.kind == Kind::StreamRoute {
        kept.insert("plugins".to_owned(), json!({"ip-restriction": {"blacklist": ["0.0.0.0/0", "::/0"]}}));
        // It is never connected to.
        kept.insert("upstream".to_owned(), json!({"type": "roundrobin", "nodes": {"127.0.0.1:1": 1}}));
        return Value::Object(kept);
    }
    let reason = match why {
        Closed::Guard => "a guard of the imported file is not carried over and not accepted",
        Closed::Invalid => "the imported route is invalid",
    };
    let body = json!({"error_msg": "503 Service Temporarily Unavailable", "reason": reason}).to_string();
    let abort = json!({"http_status": 503, "body": body, "headers": {"Content-Type": "application/json"}});
    // Before all other plugins, of the service as well.
    let plugins = json!({"fault-injection": {"abort": abort, "_meta": {"priority": 100_000}}});
    kept.insert("plugins".to_owned(), plugins);
    Value::Object(kept)
}

#[cfg(test)]
mod tests {
    use importers::{Imported, Place};
    use model::Resource;
    use model::document::Position;

    use super::*;

    fn place() -> Place {
        Place { file: "f".into(), position: Position::START }
    }

    fn import(guards: &[&[Key]]) -> Import {
        let one = |kind, id: &str, value| Imported { key: Key::new(kind, id), value, place: place() };
        let finding = |resources: &&[Key]| Finding {
            place: place(),
            severity: Severity::Guard,
            construct: "acl".to_owned(),
            effect: "is missing".to_owned(),
            hint: None,
            resources: resources.to_vec(),
        };
        Import {
            resources: vec![
                one(Kind::Upstream, "u", json!({"nodes": {"a:1": 1}})),
                one(Kind::Service, "s", json!({"upstream_id": "u"})),
                one(Kind::Route, "a", json!({"uri": "/a", "service_id": "s"})),
                one(Kind::Route, "b", json!({"uri": "/b"})),
                one(Kind::StreamRoute, "c", json!({"server_port": 9100})),
            ],
            findings: guards.iter().map(finding).collect(),
            ..Import::default()
        }
    }

    fn closed_by(guards: &[&[Key]]) -> String {
        let closed = guarded(&import(guards), |_| false);
        closed.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_guard_closes_the_routes_that_depend_on_its_resources() {
        let key = Key::new;
        assert_eq!(closed_by(&[]), "");
        assert_eq!(closed_by(&[&[key(Kind::Route, "b")]]), "b");
        assert_eq!(closed_by(&[&[key(Kind::Service, "s")]]), "a");
        assert_eq!(closed_by(&[&[key(Kind::Upstream, "u")]]), "a");
        assert_eq!(closed_by(&[&[]]), "a b c");
        assert_eq!(closed_by(&[&[key(Kind::Route, "unknown")]]), "a b c");
        assert!(guarded(&import(&[&[]]), |_| true).is_empty());
    }

    #[test]
    fn a_closed_route_is_valid_and_matches_as_before() {
        let value = json!({
            "uri": "/a", "hosts": ["a.test"], "vars": [["arg_a", "==", "1"]], "priority": 7, "plugins": {"x": {}},
            "upstream_id": "u", "timeout": {"connect": 1, "send": 1, "read": 1},
        });
        let key = Key::new(Kind::Route, "a");
        let shut = closed(&key, &value, Closed::Guard);
        for name in ["uri", "hosts", "vars", "priority"] {
            assert_eq!(shut[name], value[name]);
        }
        assert!(shut.get("upstream_id").is_none() && shut.pointer("/plugins/x").is_none());
        assert!(Resource::parse(key.kind, &key.id, &shut).is_ok());
        assert!(closed(&key, &value, Closed::Invalid).get("vars").is_none());
        let stream = Key::new(Kind::StreamRoute, "c");
        let shut = closed(&stream, &json!({"server_port": 9100, "upstream_id": "u"}), Closed::Guard);
        assert_eq!(shut["server_port"], 9100);
        assert!(Resource::parse(stream.kind, &stream.id, &shut).is_ok());
    }
}
