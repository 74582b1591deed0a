//! Responses of servers in HTTP/3 (RFC 9114 sections 4.1 to 4.3), and tunnels (RFC 9220).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proxy::testing::{self, H3, Schedule};
use proxy::{Listener, Settings, Traffic, Versions};
use quinn::{RecvStream, SendStream};
use sha1::{Digest, Sha1};

use super::client::*;
use crate::support::{Do, Do::*, SERVER};

/// Cases: name, method, the server's response after `HTTP/1.1 `, its next step, and the client's response.
const ANSWERS: &[(&str, &str, &str, Option<Do>, &str)] = &[
    ("measured", "GET", "200 OK\r\nContent-Length: 2\r\n\r\nok", None, WELL),
    (
        "measured, of nothing",
        "GET",
        "200 OK\r\nContent-Length: 0\r\n\r\n",
        None,
        "200 content-length: 0 | end",
    ),
    (
        "in chunks",
        "GET",
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        None,
        "200 | \"abcde\" | end",
    ),
    ("in no chunks", "GET", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", None, "200 | end"),
    (
        "with trailers",
        "GET",
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 3\r\nContent-Length: 9\r\nX-B: c\r\n\r\n",
        None,
        "200 | \"abc\" | x-sum: 3 x-b: c | end",
    ),
    (
        "with trailers alone",
        "GET",
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 0\r\n\r\n",
        None,
        "200 | x-sum: 0 | end",
    ),
    ("to the end", "GET", "200 OK\r\n\r\nabc", Some(Close), "200 | \"abc\" | end"),
    ("none", "GET", "204 No Content\r\n\r\n", None, "204 | end"),
    (
        "of what has not changed",
        "GET",
        "304 Not Modified\r\nETag: \"a\"\r\n\r\n",
        None,
        "304 etag: \"a\" | end",
    ),
    ("HEAD", "HEAD", "200 OK\r\nContent-Length: 77\r\n\r\n", None, "200 content-length: 77 | end"),
    ("HEAD, of nothing", "HEAD", "200 OK\r\nContent-Length: 0\r\n\r\n", None, "200 content-length: 0 | end"),
    ("HEAD, unmeasured", "HEAD", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None, "200 | end"),
    (
        "broken off",
        "GET",
        "200 OK\r\nContent-Length: 9\r\n\r\nabc",
        Some(Close),
        "200 content-length: 9 | \"abc\" | reset 102",
    ),
    (
        "broken off in chunks",
        "GET",
        "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        Some(Reset),
        "200 | \"abc\" | reset 102",
    ),
    (
        "early hints",
        "GET",
        "103 Early Hints\r\nLink: </s>\r\nConnection: X-Own\r\nX-Own: 1\r\nKeep-Alive: 1\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </t>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        None,
        "103 link: </s> | 103 link: </t> | 200 content-length: 2 | \"ok\" | end",
    ),
    (
        "hop-by-hop fields",
        "GET",
        "200 OK\r\nConnection: X-Own\r\nX-Own: 1\r\nKeep-Alive: 1\r\nProxy-Connection: a\r\nUpgrade: b\r\n\
         Content-Length: 2\r\nX-A: B\r\n\r\nok",
        None,
        "200 x-a: B content-length: 2 | \"ok\" | end",
    ),
    (
        "Server and Date, which the gateway sets",
        "GET",
        "200 OK\r\nServer: b\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 2\r\n\r\nok",
        None,
        WELL,
    ),
];

#[test]
fn responses_are_translated() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            for (about, method, says, then, wanted) in ANSWERS {
                let says = format!("HTTP/1.1 {says}").leak();
                let then = then.iter().cloned().chain([ToEnd]);
                site.serves([Until("\r\n\r\n"), Send(says), Wait(500)].into_iter().chain(then).collect());
                assert_eq!(client.ask(&head(method, "/a", &[])).await, *wanted, "{about}");
                site.heard().await;
            }
            client.bye();
        },
    );
}

#[test]
fn a_response_is_reset_when_the_gateway_panics() {
    // The fault handler panics, in the middle of the response.
    let fails = |settings: &mut Settings| settings.on_fault = Arc::new(|_| panic!("as asked"));
    beside(fails, async |site| {
        site.panics.set(1);
        let client = site.client().await;
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
        site.serves(vec![Until("\r\n\r\n"), Send(chunks), Wait(500), Reset]);
        assert_eq!(client.ask(&head("GET", "/a", &[])).await, "200 | \"abc\" | reset 102");
        client.is_served(site, "the others").await;
        client.bye();
    });
}

