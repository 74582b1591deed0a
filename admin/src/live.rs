//! The live view: what the gateway does now, and did in the last day, without the prometheus plugin.
//!
//! One task reads the workers' counts once a second, keeps them in rings of fixed memory
//! ([`history`]) and makes the event that all clients of `GET /apisix/admin/live` are sent.

pub(crate) mod history;
mod sample;
pub(crate) mod taps;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sdk::meters::Meters;
use sdk::meters::live::Subject;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use history::{History, Tracked};
use sample::Gauge;
pub(crate) use sample::Sample;

/// Routes and nodes in each event.
const SHOWN: usize = 20;

/// Facts about the process, read once a second.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// The share of a processor that each worker used in the last second.
    pub worker_cpu: Vec<f64>,
    /// Resident memory in bytes; 0 if unknown.
    pub memory: u64,
}

/// Reads the facts about the process; the argument is the seconds since the last call.
pub type ReadProcess = Box<dyn FnMut(f64) -> Process + Send>;

/// The live view. One for the process.
#[derive(Debug)]
pub struct Live {
    meters: Arc<Meters>,
    history: Mutex<History>,
    event: watch::Sender<Bytes>,
    pub(crate) taps: taps::TapStreams,
}

impl Live {
    /// `taps` is absent if taps are switched off.
    pub fn new(meters: Arc<Meters>, workers: usize, taps: Option<Arc<sdk::tap::Taps>>) -> Live {
        let (event, _) = watch::channel(Bytes::new());
        let history = Mutex::new(History::new(workers));
        Live { meters, history, event, taps: taps::TapStreams::new(taps) }
    }

    /// Reads the counts once a second for as long as the runtime lives.
    pub async fn run(self: Arc<Live>, mut read: ReadProcess) {
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut last = tokio::time::Instant::now();
        let mut clock = Clock { began: last, offset: crate::now() };
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let passed = last.elapsed().as_secs_f64().max(0.001);
            last = tokio::time::Instant::now();
            let process = read(passed);
            self.tick(clock.second(last, crate::now()), &process);
        }
    }

    /// Takes the counts of the last second, which ended at `now` (seconds since 1970).
    pub(crate) fn tick(&self, now: u64, process: &Process) {
        let mut history = self.history();
        history.begin(now);
        self.meters.take_live(|worker, (subject, name), counts| {
            history.add(worker, *subject, name, counts);
        });
        let open = self.meters.open_connections();
        let cpu = |worker: usize| process.worker_cpu.get(worker).copied().unwrap_or_default();
        let gauge = |connections: u64, cpu: f64| Gauge {
            connections: u32::try_from(connections).unwrap_or(u32::MAX),
            cpu: (cpu * 1000.0) as u32,
        };
        history.measure(
            gauge(open.iter().sum(), process.worker_cpu.iter().sum()),
            open.iter().enumerate().map(|(worker, open)| gauge(*open, cpu(worker))),
        );
        history.end();
        // Without clients no event is made.
        if self.event.receiver_count() > 0 {
            let event = self.shown(&history, now, process);
            drop(history);
            self.event.send_replace(event_of("live", &event));
        }
    }

    /// A client's view of the events.
    pub(crate) fn events(&self) -> watch::Receiver<Bytes> {
        self.event.subscribe()
    }

    /// The columns of one ring; see [`History::columns`].
    pub(crate) fn columns(&self, of: &str, step: u64) -> Result<Value, String> {
        self.history().columns(of, step)
    }

    fn shown(&self, history: &History, now: u64, process: &Process) -> Value {
        let totals = self.meters.totals();
        let cpu = |worker: usize| process.worker_cpu.get(worker).copied();
        let workers = history.workers().enumerate().map(|(index, sample)| {
            let mut shown = sample.shown();
            shown["cpu"] = cpu(index).into();
            shown
        });
        let open = totals.accepted.wrapping_sub(totals.closed) as i64;
        json!({
            "time": now,
            "gateway": history.gateway().shown(),
            "latencies": history.octaves(),
            "workers": workers.collect::<Vec<_>>(),
            "routes": listed(history.busiest(Subject::Route, SHOWN)),
            "nodes": nodes(history),
            "worst_routes": listed(history.worst(Subject::Route, 5)),
            "streams": listed(history.busiest(Subject::Stream, SHOWN)),
            "connections": {
                "open": open.max(0),
                "idle": (totals.waiting as i64).max(0),
                "accepted": totals.accepted,
            },
            "requests_in_flight": (totals.began.wrapping_sub(totals.ended) as i64).max(0),
            "retries": totals.retries,
            "faults": totals.faults,
            "refused": totals.refused,
            "memory": process.memory,
            "taps": self.taps.count(),
        })
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers the ticks in seconds since 1970. The system's clock alone would skip a number, or use one twice, when ticks
/// are near its full seconds.
struct Clock {
    began: tokio::time::Instant,
    offset: u64,
}

impl Clock {
    /// Seconds by which the system's clock may differ before it is followed.
    const MOST_APART: u64 = 2;

    fn second(&mut self, tick: tokio::time::Instant, system: u64) -> u64 {
        let ticks = tick.duration_since(self.began).as_secs_f64().round() as u64;
        if (self.offset + ticks).abs_diff(system) > Clock::MOST_APART {
            *self = Clock { began: tick, offset: system };
            return system;
        }
        self.offset + ticks
    }
}

fn listed<'h>(all: impl Iterator<Item = (&'h str, &'h Tracked)>) -> Vec<Value> {
    let one = |(id, tracked): (&str, &Tracked)| {
        let mut shown = tracked.recent().shown();
        shown["id"] = id.into();
        shown["rate"] = rounded(tracked.rate).into();
        shown["error_rate"] = rounded(tracked.errors).into();
        shown
    };
    all.map(one).collect()
}

/// The busiest nodes; one that does not answer has requests in flight, and no rate.
fn nodes(history: &History) -> Vec<Value> {
    let all: Vec<_> = history.busiest_nodes(SHOWN).collect();
    let mut shown = listed(all.iter().copied());
    for (node, (_, tracked)) in shown.iter_mut().zip(&all) {
        node["in_flight"] = tracked.in_flight.into();
    }
    shown
}

/// Two decimals are enough for people.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

/// An event in the form of `text/event-stream`.
pub(crate) fn event_of(name: &str, value: &Value) -> Bytes {
    // JSON has no line ends of its own.
    format!("event: {name}\ndata: {value}\n\n").into()
}

#[cfg(test)]
mod tests;
