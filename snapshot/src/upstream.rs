//! Upstreams: servers, how one is chosen, and the protocol they speak.

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::balance::{HashOn, Ring, Sticky, Subset, Tier, arrange};
use crate::certs::ClientTls;
use crate::health::{Health, Statuses};
use crate::load::Load;

/// The bit in the slots of upstreams that plugins make while the gateway runs: no object of a snapshot has it.
pub const RUNTIME_SLOT: u32 = 1 << 31;

/// The servers behind a route.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// The id; for an inline upstream, that of its route or service.
    pub id: Box<str>,
    /// The slot of a worker's state for it, stable across configuration changes.
    pub slot: u32,
    pub servers: Arc<Servers>,
    /// The health of the servers; `None` without checks and ejection.
    pub health: Option<Arc<Health>>,
    /// Concurrency limits.
    pub load: Option<Box<Load>>,
}

/// Servers and how they are used. Equal upstreams share one: many routes lead to the same few
/// servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Servers {
    /// Every server with its address, in priority tiers from high to low.
    pub endpoints: Box<[Endpoint]>,
    /// For each server, an address of the other family of its name; empty if none has one.
    pub seconds: Box<[Option<SocketAddr>]>,
    pub settings: Arc<Settings>,
    /// Servers grouped by metadata, if requests choose among groups.
    pub subset: Option<Box<Subset>>,
    /// Sticky sessions, by cookie.
    pub sticky: Option<Box<Sticky>>,
    pub(crate) tiers: Box<[Tier]>,
    /// One per tier; only for consistent hashing.
    pub(crate) rings: Box<[Ring]>,
}

/// Settings that are often equal even where servers differ: equal upstreams share one.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Idle connections that each worker opens in advance to each server.
    pub min_idle: usize,
    pub scheme: Scheme,
    /// TLS to the upstream, if it is used.
    pub tls: Option<Arc<ClientTls>>,
    pub pass_host: PassHost,
    /// The most retries on other servers; by default one less than there are nodes, as in APISIX,
    /// up to `default_retries`.
    pub retries: u32,
    /// Limit of the total time of all attempts; zero means no limit.
    pub retry_timeout: Duration,
    pub keepalive: Keepalive,
    /// For plans without their own.
    pub timeouts: Timeouts,
    /// The timeouts are configured here, not defaults.
    pub own_timeouts: bool,
    pub policy: Policy,
    /// Retry behaviour beyond APISIX's.
    pub retry: Option<Box<Retry>>,
    /// The status that clients get where no server answered, instead of 502.
    pub failure_status: Option<u16>,
}

impl Deref for Upstream {
    type Target = Servers;

    #[inline]
    fn deref(&self) -> &Servers {
        &self.servers
    }
}

impl Deref for Servers {
    type Target = Settings;

    #[inline]
    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// How a server is chosen within its tier.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Policy {
    /// Smooth weighted round robin.
    #[default]
    RoundRobin,
    /// Consistent hashing.
    Chash(HashOn),
    LeastConn,
    /// Ours: the less busy of two servers drawn at random.
    P2c,
    Ewma,
}

impl Upstream {
    /// Whether response times are used.
    #[inline]
    pub fn needs_response_times(&self) -> bool {
        self.health.as_ref().is_some_and(|health| health.needs_response_times())
            || self.load.as_ref().is_some_and(|load| load.adaptive.is_some())
    }

    /// The address of the other family of a server's name.
    #[inline]
    pub fn second(&self, index: usize) -> Option<SocketAddr> {
        self.seconds.get(index).copied().flatten()
    }

    /// An upstream with these servers and defaults for everything else.
    pub fn new(id: &str, slot: u32, mut endpoints: Vec<Endpoint>, policy: Policy) -> Upstream {
        let tiers = arrange(&mut endpoints);
        let rings = match policy {
            Policy::Chash(_) => tiers.iter().map(|tier| Ring::new(tier, &endpoints)).collect(),
            _ => Box::default(),
        };
        let settings = Settings {
            min_idle: 0,
            scheme: Scheme::default(),
            tls: None,
            pass_host: PassHost::default(),
            retries: u32::try_from(endpoints.len().saturating_sub(1)).unwrap_or(u32::MAX),
            retry_timeout: Duration::ZERO,
            keepalive: Keepalive::default(),
            timeouts: Timeouts::default(),
            own_timeouts: false,
            policy,
            retry: None,
            failure_status: None,
        };
        let servers = Servers {
            endpoints: endpoints.into(),
            seconds: Box::default(),
            settings: Arc::new(settings),
            subset: None,
            sticky: None,
            tiers: tiers.into(),
            rings,
        };
        Upstream { id: id.into(), slot, servers: Arc::new(servers), health: None, load: None }
    }

    /// Servers, copied on write if shared.
    pub fn servers_mut(&mut self) -> &mut Servers {
        Arc::make_mut(&mut self.servers)
    }

    /// Settings, copied on write if shared.
    pub fn settings_mut(&mut self) -> &mut Settings {
        Arc::make_mut(&mut self.servers_mut().settings)
    }
}

/// One server.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    pub addr: SocketAddr,
    /// The configured `host` or `host:port`, for `pass_host: node`; the port is left out when it is
    /// the scheme's default.
    pub authority: Box<str>,
    /// Relative share; a server of weight 0 gets no requests, unless it is the only one.
    pub weight: u32,
    /// Tiers: lower ones are used when all above have failed.
    pub priority: i64,
}

