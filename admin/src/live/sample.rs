//! The numbers of one second, or of a longer step.

use sdk::meters::live::{Counts, OCTAVES, octave_end_us};
use serde_json::{Value, json};

/// Counts of a step, with quantiles in place of the histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Requests with status 1xx and others, 2xx, 3xx, 4xx, 5xx.
    pub classes: [u64; 5],
    /// Microseconds within which 50, 90 and 99 of 100 timed requests ended; 0 without any.
    pub quantiles: [u64; 3],
    pub received: u64,
    pub sent: u64,
}

impl Sample {
    pub fn of(counts: &Counts) -> Sample {
        let [other, informational, rest @ ..] = counts.statuses.map(u64::from);
        let mut classes = [other + informational, 0, 0, 0, 0];
        classes[1..].copy_from_slice(&rest);
        Sample {
            classes,
            quantiles: [0.5, 0.9, 0.99].map(|share| counts.quantile_us(share)),
            received: counts.received,
            sent: counts.sent,
        }
    }

    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    pub fn errors(&self) -> u64 {
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

/// A sample in 16 bytes, so that a day of 400 routes and nodes fits. Numbers up to 4095 are exact and
/// larger ones within 1/4096; those of quantiles and of the first class are exact up to 15, then within 1/16.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Packed {
    classes: [u16; 4],
    received: u16,
    sent: u16,
    others: u8,
    quantiles: [u8; 3],
}

const _: () = assert!(size_of::<Packed>() == 16);

/// Bits below the first one of a number that are kept, in a word and in a byte. The other five are its size.
const WORD: u32 = 11;
const BYTE: u32 = 3;

impl From<Sample> for Packed {
    fn from(sample: Sample) -> Packed {
        let [others, classes @ ..] = sample.classes;
        let word = |number| pack(number, WORD);
        let byte = |number| u8::try_from(pack(number, BYTE)).unwrap_or(u8::MAX);
        Packed {
            classes: classes.map(word),
            received: word(sample.received),
            sent: word(sample.sent),
            others: byte(others),
            quantiles: sample.quantiles.map(byte),
        }
    }
}

impl From<Packed> for Sample {
    fn from(packed: Packed) -> Sample {
        let word = |number| unpack(number, WORD);
        let byte = |number| unpack(u16::from(number), BYTE);
        let [two, three, four, five] = packed.classes.map(word);
        Sample {
            classes: [byte(packed.others), two, three, four, five],
            quantiles: packed.quantiles.map(byte),
            received: word(packed.received),
            sent: word(packed.sent),
        }
    }
}

/// A number with `bits` bits behind its first one, and five bits for its size; the largest one stands for all above.
fn pack(number: u64, bits: u32) -> u16 {
    let shift = (number >> bits).checked_ilog2().unwrap_or(0);
    // Rounded to the nearest; that may carry into the size, which is right.
    let rounded = number.saturating_add((1u64 << shift) >> 1) >> shift;
    let packed = (u64::from(shift) << bits) + rounded;
    packed.min((1 << (bits + 5)) - 1) as u16
}

fn unpack(packed: u16, bits: u32) -> u64 {
    let packed = u64::from(packed);
    let size = packed >> bits;
    match size {
        0 | 1 => packed,
        _ => ((1 << bits) + (packed & ((1 << bits) - 1))) << (size - 1),
    }
}

/// The durations of a step's timed requests by powers of two. Counts are exact up to 15, then within 1/16.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Octaves([u8; OCTAVES]);

impl Octaves {
    pub fn of(counts: &Counts) -> Octaves {
        let packed = |count| u8::try_from(pack(u64::from(count), BYTE)).unwrap_or(u8::MAX);
        Octaves(counts.octaves().map(packed))
    }

    /// A list of the octaves that have requests in any of these steps: `below`, the end in milliseconds, and the counts
    /// of the steps.
    pub fn shown(steps: &[Octaves]) -> Value {
        let used = (0..OCTAVES).filter(|at| steps.iter().any(|step| step.0[*at] > 0));
        let shown = used.map(|at| {
            let counts = steps.iter().map(|step| unpack(u16::from(step.0[at]), BYTE));
            json!({ "below": ms(octave_end_us(at)), "counts": counts.collect::<Vec<_>>() })
        });
        shown.collect()
    }
}

/// Facts that are measured, not counted: 8 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Gauge {
    /// Open connections; the most within a longer step.
    pub connections: u32,
    /// Thousandths of a processor; the average of a longer step.
    pub cpu: u32,
}

/// Milliseconds of microseconds; null without a measurement.
pub(super) fn ms(us: u64) -> Value {
    if us == 0 { Value::Null } else { (us as f64 / 1000.0).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_are_exact_when_small_and_near_when_large() {
        for bits in [WORD, BYTE] {
            let exact = 2 << bits;
            assert!((0..exact).all(|number| unpack(pack(number, bits), bits) == number));
            let mut number = exact;
            let most = unpack(u16::MAX >> (11 - bits), bits);
            while number < most {
                let near = unpack(pack(number, bits), bits);
                assert!(near.abs_diff(number) <= number >> (bits + 1), "{number} {near}");
                number += number / 7 + 1;
            }
            assert_eq!(unpack(pack(u64::MAX, bits), bits), most);
            assert!(most > 15_000_000_000, "bytes of a minute, microseconds: {most}");
        }
    }

    #[test]
    fn a_sample_survives_packing() {
        let sample = Sample { classes: [3, 4000, 0, 7, 1], quantiles: [12, 0, 15], received: 4095, sent: 9 };
        assert_eq!(Sample::from(Packed::from(sample)), sample);
    }
}
