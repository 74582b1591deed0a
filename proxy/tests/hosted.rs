//! A plugin that is registered while the gateway runs, used by a route, and removed again. It uses
//! waits, bodies and all phases.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use model::{Desired, Entry, Invalid, Key, Kind, Resource};
use proxy::{Settings, Stage, Workers};
use sdk::build::{Build, Names, Services};
use sdk::chain::{Fitting, LocalFuture};
use sdk::{Chunk, Exchange, Factory, Instance, Phase, Phases, Reply, RequestFilter, Step, Undecidable};
use serde_json::{Value, json};
use snapshot::Publisher;
use snapshot::compile::{Compiled, Compiler, Touched};

/// A plugin in place of a script: its settings decide what it does.
struct Script {
    name: &'static str,
    /// Receives a message for each wait that is cancelled.
    cancelled: Sender<()>,
    gone: Sender<ThreadId>,
}

/// An instance of [`Script`].
struct Run {
    config: Value,
    sleep: Duration,
    cancelled: Sender<()>,
    /// Receives the id of the thread that drops the instance.
    gone: Sender<ThreadId>,
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.gone.send(std::thread::current().id());
    }
}

const ALL: Phases = Phases::REWRITE
    .with(Phases::ACCESS)
    .with(Phases::BEFORE_PROXY)
    .with(Phases::HEADER_FILTER)
    .with(Phases::BODY_FILTER);

impl Factory for Script {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        10
    }

    fn phases(&self) -> Phases {
        ALL
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
        let sleep = Duration::from_millis(config["sleep_ms"].as_u64().unwrap_or_default());
        Ok(fitting.stage(Run { config, sleep, cancelled: self.cancelled.clone(), gone: self.gone.clone() }))
    }
}

impl Run {
    fn says(&self, what: &str) -> bool {
        self.config[what] == json!(true)
    }

    fn waits_in(&self, phase: &str) -> bool {
        self.config["wait_in"] == json!(phase)
    }

    async fn sleep(&self, x: &Exchange<'_>) {
        let guard = OnDrop(Some(self.cancelled.clone()));
        x.world().sleep(self.sleep).await;
        guard.defuse();
    }
}

impl Instance for Run {
    fn phases(&self) -> Phases {
        ALL
    }

    fn ask(&self, phase: Phase, x: &mut Exchange<'_>) -> Step {
        if phase == Phase::Rewrite && self.says("hold") {
            // The end of the exchange is reported like a cancelled wait.
            x.hold(OnDrop(Some(self.cancelled.clone())));
        }
        assert!(!self.says("panics"), "on purpose");
        match phase {
            Phase::Rewrite if self.waits_in("rewrite") => Step::Wait,
            Phase::Access if self.waits_in("access") => Step::Wait,
            Phase::BeforeProxy if self.waits_in("before_proxy") => Step::Wait,
            Phase::Access => {
                let body = self.config["body"].as_str();
                // `ask` is called again once the body is buffered.
                if body.is_some() && x.lacks_body(1 << 20) {
                    return Step::Body(1 << 20);
                }
                if self.says("upload") {
                    x.filter_request_body(Box::new(Shout { waited: false }));
                }
                if self.waits_in("upload") {
                    x.filter_request_body(Box::new(Stuck(self.cancelled.clone())));
                }
                match body {
                    Some(body) => match x.set_body(body.into()) {
                        Ok(()) => Step::Next,
                        Err(_) => Step::Reply(Reply::status(503)),
                    },
                    None => Step::Next,
                }
            }
            _ => Step::Next,
        }
    }

    fn header_filter(&self, x: &mut Exchange<'_>) -> Step {
        x.remove_response_header("Content-Length");
        if self.waits_in("header_filter") { Step::Wait } else { Step::Next }
    }

