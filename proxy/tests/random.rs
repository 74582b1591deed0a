//! Random bytes from clients and servers: a worker must not panic or hang, must release its memory, and must not
//! forward ambiguous requests.
//!
//! A test run has a few thousand exchanges; `SLUICE_RANDOM=1000000` sets another number.

use crate::support;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use proxy::Settings;
use proxy::testing::{self, Cut, Gateway, Schedule};
use wire::h1::Progress;
use wire::h1::chunked::Chunked;
use wire::h1::decode::Limits;
use wire::{Framing, RequestHead};

/// Exchanges of a worker before it is replaced by a new one.
const EACH: u64 = 2000;

const REQUESTS: &[&str] = &[
    "GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD /a?b=c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "PUT /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    "GET /filtered HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /held?x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x01\x02",
    "GET /a HTTP/1.0\r\n\r\n",
    "GET http://b/a HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
];

const ANSWERS: &[&str] = &[
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\nX: y\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "HTTP/1.1 204 No Content\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nraw",
    "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
];

/// Returns a few of the samples, with some bytes changed.
fn bytes(rng: &mut Rng, samples: &[&str]) -> Vec<u8> {
    if rng.u8(..) < 8 {
        return (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
    }
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(1..4) {
        bytes.extend_from_slice(samples[rng.usize(..samples.len())].as_bytes());
    }
    for _ in 0..[0, 0, 1, 2, 6][rng.usize(..5)] {
        let at = rng.usize(..bytes.len());
        match rng.u8(..6) {
            0 => bytes[at] = rng.u8(..),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, b"\r\n\0 :;,0\t\xff"[rng.usize(..10)]),
            3 => bytes.truncate(at.max(1)),
            4 => {
                let end = (at + rng.usize(1..20)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = rng.usize(..bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => {
                let piece =
                    ["Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "\r\n\r\n", "Host: b\r\n"];
                let piece = piece[rng.usize(..4)].bytes();
                bytes.splice(at..at, piece);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'\n');
        }
    }
    bytes
}

/// Returns one HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns a field block; each field is a literal or an index (RFC 7541).
fn block(rng: &mut Rng) -> Vec<u8> {
    let mut block = vec![[0x82, 0x83][rng.usize(..2)], 0x86];
    let mut literal = |number: u8, name: &[u8], value: &[u8]| {
        block.push(number);
        if number == 0 {
            block.push(name.len() as u8);
            block.extend(name);
        }
        block.push(value.len() as u8);
        block.extend(value);
    };
    literal(
        4,
        b"",
        [&b"/a"[..], b"/a?b=c", b"/filtered", b"/held?x", b"/ws", b"*", b"/%2e%2e/a", b"/ a"][rng.usize(..8)],
    );
    literal(1, b"", [&b"a"[..], b"a:80", b"b c", b"", b"user@a"][rng.usize(..5)]);
    for _ in 0..rng.usize(..4) {
        let fields: [(&[u8], &[u8]); 16] = [
            (b"content-length", b"5"),
            (b"content-length", b"0"),
            (b"content-length", b"+5"),
            (b"host", b"a"),
            (b"host", b"b"),
            (b"connection", b"x"),
            (b"transfer-encoding", b"chunked"),
            (b"upgrade", b"websocket"),
            (b"te", b"trailers"),
            (b"te", b"gzip"),
            (b"expect", b"100-continue"),
            (b"cookie", b"a=b"),
            (b"x", b"a\r\nb: c"),
            (b"Upper", b"case"),
            (b":path", b"/again"),
            (b"x-forwarded-for", b"1.2.3.4"),
        ];
        let (name, value) = fields[rng.usize(..fields.len())];
        literal(0, name, value);
    }
    block
}

/// Returns the HTTP/2 frames of a client, with some bytes changed.
fn frames(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    if rng.u8(..) > 20 {
        let window = [0, 1, 65_535, 1 << 31][rng.usize(..4)];
        let setting = [&[0, 4][..], &u32::to_be_bytes(window)].concat();
        bytes.extend(frame(4, 0, 0, if rng.bool() { &[] } else { &setting }));
    }
    let mut next = 1;
    for _ in 0..rng.usize(..12) {
        let stream = if rng.u8(..) < 30 { rng.u32(..9) } else { next };
        let number = rng.u32(..).to_be_bytes();
        let sent = match rng.u8(..14) {
            0..=4 => {
                next += 2;
                let flags = [5, 5, 4, 1, 0][rng.usize(..5)];
                let mut sent = frame(1, flags, next, &block(rng));
                if flags & 4 == 0 && rng.u8(..) > 50 {
                    sent.extend(frame(9, 4, next, &[]));
                }
                sent
            }
            5..=7 => {
                frame(0, [0, 1][rng.usize(..2)], stream, [&b"hello"[..], b"", b"abcdef"][rng.usize(..3)])
            }
            8 => frame(3, 0, stream, &number),
            9 => frame(8, 0, [0, stream][rng.usize(..2)], &number),
            10 => frame(6, rng.u8(..2), 0, &[0; 8]),
            11 => frame(1, 5, stream, &[0, 1, b'x', 1, b'y']),
            12 => frame(2, 0, stream, &[0, 0, 0, 1, 9]),
            _ => frame(rng.u8(..), rng.u8(..), stream, &number),
        };
        bytes.extend(sent);
    }
    for _ in 0..[0, 0, 0, 1, 3][rng.usize(..5)] {
        let at = rng.usize(..bytes.len());
        match rng.u8(..3) {
            0 => bytes[at] = rng.u8(..),
            1 => drop(bytes.remove(at)),
            _ => bytes.truncate(at.max(1)),
        }
        if bytes.is_empty() {
            bytes.push(b'P');
        }
    }
    bytes
}

fn schedule(rng: &mut Rng) -> Schedule {
    Schedule {
        seed: rng.u64(..),
        most: [0, 0, 1, 5, 100][rng.usize(..5)],
        pauses: [0, 0, 60][rng.usize(..3)],
        room: [0, 0, 100][rng.usize(..3)],
        cut: match rng.u8(..16) {
            0 => Some((rng.u64(..200), Cut::Close)),
            1 => Some((rng.u64(..200), Cut::Reset)),
            _ => None,
        },
        late: false,
    }
}

/// Checks that a server got whole requests, except for the last one. After a tunnel begins, any bytes are allowed.
fn check_passed_on(mut bytes: &[u8], about: &str) {
    let limits = Limits { head: 1 << 20, ..Limits::default() };
    let mut head = RequestHead::default();
    while !bytes.is_empty() {
        let shown = String::from_utf8_lossy(bytes).into_owned();
        match wire::h1::request(bytes, &mut Progress::default(), &mut head, &limits) {
            Ok(Some(n)) => bytes = &bytes[n..],
            Ok(None) => return,
            Err(refusal) => panic!("{about}: passed on, though {refusal:?}: {shown:?}"),
        }
        if head.upgrade {
            return;
        }
        match head.framing {
            Framing::Length(length) => bytes = &bytes[bytes.len().min(length as usize)..],
            Framing::Chunked => {
                let mut rest = bytes.to_vec();
                let relayed = Chunked::default().relay(&mut rest);
                let relayed = relayed.unwrap_or_else(|refusal| panic!("{about}: {refusal:?} in {shown:?}"));
                if !relayed.done {
                    return;
                }
                assert_eq!(
                    relayed.consumed, relayed.emit,
                    "{about}: chunks went on as they should not: {shown:?}"
                );
                bytes = &bytes[relayed.consumed..];
            }
            Framing::None | Framing::UntilClose => {}
        }
    }
}

/// The bytes of one connection to a server.
type Heard = Rc<RefCell<Vec<u8>>>;

async fn exchange(seed: u64, gateway: &Gateway, h2: bool) {
    let about = format!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let heard: Rc<RefCell<Vec<Heard>>> = Rc::default();
    let servers = RefCell::new(Rng::with_seed(rng.u64(..)));
    {
        let heard = heard.clone();
        testing::serve(SocketAddr::from(support::SERVER), move || {
            let mut rng = Rng::with_seed(servers.borrow_mut().u64(..));
            if rng.u8(..) < 8 {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (end, theirs) = testing::pair(schedule(&mut rng), schedule(&mut rng));
            let got = Rc::new(RefCell::new(Vec::new()));
            heard.borrow_mut().push(got.clone());
            testing::spawn(async move {
                let mut part = [0; 2048];
                // Most servers wait for a request.
                if rng.u8(..) > 10 {
                    match end.read(&mut part).await {
                        Ok(n @ 1..) => got.borrow_mut().extend_from_slice(&part[..n]),
                        _ => return,
                    }
                }
                let _ = end.write_all(&bytes(&mut rng, ANSWERS)).await;
                match rng.u8(..4) {
                    0 => {}
                    1 => end.abort(),
                    _ => {
                        while let Ok(n @ 1..) = end.read(&mut part).await {
                            got.borrow_mut().extend_from_slice(&part[..n]);
                            if rng.u8(..) < 100 && end.write_all(&bytes(&mut rng, ANSWERS)).await.is_err() {
                                break;
                            }
                        }
                    }
                }
            });
            Ok(theirs)
        });
    }
    let (theirs, ours) = (schedule(&mut rng), schedule(&mut rng));
    let end = if h2 { gateway.connect_any(theirs, ours) } else { gateway.connect(theirs, ours) };
    let asked = if h2 { frames(&mut rng) } else { bytes(&mut rng, REQUESTS) };
    let mut got = Vec::new();
    // The client may wait for a gateway that has stopped reading; the connection must still end.
    let _ = testing::within(Duration::from_secs(1), end.write_all(&asked)).await;
    match rng.u8(..5) {
        0 => {}
        1 => end.abort(),
        how => {
            if how == 2 {
                end.shut_down();
            }
            let reading = async {
                let mut part = [0; 2048];
                while let Ok(n @ 1..) = end.read(&mut part).await {
                    got.extend_from_slice(&part[..n]);
                }
            };
            let time = if how == 3 { Duration::from_millis(100) } else { Duration::from_secs(300) };
            let _ = testing::within(time, reading).await;
        }
    }
    drop(end);
    support::settle(gateway, &about).await;
    gateway.close_idle_upstreams();
    testing::turn().await;
    assert!(h2 || got.is_empty() || b"HTTP/1.1 ".starts_with(&got[..got.len().min(9)]), "{about}: {got:?}");
    for bytes in heard.borrow().iter() {
        check_passed_on(&bytes.borrow(), &about);
    }
}

#[test]
fn random_bytes_do_no_harm() {
    run(false);
}

#[test]
fn random_frames_do_no_harm() {
    run(true);
}

fn run(h2: bool) {
    let rounds: u64 = std::env::var("SLUICE_RANDOM").map_or(2000, |text| text.parse().unwrap());
    let workers = rounds.div_ceil(EACH);
    // One thread would take its time over a million.
    let threads = if rounds > 100_000 { 2 } else { 1 };
    let mut running = Vec::new();
    for thread in 0..threads {
        running.push(std::thread::spawn(move || {
            for worker in (thread..workers).step_by(threads as usize) {
                let settings = Settings::with(|settings| {
                    settings.timeouts.header = Duration::from_secs(2);
                    settings.timeouts.body = Duration::from_secs(2);
                    settings.timeouts.send = Duration::from_secs(2);
                    settings.timeouts.keepalive = Duration::from_secs(2);
                });
                support::with_gateways(settings, 1, async move |mut gateways, meters| {
                    let gateway = gateways.next().unwrap();
                    for seed in worker * EACH..rounds.min((worker + 1) * EACH) {
                        exchange(seed, &gateway, h2).await;
                    }
                    support::check_panics(&meters, &format!("up to seed {}", (worker + 1) * EACH));
                });
            }
        }));
    }
    for thread in running {
        thread.join().unwrap();
    }
}
