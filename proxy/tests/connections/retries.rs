//! Retries: which failures of a server lead to another one, and the response if no other server is left.

use std::time::Duration;

use super::OK;
use super::case;
use crate::support::{Case, Do, Do::*};

const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy";
const WRONG: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nwrong";
const OTHER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother";

fn answers(answer: &'static str) -> Vec<Do> {
    vec![Until("\r\n\r\n"), Send(answer), ToEnd]
}

fn refuses() -> Vec<Do> {
    vec![Refuse]
}

fn closes() -> Vec<Do> {
    vec![Until("\r\n\r\n"), Close]
}

fn is_silent() -> Vec<Do> {
    vec![Until("\r\n\r\n"), ToEnd]
}

/// Checks that a request goes to each of these servers, in this order, and that the client gets one response.
/// The error of a connection for which no descriptor is left.
const NONE_LEFT: i32 = 24;

fn run(request: &str, servers: Vec<Vec<Do>>, answer: &'static str) {
    let body = if request.starts_with("GET") { "\r\n" } else { "Content-Length: 2\r\n\r\nab" };
    let sent = format!("{request} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}").leak() as &str;
    let about = format!("{request} and {servers:?}");
    let wants = vec![answer];
    // With a body in pieces, a part may have been sent when a server fails.
    let seeds = if request.starts_with("GET") { 4 } else { 1 };
    Case { client: vec![Send(sent), ToEnd], servers, wants, once: "HTTP/1.1 ", seeds, ..case() }.run(&about);
}

#[test]
fn the_number_of_retries_is_configured() {
    for fails in [refuses, closes, is_silent] {
        run("GET /next", vec![fails(), answers(OK)], "\r\n\r\nok");
    }
    for (fails, status) in
        [(refuses as fn() -> _, "HTTP/1.1 502 "), (closes, "HTTP/1.1 502 "), (is_silent, "HTTP/1.1 504 ")]
    {
        run("GET /never", vec![fails()], status);
        run("GET /next", vec![fails(), fails()], status);
        // With more retries than servers, the status is 502 in all cases.
        run("GET /five", vec![fails(), fails()], "HTTP/1.1 502 ");
    }
    run("GET /limited", vec![closes()], "HTTP/1.1 502 ");
    run("GET /limited", vec![is_silent()], "HTTP/1.1 504 ");
}

#[test]
fn requests_that_may_have_been_processed_are_not_retried() {
    run("POST /next", vec![refuses(), answers(OK)], "\r\n\r\nok");
    run("POST /next", vec![closes()], "HTTP/1.1 502 ");
    run("POST /next", vec![is_silent()], "HTTP/1.1 504 ");
    for fails in [refuses, closes, is_silent] {
        run("POST /any", vec![fails(), vec![Until("ab"), Send(OK), ToEnd]], "\r\n\r\nok");
    }
}

#[test]
fn a_body_that_is_no_longer_buffered_is_not_sent_again() {
    let begin = "PUT /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab";
    Case {
        client: vec![Send(begin), Wait(200), Send("cd"), ToEnd],
        servers: vec![vec![Until("abcd"), Close], answers(OK)],
        once: "HTTP/1.1 502 ",
        maybe: true,
        seeds: 4,
        ..case()
    }
    .run("a part of it");
    let whole = "PUT /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab";
    Case {
        client: vec![Send(whole), ToEnd],
        servers: vec![vec![Until("ab"), Close], vec![Until("ab"), Send(OK), ToEnd]],
        once: "HTTP/1.1 200 ",
        // In pieces, a part of it might no longer be buffered.
        seeds: 1,
        ..case()
    }
    .run("all of it is still buffered");
}

