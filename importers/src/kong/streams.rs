//! Routes of TCP, TLS and UDP as stream routes.

use std::collections::HashSet;

use model::Kind;
use serde_json::{Map, Value, json};

use super::Output;
use super::entities::{Entity, Kong};
use super::plugins;
use super::routes;
use super::services::Services;
use crate::finding::Place;
use crate::output::Protocol;

/// The ports of the stream routes: whether TLS ends there, and where they are named.
pub(super) fn ports(kong: &Kong<'_>) -> Vec<(u16, Protocol, bool, Place)> {
    let mut ports: Vec<(u16, Protocol, bool, Place)> = Vec::new();
    let mut known = HashSet::new();
    for route in kong.routes.iter().filter(|route| route.is_stream()) {
        let protocol =
            if route.protocols.iter().any(|name| name == "udp") { Protocol::Udp } else { Protocol::Tcp };
        let tls = route.protocols.iter().any(|name| name == "tls");
        for node in &route.destinations {
            let Some(port) =
                node.some("port").and_then(|port| port.u64()).and_then(|port| u16::try_from(port).ok())
            else {
                continue;
            };
            if known.insert((port, protocol == Protocol::Udp)) {
                ports.push((port, protocol, tls, node.place()));
            }
        }
    }
    ports
}

/// Writes the stream routes: one for each combination of source, destination and server name.
pub(super) fn convert(kong: &Kong<'_>, services: &Services, out: &mut Output) {
    let scopes = plugins::Scopes::of(kong);
    for (index, route) in kong.routes.iter().enumerate().filter(|(_, route)| route.is_stream()) {
        let node = &route.entity.node;
        for name in ["https_redirect_status_code", "ws_id", "request_buffering", "response_buffering"] {
            route.entity.get(name).map(|node| node.whole());
        }
        let Some(service) = route.service.filter(|service| kong.services[*service].enabled) else {
            out.cosmetic(node, "not served, as it has no service that is switched on");
            continue;
        };
        let plain = ends(&route.sources, "remote_addr", None, out);
        let destinations = ends(&route.destinations, "server_addr", Some("server_port"), out);
        if !route.destinations.iter().any(|node| node.some("port").is_some()) {
            out.behaviour(
                node,
                "names no port in `destinations`; add ports to `apisix.stream_proxy` of config.yaml",
            );
        }
        let (plugins, findings) = plugins::of_stream(kong, &scopes, index);
        let mut keys = Vec::new();
        let mut value = Map::new();
        routes::name(&mut value, &route.name);
        if !plugins.is_empty() {
            value.insert("plugins".to_owned(), Value::Object(plugins));
        }
        services.upstream(service, &mut value);
        let snis: Vec<Option<&String>> = match route.snis.is_empty() {
            true => vec![None],
            false => route.snis.iter().map(Some).collect(),
        };
        // Among equals the order of ids decides, so they have the place in the file.
        for source in &plain {
            for destination in &destinations {
                for sni in &snis {
                    let mut value = value.clone();
                    value.extend(source.clone());
                    value.extend(destination.clone());
                    if let Some(sni) = sni {
                        value.insert("sni".to_owned(), json!(sni.trim_end_matches('.')));
                    }
                    let id = out.names.id(Kind::StreamRoute, &format!("{index:04}-{}", route.name));
                    keys.push(out.add(Kind::StreamRoute, id, Value::Object(value), node.place()));
                }
            }
        }
        for mut finding in findings {
            finding.resources.clone_from(&keys);
            out.findings.push(finding);
        }
    }
}

/// The conditions on one end of a connection, an object for each alternative.
fn ends(
    nodes: &[crate::node::Node<'_>],
    address: &str,
    port: Option<&str>,
    out: &mut Output,
) -> Vec<Map<String, Value>> {
    let mut all = Vec::new();
    for node in nodes {
        let entity = Entity::new(node.clone());
        let mut value = Map::new();
        if let Some(ip) = entity.text("ip") {
            value.insert(address.to_owned(), json!(ip));
        }
        match (entity.u64("port"), port) {
            (Some(number), Some(name)) => drop(value.insert(name.to_owned(), json!(number))),
            (Some(_), None) => out.behaviour(node, "ports of clients are not compared"),
            (None, _) => {}
        }
        all.push(value);
    }
    if all.is_empty() {
        all.push(Map::new());
    }
    all
}
