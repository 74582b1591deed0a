//! HTTP/2 servers that break rules on one of two streams of a connection.

use super::case;
use crate::support::http2_server::*;
use crate::support::{Case, Do, Do::*};

fn asks(text: &'static str) -> Vec<Do> {
    vec![Send("GET /h2c-never HTTP/1.1\r\nHost: a\r\n\r\n"), Until("\r\n\r\n"), Until(text)]
}

fn answers(stream: u32, text: &str) -> Vec<Do> {
    vec![head(stream, false, ":status: 200"), data(stream, true, text)]
}

/// Runs two requests at once, on streams 3 and 5. The server sends `sent` when both are there; the first client gets
/// `wants`, and the other one `beside`.
fn both(about: &str, sent: Vec<Do>, wants: &'static str, beside: &'static str) {
    let last = Send("GET /h2c-never HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let server = [
        greets(),
        vec![UntilOn(1, HEADERS)],
        answers(1, "one"),
        vec![UntilOn(3, HEADERS), UntilOn(5, HEADERS)],
        sent,
        vec![ToEnd],
    ];
    Case {
        client: [asks("one"), vec![last, ToEnd]].concat(),
        beside: [vec![Wait(200)], asks(beside), vec![Close]].concat(),
        servers: vec![server.concat()],
        wants: vec![wants],
        seeds: 3,
        ..case()
    }
    .run(about);
}

#[test]
fn a_broken_rule_on_one_stream_leaves_the_other() {
    let hints = vec![head(3, false, ":status: 103\nlink: a"); 20];
    let broken_rule = "the upstream broke a rule of HTTP/2 on the stream of the response";
    let not_valid = "the upstream's response is not valid HTTP";
    for (about, broken, wants) in [
        ("a malformed status", vec![head(3, true, ":status: 20")], not_valid),
        ("a field of the connection", vec![head(3, true, ":status: 200\nconnection: a")], not_valid),
        ("a window that overflows", vec![widens(3, (1 << 31) - 1)], broken_rule),
        ("a body without a head", vec![data(3, true, "x")], broken_rule),
        ("twenty interim responses", hints, "too many interim responses"),
    ] {
        both(about, [broken, answers(5, "two")].concat(), wants, "two");
    }
    both(
        "unknown frames",
        [vec![unknown(3)], answers(5, "two"), answers(3, "three")].concat(),
        "three",
        "two",
    );
}

#[test]
fn a_pushed_response_ends_the_connection() {
    let why = "broke a rule of HTTP/2, which ended the connection and all requests on it (PROTOCOL_ERROR)";
    both("PUSH_PROMISE", [vec![pushes(3, 2)], answers(5, "two")].concat(), why, why);
}
