//! hot path
//!
//! The server with the fewest exchanges in flight for its weight, as this worker
//! sees it.

use super::{Choice, Moved, Tier};

#[derive(Debug)]
pub(super) struct State {
    in_flight: Vec<u32>,
    /// Where the look-out begins, so that equals take turns.
    from: usize,
}

impl State {
    pub fn new(servers: usize) -> State {
        State { in_flight: vec![0; servers], from: fastrand::usize(..servers.max(1)) }
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
            let busy = u64::from(*self.in_flight.get(index)?) + 1;
            // busy / weight compared without dividing; both are below 2^33.
            if best.is_none_or(|(other, other_weight, _)| busy * other_weight < other * weight) {
                best = Some((busy, weight, index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    #[inline]
    pub fn begin(&mut self, endpoint: usize) {
        if let Some(busy) = self.in_flight.get_mut(endpoint) {
            *busy = busy.saturating_add(1);
        }
    }

    #[inline]
    pub fn done(&mut self, endpoint: usize) {
        if let Some(busy) = self.in_flight.get_mut(endpoint) {
            *busy = busy.saturating_sub(1);
        }
    }

    pub fn carry(&mut self, before: &State, moved: &Moved) {
        for (new, old) in moved.pairs() {
            self.in_flight[new] = before.in_flight.get(old).copied().unwrap_or(0);
        }
    }
}
