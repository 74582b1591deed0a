//! HTTP/2 servers: the responses made of their frames, and the requests that are retried when they fail.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use h2::Reason;

use super::case;
use crate::support::http2_server::*;
use crate::support::{Case, Do, Do::*};

/// The script of a server that reads one request, and then sends this response.
fn says(answer: &[Do]) -> Vec<Do> {
    [&greets()[..], &[UntilOn(1, HEADERS)], answer, &[ToEnd]].concat()
}

/// Returns a whole response.
fn answers(stream: u32, text: &str) -> Vec<Do> {
    vec![
        head(stream, false, &format!(":status: 200\ncontent-length: {}", text.len())),
        data(stream, true, text),
    ]
}

fn ask(what: &str) -> Do {
    Send(format!("{what} HTTP/1.1\r\nHost: a\r\n\r\n").leak())
}

fn ask_last(what: &str) -> Do {
    let body = if what.starts_with("POST") { "Content-Length: 2\r\n\r\nab" } else { "\r\n" };
    Send(format!("{what} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{body}").leak())
}

fn few() -> Case {
    Case { seeds: 6, ..case() }
}

#[test]
fn responses_are_framed_by_the_end_of_the_stream() {
    for (what, answer, wants, lacks) in [
        (
            "GET",
            vec![
                head(1, false, ":status: 200\nx-one: 1"),
                data(1, false, ""),
                data(1, false, "o"),
                data(1, false, ""),
                data(1, false, "k"),
                data(1, true, ""),
            ],
            vec!["HTTP/1.1 200 OK\r\n", "x-one: 1\r\n", "Transfer-Encoding: chunked\r\n", "\r\n0\r\n\r\n"],
            "Content-",
        ),
        ("GET", answers(1, "ok"), vec!["Content-Length: 2\r\n", "\r\n\r\nok"], "chunked"),
        (
            "GET",
            vec![head(1, true, ":status: 200")],
            vec!["HTTP/1.1 200 OK\r\n", "Content-Length: 0\r\n"],
            "chunked",
        ),
        (
            "HEAD",
            vec![head(1, false, ":status: 200\ncontent-length: 77"), data(1, true, "")],
            vec!["HTTP/1.1 200 OK\r\n", "Content-Length: 77\r\n"],
            "chunked",
        ),
        ("HEAD", vec![head(1, true, ":status: 200")], vec!["HTTP/1.1 200 OK\r\n"], "chunked"),
        ("GET", vec![head(1, false, ":status: 204"), data(1, true, "")], vec!["HTTP/1.1 204 "], "chunked"),
        ("GET", vec![head(1, true, ":status: 304\ncontent-length: 5")], vec!["HTTP/1.1 304 "], "chunked"),
    ] {
        let about = format!("{what} {answer:?}");
        Case {
            client: vec![ask_last(&format!("{what} /h2c")), ToEnd],
            servers: vec![says(&answer)],
            wants,
            lacks: vec![lacks],
            once: "HTTP/1.1 ",
            ..few()
        }
        .run(&about);
    }
}

