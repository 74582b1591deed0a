//! Metrics of modules, which the metrics page shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[expect(
    clippy::disallowed_types,
    reason = "locked while a metric is defined and while the page is written"
)]
use std::sync::{Mutex, PoisonError};

use super::status::{Outcome, Refusal};

/// Metrics of all modules, and of one instance.
const MOST: usize = 1000;
pub(super) const LONGEST_NAME: usize = 200;

/// The upper bounds of a histogram's buckets.
pub const BOUNDS: [u64; 15] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One metric of a plugin, of all workers.
#[derive(Debug)]
pub struct Metric {
    pub plugin: &'static str,
    pub name: String,
    pub kind: Kind,
    /// Of a histogram, the sum of its values. A gauge may be negative.
    value: AtomicU64,
    /// Values of a histogram up to each bound, and beyond the last.
    buckets: [AtomicU64; BOUNDS.len() + 1],
}

impl Metric {
    pub fn value(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    /// Values of a histogram by bucket, not summed up.
    pub fn buckets(&self) -> [u64; BOUNDS.len() + 1] {
        std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed))
    }

    pub(super) fn record(&self, value: u64) {
        match self.kind {
            Kind::Gauge | Kind::Counter => self.value.store(value, Ordering::Relaxed),
            Kind::Histogram => {
                let at = BOUNDS.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS.len());
                self.buckets[at].fetch_add(1, Ordering::Relaxed);
                self.value.fetch_add(value, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn increment(&self, delta: i64) -> Outcome {
        match self.kind {
            Kind::Counter if delta < 0 => Err(Refusal::BAD_ARGUMENT),
            Kind::Histogram => Err(Refusal::BAD_ARGUMENT),
            Kind::Counter | Kind::Gauge => {
                self.value.fetch_add(delta.cast_unsigned(), Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// The metrics of all modules.
#[derive(Default)]
#[expect(clippy::disallowed_types, reason = "see above")]
pub struct Metrics(Mutex<Vec<Arc<Metric>>>);

impl Metrics {
    pub fn all(&self) -> Vec<Arc<Metric>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by(|a, b| (&a.name, a.plugin).cmp(&(&b.name, b.plugin)));
        all
    }

    pub(super) fn define(&self, plugin: &'static str, name: &str, kind: Kind) -> Outcome<Arc<Metric>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A name on the page has one type, and a histogram has three names.
        let is_part = |part: &str, of: &str, kind: Kind| {
            kind == Kind::Histogram
                && part.strip_prefix(of).is_some_and(|rest| ["_bucket", "_count", "_sum"].contains(&rest))
        };
        let collides = |known: &Metric| {
            known.name == name && known.kind != kind
                || is_part(name, &known.name, known.kind)
                || is_part(&known.name, name, kind)
        };
        if all.iter().any(|known| collides(known)) {
            return Err(Refusal::BAD_ARGUMENT);
        }
        if let Some(known) = all.iter().find(|known| known.plugin == plugin && known.name == name) {
            return Ok(known.clone());
        }
        if all.len() == MOST {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        let metric = Arc::new(Metric {
            plugin,
            name: name.to_owned(),
            kind,
            value: AtomicU64::new(0),
            buckets: Default::default(),
        });
        all.push(metric.clone());
        Ok(metric)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_the_page_has_one_type() {
        let metrics = Metrics::default();
        let is_defined = |name, kind| metrics.define("a", name, kind).is_ok();
        assert!(is_defined("x", Kind::Histogram) && is_defined("y_sum", Kind::Gauge));
        assert!(is_defined("x_total", Kind::Counter) && is_defined("x", Kind::Histogram));
        assert!(!is_defined("x", Kind::Counter));
        assert!(!is_defined("x_count", Kind::Counter) && !is_defined("y", Kind::Histogram));
    }
}
