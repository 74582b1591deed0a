//! Whole exchanges over connections in memory, with scripts of the bytes on both sides, under many
//! schedules of short reads, short writes and pauses.

mod answers;
mod datagrams;
mod fetches;
mod handoff;
mod heads;
mod hostile_http2;
mod http2;
mod http2_ends;
mod limits;
mod recorded;
mod retries;
mod streams;
mod tls;
mod to_http2;
mod uploads;

use std::time::Duration;

use crate::support::{self, Case, Do, Do::*};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

fn case() -> Case {
    support::http()
}

#[test]
fn requests_arrive_whole_in_any_pieces() {
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Send(GET), Until("\r\n\r\nok"), Close],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 200 OK\r\n", "Content-Length: 2\r\n"],
        lacks: vec!["Connection: close"],
        heard: vec!["GET /a HTTP/1.1\r\nHost: a\r\nX-Real-IP: 127.0.0.1\r\n"],
        ..case()
    }
    .run("one connection to the server carries both");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let three = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\
                 abcGET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = |body| format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{body}").leak() as &str;
    Case {
        client: vec![Send(three), ToEnd],
        servers: vec![vec![
            Until("GET /1 "),
            Until("\r\n\r\n"),
            Send(answer("one")),
            Until("POST /2 "),
            Until("\r\n\r\nabc"),
            Send(answer("two")),
            Until("GET /3 "),
            Until("\r\n\r\n"),
            Send(answer("six")),
            ToEnd,
        ]],
        wants: vec!["\r\n\r\none", "\r\n\r\ntwo", "\r\n\r\nsix"],
        ..case()
    }
    .run("pipelining");
}

#[test]
fn a_client_that_closes_within_a_head_does_not_reach_a_server() {
    Case { client: vec![Send("GET /a HTTP/1.1\r\nHo"), Close], silent: true, ..case() }.run("closed");
    Case { client: vec![Send("GET /a HTTP/1.1\r\nHo"), Reset], silent: true, ..case() }.run("reset");
}

#[test]
fn slow_peers_time_out() {
    Case {
        client: vec![Send("GET /a HTTP/1.1\r\nHo"), ToEnd],
        wants: vec!["HTTP/1.1 408 Request Time-out\r\n", "Connection: close"],
        ..case()
    }
    .run("a head that does not end");
    Case {
        client: vec![Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"), ToEnd],
        servers: vec![vec![ToEnd]],
        wants: vec!["HTTP/1.1 408 Request Time-out\r\n"],
        ..case()
    }
    .run("a body that does not come");
    Case {
        client: vec![Send(GET), Until("\r\n\r\n"), Close],
        servers: vec![vec![Until("\r\n\r\n"), ToEnd]],
        wants: vec!["HTTP/1.1 504 Gateway Time-out\r\n"],
        ..case()
    }
    .run("an answer that does not come");
    Case {
        client: vec![Send(GET), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), ToEnd]],
        wants: vec!["200 OK", "\r\n\r\nab"],
        broken: true,
        ..case()
    }
    .run("an answer that stops");
}

#[test]
fn failures_of_servers_get_their_status() {
    for end in [Close, Reset] {
        Case {
            client: vec![
                Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"),
                Until("\r\n\r\n"),
                Close,
            ],
            servers: vec![vec![Until("ab"), end.clone()]],
            wants: vec!["HTTP/1.1 502 Bad Gateway\r\n"],
            ..case()
        }
        .run("before it answers");
        Case {
            client: vec![Send(GET), Until("\r\n\r\nab"), ToEnd],
            servers: vec![vec![
                Until("\r\n\r\n"),
                Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"),
                Wait(500),
                end.clone(),
            ]],
            wants: vec!["200 OK"],
            broken: true,
            ..case()
        }
        .run("within its answer, which the client must not take for whole");
        for head in ["Content-Length: 9\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
            let head = format!("HTTP/1.1 200 OK\r\n{head}").leak() as &str;
            Case {
                client: vec![Send(GET), ToEnd],
                servers: vec![vec![Until("\r\n\r\n"), Send(head), Wait(500), end.clone()]],
                once: "HTTP/1.1 200 OK\r\n",
                lacks: vec!["HTTP/1.1 5"],
                broken: true,
                ..case()
            }
            .run("behind the head of its answer, which has gone out");
        }
    }
    Case {
        client: vec![Send(GET), Until("\r\n\r\n"), Close],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
            ToEnd,
        ]],
        wants: vec!["HTTP/1.1 502 Bad Gateway\r\n"],
        ..case()
    }
    .run("an answer that can be read in two ways");
}