    fn wait<'a>(&'a self, phase: Phase, x: &'a mut Exchange<'_>) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            self.sleep(x).await;
            let _ = x.set_response_header("X-Waited", b"yes");
            match self.config["instead"].as_str() {
                // The reply that replaced the response comes here as well, and is not changed.
                Some(text) if phase == Phase::HeaderFilter => Step::Reply(Reply::text(418, text.to_owned())),
                _ => Step::Next,
            }
        })
    }

    fn filters_body(&self, _: &Exchange<'_>) -> bool {
        self.says("download") || self.waits_in("body_filter")
    }

    fn holds_body(&self, _: &Exchange<'_>) -> bool {
        self.config["instead"].is_string()
    }

    fn body_filter(&self, _: &mut Exchange<'_>, chunk: &mut Chunk) -> Step {
        if self.waits_in("body_filter") {
            return Step::Wait;
        }
        chunk.data.make_ascii_uppercase();
        Step::Next
    }

    fn wait_body<'a>(&'a self, x: &'a mut Exchange<'_>, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            self.sleep(x).await;
            chunk.data.make_ascii_uppercase();
            match self.config["instead"].as_str() {
                Some(text) => Step::Reply(Reply::text(418, text.to_owned())),
                None => Step::Next,
            }
        })
    }
}

/// Turns a request's body to upper case and waits once; refuses a body with `!`.
struct Shout {
    waited: bool,
}

impl RequestFilter for Shout {
    fn filter(&mut self, chunk: &mut Chunk) -> Step {
        chunk.data.make_ascii_uppercase();
        match std::mem::replace(&mut self.waited, true) {
            _ if chunk.data.contains(&b'!') => Step::Refuse(Undecidable::Unreadable),
            true => Step::Next,
            false => Step::Wait,
        }
    }

    fn wait<'a>(&'a mut self, chunk: &'a mut Chunk) -> LocalFuture<'a, Step> {
        Box::pin(async {
            chunk.data.insert(0, b'>');
            Step::Next
        })
    }
}

/// Waits for ever at the first piece of the request's body.
struct Stuck(Sender<()>);

impl RequestFilter for Stuck {
    fn filter(&mut self, _: &mut Chunk) -> Step {
        Step::Wait
    }

    fn wait<'a>(&'a mut self, _: &'a mut Chunk) -> LocalFuture<'a, Step> {
        let guard = OnDrop(Some(self.0.clone()));
        Box::pin(async move {
            std::future::pending::<()>().await;
            guard.defuse();
            Step::Next
        })
    }
}

/// Sends a message when it is dropped, unless it was defused.
struct OnDrop(Option<Sender<()>>);

impl OnDrop {
    fn defuse(mut self) {
        self.0 = None;
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(dropped) = &self.0 {
            let _ = dropped.send(());
        }
    }
}

struct NoNames;

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// Answers each request with the bytes it came as.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let (mut request, mut buffer) = (Vec::new(), [0u8; 4096]);
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    request.extend_from_slice(&buffer[..n]);
                    if is_whole(&request) {
                        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len());
                        stream.write_all(&[head.as_bytes(), &request].concat()).unwrap();
                        request.clear();
                    }
                }
            });
        }
    });
    addr
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    match length {
        Some(length) => body.len() == length.parse::<usize>().unwrap(),
        None => !head.contains("\r\nTransfer-Encoding: ") || body.ends_with("0\r\n\r\n"),
    }
}

