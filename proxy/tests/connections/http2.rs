//! Exchanges with an HTTP/2 client.

use super::OK;
use super::case as base;
use crate::support::{Case, Do, Do::*};

fn case() -> Case {
    Case { h2: true, seeds: 6, ..base() }
}

fn run(about: &str, client: Vec<Do>, server: Vec<Do>, wants: Vec<&'static str>, lacks: Vec<&'static str>) {
    Case { client, servers: vec![server], wants, lacks, ..case() }.run(about);
}

fn answers(last: &'static str) -> Vec<Do> {
    vec![Until(last), Send(OK), ToEnd]
}

#[test]
fn requests_go_through() {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: x-two\r\nX-Two: 2\r\nX-One: 1\r\nServer: y\r\n\
                  Keep-Alive: 5\r\n\r\nok";
    Case {
        client: vec![AskAll("GET /recorded?b=c\nx-one: 1"), ToEnd, AskAll("HEAD /recorded"), ToEnd],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Send(answer),
            Until("\r\n\r\n"),
            Send("HTTP/1.1 200 OK\r\nContent-Length: 77\r\nDate: then\r\n\r\n"),
            ToEnd,
        ]],
        wants: vec!["200\n", "content-length: 2\n", "content-length: 77\n", "x-one: 1\n", "server: s\n"],
        lacks: vec!["x-two", "keep-alive", "connection", "server: y", "content-length: 0", "reset"],
        heard: vec!["GET /recorded?b=c HTTP/1.1\r\nHost: a\r\nx-one: 1\r\n", "HEAD /recorded HTTP/1.1\r\n"],
        recorded: vec!["GET 200 body 2 from [200] in 0, 0", "HEAD 200 body 0 from [200] in 0, 0"],
        // Heads count as if each field were a line.
        sums: Some((10, 142)),
        once: "date: then\n",
        settings: |settings| settings.server = "s".to_owned(),
        ..case()
    }
    .run("two requests, one connection to the server");
    // The end of the stream shows that the body is empty.
    let nothing = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    run(
        "nothing",
        vec![AskAll("GET /a"), ToEnd],
        vec![Until("\r\n\r\n"), Send(nothing), Close],
        vec!["200\n", "date: ", "\n\nend\n"],
        vec!["content-length"],
    );
    for (ask, wants, lacks) in [
        ("GET /recorded-empty", "200\n", "content-length"),
        ("HEAD /recorded-empty", "content-length: 0\n", "reset"),
    ] {
        Case {
            client: vec![AskAll(ask), ToEnd],
            wants: vec![wants, "\n\n\nend\n"],
            lacks: vec![lacks],
            silent: true,
            ..case()
        }
        .run(ask);
    }
    let none = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    run(
        "none",
        vec![AskAll("GET /a"), ToEnd],
        vec![Until("\r\n\r\n"), Send(none), ToEnd],
        vec!["content-length: 0\n", "\n\nend\n"],
        vec![],
    );
}

