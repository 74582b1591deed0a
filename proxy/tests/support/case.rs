//! A case: the scripts of its clients and servers, and the expected results under each schedule.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proxy::testing::{self, Gateway, Schedule};
use proxy::{Settings, StreamPort};
use sdk::meters::Meters;
use snapshot::Upstream;
use snapshot::health::NodeHealth;

use super::gateways::{check_panics, check_waiting, run_gateways, settle};
use super::resources::{SECOND, SERVER, many, other_family, snapshot_of};
use super::script::{Do, Got, play};
use super::{http2, http2_server, recorder};

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

fn refused() -> std::io::Error {
    std::io::ErrorKind::ConnectionRefused.into()
}
