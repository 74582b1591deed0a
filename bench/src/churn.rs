//! Configuration changes through the Admin API while a gateway is under load, and how long each
//! takes to be live.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;

use crate::gateways::{ADMIN_KEY, Place, Setup};
use crate::load::Target;
use crate::probe::Client;
use crate::process::Process;
use crate::stats::Spread;

/// Between two changes: 100 a second.
const PACE: Duration = Duration::from_millis(10);

/// A change that is not live after this has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the changes of one pass did.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub changes: u64,
    /// From the Admin API's answer to the first request served by the new route, in microseconds.
    pub live_us: Option<Spread>,
    /// From sending a change to the Admin API's answer, in microseconds.
    pub answer_us: Option<Spread>,
}

/// Changes routes on a thread of its own until it is finished.
pub struct Churn {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Sample>>,
}

impl Churn {
    /// Begins at once; stops by itself some time after `duration`, so that a hanging load ends.
    pub fn start(target: &Target, place: &Place, duration: Duration) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut changer = Changer {
            target: target.clone(),
            data: Client::connect(target)?,
            admin: Admin::connect(place)?,
            upstream_port: place.upstream_port,
        };
        let stopped = stop.clone();
        let deadline = Instant::now() + duration * 3;
        let thread = std::thread::spawn(move || changer.run(&stopped, deadline));
        Ok(Self { stop, thread })
    }

    /// # Errors
    /// When a change was refused or did not become live.
    pub fn finish(self) -> Result<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(sample) => sample,
            Err(_) => bail!("the thread that changes routes panicked"),
        }
    }
}

struct Changer {
    target: Target,
    data: Client,
    admin: Admin,
    upstream_port: u16,
}

impl Changer {
    fn run(&mut self, stop: &AtomicBool, deadline: Instant) -> Result<Sample> {
        let (mut live, mut answers) = (Vec::new(), Vec::new());
        let started = Instant::now();
        let mut change = 0u64;
        while !stop.load(Ordering::Relaxed) && Instant::now() < deadline {
            let due = started + PACE.mul_f64(change as f64);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let asked = Instant::now();
            if change.is_multiple_of(2) {
                // The route under load itself, changed in a way that must not be noticed.
                let text = format!("change {change}");
                self.admin.put_route("under-load", "/hello", self.upstream_port, &text)?;
                answers.push(asked.elapsed().as_secs_f64() * 1e6);
            } else {
                let path = format!("/hello/change-{change}");
                // Few names, so that old routes are replaced as well as new ones added.
                let id = format!("change-{}", change % 64);
                self.admin.put_route(&id, &path, self.upstream_port, "")?;
                answers.push(asked.elapsed().as_secs_f64() * 1e6);
                live.push(self.until_live(&path)?.as_secs_f64() * 1e6);
            }
            change += 1;
        }
        Ok(Sample { changes: change, live_us: Spread::of(live), answer_us: Spread::of(answers) })
    }

    /// Asks for a new path until it is served.
    fn until_live(&mut self, path: &str) -> Result<Duration> {
        let answered = Instant::now();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.target.address);
        loop {
            let response = self.data.ask(request.as_bytes())?;
            match response.status {
                200 => return Ok(answered.elapsed()),
                404 if answered.elapsed() < PATIENCE => {}
                status => bail!("{path} was answered {status} {:?} after its change", answered.elapsed()),
            }
        }
    }
}

/// Gives a gateway that is configured through its Admin API the routes of `setup`.
///
/// # Errors
/// When the Admin API does not come up or refuses one.
pub fn put_routes(process: &mut Process, setup: &Setup, place: &Place) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(15);
    let mut admin = loop {
        process.must_run()?;
        match Admin::connect(place) {
            Ok(admin) => break admin,
            Err(problem) if Instant::now() > deadline => {
                return Err(problem)
                    .context(format!("no Admin API; its log ends with:\n{}", process.log_tail()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    for (index, path) in setup.paths().iter().enumerate() {
        let id = if index == 0 { "under-load".to_owned() } else { index.to_string() };
        admin.put_route(&id, path, place.upstream_port, "")?;
    }
    Ok(())
}

struct Admin {
    client: Client,
}

impl Admin {
    fn connect(place: &Place) -> Result<Self> {
        let address = ([127, 0, 0, 1], place.admin_port).into();
        let target = Target::plain(address, 0);
        Ok(Self { client: Client::connect(&target)? })
    }

    fn put_route(&mut self, id: &str, uri: &str, upstream_port: u16, description: &str) -> Result<()> {
        let node = format!("127.0.0.1:{upstream_port}");
        let route = json!({
            "uri": uri,
            "desc": description,
            "upstream": { "type": "roundrobin", "nodes": { node: 1 } },
        })
        .to_string();
        let request = format!(
            "PUT /apisix/admin/routes/{id} HTTP/1.1\r\nHost: bench\r\nX-API-KEY: {ADMIN_KEY}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{route}",
            route.len()
        );
        let response = self.client.ask(request.as_bytes()).with_context(|| format!("PUT of route {id}"))?;
        if !matches!(response.status, 200 | 201) {
            bail!("PUT of route {id} was answered {}", response.status);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;

    /// Admin API and gateway in one: a PUT makes its `uri` known, other paths are 404.
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
            upstream_port: 1,
        };
        let churn = Churn::start(&target, &place, Duration::from_secs(5))?;
        std::thread::sleep(Duration::from_millis(120));
        churn.finish()
    }

    #[test]
    fn changes_are_made_and_seen_to_be_live() {
        let port = serve();
        let sample = churn(port, port).unwrap();
        assert!(sample.changes >= 2, "{sample:?}");
        assert!(sample.live_us.is_some() && sample.answer_us.is_some());
    }

    #[test]
    fn a_change_that_is_never_live_is_an_error() {
        // Two that do not know each other: the second never learns of a route.
        assert!(churn(serve(), serve()).is_err());
    }
}