#[test]
fn bodies_and_trailers_go_both_ways() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n0\r\nX-Check: 4\r\n\r\n";
    Case {
        client: vec![
            Ask("POST /recorded"),
            Send("abc"),
            Send(""),
            Wait(100),
            Send("de"),
            Trailers("x-sum: 5"),
            ToEnd,
            Ask("POST /recorded\ncontent-length: 5"),
            Send("abcde"),
            ShutDown,
            ToEnd,
        ],
        servers: vec![vec![
            Until("0\r\nx-sum: 5\r\n\r\n"),
            Send(answer),
            Until("Content-Length: 5\r\n"),
            Until("\r\nabcde"),
            Send(OK),
            ToEnd,
        ]],
        wants: vec!["\n\nwxyz\nend\nx-check: 4\n", "\n\nok\nend\n"],
        heard: vec!["Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 5\r\n\r\n"],
        recorded: vec!["POST 200 body 4 from [200] in 1, 1", "POST 200 body 2 from [200] in 0, 0"],
        // Trailers do not count.
        sums: Some((29, 141)),
        settings: |settings| settings.server = "s".to_owned(),
        seeds: 1,
        ..case()
    }
    .run("without and with Content-Length");
    // Trailers of a client may not set fields that a plugin edits, with and without Content-Length.
    for (head, body) in [("POST /edits", ""), ("POST /edits\ncontent-length: 3", "abc")] {
        let theirs = Trailers("x-user: theirs\nx-secret: theirs\nx-consumer-any: theirs\nx-sum: 5");
        Case {
            client: vec![Ask(head), Send(body), theirs, ToEnd],
            servers: vec![vec![Until("\r\n\r\n"), Send(OK), ToEnd]],
            heard: vec!["X-User: ours\r\n"],
            unheard: vec!["theirs"],
            wants: vec!["\n\nok\nend\n"],
            seeds: 4,
            ..case()
        }
        .run(head);
    }
    let pieces = vec![
        Until("\r\n\r\n"),
        Send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwxyz\r\n"),
        Wait(100),
        Send("1\r\n!\r\n0\r\nX-Check: 4\r\n\r\n"),
        ToEnd,
    ];
    let client = vec![AskAll("GET /trailers"), ToEnd];
    run(
        "of a plugin",
        client,
        pieces,
        vec!["\n\nwxyz!\nend\n", "x-down: set\n", "x-check: 4\n"],
        vec!["reset"],
    );
    Case {
        client: vec![Ask("PUT /a"), Many(b'u', 300_000), ShutDown, ToEnd],
        servers: vec![vec![
            Until("\r\n\r\n"),
            Count(b'u', 300_000),
            Send("HTTP/1.1 200 Fine\r\nContent-Length: 300007\r\n\r\n"),
            Many(b'd', 300_000),
            Send(" is all"),
            ToEnd,
        ]],
        wants: vec!["200\n", "ddd is all\nend\n"],
        seeds: 4,
        ..case()
    }
    .run("longer than any window");
    let unread = vec![Ask("POST /recorded-abort\nx-one: 1"), Send("abcde"), ShutDown, ToEnd];
    Case {
        client: unread,
        wants: vec!["200\n", "hello\nend\n"],
        silent: true,
        recorded: vec!["POST 200 body 5 from [] in 0, 0"],
        sums: Some((10, 123)),
        settings: |settings| settings.server = "s".to_owned(),
        ..case()
    }
    .run("an unread body");
}

#[test]
fn bodies_are_filtered_for_clients_of_either_version() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Check: 4\r\n\r\n";
    let server = || vec![Until("\r\n\r\n"), Send(answer), ToEnd];
    run(
        "HTTP/2",
        vec![AskAll("GET /filtered"), ToEnd],
        server(),
        vec!["\n\nHELLO\nend\nx-check: 4\n"],
        vec!["reset"],
    );
    Case {
        client: vec![Send("GET /filtered HTTP/1.1\r\nHost: a\r\n\r\n"), Until("X-Check: 4\r\n\r\n"), Close],
        servers: vec![server()],
        wants: vec!["HELLO\r\n0\r\nX-Check: 4\r\n\r\n"],
        ..base()
    }
    .run("HTTP/1");
}

#[test]
fn small_pieces_that_have_been_read_no_longer_count() {
    // More pieces than may wait unread.
    let pieces = [Send("x"), Wait(10)].iter().cycle().take(200).cloned();
    Case {
        client: [Ask("POST /a\ncontent-length: 100")].into_iter().chain(pieces).chain([ToEnd]).collect(),
        servers: vec![answers("x".repeat(100).leak())],
        wants: vec!["200\n", "\n\nok\nend\n"],
        settings: |settings| settings.http2.unread = 40_000,
        seeds: 1,
        ..case()
    }
    .run("a hundred");
}

#[test]
fn hop_by_hop_fields_of_plugins_are_dropped() {
    // Routes that set Connection, Keep-Alive and X-Set.
    let set = || vec!["200\n", "x-set: 1\n", "\nend\n"];
    let lacks = || vec!["connection", "keep-alive", "reset"];
    run("of a server's answer", vec![AskAll("GET /set"), ToEnd], answers("\r\n\r\n"), set(), lacks());
    for ask in ["GET /set-abort", "POST /set-refuse\ncontent-type: application/grpc"] {
        Case { client: vec![AskAll(ask), ToEnd], wants: set(), lacks: lacks(), silent: true, ..case() }
            .run(ask);
    }
}

