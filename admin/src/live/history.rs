//! Rings of samples, in memory whose size is fixed at the start.
//!
//! The whole gateway and each worker: seconds of 15 minutes, ten-second steps of an hour, minutes of
//! 24 hours. The busiest 20 routes and nodes: seconds. The busiest 200 of each: ten-second steps.

use std::collections::HashMap;
use std::sync::Arc;

use sdk::meters::live::{Counts, Subject};
use serde_json::{Value, json};

use super::Sample;
use super::sample::ms;

/// Samples of each step.
const SECONDS: usize = 900;
const TENS: usize = 360;
const MINUTES: usize = 1440;

/// Workers with rings of their own; the gateway's counts have all.
const MOST_WORKERS: usize = 32;

/// Routes, and nodes, with rings of seconds and of ten seconds.
const SECONDS_OF: usize = 20;
const TENS_OF: usize = 200;

/// Routes, and nodes, whose rate is known; the least busy are forgotten first.
const TRACKED: usize = 2000;

/// Bytes of all rings and of the recent counts of routes and nodes.
const MOST_BYTES: usize = size_of::<Sample>()
    * ((1 + MOST_WORKERS) * (SECONDS + TENS + MINUTES) + 2 * (SECONDS_OF * SECONDS + TENS_OF * TENS))
    + 2 * TRACKED * (size_of::<Tracked>() + 64);

const _: () = assert!(MOST_BYTES <= 16 << 20);

/// The last samples, the newest at `next - 1`.
#[derive(Debug)]
struct Ring {
    samples: Box<[Sample]>,
    next: usize,
    len: usize,
}

impl Ring {
    fn new(size: usize) -> Ring {
        Ring { samples: vec![Sample::default(); size].into(), next: 0, len: 0 }
    }

    fn push(&mut self, sample: Sample) {
        self.samples[self.next] = sample;
        self.next = (self.next + 1) % self.samples.len();
        self.len = (self.len + 1).min(self.samples.len());
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    /// From the oldest to the newest.
    fn iter(&self) -> impl Iterator<Item = &Sample> {
        let size = self.samples.len();
        let first = self.next + size - self.len;
        (first..first + self.len).map(move |at| &self.samples[at % size])
    }
}

/// The rings of the gateway, or of a worker.
#[derive(Debug)]
struct Whole {
    now: Counts,
    last: Sample,
    seconds: Ring,
    ten: Counts,
    tens: Ring,
    minute: Counts,
    minutes: Ring,
}

impl Whole {
    fn new() -> Whole {
        Whole {
            now: Counts::default(),
            last: Sample::default(),
            seconds: Ring::new(SECONDS),
            ten: Counts::default(),
            tens: Ring::new(TENS),
            minute: Counts::default(),
            minutes: Ring::new(MINUTES),
        }
    }

    fn end(&mut self, ends: Ends) {
        let now = std::mem::take(&mut self.now);
        self.last = Sample::of(&now);
        self.seconds.push(self.last);
        self.ten.add(&now);
        self.minute.add(&now);
        if ends.ten {
            self.tens.push(Sample::of(&std::mem::take(&mut self.ten)));
        }
        if ends.minute {
            self.minutes.push(Sample::of(&std::mem::take(&mut self.minute)));
        }
    }

    fn ring(&self, step: u64) -> Option<&Ring> {
        match step {
            1 => Some(&self.seconds),
            10 => Some(&self.tens),
            60 => Some(&self.minutes),
            _ => None,
        }
    }
}

/// The longer steps that end with this second.
#[derive(Debug, Clone, Copy)]
struct Ends {
    ten: bool,
    minute: bool,
}

/// The recent counts of a route or a node.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    now: Counts,
    ten: Counts,
    last: Sample,
    /// Requests, and failed ones, in a second, averaged over some ten seconds.
    pub rate: f64,
    pub errors: f64,
    seconds: Option<usize>,
    tens: Option<usize>,
}

impl Tracked {
    /// The sample of the last second.
    pub fn recent(&self) -> &Sample {
        &self.last
    }
}

/// Rings that the busiest share.
#[derive(Debug)]
struct Pool {
    rings: Vec<Ring>,
    owners: Vec<Option<Arc<str>>>,
}

impl Pool {
    fn new(rings: usize, size: usize) -> Pool {
        Pool { rings: (0..rings).map(|_| Ring::new(size)).collect(), owners: vec![None; rings] }
    }
}

