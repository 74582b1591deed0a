//! A server's answer on its way to the client: what is waited for, what filters may do to it, and what is no answer.

use super::{GET, OK, case};
use crate::support::{Case, Do, Do::*};

fn run(about: &str, ask: &'static str, server: Vec<Do>, wants: Vec<&'static str>, lacks: Vec<&'static str>) {
    Case { client: vec![Send(ask), ToEnd], servers: vec![server], wants, lacks, seeds: 8, ..case() }
        .run(about);
}

#[test]
fn the_time_to_answer_begins_with_the_last_byte_of_the_request() {
    let slow = |answers: u64, status| {
        let head = "PUT /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab";
        Case {
            client: vec![Send(head), Wait(3000), Send("cd"), ToEnd],
            servers: vec![vec![Until("abcd"), Wait(answers), Send(OK), ToEnd]],
            wants: vec![status],
            seeds: 4,
            ..case()
        }
        .run(status);
    };
    slow(1500, "HTTP/1.1 200 ");
    slow(2500, "HTTP/1.1 504 ");
}

#[test]
fn nothing_is_waited_for_where_answers_are_not_gathered() {
    let part = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab";
    Case {
        client: vec![Send(GET), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(part), Wait(10), Close]],
        wants: vec!["HTTP/1.1 200 OK\r\n", "\r\n\r\nab"],
        broken: true,
        settings: |settings| settings.gathers = false,
        seeds: 1,
        ..case()
    }
    .run("it breaks off at once");
}