#[test]
fn the_gateway_s_own_answers_are_whole() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            let nowhere = client.ask(&head("GET", "/nowhere", &[])).await;
            let text = "{\\\"error_msg\\\":\\\"404 Route Not Found\\\"}\\n";
            assert_eq!(
                nowhere,
                format!("404 content-type: application/json content-length: 36 | \"{text}\" | end")
            );
            let nowhere = client.ask(&head("HEAD", "/nowhere", &[])).await;
            assert_eq!(nowhere, "404 content-type: application/json content-length: 36 | end");
            let none = client.ask(&head("GET", "/recorded-nothing", &[])).await;
            assert_eq!(none, "204 content-type: text/plain; charset=utf-8 | end");
            // The stream's end shows that a body is empty, so only HEAD needs Content-Length.
            let empty = client.ask(&head("GET", "/recorded-empty", &[])).await;
            assert_eq!(empty, "200 | end");
            let empty = client.ask(&head("HEAD", "/recorded-empty", &[])).await;
            assert_eq!(empty, "200 content-length: 0 | end");
            let refused = client.ask(&head("GET", "/a", &[])).await;
            assert!(refused.starts_with("502 ") && refused.ends_with(" | end"), "{refused}");
            // With trailers, the response has no Content-Length.
            let trailers = client.ask(&head("GET", "/recorded-trailers", &[])).await;
            assert_eq!(
                trailers,
                "200 content-type: text/plain; charset=utf-8 | \"hello\" | x-down: set | end"
            );
            client.bye();
        },
    );
}

#[test]
fn hop_by_hop_fields_of_plugins_are_dropped() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            // A route that sets Connection, Keep-Alive and X-Set.
            site.serves(answers(OK));
            let set = client.ask(&head("GET", "/set", &[])).await;
            assert_eq!(set, "200 x-set: 1 content-length: 2 | \"ok\" | end");
            site.heard().await;
            let abort = client.ask(&head("GET", "/set-abort", &[])).await;
            assert_eq!(
                abort,
                "200 content-type: text/plain; charset=utf-8 x-set: 1 content-length: 2 | \"hi\" | end"
            );
            let grpc =
                head("POST", "/set-refuse", &[("content-type", "application/grpc"), ("te", "trailers")]);
            let expected =
                "200 x-set: 1 content-type: application/grpc grpc-status: 14 grpc-message: hi | end";
            assert_eq!(client.ask(&grpc).await, expected);
            client.bye();
        },
    );
}

#[test]
fn grpc_clients_get_errors_as_grpc_status() {
    beside(serves_beside_tls, async |site| {
        let client = site.client().await;
        let call = head("POST", "/nowhere", &[("content-type", "application/grpc"), ("te", "trailers")]);
        let expected = "200 content-type: application/grpc grpc-status: 12 \
                    grpc-message: {\"error_msg\":\"404 Route Not Found\"} alt-svc: h3=\":9443\"; ma=86400 | end";
        assert_eq!(client.ask(&call).await, expected);
        client.bye();
    });
}

/// Serves HTTP/3 beside TLS, so that responses have Alt-Svc.
fn serves_beside_tls(settings: &mut Settings) {
    let traffic = Traffic::Http(Versions { h1: true, h2: true, h3: true });
    settings.listen = vec![Listener { address: H3, traffic, tls: true, proxy_protocol: false }];
}

#[test]
fn alt_svc_is_added_unless_the_server_sets_it() {
    beside(serves_beside_tls, async |site| {
        let client = site.client().await;
        for (says, alt_svc) in [("", "h3=\":9443\"; ma=86400"), ("Alt-Svc: clear\r\n", "clear")] {
            let says = format!("HTTP/1.1 200 OK\r\n{says}Content-Length: 0\r\n\r\n").leak();
            site.serves(answers(says));
            let answer = client.ask(&head("GET", "/a", &[])).await;
            assert_eq!(answer.matches("alt-svc: ").count(), 1, "{answer}");
            assert!(answer.contains(&format!("alt-svc: {alt_svc}")), "{answer}");
            site.heard().await;
        }
        client.bye();
    });
}

