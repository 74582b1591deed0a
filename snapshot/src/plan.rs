//! A compiled route.

use std::fmt;
use std::sync::Arc;

use sdk::{Chain, RouteInfo};

pub use crate::upstream::Timeouts;
use crate::upstream::Upstream;

/// The configuration of a matched request: route, service and plugin config merged (APISIX's order:
/// route over plugin config over service). Together with the counts of its [`Arc`] it fills one
/// cache line, and finding a plan does not touch it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The merged plugins; `None` if there are none.
    pub chain: Option<Arc<Chain>>,
    /// The route's own timeouts, which override the upstream's.
    pub timeouts: Option<Box<Timeouts>>,
    pub info: RouteInfo,
    pub(crate) target: SlotOrFailure,
    /// Whether `Upgrade` is forwarded.
    pub websocket: bool,
}

const _: () = assert!(size_of::<Plan>() + 2 * size_of::<usize>() <= 64);

impl Plan {
    /// A plan without plugins or an upstream.
    pub fn new(info: RouteInfo) -> Plan {
        let target = Err(Failure::NoUpstream).into();
        Plan { chain: None, timeouts: None, info, target, websocket: false }
    }

    /// Returns the [`Upstream::slot`] that requests go to, or the reason it is missing. See
    /// [`Snapshot::upstream`](crate::Snapshot::upstream).
    #[inline]
    pub fn upstream(&self) -> Result<u32, Failure> {
        self.target.get()
    }

    /// The timeouts that apply with the upstream of this plan.
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

/// The slot of an upstream or the reason it is missing, in four bytes. Slots are counted up from 0
/// and never reach the numbers that encode failures: each has an upstream in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotOrFailure(u32);

impl SlotOrFailure {
    /// The lowest number that encodes a failure.
    const FAILURES: u32 = u32::MAX - 3;

    #[inline]
    pub fn get(self) -> Result<u32, Failure> {
        match self.0.wrapping_sub(SlotOrFailure::FAILURES) {
            0 => Err(Failure::NoService),
            1 => Err(Failure::NoPluginConfig),
            2 => Err(Failure::NoUpstreamObject),
            3 => Err(Failure::NoUpstream),
            _ => Ok(self.0),
        }
    }
}

impl From<Result<u32, Failure>> for SlotOrFailure {
    fn from(upstream: Result<u32, Failure>) -> SlotOrFailure {
        SlotOrFailure(match upstream {
            Ok(slot) => slot,
            Err(Failure::NoService) => SlotOrFailure::FAILURES,
            Err(Failure::NoPluginConfig) => SlotOrFailure::FAILURES + 1,
            Err(Failure::NoUpstreamObject) => SlotOrFailure::FAILURES + 2,
            Err(Failure::NoUpstream) => SlotOrFailure::FAILURES + 3,
        })
    }
}

impl fmt::Debug for SlotOrFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_or_failure_round_trips() {
        let failures =
            [Failure::NoService, Failure::NoPluginConfig, Failure::NoUpstreamObject, Failure::NoUpstream];
        for upstream in failures.map(Err).into_iter().chain([0, 1, u32::MAX - 4].map(Ok)) {
            assert_eq!(SlotOrFailure::from(upstream).get(), upstream);
        }
    }
}
