//! Deliveries to servers of a test, over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use sdk::sink::{Batch, Batching, Deliver, Destination, Outcome, Sink, Spec};
use sdk::testing::Probe;
use serde_json::json;

use super::*;

/// Long enough for anything that is to come.
const COMES: Duration = Duration::from_secs(30);

fn spec(target: Destination, batching: Batching) -> Spec {
    Spec { plugin: "test", owner: None, target, batching, max_entries: 100, max_bytes: 1 << 20 }
}

fn batches_of(size: usize) -> Batching {
    Batching { batch_max_size: size, ..Batching::at_once("a name") }
}

fn to(sink: &'static str, port: u16, settings: serde_json::Value) -> Destination {
    Destination::server(sink, "logs.example".to_owned(), port, settings)
}

/// A batch is an array unless it is a single entry.
fn http(port: u16, format: &str) -> Destination {
    let settings = json!({
        "endpoints": [{"uri": "/in?a=b"}], "format": format, "timeout": COMES.as_millis() as u64,
        "headers": {"Host": "logs.example", "Content-Type": "application/json", "Authorization": "Basic eDp5"},
    });
    to("http", port, settings)
}

fn tcp(port: u16, keep: bool) -> Destination {
    let format = if keep { "plain" } else { "array" };
    to("tcp", port, json!({"format": format, "timeout": COMES.as_millis() as u64, "keep": keep}))
}

fn start(most: usize) -> anyhow::Result<Deliveries> {
    let folder = std::fs::canonicalize(std::env::temp_dir())?.to_str().unwrap().to_owned();
    Deliveries::start(most, crate::wiring::SINKS, Arc::new(Folders::new("/", [(folder.clone(), folder)], [])))
}

fn open(deliveries: &Deliveries, spec: Spec) -> Sink {
    let port = spec.target.servers.first().map_or(0, |(_, port)| *port);
    deliveries.sinks().open(spec, [vec![SocketAddr::from(([127, 0, 0, 1], port))]].into())
}

fn push(sink: &Sink, entries: &[&str]) {
    let mut probe = Probe::default();
    for entry in entries {
        sink.push(&probe.exchange(), entry.as_bytes().to_vec());
    }
}

/// Reads one request with a length.
fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let mut one = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut one).ok()? == 0 {
            return None;
        }
        bytes.push(one[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).unwrap()))
}

/// A server that gives these answers one after the other, the last for ever; sends the number of the connection and
/// the request to the channel.
fn server(answers: &'static [&'static str]) -> (u16, Receiver<(usize, String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let mut count = 0;
        for (connection, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            while let Some((head, body)) = request(&mut stream) {
                let answer = answers[count.min(answers.len() - 1)];
                count += 1;
                // Sent first, so that the request is in the channel once its answer is read.
                if sender.send((connection, head, body)).is_err()
                    || stream.write_all(answer.as_bytes()).is_err()
                {
                    return;
                }
                if answer.is_empty() {
                    break;
                }
            }
        }
    });
    (port, requests)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";

#[test]
fn a_full_batch_is_posted_as_a_json_array_and_the_connection_is_kept() {
    let deliveries = start(1 << 20).unwrap();
    let (port, requests) = server(&[OK]);
    let sink = open(&deliveries, spec(http(port, "array"), batches_of(2)));
    push(&sink, &["{\"a\":1}", "{\"a\":2}"]);
    let (first, head, body) = requests.recv_timeout(COMES).unwrap();
    assert_eq!(body, "[{\"a\":1},{\"a\":2}]");
    assert!(head.starts_with("POST /in?a=b HTTP/1.1\r\n"), "{head}");
    for field in
        ["host: logs.example\r\n", "content-type: application/json\r\n", "authorization: Basic eDp5\r\n"]
    {
        assert!(head.contains(field), "{head}");
    }
    // The answer has been read when nothing waits any more.
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    push(&sink, &["3", "4"]);
    assert_eq!(requests.recv_timeout(COMES).map(|(at, _, body)| (at, body)), Ok((first, "[3,4]".to_owned())));
    deliveries.finish();
    assert_eq!(sink.dropped(), 0);
}