#[test]
fn fields_and_interim_responses_are_limited() {
    let fields = |name: &str, count: usize| -> String {
        (0..count).map(|number| format!("{name}-{number}: x\n")).collect()
    };
    let hint = |count| vec![head(1, false, &format!(":status: 103\n{}", fields("link", count)))];
    let trailers = |count| {
        vec![
            head(1, false, ":status: 200\nx-a: b"),
            data(1, false, "ok"),
            head(1, true, &fields("x-sum", count)),
        ]
    };
    let plain = || vec![head(1, false, &format!(":status: 200\n{}", fields("x", 3))), data(1, true, "ok")];
    for (about, answer, wants) in [
        ("the most fields", plain(), "x-2: x\r\n"),
        (
            "one field more",
            vec![head(1, true, &format!(":status: 200\n{}", fields("x", 4)))],
            "too many headers",
        ),
        ("the most fields of an interim response", [hint(3), plain()].concat(), "link-2: x\r\n"),
        ("one field of an interim response more", [hint(4), plain()].concat(), "too many headers"),
        ("the most trailers", trailers(3), "x-sum-2: x\r\n"),
        ("the most interim responses", [vec![hint(0); 16].concat(), plain()].concat(), "x-2: x\r\n"),
        ("one interim response more", [vec![hint(0); 17].concat(), plain()].concat(), "too many interim"),
        ("an unasked 101", [vec![head(1, false, ":status: 101")], plain()].concat(), "switched protocols"),
    ] {
        Case {
            client: vec![ask_last("GET /h2c"), ToEnd],
            servers: vec![says(&answer)],
            wants: vec![wants],
            settings: |settings| settings.response.fields = 3,
            ..few()
        }
        .run(about);
    }
    // The body before the trailers may have been sent already.
    for count in [4, 5] {
        Case {
            client: vec![ask_last("GET /h2c"), ToEnd],
            servers: vec![says(&trailers(count))],
            lacks: vec!["x-sum", "\r\n0\r\n"],
            settings: |settings| settings.response.fields = 3,
            broken: true,
            ..few()
        }
        .run(&format!("{count} trailers"));
    }
}

#[test]
fn unprocessed_requests_are_retried_on_another_server() {
    let breaks = |reason| vec![reset(1, reason)];
    let no_answer = "before it responded";
    let malformed = "not valid HTTP";
    // The first server's frames, whether POST and GET are then retried on the other one, and the reason in the 502.
    for (first, post, get, why) in [
        (breaks(Reason::REFUSED_STREAM), true, true, ""),
        (
            breaks(Reason::INTERNAL_ERROR),
            false,
            true,
            "reset the stream before it responded (INTERNAL_ERROR)",
        ),
        (breaks(Reason::CANCEL), false, true, "reset the stream before it responded (CANCEL)"),
        (vec![goes(0), Close], true, true, ""),
        (vec![goes(1), Close], false, true, no_answer),
        (vec![Close], false, true, no_answer),
        (vec![head(1, true, ":status: 200\ncontent-length: +5")], false, false, malformed),
        (vec![head(1, true, "x-a: b")], false, false, malformed),
    ] {
        for (what, again) in [("POST", post), ("GET", get)] {
            let about = format!("{what} and {first:?}");
            let servers = vec![says(&first), says(&answers(1, "ok"))];
            let wants = if again { vec!["HTTP/1.1 200 ", "\r\n\r\nok"] } else { vec!["HTTP/1.1 502 ", why] };
            // With a body in pieces, a part may have been sent when a server fails.
            let (client, seeds) = (vec![ask_last(&format!("{what} /h2c")), ToEnd], 1);
            Case { client, servers, wants, once: "HTTP/1.1 ", maybe: !again, seeds, ..case() }.run(&about);
        }
    }
}

#[test]
fn without_retries_only_unprocessed_requests_are_sent_twice() {
    for (end, again, why) in [
        (vec![reset(3, Reason::REFUSED_STREAM)], true, ""),
        (vec![goes(1), Close], true, ""),
        // The connection was idle and may have been closed before.
        (vec![Close], true, ""),
        (
            vec![reset(3, Reason::INTERNAL_ERROR)],
            false,
            "reset the stream before it responded (INTERNAL_ERROR)",
        ),
        (vec![goes(3), Close], false, "before it responded"),
        (vec![head(3, true, ":status: 200\ncontent-length: +5")], false, "not valid HTTP"),
        // DATA of no stream.
        (
            vec![data(0, false, "x")],
            false,
            "broke a rule of HTTP/2, which ended the connection and all requests on it (PROTOCOL_ERROR)",
        ),
    ] {
        let about = format!("{end:?}");
        let first = [greets(), answers_to(1, "one"), vec![UntilOn(3, HEADERS)], end, vec![ToEnd]].concat();
        let wants = if again { vec!["HTTP/1.1 200 ", "two"] } else { vec!["HTTP/1.1 502 ", why] };
        Case {
            client: [asks("/h2c-never", "one"), vec![ask_last("GET /h2c-never"), ToEnd]].concat(),
            servers: vec![first, says(&answers(1, "two"))],
            wants,
            maybe: !again,
            seeds: 2,
            ..case()
        }
        .run(&about);
    }
}

