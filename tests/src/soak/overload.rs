//! R15: ten times the rate that the gateway can serve, and no more memory than configured.
//!
//! Each request has its own connection, is abandoned after [`PATIENCE`], and starts when it is due,
//! independent of earlier ones. The route's plugins make it expensive, so that one driver can
//! overload the worker without running out of processor time itself.

use super::site::Site;
use super::{Row, Trial, ms, quantile};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

/// The origin fills its answer with whole lines of this.
const REQUEST: &[u8] = b"GET /dear/overload1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
/// A client gives up after this; in the short form, where the machine may be busy, later.
const PATIENCE: Duration = Duration::from_secs(1);
const LONG_PATIENCE: Duration = Duration::from_secs(20);
/// Clients at once when looking for the highest rate.
const CLIENTS: u32 = 32;
/// Clients waiting at once; more would be the driver's own overload.
const MOST: u32 = 17_000;
/// The memory the gateway may map.
const MEMORY: &str = "ulimit -v 1048576";
/// And what of it may be resident.
const RESIDENT_KIB: u64 = 256 << 10;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    // At the second rate a full queue is older than clients are patient.
    for &filters in trial.pick(&[60][..], &[120, 240]) {
        rows.extend(overload(trial, filters)?);
    }
    Ok(rows)
}

fn overload(trial: &Trial, filters: u32) -> Result<Vec<Row>> {
    let one_worker = json!({"nginx_config": {"worker_processes": 1}});
    let mut site = Site::start(trial.program, one_worker, MEMORY)?;
    site.put("routes/dear", &site.route("/dear/*", json!({"plugins": dear(filters)})))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let address: SocketAddr = site.proxy.parse()?;

    let patience = trial.pick(LONG_PATIENCE, PATIENCE);
    let seconds = trial.pick(1, 5);
    trial.progress(0.0, "looking for the highest rate");
    let peak = runtime.block_on(closed(address, Duration::from_secs(seconds), patience)).rate();

    let length = Duration::from_secs(trial.pick(3, 30));
    let mut most = 0;
    // In the short form gateway and driver are debug builds, and may not have the machine alone.
    let offered = peak * trial.pick(4.0, 10.0);
    let mut tally = runtime.block_on(open(address, offered, length, patience, |done, tally| {
        most = most.max(site.rss_kib().unwrap_or(0));
        trial.progress(done, &format!("{} good, {} refused, {} late", tally.good, tally.refused, tally.late));
    }));
    let goodput = tally.rate() / peak * 100.0;
    let wanted = 80.0;
    std::thread::sleep(PATIENCE * 2);
    let after = runtime.block_on(closed(address, Duration::from_secs(seconds), patience));
    let (back, recovered) = (after.rate() / peak * 100.0, after.good);
    let time = quantile(&mut tally.times, 0.99);
    Ok(vec![
        Row::figure(
            "R15",
            &format!(
                "goodput at {:.0}/s for {} s, the highest being {peak:.0}/s",
                tally.offered(),
                length.as_secs()
            ),
            &format!("{wanted:.0} %"),
            format!("{goodput:.0} %, those within {}", ms(time)),
            goodput >= wanted,
        ),
        Row::new(
            "R15",
            "the rest",
            "refused",
            format!(
                "{} refused, {} given up after {}, {} broken",
                tally.refused,
                tally.late,
                ms(patience),
                tally.broken
            ),
            tally.broken == 0,
        ),
        Row::new(
            "R15",
            "memory resident at most",
            "256 MiB",
            format!("{} MiB", most / 1024),
            most > 0 && most <= RESIDENT_KIB,
        ),
        Row::figure("R15", "rate afterwards", "90 %", format!("{back:.0} %"), back >= 90.0),
        Row::new(
            "R15",
            "serving meanwhile and afterwards",
            "yes",
            format!("{} good, then {recovered}", tally.good),
            tally.good > 0 && recovered > 0 && site.lives(),
        ),
    ])
}

/// Replaces in the body, over and over: 120 filters take most of a millisecond, 240 nearly two.
fn dear(filters: u32) -> Value {
    let filters: Vec<Value> = (0..filters)
        .map(|number| json!({"regex": format!("(?i)(g|e)[a-z]{{1,9}}t .*{number}{number}x"), "scope": "global", "replace": "x"}))
        .collect();
    json!({"response-rewrite": {"filters": filters}})
}

