//! Subrequests of plugins: which of a name's addresses they go to, and their deadlines.

use super::OK;
use crate::support::{self, Case, Do::*};

/// A case with forward-auth to a host of four addresses, with a second each to connect, send and read.
fn case() -> Case {
    Case { client: vec![Send("GET /asks HTTP/1.1\r\nHost: a\r\n\r\n")], ..support::http() }
}

fn answers() -> Vec<support::Do> {
    vec![Until("\r\n\r\n"), Send(OK), ToEnd]
}

fn is_silent() -> Vec<support::Do> {
    vec![Until("\r\n\r\n"), ToEnd]
}

#[test]
fn the_next_address_is_tried_if_one_fails() {
    let mut case = case();
    case.client.extend([Until("200 OK"), Until("\r\n\r\nok"), Close]);
    case.servers = vec![is_silent(), vec![Refuse], answers(), answers()];
    case.heard = vec!["GET /auth HTTP/1.1\r\nHost: many\r\n", "GET /asks HTTP/1.1\r\n"];
    case.run("a silent server, one that refuses, and one that answers");
}

#[test]
fn the_next_address_is_tried_for_post_as_well() {
    let ask = vec![Send("POST /asks-post HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")];
    let mut case = Case { client: ask, ..support::http() };
    case.client.extend([Until("\r\n\r\nok"), Close]);
    case.servers = vec![is_silent(), answers(), answers()];
    case.heard = vec!["POST /auth HTTP/1.1\r\n", "POST /asks-post HTTP/1.1\r\n"];
    case.run("a silent server, and one that answers");
}

#[test]
fn all_addresses_share_a_deadline() {
    let mut case = case();
    case.client.extend([Until("403 Forbidden"), Close]);
    case.servers = vec![is_silent(), is_silent(), is_silent(), answers(), answers()];
    case.unheard = vec!["GET /asks"];
    // The time of three is over with the third.
    case.maybe = true;
    case.run("three silent servers");
}

#[test]
fn subrequests_have_the_plugin_s_fields_and_keep_their_connection() {
    let mut case = case();
    case.client.extend([Until("\r\n\r\nok")]);
    case.client.extend([Send("GET /asks HTTP/1.1\r\nHost: a\r\n\r\n"), Until("\r\n\r\nok"), Close]);
    let twice = || vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd];
    case.servers = vec![twice(), twice()];
    case.heard = vec!["GET /auth HTTP/1.1\r\nHost: many\r\n", "X-Forwarded-Uri: /asks\r\n"];
    case.unheard = vec!["Content-Length", "Connection: close"];
    case.run("two requests, a connection to each server");
    let mut case = self::case();
    case.client = vec![Send("GET /asks-post HTTP/1.1\r\nHost: a\r\n\r\n"), Until("\r\n\r\nok"), Close];
    case.servers = vec![answers(), answers()];
    case.heard = vec!["POST /auth HTTP/1.1\r\n", "Content-Length: 0\r\n"];
    case.run("one that may have a body and has none");
}

#[test]
fn invalid_responses_to_subrequests_are_failures() {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n\
                  HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (about, answer) in [
        ("an unasked 101", switch),
        ("a head that breaks off", "HTTP/1.1 200 OK\r\nConte"),
        ("a body that breaks off", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"),
    ] {
        let mut case = case();
        case.client.extend([Until("HTTP/1.1 403 "), Close]);
        case.servers = vec![vec![Until("\r\n\r\n"), Send(answer), Close], answers(), answers()];
        case.unheard = vec!["GET /asks"];
        case.maybe = true;
        case.run(about);
    }
}

#[test]
fn responses_to_subrequests_have_a_limit() {
    const MOST: usize = 1 << 20;
    let answers_with = |length: usize| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").leak() as &str;
        vec![Until("\r\n\r\n"), Send(head), Many(b'x', length), ToEnd]
    };
    let mut case = Case { seeds: 2, ..case() };
    case.client.extend([Until("200 OK"), Until("\r\n\r\nok"), Close]);
    case.servers = vec![answers_with(MOST), answers()];
    case.run("as long as it may be");
    let mut case = Case { seeds: 2, ..self::case() };
    case.client.extend([Until("HTTP/1.1 403 "), Close]);
    case.servers = vec![answers_with(MOST + 70_001)];
    case.unheard = vec!["GET /asks"];
    case.run("longer");
}
