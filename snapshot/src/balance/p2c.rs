//! hot path
//!
//! Of two servers drawn at random, the one with fewer exchanges in flight for its weight, as this
//! worker sees it (ours: `p2c`). The cost does not depend on the number of servers, and, unlike
//! with `least_conn`, the workers do not all choose the same server at the same moment.

use std::net::SocketAddr;

use super::least_conn::InFlight;
use super::scores::{Score, Scores};
use super::{Choice, Tier};
use crate::upstream::Endpoint;

/// Random draws before all servers are scanned for a usable one.
const DRAWS: usize = 8;

#[derive(Debug)]
pub(super) struct State {
    servers: Scores<InFlight>,
    /// Number of servers in the upstream version used last.
    len: usize,
}

impl State {
    pub fn new(endpoints: &[Endpoint]) -> State {
        State { servers: Scores::new(endpoints), len: endpoints.len() }
    }

    #[inline]
    pub fn pick(&mut self, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        let first = draw(tier, choice, None)?;
        let Some(second) = draw(tier, choice, Some(first)) else { return Some(first) };
        Some(if self.load(second, choice) < self.load(first, choice) { second } else { first })
    }

    #[inline]
    pub fn begin(&mut self, index: usize, addr: SocketAddr) {
        self.servers.find_or_add(index, addr).add();
    }

    #[inline]
    pub fn done(&mut self, index: usize, addr: SocketAddr) {
        let Some(busy) = self.servers.find(index, addr, Score::matters) else { return };
        if busy.sub() == 0 && index >= self.len {
            self.servers.trim(self.len);
        }
    }

    pub fn carry(&mut self, before: State) {
        self.servers.carry(before.servers);
    }

    /// The load with one more exchange in flight, relative to the weight.
    fn load(&self, index: usize, choice: Choice<'_>) -> f64 {
        let busy = self.servers.get(index).map_or(0, InFlight::count);
        f64::from(busy + 1) / f64::from(choice.weight(index).max(1))
    }

    #[cfg(test)]
    pub fn in_flight(&self) -> Vec<u32> {
        self.servers.iter().map(InFlight::count).collect()
    }
}

/// A random usable server other than `but`, if there is one.
#[inline]
fn draw(tier: &Tier, choice: Choice<'_>, but: Option<usize>) -> Option<usize> {
    let fits = |index: usize| choice.weight(index) > 0 && Some(index) != but;
    let len = tier.range.len();
    for _ in 0..DRAWS {
        let index = tier.range.start + fastrand::usize(..len);
        if fits(index) {
            return Some(index);
        }
    }
    // Few are usable: scan from a random index.
    let from = fastrand::usize(..len);
    (0..len).map(|step| tier.range.start + (from + step) % len).find(|&index| fits(index))
}
