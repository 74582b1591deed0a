//! The measured gateways: the setups of scenarios, and the configuration and command of each
//! gateway for a setup. The files are templates under `bench/sluice/` and `bench/rivals/`.

pub mod alone;
mod launch;
pub mod tools;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::load::{Call, Front, Target};
use crate::upstream::Answer;

use alone::Alone;
pub use launch::launch;

/// The API key of every scenario with authentication, as in the seeds.
pub const KEY: &str = "user-key";

/// The Admin API's key, for scenarios that need one.
pub const ADMIN_KEY: &str = "bench-admin-key-0123456789";

/// Sluice, its peers, and a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    Sluice,
    Nginx,
    Haproxy,
    Envoy,
    Pingora,
    Caddy,
    SpringCloud,
    Zuul1,
    Apisix,
    Kong,
    Linkerd,
    /// The load goes directly to the upstream.
    Direct,
}

impl Gateway {
    pub const ALL: [Self; 12] = [
        Self::Sluice,
        Self::Nginx,
        Self::Haproxy,
        Self::Envoy,
        Self::Pingora,
        Self::Caddy,
        Self::SpringCloud,
        Self::Zuul1,
        Self::Apisix,
        Self::Kong,
        Self::Linkerd,
        Self::Direct,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sluice => "sluice",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Pingora => "pingora",
            Self::Caddy => "caddy",
            Self::SpringCloud => "spring-cloud-gateway",
            Self::Zuul1 => "zuul1",
            Self::Apisix => "apisix",
            Self::Kong => "kong",
            Self::Linkerd => "linkerd",
            Self::Direct => "direct",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|gateway| gateway.name() == name)
    }

    /// Runs on a Java VM: starts slowly and is warmed up before it is measured.
    pub fn is_java(self) -> bool {
        matches!(self, Self::SpringCloud | Self::Zuul1 | Self::Linkerd)
    }

    /// Why the gateway does not support `setup`, if so.
    pub fn unable(self, setup: &Setup) -> Option<&'static str> {
        match self {
            Self::Sluice => None,
            _ if setup.consumers > 0 || setup.certificates > 0 => {
                Some("its configuration here has one client and one certificate")
            }
            // Their whole configuration is rewritten and reloaded.
            Self::Nginx | Self::Envoy if setup.mixed => None,
            _ if setup.mixed => Some("its configuration here has only plain routes"),
            _ if setup.admin => Some("the scenario changes routes through Sluice's Admin API"),
            Self::Haproxy | Self::Nginx if setup.front == Front::Http3 => Some("Debian's build has no QUIC"),
            Self::Envoy if setup.front == Front::Http3 => Some("its configuration here has no QUIC"),
            Self::Caddy | Self::Nginx if setup.relay => Some("the stock build has no TCP relay"),
            Self::Pingora
            | Self::SpringCloud
            | Self::Zuul1
            | Self::Apisix
            | Self::Kong
            | Self::Linkerd
            | Self::Direct
                if setup.front != Front::Http || setup.call != Call::Get || setup.relay =>
            {
                Some("its configuration here is for HTTP/1.1 in clear text")
            }
            Self::Caddy if setup.limit => Some("the stock build has no rate limit"),
            Self::SpringCloud if setup.limit => Some("its rate limiter needs Redis"),
            Self::Zuul1 if setup.limit => Some("it has no rate limit of its own"),
            Self::SpringCloud | Self::Zuul1 if setup.key => Some("it has no API keys of its own"),
            Self::Linkerd if setup.key || setup.limit => Some("it has neither API keys nor rate limits"),
            Self::Linkerd if setup.routes > 1 => Some("it routes by host, not by path"),
            _ => None,
        }
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Serialize for Gateway {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The tasks of a gateway in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setup {
    pub answer: Answer,
    /// The protocol between clients and gateway; the upstream protocol is HTTP/1.1, or gRPC.
    pub front: Front,
    pub call: Call,
    /// Forward bytes without parsing them.
    pub relay: bool,
    /// Clients offer the post-quantum key exchange instead of X25519.
    pub hybrid: bool,
    /// The gateway's certificate has an RSA key (2048 bits) instead of an ECDSA key.
    pub rsa: bool,
    /// Number of exact routes: `/hello` if 1, else `/hello/0` and so on.
    pub routes: usize,
    /// Mixed routes, with hosts, parameters and plugins (`mixture.rs`).
    pub mixed: bool,
    /// Number of consumers with an API key each, which the route requires (Sluice only).
    pub consumers: usize,
    /// Number of certificates with a server name each (Sluice only).
    pub certificates: usize,
    /// Authenticate by API key.
    pub key: bool,
    /// Count requests per client address against a limit that is never reached.
    pub limit: bool,
    /// Count them in a Redis server of the run (Sluice only).
    pub redis: bool,
    /// Keep metrics per route. nginx, HAProxy, Envoy and Pingora keep their default metrics.
    pub metrics: bool,
    /// Ten common plugins, including those of `key`, `limit` and `metrics` (Sluice only).
    pub ten: bool,
    pub workers: usize,
    /// Configured through the Admin API and a store instead of a file (Sluice only).
    pub admin: bool,
    /// Log a line for every request to a file, in APISIX's format (Sluice only).
    pub access_log: bool,
    /// A plugin by itself (Sluice only).
    pub plugin: Option<Alone>,
    /// A filter in WebAssembly that does nothing, on the route (Sluice only).
    pub wasm: bool,
    /// The live view and a tap with these conditions are open during the load (Sluice only).
    pub tap: Option<&'static str>,
}

impl Setup {
    /// One route, one worker, nothing else.
    pub const PLAIN: Self = Self {
        answer: Answer::Chunked4000,
        front: Front::Http,
        call: Call::Get,
        relay: false,
        hybrid: false,
        rsa: false,
        routes: 1,
        mixed: false,
        consumers: 0,
        certificates: 0,
        key: false,
        limit: false,
        redis: false,
        metrics: false,
        ten: false,
        workers: 1,
        admin: false,
        access_log: false,
        plugin: None,
        wasm: false,
        tap: None,
    };

    pub fn paths(&self) -> Vec<String> {
        let target = self.target(([127, 0, 0, 1], 0).into());
        (0..self.routes).map(|index| target.path(index)).collect()
    }

    /// The target for a gateway with this setup that listens on `address`.
    pub fn target(&self, address: SocketAddr) -> Target {
        Target {
            address,
            front: self.front,
            call: self.call,
            // The other half is changed during the load.
            paths: if self.mixed && self.admin { self.routes.div_ceil(2) } else { self.routes },
            key: match self.plugin.and_then(|plugin| plugin.consumer) {
                Some((_, credential)) => Some(credential),
                None if self.consumers > 0 => Some("key-of-user-0"),
                None => self.key.then_some(KEY),
            },
            body: self.answer.body(),
            mixed: self.mixed,
            hybrid: self.hybrid,
        }
    }
}

/// The folder and ports of one gateway of a run.
#[derive(Clone, Debug)]
pub struct Place {
    pub folder: PathBuf,
    pub port: u16,
    pub admin_port: u16,
    pub metrics_port: u16,
    /// For gateways that need a plaintext port as well.
    pub spare_port: u16,
    pub control_port: u16,
    pub upstream_port: u16,
    pub redis_port: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse() {
        for gateway in Gateway::ALL {
            assert_eq!(Gateway::from_name(gateway.name()), Some(gateway));
        }
        assert_eq!(Gateway::from_name("apache"), None);
    }

    #[test]
    fn paths_follow_the_number_of_routes() {
        assert_eq!(Setup::PLAIN.paths(), ["/hello"]);
        assert_eq!(Setup { routes: 2, ..Setup::PLAIN }.paths(), ["/hello/0", "/hello/1"]);
    }
}
