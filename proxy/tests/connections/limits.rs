//! Connection handling by heads, and the limits in settings, each at its last allowed value and one
//! beyond.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{GET, OK, case};
use crate::support::{Case, Do, Do::*};

/// A few schedules are enough if a single read decides.
const FEW: u64 = 8;

fn server(answer: &'static str) -> Vec<Vec<Do>> {
    vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd]]
}

#[test]
fn hop_by_hop_fields_of_the_server_are_dropped() {
    let fields = "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\n\
                  Proxy-Connection: x\r\nUpgrade: h2c\r\nServer: theirs\r\nX-Own: 1\r\n";
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let sized = format!("HTTP/1.1 200 OK\r\n{fields}{date}Trailer: X-Sum\r\nContent-Length: 2\r\n\r\nok");
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Close],
        servers: server(sized.leak()),
        wants: vec![date, "X-Own: 1\r\n", "Content-Length: 2\r\n"],
        lacks: vec!["X-Hop", "Keep-Alive", "Proxy-Connection", "Upgrade", "theirs", "Trailer", "Connection"],
        once: "Date: ",
        seeds: FEW,
        ..case()
    }
    .run("a length");
    let chunked = format!(
        "HTTP/1.1 200 OK\r\n{fields}Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 2\r\n\r\n"
    );
    Case {
        client: vec![Send(GET), Until("X-Sum: 2\r\n\r\n"), Close],
        servers: server(chunked.leak()),
        wants: vec!["Trailer: X-Sum\r\n", "Transfer-Encoding: chunked\r\n"],
        lacks: vec!["X-Hop", "Keep-Alive", "theirs", "Connection"],
        once: "Date: ",
        seeds: FEW,
        ..case()
    }
    .run("chunks, and the gateway's own Date");
}

#[test]
fn http_1_0_clients_get_connection_keep_alive() {
    let ask = "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    Case {
        client: vec![Send(ask), Until("\r\n\r\nok"), Send("GET /a HTTP/1.0\r\n\r\n"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["Connection: keep-alive\r\n", "Connection: close\r\n"],
        once: "Connection: keep-alive\r\n",
        seeds: FEW,
        ..case()
    }
    .run("1.0");
}

#[test]
fn a_connection_has_a_request_limit() {
    let two = || vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]];
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(GET), Until("\r\n\r\nok"), ToEnd],
        servers: two(),
        once: "Connection: close\r\n",
        settings: |settings| settings.limits.keepalive_requests = 2,
        seeds: FEW,
        ..case()
    }
    .run("the second is the last");
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(GET), Until("\r\n\r\nok"), Close],
        servers: two(),
        lacks: vec!["Connection: close\r\n"],
        settings: |settings| settings.limits.keepalive_requests = 3,
        seeds: FEW,
        ..case()
    }
    .run("a third may come");
    Case {
        client: vec![Send(GET), ToEnd],
        servers: server(OK),
        wants: vec!["Connection: close\r\n", "\r\n\r\nok"],
        settings: |settings| settings.timeouts.keepalive = Duration::ZERO,
        seeds: FEW,
        ..case()
    }
    .run("none is kept");
}

#[test]
fn bodies_up_to_the_limit_are_accepted() {
    fn four(settings: &mut proxy::Settings) {
        settings.limits.body = 4;
    }
    let sized = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd";
    let chunked =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n";
    let shorter = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    for (about, ask, body) in
        [("length", sized, "abcd"), ("a shorter one", shorter, "abc"), ("chunks", chunked, "0\r\n\r\n")]
    {
        Case {
            client: vec![Send(ask), Until("\r\n\r\nok"), Send(GET), Until("\r\n\r\nok"), Close],
            servers: vec![vec![Until("\r\n\r\n"), Until(body), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]],
            lacks: vec!["413"],
            settings: four,
            seeds: FEW,
            ..case()
        }
        .run(about);
    }
    let sized = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde";
    let chunked =
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n";
    for (about, ask, silent) in [("too long", sized, true), ("chunks that come to too much", chunked, false)]
    {
        Case {
            client: vec![Send(ask), ToEnd],
            servers: vec![vec![ToEnd]],
            wants: vec!["HTTP/1.1 413 "],
            unheard: vec!["cde", "0\r\n\r\n"],
            silent,
            maybe: true,
            settings: four,
            seeds: FEW,
            ..case()
        }
        .run(about);
    }
}

