//! S5 over the wire: malformed requests, with a strict origin behind the gateway.
//!
//! Requests that reach the origin must be in canonical form; every response must be HTTP; nothing
//! may hang; the gateway must survive. The mutations are drawn from a seed, so that findings are
//! reproducible.

use super::site::Site;
use super::{Row, Trial};
use anyhow::Result;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CLIENTS: u64 = 8;
/// A connection that is not over by then hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const KEPT: usize = 5;

const WHOLE: [&[u8]; 8] = [
    b"GET /a?b=c HTTP/1.1\r\nHost: a.b\r\nX-A: 1\r\nConnection: keep-alive\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n",
    b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
    b"PUT /q HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc",
    b"GET http://a.b/x HTTP/1.1\r\nHost: a.b\r\nTE: trailers\r\nUpgrade: websocket\r\nConnection: Upgrade, X-B\r\nX-B: 2\r\n\r\n",
    b"POST /e HTTP/1.1\r\nHost: [::1]:80\r\nExpect: 100-continue\r\nContent-Length: 2\r\nCookie: a=b; c=d\r\n\r\nhi",
    b"OPTIONS /%2e%2e/o//p%2Fq?x=%20 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nAccept: */*\r\n\r\n",
];

const BITS: [&[u8]; 41] = [
    b"\r",
    b"\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b"\r\n",
    b"\n\n",
    b"\r\r\n",
    b"\r\n ",
    b"\x0b",
    b"\x0c",
    b"0",
    b"5",
    b"+5",
    b"0x5",
    b"ffffffff",
    b"fffffffffffffffff",
    b"chunked",
    b"identity",
    b"Host: b\r\n",
    b"Host:\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content_Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding : chunked\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n",
    b"Connection: Host, Content-Length\r\n",
    b"%0d%0a",
    b"%00",
    b"\x80",
    b"\xff",
    b"GET /s HTTP/1.1\r\nHost: s\r\n\r\n",
    b"/",
    b"..",
    b"#",
    b"HTTP/1.0",
];

pub fn run(trial: &Trial) -> Result<Vec<Row>> {
    let count: u64 = trial.pick(6_000, 250_000);
    let mut site = Site::start(trial.program, json!(null), "")?;
    site.put("routes/all", &site.route("/*", json!({})))?;
    let odd = Odd::default();
    let sent = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let (site, odd, sent) = (&site, &odd, &sent);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while sent.fetch_add(1, Ordering::Relaxed) < count {
                    odd.note(&site.proxy, &damaged(&mut random));
                }
            });
        }
        while sent.load(Ordering::Relaxed) < count {
            let done = sent.load(Ordering::Relaxed);
            trial.progress(
                done as f64 / count as f64,
                &format!("{done} sent, {} at the origin", site.origin.requests()),
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let (wrong, first) = site.origin.violations();
    let whole = site.get("/whole", "one")?.message;
    let well = site.lives() && whole.status() == 200;
    let (odd, seen) = odd.told();
    Ok(vec![
        Row::new(
            "S5",
            &format!("of {count} damaged requests, reached the origin in a form that is not strict"),
            "0",
            told(wrong, &first),
            wrong == 0,
        ),
        Row::new("S5", "answers that are no HTTP, or hang", "0", told(odd, &seen), odd == 0),
        Row::new(
            "S5",
            "the gateway lives",
            "yes",
            format!(
                "{} ({} taken for whole, {rate:.0}/s)",
                if well { "yes" } else { "no" },
                site.origin.requests()
            ),
            well,
        ),
    ])
}

/// One or two requests, one to three places of them damaged.
fn damaged(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text: Vec<u8> =
        (0..random.usize(1..=2)).flat_map(|_| WHOLE[random.usize(..WHOLE.len())]).copied().collect();
    for _ in 0..random.usize(1..=3) {
        let at = random.usize(..=text.len());
        let cut = [0, 0, 1, 2][random.usize(..4)].min(text.len() - at);
        let byte = [random.u8(..)];
        let bit = if random.f32() < 0.8 { BITS[random.usize(..BITS.len())] } else { &byte };
        text.splice(at..at + cut, bit.iter().copied());
    }
    text
}

/// Answers that should not be.
#[derive(Default)]
struct Odd {
    count: AtomicU64,
    first: Mutex<Vec<String>>,
}

impl Odd {
    /// Sends bytes, ends the sending side, and looks at what comes back.
    fn note(&self, address: &str, text: &[u8]) {
        let mut answer = Vec::new();
        let finding = match talk(address, text, &mut answer) {
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                "hangs"
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => "refused",
            // A reset after bytes that were refused is as good as an end.
            _ if answer.is_empty() || is_http(&answer) => return,
            _ => "no HTTP",
        };
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first.lock().expect("no holder panics");
        if first.len() < KEPT {
            first.push(format!("{finding}: {} -> {}", text.escape_ascii(), answer.escape_ascii()));
        }
    }

    fn told(self) -> (u64, Vec<String>) {
        (self.count.into_inner(), self.first.into_inner().expect("no holder panics"))
    }
}

fn talk(address: &str, text: &[u8], answer: &mut Vec<u8>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(text)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(answer).map(|_| ())
}

/// `HTTP/1.x NNN `.
fn is_http(answer: &[u8]) -> bool {
    let Some((start, rest)) = answer.split_at_checked(9) else { return false };
    matches!(start, b"HTTP/1.1 " | b"HTTP/1.0 ")
        && matches!(rest, [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9', b' ', ..])
}

fn told(count: u64, first: &[String]) -> String {
    first.iter().fold(count.to_string(), |text, one| format!("{text}; {one}"))
}
