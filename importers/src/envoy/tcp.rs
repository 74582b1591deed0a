//! Connections and datagrams that are passed on: `tcp_proxy` and `udp_proxy`.

use std::net::IpAddr;

use model::{Key, Kind};
use serde_json::{Map, json};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::value::{self, items, number, seconds, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;
use crate::output::{Listener, Protocol};

/// A `TcpProxy`.
pub(super) fn tcp(
    context: &mut Context<'_>,
    clusters: &mut Clusters,
    node: &Node<'_>,
    addresses: &[(Option<IpAddr>, u16)],
    all: &[Vec<(Option<IpAddr>, u16)>],
    names: &[String],
) -> Vec<Key> {
    let mut report = Report::default();
    let _ = node.get("@type");
    report.fields(
        node,
        &[
            ("stat_prefix", Cosmetic, "statistics have other names"),
            ("access_log", Cosmetic, "streams are logged by `nginx_config.stream.access_log` in config.yaml"),
            (
                "access_log_options",
                Cosmetic,
                "streams are logged by `nginx_config.stream.access_log` in config.yaml",
            ),
            ("max_connect_attempts", Cosmetic, "connecting is tried again as the upstream says"),
            ("downstream_idle_timeout", Behaviour, "silence ends a stream after the timeout of its upstream"),
            ("upstream_idle_timeout", Behaviour, "silence ends a stream after the timeout of its upstream"),
            ("tunneling_config", Behaviour, "streams are not sent through a CONNECT tunnel"),
            ("on_demand", Behaviour, "clusters of a control plane are not loaded"),
            ("metadata_match", Behaviour, "streams go to all nodes of the cluster"),
            ("hash_policy", Behaviour, "streams are not hashed"),
            ("max_downstream_connection_duration", Behaviour, "streams have no bound on their age"),
            ("deprecated_v1", Behaviour, "routes of version 1 are not carried over"),
        ],
    );
    let mut settings = Map::new();
    if let Some(idle) = seconds(node, "idle_timeout").filter(|idle| *idle > 0.0) {
        let idle = value::seconds_json(idle.min(86_400.0));
        settings.insert("timeout".to_owned(), json!({"connect": 5, "send": idle, "read": idle}));
    } else {
        settings.insert("timeout".to_owned(), json!({"connect": 5, "send": 3600, "read": 3600}));
    }
    let mut upstream = None;
    let mut parts = Vec::new();
    let mut find = |context: &mut Context<'_>, report: &mut Report, place: &Node<'_>, name: &str| {
        let Some(cluster) = clusters.get(name) else {
            report.behaviour(
                place,
                "cluster",
                format!("the cluster `{name}` is not declared; the stream is closed"),
            );
            return None;
        };
        let mut settings = settings.clone();
        settings.insert("scheme".to_owned(), json!(if cluster.tls { "tls" } else { "tcp" }));
        clusters.upstream(context, name, &serde_json::Value::Object(settings))
    };
    if let Some(cluster) = node.some("cluster") {
        upstream = find(context, &mut report, &cluster, cluster.str().unwrap_or_default());
    } else if let Some(weighted) = node.some("weighted_clusters") {
        for part in items(&weighted, "clusters") {
            let weight = number(&part, "weight").unwrap_or(1);
            report.fields(&part, &[("metadata_match", Behaviour, "streams go to all nodes of the cluster")]);
            if let Some(key) = find(context, &mut report, &part, text(&part, "name").unwrap_or_default()) {
                parts.push(json!({"upstream_id": key.id, "weight": weight}));
                upstream.get_or_insert(key);
            }
        }
    }
    let Some(upstream) = upstream else {
        context.report.take(report, &[]);
        return Vec::new();
    };
    context.report.take(report, &[]);
    let snis: Vec<Option<&str>> = match names {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let mut keys = Vec::new();
    for (address, port) in addresses {
        // Another listener has the port on another address.
        let others = all.iter().flatten().any(|other| other.1 == *port && other.0 != *address);
        let own = address.filter(|_| others);
        for sni in &snis {
            let mut value = Map::from_iter([
                ("server_port".to_owned(), json!(port)),
                ("upstream_id".to_owned(), json!(upstream.id)),
            ]);
            if let Some(own) = own {
                value.insert("server_addr".to_owned(), json!(own.to_string()));
            }
            if let Some(sni) = sni {
                value.insert("sni".to_owned(), json!(sni));
            }
            if parts.len() > 1 {
                value.insert(
                    "plugins".to_owned(),
                    json!({"traffic-split": {"rules": [{"weighted_upstreams": parts}]}}),
                );
            }
            let place = own.map(|own| own.to_string().replace(':', "-")).unwrap_or_default();
            let parts = ["port", &port.to_string(), &place, sni.unwrap_or_default()];
            let key = context.key(Kind::StreamRoute, &parts);
            keys.push(key.clone());
            context.add(key, value, node.place());
        }
    }
    keys
}

/// A listener of datagrams.
pub(super) fn udp(
    context: &mut Context<'_>,
    clusters: &mut Clusters,
    listener: &Node<'_>,
    addresses: &[(Option<IpAddr>, u16)],
) {
    for filter in items(listener, "listener_filters") {
        let extension = value::extension(&filter);
        let config = extension
            .config
            .filter(|_| extension.kind.starts_with("UdpProxy") || extension.kind == "udp_proxy");
        let Some(config) = config else { continue };
        let mut report = Report::default();
        let _ = config.get("@type");
        report.fields(
            &config,
            &[
                ("stat_prefix", Cosmetic, "statistics have other names"),
                (
                    "idle_timeout",
                    Behaviour,
                    "a session ends after `nginx_config.stream.udp_timeout` in config.yaml",
                ),
                ("use_original_src_ip", Behaviour, "servers see the address of the gateway"),
                ("hash_policies", Behaviour, "sessions are not hashed"),
                ("upstream_socket_config", Cosmetic, "datagrams are sent by the gateway's own rules"),
                ("use_per_packet_load_balancing", Behaviour, "the server of a session is chosen once"),
                (
                    "access_log",
                    Cosmetic,
                    "streams are logged by `nginx_config.stream.access_log` in config.yaml",
                ),
                (
                    "proxy_access_log",
                    Cosmetic,
                    "streams are logged by `nginx_config.stream.access_log` in config.yaml",
                ),
                ("session_filters", Behaviour, "filters of sessions are not carried over"),
                ("tunneling_config", Behaviour, "datagrams are not sent through a tunnel"),
            ],
        );
        let mut cluster = text(&config, "cluster").map(str::to_owned);
        if let Some(matcher) = config.some("matcher") {
            let action = matcher.some("on_no_match").and_then(|none| none.some("action"));
            let route = action.and_then(|action| value::extension(&action).config);
            cluster = route.as_ref().and_then(|route| text(route, "cluster")).map(str::to_owned).or(cluster);
            let conditional =
                matcher.some("matcher_tree").is_some() || matcher.some("matcher_list").is_some();
            matcher.whole();
            if conditional {
                report.behaviour(&matcher, "matcher", "datagrams are not distinguished by conditions");
            }
        }
        let settings = json!({"scheme": "udp"});
        let upstream = cluster.as_deref().and_then(|name| clusters.upstream(context, name, &settings));
        if upstream.is_none() {
            report.behaviour(&config, "cluster", "the cluster is not declared; datagrams are dropped");
        }
        context.report.take(report, &[]);
        let Some(upstream) = upstream else { continue };
        for (address, port) in addresses {
            let value = Map::from_iter([
                ("server_port".to_owned(), json!(port)),
                ("upstream_id".to_owned(), json!(upstream.id)),
            ]);
            let key = context.key(Kind::StreamRoute, &["port", &port.to_string(), "udp"]);
            context.add(key, value, config.place());
            context.import.listeners.push(Listener {
                address: *address,
                port: *port,
                protocol: Protocol::Udp,
                tls: false,
                http2: false,
                proxy_protocol: false,
                place: listener.place(),
            });
        }
    }
}
