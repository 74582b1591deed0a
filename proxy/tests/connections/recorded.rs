//! Status, bytes and times of a request in the log phase, compared with what the client and the server saw.

use std::sync::{Arc, Mutex};

use super::{OK, case};
use crate::support::{Case, Do, Do::*};

fn run(about: &str, client: Vec<Do>, servers: Vec<Vec<Do>>, recorded: Vec<&'static str>) {
    Case { client, servers, recorded, seeds: 8, ..case() }.run(about);
}

fn server(answer: &'static str) -> Vec<Vec<Do>> {
    vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd]]
}

#[test]
fn all_bytes_of_requests_and_answers_are_counted() {
    let get = "GET /recorded HTTP/1.1\r\nHost: a\r\n\r\n";
    let line = "GET 200 body 2 from [200] in 0, 0";
    let both = vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]];
    let client = vec![Send(get), Until("\r\n\r\nok"), Send(get), Until("\r\n\r\nok"), Close];
    run("two requests", client, both, vec![line, line]);
    let posts = [
        ("Content-Length: 5\r\n\r\nabcde", "abcde"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", "0\r\n\r\n"),
    ];
    for (body, last) in posts {
        let ask = format!("POST /recorded HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}").leak() as &str;
        let servers = vec![vec![Until(last), Send(OK), ToEnd]];
        run(body, vec![Send(ask), ToEnd], servers, vec!["POST 200 body 2 from [200] in 0, 0"]);
    }
    // A body that has arrived counts, though it is not read.
    let ask =
        "POST /recorded-abort HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nabcde";
    let recorded = vec!["POST 200 body 5 from [] in 0, 0"];
    Case { client: vec![Send(ask), ToEnd], recorded, silent: true, seeds: 1, ..case() }.run("an unread body");
    let close = "GET /recorded HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\n\r\n";
    run("chunks", vec![Send(close), ToEnd], server(chunked), vec!["GET 200 body 14 from [200] in 0, 0"]);
    let filtered = "GET /recorded-filtered HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    Case {
        client: vec![Send(filtered), ToEnd],
        servers: server(OK),
        wants: vec!["fine"],
        seeds: 8,
        ..case()
    }
    .run("filtered");
    let head = "HEAD /recorded HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n";
    run("HEAD", vec![Send(head), ToEnd], server(answer), vec!["HEAD 200 body 0 from [200] in 0, 0"]);
}

#[test]
fn the_gateway_s_own_answers_are_counted() {
    for (line, wants, lacks, recorded) in [
        ("GET /recorded-abort", "Content-Length: 5\r\n", "chunked", "GET 200 body 5 from [] in 0, 0"),
        ("GET /recorded-long", "Content-Length: 20000\r\n", "chunked", "GET 200 body 20000 from [] in 0, 0"),
        ("HEAD /recorded-abort", "Content-Length: 5\r\n", "hello", "HEAD 200 body 0 from [] in 0, 0"),
        ("GET /recorded-nothing", "HTTP/1.1 204 ", "hello", "GET 204 body 0 from [] in 0, 0"),
        ("GET /recorded-nothing", "HTTP/1.1 204 ", "Content-Length", "GET 204 body 0 from [] in 0, 0"),
        ("GET /recorded-reset", "Content-Length: 0\r\n", "hello", "GET 205 body 0 from [] in 0, 0"),
    ] {
        let ask = format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak() as &str;
        Case {
            client: vec![Send(ask), ToEnd],
            wants: vec![wants],
            lacks: vec![lacks],
            recorded: vec![recorded],
            silent: true,
            seeds: 4,
            ..case()
        }
        .run(line);
    }
    let trailers = |line: &str, wants, lacks| {
        let ask = format!("{line} /recorded-trailers HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak()
            as &str;
        let (client, wants, lacks) = (vec![Send(ask), ToEnd], vec![wants], vec![lacks]);
        Case { client, wants, lacks, silent: true, seeds: 4, ..case() }.run(line);
    };
    trailers("GET", "\r\n\r\n5\r\nhello\r\n0\r\nX-Down: set\r\n\r\n", "Content-Length");
    let long = "GET /trailers-long HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let client =
        vec![Send(long), Until("HTTP/1.1 200 "), Until("\r\n\r\n4e20\r\n"), Count(b'l', 20_000), ToEnd];
    Case { client, wants: vec!["l\r\n0\r\nX-Down: set\r\n\r\n"], silent: true, seeds: 4, ..case() }
        .run("a long body");
    trailers("HEAD", "Content-Length: 5\r\n", "X-Down");
}

#[test]
fn failures_and_aborts_are_recorded() {
    let get = "GET /recorded HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let refused = Case {
        client: vec![Send(get), ToEnd],
        servers: vec![vec![Refuse]],
        wants: vec!["HTTP/1.1 502 ", "X-APISIX-Upstream-Status: 502\r\n"],
        recorded: vec!["GET 502 body 79 from [502] in 0, 0"],
        seeds: 2,
        ..case()
    };
    refused.run("a server that refuses");
    let client = vec![Send(get), Wait(200), Reset];
    let thinks = vec![vec![Until("\r\n\r\n"), ToEnd]];
    Case { client, servers: thinks, recorded: vec!["GET 499 body 0 from [] in 2, 2"], seeds: 1, ..case() }
        .run("a client that leaves");
    Case {
        client: vec![Send(get), Until("ab"), Reset],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\nab"),
            ToEnd,
        ]],
        recorded: vec!["GET 200 body 2 from [200] in 0, 0"],
        seeds: 1,
        broken: false,
        ..case()
    }
    .run("a client that leaves within the answer");
    let jack = "GET /jack HTTP/1.1\r\nHost: a\r\nConnection: close\r\napikey: jack-key\r\n\r\n";
    run(
        "a consumer's plugin",
        vec![Send(jack), ToEnd],
        server(OK),
        vec!["GET 200 body 2 from [200] in 0, 0"],
    );
}