#[test]
fn heads_up_to_the_limit_are_accepted() {
    let ask = "GET /a HTTP/1.1\r\nHost: a\r\nX-Long: ";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Long: ";
    for (length, seeds) in [(20_000, 3), (60_000, 1)] {
        Case {
            client: vec![Send(ask), Many(b'x', length), Send("\r\n\r\n"), Until("\r\n\r\nok"), Close],
            servers: vec![vec![
                Until("X-Long: "),
                Count(b'x', length),
                Send(answer),
                Many(b'y', length),
                Send("\r\n\r\nok"),
                ToEnd,
            ]],
            wants: vec!["200 OK"],
            seeds,
            ..case()
        }
        .run("within it");
    }
    Case {
        client: vec![Send(ask), Many(b'x', 70_000), Send("\r\n\r\n"), ToEnd],
        wants: vec!["HTTP/1.1 431 "],
        silent: true,
        seeds: 1,
        ..case()
    }
    .run("beyond it");
    Case {
        client: vec![Send(GET), Until("\r\n\r\n"), Close],
        servers: vec![vec![Until("\r\n\r\n"), Send(answer), Many(b'y', 70_000), Send("\r\n\r\nok"), ToEnd]],
        wants: vec!["HTTP/1.1 502 "],
        seeds: 1,
        ..case()
    }
    .run("an answer beyond it");
}

#[test]
fn the_first_request_has_a_timeout_of_its_own() {
    Case {
        client: vec![Wait(6000), Send(GET), Until("\r\n\r\nok"), Wait(6000), Send(GET), ToEnd],
        servers: server(OK),
        once: "HTTP/1.1 ",
        settings: |settings| settings.timeouts.header = Duration::from_secs(10),
        seeds: FEW,
        ..case()
    }
    .run("5 s between requests, 10 s before the first");
}

/// The log entries of invalid requests: kind, status, and the bytes in place of a request line.
static LOGGED: Mutex<Vec<(String, u16, String)>> = Mutex::new(Vec::new());

#[test]
fn invalid_requests_are_logged() {
    fn collect(settings: &mut proxy::Settings) {
        settings.on_fault = Arc::new(|record| {
            let kind = format!("{:?}", record.fault);
            LOGGED.lock().unwrap().push((kind, record.status, record.request));
        });
    }
    for (sent, kind, answer, request) in [
        ("GET /a HTTP/1.1\r\nHo", "ClientGone", None, "GET /a HTTP/1.1"),
        (
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\r\n\r\n",
            "TlsOnPlainPort",
            Some("HTTP/1.1 400 "),
            "\\x16\\x03\\x01\\x02\\x00\\x01",
        ),
        ("\u{16}x\r\n\r\n", "BadRequest", Some("HTTP/1.1 400 "), "\\x16x"),
        (
            "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "BadRequest",
            Some("HTTP/1.1 400 "),
            "GET /a HTTP/1.1",
        ),
    ] {
        LOGGED.lock().unwrap().clear();
        let end = if answer.is_some() { ToEnd } else { Close };
        Case {
            client: vec![Send(sent), Wait(10), end],
            wants: answer.into_iter().collect(),
            silent: true,
            settings: collect,
            seeds: FEW,
            ..case()
        }
        .run(sent);
        let logged = std::mem::take(&mut *LOGGED.lock().unwrap());
        assert_eq!(logged.len(), FEW as usize, "{logged:?}");
        for (what, status, line) in logged {
            assert!(what.contains(kind), "{sent:?}: {what}");
            assert_eq!(status, 400, "{sent:?}");
            // A request is refused as soon as it is known to be invalid, so the line may be shorter.
            assert!(!line.is_empty() && request.starts_with(&line), "{sent:?}: {line}");
        }
    }
}

