//! Upstreams with unhealthy or ejected servers, in short, for the status.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use control::health::Checker;
use serde_json::{Value, json};

/// Upstreams that are listed.
const MOST_UPSTREAMS: usize = 50;
/// Servers of one upstream that are listed.
const MOST_SERVERS: usize = 10;

/// The upstreams that have such servers, those first that have no others, and how many upstreams there are.
pub(crate) fn listed(checkers: &[Checker]) -> (Vec<Value>, usize) {
    let mut found: Vec<Unhealthy> = checkers.iter().filter_map(Unhealthy::of).collect();
    // The order among equals stays that of the resources.
    found.sort_by_key(|one| one.unhealthy < one.servers);
    let total = found.len();
    (found.into_iter().take(MOST_UPSTREAMS).map(Unhealthy::into_json).collect(), total)
}

struct Unhealthy {
    key: String,
    servers: usize,
    unhealthy: usize,
    /// The first of them, each with the reason where it is known.
    listed: Vec<(SocketAddr, String)>,
}

impl Unhealthy {
    /// `None` if all servers are healthy.
    fn of(checker: &Checker) -> Option<Unhealthy> {
        // An address may be checked under several names, and be ejected, too.
        let mut servers: BTreeMap<SocketAddr, Option<String>> = BTreeMap::new();
        for node in &checker.nodes {
            let failed = node.last_error.as_ref().map(|probe| probe.outcome.clone());
            let why = (!node.usable).then(|| failed.unwrap_or_else(|| node.status.to_owned()));
            let known = servers.entry(node.addr).or_default();
            *known = known.take().or(why);
        }
        for server in &checker.servers {
            let why = server.ejected.map(|reason| format!("ejected: {reason}"));
            let known = servers.entry(server.addr).or_default();
            *known = known.take().or(why);
        }
        let total = servers.len();
        let bad: Vec<_> = servers.into_iter().filter_map(|(addr, why)| Some((addr, why?))).collect();
        let unhealthy = bad.len();
        (unhealthy > 0).then(|| Unhealthy {
            key: checker.key.to_string(),
            servers: total,
            unhealthy,
            listed: bad.into_iter().take(MOST_SERVERS).collect(),
        })
    }

    fn into_json(self) -> Value {
        let Unhealthy { key, servers, unhealthy, listed } = self;
        let listed = listed.into_iter().map(|(addr, why)| json!({ "server": addr.to_string(), "why": why }));
        json!({ "key": key, "servers": servers, "unhealthy": unhealthy, "list": listed.collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use control::health::{Counter, NodeReport, Server};
    use model::{Key, Kind};

    use super::*;

    fn node(addr: &str, usable: bool) -> NodeReport {
        NodeReport {
            addr: addr.parse().unwrap(),
            hostname: String::new(),
            host_header: None,
            status: if usable { "healthy" } else { "unhealthy" },
            usable,
            counter: Counter { success: 0, http_failure: 0, tcp_failure: 0, timeout_failure: 0 },
            probes: Vec::new(),
            last_error: None,
        }
    }

    fn checker(id: &str, nodes: Vec<NodeReport>, servers: Vec<Server>) -> Checker {
        Checker { key: Key::new(Kind::Upstream, id), kind: None, nodes, servers, limit: None }
    }

    #[test]
    fn upstreams_without_a_healthy_server_come_first() {
        let ejected = |addr: &str, ejected| Server {
            addr: addr.parse().unwrap(),
            ejected,
            remaining: None,
            share: 1.0,
        };
        let (a, b) = ("127.0.0.1:1", "127.0.0.1:2");
        let checkers = [
            checker("healthy", vec![node(a, true), node(b, true)], vec![ejected(a, None)]),
            checker("partly", vec![node(a, false), node(b, true)], Vec::new()),
            checker(
                "all",
                vec![node(a, false)],
                vec![ejected(a, Some("latency")), ejected(b, Some("latency"))],
            ),
        ];
        let (list, total) = listed(&checkers);
        let expected = [
            json!({"key": "upstreams/all", "servers": 2, "unhealthy": 2, "list": [
                {"server": a, "why": "unhealthy"}, {"server": b, "why": "ejected: latency"}]}),
            json!({"key": "upstreams/partly", "servers": 2, "unhealthy": 1, "list": [
                {"server": a, "why": "unhealthy"}]}),
        ];
        assert_eq!((list.as_slice(), total), (&expected[..], 2));
    }

    #[test]
    fn lists_are_bounded() {
        let nodes = |count| (1..=count).map(|port| node(&format!("127.0.0.1:{port}"), false)).collect();
        let checkers: Vec<Checker> = (0..MOST_UPSTREAMS + 5)
            .map(|id| checker(&id.to_string(), nodes(MOST_SERVERS + 2), Vec::new()))
            .collect();
        let (list, total) = listed(&checkers);
        assert_eq!((list.len(), total), (MOST_UPSTREAMS, MOST_UPSTREAMS + 5));
        assert_eq!(list[0]["list"].as_array().map(Vec::len), Some(MOST_SERVERS));
        assert_eq!(list[0]["unhealthy"], MOST_SERVERS + 2);
    }
}
