//! A panic in a stage costs its own request a 500 and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use proxy::{Settings, Stage, Workers};
use sdk::chain::{Fitting, LocalFuture};
use sdk::meters::Meters;
use sdk::{Chain, Exchange, Instance, Phase, Phases, Reply, Step};
use snapshot::router::{Mode, Options, Router};
use snapshot::{Publisher, Snapshot};

/// Panics in the rewrite phase when the query says so, else answers itself.
#[derive(Debug)]
struct Fragile;

impl Instance for Fragile {
    fn phases(&self) -> Phases {
        Phases::REWRITE
    }

    fn ask(&self, _: Phase, x: &mut Exchange<'_>) -> Step {
        assert_ne!(x.query(), b"panic", "as asked");
        if x.query() == b"later" { Step::Wait } else { Step::Reply(Reply::text(200, "fine")) }
    }

    fn wait<'a>(&'a self, _: Phase, _: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async { panic!("as asked, while waiting") })
    }
}

fn ask(stream: &mut TcpStream, query: &str) -> String {
    write!(stream, "GET /?{query} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut buffer = [0u8; 4096];
    let n = stream.read(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..n]).into_owned()
}

#[test]
fn a_panic_stays_with_its_request() {
    let first = Snapshot {
        revision: 1,
        streams: Arc::default(),
        router: Router::new(Mode::HostUri, Options::default()),
        upstreams: Default::default(),
        warm: std::sync::Arc::default(),
        consumers: Arc::default(),
        certificates: Default::default(),
        global: Some(Arc::new(Chain::of(
            Fitting { name: "fragile", priority: 0, meta: None }.stage(Fragile),
        ))),
    };
    let (publisher, readers) = Publisher::new(first, 1);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = Settings { listen: vec![proxy::Listener::http(free)], ..Settings::default() };
    let sockets = Workers::listen(&settings, 1).unwrap();
    let meters = Arc::new(Meters::default());
    let workers = Workers::start(Arc::new(settings), sockets, readers, &meters).unwrap();

    let mut stream = TcpStream::connect(free).unwrap();
    let mut other = TcpStream::connect(free).unwrap();
    for query in ["panic", "later"] {
        let answer = ask(&mut stream, query);
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert!(ask(&mut stream, "fine").starts_with("HTTP/1.1 200 "), "the same connection serves on");
        assert!(ask(&mut other, "fine").starts_with("HTTP/1.1 200 "), "and so do others");
    }
    assert_eq!(meters.read(1, |reading| reading.totals().panics), 2);

    workers.set_stage(Stage::Stop);
    workers.join().unwrap();
    drop(publisher);
}
