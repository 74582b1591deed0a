//! hot path
//!
//! The server with the fewest exchanges in flight for its weight, as this worker
//! sees it.

use std::net::SocketAddr;

use super::scores::{Score, Scores};
use super::{Choice, Tier};
use crate::upstream::Endpoint;

#[derive(Debug)]
pub(super) struct State {
    servers: Scores<InFlight>,
    /// Number of servers in the upstream version used last.
    len: usize,
    /// Where the search starts, so that equally loaded servers take turns.
    from: usize,
}

/// Exchanges in flight with one server.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct InFlight(u32);

impl InFlight {
    pub fn count(&self) -> u32 {
        self.0
    }

    pub fn add(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Returns the remaining count.
    pub fn sub(&mut self) -> u32 {
        self.0 = self.0.saturating_sub(1);
        self.0
    }
}

impl Score for InFlight {
    fn matters(&self) -> bool {
        self.0 > 0
    }
}

impl State {
    pub fn new(endpoints: &[Endpoint]) -> State {
        let len = endpoints.len();
        State { servers: Scores::new(endpoints), len, from: fastrand::usize(..len.max(1)) }
    }

    #[inline]
    pub fn pick(&mut self, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        let len = tier.range.len();
        let from = self.from % len.max(1);
        self.from = from + 1;
        // (in flight with this one, weight, index)
        let mut best: Option<(u64, u64, usize)> = None;
        for step in 0..len {
            let offset = if from + step < len { from + step } else { from + step - len };
            let index = tier.range.start + offset;
            let weight = u64::from(choice.weight(index));
            if weight == 0 {
                continue;
            }
            let busy = u64::from(self.servers.get(index)?.0) + 1;
            // busy / weight compared without dividing; both are below 2^33.
            if best.is_none_or(|(other, other_weight, _)| busy * other_weight < other * weight) {
                best = Some((busy, weight, index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    #[inline]
    pub fn begin(&mut self, index: usize, addr: SocketAddr) {
        let busy = self.servers.find_or_add(index, addr);
        busy.0 = busy.0.saturating_add(1);
    }

    #[inline]
    pub fn done(&mut self, index: usize, addr: SocketAddr) {
        let Some(busy) = self.servers.find(index, addr, Score::matters) else { return };
        busy.0 -= 1;
        if busy.0 == 0 && index >= self.len {
            self.servers.trim(self.len);
        }
    }

    pub fn carry(&mut self, before: State) {
        self.servers.carry(before.servers);
    }

    #[cfg(test)]
    pub fn in_flight(&self) -> Vec<u32> {
        self.servers.iter().map(|busy| busy.0).collect()
    }
}
