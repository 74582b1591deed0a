//! A plugin made while the gateway runs: registered, used by a route, and taken away again. It uses
//! what the contract offers: waits, bodies, phases.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use model::{Desired, Entry, Invalid, Key, Kind, Resource};
use proxy::{Settings, Stage, Workers};
use sdk::build::{Build, Names, Services};
use sdk::chain::{Fitting, LocalFuture};
use sdk::{Exchange, Factory, Instance, Phase, Phases, Reply, Step};
use serde_json::{Value, json};
use snapshot::Publisher;
use snapshot::compile::{Compiled, Compiler, Touched};

/// Stands for a script: what it does follows from the settings alone.
struct Script {
    name: &'static str,
    /// Told of every wait that ends before its time.
    cancelled: Sender<()>,
}

/// What the settings say.
struct Run {
    body: Option<String>,
    sleep: Duration,
    /// Holds a value, which is told of its end like a wait.
    hold: bool,
    panics: bool,
    cancelled: Sender<()>,
}

impl Factory for Script {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        10
    }

    fn phases(&self) -> Phases {
        Phases::REWRITE | Phases::ACCESS
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "body": {"type": "string"},
                "sleep_ms": {"type": "integer", "default": 0},
                "hold": {"type": "boolean", "default": false},
                "panics": {"type": "boolean", "default": false},
            },
        })
    }

    fn build(
        &self,
        config: Value,
        _: &mut Build<'_>,
        fitting: Fitting,
    ) -> Result<Arc<sdk::chain::Stage>, Invalid> {
        Ok(fitting.stage(Run {
            body: config["body"].as_str().map(str::to_owned),
            sleep: Duration::from_millis(config["sleep_ms"].as_u64().unwrap_or_default()),
            hold: config["hold"] == true,
            panics: config["panics"] == true,
            cancelled: self.cancelled.clone(),
        }))
    }
}

impl Instance for Run {
    fn phases(&self) -> Phases {
        Phases::REWRITE | Phases::ACCESS
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        if phase == Phase::Rewrite && self.hold {
            x.hold(OnDrop(Some(self.cancelled.clone())));
        }
        assert!(!self.panics, "on purpose");
        match phase {
            Phase::Rewrite if !self.sleep.is_zero() => Step::Wait,
            Phase::Access => match &self.body {
                Some(_) if x.lacks_body(1 << 20) => Step::Body(1 << 20),
                Some(body) => match x.set_body(body.clone().into()) {
                    Ok(()) => Step::Next,
                    Err(_) => Step::Reply(Reply::status(503)),
                },
                None => Step::Next,
            },
            _ => Step::Next,
        }
    }

    fn wait<'a>(&'a self, _: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async {
            let guard = OnDrop(Some(self.cancelled.clone()));
            x.world.sleep(self.sleep).await;
            guard.defuse();
            Step::Next
        })
    }
}

/// Tells that it was dropped, unless it was defused.
struct OnDrop(Option<Sender<()>>);

impl OnDrop {
    fn defuse(mut self) {
        self.0 = None;
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(told) = &self.0 {
            let _ = told.send(());
        }
    }
}

struct NoNames;

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// Answers each request with the bytes it came as. A request here is one write.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0u8; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n");
                    stream.write_all(&[head.as_bytes(), &buffer[..n]].concat()).unwrap();
                }
            });
        }
    });
    addr
}

/// A gateway with one worker, whose catalog and compiler are at hand.
struct Gateway {
    catalog: Arc<plugins::Catalog>,
    compiler: Compiler,
    desired: Desired,
    publisher: Publisher,
    workers: Option<Workers>,
    addr: SocketAddr,
    revision: u64,
}

