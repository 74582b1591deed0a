//! Rings of samples, in bounded memory that fills as they come.
//!
//! The whole gateway and each worker: seconds of 15 minutes, ten-second steps of an hour, minutes of
//! 24 hours; of the gateway with a histogram of durations. The busiest 20 routes and nodes: seconds. The busiest 200 of each: ten-second steps and minutes.

mod ring;
mod subjects;

use std::sync::Arc;

use sdk::meters::live::{Counts, Subject};
use serde_json::{Value, json};

use super::Sample;
use super::sample::{Gauge, Octaves, Packed, ms};
use ring::Ring;
pub(crate) use subjects::Tracked;
use subjects::{Most, Subjects};

/// Samples of each step.
const SECONDS: usize = 900;
const TENS: usize = 360;
const MINUTES: usize = 1440;
const SIZES: [usize; 3] = [SECONDS, TENS, MINUTES];

/// Workers with rings of their own; the gateway's counts have all.
const MOST_WORKERS: usize = 32;

/// Bounds of routes and of nodes, and of stream routes.
const OF_EACH: Most = Most { tracked: 896, seconds: 20, long: 200 };
const OF_STREAMS: Most = Most { tracked: 224, seconds: 20, long: 20 };

/// Bytes of all rings and of the recent counts.
const MOST_BYTES: usize = (1 + MOST_WORKERS)
    * ((SECONDS + TENS + MINUTES) * (size_of::<Packed>() + size_of::<Gauge>()) + size_of::<Whole>())
    + 2 * OF_EACH.bytes()
    + OF_STREAMS.bytes()
    + (SECONDS + TENS + MINUTES) * size_of::<Octaves>();

const _: () = assert!(MOST_BYTES <= 16 << 20);

/// The longer steps that end with this second.
#[derive(Debug, Clone, Copy)]
struct Ends {
    ten: bool,
    minute: bool,
}

/// The rings of one series. A step without room is not kept.
#[derive(Debug)]
struct Steps {
    seconds: Ring<Packed>,
    ten: Counts,
    tens: Ring<Packed>,
    minute: Counts,
    minutes: Ring<Packed>,
}

impl Steps {
    fn new([seconds, tens, minutes]: [usize; 3]) -> Steps {
        Steps {
            seconds: Ring::new(seconds),
            ten: Counts::default(),
            tens: Ring::new(tens),
            minute: Counts::default(),
            minutes: Ring::new(minutes),
        }
    }

    /// Ends a second. Returns the counts of the ten seconds and of the minute that end with it.
    fn end(&mut self, now: &Counts, ends: Ends) -> [Option<Counts>; 2] {
        self.seconds.push(|| Sample::of(now).into());
        self.ten.add(now);
        self.minute.add(now);
        let ten = ends.ten.then(|| std::mem::take(&mut self.ten));
        let minute = ends.minute.then(|| std::mem::take(&mut self.minute));
        ten.iter().for_each(|ten| self.tens.push(|| Sample::of(ten).into()));
        minute.iter().for_each(|minute| self.minutes.push(|| Sample::of(minute).into()));
        [ten, minute]
    }

    fn clear(&mut self) {
        self.seconds.clear();
        self.tens.clear();
        self.minutes.clear();
        (self.ten, self.minute) = (Counts::default(), Counts::default());
    }

    fn ring(&self, step: u64) -> Option<&Ring<Packed>> {
        match step {
            1 => Some(&self.seconds),
            10 => Some(&self.tens),
            60 => Some(&self.minutes),
            _ => None,
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        size_of::<Steps>() + self.seconds.bytes() + self.tens.bytes() + self.minutes.bytes()
    }
}

/// Measured facts since the last end of a longer step.
#[derive(Debug, Default)]
struct GaugeSum {
    connections: u32,
    cpu: u32,
    seconds: u32,
}

impl GaugeSum {
    fn add(&mut self, gauge: Gauge) {
        self.connections = self.connections.max(gauge.connections);
        self.cpu = self.cpu.saturating_add(gauge.cpu);
        self.seconds += 1;
    }

    fn take(&mut self) -> Gauge {
        let sum = std::mem::take(self);
        Gauge { connections: sum.connections, cpu: sum.cpu / sum.seconds.max(1) }
    }
}

/// The rings of the gateway, or of a worker.
#[derive(Debug)]
struct Whole {
    now: Counts,
    last: Sample,
    steps: Steps,
    gauge: Gauge,
    ten: GaugeSum,
    minute: GaugeSum,
    /// By step: 1, 10 and 60 seconds.
    gauges: [Ring<Gauge>; 3],
    /// As `gauges`. Of the gateway alone: workers have no room.
    octaves: [Ring<Octaves>; 3],
}

impl Whole {
    fn new(octaves: [usize; 3]) -> Whole {
        Whole {
            now: Counts::default(),
            last: Sample::default(),
            steps: Steps::new(SIZES),
            gauge: Gauge::default(),
            ten: GaugeSum::default(),
            minute: GaugeSum::default(),
            gauges: SIZES.map(Ring::new),
            octaves: octaves.map(Ring::new),
        }
    }

