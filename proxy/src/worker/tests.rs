//! Workers with faults put in.
#![allow(clippy::unwrap_used, reason = "a test")]

mod draining;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sdk::meters::Meters;
use snapshot::router::{Mode, Options, Router};
use snapshot::{Publisher, Snapshot};

use crate::buffers::SPARE;
use crate::{Listener, Notice, Settings, Stage, StreamPort, Traffic, Versions, Workers};

static ACCEPT: AtomicU32 = AtomicU32::new(0);
static TICK: AtomicU32 = AtomicU32::new(0);

/// The workers that panic when they are asked to; those of other tests run beside them.
const FRAGILE: &str = "fragile";

/// The workers for whom taking a connection takes long.
const SLOW: &str = "slow";

/// Panics as often as a test has asked for, or takes its time.
pub(crate) fn hold_up(settings: &Settings, task: &str) {
    match &settings.server[..] {
        FRAGILE => {}
        SLOW if task == "accept" => return std::thread::sleep(Duration::from_millis(10)),
        _ => return,
    }
    let left = if task == "accept" { &ACCEPT } else { &TICK };
    let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert!(taken.is_err(), "as asked, in {task}");
}

pub(crate) fn empty() -> Snapshot {
    Snapshot {
        revision: 1,
        router: Router::new(Mode::HostUri, Options::default()),
        upstreams: Default::default(),
        warm: std::sync::Arc::default(),
        consumers: Arc::default(),
        certificates: Default::default(),
        global: None,
        streams: Arc::default(),
    }
}

pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn start(settings: Settings, workers: usize) -> (std::io::Result<Workers>, Publisher) {
    let (publisher, readers) = Publisher::new(empty(), workers);
    let sockets = Workers::listen(&settings, workers).unwrap();
    (Workers::start(Arc::new(settings), sockets, readers, &Arc::new(Meters::default())), publisher)
}

fn ask(addr: SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits for what is bound to come.
fn until(mut there: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not come");
}

#[test]
fn a_panic_of_its_own_tasks_stops_no_worker() {
    let received = Arc::<Mutex<Vec<Notice>>>::default();
    let notices = received.clone();
    let on_notice =
        Arc::new(move |_, notice| notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice));
    let addr = free();
    let settings = Settings::with(|settings| {
        settings.listen = vec![Listener::http(addr)];
        settings.server = FRAGILE.to_owned();
        settings.on_notice = on_notice;
        settings.timeouts.header = Duration::from_millis(10);
    });
    let (workers, _publisher) = start(settings, 1);
    let workers = workers.unwrap();
    assert!(ask(addr).starts_with("HTTP/1.1 404 "));
    ACCEPT.store(2, Ordering::SeqCst);
    TICK.store(2, Ordering::SeqCst);
    // `accept` goes round only when a client connects.
    until(|| {
        assert!(ask(addr).starts_with("HTTP/1.1 404 "), "connections are still taken");
        ACCEPT.load(Ordering::SeqCst) == 0 && TICK.load(Ordering::SeqCst) == 0
    });
    // Time-outs still work: a head that does not end is answered.
    let mut slow = TcpStream::connect(addr).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    slow.write_all(b"GET / HTT").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let panics = |task| {
        let received = received.lock().unwrap_or_else(PoisonError::into_inner);
        let times = received.iter().map(|notice| match notice {
            Notice::Panicked { task: of, times } if *of == task => *times,
            _ => 0,
        });
        times.sum::<u64>()
    };
    until(|| (panics("accept"), panics("tick")) == (2, 2));
    assert_eq!(workers.watch().all_serve(), Ok(()));
    workers.set_stage(Stage::Stop);
    workers.join().unwrap();
}

#[test]
fn a_connection_beyond_the_bound_is_served_when_another_has_ended() {
    let addr = free();
    let settings = Settings::with(|settings| {
        settings.listen = vec![Listener::http(addr)];
        settings.limits.connections = 2;
    });
    let (workers, _publisher) = start(settings, 1);
    let workers = workers.unwrap();
    // Both are in the middle of a head, so neither may be closed to make room.
    let busy = [(); 2].map(|()| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"GET / HTT").unwrap();
        stream
    });
    let mut third = TcpStream::connect(addr).unwrap();
    third.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(third.read(&mut [0]).is_err(), "it waits");
    drop(busy);
    third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = String::new();
    third.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    workers.set_stage(Stage::Stop);
    workers.join().unwrap();
}

/// A client that has had an answer, and keeps its connection.
fn served_once(addr: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut first = [0; 12];
    client.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 404");
    client
}

/// A worker that waits hours for its clients, but not for one that is idle when it drains.
fn patient(addr: SocketAddr) -> Settings {
    let hours = Duration::from_secs(7200);
    Settings::with(|settings| {
        settings.listen = vec![Listener::http(addr)];
        settings.timeouts.idle_grace = Duration::from_millis(50);
        settings.timeouts.keepalive = hours;
        settings.timeouts.header = hours;
        settings.timeouts.drain = hours;
    })
}

#[test]
fn a_draining_worker_waits_for_a_first_request_and_for_no_other() {
    let addr = free();
    let (workers, _publisher) = start(patient(addr), 1);
    let workers = workers.unwrap();
    let mut idle = served_once(addr);
    // It was accepted, and has not asked yet.
    let mut silent = TcpStream::connect(addr).unwrap();
    assert!(ask(addr).starts_with("HTTP/1.1 404 "), "who came before it was accepted");
    workers.set_stage(Stage::Drain);
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    silent.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    silent.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("Connection: close"), "{answer}");
    until(|| workers.finished());
    workers.join().unwrap();
}

