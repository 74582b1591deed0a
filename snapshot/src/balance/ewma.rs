//! hot path
//!
//! Of two servers drawn at random, the one with the lower exponentially weighted moving average of
//! response time (APISIX: `ewma`). The average fades while a server gets no requests, so a slow one
//! is tried again.

use std::net::SocketAddr;

use super::scores::{Score, Scores};
use super::{Choice, Tier};
use crate::upstream::Endpoint;

/// After this time a measurement weighs about a third.
const DECAY_MS: f64 = 10_000.0;
/// The least time a failed attempt counts as: a refused connection is fast, but no response.
const FAILED_MS: f64 = 1_000.0;

#[derive(Debug)]
pub(super) struct State {
    servers: Scores<Average>,
    /// When a server was last picked; attempts are short compared with the decay.
    now_ms: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Average {
    ms: f64,
    touched_ms: u64,
}

impl Score for Average {
    /// The score of a removed server is dropped: it would have decayed anyway.
    fn matters(&self) -> bool {
        false
    }
}

impl State {
    pub fn new(endpoints: &[Endpoint]) -> State {
        State { servers: Scores::new(endpoints), now_ms: 0 }
    }

    #[inline]
    pub fn now(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    #[inline]
    pub fn pick(&mut self, tier: &Tier, choice: Choice<'_>) -> Option<usize> {
        let usable = tier.range.clone().filter(|&index| choice.weight(index) > 0).count();
        let nth = |n: usize| tier.range.clone().filter(|&index| choice.weight(index) > 0).nth(n);
        if usable < 2 {
            return nth(0);
        }
        let first = fastrand::usize(..usable);
        let second = match fastrand::usize(..usable - 1) {
            second if second >= first => second + 1,
            second => second,
        };
        let (first, second) = (nth(first)?, nth(second)?);
        Some(if self.score(first) > self.score(second) { second } else { first })
    }

    pub fn done(&mut self, index: usize, addr: SocketAddr, micros: u64, ok: bool) {
        let now_ms = self.now_ms;
        let Some(server) = self.servers.find(index, addr, |_| true) else { return };
        let ms = micros as f64 / 1000.0;
        server.measure(if ok { ms } else { ms.max(FAILED_MS) }, now_ms);
    }

    pub fn carry(&mut self, before: State) {
        self.now_ms = before.now_ms;
        self.servers.carry(before.servers);
    }

    fn score(&self, index: usize) -> f64 {
        self.servers.get(index).map_or(0.0, |server| server.ms * server.fading(self.now_ms))
    }
}

impl Average {
    fn fading(&self, now_ms: u64) -> f64 {
        (-(now_ms.saturating_sub(self.touched_ms) as f64) / DECAY_MS).exp()
    }

    fn measure(&mut self, ms: f64, now_ms: u64) {
        let fading = self.fading(now_ms);
        self.ms = self.ms * fading + ms * (1.0 - fading);
        self.touched_ms = now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_decays_to_a_third_and_a_measurement_makes_up_the_rest() {
        let third = (-1.0f64).exp();
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        let mut average = Average { ms: 100.0, touched_ms: 5_000 };
        near(average.fading(5_000), 1.0);
        near(average.fading(15_000), third);
        near(average.fading(25_000), third * third);
        near(average.fading(1_000), 1.0);
        average.measure(400.0, 15_000);
        near(average.ms, 100.0 * third + 400.0 * (1.0 - third));
        assert_eq!(average.touched_ms, 15_000);
    }

    #[test]
    fn removed_servers_are_dropped() {
        let server = |n: u8| Endpoint {
            addr: SocketAddr::from(([10, 1, 0, n], 80)),
            authority: Box::default(),
            weight: 1,
            priority: 0,
        };
        let mut state = State::new(&[server(0), server(1)]);
        for n in 1..50 {
            let mut next = State::new(&[server(n), server(n + 1)]);
            next.carry(state);
            state = next;
        }
        assert_eq!(state.servers.iter().count(), 2);
    }
}
