//! Workers that go, with a datagram session or a tunnel that is still there; and upstreams that change meanwhile.

use std::io::ErrorKind;
use std::net::UdpSocket;

use model::{Desired, Entry, Key, Kind, Resource};
use sdk::Exchange;
use sdk::build::Services;
use sdk::engine::Messages;
use sdk::testing::FixedNames;
use serde_json::{Value, json};
use snapshot::Upstream;
use snapshot::balance::ExcludedServers;
use snapshot::compile::{Compiler, Touched};

use super::*;
use crate::workers::Datagrams;

/// Compiles resources, one generation after the other.
struct Generations {
    compiler: Compiler,
    desired: Desired,
}

impl Generations {
    fn new() -> Generations {
        let catalog = plugins::Catalog::new(Services::for_tests(), Default::default());
        let compiler = Compiler::new(Arc::new(catalog), Default::default());
        Generations { compiler, desired: Desired::default() }
    }

    /// The snapshot with this resource added, or put in the place of the one before.
    fn put(&mut self, kind: Kind, value: &Value) -> Snapshot {
        let (key, resource) = (Key::new(kind, "1"), Resource::parse(kind, "1", value).unwrap());
        self.desired.put(Arc::new(Entry::new(key, resource, 1, 1)));
        let compiled = self.compiler.compile(&self.desired, &Touched::all(), &FixedNames::default(), 1);
        assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
        compiled.snapshot
    }
}

#[test]
fn what_a_worker_remembers_of_an_upstream_becomes_that_of_its_next_generation() {
    let mut generations = Generations::new();
    let mut upstream = |balancer: &str| -> Arc<Upstream> {
        let nodes = json!({"10.0.0.1:80": 1, "10.0.0.2:80": 1});
        let upstream = json!({"type": balancer, "nodes": nodes, "key": "uri"});
        let snapshot = generations.put(Kind::Route, &json!({"uri": "/*", "upstream": upstream}));
        (0..).find_map(|slot| snapshot.upstreams.get(slot).cloned()).unwrap()
    };
    let (old, new) = (upstream("chash"), upstream("roundrobin"));
    assert_eq!(old.slot, new.slot);
    crate::testing::beside_worker(Settings::default(), async move |worker, _| {
        let client = sdk::Client::new(free(), free(), false);
        let mut messages = Messages::default();
        let x = Exchange::new(&mut messages, &client, &worker.nobody, &*worker);
        let pick = |upstream: &Arc<Upstream>| {
            worker.with_balance(upstream, |state| upstream.pick(state, &x, &ExcludedServers::default(), 0))
        };
        let chosen = pick(&old);
        assert!(chosen.is_some());
        assert_eq!(pick(&old), chosen, "by the same path");
        let both = [pick(&new), pick(&new)];
        assert!(both == [Some(0), Some(1)] || both == [Some(1), Some(0)], "in turn: {both:?}");
    });
}

/// A time that no test waits for.
const HOURS: Duration = Duration::from_secs(7200);

/// A worker that serves this, with these sockets for datagrams.
fn serve(settings: Settings, snapshot: Snapshot) -> (Workers, Publisher) {
    let (publisher, readers) = Publisher::new(snapshot, 1);
    let sockets = Workers::listen(&settings, 1).unwrap();
    let datagrams = Datagrams { sockets: Workers::listen_udp(&settings, 1).unwrap(), ..Datagrams::default() };
    let started = Workers::start_with(Arc::new(settings), sockets, datagrams, readers, &Arc::default());
    (started.unwrap(), publisher)
}

#[test]
fn a_draining_worker_waits_for_connections_and_for_sessions_of_datagrams_alike() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (addr, port) = (free(), UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let mut settings = Settings::with(|settings| {
        settings.listen = vec![Listener::http(addr)];
        settings.timeouts.header = HOURS;
        settings.timeouts.drain = HOURS;
    });
    settings.streams.udp = vec![port];
    settings.streams.udp_idle_timeout = HOURS;
    let upstream = json!({"scheme": "udp", "nodes": {server.local_addr().unwrap().to_string(): 1}});
    let snapshot = Generations::new().put(Kind::StreamRoute, &json!({"upstream": upstream}));
    let (workers, _publisher) = serve(settings, snapshot);
    let say = |what: &[u8]| {
        client.send_to(what, port).unwrap();
        let mut heard = [0; 8];
        let (n, from) = server.recv_from(&mut heard).unwrap();
        assert_eq!(&heard[..n], what);
        from
    };
    let from = say(b"one");
    // It is in the middle of its head.
    let mut busy = TcpStream::connect(addr).unwrap();
    busy.write_all(b"GET / HTT").unwrap();
    assert!(ask(addr).starts_with("HTTP/1.1 404 "), "who came before it was accepted");
    workers.set_stage(Stage::Drain);
    // Between two ticks, it has looked several times whether there is anything to wait for.
    let ticks = || workers.watch().member(0).ticks.load(Ordering::Relaxed);
    let has_looked = || {
        let before = ticks();
        until(|| workers.finished() || ticks() > before + 2);
        assert!(!workers.finished());
    };
    until(|| TcpStream::connect(addr).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused));
    has_looked();
    busy.write_all(b"P/1.1\r\nHost: a\r\n\r\n").unwrap();
    busy.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    has_looked();
    assert_eq!(say(b"two"), from, "the session goes on");
    workers.set_stage(Stage::Stop);
    workers.join().unwrap();
}

#[test]
fn a_silent_tunnel_is_closed_before_the_time_of_a_hand_over_ends() {
    let (addr, server) = (free(), TcpListener::bind("127.0.0.1:0").unwrap());
    let settings = Settings::with(|settings| {
        settings.listen = vec![Listener::http(addr)];
        settings.timeouts.idle_grace = Duration::from_millis(50);
        // Tunnels are closed this long before the hand-over ends: half a second after its beginning.
        settings.timeouts.send = HOURS - Duration::from_millis(500);
        settings.timeouts.drain = HOURS;
    });
    let upstream = json!({
        "nodes": {server.local_addr().unwrap().to_string(): 1},
        "timeout": {"connect": 20, "send": 7200, "read": 7200},
    });
    let route = json!({"uri": "/*", "enable_websocket": true, "upstream": upstream});
    let (workers, _publisher) = serve(settings, Generations::new().put(Kind::Route, &route));
    let server = std::thread::spawn(move || {
        let (mut conn, _) = server.accept().unwrap();
        conn.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let head = head_of(&mut conn);
        assert!(head.contains("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), "{head}");
        // The answer to that key in RFC 6455, section 1.3.
        let agree = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                     Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        conn.write_all(agree.as_bytes()).unwrap();
        let mut close = [0; 8];
        conn.read_exact(&mut close).unwrap();
        close
    });
    let mut client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ask = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
               Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    client.write_all(ask.as_bytes()).unwrap();
    let head = head_of(&mut client);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    workers.set_stage(Stage::HandOver);
    // Close frames, for "going away" (1001): to the client, and masked to the server.
    let mut close = [0; 4];
    client.read_exact(&mut close).unwrap();
    assert_eq!(close, [0x88, 2, 3, 0xe9]);
    assert_eq!(server.join().unwrap()[..2], [0x88, 0x82]);
    drop(client);
    until(|| workers.finished());
    workers.join().unwrap();
}

/// Reads a head, and nothing behind it.
fn head_of(conn: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        conn.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
