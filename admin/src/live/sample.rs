//! The numbers of one second, or of a longer step.

use sdk::meters::live::Counts;
use serde_json::{Value, json};

/// Counts of a step, with quantiles in place of the histogram: 48 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Requests with status 1xx and others, 2xx, 3xx, 4xx, 5xx.
    pub classes: [u32; 5],
    /// Microseconds within which 50, 90 and 99 of 100 timed requests ended; 0 without any.
    pub quantiles: [u32; 3],
    pub received: u64,
    pub sent: u64,
}

const _: () = assert!(size_of::<Sample>() == 48);

impl Sample {
    pub fn of(counts: &Counts) -> Sample {
        let [other, informational, rest @ ..] = counts.statuses;
        let mut classes = [other.saturating_add(informational), 0, 0, 0, 0];
        classes[1..].copy_from_slice(&rest);
        let quantile = |share| u32::try_from(counts.quantile_us(share)).unwrap_or(u32::MAX);
        Sample {
            classes,
            quantiles: [0.5, 0.9, 0.99].map(quantile),
            received: counts.received,
            sent: counts.sent,
        }
    }

    pub fn requests(&self) -> u64 {
        self.classes.iter().map(|count| u64::from(*count)).sum()
    }

    pub fn errors(&self) -> u32 {
        self.classes[4]
    }

    pub fn shown(&self) -> Value {
        let [p50, p90, p99] = self.quantiles.map(ms);
        json!({
            "requests": self.requests(),
            "errors": self.errors(),
            "classes": self.classes,
            "p50": p50,
            "p90": p90,
            "p99": p99,
            "received": self.received,
            "sent": self.sent,
        })
    }
}

/// Milliseconds of microseconds; null without a measurement.
pub(super) fn ms(us: u32) -> Value {
    if us == 0 { Value::Null } else { (f64::from(us) / 1000.0).into() }
}
