//! Runs scripts on both sides of a gateway, under many schedules.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use model::{Desired, Entry, Key, Kind, Resource};
use proxy::testing::{self, End, Gateway, Schedule};
use proxy::{Settings, StreamPort};
use sdk::build::{Names, Services};
use sdk::meters::Meters;
use serde_json::{Value, json};
use sha1::{Digest, Sha1};
use snapshot::certs::{Tickets, TlsSettings};
use snapshot::compile::{Compiler, Touched};
use snapshot::health::NodeHealth;
use snapshot::{Snapshot, Upstream};

pub mod datagrams;
mod filters;
pub mod http2;
pub mod http2_server;
pub mod recorder;
mod routes;
mod streams;
pub mod tls;
mod trailers;

pub const SERVER: ([u8; 4], u16) = ([10, 0, 0, 1], 80);
/// The server for retries, on routes that have it.
const SECOND: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

/// One step of a script.
#[derive(Debug, Clone)]
pub enum Do {
    Send(&'static str),
    Bytes(&'static [u8]),
    /// Sends one byte this many times.
    Many(u8, usize),
    /// Reads until this text has arrived, after the last one waited for.
    Until(&'static str),
    /// Reads until one byte has arrived this many times, after the last text waited for.
    Count(u8, usize),
    /// Reads to the end of the connection.
    ToEnd,
    /// Waits for milliseconds of the virtual clock.
    Wait(u64),
    ShutDown,
    Close,
    Reset,
    /// A server's whole script: it refuses the connection.
    Refuse,
    /// A server's whole script: it accepts the connection and closes it before a request.
    Gone,
    /// A server's whole script: connecting fails with this `errno`.
    Fail(i32),
    Drain,
    EndTunnels,
    /// HTTP/2 server ([`http2_server`]): reads until a frame of this kind has arrived on this stream.
    UntilOn(u32, u8),
    /// Server: accepts a WebSocket, with these fields and bytes at the end of its response.
    Agree(&'static str),
    /// HTTP/2 client: begins a request with a body: method, path and fields, in lines.
    Ask(&'static str),
    /// HTTP/2 client: sends a request without a body.
    AskAll(&'static str),
    /// HTTP/2 client: sends these trailers, in lines.
    Trailers(&'static str),
    /// Checks the number of open client connections, which includes those of the gateway to itself.
    Served(usize),
}

/// The scripts of a test, and the expected results.
#[derive(Clone)]
pub struct Case {
    pub client: Vec<Do>,
    /// The script of another client of the same worker, which runs at the same time; empty for none.
    pub beside: Vec<Do>,
    /// The scripts of further clients, each of which starts when the one before has ended.
    pub then: Vec<Vec<Do>>,
    /// A script for each connection to the servers, in order.
    pub servers: Vec<Vec<Do>>,
    /// Texts that the client must get.
    pub wants: Vec<&'static str>,
    /// Texts that the client must not get.
    pub lacks: Vec<&'static str>,
    /// Texts that some server must get.
    pub heard: Vec<&'static str>,
    /// Texts that no server may get.
    pub unheard: Vec<&'static str>,
    /// Whether no server may get a connection.
    pub silent: bool,
    /// Whether some of the servers may get no connection, depending on the schedule.
    pub maybe: bool,
    /// Whether the client's connection must end with a reset.
    pub broken: bool,
    /// A text that the client must get exactly once.
    pub once: &'static str,
    /// The lines of the plugin [`recorder`], on routes that have it. The bytes in them must be those that the
    /// clients sent and got.
    pub recorded: Vec<&'static str>,
    /// Whether the port serves HTTP/2 as well.
    pub any: bool,
    /// Whether the client speaks HTTP/2 ([`http2`]).
    pub h2: bool,
    /// The recorded bytes received and sent, if they differ from the client's.
    pub sums: Option<(usize, usize)>,
    /// The port, for a stream.
    pub stream: Option<u16>,
    /// Whether streams begin with a PROXY protocol header to the server.
    pub header: bool,
    /// Whether connections hold only 16 unread bytes.
    pub narrow: bool,
    /// Whether the plugin panics.
    pub panics: bool,
    /// Numbers of requests and of errors that a watched worker must count. Needs a single schedule.
    pub watched: Option<(u64, u64)>,
    /// The times of attempts in the access log, in seconds with one decimal: a line for each request. Without
    /// lines, there is no access log. Needs a single schedule.
    pub took: Vec<&'static str>,
    /// For each server with outlier detection: requests, failures, and the time of the successes in tenths of
    /// seconds. Needs a single schedule.
    pub tallies: Vec<(u32, u32, u64)>,
    /// Whether data from servers is reported to the gateway a turn late, as by the kernel.
    pub late: bool,
    pub seeds: u64,
    /// The ids of the resources to keep; empty for all.
    pub only: &'static [&'static str],
    /// Changes the default settings.
    pub settings: fn(&mut Settings),
}

const BASE: Case = Case {
    client: Vec::new(),
    beside: Vec::new(),
    then: Vec::new(),
    servers: Vec::new(),
    wants: Vec::new(),
    lacks: Vec::new(),
    heard: Vec::new(),
    unheard: Vec::new(),
    silent: false,
    maybe: false,
    broken: false,
    once: "",
    recorded: Vec::new(),
    any: false,
    h2: false,
    sums: None,
    stream: None,
    header: false,
    narrow: false,
    panics: false,
    watched: None,
    took: Vec::new(),
    tallies: Vec::new(),
    late: false,
    seeds: 24,
    only: &[],
    settings: |_| {},
};

/// A case with an HTTP/1 client.
pub fn http() -> Case {
    BASE
}

/// The bytes that one side has read.
#[derive(Debug, Default)]
pub struct Got {
    pub bytes: Vec<u8>,
    /// The offset at which the next `Until` begins.
    at: usize,
    /// Whether the connection ended with a reset.
    pub reset: bool,
    pub ended: bool,
    /// The number of bytes sent.
    sent: usize,
}

impl Got {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    async fn more(&mut self, end: &End) -> bool {
        let mut part = [0; 4096];
        match end.read(&mut part).await {
            Ok(0) => self.ended = true,
            Ok(n) => self.bytes.extend_from_slice(&part[..n]),
            Err(_) => (self.ended, self.reset) = (true, true),
        }
        !self.ended
    }

    fn find(&self, what: &[u8]) -> Option<usize> {
        self.bytes[self.at..]
            .windows(what.len())
            .position(|here| here == what)
            .map(|at| self.at + at + what.len())
    }
}

/// Runs a script. Panics with the received bytes if an expected text does not arrive.
pub async fn play(who: &str, script: &[Do], end: End, got: &RefCell<Got>, gateway: &Gateway) {
    // Nothing else reads it while the script runs.
    let mut mine = got.take();
    for step in script {
        match step {
            Do::Send(text) => {
                mine.sent += text.len();
                // The other side may have closed; later steps of the script check whether that is right.
                let _ = end.write_all(text.as_bytes()).await;
            }
            Do::Bytes(bytes) => {
                mine.sent += bytes.len();
                let _ = end.write_all(bytes).await;
            }
            Do::Many(byte, count) => {
                mine.sent += count;
                let _ = end.write_all(&vec![*byte; *count]).await;
            }
            Do::Until(text) => loop {
                if let Some(at) = mine.find(text.as_bytes()) {
                    mine.at = at;
                    break;
                }
                assert!(mine.more(&end).await, "{who} waits for {text:?}, but has {:?}", mine.text());
            },
            Do::UntilOn(stream, kind) => loop {
                let Some((came, on, length)) = http2_server::first(&mine.bytes[mine.at..]) else {
                    assert!(mine.more(&end).await, "{who} waits for {step:?}, but has {:?}", mine.text());
                    continue;
                };
                mine.at += length;
                if (on, came) == (*stream, *kind) {
                    break;
                }
            },
            Do::Count(byte, count) => {
                let mut left = *count;
                loop {
                    let here = mine.bytes[mine.at..].iter().filter(|&here| here == byte).count();
                    mine.at = mine.bytes.len();
                    left = left.saturating_sub(here);
                    if left == 0 {
                        break;
                    }
                    assert!(mine.more(&end).await, "{who} lacks {left} of {count} bytes");
                }
            }
            Do::ToEnd => while mine.more(&end).await {},
            Do::Wait(ms) => testing::sleep(Duration::from_millis(*ms)).await,
            Do::ShutDown => end.shut_down(),
            Do::Drain => gateway.drain(),
            Do::EndTunnels => gateway.end_tunnels(),
            Do::Served(count) => assert_eq!(gateway.connections(), *count, "{who}"),
            Do::Agree(rest) => {
                let asked = mine.text();
                let key = asked.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
                let agree = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Accept: {}\r\n{rest}",
                    accept(key)
                );
                let _ = end.write_all(agree.as_bytes()).await;
            }
            Do::Ask(_) | Do::AskAll(_) | Do::Trailers(_) => panic!("{who} speaks no HTTP/2"),
            Do::Close | Do::Refuse | Do::Gone | Do::Fail(_) => break,
            Do::Reset => {
                end.abort();
                break;
            }
        }
    }
    drop(end);
    got.replace(mine);
}

/// Returns `Sec-WebSocket-Accept` for a client's key (RFC 6455 section 4.2.2).
fn accept(key: &str) -> String {
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    base64::engine::general_purpose::STANDARD.encode(digest)
}

impl Case {
    /// Runs the case under each schedule, with a new worker each time.
    pub fn run(self, about: &str) {
        let mut settings = Settings::with(|settings| settings.timeouts.keepalive = Duration::from_secs(5));
        (self.settings)(&mut settings);
        let about = about.to_owned();
        let resources = snapshot_of(self.only);
        resources.1.watch(self.watched.is_some());
        let took = self.took.clone();
        let log = (!took.is_empty()).then(|| recorder::access_log("$upstream_response_time", &mut settings));
        let tallies = self.tallies.clone();
        let nodes: Vec<_> = match tallies.is_empty() {
            true => Vec::new(),
            false => (0..).map_while(|slot| resources.0.upstreams.get(slot)).flat_map(looked_at).collect(),
        };
        let of = about.clone();
        run_gateways(settings, resources, self.seeds as usize, async move |gateways, meters| {
            for (seed, gateway) in gateways.enumerate() {
                self.once(seed as u64, &about, gateway, &meters).await;
            }
        });
        if let Some(log) = log {
            assert_eq!(recorder::tenths(&log), took, "{of}: the times of attempts");
        }
        let counted = nodes.iter().map(|node| node.take());
        let counted: Vec<_> =
            counted.map(|tally| (tally.requests, tally.failures, tally.micros / 100_000)).collect();
        assert_eq!(counted, tallies, "{of}: the tallies of servers");
    }

    /// Returns the delay before a stream's client connects, if its script begins with a wait, and the rest of the
    /// script.
    fn comes_late<'s>(&self, script: &'s [Do]) -> Option<(Duration, &'s [Do])> {
        match script {
            [Do::Wait(ms), rest @ ..] if self.stream.is_some() => Some((Duration::from_millis(*ms), rest)),
            _ => None,
        }
    }

    async fn once(&self, seed: u64, about: &str, gateway: Gateway, meters: &Meters) {
        let short = self.seeds < 10;
        let schedule = move |salt: u64| {
            // Seed 0 is a perfect network.
            let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(31) + salt);
            match seed {
                0 => Schedule::default(),
                _ => Schedule {
                    seed: rng.u64(..),
                    most: [1, 2, 7, 50, 4096][rng.usize(..5)].max(if short { 50 } else { 1 }),
                    pauses: [0, 30, 128][rng.usize(..3)],
                    room: [if short { 1024 } else { 64 }, 4096, 0][rng.usize(..3)],
                    ..Schedule::default()
                },
            }
        };
        let about = format!("{about}, seed {seed}");
        let case = self;
        {
            let gateway = Rc::new(gateway);
            let heard: Rc<RefCell<Vec<Rc<RefCell<Got>>>>> = Rc::default();
            let playing = Rc::new(Cell::new(0));
            let scripts = RefCell::new(VecDeque::from(case.servers.clone()));
            let (case_narrow, late) = (case.narrow, case.late);
            let count = Rc::new(Cell::new(0u64));
            {
                let (heard, playing, gateway, about) =
                    (heard.clone(), playing.clone(), gateway.clone(), about.clone());
                let server = Rc::new(move || {
                    let number = count.get();
                    count.set(number + 1);
                    let script = scripts.borrow_mut().pop_front().ok_or_else(refused)?;
                    if matches!(script[..], [Do::Refuse]) {
                        heard.borrow_mut().push(Rc::default());
                        return Err(refused());
                    }
                    if let [Do::Fail(error)] = script[..] {
                        heard.borrow_mut().push(Rc::default());
                        return Err(std::io::Error::from_raw_os_error(error));
                    }
                    let narrow = case_narrow.then_some(16);
                    let ours = schedule(100 + number);
                    let ours = Schedule { room: narrow.unwrap_or(ours.room), ..ours };
                    let theirs = Schedule { late, ..schedule(200 + number) };
                    let (end, theirs) = testing::pair(ours, theirs);
                    let got = Rc::new(RefCell::new(Got::default()));
                    heard.borrow_mut().push(got.clone());
                    if matches!(script[..], [Do::Gone]) {
                        return Ok(theirs);
                    }
                    let (playing, gateway, about) = (playing.clone(), gateway.clone(), about.clone());
                    playing.set(playing.get() + 1);
                    testing::spawn(async move {
                        play(&format!("{about}: the server"), &script, end, &got, &gateway).await;
                        playing.set(playing.get() - 1);
                    });
                    Ok(theirs)
                });
                let servers = [SocketAddr::from(SERVER), SocketAddr::from(SECOND), other_family()];
                for addr in servers.into_iter().chain(many()) {
                    let server = server.clone();
                    testing::serve(addr, move || server());
                }
            }
            let connect = |theirs, ours: Schedule| {
                let room = if case.narrow { 16 } else { ours.room };
                let ours = Schedule { room, ..ours };
                match case.stream {
                    _ if case.any || case.h2 => gateway.connect_any(theirs, ours),
                    Some(number) => {
                        let port = StreamPort { proxy_protocol_to_upstream: case.header };
                        gateway.connect_stream(theirs, ours, number, port)
                    }
                    None => gateway.connect(theirs, ours),
                }
            };
            let late = case.comes_late(&case.client);
            let end = late.is_none().then(|| connect(schedule(1), schedule(2)));
            let beside: Rc<RefCell<Got>> = Rc::default();
            if !case.beside.is_empty() {
                let (end, script) = (connect(schedule(3), schedule(4)), case.beside.clone());
                let (playing, gateway, about) = (playing.clone(), gateway.clone(), about.clone());
                let beside = beside.clone();
                playing.set(playing.get() + 1);
                testing::spawn(async move {
                    play(&format!("{about}: the other client"), &script, end, &beside, &gateway).await;
                    playing.set(playing.get() - 1);
                });
            }
            let got = RefCell::new(Got::default());
            let who = format!("{about}: the client");
            let (script, end) = match late {
                Some((wait, script)) => {
                    testing::sleep(wait).await;
                    (script, connect(schedule(1), schedule(2)))
                }
                None => (&case.client[..], end.unwrap()),
            };
            let played = testing::within(Duration::from_secs(600), async {
                match case.h2 {
                    true => http2::play(&who, script, http2::Line(end), &got).await,
                    false => play(&who, script, end, &got, &gateway).await,
                }
            });
            assert!(played.await.is_some(), "{about}: the client still waits");
            let mut all = vec![];
            for (script, salt) in case.then.iter().zip(5..) {
                // Time for the gateway to see the end of the previous client.
                testing::sleep(Duration::from_millis(1)).await;
                let (wait, script) = case.comes_late(script).unwrap_or((Duration::ZERO, script));
                testing::sleep(wait).await;
                let got = RefCell::new(Got::default());
                let end = connect(schedule(salt), schedule(salt + 50));
                let played =
                    testing::within(Duration::from_secs(600), play(&who, script, end, &got, &gateway));
                assert!(played.await.is_some(), "{about}: a further client still waits");
                all.push(got.take());
            }
            settle(&gateway, &about).await;
            gateway.close_idle_upstreams();
            // A server's script may still wait for bytes, or for a late close.
            for _ in 0..200 {
                if playing.get() == 0 {
                    break;
                }
                testing::sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(playing.get(), 0, "{about}: a server still waits");

            let got = got.into_inner();
            let text = got.text();
            for want in &case.wants {
                assert!(text.contains(want), "{about}: the client lacks {want:?} in {text:?}");
            }
            for lack in &case.lacks {
                assert!(!text.contains(lack), "{about}: the client has {lack:?} in {text:?}");
            }
            if !case.once.is_empty() {
                assert_eq!(text.matches(case.once).count(), 1, "{about}: {text:?}");
            }
            all.push(beside.take());
            let sum = |of: fn(&Got) -> usize| of(&got) + all.iter().map(of).sum::<usize>();
            let (received, sent) =
                case.sums.unwrap_or_else(|| (sum(|got| got.sent), sum(|got| got.bytes.len())));
            recorder::check(&case.recorded, received, sent, got.reset, &about);
            assert_eq!(
                got.reset, case.broken,
                "{about}: whether the client's connection was reset: {text:?}"
            );
            let mut texts = Vec::new();
            for got in heard.take() {
                let got = got.take();
                texts.push(http2_server::requests(&got.bytes).await.unwrap_or_else(|| got.text()));
            }
            let heard = texts;
            for want in &case.heard {
                assert!(
                    heard.iter().any(|text| text.contains(want)),
                    "{about}: no server got {want:?}: {heard:?}"
                );
            }
            for lack in &case.unheard {
                assert!(
                    !heard.iter().any(|text| text.contains(lack)),
                    "{about}: a server got {lack:?}: {heard:?}"
                );
            }
            assert!(!case.silent || heard.is_empty(), "{about}: a server was asked: {heard:?}");
            if !case.maybe {
                let left = case.servers.len().saturating_sub(heard.len());
                assert_eq!(left, 0, "{about}: server scripts without a connection");
            }
            if case.panics {
                let totals = meters.read(1, |reading| reading.totals());
                let (panics, under_way) = (totals.panics, totals.began - totals.ended);
                assert_eq!((panics, under_way), (seed + 1, 0), "{about}: panics, and requests under way");
            } else {
                check_panics(meters, &about);
            }
            check_waiting(meters, &about);
            if let Some(wanted) = case.watched {
                let seen = meters.watched();
                assert_eq!((seen.requests, seen.errors), wanted, "{about}: requests and errors");
            }
        }
    }
}

/// Returns an upstream's servers, if their traffic is observed.
fn looked_at(upstream: &Arc<Upstream>) -> Vec<Arc<NodeHealth>> {
    upstream.health.as_ref().map(|health| health.nodes().to_vec()).unwrap_or_default()
}

/// Checks that no worker counts a waiting client when no client is connected.
fn check_waiting(meters: &Meters, about: &str) {
    assert_eq!(meters.read(1, |reading| reading.totals().waiting), 0, "{about}: clients that wait");
}

/// Waits until all client connections have ended, and checks that no memory is held.
pub async fn settle(gateway: &Gateway, about: &str) {
    for _ in 0..20_000 {
        if gateway.connections() == 0 {
            break;
        }
        testing::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gateway.connections(), 0, "{about}: a connection does not end");
    assert_eq!(gateway.held(), 0, "{about}: memory for bodies was not given back");
}

pub fn check_panics(meters: &Meters, about: &str) {
    assert_eq!(meters.read(1, |reading| reading.totals().panics), 0, "{about}");
}

/// Runs a test with `count` gateways, one after the other, with a few routes to [`SERVER`].
pub fn with_gateways(
    settings: Settings,
    count: usize,
    test: impl AsyncFnOnce(testing::Gateways, Arc<Meters>) + 'static,
) {
    run_gateways(settings, snapshot(), count, test);
}

fn run_gateways(
    settings: Settings,
    (snapshot, meters): (Snapshot, Arc<Meters>),
    count: usize,
    test: impl AsyncFnOnce(testing::Gateways, Arc<Meters>) + 'static,
) {
    let for_test = meters.clone();
    testing::run(settings, snapshot, &meters, count, async move |gateways| test(gateways, for_test).await)
        .unwrap();
}

fn refused() -> std::io::Error {
    std::io::ErrorKind::ConnectionRefused.into()
}

/// The second address of the host `both`.
fn other_family() -> SocketAddr {
    "[fd00::1]:80".parse().unwrap()
}

/// The addresses of the host `many`, to which a plugin sends subrequests.
fn many() -> impl Iterator<Item = SocketAddr> {
    (1..=4).map(|last| SocketAddr::from(([10, 0, 1, last], 80)))
}

/// Resolves `both` to an address of each family, and `many` to several addresses.
struct TwoNames;

impl Names for TwoNames {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        match host {
            "both" => vec![SocketAddr::from(SERVER).ip(), other_family().ip()],
            "many" => many().map(|addr| addr.ip()).collect(),
            _ => Vec::new(),
        }
    }
}

pub fn snapshot() -> (Snapshot, Arc<Meters>) {
    snapshot_of(&[])
}

/// Compiles a snapshot with these resources alone, by their ids; with all if `only` is empty.
fn snapshot_of(only: &[&str]) -> (Snapshot, Arc<Meters>) {
    let upstream = json!({
        "type": "roundrobin",
        "nodes": {SocketAddr::from(SERVER).to_string(): 1},
        "timeout": {"connect": 1, "send": 2, "read": 2},
        "keepalive_pool": {"size": 4, "idle_timeout": 60, "requests": 1000},
    });
    let mut desired = Desired::default();
    let mut put = |id: &str, value: Value| {
        let resource = Resource::parse(Kind::Route, id, &value).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::Route, id), resource, 1, 1)));
    };
    put("1", json!({"uris": ["/a", "/1", "/2", "/3", "/b"], "upstream": upstream}));
    put("2", json!({"uri": "/ws", "enable_websocket": true, "upstream": upstream}));
    let rewrite = json!({"response-rewrite": {"filters": [{"regex": "hello", "replace": "HELLO"}]}});
    put("3", json!({"uri": "/filtered", "upstream": upstream, "plugins": rewrite}));
    put("4", json!({"uri": "/trailers", "upstream": upstream, "plugins": {"trailers": {}}}));
    let h2c = routes::upstream(json!({"scheme": "h2c"}));
    put(
        "10",
        json!({"uri": "/ws-h2c", "enable_websocket": true, "upstream": routes::upstream(routes::kept(2))}),
    );
    let tries = json!({"scheme": "h2c", "sluice": {"retry": {"per_try_timeout": 0.5}}});
    put(
        "12",
        json!({"uri": "/ws-h2c-per-try", "enable_websocket": true, "upstream": routes::upstream(tries)}),
    );
    put("9", json!({"uri": "/trailers-h2c", "upstream": h2c, "plugins": {"trailers": {}}}));
    put("11", json!({"uri": "/edits-h2c", "upstream": h2c, "plugins": routes::edits()}));
    let vars = json!([["post_arg_x", "==", "y"]]);
    put("5", json!({"uri": "/held", "vars": vars, "upstream": upstream}));
    let recorded = json!({"recorder": {}});
    put(
        "recorded-held",
        json!({"uri": "/recorded-held", "vars": vars, "plugins": recorded, "upstream": upstream}),
    );
    let batches = json!({"public-api": {"uri": "/apisix/batch-requests"}});
    put("6", json!({"uri": "/batch", "plugins": batches}));
    let asks = json!({"forward-auth": {"uri": "http://many/auth", "timeout": 1000}});
    put("7", json!({"uri": "/asks", "plugins": asks, "upstream": upstream}));
    let asks =
        json!({"forward-auth": {"uri": "http://many/auth", "timeout": 1000, "request_method": "POST"}});
    put("8", json!({"uri": "/asks-post", "plugins": asks, "upstream": upstream}));
    for (uri, plugins) in routes::with_plugins() {
        put(&uri[1..], json!({"uri": uri, "plugins": plugins, "upstream": upstream}));
    }
    for (uri, more) in routes::of_two_servers().into_iter().chain(routes::over_http2()) {
        put(&uri[1..], json!({"uri": uri, "upstream": routes::upstream(more)}));
    }
    let address = json!({"response-rewrite": {"headers": {"set": {"X-Server": "$upstream_addr"}}}});
    let both = routes::upstream(json!({"nodes": [{"host": "both", "port": 80, "weight": 1}]}));
    put("both-address", json!({"uri": "/both-address", "plugins": address, "upstream": both}));
    for (uri, upstream) in routes::of_two_alike() {
        put(&uri[1..], json!({"uri": uri, "plugins": {"recorder": {}}, "upstream": upstream}));
    }
    let asks = json!({"ca": include_str!("../../../tests/certs/ca.crt")});
    let mut partly = asks.clone();
    partly["skip_mtls_uri_regex"] = json!(["^/open"]);
    let (own, ca) =
        (include_str!("../../../tests/certs/server-ec.crt"), include_str!("../../../tests/certs/ca.crt"));
    for (id, name, client, chain) in [
        ("1", "server.test", Value::Null, 0),
        ("2", "own.server.test", asks, 0),
        ("3", "partly.server.test", partly, 0),
        // Its certificates do not fit into three datagrams.
        ("4", "long.server.test", Value::Null, 12),
    ] {
        let mut tls = json!({
            "sni": name,
            "cert": ([own, &ca.repeat(chain)].concat()),
            "key": include_str!("../../../tests/certs/server-ec.key"),
        });
        if !client.is_null() {
            tls["client"] = client;
        }
        let tls = Resource::parse(Kind::Ssl, id, &tls).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::Ssl, id), tls, 1, 1)));
    }
    let jack = json!({"username": "jack", "plugins": {"key-auth": {"key": "jack-key"}, "recorder": {}}});
    let jack = Resource::parse(Kind::Consumer, "jack", &jack).unwrap();
    desired.put(Arc::new(Entry::new(Key::new(Kind::Consumer, "jack"), jack, 1, 1)));
    for (port, route) in routes::of_streams() {
        let mut route = route;
        route["server_port"] = json!(port);
        let id = port.to_string();
        let resource = Resource::parse(Kind::StreamRoute, &id, &route).unwrap();
        desired.put(Arc::new(Entry::new(Key::new(Kind::StreamRoute, id), resource, 1, 1)));
    }
    if !only.is_empty() {
        let others = desired.iter().map(|entry| entry.key.clone());
        for key in others.filter(|key| !only.contains(&key.id.as_str())).collect::<Vec<_>>() {
            desired.delete(&key);
        }
    }
    let services = Services::for_tests();
    let meters = services.meters.clone();
    let catalog = Arc::new(plugins::Catalog::new(services, Default::default()));
    catalog.register(Box::new(trailers::Trailers)).unwrap();
    catalog.register(Box::new(recorder::Recorder)).unwrap();
    catalog.register(Box::new(filters::Filters)).unwrap();
    catalog.register(Box::<streams::First>::default()).unwrap();
    catalog.register(Box::new(streams::Waits)).unwrap();
    let settings = snapshot::compile::Settings {
        protocols: vec!["dubbo".to_owned(), "redis".to_owned()],
        tls: TlsSettings { tickets: Tickets::new(3600), ..TlsSettings::default() },
        ..Default::default()
    };
    let compiled = Compiler::new(Arc::new(streams::WithStreams(catalog)), settings).compile(
        &desired,
        &Touched::all(),
        &TwoNames,
        1,
    );
    assert!(compiled.rejected.is_empty(), "{:?}", compiled.rejected);
    (compiled.snapshot, meters)
}