impl Endpoint {
    /// The configured host name; `None` for an address.
    pub fn name(&self) -> Option<&str> {
        let host = match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => &self.authority,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_err().then_some(host)
    }
}

/// Retry behaviour (`sluice.retry`).
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    pub per_try_timeout: Option<Duration>,
    /// The longest pause before the first retry; zero means no pause.
    pub backoff: Duration,
    pub max_backoff: Duration,
    pub budget: Option<Budget>,
    pub on_connect: bool,
    pub on_closed: bool,
    pub on_timeout: bool,
    pub statuses: Statuses,
    pub any_method: bool,
}

/// The most retries of a request, unless there are more nodes: a single node is tried as often as
/// `retries` says, while the client waits.
pub const MAX_RETRIES: u32 = 100;

/// The ratio of retries to requests, by worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Retry budget added by a request, in thousandths of a retry.
    pub for_each: u32,
    /// The most retries in the budget.
    pub burst: u32,
}

/// The protocol the upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    #[default]
    Http,
    Https,
    Grpc,
    Grpcs,
    /// HTTP/2 in clear text, for gRPC or anything else.
    H2c,
    H2,
    /// TCP streams.
    Tcp,
    /// Streams over TLS.
    Tls,
    /// Datagrams.
    Udp,
}

impl Scheme {
    /// Whether the upstream takes HTTP requests.
    #[inline]
    pub fn is_http(self) -> bool {
        !matches!(self, Scheme::Tcp | Scheme::Tls | Scheme::Udp)
    }

    /// Whether the upstream takes gRPC calls.
    #[inline]
    pub fn is_grpc(self) -> bool {
        matches!(self, Scheme::Grpc | Scheme::Grpcs)
    }

    /// Whether requests go over HTTP/2.
    #[inline]
    pub fn is_http2(self) -> bool {
        self.is_grpc() || matches!(self, Scheme::H2c | Scheme::H2)
    }
}

impl Scheme {
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
        }
    }
}

/// The `Host` sent to an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PassHost {
    /// The client's.
    #[default]
    Pass,
    /// The node's own name.
    Node,
    /// `upstream_host`.
    Rewrite(String),
}

/// Idle connections kept per worker and server (APISIX: `keepalive_pool`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    pub size: usize,
    pub idle_timeout: Duration,
    /// Requests after which a connection is closed.
    pub requests: u64,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive { size: 320, idle_timeout: Duration::from_secs(60), requests: 1000 }
    }
}

/// Timeouts of one exchange with an upstream (APISIX: `timeout`, default 60 s each).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    pub connect: Duration,
    /// Between two writes.
    pub send: Duration,
    /// Between two reads.
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let minute = Duration::from_secs(60);
        Timeouts { connect: minute, send: minute, read: minute }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_of_each_scheme() {
        for (scheme, name, http, grpc, http2) in [
            (Scheme::Http, "http", true, false, false),
            (Scheme::Https, "https", true, false, false),
            (Scheme::Grpc, "grpc", true, true, true),
            (Scheme::Grpcs, "grpcs", true, true, true),
            (Scheme::H2c, "h2c", true, false, true),
            (Scheme::H2, "h2", true, false, true),
            (Scheme::Tcp, "tcp", false, false, false),
            (Scheme::Tls, "tls", false, false, false),
            (Scheme::Udp, "udp", false, false, false),
        ] {
            assert_eq!(scheme.as_str(), name);
            assert_eq!(
                (scheme.is_http(), scheme.is_grpc(), scheme.is_http2()),
                (http, grpc, http2),
                "{name}"
            );
        }
    }

    #[test]
    fn a_server_has_a_name_unless_configured_by_address() {
        for (authority, name) in [
            ("a.test:80", Some("a.test")),
            ("a.test", Some("a.test")),
            ("10.0.0.1:80", None),
            ("10.0.0.1", None),
            ("[::1]:80", None),
            ("[::1]", None),
        ] {
            let addr = SocketAddr::from(([10, 0, 0, 1], 80));
            let endpoint = Endpoint { addr, authority: authority.into(), weight: 1, priority: 0 };
            assert_eq!(endpoint.name(), name, "{authority}");
        }
    }

    #[test]
    fn response_times_are_measured_only_where_used() {
        let addr = SocketAddr::from(([10, 0, 0, 1], 80));
        let endpoint = Endpoint { addr, authority: "10.0.0.1:80".into(), weight: 1, priority: 0 };
        for (own, takes) in [
            (serde_json::json!({}), false),
            (serde_json::json!({"outlier": {"consecutive_failures": 5}}), false),
            (serde_json::json!({"outlier": {"latency": 3}}), true),
            (serde_json::json!({"limits": {"requests": 5}}), false),
            (serde_json::json!({"adaptive_concurrency": {}}), true),
        ] {
            let written = serde_json::json!({"nodes": {}, "sluice": own});
            let written = model::Upstream::parse(&written).unwrap();
            let mut upstream = Upstream::new("u", 0, vec![endpoint.clone()], Policy::RoundRobin);
            upstream.health =
                Health::new(None, written.own.as_deref(), &upstream.endpoints, &PassHost::Pass).map(Arc::new);
            let own = written.own.as_deref();
            upstream.load = own.and_then(|own| Load::new(own.limits, own.adaptive_concurrency)).map(Box::new);
            assert_eq!(upstream.needs_response_times(), takes, "{own:?}");
        }
    }
}