    fn end(&mut self, ends: Ends) {
        let (now, gauge) = (std::mem::take(&mut self.now), std::mem::take(&mut self.gauge));
        self.last = Sample::of(&now);
        let [ten, minute] = self.steps.end(&now, ends);
        for (octaves, counts) in self.octaves.iter_mut().zip([Some(now), ten, minute]) {
            counts.iter().for_each(|counts| octaves.push(|| Octaves::of(counts)));
        }
        self.gauges[0].push(|| gauge);
        self.ten.add(gauge);
        self.minute.add(gauge);
        if ends.ten {
            self.gauges[1].push(|| self.ten.take());
        }
        if ends.minute {
            self.gauges[2].push(|| self.minute.take());
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let octaves: usize = self.octaves.iter().map(Ring::bytes).sum();
        self.steps.bytes() + self.gauges.iter().map(Ring::bytes).sum::<usize>() + octaves
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
    streams: Subjects,
}

impl History {
    pub fn new(workers: usize) -> History {
        History {
            now: 0,
            gateway: Whole::new(SIZES),
            workers: (0..workers.min(MOST_WORKERS)).map(|_| Whole::new([0; 3])).collect(),
            routes: Subjects::new(OF_EACH),
            nodes: Subjects::new(OF_EACH),
            streams: Subjects::new(OF_STREAMS),
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
            Subject::Stream => self.streams.add(name, counts),
        }
    }

    /// Takes the measured facts of the second: those of the gateway, and of each worker.
    pub fn measure(&mut self, gateway: Gauge, workers: impl Iterator<Item = Gauge>) {
        self.gateway.gauge = gateway;
        self.workers.iter_mut().zip(workers).for_each(|(worker, gauge)| worker.gauge = gauge);
    }

    /// Ends the second.
    pub fn end(&mut self) {
        let ends = Ends { ten: self.now.is_multiple_of(10), minute: self.now.is_multiple_of(60) };
        self.gateway.end(ends);
        self.workers.iter_mut().for_each(|worker| worker.end(ends));
        self.routes.end(ends);
        self.nodes.end(ends);
        self.streams.end(ends);
    }

    pub fn gateway(&self) -> &Sample {
        &self.gateway.last
    }

    /// The durations of the last second's requests.
    pub fn octaves(&self) -> Value {
        Octaves::shown(self.gateway.octaves[0].last().as_slice())
    }

    pub fn workers(&self) -> impl Iterator<Item = &Sample> {
        self.workers.iter().map(|worker| &worker.last)
    }

    pub fn busiest(&self, subject: Subject, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        self.of(subject).ranked(|tracked| tracked.rate, most)
    }

    /// Nodes by their rate and their requests in flight.
    pub fn busiest_nodes(&self, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        self.nodes.ranked(|tracked| tracked.rate + f64::from(tracked.in_flight), most)
    }

    /// Those with the most failed requests.
    pub fn worst(&self, subject: Subject, most: usize) -> impl Iterator<Item = (&str, &Tracked)> {
        self.of(subject).ranked(|tracked| tracked.errors, most)
    }

    /// The samples of `gateway`, `worker:N`, `route:ID`, `node:ADDRESS` or `stream:ID` with a step of 1, 10 or
    /// 60 seconds, as one column for each number. A route or node that is not among the busiest has no samples.
    ///
    /// # Errors
    /// A message for people: the name or the step is unknown.
    pub fn columns(&self, of: &str, step: u64) -> Result<Value, String> {
        let at = [1, 10, 60].iter().position(|known| *known == step).ok_or("`step` must be 1, 10 or 60")?;
        let (whole, ring) = match of.split_once(':') {
            None if of == "gateway" => (Some(&self.gateway), None),
            Some(("worker", index)) => {
                let worker = index.parse().ok().and_then(|index: usize| self.workers.get(index));
                (Some(worker.ok_or_else(|| format!("there is no worker {index:?}"))?), None)
            }
            Some(("route", id)) => (None, self.routes.ring(id, step)),
            Some(("node", address)) => (None, self.nodes.ring(address, step)),
            Some(("stream", id)) => (None, self.streams.ring(id, step)),
            _ => {
                return Err("`of` must be gateway, worker:N, route:ID, node:ADDRESS or stream:ID".to_owned());
            }
        };
        let ring = ring.or_else(|| whole?.steps.ring(step));
        let samples: Vec<Sample> = ring.into_iter().flat_map(Ring::iter).map(Sample::from).collect();
        let until = self.now - self.now % step;
        let column = |of: &dyn Fn(&Sample) -> Value| samples.iter().map(of).collect::<Value>();
        let quantile = |at: usize| column(&|sample| ms(sample.quantiles[at]));
        let mut columns = json!({
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
        });
        if let Some(whole) = whole {
            let gauges = || whole.gauges[at].iter();
            columns["connections"] = gauges().map(|gauge| Value::from(gauge.connections)).collect();
            columns["cpu"] = gauges().map(|gauge| Value::from(f64::from(gauge.cpu) / 1000.0)).collect();
            if of == "gateway" {
                columns["latencies"] = Octaves::shown(&whole.octaves[at].iter().collect::<Vec<_>>());
            }
        }
        Ok(columns)
    }

    fn of(&self, subject: Subject) -> &Subjects {
        match subject {
            Subject::Route => &self.routes,
            Subject::Node => &self.nodes,
            Subject::Stream => &self.streams,
        }
    }
}

#[cfg(test)]
mod tests;