#[derive(Default)]
struct Tally {
    took: Duration,
    good: u64,
    /// 503, or a connection that was not taken.
    refused: u64,
    late: u64,
    /// Anything else: a wrong status, an answer that breaks off.
    broken: u64,
    times: Vec<Duration>,
}

enum Outcome {
    Good(Duration),
    Refused,
    Late,
    Broken,
}

impl Tally {
    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Good(time) => {
                self.good += 1;
                self.times.push(time);
            }
            Outcome::Refused => self.refused += 1,
            Outcome::Late => self.late += 1,
            Outcome::Broken => self.broken += 1,
        }
    }

    /// Good answers a second.
    fn rate(&self) -> f64 {
        self.good as f64 / self.took.as_secs_f64()
    }

    fn offered(&self) -> f64 {
        (self.good + self.refused + self.late + self.broken) as f64 / self.took.as_secs_f64()
    }
}

/// Clients that each send the next request after a response.
async fn closed(address: SocketAddr, length: Duration, patience: Duration) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let began = Instant::now();
    let clients = tokio::task::LocalSet::new();
    for _ in 0..CLIENTS {
        let tally = tally.clone();
        clients.spawn_local(async move {
            while began.elapsed() < length {
                let outcome = request(address, patience).await;
                tally.borrow_mut().count(outcome);
            }
        });
    }
    clients.await;
    tally.borrow_mut().took = began.elapsed();
    tally.take()
}

/// Requests at a constant rate, independent of responses.
async fn open(
    address: SocketAddr,
    rate: f64,
    length: Duration,
    patience: Duration,
    mut tell: impl FnMut(f64, &Tally),
) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let waiting = Rc::new(std::cell::Cell::new(0u32));
    let began = Instant::now();
    let clients = tokio::task::LocalSet::new();
    clients
        .run_until(async {
            let mut sent = 0u64;
            let mut told = Instant::now();
            while began.elapsed() < length {
                let due = (began.elapsed().as_secs_f64() * rate) as u64;
                while sent < due {
                    sent += 1;
                    if waiting.get() >= MOST {
                        continue;
                    }
                    waiting.set(waiting.get() + 1);
                    let (tally, waiting) = (tally.clone(), waiting.clone());
                    tokio::task::spawn_local(async move {
                        let outcome = request(address, patience).await;
                        waiting.set(waiting.get() - 1);
                        tally.borrow_mut().count(outcome);
                    });
                }
                if told.elapsed() > Duration::from_millis(200) {
                    told = Instant::now();
                    tell(began.elapsed().as_secs_f64() / length.as_secs_f64(), &tally.borrow());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    // Responses count in the time in which their requests were sent; the last ones are awaited.
    let took = began.elapsed();
    tally.borrow_mut().took = took;
    let _ = tokio::time::timeout(patience * 2, clients).await;
    tally.take()
}

async fn request(address: SocketAddr, patience: Duration) -> Outcome {
    let began = Instant::now();
    match tokio::time::timeout(patience, talk(address)).await {
        Err(_) => Outcome::Late,
        Ok(Ok(answer)) if answer.starts_with(b"HTTP/1.1 503 ") => Outcome::Refused,
        Ok(Ok(answer)) if is_whole(&answer) => Outcome::Good(began.elapsed()),
        Ok(Ok(answer)) if answer.is_empty() => Outcome::Refused,
        Ok(Ok(_)) => Outcome::Broken,
        Ok(Err(_)) => Outcome::Refused,
    }
}

/// The origin's answer to [`REQUEST`], to its end.
fn is_whole(answer: &[u8]) -> bool {
    let end = b"GET /dear/overload1\n";
    answer.starts_with(b"HTTP/1.1 200 ")
        && answer.strip_suffix(b"\r\n0\r\n\r\n").unwrap_or(answer).ends_with(end)
}

async fn talk(address: SocketAddr) -> Result<Vec<u8>> {
    let socket = TcpSocket::new_v4()?;
    // Ends by a reset, so that ports are free again at once.
    #[allow(deprecated, reason = "a linger of zero does not block")]
    socket.set_linger(Some(Duration::ZERO))?;
    let mut stream = socket.connect(address).await.context("connecting")?;
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