/// A gateway with one worker, and access to its catalog and compiler.
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
        Gateway::start_with(Settings::default().timeouts.plugin_wait)
    }

    fn start_with(plugin_wait_timeout: Duration) -> Gateway {
        let services = Services::for_tests();
        let meters = services.meters.clone();
        let catalog = Arc::new(plugins::Catalog::new(services, Default::default()));
        let mut compiler = Compiler::new(catalog.clone(), Default::default());
        let desired = Desired::default();
        let (publisher, readers) = Publisher::new(compiler.snapshot(0), 1);
        let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 0);
        assert!(compiled.rejected.is_empty());
        let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = Settings::with(|settings| {
            settings.listen = vec![proxy::Listener::http(addr)];
            settings.timeouts.plugin_wait = plugin_wait_timeout;
            settings.timeouts.half_close = Duration::from_millis(100);
        });
        let sockets = Workers::listen(&settings, 1).unwrap();
        let workers = Workers::start(Arc::new(settings), sockets, readers, &meters).unwrap();
        Gateway { catalog, compiler, desired, publisher, workers: Some(workers), addr, revision: 0 }
    }

    /// Writes a route, compiles and publishes it.
    fn route(&mut self, plugins: &Value, upstream: SocketAddr) -> Compiled {
        let value =
            json!({"uri": "/*", "plugins": plugins, "upstream": {"nodes": {upstream.to_string(): 1}}});
        let key = Key::new(Kind::Route, "1");
        let resource = Resource::parse(Kind::Route, "1", &value).unwrap();
        self.desired.put(Arc::new(Entry::new(key.clone(), resource, 1, 1)));
        self.publish(&Touched::from_iter([key]))
    }

    /// Writes the consumer jack, compiles and publishes it.
    fn consumer(&mut self, plugins: &Value) {
        let value = json!({"username": "jack", "plugins": plugins});
        let key = Key::new(Kind::Consumer, "jack");
        let resource = Resource::parse(Kind::Consumer, "jack", &value).unwrap();
        self.desired.put(Arc::new(Entry::new(key.clone(), resource, 1, 1)));
        let compiled = self.publish(&Touched::from_iter([key]));
        assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    }

    /// Waits until an instance is dropped, and returns the thread that dropped it.
    fn dropped_on(&mut self, gone: &Receiver<ThreadId>) -> ThreadId {
        loop {
            // The pipeline calls this periodically.
            self.publisher.free_unused();
            if let Ok(thread) = gone.recv_timeout(Duration::from_millis(10)) {
                return thread;
            }
        }
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

fn script(name: &'static str) -> (Box<Script>, Receiver<()>, Receiver<ThreadId>) {
    let ((cancelled, was_cancelled), (gone, went)) = (channel(), channel());
    (Box::new(Script { name, cancelled, gone }), was_cancelled, went)
}

const POST: &str = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nold";

#[test]
fn plugins_are_added_and_removed_while_requests_are_served() {
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

/// Starts a gateway with a route on which a hosted plugin has these settings.
fn with(settings: &Value) -> (Gateway, Receiver<()>, Receiver<ThreadId>) {
    let mut gateway = Gateway::start();
    let (script, cancelled, gone) = script("script");
    gateway.catalog.register(script).unwrap();
    let compiled = gateway.route(&json!({"script": settings}), echo());
    assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    (gateway, cancelled, gone)
}

#[test]
fn a_wait_in_any_phase_ends_with_its_time_or_with_the_client() {
    for phase in ["rewrite", "access", "before_proxy", "header_filter", "body_filter"] {
        let (mut gateway, cancelled, _) = with(&json!({"wait_in": phase, "sleep_ms": 5}));
        let answer = gateway.ask(POST);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{phase}: {answer}");
        assert!(answer.contains("\r\nX-Waited: yes\r\n") == (phase != "body_filter"), "{phase}: {answer}");
        assert_eq!(answer.contains("\r\nOLD"), phase == "body_filter", "{phase}: {answer}");
        assert!(cancelled.try_recv().is_err(), "{phase}");

        gateway.route(&json!({"script": {"wait_in": phase, "sleep_ms": 1_000_000_000}}), echo());
        let mut stream = TcpStream::connect(gateway.addr).unwrap();
        stream.write_all(POST.as_bytes()).unwrap();
        drop(stream);
        cancelled.recv_timeout(Duration::from_secs(600)).expect("the wait ends with the client");
    }
}

#[test]
fn a_wait_has_a_deadline() {
    for phase in ["rewrite", "access", "before_proxy", "upload", "header_filter", "body_filter"] {
        let mut gateway = Gateway::start_with(Duration::ZERO);
        let (script, cancelled, _) = script("script");
        gateway.catalog.register(script).unwrap();
        gateway.route(
            &json!({"script": {"wait_in": phase, "sleep_ms": 1_000_000_000, "instead": "held"}}),
            echo(),
        );
        let answer = gateway.ask(POST);
        assert!(answer.starts_with("HTTP/1.1 504 "), "{phase}: {answer}");
        assert!(answer.contains("a plugin did not finish in time"), "{phase}: {answer}");
        cancelled.try_recv().expect("it was given up");
    }
}

#[test]
fn a_filter_of_the_request_s_body_waits_no_longer_than_the_client() {
    let (gateway, cancelled, _) = with(&json!({"wait_in": "upload"}));
    let mut stream = TcpStream::connect(gateway.addr).unwrap();
    stream.write_all(POST.as_bytes()).unwrap();
    drop(stream);
    cancelled.recv_timeout(Duration::from_secs(600)).expect("the wait ends with the client");
}

#[test]
fn a_filter_replaces_the_response() {
    for phase in ["header_filter", "body_filter"] {
        let (gateway, ..) = with(&json!({"wait_in": phase, "sleep_ms": 1, "instead": "teapot"}));
        for _ in 0..2 {
            let answer = gateway.ask(POST);
            assert!(answer.starts_with("HTTP/1.1 418 "), "{phase}: {answer}");
            assert!(answer.to_lowercase().ends_with("\r\n\r\nteapot"), "{phase}: {answer}");
        }
    }
}

#[test]
fn both_bodies_go_through_filters() {
    let (mut gateway, ..) = with(&json!({"upload": true, "download": true}));
    let answer = gateway.ask(POST);
    assert!(answer.contains("\r\nTRANSFER-ENCODING: CHUNKED\r\n"), "the upstream got chunks: {answer}");
    assert!(answer.contains("\r\n\r\n4\r\n>OLD\r\n0\r\n\r\n"), "{answer}");
    let chunks = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    let answer = gateway.ask(chunks);
    let body = answer.split("CHUNKED\r\n\r\n").nth(1).unwrap_or_default();
    assert!(body.contains(">AB") && body.contains('C'), "{answer}");
    let refused = gateway.ask(&POST.replace("old", "no!"));
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    // Without a body there is nothing to filter.
    let answer = gateway.ask("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("CHUNKED"), "{answer}");

    // A body in memory keeps Content-Length.
    gateway.route(&json!({"script": {"upload": true, "body": "a longer one"}}), echo());
    let answer = gateway.ask(POST);
    assert!(answer.contains("\r\nContent-Length: 13\r\n"), "{answer}");
    assert!(answer.contains("\r\n\r\n>A LONGER ONE"), "{answer}");
}

#[test]
fn instances_are_dropped_on_the_control_side() {
    let (mut gateway, _, gone) = with(&json!({"body": "one"}));
    assert!(gateway.ask(POST).ends_with("one"));
    while gone.try_recv().is_ok() {}
    gateway.route(&json!({"script": {"body": "two"}}), echo());
    assert!(gateway.ask(POST).ends_with("two"));
    assert_eq!(gateway.dropped_on(&gone), std::thread::current().id());
}

/// The worker merges a consumer's plugins into the route's chain, and caches the merged chain.
#[test]
fn instances_of_consumers_are_dropped_on_the_control_side() {
    let mut gateway = Gateway::start();
    let (script, _, gone) = script("script");
    gateway.catalog.register(script).unwrap();
    let route = json!({"key-auth": {}, "cors": {}});
    let ask = POST.replace("Host: a", "Host: a\r\napikey: k");
    gateway.consumer(&json!({"key-auth": {"key": "k"}, "script": {"body": "one"}}));
    gateway.route(&route, echo());
    assert!(gateway.ask(&ask).ends_with("one"));
    while gone.try_recv().is_ok() {}
    gateway.consumer(&json!({"key-auth": {"key": "k"}, "script": {"body": "two"}}));
    // The route changes as well, so that the old chain is not used again.
    gateway.route(&json!({"key-auth": {}}), echo());
    assert!(gateway.ask(&ask).ends_with("two"));
    assert_eq!(gateway.dropped_on(&gone), std::thread::current().id());
}

#[test]
fn values_held_by_an_exchange_are_dropped_with_it() {
    let mut gateway = Gateway::start();
    let (script, ended, _) = script("holding");
    gateway.catalog.register(script).unwrap();
    let upstream = echo();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let long = Duration::from_secs(600);
    for (settings, upstream, status) in [
        (json!({"hold": true}), upstream, "200"),
        (json!({"hold": true, "panics": true}), upstream, "500"),
        (json!({"hold": true}), closed, "502"),
    ] {
        gateway.route(&json!({ "holding": settings }), upstream);
        assert!(gateway.ask(POST).starts_with(&format!("HTTP/1.1 {status} ")), "{settings}");
        ended.recv_timeout(long).expect("it ends with the exchange");
        assert!(ended.try_recv().is_err(), "once");
    }
    // When the client of a waiting request disconnects, both the wait and the held value are dropped.
    gateway.route(
        &json!({"holding": {"hold": true, "wait_in": "rewrite", "sleep_ms": 1_000_000_000}}),
        upstream,
    );
    let mut stream = TcpStream::connect(gateway.addr).unwrap();
    stream.write_all(POST.as_bytes()).unwrap();
    drop(stream);
    for _ in 0..2 {
        ended.recv_timeout(long).expect("both end with the client");
    }
}