#[test]
fn requests_on_a_shared_connection_are_not_sent_twice() {
    let both = vec![UntilOn(3, HEADERS), UntilOn(5, HEADERS), Close];
    Case {
        client: [asks("/h2c-never", "one"), vec![ask_last("GET /h2c-never"), ToEnd]].concat(),
        beside: [vec![Wait(200)], asks("/h2c-never", "responded"), vec![Close]].concat(),
        servers: vec![[greets(), answers_to(1, "one"), both].concat(), says(&answers(1, "two"))],
        wants: vec!["HTTP/1.1 502 ", "closed the HTTP/2 connection before it responded"],
        lacks: vec!["two"],
        maybe: true,
        seeds: 1,
        ..case()
    }
    .run("two requests");
}

#[test]
fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    for end in [reset(1, Reason::INTERNAL_ERROR), goes(1), Reset] {
        Case {
            client: vec![ask("GET /h2c"), ToEnd],
            servers: vec![says(&[
                head(1, false, ":status: 200\nx-a: b"),
                data(1, false, "ab"),
                Wait(500),
                end.clone(),
                Close,
            ])],
            once: "HTTP/1.1 200 OK\r\n",
            lacks: vec!["\r\n0\r\n"],
            broken: true,
            ..few()
        }
        .run(&format!("{end:?}"));
    }
}

#[test]
fn requests_say_what_they_are() {
    let server = || says(&answers(1, "ok"));
    for (path, says, heard) in [
        ("/grpc", "application/grpc", "application/grpc"),
        ("/grpc", "application/grpc+proto", "application/grpc+proto"),
        ("/grpc", "application/grpc-web+proto", "application/grpc"),
        ("/grpc", "text/plain", "application/grpc"),
        ("/h2c", "text/plain", "text/plain"),
    ] {
        let sent =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {says}\r\nConnection: close\r\n\r\n");
        Case {
            client: vec![Send(sent.leak()), ToEnd],
            servers: vec![server()],
            wants: vec!["HTTP/1.1 200 "],
            heard: vec![
                format!("GET http://a{path}\n").leak(),
                format!("content-type: {heard}\n").leak(),
                "te: trailers\n",
                "x-forwarded-port: 9080\n",
                "\n\n\nend\n",
            ],
            unheard: vec!["connection", "\nhost: "],
            ..few()
        }
        .run(&format!("{says} to {path}"));
    }
    Case {
        client: vec![ask_last("GET /grpc"), ToEnd],
        servers: vec![server()],
        heard: vec!["content-type: application/grpc\n"],
        ..few()
    }
    .run("a request that does not say it");
}

