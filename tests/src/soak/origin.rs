//! The upstream behind every goal: a strict parser with predictable responses.
//!
//! Requests that are not in canonical form are recorded as violations: this server is behind the
//! gateway when malformed requests are sent. It shares no code with the gateway.

use super::sick::Sickness;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Violations kept; the rest is only counted.
const KEPT: usize = 20;
/// No request of a goal is larger.
const MOST: usize = 4 << 20;
/// A path below this ends in a number of bytes: that many are sent, or the received ones are only
/// counted.
pub const BULK: &str = "/bulk/";
/// Bytes moved at a time then.
const PART: usize = 256 << 10;
/// Size of the response to a GET, in bytes.
const SIZE: usize = 4000;

/// A running origin; dropping it frees its port.
pub struct Origin {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// When an origin was away.
pub struct Death {
    /// In this time a request may have reached it and died with it.
    pub dying: RangeInclusive<Instant>,
    /// In this time it could not answer.
    pub away: RangeInclusive<Instant>,
}

#[derive(Default)]
struct Shared {
    accepted: AtomicU64,
    requests: AtomicU64,
    count: AtomicU64,
    violations: Mutex<Vec<String>>,
    stopped: AtomicBool,
    /// Nothing listens and nothing is answered.
    down: AtomicBool,
    /// Those that are open, by a number of their own.
    connections: Mutex<HashMap<u64, Arc<TcpStream>>>,
}

/// The origin's response to a request, which clients compare with.
pub fn answer_to(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut answer = format!("{method} {target}\n").into_bytes();
    match method {
        "GET" => {
            answer = answer.repeat(SIZE / answer.len() + 1);
            answer.truncate(SIZE);
        }
        _ => answer.extend_from_slice(body),
    }
    answer
}

impl Origin {
    pub fn start() -> Result<Origin> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let accepting = shared.clone();
        let accepting = std::thread::spawn(move || accept(&listener, &accepting));
        Ok(Origin { port, shared, accepting: Mutex::new(Some(accepting)) })
    }

