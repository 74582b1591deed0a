//! P7: a large stream does not starve others. Small requests beside endless downloads, on one
//! worker: each on its own connection over HTTP/1.1, and all on one connection over HTTP/2.

use super::load::Caller;
use super::origin::{BULK, answer_to};
use super::site::Site;
use super::{Row, Trial, ms, quantile};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An answer that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than anybody reads.
const ENDLESS: u64 = 1 << 44;
/// Downloads over HTTP/1.1, and on the one connection over HTTP/2.
const FAT: usize = 4;
const SMALL: &str = "/small";

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let mut site = Site::start(trial.program, json!({"nginx_config": {"worker_processes": 1}}), "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let mut rows = over_http1(trial, &site)?;
    rows.extend(over_http2(trial, &site)?);
    ensure!(site.lives(), "the gateway is gone:\n{}", site.log());
    Ok(rows)
}

/// Results of small requests.
#[derive(Default)]
struct Small {
    times: Vec<Duration>,
    failed: Vec<String>,
}

impl Small {
    fn ask(trial: &Trial, mut one: impl FnMut(u32) -> Result<()>) -> Small {
        let (mut small, count) = (Small::default(), trial.pick(100, 2_000));
        for number in 0..count {
            let began = Instant::now();
            match one(number) {
                Ok(()) => small.times.push(began.elapsed()),
                Err(error) => {
                    small.failed.push(format!("{error:#}"));
                    // A connection that is gone answers nothing more.
                    break;
                }
            }
            trial.progress(f64::from(number) / f64::from(count), "small requests");
        }
        small
    }
}

/// Alone, beside the fat ones, and how many bytes those moved meanwhile.
fn rows(over: &str, mut alone: Small, mut beside: Small, moved: u64) -> Vec<Row> {
    let (few, many) = (alone.times.len(), beside.times.len());
    let whole = alone.failed.is_empty() && beside.failed.is_empty();
    let seen = match beside.failed.first().or(alone.failed.first()) {
        Some(why) => format!("{many}, then: {why}"),
        None => many.to_string(),
    };
    let mut time = |part| (quantile(&mut alone.times, part), quantile(&mut beside.times, part));
    let (half, most) = (time(0.5), time(0.99));
    let summary =
        format!("half in {}, 99 % in {} (alone {} and {})", ms(half.1), ms(most.1), ms(half.0), ms(most.0));
    let bound = (most.0 * 10).max(Duration::from_millis(100));
    vec![
        Row::new(
            "P7",
            &format!("{over}: of {few} small requests beside {FAT} endless downloads, answered"),
            "all",
            seen,
            whole,
        ),
        Row::new("P7", &format!("{over}: bytes of the downloads meanwhile"), "some", moved, moved > 0),
        Row::figure(
            "P7",
            &format!("{over}: their times"),
            &format!("99 % in {}", ms(bound)),
            summary,
            most.1 <= bound,
        ),
    ]
}

fn over_http1(trial: &Trial, site: &Site) -> Result<Vec<Row>> {
    let mut caller = Caller::new(&site.proxy, false);
    let mut ask = |trial: &Trial| Small::ask(trial, |number| caller.ask(SMALL, number));
    let alone = ask(trial);
    let fat = Fat::start(&site.proxy)?;
    let before = fat.moved.load(Ordering::Relaxed);
    let beside = ask(trial);
    let moved = fat.moved.load(Ordering::Relaxed) - before;
    fat.end()?;
    Ok(rows("HTTP/1.1", alone, beside, moved))
}

/// Downloads that are read as fast as they come.
struct Fat {
    moved: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    readers: Vec<JoinHandle<Result<()>>>,
}

impl Fat {
    fn start(address: &str) -> Result<Fat> {
        let mut fat = Fat { moved: Arc::default(), ends: Arc::default(), readers: Vec::new() };
        for _ in 0..FAT {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {BULK}{ENDLESS} HTTP/1.1\r\nHost: a\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            ensure!(&head == b"HTTP/1.1 200", "a download got {}", head.escape_ascii());
            let (moved, ends) = (fat.moved.clone(), fat.ends.clone());
            fat.readers.push(std::thread::spawn(move || {
                let mut part = vec![0; 256 << 10];
                while !ends.load(Ordering::Relaxed) {
                    let n = stream.read(&mut part).context("a download stands still")?;
                    ensure!(n > 0, "a download ended");
                    moved.fetch_add(n as u64, Ordering::Relaxed);
                }
                Ok(())
            }));
        }
        Ok(fat)
    }

