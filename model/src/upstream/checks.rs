//! Health checks of an upstream's nodes.

use std::time::Duration;

use serde::Deserialize;

use crate::field;

/// Health checks; passive ones need active ones to bring a node back.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Checks {
    pub active: Active,
    pub passive: Option<Passive>,
}

/// The protocol of a health check.
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
    #[serde(deserialize_with = "field::seconds")]
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