#[test]
fn bodies_and_their_trailers_follow_their_head() {
    let client =
        |head: &'static str| vec![Ask(head), Send("ab"), Wait(100), Send("cde"), Trailers("x-sum: 5"), ToEnd];
    Case {
        h2: true,
        client: client("POST /h2c"),
        servers: vec![says(&[vec![UntilOn(1, DATA), UntilOn(1, HEADERS)], answers(1, "ok")].concat())],
        wants: vec!["200\n", "\n\nok\nend\n"],
        heard: vec!["POST http://a/h2c\n", "\n\nabcde\nend\nx-sum: 5\n"],
        ..few()
    }
    .run("the client's");
    // Nothing stands behind what goes first.
    Case {
        h2: true,
        client: client("POST /trailers-h2c?beginning"),
        servers: vec![says(&[vec![UntilOn(1, DATA), UntilOn(1, HEADERS)], answers(1, "ok")].concat())],
        wants: vec!["200\n", "\n\nok\nend\n"],
        heard: vec!["\n\nabcde\nend\nx-up: set\nx-sum: 5\n"],
        ..few()
    }
    .run("a plugin's, which has read the beginning");
    let trailers = Trailers("x-user: theirs\nx-secret: theirs\nx-credential-any: theirs\nx-sum: 5");
    Case {
        h2: true,
        client: vec![Ask("POST /edits-h2c"), Send("abcde"), trailers, ToEnd],
        servers: vec![says(&[vec![UntilOn(1, DATA), UntilOn(1, HEADERS)], answers(1, "ok")].concat())],
        wants: vec!["200\n", "\n\nok\nend\n"],
        heard: vec!["x-user: ours\n", "\n\nabcde\nend\nx-sum: 5\n"],
        unheard: vec!["theirs"],
        ..few()
    }
    .run("without what plugins have said in the head");
    let theirs = "X-User: theirs\r\nX-Secret: theirs\r\nX-Sum: 5\r\n";
    let ask = format!(
        "POST /edits-h2c HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n{theirs}\r\n"
    );
    Case {
        client: vec![Send(ask.leak()), ToEnd],
        servers: vec![says(&[vec![UntilOn(1, DATA), UntilOn(1, HEADERS)], answers(1, "ok")].concat())],
        wants: vec!["\r\n\r\nok"],
        heard: vec!["x-user: ours\n", "\n\nabcde\nend\nx-sum: 5\n"],
        unheard: vec!["theirs"],
        ..few()
    }
    .run("the same from HTTP/1");
    Case {
        client: vec![
            Send("POST /h2c HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"),
            Until("HTTP/1.1 103 "),
            Send("ab"),
            ToEnd,
        ],
        servers: vec![says(
            &[vec![head(1, false, ":status: 103"), UntilOn(1, DATA)], answers(1, "ok")].concat(),
        )],
        wants: vec!["\r\n\r\nok"],
        heard: vec!["content-length: 2\n", "\n\nab\nend\n"],
        ..few()
    }
    .run("a head does not wait for a body that does not come yet");
    Case {
        client: vec![ask_last("POST /h2c"), ToEnd],
        servers: vec![says(&[vec![UntilOn(1, DATA)], answers(1, "ok")].concat())],
        wants: vec!["\r\n\r\nok"],
        heard: vec!["content-length: 2\n", "\n\nab\nend\n"],
        ..few()
    }
    .run("one that is here goes with its head");
}

/// The script of a client that sends a request and waits for this text in the response.
fn asks(path: &str, text: &'static str) -> Vec<Do> {
    vec![ask(&format!("GET {path}")), Until("\r\n\r\n"), Until(text)]
}

/// The script of a server's response to one request of several.
fn answers_to(stream: u32, text: &str) -> Vec<Do> {
    [vec![UntilOn(stream, HEADERS)], answers(stream, text)].concat()
}

#[test]
fn a_connection_carries_as_many_requests_as_its_server_takes() {
    Case {
        client: [asks("/h2c-never", "one"), asks("/h2c-never", "two"), vec![Close]].concat(),
        servers: vec![[greets_for(1), answers_to(1, "one"), answers_to(3, "two"), vec![ToEnd]].concat()],
        ..few()
    }
    .run("one at a time, one after the other");
    let slow = [vec![UntilOn(3, HEADERS), Wait(500)], answers(3, "two")].concat();
    Case {
        client: [asks("/h2c-never", "one"), asks("/h2c-never", "two"), vec![Close]].concat(),
        beside: [vec![Wait(200)], asks("/h2c-never", "other"), vec![Close]].concat(),
        servers: vec![
            [greets_for(1), answers_to(1, "one"), slow, vec![ToEnd]].concat(),
            [greets_for(1), answers_to(1, "other"), vec![ToEnd]].concat(),
        ],
        ..few()
    }
    .run("one at a time, and two are asked");
    Case {
        client: [asks("/h2c-never", "one"), vec![Close]].concat(),
        servers: vec![[greets_for(0), vec![Wait(500), takes(1)], answers_to(1, "one"), vec![ToEnd]].concat()],
        narrow: true,
        ..few()
    }
    .run("none at first");
}

