//! hot path
//!
//! Tiers of servers: lower ones are used when all above have failed (APISIX: a
//! node's `priority`).

use std::ops::Range;

use crate::upstream::Endpoint;

/// Servers of one priority, adjacent in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tier {
    pub range: Range<usize>,
    /// All have the same weight, so plain rotation is enough.
    pub even: bool,
}

/// Sorts servers by descending priority, keeping the configured order within one, and returns the
/// tiers.
pub(crate) fn arrange(endpoints: &mut [Endpoint]) -> Vec<Tier> {
    endpoints.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.priority));
    let mut start = 0;
    let same = |a: &Endpoint, b: &Endpoint| a.priority == b.priority;
    let mut tiers: Vec<Tier> = endpoints
        .chunk_by(same)
        .map(|tier| {
            let range = start..start + tier.len();
            start = range.end;
            Tier { range, even: tier.iter().all(|endpoint| endpoint.weight == tier[0].weight) }
        })
        .collect();
    // Nearly all upstreams have one tier, but a new list reserves room for four.
    tiers.shrink_to_fit();
    tiers
}
