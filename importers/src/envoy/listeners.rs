//! Listeners and their filter chains.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::manager::{self, Around, Manager};
use super::matching::joined;
use super::paths::PathForm;
use super::value::{self, boolean, items, number, text};
use super::{chains, server_tls, tcp, vhosts};
use crate::finding::Severity::{self, Behaviour, Cosmetic};
use crate::node::Node;
use crate::output::{Listener, Protocol};

const FIELDS: &[(&str, Severity, &str)] = &[
    ("stat_prefix", Cosmetic, "statistics have other names"),
    ("per_connection_buffer_limit_bytes", Cosmetic, "buffers have the gateway's own bounds"),
    ("metadata", Cosmetic, "metadata of listeners is not used"),
    ("drain_type", Cosmetic, "connections are drained by the gateway's own rules"),
    (
        "listener_filters_timeout",
        Cosmetic,
        "the time for a connection's first bytes is bounded by config.yaml",
    ),
    ("continue_on_listener_filters_timeout", Cosmetic, "connections without their first bytes are closed"),
    ("transparent", Behaviour, "connections do not keep their original address"),
    ("freebind", Cosmetic, "addresses must exist when the gateway starts"),
    ("socket_options", Cosmetic, "sockets have the gateway's own options"),
    ("tcp_fast_open_queue_length", Cosmetic, "TCP Fast Open is not used"),
    ("traffic_direction", Cosmetic, "not used"),
    ("udp_listener_config", Cosmetic, "datagrams are read by the gateway's own rules"),
    ("api_listener", Behaviour, "listeners of an API are not carried over"),
    ("connection_balance_config", Cosmetic, "the system shares connections among workers"),
    ("reuse_port", Cosmetic, "each worker has a socket of its own"),
    ("enable_reuse_port", Cosmetic, "each worker has a socket of its own"),
    ("access_log", Cosmetic, "requests are logged, not connections"),
    ("tcp_backlog_size", Cosmetic, "sockets have the gateway's own options"),
    (
        "max_connections_to_accept_per_socket_event",
        Cosmetic,
        "connections are accepted by the gateway's own rules",
    ),
    ("bind_to_port", Behaviour, "the listener is opened"),
    ("use_original_dst", Behaviour, "the original address of a connection is not used"),
    ("enable_mptcp", Cosmetic, "multipath TCP is not used"),
    ("ignore_global_conn_limit", Cosmetic, "not used"),
    ("internal_listener", Behaviour, "internal listeners are not opened"),
    ("filter_chain_matcher", Behaviour, "filter chains are chosen by their own conditions"),
    ("deprecated_v1", Cosmetic, "not used"),
];

/// An address, unless it cannot be read, and a port.
type Endpoint = (Option<IpAddr>, u16);

/// Facts about all connection managers together.
#[derive(Default)]
pub(super) struct Shared {
    /// Ports whose requests get an identifier, and those whose do not.
    pub(super) with_ids: Vec<u16>,
    pub(super) without_ids: Vec<u16>,
    /// Ports where no connection is upgraded, and those where some may be.
    pub(super) without_upgrades: Vec<u16>,
    pub(super) with_upgrades: Vec<u16>,
    pub(super) keeps_certificates: bool,
    pub(super) any_http: bool,
    pub(super) paths: Vec<PathForm>,
}