#[test]
fn who_has_waited_too_long_for_a_slow_worker_is_turned_away() {
    let port = StreamPort::default();
    for (listener, tls) in [
        (Listener::http(free()), false),
        (Listener { tls: true, ..Listener::http(free()) }, true),
        (Listener::stream(free(), port), false),
        (Listener { tls: true, ..Listener::stream(free(), port) }, false),
    ] {
        let settings = Settings::with(|settings| {
            settings.listen = vec![listener];
            settings.server = SLOW.to_owned();
            settings.timeouts.queue = Duration::from_millis(1);
        });
        let sockets = Workers::listen(&settings, 1).unwrap();
        // They connect before the worker starts, so its queue is not empty before it has taken all of them.
        let clients: Vec<TcpStream> =
            (0..200).map(|_| TcpStream::connect(listener.address).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(20));
        let (publisher, readers) = Publisher::new(empty(), 1);
        let meters = Arc::new(Meters::default());
        let workers = Workers::start(Arc::new(settings), sockets, readers, &meters).unwrap();
        let ask = |mut client: &TcpStream, request: &[u8]| {
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // A client that is turned away may be disconnected by now.
            let _ = client.write_all(request);
            let mut answer = Vec::new();
            let end = client.read_to_end(&mut answer);
            (String::from_utf8_lossy(&answer).into_owned(), end.is_err())
        };
        let get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let (first, last) = (&clients[0], &clients[clients.len() - 1]);
        let failed = || meters.read(1, |reading| reading.totals().handshakes_failed);
        match listener.traffic {
            Traffic::Http(_) if tls => {
                // None of them says anything of TLS, so all have failed.
                let answers: Vec<_> = clients.iter().map(|client| ask(client, get).0).collect();
                assert_eq!(answers.last().unwrap(), "", "nothing can be said");
                until(|| failed() == clients.len() as u64);
            }
            Traffic::Http(_) => {
                let (first, last) = (ask(first, get).0, ask(last, get).0);
                assert!(first.starts_with("HTTP/1.1 404 "), "{first:?}");
                assert!(last.starts_with("HTTP/1.1 503 "), "{last:?}");
            }
            // A reset tells it from a stream that has ended.
            Traffic::Stream(_) => assert_eq!(ask(last, b""), (String::new(), true), "{listener:?}"),
        }
        drop(publisher);
        workers.set_stage(Stage::Stop);
        workers.join().unwrap();
    }
}

#[test]
fn idle_clients_are_closed_soon_also_where_another_process_serves_from_now_on() {
    let addr = free();
    let (workers, _publisher) = start(patient(addr), 1);
    let workers = workers.unwrap();
    let mut idle = served_once(addr);
    // For a moment behind a request it looks by itself. Where that is not over yet, it ends all the same.
    std::thread::sleep(Duration::from_millis(500));
    assert!(!workers.finished());
    workers.set_stage(Stage::HandOver);
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    until(|| workers.finished());
    workers.join().unwrap();
}

#[test]
fn other_ports_that_serve_the_same_are_reported_once_each() {
    let at = |last, port| SocketAddr::from(([127, 0, 0, last], port));
    let listener = |address, h3| Listener {
        tls: true,
        traffic: Traffic::Http(Versions { h1: true, h2: true, h3 }),
        ..Listener::http(address)
    };
    let listen = [(1, 443, true), (2, 443, true), (1, 444, false), (1, 445, true)]
        .map(|(last, port, h3)| listener(at(last, port), h3));
    let mut settings = Settings { listen: listen.to_vec(), ..Settings::default() };
    settings.http3.alt_svc = "h3=$server_port".to_owned();
    let text = |port: &str| port.as_bytes().into();
    assert_eq!(*super::alt_svc(&settings), [(443, text("h3=443")), (445, text("h3=445"))]);
    crate::testing::beside_worker(settings.clone(), async move |worker, _| {
        let client = |local, tls| sdk::Client::new(at(3, 1), local, tls);
        for (about, client, offered) in [
            ("of that port", client(at(1, 443), true), true),
            ("of another", client(at(1, 444), true), false),
            ("without TLS", client(at(1, 443), false), false),
            ("the gateway itself", client(at(1, 443), true).for_subrequest(), false),
        ] {
            assert_eq!(worker.alt_svc(&client).is_some(), offered, "{about}");
        }
    });
    settings.http3.alt_svc.clear();
    assert!(super::alt_svc(&settings).is_empty());
}

#[test]
fn memory_of_exchanges_is_kept_up_to_a_bound_and_half_of_what_nobody_needed_is_given_back() {
    crate::testing::beside_worker(Settings::default(), async |worker, _| {
        let spare = || worker.scratch.borrow().len();
        (0..SPARE + 2).for_each(|_| worker.give_scratch(Box::default()));
        assert_eq!(spare(), SPARE);
        worker.shrink_scratch();
        assert_eq!(spare(), SPARE, "nothing is known yet");
        let one = worker.take_scratch();
        worker.give_scratch(one);
        worker.shrink_scratch();
        assert_eq!(spare(), SPARE / 2, "all but one were not needed");
    });
}

#[test]
fn the_date_is_that_of_the_clock() {
    crate::testing::beside_worker(Settings::default(), async |worker, _| {
        let mut date = Vec::new();
        worker.write_date(&mut date);
        assert_eq!(date, wire::h1::encode::date(worker.clock.coarse_unix_ms() / 1000));
    });
}
