//! Counts of all requests while [`Meters::watch`](super::Meters::watch) is on, as it is while a
//! change waits to be confirmed.
//!
//! Usually it is off, and a request costs one load of a flag.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::series::add;

/// Steps within a power of two: durations are known to an eighth.
const STEPS: u32 = 8;
/// Up to 2^40 microseconds, twelve days.
const POWERS: u32 = 40;
const BUCKETS: usize = (POWERS * STEPS) as usize;

/// One worker's part. Only its worker adds to it.
#[derive(Debug)]
pub(super) struct Trial {
    pub on: AtomicBool,
    requests: AtomicU64,
    errors: AtomicU64,
    times: Box<[AtomicU64]>,
}

impl Trial {
    pub fn new(on: bool) -> Trial {
        let times = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Trial { on: AtomicBool::new(on), requests: AtomicU64::new(0), errors: AtomicU64::new(0), times }
    }

    pub fn count(&self, total_us: u64, is_error: bool) {
        add(&self.requests, 1);
        if is_error {
            add(&self.errors, 1);
        }
        if let Some(bucket) = self.times.get(bucket(total_us)) {
            add(bucket, 1);
        }
    }
}

/// The counts up to a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trials {
    pub requests: u64,
    pub errors: u64,
    times: Vec<u64>,
}

impl Trials {
    pub(super) fn add(&mut self, worker: &Trial) {
        self.requests += worker.requests.load(Relaxed);
        self.errors += worker.errors.load(Relaxed);
        self.times.resize(BUCKETS, 0);
        for (sum, one) in self.times.iter_mut().zip(&worker.times) {
            *sum += one.load(Relaxed);
        }
    }

    /// The counts since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Trials) -> Trials {
        let before = earlier.times.iter().copied().chain(std::iter::repeat(0));
        Trials {
            requests: self.requests.saturating_sub(earlier.requests),
            errors: self.errors.saturating_sub(earlier.errors),
            times: self.times.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect(),
        }
    }

    /// The share of failed requests.
    pub fn error_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.errors as f64 / self.requests as f64 }
    }

    /// The duration within which 99 of 100 requests ended, in microseconds, at most an eighth too
    /// small.
    pub fn p99_us(&self) -> u64 {
        let all: u64 = self.times.iter().sum();
        let mut left = all - (all * 99).div_ceil(100) + 1;
        for (bucket, count) in self.times.iter().enumerate().rev() {
            if *count >= left && all > 0 {
                return least(bucket);
            }
            left -= count;
        }
        0
    }
}

/// Durations below 8 have a bucket each; from there on each power of two has eight.
fn bucket(us: u64) -> usize {
    let power = us.max(1).ilog2();
    let at = match power < 3 {
        true => us as usize,
        false => (STEPS * (power - 2)) as usize + ((us >> (power - 3)) & 7) as usize,
    };
    at.min(BUCKETS - 1)
}

/// The shortest duration of a bucket.
fn least(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / u64::from(STEPS), bucket as u64 % u64::from(STEPS));
    match power {
        0 => step,
        power => (8 + step) << (power - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_to_an_eighth() {
        let times = (0..2_000).chain((0..63).map(|shift| (1u64 << shift) + 1)).take_while(|us| *us < 1 << 40);
        for us in times {
            let least = least(bucket(us));
            assert!(least <= us && us - least <= us / 8, "{us}: {least}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_window_is_the_difference_of_two_moments() {
        let trial = Trial::new(true);
        let seen = |trial: &Trial| {
            let mut seen = Trials::default();
            seen.add(trial);
            seen
        };
        assert_eq!((seen(&trial).error_rate(), seen(&trial).p99_us()), (0.0, 0));
        (0..100).for_each(|_| trial.count(9_000_000, true));
        let before = seen(&trial);
        (0..98).for_each(|_| trial.count(1_000, false));
        trial.count(50_000, false);
        trial.count(200_000, true);
        let window = seen(&trial).since(&before);
        assert_eq!((window.requests, window.errors), (100, 1));
        assert!((window.error_rate() - 0.01).abs() < 1e-9);
        assert_eq!(window.p99_us(), 49_152, "one request of a hundred may be slower");
        assert!(before.p99_us() >= 8_000_000);
    }
}
