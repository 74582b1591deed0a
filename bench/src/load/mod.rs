//! Load drivers: wrk and ab as the published comparisons used them, and our own constant-rate
//! driver for latencies. Each says what it sent, what came back and how long that took.

mod ab;
pub mod open_loop;
pub mod response;
mod wrk;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::machine::Cores;

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
        }
    }
}

/// What is asked for and what must come back.
#[derive(Clone, Debug)]
pub struct Target {
    pub address: SocketAddr,
    /// How many different paths are asked in turn: `/hello` when 1, else `/hello/0`, `/hello/1`, ...
    pub paths: usize,
    /// Sent as `apikey` when there is one.
    pub key: Option<&'static str>,
    /// Bytes of a right answer's body.
    pub body: u64,
}

impl Target {
    pub fn path(&self, index: usize) -> String {
        if self.paths == 1 { "/hello".to_owned() } else { format!("/hello/{}", index % self.paths) }
    }

    /// A whole GET request for path number `index`.
    pub fn request(&self, index: usize) -> Vec<u8> {
        let key = self.key.map(|key| format!("apikey: {key}\r\n")).unwrap_or_default();
        format!("GET {} HTTP/1.1\r\nHost: {}\r\n{key}\r\n", self.path(index), self.address).into_bytes()
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
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.requests as f64 / self.seconds } else { 0.0 }
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
    }
}
