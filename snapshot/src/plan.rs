//! A route, ready to run.

use std::sync::Arc;

use sdk::{Chain, RouteInfo};

pub use crate::upstream::Timeouts;
use crate::upstream::Upstream;

/// What a matched request runs through: route, service and plugin config merged
/// (APISIX's order: route over plugin config over service). All of it lies in one cache line, and
/// finding a plan does not touch it.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Plan {
    /// The merged plugins; `None` if there are none.
    pub chain: Option<Arc<Chain>>,
    /// The [`Upstream::slot`] that requests go to, or why there is none. See
    /// [`Snapshot::upstream`](crate::Snapshot::upstream).
    pub upstream: Result<u32, Failure>,
    /// `Upgrade` is passed on.
    pub websocket: bool,
    /// The route's own time-outs, which override the upstream's.
    pub timeouts: Option<Box<Timeouts>>,
    pub info: RouteInfo,
}

const _: () = assert!(size_of::<Plan>() == 64);

impl Plan {
    /// A plan without plugins or an upstream.
    pub fn new(info: RouteInfo) -> Plan {
        Plan { chain: None, upstream: Err(Failure::NoUpstream), websocket: false, timeouts: None, info }
    }

    /// The time-outs that apply with the upstream of this plan.
    #[inline]
    pub fn timeouts<'a>(&'a self, upstream: &'a Upstream) -> &'a Timeouts {
        self.timeouts.as_deref().unwrap_or(&upstream.timeouts)
    }
}

/// Why a plan has no upstream. The route itself matches; plugins may still answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// `service_id` refers to a service that does not exist: 404.
    NoService,
    /// `plugin_config_id` refers to nothing: 503.
    NoPluginConfig,
    /// `upstream_id` refers to nothing: 502.
    NoUpstreamObject,
    /// Neither route nor service has an upstream: 503.
    NoUpstream,
}