#[test]
fn a_connection_closes_at_once_if_no_more_bytes_can_arrive() {
    let last = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let both = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let half = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\nab";
    let thinking = || vec![vec![Until("\r\n\r\n"), Wait(100), Send(OK), ToEnd]];
    let open = |left: usize| vec![ToEnd, Wait(10), Served(left), Close];
    for (about, begin, servers, left) in [
        ("the client has sent Connection: close", vec![Send(last)], server(OK), 0),
        ("the client may send another request", vec![Send(GET)], server(OK), 1),
        ("the client has sent another after Connection: close", vec![Send(both)], server(OK), 1),
        (
            "the client sends another before the response",
            vec![Send(last), Wait(20), Send(GET)],
            thinking(),
            1,
        ),
        ("the client may still send the rest of its body", vec![Send(half)], thinking(), 1),
    ] {
        Case {
            client: [begin, open(left)].concat(),
            servers,
            wants: vec!["HTTP/1.1 200 OK\r\n", "\r\n\r\nok"],
            once: "HTTP/1.1 ",
            settings: |settings| settings.limits.keepalive_requests = 1,
            seeds: FEW,
            ..case()
        }
        .run(about);
    }
}

#[test]
fn reads_from_a_refused_client_are_bounded() {
    let try_with = |beyond: usize, left: usize| {
        Case {
            client: vec![
                Send("GET\r\n\r\n"),
                Until("HTTP/1.1 400 "),
                Many(b'x', 1000 + beyond),
                Wait(20_000),
                Served(left),
                Close,
            ],
            silent: true,
            broken: false,
            settings: |settings| {
                settings.limits.linger_bytes = 2000;
                settings.timeouts.linger = Duration::from_secs(60);
            },
            seeds: 4,
            ..case()
        }
        .run(if left == 0 { "more than linger_bytes" } else { "up to linger_bytes" });
    };
    try_with(0, 1);
    try_with(100_000, 0);
}

const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";

/// The type of a SETTINGS frame, without flags, and its stream.
const SETTINGS: &str = "\u{4}\0\0\0\0\0";

#[test]
fn both_versions_are_served_on_one_port() {
    let any = || Case { any: true, seeds: FEW, ..case() };
    Case {
        client: vec![Send(PREFACE), Until(SETTINGS), Close],
        lacks: vec!["HTTP/1"],
        silent: true,
        ..any()
    }
    .run("HTTP/2 first");
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(GET), Until("\r\n\r\nok"), Close],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]],
        ..any()
    }
    .run("HTTP/1 first");
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(PREFACE), Until("HTTP/1.1 505 "), ToEnd],
        servers: server(OK),
        lacks: vec![SETTINGS],
        ..any()
    }
    .run("only the first bytes decide");
    Case {
        client: vec![Send("PRI * HTTP/2.0\r\n\r\n"), Wait(10), Close],
        lacks: vec!["HTTP"],
        silent: true,
        ..any()
    }
    .run("an incomplete preface");
    let foreign = "INVALID CONNECTION PREFACE\r\n\r\n";
    // The whole line is needed to recognise it: in pieces, the first one is a bad request.
    Case { client: vec![Send(foreign), ToEnd], lacks: vec!["HTTP"], silent: true, seeds: 1, ..any() }
        .run("neither: such a client could not read an HTTP/1 response");
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(foreign), Until("HTTP/1.1 400 "), ToEnd],
        servers: server(OK),
        ..any()
    }
    .run("after an HTTP/1 request");
    for (about, sent, answer) in [
        ("HTTP/2 where there is only HTTP/1", PREFACE, "HTTP/1.1 505 "),
        ("neither", foreign, "HTTP/1.1 400 "),
    ] {
        let client = vec![Send(sent), Until(answer), ToEnd];
        Case { client, silent: true, seeds: FEW, ..case() }.run(about);
    }
}
