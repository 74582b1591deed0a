//! Verified requests at a constant rate: GET, POST with a length and POST in chunks by turns, on
//! kept-alive connections, each answer compared byte for byte.
//!
//! A request's time counts from the moment it was due, so that a stall is seen by all that had to
//! wait for it.

use super::origin::answer_to;
use super::quantile;
use crate::http::{Message, Reader};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An answer that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Failures kept in words; the rest is only counted.
const KEPT: usize = 5;
/// Failures of which the time is kept.
const KEPT_WITH_TIME: usize = 10_000;
/// The rate of the checks, in requests a second.
pub const RATE: u32 = 400;
/// Long enough for some hundred requests at that rate.
pub const SLICE: Duration = Duration::from_millis(1500);
/// Clients that make it.
const CLIENTS: u32 = 8;

/// A load that runs until it is dropped or stopped.
pub struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

/// How a load is made.
#[derive(Clone, Copy)]
pub struct Style {
    /// Requests a second of all clients together; `None`: each client asks as soon as it has its answer.
    pub rate: Option<u32>,
    /// Clients, each with a connection of its own.
    pub clients: u32,
    /// Whether a client looks if its connection is still open before it sends.
    pub looks: bool,
}

struct Shared {
    address: String,
    paths: Vec<String>,
    style: Style,
    tally: Mutex<Tally>,
    stopped: AtomicBool,
}

/// Results since the last read.
#[derive(Default, Clone)]
pub struct Tally {
    pub requests: u64,
    pub failed: u64,
    /// The first failures.
    pub failures: Vec<String>,
    /// When failures happened.
    pub broken: Vec<Broken>,
    pub times: Vec<Duration>,
}

/// A request that failed.
#[derive(Clone)]
pub struct Broken {
    /// Before its first byte was sent, and after its failure was seen.
    pub during: RangeInclusive<Instant>,
    pub post: bool,
    text: String,
}

impl Broken {
    /// Whether something that happened then may have been the reason.
    pub fn overlaps(&self, other: &RangeInclusive<Instant>) -> bool {
        self.during.start() <= other.end() && other.start() <= self.during.end()
    }
}

impl Load {
    /// Sends `rate` requests per second to `address`, to all `paths` in turn, from clients that
    /// check whether their connection is open.
    pub fn start(address: &str, paths: &[String], rate: u32) -> Load {
        Load::with(address, paths, Style { rate: Some(rate), clients: CLIENTS, looks: true })
    }

    pub fn with(address: &str, paths: &[String], style: Style) -> Load {
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            paths: paths.to_vec(),
            style,
            tally: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let begin = |number: u32| {
            let shared = shared.clone();
            std::thread::spawn(move || client(&shared, number))
        };
        let clients = (0..style.clients).map(begin).collect();
        Load { shared, clients }
    }

    /// Results since the last call.
    pub fn take(&self) -> Tally {
        std::mem::take(&mut *self.shared.tally.lock().expect("no holder panics"))
    }

    /// Results of the next `slices` slices of time, and the [`calmest`] of the slices' 99th
    /// percentiles.
    pub fn watch(&self, slices: u32) -> (Tally, Duration) {
        self.take();
        let mut all = Tally::default();
        let mut times = Vec::new();
        for _ in 0..slices {
            std::thread::sleep(SLICE);
            let mut tally = self.take();
            times.push(quantile(&mut tally.times, 0.99));
            all.add(tally);
        }
        (all, calmest(&mut times))
    }

