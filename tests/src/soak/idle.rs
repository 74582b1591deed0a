//! R2: thousands of connections that do nothing, kept alive or switched to WebSocket.

use super::load::{Caller, Load, RATE, SLICE};
use super::site::{Site, settled};
use super::{Row, Trial, ms};
use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An answer that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
const SWITCH: &[u8] = b"GET /socket HTTP/1.1\r\nHost: idle\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
/// A text of five letters, masked with zeros (RFC 6455 section 5.2).
const FRAME: &[u8] = b"\x81\x85\0\0\0\0hello";

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let mut rows = kept_alive(trial, trial.pick(500, 10_000))?;
    rows.extend(switched(trial, trial.pick(200, 4_000))?);
    Ok(rows)
}

/// Connections that have had a request each, wait, and then have another.
fn kept_alive(trial: &Trial, count: u32) -> Result<Vec<Row>> {
    allow_descriptors(u64::from(count) + 500)?;
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE);
    std::thread::sleep(Duration::from_secs(trial.pick(1, 5)));
    let slices = trial.pick(2, 15);
    let (calm, quiet) = load.watch(slices);

    let before = site.rss_kib()?;
    let mut idle: Vec<Caller> = (0..count).map(|_| Caller::new(&site.proxy, false)).collect();
    for (number, caller) in (0..).zip(&mut idle) {
        caller.ask("/idle", number).with_context(|| format!("first request of connection {number}"))?;
        ensure!(caller.is_kept(), "connection {number} is closed after its first request");
        trial.progress(f64::from(number) / f64::from(count), "connections");
    }
    // The memory of requests is released a moment after the last of them.
    std::thread::sleep(Duration::from_secs(1));
    let each = settled(allowed_kib(trial, 4.0), || Ok(kib_each(before, site.rss_kib()?, count)))?;
    let opening = load.take();
    let (busy, crowded) = load.watch(slices);
    let alive = (0..).zip(&mut idle).filter_map(|(number, caller)| caller.ask("/idle", number).ok()).count();
    let last = load.stop();

    let allowed = (quiet * 2).max(trial.pick(Duration::from_millis(20), Duration::from_millis(2)));
    let failed = calm.failed + opening.failed + busy.failed + last.failed;
    let requests = calm.requests + opening.requests + busy.requests + last.requests;
    Ok(vec![
        memory(trial, &format!("{count} idle connections after a request each, memory of one"), each, 4.0),
        Row::new(
            "R2",
            &format!("of them alive on their second request, {} s later", (SLICE * slices).as_secs() + 1),
            &count.to_string(),
            alive,
            alive == count as usize,
        ),
        Row::new("R2", "failed requests of others", "0", format!("{failed} of {requests}"), failed == 0),
        Row::figure(
            "R2",
            "time of those, 99 %",
            &format!("2 x {}", ms(quiet)),
            ms(crowded),
            crowded <= allowed,
        ),
    ])
}

/// WebSocket connections through which a frame has gone there and back.
fn switched(trial: &Trial, count: u32) -> Result<Vec<Row>> {
    // The origin, in this process, has as many.
    allow_descriptors(u64::from(count) * 2 + 500)?;
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/socket", &site.route("/socket", json!({"enable_websocket": true})))?;
    let some = (0..20).map(|_| open(&site.proxy)).collect::<Result<Vec<_>>>()?;
    drop(some);
    std::thread::sleep(Duration::from_secs(1));
    let before = site.rss_kib()?;
    let mut sockets = Vec::new();
    for number in 0..count {
        sockets.push(open(&site.proxy).with_context(|| format!("WebSocket connection {number}"))?);
        trial.progress(f64::from(number) / f64::from(count), "WebSocket connections");
    }
    std::thread::sleep(Duration::from_secs(trial.pick(1, 10)));
    let each = settled(allowed_kib(trial, 8.0), || Ok(kib_each(before, site.rss_kib()?, count)))?;
    let alive = sockets.iter_mut().filter_map(|socket| frame(socket).ok()).count();
    Ok(vec![
        memory(trial, &format!("{count} WebSocket connections, both sides, memory of one"), each, 8.0),
        Row::new("R2", "of them alive", &count.to_string(), alive, alive == count as usize),
    ])
}

/// Switches protocols and sends a frame there and back.
fn open(address: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(SWITCH)?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).context("waiting for the switch")?;
        head.extend(byte);
    }
    ensure!(head.starts_with(b"HTTP/1.1 101 "), "not switched: {}", head.escape_ascii());
    frame(&mut stream)?;
    Ok(stream)
}

/// The origin sends back every byte.
fn frame(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(FRAME)?;
    let mut back = [0; FRAME.len()];
    stream.read_exact(&mut back)?;
    ensure!(back == FRAME, "another frame came back: {}", back.escape_ascii());
    Ok(())
}

fn kib_each(before: u64, after: u64, count: u32) -> f64 {
    (after as f64 - before as f64) / f64::from(count)
}

fn memory(trial: &Trial, what: &str, each: f64, most: f64) -> Row {
    let met = each <= allowed_kib(trial, most);
    Row::new("R2", what, &format!("{most:.0} KiB"), format!("{each:.1} KiB"), met)
}

/// A few connections share the allocator's first pages with what comes later.
fn allowed_kib(trial: &Trial, most: f64) -> f64 {
    most * trial.pick(2.0, 1.0)
}

/// Raises the limit on open files of this process, and of the gateways it starts from now on.
pub(super) fn allow_descriptors(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
            .with_context(|| format!("{wanted} open files are needed: raise `ulimit -Hn`"))?;
    }
    Ok(())
}
