//! Changes the configuration through the Admin API while a gateway is under load, and measures how
//! long each change takes to be live.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::admin::Admin;
use crate::gateways::{Place, Setup};
use crate::load::Target;
use crate::mixture::{self, Evidence};
use crate::probe::Client;
use crate::reload::{self, RoutesFile};
use crate::stats::Spread;

/// Minimum time between two reloads.
const RELOAD_PACE: Duration = Duration::from_secs(1);

/// A change that is not live after this time has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Results of the changes in one pass.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub changes: u64,
    /// From the Admin API's response to the first request served by the new route, in microseconds.
    pub live_us: Option<Spread>,
    /// From sending a change to the Admin API's response, in microseconds.
    pub answer_us: Option<Spread>,
    /// CPU time of Sluice's threads outside the data path per change, in microseconds.
    pub control_us: Option<f64>,
}

/// Changes routes on its own thread until it is finished.
pub struct Churn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Sample>>,
}

impl Churn {
    /// Starts `per_second` changes through the Admin API. Stops by itself some time after
    /// `duration`, so that a hanging load ends.
    ///
    /// # Errors
    /// There is no Admin API.
    pub fn start(
        target: &Target,
        setup: &Setup,
        place: &Place,
        per_second: u32,
        duration: Duration,
    ) -> Result<Self> {
        let mut changer = Changer {
            setup: *setup,
            pace: Duration::from_secs(1) / per_second.max(1),
            data: Client::connect(target)?,
            admin: Admin::connect(place)?,
        };
        Ok(Self::spawn(duration, move |stop, deadline| changer.run(stop, deadline)))
    }

    /// As [`Churn::start`], for gateways that reload their whole configuration: once per second.
    pub fn start_reloads(leader: Pid, routes_file: RoutesFile, port: u16, duration: Duration) -> Self {
        Self::spawn(duration, move |stop, deadline| reloads(&routes_file, port, leader, stop, deadline))
    }

    fn spawn(
        duration: Duration,
        run: impl FnOnce(&AtomicBool, Instant) -> Result<Sample> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let deadline = Instant::now() + duration * 3;
        let thread = std::thread::spawn(move || run(&stopped, deadline));
        Self { stop, thread }
    }

    /// # Errors
    /// A change was rejected or did not become live.
    pub fn finish(self) -> Result<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(sample) => sample,
            Err(_) => bail!("the thread that changes routes panicked"),
        }
    }
}

struct Changer {
    setup: Setup,
    pace: Duration,
    data: Client,
    admin: Admin,
}

impl Changer {
    fn run(&mut self, stop: &AtomicBool, deadline: Instant) -> Result<Sample> {
        let (mut live, mut answers) = (Vec::new(), Vec::new());
        let started = Instant::now();
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
            let due = started + self.pace.mul_f64(number as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let asked = Instant::now();
            if number.is_multiple_of(2) {
                // The route under load itself, changed without a visible effect.
                self.admin.put(&mixture::same(&self.setup, number))?;
                answers.push(asked.elapsed().as_secs_f64() * 1e6);
            } else {
                let change = mixture::change(&self.setup, number)?;
                self.admin.put(&change.object)?;
                answers.push(asked.elapsed().as_secs_f64() * 1e6);
                live.push(self.until_live(&change.evidence)?.as_secs_f64() * 1e6);
            }
            number += 1;
        }
        Ok(Sample {
            changes: number,
            live_us: Spread::of(live),
            answer_us: Spread::of(answers),
            control_us: None,
        })
    }

    /// Sends requests until the change is visible.
    fn until_live(&mut self, evidence: &Evidence) -> Result<Duration> {
        let Evidence::Request { text, before } = evidence else {
            bail!("only requests can verify a change under load")
        };
        let answered = Instant::now();
        loop {
            let response = self.data.ask(text.as_bytes())?;
            match response.status {
                200 => return Ok(answered.elapsed()),
                status if status == *before && answered.elapsed() < PATIENCE => {}
                status => bail!("{text:?} was answered {status} {:?} after its change", answered.elapsed()),
            }
        }
    }
}

/// Adds a route to a gateway's configuration and reloads it, at the reload interval.
fn reloads(
    routes_file: &RoutesFile,
    port: u16,
    leader: Pid,
    stop: &AtomicBool,
    deadline: Instant,
) -> Result<Sample> {
    let address = ([127, 0, 0, 1], port).into();
    let started = Instant::now();
    let mut live = Vec::new();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
        let due = started + RELOAD_PACE.mul_f64(number as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let begun = Instant::now();
        reload::add_route(routes_file, number)?;
        if routes_file.signalled {
            kill_process(leader, Signal::HUP)?;
        }
        // Start the next change only when this one is live, or they would pile up.
        while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
            if reload::is_live(address, number)? {
                live.push(begun.elapsed().as_secs_f64() * 1e6);
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        number += 1;
    }
    Ok(Sample { changes: number, live_us: Spread::of(live), answer_us: None, control_us: None })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;

    /// Admin API and gateway in one: a PUT adds its `uri`, other paths are 404.
    fn serve() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let known = Arc::new(Mutex::new(HashSet::new()));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, known) = (stream.unwrap(), known.clone());
                std::thread::spawn(move || {
                    let mut bytes = [0; 8192];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                        let status = match text.split_once("\r\n\r\n") {
                            Some((head, body)) if head.starts_with("PUT ") => {
                                let route: serde_json::Value = serde_json::from_str(body).unwrap();
                                known.lock().unwrap().insert(route["uri"].as_str().unwrap().to_owned());
                                "201 Created"
                            }
                            _ if known.lock().unwrap().contains(text.split(' ').nth(1).unwrap()) => "200 OK",
                            _ => "404 Not Found",
                        };
                        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
                    }
                });
            }
        });
        port
    }

    fn churn(admin_port: u16, data_port: u16) -> Result<Sample> {
        let address = ([127, 0, 0, 1], data_port).into();
        let target = Target::plain(address, 0);
        let place = Place {
            folder: PathBuf::new(),
            port: 0,
            admin_port,
            metrics_port: 0,
            spare_port: 0,
            control_port: 0,
            redis_port: 0,
            upstream_port: 1,
        };
        let churn = Churn::start(&target, &Setup::PLAIN, &place, 100, Duration::from_secs(5))?;
        std::thread::sleep(Duration::from_millis(120));
        churn.finish()
    }

    #[test]
    fn changes_are_made_and_verified_to_be_live() {
        let port = serve();
        let sample = churn(port, port).unwrap();
        assert!(sample.changes >= 2, "{sample:?}");
        assert!(sample.live_us.is_some() && sample.answer_us.is_some());
    }

    #[test]
    fn a_change_that_never_becomes_live_is_an_error() {
        // Two independent servers: the second never gets a route.
        assert!(churn(serve(), serve()).is_err());
    }
}
