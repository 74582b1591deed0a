//! Limits on the cost of a request: no allocation once connections and buffers are warm, and no
//! read of the clock if neither a plugin nor the access log uses the time.
//!
//! Allocations of the whole process count, so client and upstream work with fixed
//! buffers. The gateway has no threads besides the worker in this test, so the
//! allocations in a thousand requests are the worker's own.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, reason = "a test")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use model::{Desired, Entry, Key, Kind, Resource};
use proxy::{AccessLog, Settings, Stage, Workers};
use sdk::build::{Names, Services};
use sdk::log_format::{Escape, LogFormat};
use sdk::sink::{self, Batching, Bounds, Destination, Next, Sink, Spec};
use serde_json::{Value, json};
use snapshot::Publisher;
use snapshot::compile::{Compiler, Touched};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

struct NoNames;

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// Answers every request on every connection with these bytes; heads come in one read here.
fn upstream(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let answer: &'static [u8] = answer.leak();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0u8; 4096];
                while stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                    if stream.write_all(answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    addr
}

fn put(desired: &mut Desired, kind: Kind, id: &str, value: Value) {
    let resource = Resource::parse(kind, id, &value).unwrap();
    desired.put(Arc::new(Entry::new(Key::new(kind, id), resource, 1, 1)));
}

/// One worker with these resources.
fn gateway(desired: &Desired, access_log: Option<AccessLog>) -> (SocketAddr, Workers, Publisher) {
    let services = Services::for_tests();
    let meters = services.meters.clone();
    let catalog = Arc::new(plugins::Catalog::new(services, Default::default()));
    let mut compiler = Compiler::new(catalog, Default::default());
    let compiled = compiler.compile(desired, &Touched::all(), &NoNames, 1);
    assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    let (publisher, readers) = Publisher::new(compiled.snapshot, 1);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = Settings { listen: vec![proxy::Listener::http(free)], access_log, ..Settings::default() };
    let sockets = Workers::listen(&settings, 1).unwrap();
    let workers = Workers::start(Arc::new(settings), sockets, readers, &meters).unwrap();
    (free, workers, publisher)
}

/// Sends a request and reads until the answer's last bytes.
fn ask(stream: &mut TcpStream, request: &[u8], end: &[u8], buffer: &mut [u8]) {
    stream.write_all(request).unwrap();
    let mut filled = 0;
    while !buffer[..filled].ends_with(end) {
        let n = stream.read(&mut buffer[filled..]).unwrap();
        assert!(n > 0, "closed after {}", String::from_utf8_lossy(&buffer[..filled]));
        filled += n;
    }
    assert!(buffer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&buffer[..filled]));
}

#[test]
fn a_warm_request_allocates_nothing() {
    warm_requests(false);
    warm_requests(true);
}

/// Returns an access log in APISIX's format, and a thread that takes and counts its lines.
fn access_log() -> (AccessLog, Sink, std::thread::JoinHandle<u64>) {
    let format = "$remote_addr - $remote_user [$time_local] $http_host \"$request\" $status $body_bytes_sent \
                  $request_time \"$http_referer\" \"$http_user_agent\" $upstream_addr $upstream_status \
                  $upstream_response_time \"$upstream_scheme://$upstream_host$upstream_uri\" \"$request_id\"";
    let bounds = Bounds { buffer: 4 << 10, waiting: 1 << 20 };
    let (sink, intake) = sink::of_buffers(Spec {
        plugin: "access log",
        owner: None,
        target: Destination::file(""),
        batching: Batching::at_once("access log"),
        max_entries: usize::MAX,
        max_bytes: usize::MAX,
    });
    let writer = std::thread::spawn(move || {
        let mut lines = 0;
        while let Next::Entries(batch) = intake.next() {
            lines += batch.entries() as u64;
        }
        lines
    });
    let format = Arc::new(LogFormat::parse(format, Escape::Default).unwrap());
    (AccessLog { format, sink: sink.clone(), bounds, flush: Duration::from_secs(1) }, sink, writer)
}

