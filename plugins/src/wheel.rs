//! Weighted round robin, as lua-resty-balancer has it. Shared by all workers, so that the shares are exact.

use std::sync::atomic::{AtomicU64, Ordering};

/// Turns round the items once for each level of weight, from the highest down, and takes those that reach the level.
#[derive(Debug)]
pub(crate) struct Wheel {
    weights: Vec<u32>,
    step: u32,
    highest: u32,
    /// The level, and how many items were looked at on it.
    state: AtomicU64,
}

impl Wheel {
    pub fn new(weights: &[u64]) -> Wheel {
        let weights: Vec<_> =
            weights.iter().map(|weight| u32::try_from(*weight).unwrap_or(u32::MAX)).collect();
        let highest = weights.iter().copied().max().unwrap_or_default();
        let step = weights.iter().copied().fold(0, divisor).max(1);
        Wheel { step, highest, state: AtomicU64::new(u64::from(highest) << 32), weights }
    }

    #[cfg(test)]
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// The index of the item whose turn it is; `None` without items.
    pub fn turn(&self) -> Option<usize> {
        if self.weights.len() == 1 {
            return Some(0);
        }
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (index, next) = self.after(state)?;
            match self.state.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(index),
                Err(other) => state = other,
            }
        }
    }

    /// The item that comes next, and the state behind it. Within one turn, which may begin on one level and end
    /// on the next, there is one, as the heaviest item reaches every level.
    fn after(&self, state: u64) -> Option<(usize, u64)> {
        let (mut level, mut at) = ((state >> 32) as u32, state as u32 as usize);
        for _ in 0..=self.weights.len() {
            if let Some(weight) = self.weights.get(at) {
                at += 1;
                if *weight >= level {
                    return Some((at - 1, u64::from(level) << 32 | at as u64));
                }
            } else {
                at = 0;
                level = level.saturating_sub(self.step);
                if level == 0 {
                    level = self.highest;
                }
            }
        }
        None
    }
}

/// The greatest common divisor.
fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(weights: &[u64], turns: usize) -> Vec<usize> {
        let wheel = Wheel::new(weights);
        let mut counts = vec![0; weights.len()];
        (0..turns).for_each(|_| counts[wheel.turn().unwrap()] += 1);
        counts
    }

    #[test]
    fn shares_are_exact() {
        assert_eq!(shares(&[1, 1], 10), [5, 5]);
        assert_eq!(shares(&[2, 4], 6), [2, 4]);
        assert_eq!(shares(&[3, 2, 1], 600), [300, 200, 100]);
        assert_eq!(shares(&[1, 0], 10), [10, 0]);
        assert_eq!(shares(&[0, 5, 0], 10), [0, 10, 0]);
        assert_eq!(shares(&[0], 3), [3], "a single item is taken even with weight 0");
        assert_eq!(shares(&[0, 0], 10), [5, 5], "as with lua-resty-balancer");
        assert_eq!(shares(&[1_000_000, 1], 1000), [1000, 0]);
        assert_eq!(shares(&[u64::MAX, 1], 1000), [1000, 0]);
        assert_eq!(Wheel::new(&[]).turn(), None);
        // Wherever the heaviest one stands, all that do not reach its level are passed over.
        for heaviest in 0..10 {
            let mut weights = [1; 10];
            weights[heaviest] = 3;
            let expected: Vec<usize> = weights.iter().map(|weight| *weight as usize * 2).collect();
            assert_eq!(shares(&weights, 24), expected, "{heaviest}");
        }
        // Weights with a common divisor take turns as often as without it.
        assert_eq!(shares(&[40, 20], 3), [2, 1]);
    }

    #[test]
    fn workers_share_the_wheel() {
        let wheel = Wheel::new(&[1, 3]);
        let count = || (0..1000).filter(|_| wheel.turn() == Some(1)).count();
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 3000);
    }
}