#[test]
fn a_server_that_cannot_be_reached_is_tried_once() {
    Case {
        client: vec![ask_last("GET /h2c-never"), ToEnd],
        servers: vec![vec![Refuse], says(&answers(1, "ok"))],
        wants: vec!["HTTP/1.1 502 ", "refused the connection"],
        maybe: true,
        ..few()
    }
    .run("it refuses");
    // It ends what it sends before anything was asked.
    let gone = || vec![ShutDown, Until(PREFACE), Close];
    for (times, wants) in [(3, "\r\n\r\nok"), (4, "HTTP/1.1 502 ")] {
        Case {
            client: vec![ask_last("POST /h2c-never"), ToEnd],
            servers: [vec![gone(); times], vec![says(&answers(1, "ok"))]].concat(),
            wants: vec![wants],
            once: "HTTP/1.1 ",
            maybe: true,
            narrow: true,
            seeds: 1,
            ..case()
        }
        .run(&format!("its connections are over at once, {times} times"));
    }
}

#[test]
fn who_lost_a_connection_together_shares_the_next() {
    let lost = vec![UntilOn(3, HEADERS), UntilOn(5, HEADERS), goes(1), Close];
    Case {
        client: [asks("/h2c-never", "one"), asks("/h2c-never", "again"), vec![Close]].concat(),
        beside: [vec![Wait(200)], asks("/h2c-never", "again"), vec![Close]].concat(),
        servers: vec![
            [greets(), answers_to(1, "one"), lost].concat(),
            [greets(), answers_to(1, "again"), answers_to(3, "again"), vec![ToEnd]].concat(),
        ],
        seeds: 1,
        ..case()
    }
    .run("two of them");
}

#[test]
fn a_connection_without_requests_is_kept_for_a_while() {
    let asks_twice = |path| [asks(path, "one"), vec![Wait(4000)], asks(path, "two"), vec![Close]].concat();
    Case {
        client: asks_twice("/h2c-brief"),
        servers: vec![
            [greets(), answers_to(1, "one"), vec![ToEnd]].concat(),
            [greets(), answers_to(1, "two"), vec![ToEnd]].concat(),
        ],
        ..few()
    }
    .run("two seconds");
    Case {
        client: asks_twice("/h2c-kept"),
        servers: vec![[greets(), answers_to(1, "one"), answers_to(3, "two"), vec![ToEnd]].concat()],
        ..few()
    }
    .run("forever");
    // It takes none, and has carried nothing.
    Case {
        client: vec![Send(UPGRADE), Until("HTTP/1.1 502 "), Close],
        then: vec![[vec![Wait(4000)], asks("/ws-h2c", "one"), vec![Close]].concat()],
        servers: vec![
            [greets(), vec![ToEnd]].concat(),
            [greets(), answers_to(1, "one"), vec![ToEnd]].concat(),
        ],
        ..few()
    }
    .run("two seconds after it was asked for a tunnel");
}

const UPGRADE: &str = "GET /ws-h2c HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";

#[test]
fn a_tunnel_waits_for_its_servers_settings_and_carries_what_comes() {
    // A text of a server's without any letters.
    const TEXT: u8 = 0x81;
    let settings = [vec![Until(PREFACE), Wait(100)], greets_for_tunnels()[..1].to_vec()].concat();
    // Once they are there it is asked for: an answer to nothing would end the connection.
    let answer = vec![Wait(300), head(1, false, ":status: 200"), data(1, false, [TEXT, 0]), ToEnd];
    Case {
        client: vec![Send(UPGRADE), Until("HTTP/1.1 101 "), Until("\r\n\r\n"), Count(TEXT, 1), Close],
        servers: vec![[settings, answer].concat()],
        ..few()
    }
    .run("a tenth of a second");
}

