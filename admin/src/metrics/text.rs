//! The Prometheus text format, version 0.0.4.

use std::fmt::Display;
use std::io::Write;

use bytes::Bytes;
use sdk::meters::Meters;

use super::all::{self, Form, Row, Type};
use super::facts::Facts;

/// Bytes of a piece, beyond which the next one begins.
const PIECE: usize = 64 << 10;

/// All metrics, in pieces of some 64 KiB that hold whole lines.
pub fn page(meters: &Meters, facts: &Facts<'_>) -> Vec<Bytes> {
    let mut text = Text { name: String::new(), out: room(), pieces: Vec::new() };
    meters.read(facts.steady_ms, |reading| all::write(reading, facts, &mut text));
    text.pieces.push(text.out.into());
    text.pieces
}

/// A line is shorter than the room beyond a piece, as a rule, so that nothing is copied.
fn room() -> Vec<u8> {
    Vec::with_capacity(PIECE + (4 << 10))
}

/// Text under way.
struct Text {
    /// The name of the metric.
    name: String,
    /// The piece that is written.
    out: Vec<u8>,
    /// Those before it.
    pieces: Vec<Bytes>,
}

impl Form for Text {
    fn metric(&mut self, name: &str, kind: Type, help: &str) {
        // A name has one head.
        if self.name == name {
            return;
        }
        name.clone_into(&mut self.name);
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        // Writing to memory does not fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn point(&mut self, labels: &[&str], value: i128) {
        self.line("", labels, value);
    }

    fn histograms<'r>(&mut self, bounds: &[f64], rows: impl Iterator<Item = Row<'r>>) {
        let bounds: Vec<String> = bounds.iter().map(|bound| format!("le=\"{bound}\"")).collect();
        let mut totals = Vec::new();
        for Row { labels: [first, labels], counts, sum } in rows {
            let mut total = 0;
            let bounds = bounds.iter().map(String::as_str).chain(["le=\"+Inf\""]);
            for (count, bound) in counts.iter().zip(bounds) {
                total += count;
                self.line("_bucket", &[first, labels, bound], total);
            }
            totals.push(([first, labels], total, sum));
        }
        for (labels, total, _) in &totals {
            self.line("_count", labels, total);
        }
        for (labels, _, sum) in &totals {
            self.line("_sum", labels, sum);
        }
    }
}

impl Text {
    fn line(&mut self, suffix: &str, labels: &[&str], value: impl Display) {
        self.out.extend_from_slice(self.name.as_bytes());
        self.out.extend_from_slice(suffix.as_bytes());
        let mut open = b'{';
        for labels in labels.iter().filter(|labels| !labels.is_empty()) {
            self.out.push(open);
            self.out.extend_from_slice(labels.as_bytes());
            open = b',';
        }
        if open == b',' {
            self.out.push(b'}');
        }
        let _ = writeln!(self.out, " {value}");
        if self.out.len() >= PIECE {
            self.pieces.push(std::mem::replace(&mut self.out, room()).into());
        }
    }
}

#[cfg(test)]
mod tests;
