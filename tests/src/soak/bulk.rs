//! R13: a large body down and one up; memory stays where it is.

use super::load::{Load, RATE};
use super::origin::BULK;
use super::site::Site;
use super::{Row, Trial};
use anyhow::{Result, ensure};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// The gateway may grow by this.
const GROWTH_KIB: u64 = 16 << 10;
const PART: usize = 1 << 20;

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let size: usize = trial.pick(64 << 20, 1 << 30);
    let unbounded = json!({"nginx_config": {"http": {"client_max_body_size": 0}}});
    let mut site = Site::start(trial.program, unbounded, "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let load = Load::start(&site.proxy, &["/load".to_owned()], RATE / 4);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let before = site.rss_kib()?;
    let (mut most, began) = (before, Instant::now());
    let mut look = |done: usize, text: &str| {
        most = most.max(site.rss_kib()?);
        trial.progress(done as f64 / size as f64, text);
        Ok(())
    };
    let down = download(&site.proxy, size, &mut look)?;
    let up = upload(&site.proxy, size, &mut look)?;
    let rate = (2 * size) as f64 / began.elapsed().as_secs_f64() / 1e6;
    let grown = most - before;
    let whole = down == size && up == format!("{size}\n");
    let mebibytes = size >> 20;
    Ok(vec![
        Row::new(
            "R13",
            &format!("{mebibytes} MiB down, then up"),
            "whole",
            format!("{}, {rate:.0} MB/s", if whole { "whole" } else { "not whole" }),
            whole,
        ),
        Row::new(
            "R13",
            "memory meanwhile",
            "+16 MiB",
            format!("+{:.1} MiB", grown as f64 / 1024.0),
            grown <= GROWTH_KIB,
        ),
        {
            let tally = load.stop();
            Row::new("R13", "failed requests meanwhile", "0", tally.verdict(), tally.failed == 0)
        },
    ])
}

type Look<'a> = &'a mut dyn FnMut(usize, &str) -> Result<()>;

/// Gives how many bytes of the body came.
fn download(address: &str, size: usize, look: Look) -> Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {BULK}{size} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut part = vec![0; PART];
    let mut head = 0;
    let mut got = 0;
    loop {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(got - head);
        }
        if got == 0 {
            ensure!(
                part.starts_with(b"HTTP/1.1 200 "),
                "{}",
                String::from_utf8_lossy(&part[..read.min(100)])
            );
            head = crate::http::find(&part[..read], b"\r\n\r\n").map_or(0, |at| at + 4);
        }
        got += read;
        look(got, "down")?;
    }
}

/// Gives the origin's count of what came.
fn upload(address: &str, size: usize, look: Look) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST {BULK}{size} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    )?;
    let part = vec![b'x'; PART];
    for sent in (0..size).step_by(PART) {
        stream.write_all(&part[..PART.min(size - sent)])?;
        look(sent, "up")?;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}