impl Gateway {
    fn start() -> Gateway {
        let services = Services::for_tests();
        let meters = services.meters.clone();
        let catalog = Arc::new(plugins::Catalog::new(services, Default::default()).unwrap());
        let mut compiler = Compiler::new(catalog.clone(), Default::default());
        let desired = Desired::default();
        let (publisher, readers) = Publisher::new(compiler.snapshot(0), 1);
        let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 0);
        assert!(compiled.rejected.is_empty());
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = Settings { listen: vec![proxy::Listener::http(addr)], ..Settings::default() };
        let sockets = Workers::listen(&settings, 1).unwrap();
        let workers = Workers::start(Arc::new(settings), sockets, readers, &meters).unwrap();
        Gateway { catalog, compiler, desired, publisher, workers: Some(workers), addr, revision: 0 }
    }

    /// Writes a route and publishes what comes of it.
    fn route(&mut self, plugins: &Value, upstream: SocketAddr) -> Compiled {
        let value =
            json!({"uri": "/*", "plugins": plugins, "upstream": {"nodes": {upstream.to_string(): 1}}});
        let key = Key::new(Kind::Route, "1");
        let resource = Resource::parse(Kind::Route, "1", &value).unwrap();
        self.desired.put(Arc::new(Entry { key: key.clone(), resource, created: 1, modified: 1 }));
        self.publish(&Touched::from_iter([key]))
    }

    fn publish(&mut self, touched: &Touched) -> Compiled {
        self.revision += 1;
        let compiled = self.compiler.compile(&self.desired, touched, &NoNames, self.revision);
        self.publisher.publish(compiled.snapshot.clone());
        compiled
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.set_stage(Stage::Stop);
            let _ = workers.join();
        }
    }
}

fn script(name: &'static str) -> (Box<Script>, Receiver<()>) {
    let (cancelled, told) = channel();
    (Box::new(Script { name, cancelled }), told)
}

const POST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nold";

#[test]
fn it_comes_and_goes_while_requests_are_served() {
    let mut gateway = Gateway::start();
    let upstream = echo();
    let plugins = json!({"script": {"body": "a longer one"}});
    let compiled = gateway.route(&plugins, upstream);
    assert_eq!(compiled.rejected.len(), 1, "there is no such plugin yet");
    assert!(gateway.ask(POST).starts_with("HTTP/1.1 404 "));

    let name = sdk::instance::intern(&["scr", "ipt"].concat()).unwrap();
    gateway.catalog.register(script(name).0).unwrap();
    assert!(gateway.catalog.register(script("cors").0).is_err(), "a linked plugin keeps its name");
    let compiled = gateway.publish(&Touched::default());
    assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    let answer = gateway.ask(POST);
    assert!(answer.contains("\r\nContent-Length: 12\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\na longer one"), "{answer}");
    let bad = gateway.route(&json!({"script": {"body": 1}}), upstream);
    assert!(bad.rejected[0].invalid.pointer.ends_with("/plugins/script/body"), "{:?}", bad.rejected);
    gateway.route(&plugins, upstream);

    gateway.catalog.remove("script");
    let compiled = gateway.publish(&Touched::default());
    assert_eq!((compiled.rejected.len(), compiled.rejected[0].kept()), (1, true));
    assert!(gateway.ask(POST).ends_with("\r\n\r\na longer one"), "the last good form serves on");
}

#[test]
fn a_wait_ends_with_its_time_or_with_the_client() {
    let mut gateway = Gateway::start();
    let (script, cancelled) = script("waiting");
    gateway.catalog.register(script).unwrap();
    gateway.route(&json!({"waiting": {"sleep_ms": 5}}), echo());
    assert!(gateway.ask(POST).ends_with("old"));
    assert!(cancelled.try_recv().is_err());

    gateway.route(&json!({"waiting": {"sleep_ms": 1_000_000_000}}), echo());
    let mut stream = TcpStream::connect(gateway.addr).unwrap();
    stream.write_all(POST.as_bytes()).unwrap();
    drop(stream);
    cancelled.recv_timeout(Duration::from_secs(600)).expect("the wait ends with the client");
}

#[test]
fn what_an_exchange_holds_goes_with_it_however_it_ends() {
    let mut gateway = Gateway::start();
    let (script, ended) = script("holding");
    gateway.catalog.register(script).unwrap();
    let upstream = echo();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let long = Duration::from_secs(600);
    for (settings, upstream, status) in [
        (json!({"hold": true}), upstream, "200"),
        (json!({"hold": true, "panics": true}), upstream, "500"),
        (json!({"hold": true}), nobody, "502"),
    ] {
        gateway.route(&json!({ "holding": settings }), upstream);
        assert!(gateway.ask(POST).starts_with(&format!("HTTP/1.1 {status} ")), "{settings}");
        ended.recv_timeout(long).expect("it ends with the exchange");
        assert!(ended.try_recv().is_err(), "once");
    }
    // A request that waits: what it waits for ends, and what it holds.
    gateway.route(&json!({"holding": {"hold": true, "sleep_ms": 1_000_000_000}}), upstream);
    let mut stream = TcpStream::connect(gateway.addr).unwrap();
    stream.write_all(POST.as_bytes()).unwrap();
    drop(stream);
    for _ in 0..2 {
        ended.recv_timeout(long).expect("both end with the client");
    }
}