/// Reads a listener. `all` are the addresses of each listener that speaks HTTP, `streams` those of each listener.
pub(super) fn read(
    context: &mut Context<'_>,
    clusters: &mut Clusters,
    node: &Node<'_>,
    all: &[Vec<Endpoint>],
    streams: &[Vec<Endpoint>],
    shared: &mut Shared,
) {
    let mut report = Report::default();
    let _ = node.get("name");
    report.fields(node, FIELDS);
    let proxy_protocol = listener_filters(node, &mut report);
    let mut addresses = Vec::new();
    if let Some(address) = node.some("address") {
        addresses.extend(socket(&address, &mut report));
    }
    for more in items(node, "additional_addresses") {
        if let Some(address) = more.some("address") {
            addresses.extend(socket(&address, &mut report));
        }
    }
    let mut chains: Vec<Node<'_>> = items(node, "filter_chains");
    chains.extend(node.some("default_filter_chain"));
    // Of UDP.
    let udp = chains.is_empty() && !items(node, "listener_filters").is_empty();
    context.report.take(report, &[]);
    if addresses.is_empty() {
        node.whole();
        return;
    }
    if udp {
        tcp::udp(context, clusters, node, &addresses);
        return;
    }
    let mut guards = Report::default();
    let chains = chains::read(context, &chains, &mut guards);
    let (mut used, mut keys) = (Vec::new(), Vec::new());
    for (at, chain) in chains.iter().enumerate() {
        let vars = chains::conditions(&chains, at, &mut guards);
        let tls = server_tls::read(context, &chain.node, &chain.names);
        let http2 = tls.as_ref().is_none_or(|tls| tls.http2);
        for filter in items(&chain.node, "filters") {
            let extension = value::extension(&filter);
            match (manager::kind_of(&extension), &extension.config) {
                ("http", Some(config)) => {
                    let mut manager = Manager::read(context, clusters, config);
                    manager.tls = tls.is_some();
                    let is_http2 = http2 && !manager.http1_only;
                    for (address, port) in &addresses {
                        used.push((*address, *port, Protocol::Http, tls.is_some(), is_http2));
                    }
                    let site = site(&addresses, all);
                    keys.extend(http(
                        context,
                        clusters,
                        &manager,
                        &addresses,
                        &[site, vars.clone()].concat(),
                        shared,
                    ));
                }
                ("tcp", Some(config)) => {
                    for (address, port) in &addresses {
                        used.push((*address, *port, Protocol::Tcp, tls.is_some(), false));
                    }
                    keys.extend(tcp::tcp(context, clusters, config, &addresses, streams, &chain.names));
                    if chains::depends_on_addresses(&vars) {
                        guards.guard(
                            &chain.node,
                            "filter_chain_match",
                            "streams of all addresses and ports take the chain",
                        );
                    }
                }
                _ => {
                    network_filter(context, &extension);
                }
            }
        }
    }
    if keys.is_empty() {
        // Nothing is served.
        guards.findings.iter_mut().for_each(|finding| finding.severity = Behaviour);
    }
    context.report.take(guards, &keys);
    for (address, port, protocol, tls, http2) in used {
        let known =
            context.import.listeners.iter_mut().find(|known| known.address == address && known.port == port);
        if let Some(known) = known {
            if known.tls != tls {
                context.report.behaviour(
                    node,
                    "filter_chains",
                    "the port speaks TLS with all clients, or with none",
                );
            }
            known.tls |= tls;
            known.http2 |= http2;
            continue;
        }
        context.import.listeners.push(Listener {
            address,
            port,
            protocol,
            tls,
            http2,
            proxy_protocol,
            place: node.place(),
        });
    }
}

fn http(
    context: &mut Context<'_>,
    clusters: &mut Clusters,
    manager: &Manager<'_>,
    addresses: &[Endpoint],
    conditions: &[Value],
    shared: &mut Shared,
) -> Vec<model::Key> {
    let ports: Vec<u16> = addresses.iter().map(|(_, port)| *port).collect();
    shared.any_http = true;
    shared.paths.push(manager.paths());
    shared.keeps_certificates |= !manager.hides_certificates;
    match manager.refuses_upgrades {
        true => shared.without_upgrades.extend(&ports),
        false => shared.with_upgrades.extend(&ports),
    }
    if manager.request_ids { &mut shared.with_ids } else { &mut shared.without_ids }.extend(&ports);
    let mut written = Vec::new();
    let mut around = Around { manager, clusters };
    match manager.table() {
        Some(table) => written = vhosts::read(context, &mut around, &table, conditions),
        None => {
            let mut report = Report::default();
            manager.report_absent_table(&mut report);
            context.report.take(report, &[]);
        }
    }
    for (at, filter) in manager.filters.iter().enumerate() {
        let concerned: Vec<model::Key> = written
            .iter()
            .filter(|(_, filtered)| filtered.get(at).copied().unwrap_or(!filter.off))
            .map(|(key, _)| key.clone())
            .collect();
        let mut report = Report { findings: filter.findings.clone() };
        if concerned.is_empty() {
            report.findings.retain(|finding| finding.severity != Severity::Guard || written.is_empty());
        }
        context.report.take(report, &concerned);
    }
    written.into_iter().map(|(key, _)| key).collect()
}

