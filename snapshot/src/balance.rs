//! hot path
//!
//! Which server gets the next try.
//!
//! Everything that depends only on the configuration (tiers, hash rings) is built once,
//! with the [`Upstream`]; what changes with every request is a worker's own
//! [`BalanceState`], so nothing is shared and nothing is locked. Choosing does
//! not allocate. Servers that are not to be tried, for their health or since they failed
//! for this exchange, are in [`Tried`].

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

/// The servers that are not tried for one exchange, or not again, by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tried(SmallVec<[u64; 2]>);

/// Servers by a part of their metadata; a request goes to those whose part is the value of a
/// variable (`sluice.subset`).
#[derive(Debug, Clone, PartialEq)]
pub struct Subset {
    pub(crate) on: Var,
    /// By value, the servers that do not have it.
    pub(crate) others: HashMap<Box<[u8]>, Tried, FixedState>,
    /// No server is better than one of another subset.
    pub(crate) required: bool,
}

impl Subset {
    /// The servers that a request does not go to; `None` if no server has its value.
    fn others(&self, x: &Exchange<'_>, bytes: &mut Vec<u8>) -> Option<&Tried> {
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

/// Memory kept for the value a subset is found by.
const KEPT: usize = 1 << 10;

/// What one worker remembers of one upstream.
#[derive(Debug)]
pub struct BalanceState {
    state: State,
    /// The servers avoided for their health, as of so many changes of verdicts.
    avoided: Avoided,
    changes: Option<u32>,
    /// Thousandths of retries that are left, where there is a budget.
    saved: Option<u32>,
    /// The value a subset is found by.
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// Nothing to remember.
    Single,
    RoundRobin(roundrobin::State),
    /// Holds the bytes to hash.
    Chash(Vec<u8>),
    LeastConn(least_conn::State),
    P2c(p2c::State),
    Ewma(ewma::State),
}

impl Upstream {
    /// A worker's initial state. Workers start at different servers.
    pub fn state(&self) -> BalanceState {
        BalanceState::of(match self.policy {
            // What a single server has in flight counts once there are more (APISIX: #12217).
            Policy::LeastConn => State::LeastConn(least_conn::State::new(&self.endpoints)),
            Policy::P2c => State::P2c(p2c::State::new(&self.endpoints)),
            _ if self.endpoints.len() < 2 => State::Single,
            Policy::RoundRobin => State::RoundRobin(roundrobin::State::new(&self.tiers, &self.endpoints)),
            Policy::Chash(_) => State::Chash(Vec::new()),
            Policy::Ewma => State::Ewma(ewma::State::new(&self.endpoints)),
        })
    }

    /// The first server to try, and the servers that are not tried at all since they are unhealthy or
    /// ejected. Those that warm up are left out now and then. If all are unhealthy, all are used (APISIX's
    /// rule). A request that `stays` goes to that server if it may be used and has a weight.
    pub fn pick_first(
        &self,
        state: &mut BalanceState,
        x: &Exchange<'_>,
        now_ms: u64,
        stays: Option<usize>,
    ) -> (Option<usize>, Tried) {
        let avoided = self.avoided(state);
        let may_stay = |within: &Tried| {
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
        match subset.others(x, &mut state.bytes) {
            Some(others) => within.add(others),
            None if subset.required => (0..self.endpoints.len()).for_each(|index| within.insert(index)),
            None => {}
        }
        match may_stay(&within).or_else(|| self.pick_warm(state, x, &within, now_ms)) {
            // A request that may leave its subset may do so when it is tried again, too.
            Some(index) if !subset.required => (Some(index), avoided),
            None if !subset.required => (self.pick_warm(state, x, &avoided, now_ms), avoided),
            picked => (picked, within),
        }
    }

    /// The servers that are not tried at all for their health.
    fn avoided(&self, state: &mut BalanceState) -> Tried {
        let Some(health) = &self.health else { return Tried::default() };
        let changes = health.changes();
        if state.changes != Some(changes) {
            state.avoided = health.avoided(&self.endpoints);
            state.changes = Some(changes);
        }
        state.avoided.servers.clone()
    }

    /// Leaves servers out that warm up, now and then.
    fn pick_warm(
        &self,
        state: &mut BalanceState,
        x: &Exchange<'_>,
        avoided: &Tried,
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

    /// Whether there is a server left for another try.
    pub fn has_another(&self, tried: &Tried, index: usize) -> bool {
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
        tried: &Tried,
        now_ms: u64,
    ) -> Option<usize> {
        if self.endpoints.len() < 2 {
            return (!self.endpoints.is_empty() && !tried.contains(0)).then_some(0);
        }
        let choice = Choice { endpoints: &self.endpoints, tried };
        match &mut state.state {
            State::Single => None,
            State::RoundRobin(state) => self.in_tiers(|at, tier| state.pick(at, tier, choice)),
            State::Chash(bytes) => {
                let Policy::Chash(on) = &self.policy else { return None };
                let hash = on.hash(x, bytes);
                self.in_tiers(|at, _| self.rings.get(at)?.pick(hash, choice))
            }
            State::LeastConn(state) => self.in_tiers(|_, tier| state.pick(tier, choice)),
            State::P2c(state) => self.in_tiers(|_, tier| state.pick(tier, choice)),
            State::Ewma(state) => {
                state.now(now_ms);
                self.in_tiers(|_, tier| state.pick(tier, choice))
            }
        }
    }

    /// Whether [`BalanceState::begin`] and [`BalanceState::done`] have anything to remember.
    #[inline]
    pub fn keeps_score(&self) -> bool {
        match self.policy {
            Policy::LeastConn | Policy::P2c => true,
            Policy::Ewma => self.endpoints.len() > 1,
            _ => false,
        }
    }

    /// Records a failed server, and with it all servers of its tier with the same address.
    pub fn note(&self, tried: &mut Tried, index: usize) {
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
    fn of(state: State) -> BalanceState {
        BalanceState { state, avoided: Avoided::default(), changes: None, saved: None, bytes: Vec::new() }
    }

    /// A try with this server begins. The upstream may be an older version than the one the state
    /// belongs to: results of its exchanges count for the new version, too.
    #[inline]
    pub fn begin(&mut self, index: usize, addr: SocketAddr) {
        match &mut self.state {
            State::LeastConn(state) => state.begin(index, addr),
            State::P2c(state) => state.begin(index, addr),
            _ => {}
        }
    }

    /// A request comes, and adds to what may be tried again.
    pub fn save(&mut self, budget: Budget) {
        let most = budget.burst.saturating_mul(1000);
        self.saved = Some(self.saved.unwrap_or(most).saturating_add(budget.for_each).min(most.max(1000)));
    }

    /// Takes a retry from what was saved; `false` if there is none left.
    pub fn spend(&mut self, budget: Budget) -> bool {
        let left = self.saved.unwrap_or(budget.burst.saturating_mul(1000));
        self.saved = Some(left.saturating_sub(if left >= 1000 { 1000 } else { 0 }));
        left >= 1000
    }

    /// The try is over. `micros` is how long it took, `ok` whether there was a response.
    #[inline]
    pub fn done(&mut self, index: usize, addr: SocketAddr, micros: u64, ok: bool) {
        match &mut self.state {
            State::LeastConn(state) => state.done(index, addr),
            State::P2c(state) => state.done(index, addr),
            State::Ewma(state) => state.done(index, addr, micros, ok),
            _ => {}
        }
    }

    /// Adapts this state to `new`; scores of servers in both versions are kept, and all counts of
    /// requests in flight.
    pub fn carry(&mut self, old: &Upstream, new: &Upstream) {
        let fresh = new.state();
        let before = std::mem::replace(self, fresh);
        self.saved = before.saved;
        let before = before.state;
        match (&mut self.state, before) {
            (State::RoundRobin(state), State::RoundRobin(before)) => {
                state.carry(&before, &new.tiers, &new.endpoints, &Moved::new(old, new));
            }
            (State::LeastConn(state), State::LeastConn(before)) => state.carry(before),
            (State::P2c(state), State::P2c(before)) => state.carry(before),
            (State::Ewma(state), State::Ewma(before)) => state.carry(before),
            _ => {}
        }
    }
}

impl Tried {
    /// Records all of another one.
    fn add(&mut self, others: &Tried) {
        if others.0.len() > self.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
    }

    /// Records a server. Allocates only for the 129th server and beyond.
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
    tried: &'a Tried,
}

impl Choice<'_> {
    /// The weight of a server that may be chosen; 0 if it may not.
    #[inline]
    fn weight(self, index: usize) -> u32 {
        match self.endpoints.get(index) {
            Some(endpoint) if !self.tried.contains(index) => endpoint.weight,
            _ => 0,
        }
    }
}

/// Where the servers of a new upstream were in the old one.
struct Moved(Vec<Option<usize>>);

impl Moved {
    fn new(old: &Upstream, new: &Upstream) -> Moved {
        let mut places: HashMap<SocketAddr, usize, FixedState> = HashMap::default();
        for (index, endpoint) in old.endpoints.iter().enumerate().rev() {
            places.insert(endpoint.addr, index);
        }
        Moved(new.endpoints.iter().map(|endpoint| places.get(&endpoint.addr).copied()).collect())
    }

    /// Pairs of (new index, old index).
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().enumerate().filter_map(|(new, old)| old.map(|old| (new, old)))
    }
}

#[cfg(test)]
mod tests;