/// The routes, or the nodes.
#[derive(Debug)]
struct Subjects {
    all: HashMap<Arc<str>, Tracked>,
    seconds: Pool,
    tens: Pool,
}

impl Subjects {
    fn new() -> Subjects {
        Subjects {
            all: HashMap::with_capacity(TRACKED),
            seconds: Pool::new(SECONDS_OF, SECONDS),
            tens: Pool::new(TENS_OF, TENS),
        }
    }

    fn add(&mut self, name: &Arc<str>, counts: &Counts) {
        if let Some(tracked) = self.all.get_mut(name) {
            return tracked.now.add(counts);
        }
        if self.all.len() < TRACKED {
            self.all.insert(name.clone(), Tracked { now: *counts, ..Tracked::default() });
        }
    }

    fn end(&mut self, ends: Ends) {
        for tracked in self.all.values_mut() {
            let now = std::mem::take(&mut tracked.now);
            tracked.ten.add(&now);
            tracked.last = Sample::of(&now);
            let average = |before: f64, now: f64| 0.8 * before + 0.2 * now;
            tracked.rate = average(tracked.rate, now.requests() as f64);
            tracked.errors = average(tracked.errors, f64::from(tracked.last.errors()));
        }
        self.assign(SECONDS_OF, |subjects| &mut subjects.seconds, |tracked| &mut tracked.seconds);
        push(&mut self.seconds, &self.all, |tracked| tracked.last);
        if ends.ten {
            self.assign(TENS_OF, |subjects| &mut subjects.tens, |tracked| &mut tracked.tens);
            push(&mut self.tens, &self.all, |tracked| Sample::of(&tracked.ten));
            self.all.values_mut().for_each(|tracked| tracked.ten = Counts::default());
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
        ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (rate, name) in ranked.into_iter().take(most) {
            let owners = pool(self).owners.clone();
            let rate_of = |owner: &Option<Arc<str>>| {
                owner.as_ref().map_or(-1.0, |owner| self.all.get(owner).map_or(-1.0, |tracked| tracked.rate))
            };
            let least = owners.iter().map(rate_of).enumerate().min_by(|one, other| one.1.total_cmp(&other.1));
            let Some((at, least)) = least else { return };
            if least >= 0.0 && rate < 1.25 * least + 0.01 {
                return;
            }
            if let Some(before) = owners[at].as_ref().and_then(|owner| self.all.get_mut(owner)) {
                *place(before) = None;
            }
            let pool = pool(self);
            pool.rings[at].clear();
            pool.owners[at] = Some(name.clone());
            if let Some(tracked) = self.all.get_mut(&name) {
                *place(tracked) = Some(at);
            }
        }
    }

    /// Makes room for others: those without requests go first, then the least busy.
    fn forget(&mut self) {
        if self.all.len() < TRACKED * 3 / 4 {
            return;
        }
        let mut rates: Vec<f64> = self.all.values().map(|tracked| tracked.rate).collect();
        rates.sort_by(f64::total_cmp);
        let bound = rates[rates.len() / 4].max(0.001);
        let mut left = self.all.len() / 2;
        self.all.retain(|_, tracked| {
            let keep =
                tracked.rate > bound || tracked.seconds.is_some() || tracked.tens.is_some() || left == 0;
            left -= usize::from(!keep);
            keep
        });
    }

    fn ranked(&self, by: impl Fn(&Tracked) -> f64, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        // A rate that has faded is not shown.
        let mut all: Vec<_> = self.all.iter().filter(|(_, tracked)| by(tracked) >= 0.005).collect();
        all.sort_by(|one, other| by(other.1).total_cmp(&by(one.1)).then_with(|| one.0.cmp(other.0)));
        all.into_iter().take(most).map(|(name, tracked)| (&**name, tracked))
    }
}

fn push(pool: &mut Pool, all: &HashMap<Arc<str>, Tracked>, sample: impl Fn(&Tracked) -> Sample) {
    for (ring, owner) in pool.rings.iter_mut().zip(&pool.owners) {
        if let Some(owner) = owner {
            ring.push(all.get(owner).map_or_else(Sample::default, &sample));
        }
    }
}

/// All rings.
#[derive(Debug)]
pub(crate) struct History {
    /// The end of the last second, in seconds since 1970.
    now: u64,
    gateway: Whole,
    workers: Vec<Whole>,
    routes: Subjects,
    nodes: Subjects,
}

impl History {
    pub fn new(workers: usize) -> History {
        History {
            now: 0,
            gateway: Whole::new(),
            workers: (0..workers.min(MOST_WORKERS)).map(|_| Whole::new()).collect(),
            routes: Subjects::new(),
            nodes: Subjects::new(),
        }
    }

