//! An upstream: nodes, how to choose among them and how to talk to them.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::field::{self, Meta, Timeout, take, typed};
use crate::{Invalid, schema};

mod checks;
mod nodes;
mod own;

pub use checks::{
    Active, ActiveHealthy, ActiveUnhealthy, CheckType, Checks, Passive, PassiveHealthy, PassiveUnhealthy,
};
pub use nodes::{Node, fault_of_host};
pub(crate) use own::schema as own_schema;
pub use own::{
    AdaptiveConcurrency, Limits, Locality, Outlier, Own, Retry, RetryOn, SameSite, Sticky, Subset,
};

/// An upstream of APISIX 3.x, on its own or inside a route, service or stream route.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    pub meta: Meta,
    /// In the order written. Empty is allowed and answers 503; so is the start of a discovered one.
    pub nodes: Vec<Node>,
    /// Where nodes come from instead.
    pub discovery: Option<Box<Discovery>>,
    /// `type`.
    pub balancer: BalancerType,
    pub hash_on: HashOn,
    /// The name of the value that a chash hashes; present if `balancer` is chash, unless by consumer.
    pub key: Option<String>,
    pub checks: Option<Box<Checks>>,
    /// `None` is as many as there are other nodes.
    pub retries: Option<u64>,
    /// For all tries together; `None` and zero are no limit.
    pub retry_timeout: Option<Duration>,
    pub timeout: Option<Box<Timeout>>,
    pub pass_host: PassHost,
    /// Present if `pass_host` is rewrite.
    pub upstream_host: Option<String>,
    pub scheme: Scheme,
    pub tls: Option<Box<Tls>>,
    pub keepalive_pool: Option<Box<KeepalivePool>>,
    /// `sluice`: what APISIX does not have.
    pub own: Option<Box<Own>>,
}

/// A service registry's view of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Discovery {
    pub service_name: String,
    /// The registry: `dns`, `consul`, …
    pub kind: String,
    pub namespace_id: Option<String>,
    pub group_name: Option<String>,
}

impl Discovery {
    /// A name for it that no host can have, by which it is looked up beside hosts.
    pub fn key(&self) -> String {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!(
            "{}\0{}\0{}\0{}",
            self.kind,
            self.service_name,
            part(&self.namespace_id),
            part(&self.group_name)
        )
    }

    /// The service of such a name; `None` for a host.
    pub fn of_key(key: &str) -> Option<Discovery> {
        let mut parts = key.split('\0').map(str::to_owned);
        let (kind, service_name) = (parts.next()?, parts.next()?);
        let mut part = || parts.next().map(|part| Some(part).filter(|part| !part.is_empty()));
        let (namespace_id, group_name) = (part()?, part()?);
        Some(Discovery { service_name, kind, namespace_id, group_name })
    }
}

/// How a node is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancerType {
    #[default]
    Roundrobin,
    Chash,
    LeastConn,
    /// Ours.
    P2c,
    Ewma,
    /// Any other word, which APISIX stores as well and serves no request with.
    #[serde(other)]
    Unknown,
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

/// The `Host` that the upstream receives.
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

/// The protocol that the gateway speaks with the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    #[default]
    Http,
    Https,
    Grpc,
    Grpcs,
    /// HTTP/2 in clear text, also for requests other than gRPC (ours, as is the next).
    H2c,
    H2,
    Tcp,
    Tls,
    Udp,
    Kafka,
}

/// The client's side of TLS to the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Tls {
    /// An ssl resource of type client.
    #[serde(default, deserialize_with = "field::id_opt")]
    pub client_cert_id: Option<String>,
    /// PEM or a reference to a secret; with `client_key` or not at all.
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
    #[serde(default)]
    pub verify: bool,
    /// Ours: PEM of the authorities that are trusted instead of the general ones.
    pub ca: Option<String>,
    /// Ours: the name that servers are asked for and must have, instead of that in `Host`.
    pub sni: Option<String>,
}

