//! Requests that the control side answers on the data port.

use std::future::ready;
use std::sync::{Arc, Mutex};

use proxy::{Admission, Handoff, HandoffFuture, HandoffReply, HandoffRequest};

use super::case;
use crate::support::{Case, Do::*};

/// Takes `/control/`, and tells what it was given. Strangers, who say so, are refused by their head.
struct Control;

impl Handoff for Control {
    fn takes(&self, path: &[u8]) -> bool {
        path.starts_with(b"/control/")
    }

    fn max_body(&self) -> usize {
        5
    }

    fn admit(&self, head: HandoffRequest) -> HandoffFuture<Admission> {
        let said = |name: &str| head.headers.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
        let admission = match (said("stopped"), said("stranger")) {
            (true, _) => None,
            (_, true) => Some(Admission::Refused(reply(401, "who are you?".to_owned()))),
            _ => Some(Admission::Granted(head)),
        };
        Box::pin(ready(admission))
    }

    fn call(&self, request: HandoffRequest) -> HandoffFuture<HandoffReply> {
        let body = String::from_utf8_lossy(&request.body);
        let text = format!("{} {} [{body}] of {}", request.method, request.target, request.peer);
        Box::pin(ready(Some(reply(200, text))))
    }
}

fn reply(status: u16, body: String) -> HandoffReply {
    let headers = vec![("X-Control".to_owned(), b"yes".to_vec()), ("Bad Name".to_owned(), b"no".to_vec())];
    HandoffReply { status, headers, body: body.into() }
}

fn run(ask: &'static str, wants: Vec<&'static str>, lacks: &'static str) {
    Case {
        client: vec![Send(ask), ToEnd],
        wants,
        lacks: vec![lacks],
        silent: true,
        settings: |settings| settings.handoff = Some(Arc::new(Control)),
        seeds: 4,
        ..case()
    }
    .run(ask);
}

#[test]
fn the_control_side_gets_whole_requests_of_those_it_lets_in() {
    run(
        "PUT /control/%61?b=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        vec!["HTTP/1.1 200 ", "X-Control: yes\r\n", "PUT /control/%61?b=1 [hello] of 127.0.0.1"],
        "Bad Name",
    );
    run(
        "PUT /control/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 6\r\n\r\nhello!",
        vec!["HTTP/1.1 413 "],
        "PUT",
    );
    // It need not send its body.
    run(
        "PUT /control/a HTTP/1.1\r\nHost: a\r\nStranger: yes\r\nConnection: close\r\nContent-Length: 5\r\n\r\n",
        vec!["HTTP/1.1 401 ", "who are you?"],
        "PUT",
    );
    run(
        "GET /control/a HTTP/1.1\r\nHost: a\r\nStopped: yes\r\nConnection: close\r\n\r\n",
        vec!["HTTP/1.1 503 "],
        "GET",
    );
    run("GET /other HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", vec!["HTTP/1.1 404 "], "X-Control");
}

#[test]
fn paths_that_servers_read_in_two_ways_do_not_reach_the_control_side() {
    run(
        "GET /control/a%5Cb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        vec!["HTTP/1.1 400 "],
        "X-Control",
    );
}

#[test]
fn a_plugin_s_own_requests_do_not_reach_the_control_side() {
    run(
        "POST /batch HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 38\r\n\r\n\
         {\"pipeline\": [{\"path\": \"/control/a\"}]}",
        vec!["HTTP/1.1 200 ", "\"status\":404"],
        "X-Control",
    );
}

/// The settings whose bounds were exceeded.
static LIMITS: Mutex<Vec<Option<(&str, u64)>>> = Mutex::new(Vec::new());

#[test]
fn the_log_names_the_bound_that_a_body_exceeds() {
    for (path, length, limit) in [
        ("/a", 11, Some(("nginx_config.http.client_max_body_size", 10))),
        ("/held", 8, Some(("nginx_config.http.held_bodies", 7))),
        // No setting: the Admin API has a bound of its own.
        ("/control/a", 6, None),
    ] {
        let form = "Content-Type: application/x-www-form-urlencoded\r\nConnection: close";
        let body = "x".repeat(length);
        let ask =
            format!("POST {path} HTTP/1.1\r\nHost: a\r\n{form}\r\nContent-Length: {length}\r\n\r\n{body}");
        Case {
            client: vec![Send(ask.leak()), ToEnd],
            wants: vec!["HTTP/1.1 413 "],
            silent: true,
            settings: |settings| {
                (settings.limits.body, settings.budgets.held_bodies) = (10, 7);
                settings.handoff = Some(Arc::new(Control));
                settings.on_fault = Arc::new(|record| LIMITS.lock().unwrap().push(record.limit));
            },
            seeds: 1,
            ..case()
        }
        .run(path);
        assert_eq!(std::mem::take(&mut *LIMITS.lock().unwrap()), [limit], "{path}");
    }
}