#[test]
fn a_client_that_leaves_ends_the_exchange_with_the_server() {
    Case {
        client: vec![Send(GET), Until("ab"), Reset],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\nab"),
            Many(b'x', 80_000),
            ToEnd,
        ]],
        ..case()
    }
    .run("reset within the answer");
    Case {
        client: vec![Send(GET), Wait(20), Reset],
        servers: vec![vec![Until("\r\n\r\n"), ToEnd]],
        ..case()
    }
    .run("reset while the server thinks");
}

#[test]
fn a_half_closed_client_is_answered() {
    Case {
        client: vec![Send(GET), ShutDown, ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Wait(100), Send(OK), ToEnd]],
        wants: vec!["200 OK", "\r\n\r\nok"],
        ..case()
    }
    .run("half-closed");
    // A plugin delays the request for a second.
    let get = "GET /recorded-late HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    Case {
        client: vec![Send(get), ShutDown, ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["200 OK", "\r\n\r\nok"],
        ..case()
    }
    .run("half-closed, for a while");
    Case {
        client: vec![Send(get), ShutDown, ToEnd],
        wants: vec!["HTTP/1.1 499 "],
        silent: true,
        settings: |settings| settings.timeouts.half_close = Duration::from_millis(500),
        ..case()
    }
    .run("half-closed for too long");
}

#[test]
fn a_half_closed_client_is_served_unless_its_response_stalls() {
    let ask = |query: &str| {
        format!("GET /filters?{query} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").leak() as &str
    };
    let thinks = || vec![vec![Until("\r\n\r\n"), Wait(1500), Send(OK), ToEnd]];
    Case {
        client: vec![Send(ask("pause")), ShutDown, ToEnd],
        servers: thinks(),
        wants: vec!["HTTP/1.1 200 ", "\r\n\r\nok"],
        seeds: 1,
        ..case()
    }
    .run("a filter holds the response for half a second when the client is checked");
    Case {
        client: vec![Send(ask("long-pause")), ShutDown, Wait(10_000), Served(0), ToEnd],
        servers: thinks(),
        lacks: vec!["HTTP/1.1 200 "],
        seeds: 1,
        ..case()
    }
    .run("a filter holds the response for a minute");
}

#[test]
fn an_early_answer_ends_the_connection() {
    Case {
        client: vec![Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nab"), ToEnd],
        servers: vec![vec![Until("ab"), Send("HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno"), ToEnd]],
        wants: vec!["HTTP/1.1 413 ", "Connection: close\r\n", "\r\n\r\nno"],
        ..case()
    }
    .run("before the request has ended");
}

#[test]
fn expect_is_answered_with_100_continue() {
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    Case {
        client: vec![Send(head), Until("100 Continue\r\n\r\n"), Send("ab"), Until("\r\n\r\nok"), Close],
        servers: vec![vec![Until("\r\n\r\nab"), Send(OK), ToEnd]],
        unheard: vec!["Expect"],
        ..case()
    }
    .run("100-continue");
}

#[test]
fn interim_responses_reach_http_1_1_clients() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let servers = || vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd]];
    Case {
        client: vec![Send(GET), Until("\r\n\r\nok"), Close],
        servers: servers(),
        wants: vec!["HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n"],
        lacks: vec!["100 Continue"],
        ..case()
    }
    .run("1.1");
    Case {
        client: vec![Send("GET /a HTTP/1.0\r\n\r\n"), ToEnd],
        servers: servers(),
        wants: vec!["HTTP/1.1 200 OK\r\n"],
        lacks: vec!["103"],
        ..case()
    }
    .run("1.0");
}

#[test]
fn no_response_follows_half_an_interim_one() {
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    Case {
        // It reads only when its body was refused.
        client: vec![Send(head), Wait(200), Send("zz\r\n"), Wait(200), ToEnd],
        servers: vec![vec![
            Until("abc"),
            Send("HTTP/1.1 103 Early Hints\r\nLink: </a/path/that/is/longer/than/what/fits>\r\n\r\n"),
            ToEnd,
        ]],
        lacks: vec!["400"],
        broken: true,
        narrow: true,
        seeds: 4,
        ..case()
    }
    .run("interim");
}