#[test]
fn interim_answers_reach_the_client() {
    run(
        "100-continue",
        vec![Ask("POST /a\nexpect: 100-continue"), Until("100\n\n"), Send("ab"), ShutDown, ToEnd],
        answers("2\r\nab\r\n0\r\n\r\n"),
        vec!["200\n", "\n\nok\nend\n"],
        vec![],
    );
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nKeep-Alive: 5\r\n\r\n";
    run(
        "hints",
        vec![AskAll("GET /a"), Until("\n\n"), ToEnd],
        vec![Until("\r\n\r\n"), Send(early), Wait(100), Send(OK), ToEnd],
        vec!["103\nlink: </a>\n\n200\n", "\n\nok\nend\n"],
        vec!["keep-alive"],
    );
}

#[test]
fn requests_beyond_limits_are_refused() {
    fn five(settings: &mut proxy::Settings) {
        settings.limits.body = 5;
    }
    let client = |body| vec![Ask("POST /a"), Send(body), ShutDown, ToEnd];
    let servers = |last| vec![answers(last)];
    let wants = |status| vec![status];
    Case {
        client: client("abcde"),
        servers: servers("abcde"),
        wants: wants("200\n"),
        settings: five,
        ..case()
    }
    .run("the longest body");
    Case {
        client: client("abcdef"),
        servers: vec![vec![ToEnd]],
        wants: wants("413\n"),
        settings: five,
        maybe: true,
        ..case()
    }
    .run("a longer body");
    fn three(settings: &mut proxy::Settings) {
        settings.request.fields = 3;
    }
    let trailers = |text| vec![Ask("POST /a"), Send("abc"), Trailers(text), ToEnd];
    Case {
        client: trailers("x-a: 1\nx-b: 2\nx-c: 3"),
        servers: vec![answers("x-c: 3\r\n\r\n")],
        wants: wants("200\n"),
        settings: three,
        ..case()
    }
    .run("the most trailers");
    for (about, text) in [
        ("one trailer more", "x-a: 1\nx-b: 2\nx-c: 3\nx-d: 4"),
        ("many more", "x-a: 1\nx-b: 2\nx-c: 3\nx-d: 4\nx-e: 5"),
    ] {
        Case {
            client: trailers(text),
            servers: vec![vec![ToEnd]],
            wants: wants("431\n"),
            settings: three,
            maybe: true,
            ..case()
        }
        .run(about);
    }
    Case {
        client: vec![AskAll("GET /a\nx-a: 1\nx-b: 2\nx-c: 3\nx-d: 4"), ToEnd, AskAll("GET /nowhere"), ToEnd],
        wants: vec![
            "431\n",
            "content-type: application/json\ndate: ",
            "server: ",
            "too many fields",
            "\nend\n404\n",
        ],
        settings: three,
        silent: true,
        ..case()
    }
    .run("too many fields");
    Case {
        client: vec![AskAll("GET /a\nhost: b"), ToEnd, AskAll("GET /nowhere"), ToEnd],
        wants: vec!["reset PROTOCOL_ERROR\n404\n"],
        silent: true,
        ..case()
    }
    .run("an ambiguous head");
}

#[test]
fn broken_exchanges_are_reset() {
    let begun = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
    for begin in [begun, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"] {
        run(
            begin,
            vec![AskAll("GET /a"), ToEnd],
            vec![Until("\r\n\r\n"), Send(begin), Wait(500), Reset],
            vec!["200\n", "\nreset INTERNAL_ERROR\n"],
            vec!["502", "end\n"],
        );
    }
    run(
        "before it answers",
        vec![AskAll("GET /a"), ToEnd],
        vec![Until("\r\n\r\n"), Reset],
        vec!["502\n", "\nend\n"],
        vec!["reset"],
    );
    Case {
        client: vec![AskAll("GET /recorded"), Wait(200), Reset, Wait(200), AskAll("GET /nowhere"), ToEnd],
        servers: vec![vec![Until("\r\n\r\n"), ToEnd]],
        wants: vec!["404\n"],
        recorded: vec!["GET 499 body 0 from [] in 2, 2"],
        seeds: 1,
        ..case()
    }
    .run("by the client");
}

