//! A route, ready to run.

use std::sync::Arc;
use std::time::Duration;

use sdk::{Chain, RouteInfo};

use crate::upstream::Upstream;

/// What a matched request runs through: route, service and plugin config merged
/// (APISIX's order: route over plugin config over service).
#[derive(Debug, Clone)]
pub struct Plan {
    pub info: RouteInfo,
    /// The merged plugins; `None` if there are none.
    pub chain: Option<Arc<dyn Chain>>,
    /// Where requests go, or why they can't.
    pub upstream: Result<Arc<Upstream>, Failure>,
    /// The route's own time-outs, else the upstream's, else the defaults.
    pub timeouts: Timeouts,
    /// `Upgrade` is passed on.
    pub websocket: bool,
}

impl Plan {
    /// One without stages or an upstream.
    pub fn new(info: RouteInfo) -> Plan {
        Plan {
            info,
            chain: None,
            upstream: Err(Failure::NoUpstream),
            timeouts: Timeouts::default(),
            websocket: false,
        }
    }
}

/// Why a plan has no upstream. The route itself matches; plugins may still answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `service_id` names a service that does not exist: 404.
    NoService,
    /// `plugin_config_id` names nothing: 503.
    NoPluginConfig,
    /// `upstream_id` names nothing: 502.
    NoUpstreamObject,
    /// Neither route nor service say where to go: 503.
    NoUpstream,
}

/// Bounds of one exchange with an upstream (APISIX: `timeout`, default 60 s each).
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