    /// Ends it, and gives what was done since the last call.
    pub fn stop(mut self) -> Tally {
        self.end();
        self.take()
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            if client.join().is_err() {
                let mut tally = self.shared.tally.lock().expect("no holder panics");
                tally.failed += 1;
                tally.failures.push("a client of the load panicked".to_owned());
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.failures.truncate(KEPT);
        self.broken.extend(other.broken);
        self.times.extend(other.times);
    }

    /// Takes out the failures that may be, and says how many.
    pub fn excuse(&mut self, may_be: impl Fn(&Broken) -> bool) -> u64 {
        let before = self.broken.len();
        self.broken.retain(|broken| !may_be(broken));
        self.failures = self.broken.iter().take(KEPT).map(|broken| broken.text.clone()).collect();
        let excused = (before - self.broken.len()) as u64;
        self.failed -= excused;
        excused
    }

    /// `0 of 1,000`, and what went wrong if something did.
    pub fn verdict(&self) -> String {
        let mut text = format!("{} of {}", self.failed, self.requests);
        for failure in &self.failures {
            text.push_str(&format!("; {failure}"));
        }
        text
    }
}

/// The lower quartile of figures of slices: the other slices are distorted by other load of the
/// machine, which is not the gateway's fault.
pub fn calmest(figures: &mut [Duration]) -> Duration {
    quantile(figures, 0.25)
}

fn client(shared: &Shared, number: u32) {
    let Style { rate, clients, looks } = shared.style;
    let gap = rate.map(|rate| Duration::from_secs(1) * clients / rate);
    let begin = Instant::now() + gap.unwrap_or_default() * number / clients;
    let mut caller = Caller::new(&shared.address, looks);
    for turn in 0u32.. {
        let due = gap.map_or_else(Instant::now, |gap| begin + gap * turn);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let path = &shared.paths[(turn + number) as usize % shared.paths.len()];
        let name = number * (1_000_000_000 / clients) + turn;
        let began = Instant::now();
        let outcome = caller.ask(path, name);
        let time = due.elapsed();
        let mut tally = shared.tally.lock().expect("no holder panics");
        tally.requests += 1;
        tally.times.push(time);
        if let Err(error) = outcome {
            tally.failed += 1;
            let text = format!("{error:#}");
            if tally.failures.len() < KEPT {
                tally.failures.push(text.clone());
            }
            // Times are only examined if there are few failures.
            if tally.broken.len() < KEPT_WITH_TIME {
                let post = is_post(name);
                tally.broken.push(Broken { during: began..=Instant::now(), post, text });
            }
        }
    }
}

/// A client with one connection, kept as long as the server keeps it.
pub struct Caller {
    address: String,
    looks: bool,
    kept: Option<Reader<TcpStream>>,
}

impl Caller {
    pub fn new(address: &str, looks: bool) -> Caller {
        Caller { address: address.to_owned(), looks, kept: None }
    }

    /// Whether there is a connection that the server did not say it would close.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// One request of the kind its number says, on the kept connection or on a new one. An answer
    /// other than the one that is due is an error, and ends the connection.
    pub fn ask(&mut self, path: &str, number: u32) -> Result<()> {
        let target = format!("{path}/{number}");
        let (method, bytes, body) = request(&target, number);
        let answer = self.exchange(method, &target, &bytes)?;
        ensure!(answer.status() == 200, "{method} {target}: {}", answer.line);
        ensure!(answer.complete, "{method} {target}: the answer breaks off");
        ensure!(answer.body == answer_to(method, &target, &body), "{method} {target}: a wrong body");
        Ok(())
    }

    /// Sends bytes and reads a response, correct or not, complete or not. An error means no
    /// response.
    pub fn exchange(&mut self, method: &str, target: &str, bytes: &[u8]) -> Result<Message> {
        let mut connection = match self.kept.take().filter(|kept| !self.looks || is_open(kept.inner())) {
            Some(connection) => connection,
            None => connect(&self.address)?,
        };
        connection.inner().write_all(bytes).with_context(|| format!("sending {method} {target}"))?;
        let answer = connection.response(method).with_context(|| format!("{method} {target}"))?;
        ensure!(connection.rest().is_empty(), "{method} {target}: bytes after the answer");
        let closes = answer.first("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if answer.complete && !closes {
            self.kept = Some(connection);
        }
        Ok(answer)
    }
}

fn is_post(number: u32) -> bool {
    !number.is_multiple_of(3)
}

/// Method, bytes and body of a request: by number a GET, a POST with a length or one in chunks.
fn request(target: &str, number: u32) -> (&'static str, Vec<u8>, Vec<u8>) {
    let (method, body) = match number % 3 {
        0 => ("GET", Vec::new()),
        _ => ("POST", pattern(number)),
    };
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: load\r\n").into_bytes();
    match number % 3 {
        0 => bytes.extend(b"\r\n"),
        1 => {
            bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
            bytes.extend(&body);
        }
        _ => {
            bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for part in body.chunks(1000) {
                bytes.extend(format!("{:x}\r\n", part.len()).into_bytes());
                bytes.extend(part);
                bytes.extend(b"\r\n");
            }
            bytes.extend(b"0\r\n\r\n");
        }
    }
    (method, bytes, body)
}

/// Whether an idle connection is still open. A server may close one at any time, and a client that
/// sees that in time opens another; one closed during a request is a failure.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let waits = looked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    waits && stream.set_nonblocking(false).is_ok()
}

fn connect(address: &str) -> Result<Reader<TcpStream>> {
    let stream = TcpStream::connect(address).context("connecting")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(Reader::new(stream))
}

/// A body of 0 to 8,000 bytes that no other request has.
fn pattern(number: u32) -> Vec<u8> {
    let size = (number.wrapping_mul(2_654_435_761) >> 8) as usize % 8000;
    let mut body = [&number.to_le_bytes(), &b"\r\n0\r\n\r\n"[..]].concat().repeat(size / 11 + 1);
    body.truncate(size);
    body
}
