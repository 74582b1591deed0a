//! Routes, nodes or stream routes: recent counts of many, rings of the busiest.

use std::collections::HashMap;
use std::sync::Arc;

use sdk::meters::live::Counts;

use super::ring::Ring;
use super::{Ends, MINUTES, SECONDS, Steps, TENS};
use crate::live::sample::{Packed, Sample};

/// The recent counts of a route or a node.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    now: Counts,
    last: Sample,
    /// Requests in flight at the end of the last second, of a node.
    pub in_flight: u32,
    /// Requests, and failed ones, in a second, averaged over some ten seconds.
    pub rate: f64,
    pub errors: f64,
    seconds: Option<usize>,
    long: Option<usize>,
}

impl Tracked {
    /// The sample of the last second.
    pub fn recent(&self) -> &Sample {
        &self.last
    }
}

/// Slots with rings, which the busiest own.
#[derive(Debug)]
pub(super) struct Pool {
    owners: Vec<Option<Arc<str>>>,
    steps: Vec<Steps>,
}

impl Pool {
    fn new(slots: usize, sizes: [usize; 3]) -> Pool {
        Pool { owners: vec![None; slots], steps: (0..slots).map(|_| Steps::new(sizes)).collect() }
    }

    fn of(&self, name: &str) -> Option<&Steps> {
        let at = self.owners.iter().position(|owner| owner.as_deref() == Some(name))?;
        Some(&self.steps[at])
    }

    fn end(&mut self, all: &HashMap<Arc<str>, Tracked>, counts: impl Fn(&Tracked) -> Counts, ends: Ends) {
        for (steps, owner) in self.steps.iter_mut().zip(&self.owners) {
            if let Some(owner) = owner {
                steps.end(&all.get(owner).map_or_else(Counts::default, &counts), ends);
            }
        }
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.steps.iter().map(Steps::bytes).sum()
    }
}

/// Bounds of one kind of subject.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    /// Those whose rate is known; the least busy are forgotten first.
    pub tracked: usize,
    /// Those with rings of seconds.
    pub seconds: usize,
    /// Those with rings of ten seconds and of minutes.
    pub long: usize,
}

impl Most {
    /// Bytes of all rings and of the recent counts. A hash table has up to 8/7 places, a power of two.
    pub const fn bytes(self) -> usize {
        let rings = self.seconds * SECONDS + self.long * (TENS + MINUTES);
        let places = (self.tracked * 8 / 7).next_power_of_two();
        rings * size_of::<Packed>()
            + (self.seconds + self.long) * size_of::<Steps>()
            + places * (size_of::<Tracked>() + size_of::<Arc<str>>() + 1)
            + self.tracked * 64
    }
}

#[derive(Debug)]
pub(super) struct Subjects {
    most: Most,
    pub all: HashMap<Arc<str>, Tracked>,
    pub seconds: Pool,
    pub long: Pool,
}

impl Subjects {
    pub fn new(most: Most) -> Subjects {
        Subjects {
            most,
            all: HashMap::with_capacity(most.tracked),
            seconds: Pool::new(most.seconds, [SECONDS, 0, 0]),
            long: Pool::new(most.long, [0, TENS, MINUTES]),
        }
    }

    pub fn add(&mut self, name: &Arc<str>, counts: &Counts) {
        if let Some(tracked) = self.all.get_mut(name) {
            return tracked.now.add(counts);
        }
        if self.all.len() < self.most.tracked {
            self.all.insert(name.clone(), Tracked { now: *counts, ..Tracked::default() });
        }
    }