#[test]
fn expect_is_answered_with_100_continue() {
    let asks = |length| head("POST", "/a", &[("content-length", length), ("expect", "100-continue")]);
    beside(
        |_| {},
        async move |site| {
            let client = site.client().await;
            site.serves(vec![Until("\r\n\r\nabc"), Send(OK), ToEnd]);
            let (mut send, mut recv) = client.begin(&asks("3")).await;
            assert_eq!(next(&mut recv).await, "100");
            say(&mut send, &frame(DATA, "abc"), false).await;
            send.finish().unwrap();
            assert_eq!(answer(&mut recv).await, WELL, "a second 100");
            site.heard().await;
            // Without Expect there is no 100. With Expect, 100 is optional if the body follows at once.
            let expected = format!("100 | {WELL}");
            for (bytes, wanted) in [
                (head("POST", "/a", &[("content-length", "3")]), &[WELL][..]),
                (asks("3"), &[WELL, &expected]),
            ] {
                site.serves(vec![Until("\r\n\r\nabc"), Send(OK), ToEnd]);
                let said = client.ask(&[bytes, frame(DATA, "abc")].concat()).await;
                assert!(wanted.contains(&&said[..]), "{said}");
                site.heard().await;
            }
            // A request whose body is not wanted gets its response without 100.
            let (_send, mut recv) = client
                .begin(&super::client::head(
                    "POST",
                    "/nowhere",
                    &[("content-length", "3"), ("expect", "100-continue")],
                ))
                .await;
            assert!(answer(&mut recv).await.starts_with("404 "));
            client.bye();
        },
    );
}

#[test]
fn responses_are_streamed() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            let pause = Wait(1000);
            let events =
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let piece = Send("3\r\nabc\r\n");
            site.serves(vec![
                Until("\r\n\r\n"),
                Send(events),
                pause.clone(),
                piece.clone(),
                pause.clone(),
                piece.clone(),
                pause,
                Send("0\r\n\r\n"),
                ToEnd,
            ]);
            let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
            send.finish().unwrap();
            let half = Duration::from_millis(500);
            let mut soon = async |wanted: &str| {
                assert_eq!(testing::within(half, next(&mut recv)).await.as_deref(), Some(wanted));
                testing::sleep(Duration::from_millis(800)).await;
            };
            soon("200 content-type: text/event-stream").await;
            soon("\"abc\"").await;
            soon("\"abc\"").await;
            assert_eq!(answer(&mut recv).await, "end");
            client.bye();
        },
    );
}

/// The response to a tunnel has the server's fields alone.
const AGREED: &str = "200 undated";

/// Starts a server that accepts a tunnel, sends `more`, and then echoes all bytes twice, to the end.
fn serve_echo(more: &'static str) {
    let server = Rc::new(move || {
        let (end, theirs) = testing::pair(Schedule::default(), Schedule::default());
        testing::spawn(async move {
            let (mut got, mut part) = (Vec::new(), [0; 4096]);
            while !got.windows(4).any(|end| end == b"\r\n\r\n") {
                let n = end.read(&mut part).await.unwrap();
                got.extend_from_slice(&part[..n]);
            }
            let ask = String::from_utf8(got).unwrap();
            assert!(ask.starts_with("GET /ws HTTP/1.1\r\n"), "{ask}");
            let key = ask.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            let accept = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
            let accept = BASE64_STANDARD.encode(accept);
            let agree = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n";
            let agree = format!("{agree}Sec-WebSocket-Accept: {accept}\r\n{more}");
            end.write_all(agree.as_bytes()).await.unwrap();
            while let Ok(n @ 1..) = end.read(&mut part).await {
                end.write_all(&part[..n]).await.unwrap();
                end.write_all(&part[..n]).await.unwrap();
            }
            let _ = end.write_all(b"bye").await;
        });
        Ok(theirs)
    });
    testing::serve(SERVER.into(), move || server());
}

/// Returns the request for a tunnel (RFC 9220 section 3).
fn connect() -> Vec<u8> {
    frame(
        HEADERS,
        list(&[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "a"),
            (":path", "/ws"),
            ("sec-websocket-version", "13"),
        ]),
    )
}

