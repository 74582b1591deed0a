//! An upstream: nodes, how to choose among them and how to talk to them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::resource::{self, Meta, Timeout, typed};
use crate::{Invalid, schema};

/// An upstream of APISIX 3.x, on its own or inside a route, service or stream route.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    pub meta: Meta,
    /// In the order written. Empty is allowed and answers 503; so is the start of a discovered one.
    pub nodes: Vec<Node>,
    /// Where nodes come from instead.
    pub discovery: Option<Discovery>,
    /// `type`.
    pub balancer: BalancerType,
    pub hash_on: HashOn,
    /// What a chash hashes; present if `balancer` is chash, unless by consumer.
    pub key: Option<String>,
    pub checks: Option<Checks>,
    /// `None` is as many as there are other nodes.
    pub retries: Option<u64>,
    /// For all tries together; `None` and zero are no limit.
    pub retry_timeout: Option<Duration>,
    pub timeout: Option<Timeout>,
    pub pass_host: PassHost,
    /// Present if `pass_host` is rewrite.
    pub upstream_host: Option<String>,
    pub scheme: Scheme,
    pub tls: Option<Tls>,
    pub keepalive_pool: Option<KeepalivePool>,
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// An IPv4 address, an IPv6 address without brackets, or a name.
    pub host: String,
    /// As written, or the scheme's own.
    pub port: u16,
    /// Zero gets no requests.
    pub weight: u32,
    /// Higher tiers first; lower ones only while the higher have no usable node.
    pub priority: i64,
    pub metadata: Option<Map<String, Value>>,
}

/// A service registry's view of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    pub service_name: String,
    /// The registry: `dns`, `consul`, …
    pub kind: String,
    pub namespace_id: Option<String>,
    pub group_name: Option<String>,
}

/// How a node is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancerType {
    #[default]
    Roundrobin,
    Chash,
    LeastConn,
    Ewma,
}

/// Where a chash finds what it hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HashOn {
    #[default]
    Vars,
    Header,
    Cookie,
    Consumer,
    VarsCombinations,
}

/// What the upstream sees as `Host`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassHost {
    /// The client's.
    #[default]
    Pass,
    /// The node's.
    Node,
    /// `upstream_host`.
    Rewrite,
}

/// What is spoken to the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    #[default]
    Http,
    Https,
    Grpc,
    Grpcs,
    Tcp,
    Tls,
    Udp,
    Kafka,
}

/// The client's side of TLS to the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Tls {
    /// An ssl resource of type client.
    #[serde(default, deserialize_with = "resource::id_opt")]
    pub client_cert_id: Option<String>,
    /// PEM or a reference to a secret; with `client_key` or not at all.
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
    #[serde(default)]
    pub verify: bool,
}

/// Limits of the idle connections kept to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct KeepalivePool {
    /// Idle connections a worker keeps.
    pub size: u64,
    #[serde(deserialize_with = "resource::seconds")]
    pub idle_timeout: Duration,
    /// Requests a connection serves before it is closed.
    pub requests: u64,
}

/// Health checks; passive ones need active ones to bring a node back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Checks {
    pub active: Active,
    pub passive: Option<Passive>,
}

/// What a health check speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckType {
    #[default]
    Http,
    Https,
    Tcp,
}

/// Probes sent by the gateway. Defaults are APISIX's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Active {
    #[serde(rename = "type")]
    pub kind: CheckType,
    #[serde(deserialize_with = "resource::seconds")]
    pub timeout: Duration,
    /// Probes in flight at a time.
    pub concurrency: u64,
    pub host: Option<String>,
    /// Instead of the node's.
    pub port: Option<u16>,
    pub http_method: String,
    pub http_path: String,
    pub http_req_body: String,
    pub https_verify_certificate: bool,
    /// `Name: value` lines.
    pub req_headers: Vec<String>,
    pub healthy: ActiveHealthy,
    pub unhealthy: ActiveUnhealthy,
}

/// When a probed node counts as healthy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ActiveHealthy {
    /// Seconds between probes of healthy nodes.
    pub interval: u64,
    pub http_statuses: Vec<u16>,
    pub successes: u16,
}

