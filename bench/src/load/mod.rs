//! Load drivers: wrk and ab as the published comparisons used them, h2load for HTTP/2, and our own
//! for a constant rate, TLS handshakes, HTTP/3 and WebSocket. Each says what it sent, what came back
//! and how long that took.

mod ab;
pub mod echo;
mod h2load;
mod handshake;
pub mod http2;
pub mod http3;
pub mod open_loop;
pub mod response;
mod runtime;
mod target;
mod wrk;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::machine::Cores;

pub use runtime::wait;
pub use target::{Call, Front, GRPC_PATH, Target, grpc_message};

/// How load is made.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "driver")]
pub enum Driver {
    /// Closed loop: each connection sends as soon as it has its answer.
    Wrk { threads: usize, connections: usize },
    /// Closed loop, HTTP/1.0, a new connection per request, `requests` in all.
    Ab { connections: usize, requests: u64 },
    /// Open loop: requests are due at a constant rate (per second) whatever the answers do, and a
    /// latency counts from the moment its request was due.
    Paced { connections: usize, rate: u64 },
    /// The same at a quarter of what Sluice's core could do, which is measured when the scenario
    /// begins, closed loop.
    Quarter { connections: usize },
    /// Closed loop of HTTP/2 requests, `streams` of them under way on each connection.
    H2load { connections: usize, streams: usize },
    /// The same over HTTP/3 by our own driver.
    Http3 { connections: usize, streams: usize },
    /// TLS 1.3 handshakes one after the other in each thread, on a new connection each.
    Handshakes { threads: usize, resumed: bool },
    /// WebSocket messages that are echoed, one under way on each connection.
    Echo { connections: usize },
}

impl Driver {
    /// The command or its equivalent, for reports.
    pub fn text(&self) -> String {
        match self {
            Self::Wrk { threads, connections } => format!("wrk -t{threads} -c{connections}"),
            Self::Ab { connections, requests } => format!("ab -c {connections} -n {requests} (HTTP/1.0)"),
            Self::Paced { connections, rate } => {
                format!("open loop, {rate} requests/s over {connections} connections")
            }
            Self::Quarter { connections } => {
                format!("open loop, a quarter of the highest rate over {connections} connections")
            }
            Self::H2load { connections, streams } => format!("h2load -t1 -c{connections} -m{streams}"),
            Self::Http3 { connections, streams } => {
                format!("own HTTP/3 client, {connections} connections with {streams} requests each")
            }
            Self::Handshakes { threads, resumed } => {
                format!("{} TLS 1.3 handshakes, {threads} at once", if *resumed { "resumed" } else { "full" })
            }
            Self::Echo { connections } => {
                format!(
                    "WebSocket, a message of {} bytes to and fro on {connections} connections",
                    echo::MESSAGE
                )
            }
        }
    }

    /// What is counted.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Handshakes { .. } => "handshake",
            Self::Echo { .. } => "message",
            _ => "request",
        }
    }
}

/// What a driver saw. Latencies in microseconds; `None` where the driver does not tell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Load {
    pub requests: u64,
    pub seconds: f64,
    /// Answers that were not 2xx, had the wrong length or never came.
    pub errors: u64,
    /// What was wrong with them, where the driver can tell.
    pub remark: Option<String>,
    pub mean_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub max_us: Option<f64>,
}

impl Load {
    /// What came of requests that were timed one by one, in microseconds.
    pub fn timed(latencies: &Histogram<u64>, seconds: f64, errors: u64, remark: Option<String>) -> Load {
        let quantile = |q: f64| Some(latencies.value_at_quantile(q) as f64);
        Load {
            requests: latencies.len(),
            seconds,
            errors,
            remark,
            mean_us: Some(latencies.mean()),
            p50_us: quantile(0.5),
            p90_us: quantile(0.9),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: Some(latencies.max() as f64),
        }
    }
}

impl Load {
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
    }
}

/// What our own drivers count.
struct Tally {
    latencies: Histogram<u64>,
    errors: u64,
    remark: Option<String>,
}

impl Tally {
    fn new() -> Result<Self> {
        Ok(Self { latencies: Histogram::new_with_bounds(1, 60_000_000, 3)?, errors: 0, remark: None })
    }

    fn count(&mut self, latency: Duration) {
        self.latencies.saturating_record(latency.as_micros() as u64);
    }

    fn fail(&mut self, problem: &anyhow::Error) {
        self.errors += 1;
        self.remark = Some(format!("{problem:#}"));
    }

    fn add(&mut self, other: Self) -> Result<()> {
        self.latencies.add(other.latencies)?;
        self.errors += other.errors;
        self.remark = self.remark.take().or(other.remark);
        Ok(())
    }

    fn load(self, elapsed: Duration) -> Load {
        Load::timed(&self.latencies, elapsed.as_secs_f64(), self.errors, self.remark)
    }
}

/// Runs `driver` against `target` for `duration` (ab: for its number of requests, scaled by
/// `share` for shorter passes) on `cores`. `folder` takes the files a driver writes.
///
/// # Errors
/// When the driver cannot be started or its output cannot be read. Wrong answers are no error here:
/// they are counted.
pub fn run(
    driver: &Driver,
    target: &Target,
    duration: Duration,
    share: f64,
    cores: &Cores,
    folder: &Path,
) -> Result<Load> {
    match driver {
        Driver::Wrk { threads, connections } => {
            wrk::run(*threads, *connections, target, duration, cores, folder)
        }
        Driver::Ab { connections, requests } => {
            let requests = ((*requests as f64 * share) as u64).max(*connections as u64);
            ab::run(*connections, requests, target, cores, folder)
        }
        Driver::Paced { connections, rate } => open_loop::run(*connections, *rate, target, duration, cores),
        Driver::Quarter { .. } => bail!("the rate of this scenario has not been found out"),
        Driver::H2load { connections, streams } => {
            h2load::run(*connections, *streams, target, duration, cores, folder)
        }
        Driver::Http3 { connections, streams } => {
            let (target, streams) = (target.clone(), *streams);
            let connections = *connections;
            runtime::alone(cores, move || http3::load(connections, streams, target, duration))
        }
        Driver::Handshakes { threads, resumed } => {
            handshake::run(*threads, *resumed, target, duration, cores)
        }
        Driver::Echo { connections } => {
            let (target, connections) = (target.clone(), *connections);
            runtime::alone(cores, move || echo::load(connections, target, duration))
        }
    }
}