/// The conditions that a request came to these addresses, where other listeners have others.
fn site(addresses: &[Endpoint], all: &[Vec<Endpoint>]) -> Vec<Value> {
    if all.len() < 2 {
        return Vec::new();
    }
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let others = |address: IpAddr, port: u16| -> Vec<String> {
        let same_port = all.iter().flatten().filter(|(_, other)| *other == port);
        let others = same_port.map(|(other, _)| other.unwrap_or(any)).filter(|other| *other != address);
        others
            .map(|other| match other {
                _ if other.is_unspecified() => format!("{other}/0"),
                IpAddr::V4(_) => format!("{other}/32"),
                IpAddr::V6(_) => format!("{other}/128"),
            })
            .collect()
    };
    let addresses: Vec<_> = addresses.iter().map(|(address, port)| (address.unwrap_or(any), *port)).collect();
    if addresses.iter().all(|(address, port)| others(*address, *port).is_empty()) {
        let ports: Vec<u16> = addresses.iter().map(|(_, port)| *port).collect();
        return vec![match &ports[..] {
            [port] => json!(["server_port", "==", port.to_string()]),
            several => manager::ports_condition(several),
        }];
    }
    let each = addresses.into_iter().map(|(address, port)| {
        let mut one = vec![json!(["server_port", "==", port.to_string()])];
        let others = others(address, port);
        if !address.is_unspecified() {
            one.push(json!(["server_addr", "==", address.to_string()]));
        } else if !others.is_empty() {
            one.push(json!(["server_addr", "!", "ipmatch", others]));
        }
        joined("AND", one)
    });
    vec![joined("OR", each.collect())]
}

/// The addresses of a listener, without findings about them.
pub(super) fn addresses(node: &Node<'_>) -> Vec<Endpoint> {
    let more = items(node, "additional_addresses");
    let all = std::iter::once(node).chain(&more).filter_map(|node| node.some("address"));
    all.filter_map(|address| socket(&address, &mut Report::default())).collect()
}

fn network_filter(context: &mut Context<'_>, extension: &value::Extension<'_>) {
    if let Some(config) = &extension.config {
        config.whole();
    }
    let name = if extension.name.is_empty() { extension.kind.clone() } else { extension.name.clone() };
    let guards = [
        "rbac",
        "ext_authz",
        "ratelimit",
        "client_ssl_auth",
        "connection_limit",
        "geoip",
        "wasm",
        "Wasm",
        "RBAC",
    ];
    let effect = format!("the network filter `{name}` is not carried over");
    if guards.iter().any(|guard| name.contains(guard) || extension.kind.contains(guard)) {
        context.report.guard(&extension.node, name, effect);
    } else {
        context.report.behaviour(&extension.node, name, effect);
    }
}

/// Whether connections begin with a header of the PROXY protocol.
fn listener_filters(node: &Node<'_>, report: &mut Report) -> bool {
    let mut proxy_protocol = boolean(node, "use_proxy_proto") == Some(true);
    for filter in items(node, "listener_filters") {
        let extension = value::extension(&filter);
        let is = |names: &[&str]| {
            names.iter().any(|name| extension.kind == *name || extension.name.ends_with(name))
        };
        if is(&["udp_proxy", "UdpProxyConfig"]) {
            continue;
        }
        if let Some(config) = &extension.config {
            report.opaque(config, "listener_filters", "settings of listener filters are not used");
        }
        report.fields(&filter, &[("filter_disabled", Behaviour, "the filter is always used")]);
        if is(&["proxy_protocol", "ProxyProtocol"]) {
            proxy_protocol = true;
        } else if is(&["original_dst", "OriginalDst", "original_src", "OriginalSrc"]) {
            report.behaviour(
                &filter,
                extension.name.clone(),
                "the original address of a connection is not used",
            );
        } else if !is(&["tls_inspector", "TlsInspector", "http_inspector", "HttpInspector"]) {
            report.guard(&filter, extension.name.clone(), "the listener filter is not carried over");
        }
    }
    proxy_protocol
}

/// The address of a listener.
fn socket(address: &Node<'_>, report: &mut Report) -> Option<Endpoint> {
    let Some(socket) = address.some("socket_address") else {
        address.whole();
        report.behaviour(address, "address", "listeners on other than network addresses are not opened");
        return None;
    };
    let _ = (
        socket.get("protocol"),
        socket.get("ipv4_compat"),
        socket.get("resolver_name"),
        socket.get("network_namespace_filepath"),
    );
    let port =
        number(&socket, "port_value").and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let Some(port) = port else {
        report.behaviour(&socket, "port_value", "a listener needs a port from 1 to 65535; it is not opened");
        socket.whole();
        return None;
    };
    let host = text(&socket, "address").unwrap_or_default();
    let address = host.parse().ok();
    if address.is_none() && !host.is_empty() {
        report.behaviour(
            &socket,
            "socket_address.address",
            format!("`{host}` is no address; the port is opened on all addresses"),
        );
    }
    Some((address, port))
}