#[test]
fn what_fails_is_tried_again_and_given_up_after_that() {
    let deliveries = start(1 << 20).unwrap();
    let (port, requests) = server(&[BUSY, OK, BUSY]);
    let twice = Batching { max_retry_count: 1, retry_delay: 0, ..batches_of(1) };
    let sink = open(&deliveries, spec(http(port, "plain"), twice));
    push(&sink, &["one"]);
    for _ in 0..2 {
        assert_eq!(requests.recv_timeout(COMES).unwrap().2, "one");
    }
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(sink.dropped(), 0);
    push(&sink, &["two"]);
    for _ in 0..2 {
        assert_eq!(requests.recv_timeout(COMES).unwrap().2, "two");
    }
    while sink.dropped() == 0 {
        std::thread::yield_now();
    }
    deliveries.finish();
    assert_eq!((sink.dropped(), requests.try_recv().is_err()), (1, true));
}

#[test]
fn a_kept_connection_that_was_closed_costs_nothing() {
    let deliveries = start(1 << 20).unwrap();
    // The second request finds its connection closed without an answer.
    let (port, requests) = server(&[OK, "", OK]);
    let sink = open(&deliveries, spec(http(port, "plain"), batches_of(1)));
    push(&sink, &["one"]);
    assert_eq!(requests.recv_timeout(COMES).unwrap().2, "one");
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    push(&sink, &["two"]);
    for _ in 0..2 {
        assert_eq!(requests.recv_timeout(COMES).unwrap().2, "two");
    }
    deliveries.finish();
    assert_eq!(sink.dropped(), 0);
}

#[test]
fn what_was_gathered_is_delivered_when_its_sink_closes_and_when_the_gateway_ends() {
    let deliveries = start(1 << 20).unwrap();
    let (port, requests) = server(&[OK]);
    let closes = open(&deliveries, spec(http(port, "array"), batches_of(1000)));
    let stays = open(&deliveries, spec(http(port, "array"), batches_of(999)));
    push(&closes, &["1"]);
    push(&stays, &["2"]);
    drop(closes);
    assert_eq!(requests.recv_timeout(COMES).unwrap().2, "[1]");
    deliveries.finish();
    assert_eq!(requests.try_recv().unwrap().2, "[2]");
}

#[test]
fn nobody_waits_for_retries_at_the_end() {
    let deliveries = start(1 << 20).unwrap();
    let (port, requests) = server(&[BUSY]);
    let for_ever = Batching { max_retry_count: 1000, retry_delay: 1000, ..batches_of(1) };
    let sink = open(&deliveries, spec(http(port, "plain"), for_ever));
    push(&sink, &["1"]);
    requests.recv_timeout(COMES).unwrap();
    deliveries.finish();
    assert_eq!(sink.dropped(), 1);
}

#[test]
fn tcp_has_a_connection_for_each_batch_or_keeps_one() {
    let deliveries = start(1 << 20).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let fresh = open(&deliveries, spec(tcp(port, false), batches_of(2)));
    for (entries, expected) in [(["1", "2"], "[1,2]"), (["3", "4"], "[3,4]")] {
        push(&fresh, &entries);
        let mut text = String::new();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
    }
    let kept = open(&deliveries, spec(tcp(port, true), batches_of(1)));
    push(&kept, &["one\n", "two\n"]);
    let mut stream = listener.accept().unwrap().0;
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"one\ntwo\n");
    // A server that closed it is connected to again.
    drop(stream);
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    let mut stream = loop {
        push(&kept, &["three\n"]);
        listener.set_nonblocking(true).unwrap();
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    stream.set_nonblocking(false).unwrap();
    stream.read_exact(&mut bytes[..6]).unwrap();
    assert_eq!(&bytes[..6], b"three\n");
    deliveries.finish();
}

#[test]
fn each_entry_is_a_datagram() {
    let deliveries = start(1 << 20).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(COMES)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let target = to("udp", port, json!({"format": "plain", "timeout": COMES.as_millis() as u64}));
    let sink = open(&deliveries, spec(target, batches_of(2)));
    push(&sink, &["one", "two"]);
    for expected in ["one", "two"] {
        let mut bytes = [0; 10];
        let size = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..size], expected.as_bytes());
    }
    deliveries.finish();
}

