//! hot path
//!
//! Chooses the server of the next attempt.
//!
//! Everything that depends only on the configuration (tiers, hash rings) is built once, with the
//! [`Upstream`]; the state that changes with every request is each worker's own [`BalanceState`],
//! so nothing is shared or locked. Choosing does not allocate. [`ExcludedServers`] holds the
//! servers that are not chosen, because they are unhealthy or already failed in this exchange.

mod chash;
mod ewma;
mod least_conn;
mod p2c;
mod priority;
mod roundrobin;
mod scores;
mod sticky;

use std::net::SocketAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use sdk::Exchange;
use sdk::vars::Var;
use smallvec::SmallVec;

use crate::health::Avoided;
use crate::upstream::{Budget, Endpoint, Policy, Upstream};
pub use chash::HashOn;
pub(crate) use chash::Ring;
pub(crate) use priority::{Tier, arrange};
pub use sticky::Sticky;

/// The servers excluded from one exchange, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExcludedServers(SmallVec<[u64; 2]>);

/// Servers grouped by a field of their metadata; a request goes to the group whose value equals a
/// variable (`sluice.subset`).
#[derive(Debug, Clone, PartialEq)]
pub struct Subset {
    pub(crate) on: Var,
    /// By value, the servers that do not have it.
    pub(crate) others: HashMap<Box<[u8]>, ExcludedServers, FixedState>,
    /// Without a usable server in the subset, the request fails instead of using another subset.
    pub(crate) required: bool,
}

impl Subset {
    /// The servers outside the request's subset; `None` if no server has its value.
    fn excluded_by(&self, x: &Exchange<'_>, bytes: &mut Vec<u8>) -> Option<&ExcludedServers> {
        bytes.clear();
        if !self.on.write(x, bytes) {
            return None;
        }
        let others = self.others.get(bytes.as_slice());
        if bytes.capacity() > KEPT {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
        others
    }
}

/// The most memory kept for the value that selects a subset.
const KEPT: usize = 1 << 10;

/// One worker's balancing state of one upstream.
#[derive(Debug)]
pub struct BalanceState {
    state: PolicyState,
    /// The servers avoided for their health, as of the health change counter `changes`.
    avoided: Avoided,
    changes: Option<u32>,
    /// Remaining retry budget in thousandths of a retry, if there is a budget.
    saved: Option<u32>,
    /// Scratch memory for the value that selects a subset.
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum PolicyState {
    /// A single server needs no state.
    Single,
    RoundRobin(roundrobin::State),
    /// Scratch memory for the bytes to hash.
    Chash(Vec<u8>),
    LeastConn(least_conn::State),
    P2c(p2c::State),
    Ewma(ewma::State),
}

impl Upstream {
    /// A worker's initial state. Workers start at different servers.
    pub fn state(&self) -> BalanceState {
        BalanceState::of(match self.policy {
            // In-flight exchanges of a single server count once a second one is added (APISIX:
            // #12217).
            Policy::LeastConn => PolicyState::LeastConn(least_conn::State::new(&self.endpoints)),
            Policy::P2c => PolicyState::P2c(p2c::State::new(&self.endpoints)),
            _ if self.endpoints.len() < 2 => PolicyState::Single,
            Policy::RoundRobin => {
                PolicyState::RoundRobin(roundrobin::State::new(&self.tiers, &self.endpoints))
            }
            Policy::Chash(_) => PolicyState::Chash(Vec::new()),
            Policy::Ewma => PolicyState::Ewma(ewma::State::new(&self.endpoints)),
        })
    }

    /// Returns the first server to try, and the servers excluded because they are unhealthy or
    /// ejected. Servers that warm up are skipped now and then. If all are unhealthy, all are used
    /// (as in APISIX). A request that `stays` goes to that server if it is usable and has a weight.
    pub fn pick_first(
        &self,
        state: &mut BalanceState,
        x: &Exchange<'_>,
        now_ms: u64,
        stays: Option<usize>,
    ) -> (Option<usize>, ExcludedServers) {
        let avoided = self.avoided(state);
        let may_stay = |within: &ExcludedServers| {
            stays.filter(|&index| {
                let weight = self.endpoints.get(index).map_or(0, |endpoint| endpoint.weight);
                weight > 0 && !within.contains(index)
            })
        };
        let Some(subset) = &self.subset else {
            let picked = may_stay(&avoided).or_else(|| self.pick_warm(state, x, &avoided, now_ms));
            return (picked, avoided);
        };
        let mut within = avoided.clone();
        match subset.excluded_by(x, &mut state.bytes) {
            Some(others) => within.add(others),
            None if subset.required => (0..self.endpoints.len()).for_each(|index| within.insert(index)),
            None => {}
        }
        match may_stay(&within).or_else(|| self.pick_warm(state, x, &within, now_ms)) {
            // A request that may leave its subset may also leave it on a retry.
            Some(index) if !subset.required => (Some(index), avoided),
            None if !subset.required => (self.pick_warm(state, x, &avoided, now_ms), avoided),
            picked => (picked, within),
        }
    }