    fn end(self) -> Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        for reader in self.readers {
            reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        Ok(())
    }
}

fn over_http2(trial: &Trial, site: &Site) -> Result<Vec<Row>> {
    let mut connection = H2::open(&site.proxy)?;
    let wanted = answer_to("GET", SMALL, b"").len();
    let alone = Small::ask(trial, |_| connection.get(SMALL, wanted));
    for _ in 0..FAT {
        let stream = connection.request(&format!("{BULK}{ENDLESS}"))?;
        connection.fat.insert(stream, 0);
    }
    // All of them run before it begins.
    while connection.fat.values().any(|moved| *moved == 0) {
        connection.frame()?;
    }
    let before: u64 = connection.fat.values().sum();
    let beside = Small::ask(trial, |_| connection.get(SMALL, wanted));
    let moved = connection.fat.values().sum::<u64>() - before;
    Ok(rows("HTTP/2", alone, beside, moved))
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Window of one stream; the connection's window is far larger than all streams need.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 30;

/// As much of an HTTP/2 client as this needs (RFC 9113).
struct H2 {
    stream: TcpStream,
    next: u32,
    /// Bytes that came on the streams that never end.
    fat: HashMap<u32, u64>,
    /// Bytes received on a stream and on the connection since the last window update.
    untold: HashMap<u32, u32>,
}

/// A frame of interest to the caller.
struct Came {
    kind: u8,
    ends: bool,
    stream: u32,
    payload: Vec<u8>,
}

impl H2 {
    fn open(address: &str) -> Result<H2> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut connection = H2 { stream, next: 1, fat: HashMap::new(), untold: HashMap::new() };
        connection.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        let window = [&[0, 4][..], &STREAM_WINDOW.to_be_bytes()].concat();
        connection.send(SETTINGS, 0, 0, &window)?;
        connection.send(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes())?;
        Ok(connection)
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        Ok(self.stream.write_all(&frame)?)
    }

    fn request(&mut self, path: &str) -> Result<u32> {
        let stream = self.next;
        self.next += 2;
        // GET, http, and literals that no table keeps (RFC 7541 section 6.2.2).
        let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
        block.extend(path.as_bytes());
        block.extend(b"\x01\x01a");
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block)?;
        Ok(stream)
    }

    /// Asks, and reads until the answer is whole; what comes on the other streams is only counted.
    fn get(&mut self, path: &str, wanted: usize) -> Result<()> {
        let stream = self.request(path)?;
        let mut size = 0;
        loop {
            let came = self.frame()?;
            if came.stream != stream {
                continue;
            }
            match came.kind {
                HEADERS => ensure!(came.payload.first() == Some(&0x88), "another status than 200"),
                DATA => size += came.payload.len(),
                _ => {}
            }
            if came.ends {
                ensure!(size == wanted, "{size} bytes instead of {wanted}");
                return Ok(());
            }
        }
    }

    /// Reads a frame and does what it asks for.
    fn frame(&mut self) -> Result<Came> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).context("nothing comes")?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let stream = u32::from_be_bytes(number) & !(1 << 31);
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).context("a frame is cut off")?;
        match kind {
            DATA => {
                if let Some(moved) = self.fat.get_mut(&stream) {
                    *moved += payload.len() as u64;
                    self.told(stream, payload.len() as u32, STREAM_WINDOW / 2)?;
                }
                self.told(0, payload.len() as u32, WINDOW / 2)?;
            }
            SETTINGS if flags & ACK == 0 => self.send(SETTINGS, ACK, 0, &[])?,
            PING if flags & ACK == 0 => self.send(PING, ACK, 0, &payload)?,
            RST_STREAM | GOAWAY => bail!("frame {kind} on stream {stream}: {}", payload.escape_ascii()),
            _ => {}
        }
        let ends = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        Ok(Came { kind, ends, stream, payload })
    }

    /// So much more may come, once it is worth a frame.
    fn told(&mut self, stream: u32, came: u32, worth: u32) -> Result<()> {
        let untold = self.untold.entry(stream).or_default();
        *untold += came;
        if *untold < worth {
            return Ok(());
        }
        let more = std::mem::take(untold);
        self.send(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
    }
}