fn warm_requests(logged: bool) {
    const REQUESTS: u64 = 1000;
    const ROUNDS: u64 = 50;
    let log = logged.then(access_log);
    let body = "1234567890".repeat(400);
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{body}");
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfa0\r\n{body}\r\n0\r\n\r\n");
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx".to_owned();
    // A path with more segments than most, for a route with a pattern.
    let deep = format!("/deep{}/end", "/a".repeat(40));

    let mut desired = Desired::default();
    // With the default of 1,000 requests, the gateway would reconnect in the middle of the measurement.
    let pool = json!({"size": 4, "idle_timeout": 60, "requests": 1_000_000});
    let to = |addr: SocketAddr| json!({"type": "roundrobin", "nodes": {addr.to_string(): 1}, "keepalive_pool": pool});
    put(&mut desired, Kind::Route, "1", json!({"uri": "/length", "upstream": to(upstream(length.into()))}));
    put(
        &mut desired,
        Kind::Route,
        "2",
        json!({"uri": "/chunked/*", "upstream": to(upstream(chunked.into()))}),
    );
    put(
        &mut desired,
        Kind::Route,
        "3",
        json!({
            "uri": "/plugins",
            "upstream": to(upstream(short.clone().into())),
            "plugins": {
                "key-auth": {},
                "limit-count": {"count": 2_000_000_000_000_u64, "time_window": 60, "key": "remote_addr"},
                "prometheus": {},
            },
        }),
    );
    put(
        &mut desired,
        Kind::Route,
        "4",
        json!({"uri": "/deep/*/end", "upstream": to(upstream(short.into()))}),
    );
    put(
        &mut desired,
        Kind::Consumer,
        "jack",
        json!({"username": "jack", "plugins": {"key-auth": {"key": "user-key"}}}),
    );
    let (addr, workers, publisher) = gateway(&desired, log.as_ref().map(|(log, ..)| log.clone()));

    let profiler = dhat::Profiler::builder().testing().build();
    let mut buffer = vec![0u8; 16 << 10];
    for (path, end, timed) in [
        ("/length", "7890", false),
        ("/chunked/x", "0\r\n\r\n", false),
        ("/plugins", "x", true),
        (&deep, "x", false),
    ] {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a.example\r\napikey: user-key\r\nAccept: */*\r\n\r\n");
        let mut stream = TcpStream::connect(addr).unwrap();
        for _ in 0..50 {
            ask(&mut stream, request.as_bytes(), end.as_bytes(), &mut buffer);
        }
        #[cfg(debug_assertions)]
        let looks_before = proxy::clock_reads();
        let mut clean = 0;
        for _ in 0..ROUNDS {
            let before = dhat::HeapStats::get().total_blocks;
            for _ in 0..REQUESTS / ROUNDS {
                ask(&mut stream, request.as_bytes(), end.as_bytes(), &mut buffer);
            }
            clean += u64::from(dhat::HeapStats::get().total_blocks == before);
        }
        // Rare events spoil a round: a thread of this test that starts late, or a connection that released
        // its memory because this test was slow. On a busy machine that is most of them. An allocation per request
        // would show in every round.
        assert!(clean > ROUNDS / 10, "{path}: only {clean} of {ROUNDS} rounds allocate nothing");
        #[cfg(debug_assertions)]
        {
            // The tick reads the clock 20 times a second.
            let looks = proxy::clock_reads() - looks_before;
            let right = if timed || logged { looks >= REQUESTS } else { looks < REQUESTS / 2 };
            assert!(right, "{path}: {looks} reads of the clock in {REQUESTS} requests");
        }
    }
    drop(profiler);
    workers.set_stage(Stage::Stop);
    workers.join().unwrap();
    drop(publisher);
    if let Some((log, sink, writer)) = log {
        drop(log);
        sink.end();
        assert_eq!(
            (writer.join().unwrap(), sink.dropped()),
            (4 * (REQUESTS + 50), 0),
            "a line for each request"
        );
    }
}