/// Limits of the idle connections kept to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct KeepalivePool {
    /// Idle connections a worker keeps.
    pub size: u64,
    #[serde(deserialize_with = "field::seconds")]
    pub idle_timeout: Duration,
    /// Requests a connection serves before it is closed.
    pub requests: u64,
    /// Ours: idle connections that each worker opens ahead to each node.
    #[serde(default)]
    pub min_idle: u32,
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
    pub(crate) fn read(mut value: Value) -> Result<Upstream, Invalid> {
        let nodes = take(&mut value, "nodes");
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
        let nodes = nodes::read(nodes, written.scheme)?;
        let args = written.discovery_args.unwrap_or_default();
        let discovery = written.service_name.zip(written.discovery_type).map(|(service_name, kind)| {
            let DiscoveryArgs { namespace_id, group_name } = args;
            Box::new(Discovery { service_name, kind, namespace_id, group_name })
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
            own: written.sluice,
        };
        upstream.check_host()?;
        upstream.check_hash()?;
        upstream.check_sticky()?;
        upstream.check_pool()?;
        Ok(upstream)
    }

    /// Like [`Upstream::read`] for the property `upstream` of another resource.
    pub(crate) fn read_inside(value: Value) -> Result<Box<Upstream>, Invalid> {
        Upstream::read(value).map(Box::new).map_err(|invalid| invalid.under("/upstream"))
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

    fn check_pool(&self) -> Result<(), Invalid> {
        match &self.keepalive_pool {
            Some(pool) if u64::from(pool.min_idle) > pool.size => {
                Err(Invalid::new("`min_idle` is more than `size`")
                    .at("/keepalive_pool/min_idle")
                    .expected(format!("at most {}", pool.size)))
            }
            _ => Ok(()),
        }
    }

    fn check_sticky(&self) -> Result<(), Invalid> {
        let sticky = self.own.as_ref().and_then(|own| own.sticky.as_ref());
        match sticky {
            Some(sticky) if sticky.same_site == SameSite::None && !sticky.secure => {
                Err(Invalid::new("browsers drop a cookie with `same_site: None` that is not secure")
                    .at("/sluice/sticky/secure")
                    .expected("true, or another `same_site`"))
            }
            _ => Ok(()),
        }
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

impl Scheme {
    /// Whether it is spoken within TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Scheme::Https | Scheme::Grpcs | Scheme::H2 | Scheme::Tls)
    }

    /// The port of a node that names none.
    pub fn default_port(self) -> Option<u16> {
        match self {
            Scheme::Http | Scheme::Grpc | Scheme::H2c => Some(80),
            Scheme::Https | Scheme::Grpcs | Scheme::H2 => Some(443),
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
            Scheme::H2c => "h2c",
            Scheme::H2 => "h2",
            Scheme::Tcp => "tcp",
            Scheme::Tls => "tls",
            Scheme::Udp => "udp",
            Scheme::Kafka => "kafka",
        }
    }
}

/// The fields as written.
#[derive(Deserialize)]
struct Raw {
    service_name: Option<String>,
    discovery_type: Option<String>,
    discovery_args: Option<DiscoveryArgs>,
    #[serde(rename = "type", default)]
    balancer: BalancerType,
    #[serde(default)]
    hash_on: HashOn,
    key: Option<String>,
    checks: Option<Box<Checks>>,
    retries: Option<u64>,
    #[serde(default, deserialize_with = "field::seconds_opt")]
    retry_timeout: Option<Duration>,
    timeout: Option<Box<Timeout>>,
    #[serde(default)]
    pass_host: PassHost,
    upstream_host: Option<String>,
    #[serde(default)]
    scheme: Scheme,
    tls: Option<Box<Tls>>,
    keepalive_pool: Option<Box<KeepalivePool>>,
    sluice: Option<Box<Own>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DiscoveryArgs {
    namespace_id: Option<String>,
    group_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
