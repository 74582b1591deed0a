//! Requests that plugins make: which of a name's addresses are asked, and for how long.

use super::OK;
use super::support::{self, Case, Do::*};

/// forward-auth asks a host with four addresses, with a second each to connect, send and read.
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
fn the_next_address_is_asked_where_one_fails() {
    let mut case = case();
    case.client.extend([Until("200 OK"), Until("\r\n\r\nok"), Close]);
    case.servers = vec![is_silent(), vec![Refuse], answers(), answers()];
    case.heard = vec!["GET /auth HTTP/1.1\r\nHost: many\r\n", "GET /asks HTTP/1.1\r\n"];
    case.run("a silent server, one that refuses, and one that answers");
}

#[test]
fn one_deadline_holds_for_all_addresses() {
    let mut case = case();
    case.client.extend([Until("403 Forbidden"), Close]);
    case.servers = vec![is_silent(), is_silent(), is_silent(), answers(), answers()];
    case.unheard = vec!["GET /asks"];
    // The time of three is over with the third.
    case.maybe = true;
    case.run("three silent servers");
}