    /// Begins to take the counts of the second that ends now. Seconds that were missed are empty.
    pub fn begin(&mut self, now: u64) {
        let missed = now.saturating_sub(self.now + 1).min(SECONDS as u64);
        if self.now > 0 {
            (0..missed).for_each(|_| {
                self.now = now.min(self.now + 1);
                self.end();
            });
        }
        self.now = now.max(self.now);
    }

    pub fn add(&mut self, worker: usize, subject: Subject, name: &Arc<str>, counts: &Counts) {
        match subject {
            Subject::Route => {
                self.gateway.now.add(counts);
                if let Some(worker) = self.workers.get_mut(worker) {
                    worker.now.add(counts);
                }
                self.routes.add(name, counts);
            }
            Subject::Node => self.nodes.add(name, counts),
        }
    }

    /// Ends the second.
    pub fn end(&mut self) {
        let ends = Ends { ten: self.now.is_multiple_of(10), minute: self.now.is_multiple_of(60) };
        self.gateway.end(ends);
        self.workers.iter_mut().for_each(|worker| worker.end(ends));
        self.routes.end(ends);
        self.nodes.end(ends);
    }

    pub fn gateway(&self) -> &Sample {
        &self.gateway.last
    }

    pub fn workers(&self) -> impl Iterator<Item = &Sample> {
        self.workers.iter().map(|worker| &worker.last)
    }

    pub fn busiest(&self, subject: Subject, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        self.of(subject).ranked(|tracked| tracked.rate, most)
    }

    /// Those with the most failed requests.
    pub fn worst(&self, subject: Subject, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        self.of(subject).ranked(|tracked| tracked.errors, most)
    }

    /// The samples of `gateway`, `worker:N`, `route:ID` or `node:ADDRESS` with a step of 1, 10 or 60
    /// seconds, as one column for each number. A route or node that has no ring has no samples.
    ///
    /// # Errors
    /// A message for people: the name or the step is unknown.
    pub fn columns(&self, of: &str, step: u64) -> Result<Value, String> {
        let ring = match of.split_once(':') {
            None if of == "gateway" => self.gateway.ring(step),
            Some(("worker", index)) => {
                let worker = index.parse().ok().and_then(|index: usize| self.workers.get(index));
                worker.ok_or_else(|| format!("there is no worker {index:?}"))?.ring(step)
            }
            Some(("route", id)) => self.routes.ring(id, step)?,
            Some(("node", address)) => self.nodes.ring(address, step)?,
            _ => return Err("`of` must be gateway, worker:N, route:ID or node:ADDRESS".to_owned()),
        };
        if ![1, 10, 60].contains(&step) {
            return Err("`step` must be 1, 10 or 60".to_owned());
        }
        let samples: Vec<&Sample> = ring.into_iter().flat_map(Ring::iter).collect();
        let until = self.now - self.now % step;
        let column =
            |of: &dyn Fn(&Sample) -> Value| samples.iter().map(|sample| of(sample)).collect::<Value>();
        let quantile = |at: usize| column(&|sample| ms(sample.quantiles[at]));
        Ok(json!({
            "of": of,
            "step": step,
            "until": until,
            "from": (until + step).saturating_sub(step * samples.len() as u64),
            "requests": column(&|sample| sample.requests().into()),
            "errors": column(&|sample| sample.errors().into()),
            "classes": (0..5).map(|class| column(&|sample| sample.classes[class].into())).collect::<Vec<_>>(),
            "p50": quantile(0),
            "p90": quantile(1),
            "p99": quantile(2),
            "received": column(&|sample| sample.received.into()),
            "sent": column(&|sample| sample.sent.into()),
        }))
    }

    fn of(&self, subject: Subject) -> &Subjects {
        match subject {
            Subject::Route => &self.routes,
            Subject::Node => &self.nodes,
        }
    }
}

impl Subjects {
    fn ring(&self, name: &str, step: u64) -> Result<Option<&Ring>, String> {
        let pool = match step {
            1 => &self.seconds,
            10 => &self.tens,
            _ => return Err("routes and nodes have steps of 1 and 10 seconds".to_owned()),
        };
        let at = pool.owners.iter().position(|owner| owner.as_deref() == Some(name));
        Ok(at.map(|at| &pool.rings[at]))
    }
}

#[cfg(test)]
mod tests;