    /// Dies: its port is closed and every connection reset, for so long.
    pub fn die_for(&self, pause: Duration) -> Result<Death> {
        let began = Instant::now();
        self.shared.down.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which closes the port.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.lock().expect("no holder panics").take() {
            accepting.join().map_err(|_| anyhow::anyhow!("the origin panicked"))?;
        }
        let connections = std::mem::take(&mut *self.shared.connections.lock().expect("no holder panics"));
        for stream in connections.into_values() {
            let _ = crate::talk::reset(&stream);
            let _ = stream.shutdown(Shutdown::Both);
        }
        let dead = Instant::now();
        std::thread::sleep(pause);
        let listener = TcpListener::bind(("127.0.0.1", self.port)).context("the origin's own port")?;
        self.shared.down.store(false, Ordering::SeqCst);
        let back = Instant::now();
        let shared = self.shared.clone();
        let accepting = std::thread::spawn(move || accept(&listener, &shared));
        *self.accepting.lock().expect("no holder panics") = Some(accepting);
        Ok(Death { dying: began..=dead, away: began..=back })
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// How often something came that no strict reader takes, and the first of them.
    pub fn violations(&self) -> (u64, Vec<String>) {
        let kept = self.shared.violations.lock().expect("no holder panics").clone();
        (self.shared.count.load(Ordering::Relaxed), kept)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().flatten() {
        if shared.stopped.load(Ordering::SeqCst) || shared.down.load(Ordering::SeqCst) {
            return;
        }
        let stream = Arc::new(stream);
        let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
        shared.connections.lock().expect("no holder panics").insert(number, stream.clone());
        let shared = shared.clone();
        std::thread::spawn(move || {
            let registered = shared.clone();
            Connection { shared, stream, data: Vec::new() }.serve();
            registered.connections.lock().expect("no holder panics").remove(&number);
        });
    }
}

struct Connection {
    shared: Arc<Shared>,
    stream: Arc<TcpStream>,
    /// Read and not yet taken.
    data: Vec<u8>,
}

/// Why a connection is over: the peer is done, or sent what must not be.
enum End {
    Closed,
    Wrong(&'static str, Vec<u8>),
}

impl Connection {
    fn serve(mut self) {
        let _ = self.stream.set_nodelay(true);
        loop {
            match self.exchange() {
                Ok(()) => {
                    self.shared.requests.fetch_add(1, Ordering::Relaxed);
                }
                Err(End::Closed) => return,
                Err(End::Wrong(what, bytes)) => {
                    self.shared.count.fetch_add(1, Ordering::Relaxed);
                    let mut kept = self.shared.violations.lock().expect("no holder panics");
                    if kept.len() < KEPT {
                        kept.push(format!("{what}: {}", bytes.escape_ascii()));
                    }
                    return;
                }
            }
        }
    }

    fn exchange(&mut self) -> Result<(), End> {
        let head = self.until(b"\r\n\r\n")?;
        let request = Head::read(&head)?;
        if let Some(size) = request.target.strip_prefix(BULK).and_then(|size| size.parse().ok()) {
            return self.bulk(&request, size);
        }
        if request.upgrade {
            return self.echo();
        }
        let body = match request.framing {
            Framing::Length(length) => self.take(length)?,
            Framing::Chunked => self.chunks()?,
        };
        let body = answer_to(&request.method, &request.target, &body);
        // By turns in chunks and with a length, by what was asked for.
        let mut answer = Vec::with_capacity(body.len() + 100);
        if request.target.len() % 2 == 0 {
            answer.extend(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            answer.extend(format!("{:x}\r\n", body.len()).as_bytes());
            answer.extend(&body);
            answer.extend(b"\r\n0\r\n\r\n");
        } else {
            answer.extend(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes());
            answer.extend(&body);
        }
        if Sickness::of(&request.target).is_some_and(|sickness| sickness.strikes(&self.stream, &answer)) {
            return Err(End::Closed);
        }
        (&*self.stream).write_all(&answer).map_err(|_| End::Closed)
    }

    /// Switches protocols; from then on every byte goes back.
    fn echo(&mut self) -> Result<(), End> {
        let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        (&*self.stream).write_all(switch).map_err(|_| End::Closed)?;
        loop {
            let bytes = std::mem::take(&mut self.data);
            (&*self.stream).write_all(&bytes).map_err(|_| End::Closed)?;
            self.more()?;
        }
    }

    /// Receives or sends `size` bytes without storing them.
    fn bulk(&mut self, request: &Head, size: usize) -> Result<(), End> {
        if let Framing::Length(length @ 1..) = request.framing {
            let mut left = length - self.data.len().min(length);
            self.data.clear();
            let mut part = vec![0; PART];
            while left > 0 {
                match (&*self.stream).read(&mut part) {
                    Ok(read @ 1..) => left -= read.min(left),
                    _ => return Err(End::Closed),
                }
            }
            let answer = format!("{length}\n");
            return self.send(answer.len(), answer.as_bytes());
        }
        let part = vec![b'x'; PART];
        self.send(size, &[])?;
        let mut left = size;
        while left > 0 {
            let now = left.min(PART);
            (&*self.stream).write_all(&part[..now]).map_err(|_| End::Closed)?;
            left -= now;
        }
        Ok(())
    }

    /// A head for `length` bytes, and the first of them.
    fn send(&mut self, length: usize, first: &[u8]) -> Result<(), End> {
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        answer.extend(first);
        (&*self.stream).write_all(&answer).map_err(|_| End::Closed)
    }

    fn chunks(&mut self) -> Result<Vec<u8>, End> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n")?;
            let digits = &line[..line.len() - 2];
            let size = std::str::from_utf8(digits)
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .and_then(|text| usize::from_str_radix(text, 16).ok())
                .ok_or_else(|| End::Wrong("chunk size", line.clone()))?;
            if size == 0 {
                break;
            }
            body.extend(self.take(size)?);
            let end = self.take(2)?;
            if end != b"\r\n" {
                return Err(End::Wrong("end of a chunk", end));
            }
        }
        loop {
            let line = self.until(b"\r\n")?;
            match &line[..line.len() - 2] {
                b"" => return Ok(body),
                field if is_field(field) => {}
                _ => return Err(End::Wrong("trailer", line)),
            }
        }
    }

    /// Takes everything up to and with `end`.
    fn until(&mut self, end: &[u8]) -> Result<Vec<u8>, End> {
        let mut searched = 0;
        loop {
            if let Some(at) = crate::http::find(&self.data[searched..], end) {
                let rest = self.data.split_off(searched + at + end.len());
                return Ok(std::mem::replace(&mut self.data, rest));
            }
            searched = self.data.len().saturating_sub(end.len());
            self.more()?;
        }
    }

    fn take(&mut self, length: usize) -> Result<Vec<u8>, End> {
        while self.data.len() < length {
            self.more()?;
        }
        let rest = self.data.split_off(length);
        Ok(std::mem::replace(&mut self.data, rest))
    }

    fn more(&mut self) -> Result<(), End> {
        if self.data.len() > MOST {
            return Err(End::Wrong("too much", self.data[..100].to_vec()));
        }
        let mut part = [0; 16 * 1024];
        match (&*self.stream).read(&mut part) {
            Ok(read @ 1..) => self.data.extend_from_slice(&part[..read]),
            _ => return Err(End::Closed),
        }
        Ok(())
    }
}

enum Framing {
    Length(usize),
    Chunked,
}

struct Head {
    method: String,
    target: String,
    framing: Framing,
    upgrade: bool,
}

impl Head {
    /// Reads a head in the one form it may have: every line ended by CRLF, one host, at most one
    /// framing field.
    fn read(head: &[u8]) -> Result<Head, End> {
        let wrong = |what| End::Wrong(what, head.to_vec());
        let text = head.strip_suffix(b"\r\n\r\n").ok_or_else(|| wrong("end of the head"))?;
        let mut lines = split(text);
        let (method, target) = lines.next().and_then(read_line).ok_or_else(|| wrong("first line"))?;
        let (mut hosts, mut framings) = (0, 0);
        let mut framing = Framing::Length(0);
        let mut upgrade = false;
        for line in lines {
            if !is_field(line) {
                return Err(wrong("field"));
            }
            let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
            let value = line[(colon + 1).min(line.len())..].trim_ascii();
            match line[..colon].to_ascii_lowercase().as_slice() {
                b"host" => hosts += 1,
                b"upgrade" => upgrade = true,
                b"transfer-encoding" => {
                    framings += 1;
                    framing = Framing::Chunked;
                    if value != b"chunked" {
                        return Err(wrong("transfer coding"));
                    }
                }
                b"content-length" => {
                    framings += 1;
                    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                    let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    framing = Framing::Length(length.filter(|_| digits).ok_or_else(|| wrong("length"))?);
                }
                _ => {}
            }
        }
        match (hosts, framings) {
            (1, 0 | 1) => Ok(Head { method, target, framing, upgrade }),
            (1, _) => Err(wrong("several framings")),
            _ => Err(wrong("not one host")),
        }
    }
}

/// Lines between CRLFs. A lone CR or LF stays in its line, where no rule allows it.
fn split(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = crate::http::find(text, b"\r\n");
        rest = at.map(|at| &text[at + 2..]);
        Some(&text[..at.unwrap_or(text.len())])
    })
}

fn read_line(line: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(line).ok()?;
    let (method, rest) = text.split_once(' ')?;
    let target = rest.strip_suffix(" HTTP/1.1")?;
    let plain = |byte: u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'"' | b'\\' | b'#');
    let good = is_token(method.as_bytes()) && target.starts_with('/') && target.bytes().all(plain);
    good.then(|| (method.to_owned(), target.to_owned()))
}

fn is_field(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|&byte| byte == b':') else { return false };
    is_token(&line[..colon])
        && line[colon + 1..].iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 127))
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::{Head, answer_to};

    #[test]
    fn only_the_one_form_is_taken() {
        let taken = |head: &str| Head::read(head.as_bytes()).is_ok();
        assert!(taken("GET /a?b HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n"));
        for wrong in [
            "GET /a HTTP/1.1\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\n X: b\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n",
            "GET /a HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /a HTTP/1.0\r\nHost: a\r\n\r\n",
            "G T /a HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert!(!taken(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn answers_tell_requests_apart() {
        assert_ne!(answer_to("GET", "/1", b""), answer_to("GET", "/2", b""));
        assert_eq!(answer_to("POST", "/1", b"x"), b"POST /1\nx");
    }
}
