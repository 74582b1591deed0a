//! The same exchanges with a client that speaks another protocol than HTTP/1.

use super::OK;
use super::support::{self, Case, Do::*, frame};

fn case() -> Case {
    support::frames()
}

#[test]
fn a_request_goes_through() {
    Case {
        client: vec![
            Frame(b'H', "GET\n/a?b=c\na\nend\nX-One: 1"),
            UntilFrame(b'E'),
            Frame(b'H', "GET\n/a\na\nend"),
            UntilFrame(b'E'),
            Close,
        ],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["200", "Content-Length: 2"],
        heard: vec!["GET /a?b=c HTTP/1.1\r\nHost: a\r\nX-One: 1\r\n", "GET /a HTTP/1.1\r\nHost: a\r\n"],
        ..case()
    }
    .run("two requests, one connection to the server");
    let twice = [frame(b'H', "GET\n/a\na\nend"), frame(b'H', "GET\n/b\na\nend")].concat();
    Case {
        client: vec![Send(twice.leak()), UntilFrame(b'E'), UntilFrame(b'E'), Close],
        servers: vec![vec![Until("GET /a "), Until("\r\n\r\n"), Send(OK), Until("GET /b "), Send(OK), ToEnd]],
        ..case()
    }
    .run("two at once");
}

#[test]
fn a_body_and_its_trailers_go_both_ways() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\nX-Check: 4\r\n\r\n";
    Case {
        client: vec![
            Frame(b'H', "POST\n/a\na\nopen"),
            Frame(b'D', "abc"),
            Frame(b'D', "de"),
            Frame(b'E', "X-Sum: 5"),
            UntilFrame(b'E'),
            Close,
        ],
        servers: vec![vec![Until("0\r\nX-Sum: 5\r\n\r\n"), Send(answer), ToEnd]],
        wants: vec![frame(b'E', "X-Check: 4\n")],
        heard: vec!["Transfer-Encoding: chunked\r\n"],
        ..case()
    }
    .run("open length");
    Case {
        client: vec![
            Frame(b'H', "POST\n/a\na\nopen\ncontent-length: 5"),
            Frame(b'D', "abcde"),
            Frame(b'E', ""),
            UntilFrame(b'E'),
            Close,
        ],
        servers: vec![vec![Until("\r\n\r\nabcde"), Send(OK), ToEnd]],
        heard: vec!["Content-Length: 5\r\n"],
        ..case()
    }
    .run("known length");
}

#[test]
fn errors_are_told_in_its_own_words() {
    Case {
        client: vec![Frame(b'H', "GET\n/nowhere\na\nend"), UntilFrame(b'E'), Close],
        wants: vec!["404", "{\"error_msg\":\"404 Route Not Found\"}\n"],
        lacks: vec!["HTTP/1.1"],
        silent: true,
        ..case()
    }
    .run("no route");
    Case {
        client: vec![Frame(b'H', "GET\n/a b\na\nend"), UntilFrame(b'E'), ToEnd],
        wants: vec!["400"],
        silent: true,
        ..case()
    }
    .run("a head that is refused");
    Case {
        client: vec![Frame(b'H', "GET\n/a\na\nend"), UntilFrame(b'R'), ToEnd],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"),
            Wait(500),
            Reset,
        ]],
        wants: vec!["200"],
        ..case()
    }
    .run("a response that broke off");
    Case {
        client: vec![Frame(b'H', "GET\n/a\na\nend"), UntilFrame(b'E'), Close],
        servers: vec![vec![Until("\r\n\r\n"), ToEnd]],
        wants: vec!["504"],
        ..case()
    }
    .run("a server that is silent");
}

#[test]
fn a_client_that_leaves_ends_the_exchange() {
    Case {
        client: vec![Frame(b'H', "GET\n/a\na\nend"), Wait(20), Reset],
        servers: vec![vec![Until("\r\n\r\n"), ToEnd]],
        ..case()
    }
    .run("reset");
}

#[test]
fn bodies_are_filtered_and_held_for_either_client() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Check: 4\r\n\r\n";
    let server = || vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd]];
    Case {
        client: vec![Frame(b'H', "GET\n/filtered\na\nend"), UntilFrame(b'E'), Close],
        servers: server(),
        wants: vec!["HELLO", frame(b'E', "X-Check: 4\n")],
        ..case()
    }
    .run("frames");
    Case {
        client: vec![Send("GET /filtered HTTP/1.1\r\nHost: a\r\n\r\n"), Until("X-Check: 4\r\n\r\n"), Close],
        servers: server(),
        wants: vec!["HELLO\r\n0\r\nX-Check: 4\r\n\r\n"],
        ..super::case()
    }
    .run("HTTP/1");
}