#[test]
fn so_many_interim_answers_are_taken() {
    for (count, wants) in [(16, "\r\n\r\nok"), (17, "too many interim")] {
        let answer = format!("{}{OK}", "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(count));
        let ask = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let server = vec![Until("\r\n\r\n"), Send(answer.leak()), ToEnd];
        run(&format!("{count} interim answers"), ask, server, vec![wants], vec![]);
    }
}

#[test]
fn an_answer_without_a_body_says_nothing_of_one() {
    let none = "HTTP/1.1 204 No Content\r\n\r\n";
    Case {
        client: vec![Send(GET), Until("\r\n\r\n"), Send(GET), Until("\r\n\r\nok"), Close],
        servers: vec![vec![Until("\r\n\r\n"), Send(none), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 204 "],
        lacks: vec!["Content-Length: 0", "chunked"],
        seeds: 8,
        ..case()
    }
    .run("204");
    // Clients differ on whether this one needs saying (RFC 9110 section 15.3.6).
    let reset = "HTTP/1.1 205 Reset Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    Case {
        client: vec![Send(GET), Until("\r\n\r\n"), Send(GET), Until("\r\n\r\nok"), Close],
        servers: vec![vec![Until("\r\n\r\n"), Send(reset), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 205 ", "Content-Length: 0\r\n"],
        lacks: vec!["chunked"],
        seeds: 8,
        ..case()
    }
    .run("205");
}

#[test]
fn another_protocol_is_spoken_only_where_it_was_asked_for() {
    let agree = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let other = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
    let plain = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n";
    let close = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (about, ask, answer) in [
        ("it was not", close, agree),
        ("another one was", ask, other),
        ("the connection is not said to change", ask, plain),
    ] {
        let server = vec![Until("\r\n\r\n"), Send(answer), ToEnd];
        run(about, ask, server, vec!["HTTP/1.1 502 "], vec!["HTTP/1.1 101 "]);
    }
    // With a body, which could be taken for the tunnel's first bytes, none is asked for.
    let body = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\
                Content-Length: 2\r\n\r\nab";
    Case {
        client: vec![Send(body), ToEnd],
        servers: vec![vec![Until("ab"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 200 "],
        unheard: vec!["Upgrade"],
        seeds: 4,
        ..case()
    }
    .run("a body");
    let other = ask.replace("websocket", "h2c").leak() as &str;
    Case {
        client: vec![Send(other), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 200 "],
        unheard: vec!["Upgrade"],
        seeds: 4,
        ..case()
    }
    .run("another protocol is asked for");
}

#[test]
fn a_tunnel_lives_while_something_is_said_and_ends_when_nothing_is() {
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let agree = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut client = vec![Send(ask), Until("\r\n\r\n")];
    let mut server = vec![Until("\r\n\r\n"), Send(agree)];
    for _ in 0..3 {
        // Either says something in time.
        client.extend([Wait(1500), Send("up"), Until("down")]);
        server.extend([Until("up"), Wait(1500), Send("down")]);
    }
    client.push(ToEnd);
    server.push(ToEnd);
    Case { client, servers: vec![server], seeds: 4, ..case() }.run("2 s of silence are the end");
}

#[test]
fn filters_keep_what_was_announced() {
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhelloworld";
    let down = "GET /filters?down HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let short = "GET /filters?short HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let server = || vec![Until("\r\n\r\n"), Send(whole), ToEnd];
    run(
        "as long as it was",
        down,
        server(),
        vec!["Content-Length: 10\r\n", "\r\n\r\nHELLOWORLD"],
        vec!["chunked"],
    );
    Case {
        client: vec![Send(short), ToEnd],
        servers: vec![server()],
        wants: vec!["HTTP/1.1 500 "],
        once: "HTTP/1.1 ",
        seeds: 1,
        ..case()
    }
    .run("shorter than was announced");
    let chunks = |pause| {
        let begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        vec![Until("\r\n\r\n"), Send(begin), Wait(pause), Send("5\r\nworld\r\n0\r\n\r\n"), ToEnd]
    };
    let wants = vec!["5\r\nHELLO\r\n5\r\nWORLD\r\n0\r\n\r\n"];
    Case { client: vec![Send(down), ToEnd], servers: vec![chunks(100)], wants, seeds: 1, ..case() }
        .run("in pieces");
    for begin in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        Case {
            client: vec![Send(down), Until("HTTP/1.1 200 OK\r\n"), Until("\r\n\r\n"), Close],
            servers: vec![vec![Until("\r\n\r\n"), Send(begin), ToEnd]],
            seeds: 4,
            ..case()
        }
        .run("what is there goes out at once");
    }
}

#[test]
fn a_filter_s_own_answer_takes_the_place_of_one_of_which_nothing_is_out() {
    let ask = "GET /filters?instead HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!";
    let once = "HTTP/1.1 418 ";
    let server = vec![Until("\r\n\r\n"), Send(whole), ToEnd];
    let wants = vec!["\r\n\r\nNO!"];
    Case { client: vec![Send(ask), ToEnd], servers: vec![server], wants, once, seeds: 1, ..case() }
        .run("a server's");
    let late = vec![
        Until("\r\n\r\n"),
        Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        Wait(200),
        Send("6\r\nworld!\r\n0\r\n\r\n"),
        ToEnd,
    ];
    Case {
        client: vec![Send(ask), Until("HELLO"), ToEnd],
        servers: vec![late],
        lacks: vec!["418", "WORLD"],
        broken: true,
        seeds: 1,
        ..case()
    }
    .run("too late");
    // It goes through the filters as well, but is not replaced again.
    let own = "GET /filters-abort?instead HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    Case {
        client: vec![Send(own), ToEnd],
        wants: vec!["\r\n\r\nNO!"],
        once,
        silent: true,
        seeds: 2,
        ..case()
    }
    .run("the gateway's");
}

#[test]
fn a_body_that_a_plugin_makes_of_none_has_its_place() {
    Case {
        client: vec![
            Send("GET /filled?fill HTTP/1.1\r\nHost: a\r\n\r\n"),
            Until("\r\n2\r\nhi\r\n0\r\n\r\n"),
            Close,
        ],
        servers: vec![vec![Until("\r\n\r\n"), Send("HTTP/1.1 204 No Content\r\n\r\n"), ToEnd]],
        wants: vec!["HTTP/1.1 200 OK\r\n"],
        seeds: 4,
        ..case()
    }
    .run("an answer without a body");
}

#[test]
fn a_tunnel_that_is_to_end_does_so_behind_the_frame_that_is_under_way() {
    const CLOSE: u8 = 0x88;
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
               Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";
    Case {
        client: vec![
            Send(ask),
            Until("HTTP/1.1 101 "),
            Until("\r\n\r\n"),
            Bytes(&[0x81, 0x85, 0, 0, 0, 0, b'h']),
            Wait(50),
            EndTunnels,
            Send("el"),
            Wait(50),
            Send("lo"),
            Count(CLOSE, 1),
            Bytes(&[CLOSE, 0x80, 0, 0, 0, 0]),
            ToEnd,
        ],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Agree("\r\n"),
            Until("hello"),
            Count(CLOSE, 1),
            Bytes(&[CLOSE, 0]),
            ToEnd,
        ]],
        ..case()
    }
    .run("a text in three pieces");
}
