//! Filter chains of a listener, and the conditions that lead to each.

use serde_json::{Value, json};

use super::context::{Context, Report};
use super::matching::{joined, negated};
use super::value::{enumerated, escaped, items, network, number, text, texts};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// The variables of conditions in the order in which Envoy looks at them.
const ORDER: [&str; 6] =
    ["server_port", "server_addr", "scheme", "ssl_alpn_protocol", "realip_remote_addr", "remote_addr"];

/// A filter chain and the conditions that lead to it.
pub(super) struct Chain<'a> {
    pub(super) node: Node<'a>,
    pub(super) names: Vec<String>,
    vars: Vec<Value>,
}

/// The conditions that lead to a chain and to no better one.
pub(super) fn conditions(chains: &[Chain<'_>], at: usize, guards: &mut Report) -> Vec<Value> {
    let own = &chains[at];
    let mut vars = own.vars.clone();
    if chains.len() > 1 {
        vars.extend(names_condition(chains, at));
    }
    for other in chains.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, chain)| chain) {
        let none = own.names.is_empty() && other.names.is_empty();
        if !none && !own.names.iter().any(|name| other.names.contains(name)) {
            continue;
        }
        match is_better(other, own) {
            Some(false) => {}
            Some(true) => {
                let mut all = other.vars.clone();
                if !none {
                    all.push(json!(["ssl_server_name", "~*", pattern(&other.names)]));
                }
                vars.push(negated(joined("AND", all)));
            }
            None => guards.guard(
                &own.node,
                "filter_chain_match",
                "connections may take this chain or another one, as their conditions overlap",
            ),
        }
    }
    vars
}

/// Whether Envoy takes a chain rather than another for connections that both match, if that is clear.
fn is_better(chain: &Chain<'_>, than: &Chain<'_>) -> Option<bool> {
    let operand = |chain: &Chain<'_>, variable: &str| {
        chain.vars.iter().find(|var| var[0] == variable).and_then(|var| var.as_array()?.last().cloned())
    };
    for variable in ORDER {
        match (operand(chain, variable), operand(than, variable)) {
            (None, None) => {}
            (Some(_), None) => return Some(true),
            (None, Some(_)) => return Some(false),
            (Some(one), Some(other)) if one == other => {}
            (Some(Value::Array(one)), Some(Value::Array(other))) => {
                let length = |range: &Value| -> u8 {
                    let length = range.as_str().and_then(|range| range.rsplit_once('/'));
                    length.and_then(|(_, length)| length.parse().ok()).unwrap_or_default()
                };
                let bounds = |ranges: &[Value]| {
                    let lengths = ranges.iter().map(length);
                    (lengths.clone().min().unwrap_or_default(), lengths.max().unwrap_or_default())
                };
                let ((least, most), (others_least, others_most)) = (bounds(&one), bounds(&other));
                if least > others_most || most < others_least {
                    return Some(least > others_most);
                }
                let are_alike = least == most && others_least == others_most;
                let overlap = one.iter().any(|range| other.contains(range));
                return (are_alike && !overlap).then_some(false);
            }
            // They have no connection in common.
            _ => return Some(false),
        }
    }
    Some(false)
}

/// Whether conditions are about addresses or ports.
pub(super) fn depends_on_addresses(vars: &[Value]) -> bool {
    let text = Value::from(vars).to_string();
    ["server_port", "server_addr", "realip_remote_addr", "remote_addr"]
        .iter()
        .any(|name| text.contains(&format!("\"{name}\"")))
}

/// The filter chains with the conditions that lead to them.
pub(super) fn read<'a>(
    context: &mut Context<'_>,
    chains: &[Node<'a>],
    guards: &mut Report,
) -> Vec<Chain<'a>> {
    let mut all = Vec::new();
    for node in chains {
        let mut report = Report::default();
        let mut chain = Chain { node: node.clone(), names: Vec::new(), vars: Vec::new() };
        let _ = node.get("name");
        if let Some(matching) = node.some("filter_chain_match") {
            chain.names =
                texts(&matching, "server_names").iter().map(|name| name.to_ascii_lowercase()).collect();
            if let Some(port) = number(&matching, "destination_port") {
                chain.vars.push(json!(["server_port", "==", port.to_string()]));
            }
            for (name, variable) in [
                ("prefix_ranges", "server_addr"),
                ("source_prefix_ranges", "remote_addr"),
                ("direct_source_prefix_ranges", "realip_remote_addr"),
            ] {
                let ranges: Vec<String> = items(&matching, name).iter().filter_map(network).collect();
                if !ranges.is_empty() {
                    chain.vars.push(json!([variable, "ipmatch", ranges]));
                }
            }
            if let Some(transport) = text(&matching, "transport_protocol")
                .filter(|transport| chains.len() > 1 && !transport.is_empty())
            {
                let scheme = if transport == "tls" { "https" } else { "http" };
                chain.vars.push(json!(["scheme", "==", scheme]));
            }
            let protocols = texts(&matching, "application_protocols");
            if !protocols.is_empty() && chains.len() > 1 {
                chain.vars.push(json!(["ssl_alpn_protocol", "in", protocols]));
            }
            if let Some(of) = matching.some("source_type")
                && !matches!(enumerated(&matching, "source_type").as_deref(), Some("ANY" | "0"))
            {
                of.whole();
                guards.guard(&of, "source_type", "connections of all sources take the chain");
            }
            for (name, effect) in [
                ("source_ports", "connections of all ports take the chain"),
                ("address_suffix", "connections to all addresses take the chain"),
                ("suffix_len", "connections to all addresses take the chain"),
            ] {
                if let Some(of) = matching.some(name) {
                    of.whole();
                    guards.guard(&of, name, effect);
                }
            }
        }
        report.fields(
            node,
            &[
                ("metadata", Cosmetic, "metadata is not used"),
                (
                    "transport_socket_connect_timeout",
                    Cosmetic,
                    "the time for a handshake is bounded by config.yaml",
                ),
                ("on_demand_configuration", Cosmetic, "chains are always ready"),
                ("use_proxy_proto", Behaviour, "the PROXY protocol is set for the whole listener"),
            ],
        );
        context.report.take(report, &[]);
        all.push(chain);
    }
    all
}

/// The condition on the server name of TLS that leads to a chain and to no better one.
fn names_condition(chains: &[Chain<'_>], at: usize) -> Vec<Value> {
    let own = &chains[at].names;
    let mut vars = Vec::new();
    if !own.is_empty() {
        vars.push(json!(["ssl_server_name", "~*", pattern(own)]));
    }
    // Names of other chains that are more exact than this one's.
    let better = |name: &&String| {
        !own.contains(name)
            && (own.is_empty()
                || own.iter().any(|wide| {
                    wide.strip_prefix('*')
                        .is_some_and(|suffix| name.ends_with(suffix) && name.len() > wide.len())
                }))
    };
    let others: Vec<String> = chains
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != at)
        .flat_map(|(_, chain)| &chain.names)
        .filter(better)
        .cloned()
        .collect();
    if !others.is_empty() {
        vars.push(negated(joined("AND", vec![json!(["ssl_server_name", "~*", pattern(&others)])])));
    }
    vars
}

fn pattern(names: &[String]) -> String {
    let one = |name: &String| match name.strip_prefix("*.") {
        Some(rest) => format!(".+\\.{}", escaped(rest)),
        None => escaped(name),
    };
    format!("^(?:{})$", names.iter().map(one).collect::<Vec<_>>().join("|"))
}
