//! Medians, spreads and paired ratios over the rounds of a run.

use serde::Serialize;

/// The median of a set of rounds, and its dispersion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// Median of the absolute deviations from the median.
    pub mad: f64,
}

impl Spread {
    /// `None` for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = median(&values);
        let mut distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        distances.sort_by(f64::total_cmp);
        Some(Self { median: middle, min, max, mad: median(&distances) })
    }

    /// The spread of `a / b` per round: disturbances of a whole round cancel out.
    pub fn of_ratio(a: &[Option<f64>], b: &[Option<f64>]) -> Option<Self> {
        Self::of(
            a.iter()
                .zip(b)
                .filter_map(|(a, b)| Some(((*a)?, (*b)?)))
                .filter(|(_, b)| *b > 0.0)
                .map(|(a, b)| a / b),
        )
    }
}

/// The median of sorted values; must not be empty.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_distances() {
        let spread = Spread::of([5.0, 1.0, 3.0, 4.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.5, min: 1.0, max: 5.0, mad: 1.0 });
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, 2.0]).unwrap().median, 2.0);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // Round 2 was twice as slow for both, round 3 lacks a value.
        let ratio =
            Spread::of_ratio(&[Some(7.0), Some(14.0), Some(9.0)], &[Some(10.0), Some(20.0), None]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.7, 0.7, 0.7));
    }
}
