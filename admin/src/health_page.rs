//! Results of health checks, in APISIX's form: JSON, and a page for browsers.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use control::health::{Checker, NodeReport, Probe, Server};
use model::Kind;
use model::key::DEFAULT_PREFIX;
use model::upstream::CheckType;
use serde_json::{Value, json};

/// Options of the report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// Whether resources come from a store, so that their names begin with its prefix.
    pub stored: bool,
    /// Whether to show the last probes, which APISIX does not have.
    pub details: bool,
}

/// The kinds of resources with checks, in APISIX's order.
pub(crate) const KINDS: [Kind; 4] = [Kind::Route, Kind::StreamRoute, Kind::Service, Kind::Upstream];

/// Returns all health checks; an empty object if there are none, as Lua prints an empty table.
pub(crate) fn all(checkers: &[Checker], shown: Shown) -> Value {
    let ordered = ordered(checkers, shown);
    if ordered.is_empty() {
        return json!({});
    }
    ordered.into_iter().map(|checker| one(checker, shown)).collect()
}

/// Returns the resources with checks outside the settings of plugins, as APISIX does; with details, all.
pub(crate) fn ordered(checkers: &[Checker], shown: Shown) -> Vec<&Checker> {
    let shows = move |one: &Checker| shown.details || one.kind.is_some() && !one.key.id.contains('#');
    let of = |kind| checkers.iter().filter(move |one| one.key.kind == kind && shows(one));
    KINDS.into_iter().flat_map(of).collect()
}

pub(crate) fn one(checker: &Checker, shown: Shown) -> Value {
    let nodes: Vec<Value> = checker.nodes.iter().map(|it| node(it, shown)).collect();
    // As Lua prints an empty table.
    let nodes = if nodes.is_empty() { json!({}) } else { Value::Array(nodes) };
    let mut value = json!({ "name": name(checker, shown), "type": kind(checker.kind), "nodes": nodes });
    if shown.details && !checker.servers.is_empty() {
        value["servers"] = checker.servers.iter().map(server).collect();
    }
    if shown.details
        && let Some(limit) = checker.limit
    {
        value["adaptive_limit"] = limit.into();
    }
    value
}

fn server(server: &Server) -> Value {
    json!({
        "ip": server.addr.ip().to_string(),
        "port": server.addr.port(),
        "ejected": server.ejected,
        "seconds_left": server.remaining.map(|left| left.as_secs()),
        "share": (server.share * 100.0).round() / 100.0,
    })
}

fn kind(kind: Option<CheckType>) -> &'static str {
    match kind {
        Some(CheckType::Http) => "http",
        Some(CheckType::Https) => "https",
        Some(CheckType::Tcp) => "tcp",
        None => "none",
    }
}

fn name(checker: &Checker, shown: Shown) -> String {
    checker.key.path(if shown.stored { DEFAULT_PREFIX } else { "" })
}

fn node(node: &NodeReport, shown: Shown) -> Value {
    let counter = node.counter;
    let mut value = json!({
        "ip": node.addr.ip().to_string(),
        "port": node.addr.port(),
        "hostname": node.hostname,
        "status": node.status,
        "counter": {
            "success": counter.success,
            "http_failure": counter.http_failure,
            "tcp_failure": counter.tcp_failure,
            "timeout_failure": counter.timeout_failure,
        },
    });
    if let Some(host) = &node.host_header {
        value["hostheader"] = host.as_str().into();
    }
    if shown.details {
        value["last_error"] = node.last_error.as_ref().map(probe).unwrap_or_default();
        value["probes"] = node.probes.iter().rev().map(probe).collect();
    }
    value
}

fn probe(probe: &Probe) -> Value {
    let at = probe.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Times in seconds, with milliseconds.
    let seconds = |time: std::time::Duration| (time.as_secs_f64() * 1000.0).round() / 1000.0;
    json!({ "at": seconds(at), "took": seconds(probe.took), "outcome": probe.outcome })
}

/// A table with APISIX's columns, and the last failed probe behind them.
pub(crate) fn page(checkers: &[&Checker], shown: Shown) -> String {
    let mut rows = String::new();
    let nodes = checkers.iter().flat_map(|checker| checker.nodes.iter().map(move |node| (checker, node)));
    for (index, (checker, node)) in nodes.enumerate() {
        let counter = node.counter;
        let last = node.last_error.as_ref().map_or("", |probe| &probe.outcome);
        let _ = write!(
            rows,
            "  <tr{}>\n    <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n    \
             <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n    <td>{}</td>\n  </tr>\n",
            if node.usable { "" } else { " bgcolor=\"#FF0000\"" },
            index + 1,
            escaped(&name(checker, shown)),
            kind(checker.kind),
            node.addr,
            node.status,
            counter.success,
            counter.tcp_failure,
            counter.http_failure,
            counter.timeout_failure,
            escaped(last),
        );
    }
    format!(
        "<html xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n  <title>Upstream health</title>\n</head>\n<body>\n\
         <h1>Upstream health</h1>\n\
         <table style=\"background-color:white\" cellspacing=\"0\" cellpadding=\"3\" border=\"1\">\n  \
         <tr bgcolor=\"#C0C0C0\">\n    <th>Index</th>\n    <th>Upstream</th>\n    <th>Check type</th>\n    \
         <th>Host</th>\n    <th>Status</th>\n    <th>Success counts</th>\n    <th>TCP failures</th>\n    \
         <th>HTTP failures</th>\n    <th>Timeouts</th>\n    <th>Last failed probe</th>\n  </tr>\n{rows}</table>\n\
         </body>\n</html>\n"
    )
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use control::health::Counter;
    use model::Key;

    use super::*;

    #[test]
    fn texts_of_servers_and_operators_are_escaped() {
        let probe = Probe {
            at: SystemTime::UNIX_EPOCH,
            took: Duration::from_millis(2),
            outcome: "<script>alert(1)</script>".to_owned(),
        };
        let checker = Checker {
            key: Key::new(Kind::Route, "1"),
            kind: Some(CheckType::Http),
            servers: Vec::new(),
            limit: None,
            nodes: vec![NodeReport {
                addr: "[::1]:80".parse().unwrap(),
                hostname: "::1".to_owned(),
                host_header: None,
                status: "unhealthy",
                usable: false,
                counter: Counter { success: 0, http_failure: 1, tcp_failure: 2, timeout_failure: 3 },
                probes: vec![probe.clone()],
                last_error: Some(probe),
            }],
        };
        let shown = Shown { stored: true, details: true };
        let page = page(&[&checker], shown);
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
        assert!(page.contains("<td>[::1]:80</td>") && page.contains("<td>/apisix/routes/1</td>"), "{page}");
        let json = one(&checker, shown);
        assert_eq!(json["nodes"][0]["probes"][0]["took"], 0.002);
        assert_eq!(json["nodes"][0]["ip"], "::1");
    }
}
