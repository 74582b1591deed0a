//! R12 and R14: clients that are slow, and clients that go away.

use super::load::{Load, RATE};
use super::origin::BULK;
use super::site::{Site, growth, settled};
use super::{Row, Trial, ms, quantile};
use anyhow::Result;
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A slow client that is still connected so long after its time was over has been forgotten.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let patience = trial.pick("1s", "10s");
    let times = json!({"nginx_config": {"http": {"client_header_timeout": patience, "client_body_timeout": patience}}});
    let mut site = Site::start(trial.program, times, "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE);
    std::thread::sleep(Duration::from_secs(trial.pick(1, 5)));
    let mut calm = load.take();
    let mut rows = slow(trial, &site, Duration::from_secs(trial.pick(1, 10)))?;
    let mut busy = load.take();
    let (before, after) = (quantile(&mut calm.times, 0.99), quantile(&mut busy.times, 0.99));
    rows.push(Row::figure(
        "R12",
        "time of the others' requests, 99 %",
        &format!("as before: {}", ms(before)),
        ms(after),
        after <= (before * 2).max(trial.pick(Duration::from_millis(20), Duration::from_millis(2))),
    ));
    rows.extend(aborts(trial, &site)?);
    busy.add(load.stop());
    rows.push(Row::new("R12", "failed requests meanwhile", "0", busy.verdict(), busy.failed == 0));
    Ok(rows)
}

/// Heads and bodies that come a byte a second, and never end.
fn slow(trial: &Trial, site: &Site, limit: Duration) -> Result<Vec<Row>> {
    let heads = trial.pick(50, 250);
    let bodies = trial.pick(20, 100);
    let began = Instant::now();
    let mut clients = Vec::new();
    for number in 0..heads + bodies {
        let mut stream = TcpStream::connect(&site.proxy)?;
        stream.set_nonblocking(true)?;
        let start: &[u8] = if number < heads {
            b"GET /slow HTTP/1.1\r\nHost: a\r\nX: "
        } else {
            b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"
        };
        stream.write_all(start)?;
        clients.push((number < heads, stream));
    }
    let mut ends = [Vec::new(), Vec::new()];
    let until = began + limit + PATIENCE;
    let mut byte = began;
    while !clients.is_empty() && Instant::now() < until {
        // Heads trickle; bodies stop altogether, since each byte would be a sign of life.
        if byte.elapsed() > Duration::from_secs(1) {
            byte = Instant::now();
            clients.iter_mut().filter(|(head, _)| *head).for_each(|(_, stream)| _ = stream.write(b"a"));
        }
        clients.retain_mut(|(head, stream)| {
            let over = is_over(stream);
            if over {
                ends[usize::from(!*head)].push(began.elapsed());
            }
            !over
        });
        trial.progress(began.elapsed().as_secs_f64() / limit.as_secs_f64() / 1.2, "slow clients");
        std::thread::sleep(Duration::from_millis(20));
    }
    let row = |what: &str, ends: &mut Vec<Duration>, count: usize| {
        let (first, last) = (quantile(ends, 0.0), quantile(ends, 1.0));
        let in_time = first >= limit * 9 / 10 && last <= limit + Duration::from_secs(2);
        [
            Row::new("R12", what, &count.to_string(), ends.len(), ends.len() == count),
            Row::figure("R12", "after", &ms(limit), format!("{} to {}", ms(first), ms(last)), in_time),
        ]
    };
    let [head_ends, body_ends] = &mut ends;
    let rows = [row("slow heads cut", head_ends, heads), row("slow bodies cut", body_ends, bodies)];
    Ok(rows.into_iter().flatten().collect())
}

/// Whether the server has closed the connection. Data sent before is discarded.
fn is_over(stream: &mut TcpStream) -> bool {
    let mut part = [0; 4096];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// Clients that leave in the head, the upload, the download and while they wait; half by a reset.
fn aborts(trial: &Trial, site: &Site) -> Result<Vec<Row>> {
    let count = trial.pick(200, 2000);
    let download = format!("GET {BULK}10000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    let kinds: [&[u8]; 4] = [
        b"GET /aborted HT",
        b"POST /aborted HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf",
        download.as_bytes(),
        b"GET /aborted HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let some = |number: usize| -> Result<()> {
        let mut stream = TcpStream::connect(&site.proxy)?;
        stream.write_all(kinds[number % 4])?;
        if number % 8 >= 4 {
            crate::talk::reset(&stream)?;
        }
        if number % 16 == 2 {
            stream.read_exact(&mut [0; 1000])?;
        }
        Ok(())
    };
    (0..50).try_for_each(some)?;
    std::thread::sleep(Duration::from_secs(trial.pick(1, 3)));
    let (descriptors, rss) = (site.descriptors()?, site.rss_kib()?);
    for number in 0..count {
        some(number)?;
        trial.progress(number as f64 / count as f64, "clients that leave");
    }
    // Upstream connections kept for reuse are no leak: at most one for each client of the load and worker.
    let allowed = descriptors + 16;
    let left = settled(allowed, || site.descriptors())?;
    let most = trial.pick(20.0, 5.0);
    let grown = settled(most, || Ok(growth(rss, site.rss_kib()?)))?;
    Ok(vec![
        Row::new(
            "R14",
            &format!("descriptors after {count} aborts"),
            &format!("{descriptors} + 16 kept"),
            left,
            left <= allowed,
        ),
        Row::new("R14", "memory after them", "+5 %", format!("{grown:+.1} %"), grown <= most),
    ])
}
