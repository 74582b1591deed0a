//! What all workers counted, for whoever writes it down.

use super::series::{COMMAND_BOUNDS_US, Count, Family, Kind};
use super::{Collected, Settings, Totals};

/// What is counted at one moment: label texts are sorted, without what tells the lines of one apart (`type`, `le`).
#[derive(Debug)]
pub struct Reading<'m> {
    pub(super) settings: &'m Settings,
    pub(super) collected: &'m Collected,
}

/// Requests by how long they took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket, of requests in the order of [`Settings::buckets_ms`]; the last has no bound.
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

    /// Lines of output that the series make.
    pub fn lines(&self) -> usize {
        self.collected.families.lines(self.settings)
    }

    /// Series that gave way to others, or found no room.
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

    /// Sessions by how they ended.
    pub fn stream_status(&self) -> impl Iterator<Item = (&str, u64)> {
        counts(&self.collected.families.stream_status)
    }

    /// How long commands of Redis took, by bucket of [`COMMAND_BOUNDS_US`]; the last has no bound.
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

    /// How long requests took, or a part of each.
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
