//! hot path
//!
//! Smooth weighted round robin: of servers weighted 5, 1 and 1, the first never gets five requests
//! in a row. In each turn every server gains its weight; the one with the most wins and pays the
//! sum of all gains.

use super::{Choice, Moved, Tier};
use crate::upstream::Endpoint;

/// The most turns skipped on a fresh state, so that workers start at different servers.
const HEAD_START: u32 = 64;

#[derive(Debug)]
pub(super) struct State {
    /// The next server of each even tier, counted from the tier's start.
    turns: Vec<usize>,
    /// The gained weight of each server; only for uneven tiers.
    gained: Vec<i64>,
}

impl State {
    pub fn new(tiers: &[Tier], endpoints: &[Endpoint]) -> State {
        let mut state = State::at_start(tiers, endpoints.len());
        let tried = super::ExcludedServers::default();
        let choice = Choice { endpoints, tried: &tried };
        for (at, tier) in tiers.iter().enumerate() {
            if tier.even {
                state.turns[at] = fastrand::usize(..tier.range.len());
            } else {
                for _ in 0..fastrand::u32(..HEAD_START) {
                    state.pick(at, tier, choice);
                }
            }
        }
        state
    }

    /// A state without a random start; with it, all workers would start at the same server.
    pub fn at_start(tiers: &[Tier], servers: usize) -> State {
        let gained = if tiers.iter().all(|tier| tier.even) { 0 } else { servers };
        State { turns: vec![0; tiers.len()], gained: vec![0; gained] }
    }

    #[inline]
    pub fn pick(&mut self, at: usize, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        if tier.even { self.take_turns(at, tier, choice) } else { self.weigh(tier, choice) }
    }

    pub fn carry(&mut self, before: &State, tiers: &[Tier], endpoints: &[Endpoint], moved: &Moved) {
        for ((turn, before), tier) in self.turns.iter_mut().zip(&before.turns).zip(tiers) {
            *turn = before % tier.range.len().max(1);
        }
        if self.gained.is_empty() {
            return;
        }
        // Weights may have shrunk; old gains must not weigh more than one round.
        let round: i64 = endpoints.iter().map(|endpoint| i64::from(endpoint.weight)).sum();
        self.gained.fill(0);
        for (new, old) in moved.pairs() {
            self.gained[new] = before.gained.get(old).copied().unwrap_or(0).clamp(-round, round);
        }
    }

    #[inline]
    fn take_turns(&mut self, at: usize, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        let turn = self.turns.get_mut(at)?;
        let len = tier.range.len();
        for _ in 0..len {
            let index = tier.range.start + *turn;
            *turn = if *turn + 1 == len { 0 } else { *turn + 1 };
            if choice.weight(index) > 0 {
                return Some(index);
            }
        }
        None
    }

    #[inline]
    fn weigh(&mut self, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        let gained = self.gained.get_mut(tier.range.clone())?;
        let mut all = 0;
        let mut best: Option<usize> = None;
        for offset in 0..gained.len() {
            let weight = i64::from(choice.weight(tier.range.start + offset));
            if weight == 0 {
                continue;
            }
            gained[offset] += weight;
            all += weight;
            if best.is_none_or(|best| gained[offset] > gained[best]) {
                best = Some(offset);
            }
        }
        let best = best?;
        gained[best] -= all;
        Some(tier.range.start + best)
    }
}