    /// The servers excluded for their health.
    fn avoided(&self, state: &mut BalanceState) -> ExcludedServers {
        let Some(health) = &self.health else { return ExcludedServers::default() };
        let changes = health.changes();
        if state.changes != Some(changes) {
            state.avoided = health.avoided(&self.endpoints);
            state.changes = Some(changes);
        }
        state.avoided.servers.clone()
    }

    /// Skips servers that warm up now and then.
    fn pick_warm(
        &self,
        state: &mut BalanceState,
        x: &Exchange<'_>,
        avoided: &ExcludedServers,
        now_ms: u64,
    ) -> Option<usize> {
        if !state.avoided.cold.is_empty() {
            let mut fewer = avoided.clone();
            let cold = state.avoided.cold.iter().filter(|(_, cold)| fastrand::u8(..) < *cold);
            cold.for_each(|(index, _)| fewer.insert(*index as usize));
            if let Some(index) = self.pick(state, x, &fewer, now_ms) {
                return Some(index);
            }
        }
        self.pick(state, x, avoided, now_ms)
    }

    /// Whether another attempt has a server left.
    pub fn has_another(&self, tried: &ExcludedServers, index: usize) -> bool {
        let addr = self.endpoints[index].addr;
        let left = |(at, it): (usize, &Endpoint)| it.weight > 0 && it.addr != addr && !tried.contains(at);
        self.endpoints.len() == 1 || self.endpoints.iter().enumerate().any(left)
    }

    /// The server to try next, as an index into `endpoints`: from the highest tier with an untried
    /// server. `None` if all were tried. A server of weight 0 is used only if it is the only one.
    #[inline]
    pub fn pick(
        &self,
        state: &mut BalanceState,
        x: &Exchange<'_>,
        tried: &ExcludedServers,
        now_ms: u64,
    ) -> Option<usize> {
        if self.endpoints.len() < 2 {
            return (!self.endpoints.is_empty() && !tried.contains(0)).then_some(0);
        }
        let choice = Choice { endpoints: &self.endpoints, tried };
        match &mut state.state {
            PolicyState::Single => None,
            PolicyState::RoundRobin(state) => self.in_tiers(|at, tier| state.pick(at, tier, choice)),
            PolicyState::Chash(bytes) => {
                let Policy::Chash(on) = &self.policy else { return None };
                let hash = on.hash(x, bytes);
                self.in_tiers(|at, _| self.rings.get(at)?.pick(hash, choice))
            }
            PolicyState::LeastConn(state) => self.in_tiers(|_, tier| state.pick(tier, choice)),
            PolicyState::P2c(state) => self.in_tiers(|_, tier| state.pick(tier, choice)),
            PolicyState::Ewma(state) => {
                state.now(now_ms);
                self.in_tiers(|_, tier| state.pick(tier, choice))
            }
        }
    }

    /// Whether [`BalanceState::begin`] and [`BalanceState::done`] record anything.
    #[inline]
    pub fn keeps_score(&self) -> bool {
        match self.policy {
            Policy::LeastConn | Policy::P2c => true,
            Policy::Ewma => self.endpoints.len() > 1,
            _ => false,
        }
    }

    /// Records a failed server, and with it all servers of its tier with the same address.
    pub fn note(&self, tried: &mut ExcludedServers, index: usize) {
        let Some(tier) = self.tiers.iter().find(|tier| tier.range.contains(&index)) else { return };
        let addr = self.endpoints[index].addr;
        let same = tier.range.clone().filter(|&other| self.endpoints[other].addr == addr);
        same.for_each(|other| tried.insert(other));
    }