/// When a probed node counts as unhealthy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ActiveUnhealthy {
    /// Seconds between probes of unhealthy nodes.
    pub interval: u64,
    pub http_statuses: Vec<u16>,
    pub http_failures: u16,
    pub tcp_failures: u16,
    pub timeouts: u16,
}

/// Verdicts from the traffic itself. Defaults are APISIX's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Passive {
    #[serde(rename = "type")]
    pub kind: CheckType,
    pub healthy: PassiveHealthy,
    pub unhealthy: PassiveUnhealthy,
}

/// When traffic says a node is healthy; zero never does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PassiveHealthy {
    pub http_statuses: Vec<u16>,
    pub successes: u16,
}

/// When traffic says a node is unhealthy; zero never does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PassiveUnhealthy {
    pub http_statuses: Vec<u16>,
    pub http_failures: u16,
    pub tcp_failures: u16,
    pub timeouts: u16,
}

impl Upstream {
    /// Checks and types an upstream written inside a plugin (`traffic-split`).
    ///
    /// # Errors
    /// As for an upstream of its own.
    pub fn parse(value: &Value) -> Result<Upstream, Invalid> {
        let value = schema::of_kind(crate::Kind::Upstream)
            .parse(value.clone())
            .map_err(|invalid| invalid.said("invalid configuration: "))?;
        Upstream::read(value)
    }

    /// Types a value that has passed its schema.
    pub(crate) fn read(value: Value) -> Result<Upstream, Invalid> {
        let meta = Meta::of(&value)?;
        let mut written: Written = typed(value)?;
        let nodes = nodes(written.nodes.take(), written.scheme)?;
        let args = written.discovery_args.unwrap_or_default();
        let discovery = written.service_name.zip(written.discovery_type).map(|(service_name, kind)| {
            Discovery { service_name, kind, namespace_id: args.namespace_id, group_name: args.group_name }
        });
        let upstream = Upstream {
            meta,
            nodes,
            discovery,
            balancer: written.balancer,
            hash_on: written.hash_on,
            key: written.key,
            checks: written.checks,
            retries: written.retries,
            retry_timeout: written.retry_timeout,
            timeout: written.timeout,
            pass_host: written.pass_host,
            upstream_host: written.upstream_host,
            scheme: written.scheme,
            tls: written.tls,
            keepalive_pool: written.keepalive_pool,
        };
        upstream.check_host()?;
        upstream.check_hash()?;
        Ok(upstream)
    }

    /// Like [`Upstream::read`] for the property `upstream` of another resource.
    pub(crate) fn read_inside(value: Value) -> Result<Upstream, Invalid> {
        Upstream::read(value).map_err(|invalid| invalid.under("/upstream"))
    }

    fn check_host(&self) -> Result<(), Invalid> {
        if self.pass_host == PassHost::Rewrite && self.upstream_host.as_deref().is_none_or(str::is_empty) {
            return Err(Invalid::new("`upstream_host` can't be empty when `pass_host` is `rewrite`")
                .at("/upstream_host")
                .expected("a host")
                .hint("set `upstream_host`, or `pass_host` to `pass` or `node`"));
        }
        Ok(())
    }

    fn check_hash(&self) -> Result<(), Invalid> {
        if self.balancer != BalancerType::Chash || self.hash_on == HashOn::Consumer {
            return Ok(());
        }
        let Some(key) = &self.key else {
            return Err(Invalid::new("missing key")
                .at("/key")
                .expected("what to hash: a variable, header or cookie name")
                .hint("chash needs a `key`, such as `remote_addr`, unless `hash_on` is `consumer`"));
        };
        let schema = match self.hash_on {
            HashOn::Vars => schema::of_hash_key("vars"),
            HashOn::Header | HashOn::Cookie => schema::of_hash_key("header"),
            HashOn::Consumer | HashOn::VarsCombinations => None,
        };
        match schema.map(|schema| schema.check(&Value::from(key.as_str()))) {
            Some(Err(invalid)) => Err(invalid.at("/key").said("invalid configuration: ")),
            _ => Ok(()),
        }
    }
}