    pub fn end(&mut self, ends: Ends) {
        for tracked in self.all.values_mut() {
            tracked.last = Sample::of(&tracked.now);
            tracked.in_flight = tracked.now.in_flight;
            let average = |before: f64, now: u64| 0.8 * before + 0.2 * now as f64;
            tracked.rate = average(tracked.rate, tracked.last.requests());
            tracked.errors = average(tracked.errors, tracked.last.errors());
        }
        self.assign(self.most.seconds, |subjects| &mut subjects.seconds, |tracked| &mut tracked.seconds);
        self.assign(self.most.long, |subjects| &mut subjects.long, |tracked| &mut tracked.long);
        self.seconds.end(&self.all, |tracked| tracked.now, ends);
        self.long.end(&self.all, |tracked| tracked.now, ends);
        self.all.values_mut().for_each(|tracked| tracked.now = Counts::default());
        if ends.ten {
            self.forget();
        }
    }

    /// Gives rings to the busiest. A newcomer replaces the least busy owner once it is clearly busier.
    fn assign(
        &mut self,
        most: usize,
        pool: impl Fn(&mut Subjects) -> &mut Pool,
        place: impl Fn(&mut Tracked) -> &mut Option<usize>,
    ) {
        let mut ranked: Vec<(f64, Arc<str>)> = Vec::new();
        for (name, tracked) in &mut self.all {
            if place(tracked).is_none() && tracked.rate > 0.0 {
                ranked.push((tracked.rate, name.clone()));
            }
        }
        if ranked.is_empty() {
            return;
        }
        ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
        let rate_of = |all: &HashMap<Arc<str>, Tracked>, owner: &Option<Arc<str>>| {
            owner.as_ref().map_or(-1.0, |owner| all.get(owner).map_or(-1.0, |tracked| tracked.rate))
        };
        // The least busy owners are replaced first, each by the busiest newcomer that is left.
        let owners = pool(self).owners.clone();
        let mut least: Vec<(f64, usize)> =
            owners.iter().enumerate().map(|(at, owner)| (rate_of(&self.all, owner), at)).collect();
        least.sort_by(|one, other| one.0.total_cmp(&other.0));
        for ((rate, name), (before, at)) in ranked.into_iter().take(most).zip(least) {
            if before >= 0.0 && rate < 1.25 * before + 0.01 {
                return;
            }
            if let Some(before) = owners[at].as_ref().and_then(|owner| self.all.get_mut(owner)) {
                *place(before) = None;
            }
            let pool = pool(self);
            pool.steps[at].clear();
            pool.owners[at] = Some(name.clone());
            if let Some(tracked) = self.all.get_mut(&name) {
                *place(tracked) = Some(at);
            }
        }
    }

    /// Makes room for others: those without requests go first, then the least busy.
    fn forget(&mut self) {
        if self.all.len() < self.most.tracked * 3 / 4 {
            return;
        }
        let mut rates: Vec<f64> = self.all.values().map(|tracked| tracked.rate).collect();
        rates.sort_by(f64::total_cmp);
        let bound = rates[rates.len() / 4].max(0.001);
        let mut left = self.all.len() / 2;
        // A table keeps marks of removed entries and grows in the end, so the others move to a new one.
        let before = std::mem::replace(&mut self.all, HashMap::with_capacity(self.most.tracked));
        self.all.extend(before.into_iter().filter(|(_, tracked)| {
            let keep =
                tracked.rate > bound || tracked.seconds.is_some() || tracked.long.is_some() || left == 0;
            left -= usize::from(!keep);
            keep
        }));
    }

    pub fn ranked(
        &self,
        by: impl Fn(&Tracked) -> f64,
        most: usize,
    ) -> impl Iterator<Item = (&str, &Tracked)> {
        // A rate that has faded is not shown.
        let mut all: Vec<_> = self.all.iter().filter(|(_, tracked)| by(tracked) >= 0.005).collect();
        all.sort_by(|one, other| by(other.1).total_cmp(&by(one.1)).then_with(|| one.0.cmp(other.0)));
        all.into_iter().take(most).map(|(name, tracked)| (&**name, tracked))
    }

    /// The ring of a name and a step, if it is among the busiest.
    pub fn ring(&self, name: &str, step: u64) -> Option<&Ring<Packed>> {
        let pool = if step == 1 { &self.seconds } else { &self.long };
        pool.of(name)?.ring(step)
    }
}