#[test]
fn lines_are_appended_to_a_file_that_may_be_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.log");
    let deliveries = start(1 << 20).unwrap();
    let target = Destination::file(path.to_str().unwrap());
    let sink = open(&deliveries, spec(target, Batching::at_once("file")));
    push(&sink, &["one\n", "two\n"]);
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    let moved = folder.path().join("b.log");
    std::fs::rename(&path, &moved).unwrap();
    push(&sink, &["three\n"]);
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    assert!(!path.exists());
    deliveries.sinks().reopen();
    while !path.exists() {
        std::thread::yield_now();
    }
    push(&sink, &["four\n"]);
    deliveries.finish();
    assert_eq!(std::fs::read_to_string(&moved).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
}

#[test]
fn a_file_that_cannot_be_opened_costs_entries_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("not/there/a.log");
    let deliveries = start(1 << 20).unwrap();
    let target = Destination::file(path.to_str().unwrap());
    let sink = open(&deliveries, spec(target, Batching::at_once("file")));
    push(&sink, &["one\n"]);
    while sink.dropped() == 0 {
        std::thread::yield_now();
    }
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    push(&sink, &["two\n"]);
    deliveries.finish();
    assert_eq!((std::fs::read_to_string(&path).unwrap(), sink.dropped()), ("two\n".to_owned(), 1));
}

#[test]
fn a_server_over_tls_that_reads_late_gets_all_of_a_batch() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let file = |name: &str| format!("{}/../tests/certs/another.{name}", env!("CARGO_MANIFEST_DIR"));
    let cert = CertificateDer::pem_file_iter(file("crt")).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
    let common = snapshot::certs::CommonTls::default();
    let config = rustls::ServerConfig::builder_with_provider(common.provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config.with_no_client_auth().with_single_cert(cert, key).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut tls = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        // This also sends session tickets, which the client never reads.
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut stream).unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        let mut got = Vec::new();
        rustls::StreamOwned::new(tls, stream).read_to_end(&mut got).map(|_| got.len())
    });

    let deliveries = start(8 << 20).unwrap();
    deliveries.trust(crate::wiring::trust(&common, None));
    let timeout = COMES.as_millis() as u64;
    let target = to("tcp", port, json!({"format": "plain", "tls": {"verify": false}, "timeout": timeout}));
    let sink = open(&deliveries, spec(target, batches_of(1)));
    push(&sink, &[&"x".repeat(900_000)]);
    assert_eq!(server.join().unwrap().map_err(|error| error.to_string()), Ok(900_000));
    deliveries.finish();
    assert_eq!(sink.dropped(), 0);
}

/// Records that a scripted sink has seen.
static SEEN: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

/// Fails the first delivery of each record that it does not reject.
struct Script;

impl Deliver for Script {
    fn deliver<'a>(&'a self, batch: Batch<'a>) -> sdk::chain::LocalFuture<'a, Outcome> {
        let record = String::from_utf8(batch.records[0].bytes().to_vec()).unwrap();
        let mut seen = SEEN.lock().unwrap();
        let is_first = !seen.contains(&record);
        seen.push(record.clone());
        Box::pin(std::future::ready(match record.as_str() {
            "bad" => Outcome::Rejected("it is bad".to_owned()),
            _ if is_first => Outcome::Retry { after: Some(Duration::ZERO), reason: "busy".to_owned() },
            _ => Outcome::Delivered,
        }))
    }
}

#[test]
fn a_sink_says_when_it_is_tried_again_and_what_never_is() {
    const KINDS: &[Kind] = &[Kind { name: "script", blocks: false, make: |_, _| Ok(Box::new(Script)) }];
    let deliveries = Deliveries::start(1 << 20, KINDS, Arc::default()).unwrap();
    // Its own time would never be over.
    let often = Batching { max_retry_count: 9, retry_delay: 1 << 20, ..batches_of(1) };
    let sink = open(&deliveries, spec(to("script", 1, json!({})), often));
    push(&sink, &["bad", "good"]);
    while deliveries.sinks().waiting_bytes() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(*SEEN.lock().unwrap(), ["bad", "good", "good"]);
    let unknown = open(&deliveries, spec(to("none", 1, json!({})), batches_of(1)));
    assert_eq!(unknown.dropped(), 1, "of the plugin, the rejected one");
    push(&unknown, &["lost"]);
    while unknown.dropped() == 1 {
        push(&unknown, &["lost"]);
        std::thread::yield_now();
    }
    deliveries.finish();
}
