//! The endpoints of a cluster: nodes of an upstream.

use serde_json::{Value, json};

use super::context::{Context, Report};
use super::value::{enumerated, items, number, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::{Node, Tree};

/// Endpoints of a cluster.
#[derive(Default)]
pub(super) struct Endpoints {
    pub(super) nodes: Vec<Value>,
    pub(super) hosts: Vec<(String, u16)>,
}

/// Reads the endpoints, from the configuration or from the file of an EDS cluster.
pub(super) fn read(context: &Context<'_>, node: &Node<'_>, kind: &str, report: &mut Report) -> Endpoints {
    let mut found = Endpoints::default();
    if let Some(assignment) = node.some("load_assignment") {
        assigned(&assignment, kind, &mut found, report);
    }
    // Version 2.
    for address in items(node, "hosts") {
        if let Some((host, port)) = socket(&address, report) {
            found.push(host, port, 1, 0);
        }
    }
    if kind == "EDS" || node.some("eds_cluster_config").is_some() {
        discovered(context, node, &mut found, report);
    }
    if kind == "LOGICAL_DNS" && found.nodes.len() > 1 {
        report.behaviour(node, "type: LOGICAL_DNS", "Envoy allows one endpoint; only the first is used");
        found.nodes.truncate(1);
        found.hosts.truncate(1);
    }
    if kind == "ORIGINAL_DST" {
        let place = node.some("type").unwrap_or_else(|| node.clone());
        report.behaviour(
            &place,
            "type: ORIGINAL_DST",
            "the original address of a connection is not used; routes to this cluster answer 503",
        );
    } else if found.nodes.is_empty() && node.some("cluster_type").is_none() && kind != "EDS" {
        report.behaviour(
            node,
            "load_assignment",
            "the cluster has no endpoint that can be used; routes to it answer 503",
        );
    }
    found
}

impl Endpoints {
    fn push(&mut self, host: &str, port: u16, weight: u64, priority: u64) {
        // In Envoy 0 is the highest priority, here the greatest number.
        let mut node = json!({"host": host, "port": port, "weight": weight});
        if priority > 0 {
            node["priority"] = json!(-i64::try_from(priority).unwrap_or(0));
        }
        self.nodes.push(node);
        self.hosts.push((host.to_owned(), port));
    }
}

/// A `ClusterLoadAssignment`.
fn assigned(assignment: &Node<'_>, kind: &str, found: &mut Endpoints, report: &mut Report) {
    // A label.
    let _ = (assignment.get("cluster_name"), assignment.get("@type"));
    report.fields(
        assignment,
        &[
            ("policy", Behaviour, "the policy of load assignments is not carried over"),
            ("named_endpoints", Behaviour, "named endpoints are not carried over"),
        ],
    );
    for locality in items(assignment, "endpoints") {
        let priority = number(&locality, "priority").unwrap_or(0);
        report.fields(
            &locality,
            &[
                ("locality", Cosmetic, "nodes of all zones are used alike"),
                (
                    "load_balancing_weight",
                    Behaviour,
                    "weights of localities are not carried over; those of endpoints are",
                ),
                ("proximity", Cosmetic, "nodes of all zones are used alike"),
                ("metadata", Cosmetic, "metadata is not used"),
            ],
        );
        for item in items(&locality, "lb_endpoints") {
            let unhealthy = matches!(
                enumerated(&item, "health_status").as_deref(),
                Some("UNHEALTHY" | "DRAINING" | "TIMEOUT")
            );
            let weight = number(&item, "load_balancing_weight").unwrap_or(1);
            report.fields(
                &item,
                &[
                    ("metadata", Cosmetic, "metadata of endpoints is not used"),
                    ("endpoint_name", Behaviour, "named endpoints are not carried over"),
                ],
            );
            let Some(endpoint) = item.some("endpoint") else { continue };
            if let Some(check) = endpoint.some("health_check_config") {
                check.whole();
                report.behaviour(
                    &check,
                    "health_check_config",
                    "health checks use the address and port of the endpoint",
                );
            }
            if let Some(hostname) = endpoint.some("hostname") {
                hostname.whole();
                if kind == "STATIC" {
                    report.cosmetic(&hostname, "hostname", "the name of an endpoint is not used");
                }
            }
            report
                .fields(&endpoint, &[("additional_addresses", Behaviour, "only the first address is used")]);
            let Some(address) = endpoint.some("address") else { continue };
            if let Some((host, port)) = socket(&address, report) {
                found.push(host, port, if unhealthy { 0 } else { weight }, priority);
            }
        }
    }
}

/// The host and port of an address.
fn socket<'a>(address: &Node<'a>, report: &mut Report) -> Option<(&'a str, u16)> {
    let Some(socket) = address.some("socket_address") else {
        address.whole();
        let what = address.names().next().unwrap_or("address").to_owned();
        report.behaviour(
            address,
            what.clone(),
            format!("an endpoint with an address of the kind `{what}` cannot be used, and is left out"),
        );
        return None;
    };
    let _ = (socket.get("protocol"), socket.get("ipv4_compat"), socket.get("resolver_name"));
    let host = text(&socket, "address").unwrap_or_default();
    let port = socket.any(&["port_value", "named_port"]).and_then(|port| port.u64());
    let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    match port {
        Some(port) if !host.is_empty() && host.chars().all(fits) => Some((host, port)),
        _ if host.contains("${") || host.contains("{{") => {
            report.behaviour(
                &socket,
                "socket_address",
                format!("`{host}` is a template whose variable is not set; the endpoint is left out"),
            );
            None
        }
        _ => {
            report.behaviour(
                &socket,
                "socket_address",
                "the address needs a host and a `port_value`; the endpoint is left out",
            );
            None
        }
    }
}

/// The endpoints of a file that `eds_config` names.
fn discovered(context: &Context<'_>, node: &Node<'_>, found: &mut Endpoints, report: &mut Report) {
    let Some(settings) = node.some("eds_cluster_config") else { return };
    let name = text(&settings, "service_name").or_else(|| text(node, "name")).unwrap_or_default();
    let Some(config) = settings.some("eds_config") else { return };
    let Some(path) = file_of(&config) else {
        config.whole();
        report.behaviour(
            &config,
            "eds_config",
            "endpoints come from a control plane, which is not asked; routes to this cluster answer 503",
        );
        report.hint("write its endpoints as `load_assignment`, or use a service registry");
        return;
    };
    let (tree, problem) = match super::read_yaml(context.source, path) {
        Ok(tree) => (Some(tree), None),
        Err(problem) => (None, Some(problem)),
    };
    if let Some(problem) = problem {
        report.behaviour(&config, "eds_config.path", format!("the endpoints cannot be read: {problem}"));
    }
    let Some(tree) = tree else { return };
    from_tree(&tree, name, found, report);
}

fn from_tree(tree: &Tree, name: &str, found: &mut Endpoints, report: &mut Report) {
    for assignment in items(&tree.root(), "resources") {
        if text(&assignment, "cluster_name") == Some(name) {
            assigned(&assignment, "EDS", found, report);
        }
    }
}

/// The file of a `ConfigSource`, if it is one.
pub(super) fn file_of<'a>(config: &Node<'a>) -> Option<&'a str> {
    let _ = config.get("resource_api_version");
    let path = text(config, "path").or_else(|| {
        let source = config.some("path_config_source")?;
        if let Some(watched) = source.get("watched_directory") {
            watched.whole();
        }
        source.some("path")?.str()
    });
    path.filter(|path| !path.is_empty())
}
