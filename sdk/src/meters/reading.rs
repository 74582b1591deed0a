//! The counts of all workers, for the exporter.

use super::series::{COMMAND_BOUNDS_US, Count, Family, Kind};
use super::{Collected, Settings, Totals};

/// The counts at one moment. Label texts are sorted, and lack the labels within one group of lines
/// (`type`, `le`).
#[derive(Debug)]
pub struct Reading<'m> {
    pub(super) settings: &'m Settings,
    pub(super) collected: &'m Collected,
}

/// Requests by duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// Requests by bucket, in the order of [`Settings::buckets_ms`]; the last bucket is unbounded.
    pub counts: Vec<u64>,
    pub sum_us: u64,
}

impl Reading<'_> {
    pub fn settings(&self) -> &Settings {
        self.settings
    }

    pub fn totals(&self) -> Totals {
        self.collected.totals()
    }

    /// Lines of output of the series.
    pub fn lines(&self) -> usize {
        self.collected.families.lines(self.settings)
    }

    /// Series that were evicted, or for which there was no room.
    pub fn evicted(&self) -> u64 {
        self.collected.evicted
    }

    /// Requests by status.
    pub fn status(&self) -> impl Iterator<Item = (&str, u64)> {
        counts(&self.collected.families.status)
    }

    /// Connections by stream route.
    pub fn streams(&self) -> impl Iterator<Item = (&str, u64)> {
        counts(&self.collected.families.streams)
    }

    /// Sessions by status.
    pub fn stream_status(&self) -> impl Iterator<Item = (&str, u64)> {
        counts(&self.collected.families.stream_status)
    }

    /// Redis commands by duration, in the buckets of [`COMMAND_BOUNDS_US`]; the last bucket is
    /// unbounded.
    pub fn redis_commands(&self) -> impl Iterator<Item = (&str, Histogram)> {
        self.collected.families.commands.groups.iter().map(|(text, group)| {
            let mut histogram = Histogram { counts: vec![0; COMMAND_BOUNDS_US.len() + 1], sum_us: 0 };
            group
                .parts
                .iter()
                .for_each(|(_, part)| part.add_to(&mut histogram.counts, &mut histogram.sum_us));
            (&**text, histogram)
        })
    }

    /// Bytes from and to clients.
    pub fn bandwidth(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.collected.families.bandwidth.groups.iter().map(|(text, group)| {
            let received = group.parts.iter().map(|(_, part)| part.received()).sum();
            (&**text, received, group.parts.iter().map(|(_, part)| part.sent()).sum())
        })
    }

    /// Requests by duration, of the whole request or of a part.
    pub fn latency(&self, kind: Kind) -> impl Iterator<Item = (&str, Histogram)> {
        let buckets = self.settings.buckets_ms.len() + 1;
        self.collected.families.latency.groups.iter().map(move |(text, group)| {
            let mut histogram = Histogram { counts: vec![0; buckets], sum_us: 0 };
            for (_, part) in &group.parts {
                part.add_to(kind, &mut histogram.counts, &mut histogram.sum_us);
            }
            (&**text, histogram)
        })
    }
}

fn counts(family: &Family<Count>) -> impl Iterator<Item = (&str, u64)> {
    let sum = |parts: &[(usize, std::sync::Arc<Count>)]| parts.iter().map(|(_, part)| part.requests()).sum();
    family.groups.iter().map(move |(text, group)| (&**text, sum(&group.parts)))
}