#[test]
fn chunks_and_trailers_go_both_ways() {
    let request = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n02\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\nX-Check: 4\r\n\r\n";
    Case {
        client: vec![Send(request), Until("X-Check: 4\r\n\r\n"), Send(GET), Until("ok"), Close],
        servers: vec![vec![Until("X-Sum: 5\r\n\r\n"), Send(answer), Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["4\r\nwxyz\r\n0\r\nX-Check: 4\r\n\r\n"],
        heard: vec!["\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n"],
        ..case()
    }
    .run("chunked");
    Case {
        client: vec![Send("GET /a HTTP/1.0\r\n\r\n"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd]],
        wants: vec!["Connection: close\r\n", "\r\n\r\nwxyz"],
        lacks: vec!["chunked", "X-Check"],
        ..case()
    }
    .run("an HTTP/1.0 client gets no chunks");
}

#[test]
fn plugins_read_and_set_trailers() {
    let chunked = |path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        format!("{head}3\r\nabc\r\n0\r\nX-Sum: 3\r\n\r\n").leak() as &str
    };
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\nX-Check: 4\r\n\r\n";
    Case {
        client: vec![Send(chunked("/trailers")), Until("0\r\nX-Down: set\r\nX-Check: 4\r\n\r\n"), Close],
        servers: vec![vec![Until("0\r\nX-Up: set\r\nX-Sum: 3\r\n\r\n"), Send(answer), ToEnd]],
        ..case()
    }
    .run("beside those that come");
    Case {
        client: vec![
            Send(chunked("/trailers?filter")),
            Until("0\r\nX-Down: set\r\nX-Seen: 4\r\n\r\n"),
            Close,
        ],
        servers: vec![vec![Until("X-Sum: 3\r\n\r\n"), Send(answer), ToEnd]],
        lacks: vec!["X-Check"],
        ..case()
    }
    .run("while the body is filtered");
    Case {
        client: vec![
            Send("GET /trailers HTTP/1.1\r\nHost: a\r\n\r\n"),
            Until("0\r\nX-Down: set\r\n\r\n"),
            Close,
        ],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["Transfer-Encoding: chunked"],
        unheard: vec!["X-Up"],
        ..case()
    }
    .run("where the length was known, and behind no body");
}

#[test]
fn a_panic_of_a_plugin_affects_only_its_request() {
    Case {
        client: vec![Send("GET /trailers?panic HTTP/1.1\r\nHost: a\r\n\r\n"), Until("\r\n\r\n"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
        wants: vec!["HTTP/1.1 500 "],
        panics: true,
        ..case()
    }
    .run("a panic beside a response");
}

#[test]
fn long_bodies_arrive_whole() {
    Case {
        client: vec![
            Send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"),
            Many(b'u', 100_000),
            Count(b'd', 150_000),
            Close,
        ],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Count(b'u', 100_000),
            Send("HTTP/1.1 200 Fine\r\nContent-Length: 150000\r\n\r\n"),
            Many(b'd', 150_000),
            ToEnd,
        ]],
        seeds: 6,
        ..case()
    }
    .run("through pipes that hold a little at a time");
}

#[test]
fn a_server_s_connection_is_used_again_only_if_that_is_safe() {
    let second = || vec![Until("\r\n\r\n"), Send(OK), ToEnd];
    let client = || vec![Send(GET), Until("\r\n\r\nok"), Wait(10), Send(GET), Until("\r\n\r\nok"), Close];
    for (about, answer) in [
        ("it says close", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
        (
            "there are bytes behind the body",
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
        ),
        ("it speaks 1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ] {
        Case {
            client: client(),
            servers: vec![vec![Until("\r\n\r\n"), Send(answer), ToEnd], second()],
            lacks: vec!["502"],
            ..case()
        }
        .run(about);
    }
    // A kept connection that the server has closed.
    for end in [Close, Reset] {
        Case {
            client: client(),
            servers: vec![vec![Until("\r\n\r\n"), Send(OK), Wait(5), end], second()],
            lacks: vec!["502"],
            ..case()
        }
        .run("it died while it was idle");
    }
    Case {
        client: client(),
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\n"), Reset], second()],
        lacks: vec!["502"],
        ..case()
    }
    .run("it died as the next request came, which is sent again");
    Case {
        client: vec![
            Send(GET),
            Until("\r\n\r\nok"),
            Send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"),
            Until("\r\n\r\n"),
            Close,
        ],
        servers: vec![vec![Until("\r\n\r\n"), Send(OK), Until("\r\n\r\nab"), Reset]],
        wants: vec!["502 Bad Gateway"],
        ..case()
    }
    .run("what must not be sent twice is not");
}

#[test]
fn ambiguous_requests_are_refused() {
    for bad in [
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\nHost: a\n\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        Case {
            client: vec![Send(bad), ToEnd],
            wants: vec!["HTTP/1.1 400 Bad Request\r\n", "Connection: close\r\n"],
            once: "HTTP/1.1 ",
            silent: true,
            ..case()
        }
        .run(bad);
    }
    Case {
        client: vec![Send("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"), ToEnd],
        servers: vec![vec![ToEnd]],
        wants: vec!["HTTP/1.1 400 "],
        once: "HTTP/1.1 ",
        maybe: true,
        ..case()
    }
    .run("an invalid chunk");
}

#[test]
fn head_has_no_body_and_keeps_the_connection() {
    Case {
        client: vec![
            Send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n"),
            Until("\r\n\r\n"),
            Send(GET),
            Until("\r\n\r\nok"),
            Close,
        ],
        servers: vec![vec![
            Until("HEAD /a "),
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n"),
            Until("\r\n\r\n"),
            Send(OK),
            ToEnd,
        ]],
        wants: vec!["Content-Length: 77\r\n"],
        ..case()
    }
    .run("HEAD");
}

#[test]
fn a_tunnel_carries_bytes_both_ways() {
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let agree = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst";
    Case {
        client: vec![Send(ask), Until("\r\n\r\nfirst"), Send("up"), Until("down"), ShutDown, ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Send(agree), Until("up"), Send("down"), ToEnd]],
        ..case()
    }
    .run("websocket");
}

#[test]
fn a_tunnel_does_not_begin_within_a_request() {
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nGET /b";
    let agree = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    Case {
        client: vec![Send(ask), Until("\r\n\r\n"), Close],
        // The server answers 101 before it has read more than a part of the head.
        servers: vec![vec![Send(agree), Wait(50), ToEnd]],
        wants: vec!["HTTP/1.1 502 "],
        unheard: vec!["GET /b"],
        narrow: true,
        seeds: 4,
        ..case()
    }
    .run("101 before the request is sent");
}

#[test]
fn a_draining_gateway_waits_for_both_ends_of_a_tunnel() {
    const CLOSE: u8 = 0x88;
    let ask = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
               Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";
    // The gateway sends Close to both ends and discards the frames that they send before their own Close.
    let closes = |end: &[Do]| [&[Count(CLOSE, 1)], end].concat();
    for (about, client, server) in [
        (
            "both answer Close, late",
            [Bytes(&[0x81, 0x80, 0, 0, 0, 0]), Wait(100), Served(1), Bytes(&[CLOSE, 0x80, 0, 0, 0, 0])],
            [Bytes(&[0x81, 0]), Wait(200), Served(1), Bytes(&[CLOSE, 0])],
        ),
        (
            "both close without an answer",
            [Bytes(&[0x81, 0x80, 0, 0, 0, 0]), Wait(100), Served(1), ShutDown],
            [Bytes(&[0x81, 0]), Wait(200), Served(1), ShutDown],
        ),
    ] {
        Case {
            client: [
                vec![Send(ask), Until("HTTP/1.1 101 "), Until("\r\n\r\n"), EndTunnels],
                closes(&client),
                vec![ToEnd, Wait(10), Served(0)],
            ]
            .concat(),
            servers: vec![[vec![Until("\r\n\r\n"), Agree("\r\n")], closes(&server), vec![ToEnd]].concat()],
            seeds: 6,
            ..case()
        }
        .run(about);
    }
}

#[test]
fn a_draining_worker_sends_connection_close() {
    Case {
        client: vec![Send(GET), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), Drain, Send(OK), ToEnd]],
        wants: vec!["Connection: close\r\n", "\r\n\r\nok"],
        ..case()
    }
    .run("drain");
}

#[test]
fn a_request_of_the_gateway_to_itself_counts_as_a_connection() {
    let batch =
        "POST /batch HTTP/1.1\r\nHost: a\r\nContent-Length: 28\r\n\r\n{\"pipeline\":[{\"path\":\"/a\"}]}";
    Case {
        client: vec![Send(batch), Until("\"status\":200"), Close],
        servers: vec![vec![Until("GET /a "), Until("\r\n\r\n"), Served(2), Send(OK), ToEnd]],
        ..case()
    }
    .run("answered");
    // When the client disconnects, the inner request ends as well and leaves nothing behind.
    Case {
        client: vec![Send(batch), Wait(1000), Close],
        servers: vec![vec![Until("GET /a "), Until("\r\n\r\n"), Served(2), ToEnd]],
        ..case()
    }
    .run("the client leaves");
}
