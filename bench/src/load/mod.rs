//! Load drivers: wrk and ab as in the published comparisons, h2load for HTTP/2, and our own for a
//! constant rate, TLS handshakes, HTTP/3 and WebSocket. Each reports its requests, their results
//! and their latencies.

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

/// The kind of load.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "driver")]
pub enum Driver {
    /// Closed loop: each connection sends as soon as it has its response.
    Wrk { threads: usize, connections: usize },
    /// Closed loop, HTTP/1.0, a new connection per request, `requests` in total.
    Ab { connections: usize, requests: u64 },
    /// Open loop: requests are due at a constant rate (per second), independent of the responses;
    /// latencies count from the time a request was due.
    Paced { connections: usize, rate: u64 },
    /// Open loop at a quarter of the rate that Sluice's core can serve, measured when the scenario
    /// begins, closed loop.
    Quarter { connections: usize },
    /// Closed loop of HTTP/2 requests, `streams` of them in flight on each connection.
    H2load { connections: usize, streams: usize },
    /// As `H2load`, over HTTP/3 with our own driver.
    Http3 { connections: usize, streams: usize },
    /// TLS 1.3 handshakes one after the other in each thread, each on a new connection.
    Handshakes { threads: usize, resumed: bool },
    /// WebSocket messages that are echoed, one in flight on each connection.
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

    /// The unit of counts.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Handshakes { .. } => "handshake",
            Self::Echo { .. } => "message",
            _ => "request",
        }
    }
}

/// The measurements of a driver. Latencies in microseconds; `None` if the driver does not report
/// them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Load {
    pub requests: u64,
    pub seconds: f64,
    /// Responses that were not 2xx, had the wrong length or never arrived.
    pub errors: u64,
    /// Details of the errors, if the driver reports them.
    pub remark: Option<String>,
    pub mean_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub max_us: Option<f64>,
}

impl Load {
    /// Results of requests that were timed one by one, in microseconds.
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

/// Counts of our own drivers.
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

/// Runs `driver` against `target` for `duration` (ab: for its number of requests, scaled by `share`
/// for shorter passes) on `cores`. `folder` takes the driver's files.
///
/// # Errors
/// The driver cannot be started or its output cannot be parsed. Wrong responses are not an error
/// here: they are counted.
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
        Driver::Quarter { .. } => bail!("the rate of this scenario has not been measured"),
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