#[test]
fn retries_end_with_retry_timeout() {
    run("GET /brief", vec![is_silent()], "HTTP/1.1 502 ");
    run("GET /brief", vec![closes(), answers(OK)], "\r\n\r\nok");
    // If the time is over, the client gets the response that would have been retried.
    run("GET /status-brief", vec![answers(BUSY), answers(OK)], "\r\n\r\nok");
    let late = vec![Until("\r\n\r\n"), Wait(1500), Send(BUSY), ToEnd];
    run("GET /status-brief", vec![late], "\r\n\r\nbusy");
}

#[test]
fn configured_statuses_are_retried() {
    run("GET /status", vec![answers(BUSY), answers(OK)], "\r\n\r\nok");
    run("GET /status", vec![answers(BUSY), answers(BUSY)], "\r\n\r\nbusy");
    run("GET /status", vec![closes(), answers(BUSY)], "\r\n\r\nbusy");
    run("GET /status", vec![answers(WRONG)], "\r\n\r\nwrong");
    run("GET /next", vec![answers(BUSY)], "\r\n\r\nbusy");
    run("GET /status-never", vec![answers(BUSY)], "\r\n\r\nbusy");
    run("GET /status-connect", vec![answers(BUSY), answers(OK)], "\r\n\r\nok");
    run("GET /limited-status", vec![answers(BUSY)], "\r\n\r\nbusy");
    // The retry budget is empty.
    run("GET /status-poor", vec![answers(BUSY)], "\r\n\r\nbusy");
    run("POST /status", vec![answers(BUSY)], "\r\n\r\nbusy");
    run("POST /any", vec![answers(BUSY), answers(OK)], "\r\n\r\nok");
}

#[test]
fn only_configured_failures_are_retried() {
    let kinds = [
        ("/connect", refuses as fn() -> _, "HTTP/1.1 502 "),
        ("/closed", closes, "HTTP/1.1 502 "),
        ("/timeout", is_silent, "HTTP/1.1 504 "),
    ];
    for (path, ..) in kinds {
        for (own, fails, status) in kinds {
            let request = format!("GET {path}");
            match path == own {
                true => run(&request, vec![fails(), answers(OK)], "\r\n\r\nok"),
                false => run(&request, vec![fails()], status),
            }
        }
    }
}