impl Node {
    /// `host:port`, an IPv6 host in brackets.
    pub fn authority(&self) -> String {
        if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The address, if the host is not a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl Scheme {
    /// The port of a node that names none.
    pub fn default_port(self) -> Option<u16> {
        match self {
            Scheme::Http | Scheme::Grpc => Some(80),
            Scheme::Https | Scheme::Grpcs => Some(443),
            Scheme::Tcp | Scheme::Tls | Scheme::Udp | Scheme::Kafka => None,
        }
    }

    /// As written in configuration and log lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::Grpc => "grpc",
            Scheme::Grpcs => "grpcs",
            Scheme::Tcp => "tcp",
            Scheme::Tls => "tls",
            Scheme::Udp => "udp",
            Scheme::Kafka => "kafka",
        }
    }
}

/// The fields as written.
#[derive(Deserialize)]
struct Written {
    nodes: Option<Value>,
    service_name: Option<String>,
    discovery_type: Option<String>,
    discovery_args: Option<DiscoveryArgs>,
    #[serde(rename = "type", default)]
    balancer: BalancerType,
    #[serde(default)]
    hash_on: HashOn,
    key: Option<String>,
    checks: Option<Checks>,
    retries: Option<u64>,
    #[serde(default, deserialize_with = "resource::seconds_opt")]
    retry_timeout: Option<Duration>,
    timeout: Option<Timeout>,
    #[serde(default)]
    pass_host: PassHost,
    upstream_host: Option<String>,
    #[serde(default)]
    scheme: Scheme,
    tls: Option<Tls>,
    keepalive_pool: Option<KeepalivePool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DiscoveryArgs {
    namespace_id: Option<String>,
    group_name: Option<String>,
}

#[derive(Deserialize)]
struct WrittenNode {
    host: String,
    port: Option<u16>,
    weight: u32,
    #[serde(default)]
    priority: i64,
    metadata: Option<Map<String, Value>>,
}

/// One list from both forms: `{"host:port": weight}` and `[{host, port, weight, …}]`.
fn nodes(value: Option<Value>, scheme: Scheme) -> Result<Vec<Node>, Invalid> {
    match value {
        Some(Value::Object(map)) => {
            map.into_iter().map(|(address, weight)| node_of(&address, weight, scheme)).collect()
        }
        Some(list @ Value::Array(_)) => {
            let written: Vec<WrittenNode> = typed(list).map_err(|invalid| invalid.under("/nodes"))?;
            let node = |(at, node): (usize, WrittenNode)| {
                Ok(Node {
                    port: port_or_default(node.port, scheme)
                        .map_err(|invalid| invalid.within(at).under("/nodes"))?,
                    host: without_brackets(&node.host).to_owned(),
                    weight: node.weight,
                    priority: node.priority,
                    metadata: node.metadata,
                })
            };
            written.into_iter().enumerate().map(node).collect()
        }
        _ => Ok(Vec::new()),
    }
}

fn node_of(address: &str, weight: Value, scheme: Scheme) -> Result<Node, Invalid> {
    let placed = |invalid: Invalid| invalid.within(address).under("/nodes");
    let (host, port) = split_address(address);
    if without_brackets(host).is_empty() {
        return Err(placed(Invalid::new("missing host in node").expected("host:port")));
    }
    let port = match port {
        None => None,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 => Some(port),
            _ => {
                return Err(placed(
                    Invalid::new(format!("invalid port {text}")).expected("a port from 1 to 65535"),
                ));
            }
        },
    };
    let weight = match u32::deserialize(&weight) {
        Ok(weight) => weight,
        Err(_) => {
            return Err(placed(
                Invalid::new(format!("invalid configuration: weight {weight} is out of range"))
                    .expected("a weight from 0 to 4294967295"),
            ));
        }
    };
    Ok(Node {
        host: without_brackets(host).to_owned(),
        port: port_or_default(port, scheme).map_err(placed)?,
        weight,
        priority: 0,
        metadata: None,
    })
}