#[test]
fn the_end_of_a_tunnel_that_is_a_stream_is_waited_for() {
    // Close frames, and the beginning of a text, of a client and of a server.
    const CLOSE: u8 = 0x88;
    Case {
        client: vec![
            Send(UPGRADE),
            Until("HTTP/1.1 101 "),
            Until("\r\n\r\n"),
            EndTunnels,
            Count(CLOSE, 1),
            Bytes(&[CLOSE, 0x80, 0, 0, 0, 0]),
            Wait(100),
            Served(1),
            ToEnd,
            Wait(10),
            Served(0),
        ],
        servers: vec![
            [
                greets_for_tunnels(),
                vec![
                    UntilOn(1, HEADERS),
                    head(1, false, ":status: 200"),
                    UntilOn(1, DATA),
                    data(1, false, [0x81, 0]),
                    Wait(200),
                    data(1, true, [CLOSE, 0]),
                    ToEnd,
                ],
            ]
            .concat(),
        ],
        wants: vec!["Sec-WebSocket-Accept: "],
        ..few()
    }
    .run("of the server's");
}

#[test]
fn an_attempt_at_a_tunnel_includes_the_wait_for_settings() {
    let settings = || greets_for_tunnels()[..1].to_vec();
    let late = [vec![Until(PREFACE), Wait(300)], settings(), vec![Wait(400)]].concat();
    for first in [
        [late, vec![head(1, false, ":status: 200"), ToEnd]].concat(),
        [vec![Until(PREFACE), Wait(1000)], settings(), vec![ToEnd]].concat(),
    ] {
        let about = format!("{first:?}");
        let second = vec![UntilOn(1, HEADERS), head(1, false, ":status: 200\nx-from: second"), ToEnd];
        Case {
            client: vec![
                Send(UPGRADE.replace("/ws-h2c", "/ws-h2c-per-try").leak()),
                Until("HTTP/1.1 101 "),
                Until("x-from: second\r\n"),
                Close,
            ],
            servers: vec![first, [greets_for_tunnels(), second].concat()],
            ..few()
        }
        .run(&about);
    }
}

/// The faults of a tunnel: the status, the request, the route, the words, and the setting.
static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn a_stalled_tunnel_that_is_ended_is_logged() {
    let message = [&[0x82, 126, 0x0f, 0xa0][..], &[0; 4000]].concat();
    Case {
        client: vec![Send(UPGRADE), Until("HTTP/1.1 101 "), Until("\r\n\r\n"), Wait(1500), ToEnd],
        beside: [vec![Wait(1200)], asks("/ws-h2c", "one"), vec![Close]].concat(),
        servers: vec![
            [
                greets_for_tunnels(),
                vec![UntilOn(1, HEADERS), head(1, false, ":status: 200"), data(1, false, message), ToEnd],
            ]
            .concat(),
            [greets(), answers_to(1, "one"), vec![ToEnd]].concat(),
        ],
        narrow: true,
        seeds: 1,
        settings: |settings| {
            settings.budgets.upstream_windows = 0;
            settings.http2.stall_timeout = Duration::from_millis(500);
            settings.on_fault = Arc::new(|record| {
                let setting = record.limit.map(|(name, _)| name).unwrap_or_default();
                FAULTS.lock().unwrap().push(format!(
                    "{} {} of {}: {} ({setting})",
                    record.status,
                    record.request,
                    record.route,
                    record.fault.kind.words(),
                ));
            });
        },
        ..case()
    }
    .run("a client that reads nothing");
    let faults = std::mem::take(&mut *FAULTS.lock().unwrap());
    assert_eq!(
        faults,
        [
            "101 GET /ws-h2c of 10: the client took too little of the response while other requests needed the \
             window that it held (nginx_config.http.upstream.http2_windows)"
        ]
    );
}