async fn tunnel(client: &Client, early: &[u8]) -> (SendStream, RecvStream) {
    client.begin(&[&connect(), early].concat()).await
}

#[test]
fn tunnels_carry_bytes_both_ways_to_their_end() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            serve_echo("Sec-WebSocket-Protocol: chat\r\nContent-Length: 0\r\n\r\nfirst");
            let (mut send, mut recv) = tunnel(&client, &frame(DATA, "a")).await;
            assert_eq!(next(&mut recv).await, "200 sec-websocket-protocol: chat undated");
            let mut got = String::new();
            while got.len() < 7 {
                got += next(&mut recv).await.trim_matches('"');
            }
            assert_eq!(got, "firstaa");
            // Unknown frames and empty DATA are not part of the tunnel.
            let more = [frame(GREASE, "x"), frame(DATA, []), frame(DATA, "bc")].concat();
            say(&mut send, &more, true).await;
            send.finish().unwrap();
            let answer = answer(&mut recv).await;
            assert!(["\"bcbcbye\" | end", "\"bbccbye\" | end"].contains(&&answer[..]), "{answer}");
            client.bye();
        },
    );
}

#[test]
fn frames_other_than_data_end_a_tunnel() {
    beside(
        |_| {},
        async |site| {
            serve_echo("\r\n");
            for (about, bytes, code) in [
                ("trailers", frame(HEADERS, list(&[("x", "y")])), FRAME_UNEXPECTED),
                ("settings", frame(SETTINGS, []), FRAME_UNEXPECTED),
                ("an end within a frame", cut_off(DATA, 9, "abc"), FRAME_ERROR),
            ] {
                let client = site.client().await;
                let (mut send, mut recv) = tunnel(&client, &[]).await;
                assert_eq!(next(&mut recv).await, AGREED, "{about}");
                say(&mut send, &bytes, false).await;
                send.finish().unwrap();
                assert_eq!(client.closed().await, code, "{about}");
            }
        },
    );
}

#[test]
fn a_reset_of_a_tunnel_reaches_the_other_side() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            serve_echo("\r\n");
            let (mut send, mut recv) = tunnel(&client, &[]).await;
            assert_eq!(next(&mut recv).await, AGREED);
            send.reset(7u32.into()).unwrap();
            assert_eq!(answer(&mut recv).await, format!("reset {REQUEST_CANCELLED:x}"));
            let (_send, mut recv) = tunnel(&client, &[]).await;
            assert_eq!(next(&mut recv).await, AGREED);
            recv.stop(7u32.into()).unwrap();
            lull().await;
            client.bye();
        },
    );
}

#[test]
fn refused_tunnels_get_a_response() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            site.serves(answers("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"));
            let (_send, mut recv) = tunnel(&client, &[]).await;
            assert_eq!(answer(&mut recv).await, "403 content-length: 2 | \"no\" | end");
            site.heard().await;
            // The client would take 200 for a tunnel.
            site.serves(answers("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
            let (_send, mut recv) = tunnel(&client, &[]).await;
            let taken = answer(&mut recv).await;
            assert!(taken.starts_with("502 ") && taken.contains("the answer is not one"), "{taken}");
            site.heard().await;
            // 101 for a request without a tunnel, and 101 without the accept key.
            let agree =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            for ask in [head("GET", "/ws", &[]), connect()] {
                site.serves(answers(agree));
                let (_send, mut recv) = client.begin(&ask).await;
                let answer = answer(&mut recv).await;
                assert!(answer.starts_with("502 ") && answer.ends_with(" | end"), "{answer}");
                site.heard().await;
            }
            // A tunnel may not have Content-Length, and other protocols are not supported.
            for more in [("content-length", "1"), (":protocol", "connect-udp")] {
                let fields = [
                    (":method", "CONNECT"),
                    (":protocol", "websocket"),
                    (":scheme", "https"),
                    (":authority", "a"),
                    (":path", "/ws"),
                ];
                let mut fields: Vec<_> = fields.into_iter().filter(|field| field.0 != more.0).collect();
                fields.insert(if more.0.starts_with(':') { 0 } else { fields.len() }, more);
                let answer = client.ask(&frame(HEADERS, list(&fields))).await;
                assert_eq!(answer, format!("reset {MESSAGE_ERROR:x}"), "{more:?}");
            }
            client.bye();
        },
    );
}