/// Splits `host`, `host:port`, `1.2.3.4:80`, `[::1]:80`, `[::1]` and `::1`.
fn split_address(address: &str) -> (&str, Option<&str>) {
    if let Some(end) = address.rfind(']') {
        return (&address[..=end], address[end + 1..].strip_prefix(':'));
    }
    match address.split_once(':') {
        Some((_, rest)) if rest.contains(':') => (address, None),
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn port_or_default(port: Option<u16>, scheme: Scheme) -> Result<u16, Invalid> {
    port.or(scheme.default_port()).ok_or_else(|| {
        Invalid::new(
            "Can't detect upstream's scheme. You should either specify a port in the node or specify the \
             upstream.scheme explicitly",
        )
        .expected("a port")
        .got(format!("no port, with scheme {}", scheme.as_str()))
    })
}

impl Default for Active {
    fn default() -> Active {
        Active {
            kind: CheckType::Http,
            timeout: Duration::from_secs(1),
            concurrency: 10,
            host: None,
            port: None,
            http_method: "GET".to_owned(),
            http_path: "/".to_owned(),
            http_req_body: String::new(),
            https_verify_certificate: true,
            req_headers: Vec::new(),
            healthy: ActiveHealthy::default(),
            unhealthy: ActiveUnhealthy::default(),
        }
    }
}

impl Default for ActiveHealthy {
    fn default() -> ActiveHealthy {
        ActiveHealthy { interval: 1, http_statuses: vec![200, 302], successes: 2 }
    }
}

impl Default for ActiveUnhealthy {
    fn default() -> ActiveUnhealthy {
        ActiveUnhealthy {
            interval: 1,
            http_statuses: vec![429, 404, 500, 501, 502, 503, 504, 505],
            http_failures: 5,
            tcp_failures: 2,
            timeouts: 3,
        }
    }
}

impl Default for PassiveHealthy {
    fn default() -> PassiveHealthy {
        let http_statuses = (200..=208).chain([226]).chain(300..=308).collect();
        PassiveHealthy { http_statuses, successes: 5 }
    }
}

impl Default for PassiveUnhealthy {
    fn default() -> PassiveUnhealthy {
        PassiveUnhealthy {
            http_statuses: vec![429, 500, 503],
            http_failures: 5,
            tcp_failures: 2,
            timeouts: 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_split_into_host_and_port() {
        for (address, host, port) in [
            ("a.com", "a.com", None),
            ("a.com:80", "a.com", Some("80")),
            ("1.2.3.4:80", "1.2.3.4", Some("80")),
            ("[::1]:80", "[::1]", Some("80")),
            ("[::1]", "[::1]", None),
            ("::1", "::1", None),
            ("a:", "a", Some("")),
        ] {
            assert_eq!(split_address(address), (host, port), "{address}");
        }
    }

    #[test]
    fn both_forms_of_nodes_become_one() {
        let map = Upstream::parse(&json!({"nodes": {"[::1]:80": 1, "a.com": 0}, "scheme": "https"})).unwrap();
        let list = Upstream::parse(&json!({"scheme": "https", "nodes": [
            {"host": "[::1]", "port": 80, "weight": 1},
            {"host": "a.com", "weight": 0, "priority": 0},
        ]}))
        .unwrap();
        assert_eq!(map.nodes, list.nodes);
        assert_eq!(map.nodes[0].host, "::1");
        assert_eq!(map.nodes[0].authority(), "[::1]:80");
        assert_eq!(map.nodes[1].port, 443);
    }

    #[test]
    fn defaults_of_checks_are_the_schemas() {
        let upstream =
            Upstream::parse(&json!({"nodes": {}, "checks": {"active": {}, "passive": {}}})).unwrap();
        let checks = upstream.checks.unwrap();
        assert_eq!(checks.active, Active::default());
        assert_eq!(checks.passive, Some(Passive::default()));
        let full = json!({"nodes": {}, "checks": {
            "active": {"healthy": {}, "unhealthy": {}}, "passive": {"healthy": {}, "unhealthy": {}},
        }});
        assert_eq!(Upstream::parse(&full).unwrap().checks, Some(checks));
    }

    #[test]
    fn a_discovered_upstream_has_no_nodes() {
        let value =
            json!({"service_name": "s", "discovery_type": "dns", "discovery_args": {"group_name": "g"}});
        let upstream = Upstream::parse(&value).unwrap();
        assert!(upstream.nodes.is_empty());
        let discovery = upstream.discovery.unwrap();
        assert_eq!((discovery.kind.as_str(), discovery.group_name.as_deref()), ("dns", Some("g")));
    }
}