#[test]
fn the_statuses_of_servers_are_in_failures_or_where_set() {
    let get = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let header = "X-APISIX-Upstream-Status: 502, 200\r\n";
    let servers = || vec![vec![Refuse], vec![Until("\r\n\r\n"), Send(OK), ToEnd]];
    let ask = || Case { client: vec![Send(get), ToEnd], servers: servers(), seeds: 2, ..case() };
    Case { wants: vec![header], settings: |settings| settings.show_upstream_status = true, ..ask() }
        .run("switched on");
    Case { lacks: vec!["X-APISIX-Upstream-Status"], ..ask() }.run("a success");
    let servers = vec![vec![Refuse], vec![Refuse]];
    Case { servers, wants: vec!["HTTP/1.1 502 ", "X-APISIX-Upstream-Status: 502, 502\r\n"], ..ask() }
        .run("a failure");
}

#[test]
fn times_begin_with_the_first_byte_and_with_the_attempt() {
    let slow = vec![
        Send("GET /recorded HTTP/1.1\r\nHost"),
        Wait(520),
        Send(": a\r\nConnection: close\r\n\r\n"),
        ToEnd,
    ];
    let thinks = || vec![vec![Until("\r\n\r\n"), Wait(1020), Send(OK), ToEnd]];
    let timed = |client, servers, line| Case { client, servers, recorded: vec![line], seeds: 1, ..case() };
    timed(slow, thinks(), "GET 200 body 2 from [200] in 15, 10").run("a slow head and a slow server");
    let late = "GET /recorded-late HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    timed(vec![Send(late), ToEnd], thinks(), "GET 200 body 2 from [200] in 20, 10")
        .run("a plugin that waits");
}

#[test]
fn times_are_taken_if_only_a_plugin_consumes_them() {
    let get = |path: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\napikey: jack-key\r\n\r\n")
    };
    let thinks = vec![vec![Until("\r\n\r\n"), Wait(1020), Send(OK), ToEnd]];
    for (path, only, recorded) in [
        ("/recorded", &["recorded"][..], "GET 200 body 2 from [200] in 10, 10"),
        ("/recorded-late", &["recorded-late"], "GET 200 body 2 from [200] in 20, 10"),
        ("/jack", &["jack"], "GET 200 body 2 from [200] in 10, 10"),
    ] {
        Case {
            client: vec![Send(get(path).leak()), ToEnd],
            servers: thinks.clone(),
            recorded: vec![recorded],
            only,
            seeds: 1,
            ..case()
        }
        .run(path);
    }
    // So is the server's name, which is costly to find, if only a plugin uses it.
    let named = "GET /recorded?server HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    run("the server's name", vec![Send(named), ToEnd], server(OK), vec!["200 by 10.0.0.1"]);
    let held = "POST /recorded-held HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\
                Content-Type: application/x-www-form-urlencoded\r\n\r\nx=";
    Case {
        client: vec![Send(held), Wait(520), Send("y"), ToEnd],
        servers: thinks,
        recorded: vec!["POST 200 body 2 from [200] in 15, 10"],
        seeds: 1,
        ..case()
    }
    .run("a route with a condition on the body");
}

#[test]
fn the_time_of_an_attempt_begins_after_the_body_that_selects_the_route() {
    let ask = "POST /held HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\
               Content-Type: application/x-www-form-urlencoded\r\n\r\nx=";
    Case {
        client: vec![Send(ask), Wait(520), Send("y"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Wait(1020), Send(OK), ToEnd]],
        wants: vec!["\r\n\r\nok"],
        took: vec!["1.0"],
        seeds: 1,
        ..case()
    }
    .run("a route without plugins");
}

#[test]
fn a_watched_worker_counts_errors() {
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let watched = |answer: &'static str, watched| Case {
        client: vec![Send(ask("/a").leak()), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(answer), Close]],
        watched: Some(watched),
        seeds: 1,
        ..case()
    };
    watched(OK, (1, 0)).run("an answer");
    watched("HTTP/1.1 499 N\r\nContent-Length: 0\r\n\r\n", (1, 0)).run("a client's error");
    watched("HTTP/1.1 500 N\r\nContent-Length: 0\r\n\r\n", (1, 1)).run("a server's error");
    let broken = "HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\nab";
    let mut case = watched(broken, (1, 1));
    case.client = vec![Send(ask("/a").leak()), Until("ab"), ToEnd];
    case.servers = vec![vec![Until("\r\n\r\n"), Send(broken), Wait(500), Reset]];
    case.broken = true;
    case.run("an answer that breaks off");
}

/// The lines of the error log: status, request and route.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn failures_are_logged_but_unmatched_routes_are_not() {
    for (path, servers, expected) in [
        ("/none", vec![], &[][..]),
        ("/a", vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]], &[]),
        ("/a", vec![vec![Refuse]], &["502 GET /a of route 1"]),
        ("/a", vec![vec![Until("\r\n\r\n"), Send("nonsense\r\n\r\n"), ToEnd]], &["502 GET /a of route 1"]),
    ] {
        let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak() as &str;
        Case {
            client: vec![Send(ask), ToEnd],
            servers,
            settings: |settings| {
                settings.on_fault = Arc::new(|record| {
                    let line = format!("{} {} of route {}", record.status, record.request, record.route);
                    LOGGED.lock().unwrap().push(line);
                });
            },
            seeds: 1,
            ..case()
        }
        .run(path);
        assert_eq!(std::mem::take(&mut *LOGGED.lock().unwrap()), expected, "{path}");
    }
}
