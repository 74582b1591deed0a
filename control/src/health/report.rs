//! Reports on checked servers, for the control API, metrics and people.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use model::Key;
use model::upstream::CheckType;
use snapshot::health::{Counters, Target};

/// An upstream whose servers are checked.
#[derive(Debug, Clone)]
pub struct Checker {
    /// The resource it is written in; `#` and a number stand behind the id of one in a plugin's settings.
    pub key: Key,
    /// `None` if it has no `checks`.
    pub kind: Option<CheckType>,
    /// The checked nodes, in the order of the servers.
    pub nodes: Vec<NodeReport>,
    /// The view from the traffic on each server, where it is observed.
    pub servers: Vec<Server>,
    /// The limit of requests that follows how long answers take, where there is one.
    pub limit: Option<u32>,
}

/// The view from the traffic on a server.
#[derive(Debug, Clone)]
pub struct Server {
    pub addr: SocketAddr,
    /// Why it is ejected, if it is.
    pub ejected: Option<&'static str>,
    /// For how long.
    pub remaining: Option<Duration>,
    /// How much of its share it gets, less than 1 while it warms up.
    pub share: f64,
}

/// A checked server.
#[derive(Debug, Clone)]
pub struct NodeReport {
    pub addr: SocketAddr,
    pub hostname: String,
    pub host_header: Option<String>,
    /// In APISIX's words.
    pub status: &'static str,
    pub usable: bool,
    pub counter: Counter,
    /// The last ones, the newest at the end.
    pub probes: Vec<Probe>,
    /// The last one that was no success.
    pub last_error: Option<Probe>,
}

/// Counts since the last report of the opposite sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    pub success: u8,
    pub http_failure: u8,
    pub tcp_failure: u8,
    pub timeout_failure: u8,
}

/// One probe, with what came of it in words.
#[derive(Debug, Clone)]
pub struct Probe {
    pub at: SystemTime,
    pub took: Duration,
    pub outcome: String,
}

impl NodeReport {
    pub(super) fn new(target: &Target, probes: &VecDeque<Probe>, last_error: &Option<Probe>) -> NodeReport {
        let Counters { success, http_failure, tcp_failure, timeout_failure } = target.counters();
        let status = target.status();
        NodeReport {
            addr: target.addr,
            hostname: target.hostname.clone(),
            host_header: target.host_header.clone(),
            status: status.as_str(),
            usable: status.is_usable(),
            counter: Counter { success, http_failure, tcp_failure, timeout_failure },
            probes: probes.iter().cloned().collect(),
            last_error: last_error.clone(),
        }
    }
}