    #[inline]
    fn in_tiers(&self, mut pick: impl FnMut(usize, &Tier) -> Option<usize>) -> Option<usize> {
        self.tiers.iter().enumerate().find_map(|(at, tier)| pick(at, tier))
    }
}

impl BalanceState {
    fn of(state: PolicyState) -> BalanceState {
        BalanceState { state, avoided: Avoided::default(), changes: None, saved: None, bytes: Vec::new() }
    }

    /// Records the start of an attempt. The upstream may be an older version than the one the state
    /// belongs to: results of its exchanges count for the new version, too.
    #[inline]
    pub fn begin(&mut self, index: usize, addr: SocketAddr) {
        match &mut self.state {
            PolicyState::LeastConn(state) => state.begin(index, addr),
            PolicyState::P2c(state) => state.begin(index, addr),
            _ => {}
        }
    }

    /// Adds a request's share to the retry budget.
    pub fn save(&mut self, budget: Budget) {
        let most = budget.burst.saturating_mul(1000);
        self.saved = Some(self.saved.unwrap_or(most).saturating_add(budget.for_each).min(most.max(1000)));
    }

    /// Takes one retry from the budget; `false` if less than one is left.
    pub fn spend(&mut self, budget: Budget) -> bool {
        let left = self.saved.unwrap_or(budget.burst.saturating_mul(1000));
        self.saved = Some(left.saturating_sub(if left >= 1000 { 1000 } else { 0 }));
        left >= 1000
    }

    /// Records the end of an attempt. `micros` is how long it took, `ok` whether there was a
    /// response.
    #[inline]
    pub fn done(&mut self, index: usize, addr: SocketAddr, micros: u64, ok: bool) {
        match &mut self.state {
            PolicyState::LeastConn(state) => state.done(index, addr),
            PolicyState::P2c(state) => state.done(index, addr),
            PolicyState::Ewma(state) => state.done(index, addr, micros, ok),
            _ => {}
        }
    }

    /// Adapts this state to `new`; keeps the scores of servers in both versions and all in-flight
    /// counts.
    pub fn carry(&mut self, old: &Upstream, new: &Upstream) {
        let fresh = new.state();
        let before = std::mem::replace(self, fresh);
        self.saved = before.saved;
        let before = before.state;
        match (&mut self.state, before) {
            (PolicyState::RoundRobin(state), PolicyState::RoundRobin(before)) => {
                state.carry(&before, &new.tiers, &new.endpoints, &Moved::new(old, new));
            }
            (PolicyState::LeastConn(state), PolicyState::LeastConn(before)) => state.carry(before),
            (PolicyState::P2c(state), PolicyState::P2c(before)) => state.carry(before),
            (PolicyState::Ewma(state), PolicyState::Ewma(before)) => state.carry(before),
            _ => {}
        }
    }
}

impl ExcludedServers {
    /// Adds all servers of another set.
    fn add(&mut self, others: &ExcludedServers) {
        if others.0.len() > self.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
    }

    /// Adds a server. Allocates only for the 129th server and beyond.
    pub(crate) fn insert(&mut self, index: usize) {
        let word = index / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (index % 64);
    }

    #[inline]
    pub fn contains(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The servers to choose from.
#[derive(Debug, Clone, Copy)]
struct Choice<'a> {
    endpoints: &'a [Endpoint],
    tried: &'a ExcludedServers,
}

impl Choice<'_> {
    /// The weight of a usable server; 0 if it is excluded.
    #[inline]
    fn weight(self, index: usize) -> u32 {
        match self.endpoints.get(index) {
            Some(endpoint) if !self.tried.contains(index) => endpoint.weight,
            _ => 0,
        }
    }
}

/// Maps servers of a new upstream to their old indices.
struct Moved(Vec<Option<usize>>);

impl Moved {
    fn new(old: &Upstream, new: &Upstream) -> Moved {
        let mut indices: HashMap<SocketAddr, usize, FixedState> = HashMap::default();
        for (index, endpoint) in old.endpoints.iter().enumerate().rev() {
            indices.insert(endpoint.addr, index);
        }
        Moved(new.endpoints.iter().map(|endpoint| indices.get(&endpoint.addr).copied()).collect())
    }

    /// Pairs of (new index, old index).
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().enumerate().filter_map(|(new, old)| old.map(|old| (new, old)))
    }
}

#[cfg(test)]
mod tests;