#[test]
fn an_attempt_has_a_timeout_of_its_own() {
    let after = |ms| vec![Until("\r\n\r\n"), Wait(ms), Send(OK), ToEnd];
    run("GET /per-try", vec![after(200)], "\r\n\r\nok");
    run("GET /per-try", vec![after(1000), answers(OTHER)], "\r\n\r\nother");
    run("GET /next", vec![after(1000)], "\r\n\r\nok");
    let drips = [Wait(400), Send("X-A: b\r\n"), Wait(400), Send("X-B: b\r\n"), Wait(400)].into_iter();
    let begin = [Until("\r\n\r\n"), Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n")].into_iter();
    let slow: Vec<_> = begin.chain(drips).chain([Send("\r\nok"), ToEnd]).collect();
    run("GET /per-try", vec![slow.clone(), answers(OTHER)], "\r\n\r\nother");
    run("GET /next", vec![slow], "\r\n\r\nok");
    // Waiting for a descriptor takes time from the attempt: none is left for a response after 450 ms.
    let waits = vec![vec![Fail(NONE_LEFT)]; 4];
    run("GET /per-try", [waits, vec![after(450), answers(OTHER)]].concat(), "\r\n\r\nother");
}

#[test]
fn a_short_response_that_breaks_off_becomes_502() {
    let part = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab";
    run("GET /never", vec![vec![Until("\r\n\r\n"), Send(part), Close]], "HTTP/1.1 502 ");
    let late = vec![Until("\r\n\r\n"), Send(part), Wait(1000), Send("cd"), ToEnd];
    run("GET /never", vec![late], "\r\n\r\nabcd");
    // The gateway does not wait for the end of the response for long.
    let later = vec![Until("\r\n\r\n"), Send(part), Wait(1000), Close];
    let (client, wants) = (vec![Send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n"), ToEnd], vec!["\r\n\r\nab"]);
    Case { client, servers: vec![later], wants, broken: true, once: "HTTP/1.1 200 ", seeds: 4, ..case() }
        .run("a late end");
}

#[test]
fn connections_to_the_second_address_are_reused() {
    let head = "\r\n\r\n";
    Case {
        client: vec![
            Send("GET /both HTTP/1.1\r\nHost: a\r\n\r\n"),
            Until("\r\n\r\nok"),
            Send("GET /both HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"),
            ToEnd,
        ],
        servers: vec![refuses(), vec![Until(head), Send(OK), Until("Host: b"), Until(head), Send(OK), ToEnd]],
        wants: vec!["\r\n\r\nok"],
        seeds: 4,
        ..case()
    }
    .run("the first address takes no connections");
}

fn run_sticky(
    about: &str,
    cookie: &str,
    servers: Vec<Vec<Do>>,
    wants: Vec<&'static str>,
    lacks: Vec<&'static str>,
) {
    let ask = format!("GET /sticky HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{cookie}\r\n").leak() as &str;
    let once = "HTTP/1.1 200 ";
    Case { client: vec![Send(ask), ToEnd], servers, wants, lacks, once, seeds: 4, ..case() }.run(about);
}

#[test]
fn a_cookie_leads_back_to_a_server() {
    // The digests of `sticky 10.0.0.1:80` and `sticky 10.0.0.2:80`.
    let first = "Set-Cookie: s=3066c6d90a570596adc6711b436c87c4;";
    let second = "Set-Cookie: s=77eaebdcf1221bec8702644582ccef3e;";
    run_sticky("no cookie", "", vec![answers(OK)], vec![first], vec![]);
    run_sticky("an unknown cookie", "Cookie: s=0123\r\n", vec![answers(OK)], vec![first], vec![]);
    for set in [first, second] {
        let cookie = set.replace("Set-", "").replace(';', "\r\n");
        run_sticky("the server that was asked first", &cookie, vec![answers(OK)], vec![], vec!["Set-Cookie"]);
    }
    let cookie = first.replace("Set-", "").replace(';', "\r\n");
    run_sticky("it has gone", &cookie, vec![refuses(), answers(OK)], vec![second], vec![]);
    let cookie = second.replace("Set-", "").replace(';', "\r\n");
    run_sticky("the second has gone", &cookie, vec![refuses(), answers(OK)], vec![first], vec![]);
}

#[test]
fn connecting_is_tried_again_while_there_is_no_descriptor_for_it() {
    let fails = |times| vec![vec![Fail(NONE_LEFT)]; times];
    run("GET /never", [fails(4), vec![answers(OK)]].concat(), "\r\n\r\nok");
    // There are five tries at most; the sixth would succeed.
    let client = vec![Send("GET /never HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), ToEnd];
    let servers = [fails(5), vec![answers(OK)]].concat();
    let wants = vec!["HTTP/1.1 502 ", "no file descriptor is left"];
    Case { client, servers, wants, once: "HTTP/1.1 ", maybe: true, seeds: 2, ..case() }.run("five times");
}

#[test]
fn connect_failures_have_their_reason() {
    let none = |script: Vec<Do>, status, why| {
        let client = vec![Send("GET /never HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), ToEnd];
        let about = format!("{script:?}");
        Case { client, servers: vec![script], wants: vec![status, why], seeds: 2, ..case() }.run(&about);
    };
    const UNREACHABLE: i32 = 113;
    const TIMED_OUT: i32 = 110;
    none(refuses(), "HTTP/1.1 502 ", "the upstream refused the connection");
    none(vec![Fail(UNREACHABLE)], "HTTP/1.1 502 ", "the upstream could not be reached");
    none(vec![Fail(TIMED_OUT)], "HTTP/1.1 504 ", "connecting to the upstream timed out");
}

#[test]
fn requests_wait_for_a_connection_up_to_the_connect_timeout() {
    let ask = "GET /crowded HTTP/1.1\r\nHost: a\r\n\r\n";
    let taken = |ms| vec![Until("\r\n\r\n"), Wait(ms), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd];
    let beside = || vec![Send(ask), Until("\r\n\r\nok"), Wait(3000), Close];
    Case {
        beside: beside(),
        client: vec![Wait(10), Send(ask), Until("\r\n\r\nok"), Close],
        servers: vec![taken(300)],
        seeds: 4,
        ..case()
    }
    .run("another request uses it for a while");
    Case {
        beside: beside(),
        client: vec![
            Wait(10),
            Send(ask),
            Until("HTTP/1.1 503 "),
            Wait(1000),
            Send(ask),
            Until("\r\n\r\nok"),
            Close,
        ],
        servers: vec![taken(1500)],
        seeds: 4,
        ..case()
    }
    .run("another request uses it for too long");
}

#[test]
fn a_server_that_read_nothing_has_not_got_the_request() {
    run("POST /next", vec![vec![Gone], vec![Until("ab"), Send(OK), ToEnd]], "\r\n\r\nok");
    // A server that read a part may have processed it.
    let head = "POST /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n";
    Case {
        client: vec![Send(head), Many(b'x', 200_000), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Close], answers(OK)],
        once: "HTTP/1.1 502 ",
        maybe: true,
        settings: |settings| settings.limits.linger_bytes = 1 << 20,
        seeds: 1,
        ..case()
    }
    .run("a part of a long body");
}

#[test]
fn servers_with_fewer_or_faster_requests_are_preferred() {
    let ask = |path: &str| Send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").leak());
    let answer = |text: &str| Send(format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{text}").leak());
    let thinks = |ms, text: &str| vec![Until("\r\n\r\n"), Wait(ms), answer(text)];
    let end = || vec![ToEnd];
    let asks = |path: &str, wants| vec![ask(path), Until("\r\n\r\n"), Until(wants)];
    let line = "GET 200 body 3 from [200] in 0, 0";
    Case {
        beside: [asks("/least", "one"), vec![Close]].concat(),
        client: [
            vec![Wait(10)],
            asks("/least", "two"),
            asks("/least", "two"),
            asks("/least", "two"),
            vec![Close],
        ]
        .concat(),
        servers: vec![
            [thinks(1500, "one"), end()].concat(),
            [thinks(0, "two"), thinks(0, "two"), thinks(0, "two"), end()].concat(),
        ],
        recorded: vec![line, line, line, "GET 200 body 3 from [200] in 15, 15"],
        seeds: 4,
        ..case()
    }
    .run("one of two is busy");
    let slow = "GET 200 body 3 from [200] in 5, 5";
    let quick = "GET 200 body 3 from [200] in 1, 1";
    Case {
        // An EWMA sample weighs more the longer ago the previous one was.
        client: [
            vec![Wait(20_000)],
            asks("/faster", "one"),
            asks("/faster", "two"),
            asks("/faster", "two"),
            vec![Wait(5000)],
            asks("/faster", "one"),
            asks("/faster", "one"),
            vec![Close],
        ]
        .concat(),
        servers: vec![
            [thinks(500, "one"), thinks(0, "one"), thinks(0, "one"), end()].concat(),
            [thinks(100, "two"), thinks(100, "two"), vec![Until("\r\n\r\n"), Close]].concat(),
        ],
        recorded: vec![slow, quick, quick, "GET 200 body 3 from [502, 502, 200] in 0, 0", line],
        seeds: 4,
        settings: |settings| {
            (settings.timeouts.header, settings.timeouts.keepalive) =
                (Duration::from_secs(60), Duration::from_secs(60));
        },
        ..case()
    }
    .run("one of two is faster, until it fails");
}

#[test]
fn upstream_addr_is_the_address_that_accepted_the_connection() {
    Case {
        client: vec![Send("GET /both-address HTTP/1.1\r\nHost: a\r\n\r\n"), Until("\r\n\r\nok"), Close],
        servers: vec![refuses(), vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["X-Server: [fd00::1]:80\r\n"],
        seeds: 4,
        ..case()
    }
    .run("the first address takes no connections");
}

#[test]
fn after_a_dead_idle_connection_a_new_one_is_opened() {
    let head = "\r\n\r\n";
    let once = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
    let goes = || vec![Until(head), Wait(200), Send(OK), Until(head), Close];
    let twice = |pause| {
        let ok = "\r\n\r\nok";
        vec![Send(super::GET), Until(ok), Wait(pause), Send(super::GET), Until(ok), Close]
    };
    let fresh = || vec![Until(head), Send(once), Close];
    Case {
        client: twice(1000),
        beside: twice(2000),
        servers: vec![goes(), goes(), fresh(), fresh()],
        lacks: vec!["HTTP/1.1 5"],
        ..case()
    }
    .run("two idle connections, both gone");
}

#[test]
fn backoff_delays_the_next_attempt() {
    Case {
        client: vec![
            Send("GET /paused HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
            Wait(5000),
            Served(1),
            Close,
        ],
        servers: vec![refuses()],
        seeds: 2,
        // Fixes the random part of the day-long pause.
        settings: |_| fastrand::seed(1),
        ..case()
    }
    .run("a pause of hours, of which five seconds pass");
}

#[test]
fn without_a_permit_after_backoff_the_client_gets_the_previous_failure() {
    let slowly = (0..50).flat_map(|_| [Wait(1500), Send("x")]);
    let begins = [Until("\r\n\r\n"), Send("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n")];
    let ask = "GET /one-place HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    Case {
        client: vec![Send(ask), ToEnd],
        beside: vec![Wait(10), Send(ask), ToEnd],
        servers: vec![refuses(), begins.into_iter().chain(slowly).chain([ToEnd]).collect()],
        wants: vec!["HTTP/1.1 502 "],
        seeds: 1,
        // Fixes the random pause, up to a minute, to be longer than the wait of the other client.
        settings: |_| fastrand::seed(1),
        ..case()
    }
    .run("the other request takes longer than the longest pause");
}

#[test]
fn the_access_log_has_the_time_of_each_attempt() {
    let after = |ms, last: &[Do]| [&[Until("\r\n\r\n"), Wait(ms)], last].concat();
    let ask = "GET /thrice HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    Case {
        client: vec![Wait(1000), Send(ask), ToEnd],
        servers: vec![after(520, &[Close]), after(220, &[Close]), after(320, &[Send(OK), ToEnd])],
        wants: vec!["\r\n\r\nok"],
        took: vec!["0.5, 0.2, 0.3"],
        seeds: 1,
        ..case()
    }
    .run("two that fail, and one");
}

#[test]
fn the_time_of_a_discarded_response_counts_for_its_server() {
    let busy = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n";
    let after = |ms, answer| vec![Until("\r\n\r\n"), Wait(ms), Send(answer), ToEnd];
    Case {
        client: vec![Send("GET /outlier HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), ToEnd],
        servers: vec![after(720, busy), after(320, OK)],
        wants: vec!["\r\n\r\nok"],
        tallies: vec![(1, 0, 7), (1, 0, 3)],
        only: &["outlier"],
        seeds: 1,
        ..case()
    }
    .run("a busy server, then another");
}

#[test]
fn requests_that_must_not_be_sent_twice_avoid_connections_that_may_be_dead() {
    // The server still reads, but sends nothing more.
    let goes = || vec![Until("\r\n\r\n"), Send(OK), Wait(50), ShutDown, ToEnd];
    for ask in
        ["GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"]
    {
        let ok = "\r\n\r\nok";
        Case {
            client: vec![Send(super::GET), Until(ok), Wait(100), Send(ask), Until(ok), Close],
            servers: vec![goes(), answers(OK)],
            lacks: vec!["HTTP/1.1 5"],
            late: true,
            seeds: 4,
            ..case()
        }
        .run(ask);
    }
}