#[test]
fn grpc_clients_get_errors_as_grpc_status() {
    let call = |path: &str, kind: &str| Ask(format!("POST {path}\ncontent-type: {kind}").leak());
    for kind in ["application/grpc", "application/grpc+proto", "application/grpc;x", "Application/gRPC "] {
        Case {
            client: vec![call("/nowhere", kind.trim()), ShutDown, ToEnd],
            wants: vec!["200\n", "content-type: application/grpc\n", "grpc-status: 12\n", "\n\n\nend\n"],
            lacks: vec!["404\n", "text/"],
            silent: true,
            ..case()
        }
        .run(kind);
    }
    for kind in ["application/grpc-web", "application/grpcx", "application/json", "x/y"] {
        Case {
            client: vec![call("/nowhere", kind), ShutDown, ToEnd],
            wants: vec!["404\n", "Route Not Found"],
            lacks: vec!["grpc-status"],
            silent: true,
            ..case()
        }
        .run(kind);
    }
    Case {
        client: vec![call("/recorded-grpc", "application/grpc"), ShutDown, ToEnd],
        wants: vec!["200\n", "grpc-status: 14\n", "grpc-message: hello\n", "x-one: 1\n", "\n\n\nend\n"],
        lacks: vec!["429\n", "content-encoding", "content-length", "keep-alive"],
        silent: true,
        ..case()
    }
    .run("fields of its own");
}

#[test]
fn a_tunnel_is_a_stream() {
    let client = vec![
        Ask("CONNECT /ws\nsec-websocket-version: 13"),
        Send("first"),
        Until("hello"),
        Send(""),
        Send("up"),
        Until("down"),
        ShutDown,
        ToEnd,
    ];
    Case {
        client,
        servers: vec![vec![
            Until("GET /ws HTTP/1.1\r\n"),
            Until("\r\n\r\n"),
            Agree("X-One: 1\r\n\r\nhello"),
            Until("firstup"),
            Send("down"),
            ToEnd,
            Send("last"),
            Close,
        ]],
        wants: vec!["200\n", "x-one: 1\n", "\n\nhellodownlast\nend\n"],
        lacks: vec!["sec-websocket-accept", "content-length", "upgrade", "reset"],
        heard: vec!["Upgrade: websocket\r\n"],
        ..case()
    }
    .run("bytes both ways");
    run(
        "the server does not want to",
        vec![Ask("CONNECT /ws\nsec-websocket-version: 13"), Until("no\nend\n"), Close],
        vec![Until("\r\n\r\n"), Send("HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno"), ToEnd],
        vec!["403\n"],
        vec![],
    );
}

#[test]
fn failed_tunnels_do_not_get_200() {
    run(
        "the server does not switch",
        vec![Ask("CONNECT /ws\nsec-websocket-version: 13"), ToEnd],
        vec![Until("\r\n\r\n"), Send(OK), ToEnd],
        vec!["502\n", "the answer is not one"],
        vec!["200\n"],
    );
    for (path, status, why) in [
        ("/a", "501\n", "the route does not take WebSocket"),
        ("/recorded-abort", "502\n", "the answer is not one"),
        ("/recorded-nothing", "502\n", "the answer is not one"),
    ] {
        let client = vec![Ask(format!("CONNECT {path}\nsec-websocket-version: 13").leak()), ToEnd];
        Case { client, wants: vec![status, why], silent: true, seeds: 2, ..case() }.run(path);
    }
}

#[test]
fn a_connection_has_a_request_limit() {
    let ask = || [AskAll("GET /nowhere"), ToEnd];
    Case {
        client: [ask(), ask(), ask()].concat(),
        wants: vec!["\nend\n404\n", "\nend\nrefused\n"],
        silent: true,
        settings: |settings| settings.limits.keepalive_requests = 2,
        ..case()
    }
    .run("two of three");
}

#[test]
fn a_stream_may_last_longer_than_the_idle_timeout() {
    // The pauses are shorter than the read timeout.
    let slowly = (0..6).flat_map(|_| [Wait(1500), Send("x")]);
    let server = [Until("\r\n\r\n"), Send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nx")].into_iter();
    run(
        "nine seconds, of five",
        vec![AskAll("GET /a"), ToEnd],
        server.chain(slowly).chain([ToEnd]).collect(),
        vec!["200\n", "xxxxxxx\nend\n"],
        vec![],
    );
}
