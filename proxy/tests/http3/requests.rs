//! Requests: heads, bodies and trailers, and unknown frames between them (RFC 9114 sections 4 and 7).

use std::time::Duration;

use proxy::testing;
use quinn::VarInt;

use super::client::*;
use crate::support::Do::{Send, ToEnd, Until};

/// Returns the bytes that a server got without the fields about the client, and with the body decoded.
fn plain(heard: &str) -> String {
    let (head, body) = heard.split_once("\r\n\r\n").unwrap_or((heard, ""));
    let kept = |line: &&str| !line.starts_with("x-real-ip") && !line.starts_with("x-forwarded-");
    let head = head.to_lowercase();
    let lines: Vec<&str> = head.split("\r\n").filter(kept).collect();
    let body =
        if head.contains("transfer-encoding: chunked") { without_chunks(body) } else { body.to_owned() };
    format!("{}\n\n{body}", lines.join("\n"))
}

/// Returns a chunked body without its framing, followed by the trailers.
fn without_chunks(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            out.push_str(&rest.to_lowercase().replace("\r\n", ";"));
            break;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

#[test]
fn requests_arrive_whole_in_any_pieces() {
    let long = "v".repeat(300);
    let long_name = "x".repeat(200);
    let cases: Vec<(Vec<u8>, &'static str, String)> = vec![
        (head("GET", "/a?b=c", &[]), "\r\n\r\n", "get /a?b=c http/1.1\nhost: a\n\n".to_owned()),
        (
            head("GET", "/a", &[("x-one", "1"), (&long_name, &long), ("te", "trailers"), ("host", "a")]),
            "\r\n\r\n",
            format!("get /a http/1.1\nhost: a\nx-one: 1\n{long_name}: {long}\n\n"),
        ),
        // Parts of one field (section 4.2.1).
        (
            head("GET", "/a", &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]),
            "\r\n\r\n",
            "get /a http/1.1\nhost: a\nx: y\ncookie: a=1; b=2\n\n".to_owned(),
        ),
        (
            frame(HEADERS, list(&[(":method", "GET"), (":path", "/a"), (":scheme", "http"), ("host", "b")])),
            "\r\n\r\n",
            "get /a http/1.1\nhost: b\n\n".to_owned(),
        ),
        // Fields of the static table (RFC 9204 appendix A): GET, https, and a path by name.
        (
            frame(HEADERS, [&[0, 0, 0xd1, 0xd7, 0x51, 2][..], b"/a", &[0x50, 1], b"a"].concat()),
            "\r\n\r\n",
            "get /a http/1.1\nhost: a\n\n".to_owned(),
        ),
        // Unknown frames between known ones (section 9).
        (
            [
                frame(GREASE, "what"),
                frame(GREASE, []),
                head("POST", "/a", &[("content-length", "5")]),
                frame(GREASE + 0x1f, "ever"),
                frame(DATA, "ab"),
                frame(GREASE, []),
                frame(DATA, []),
                frame(DATA, "cde"),
                frame(GREASE, "!"),
            ]
            .concat(),
            "cde",
            "post /a http/1.1\nhost: a\ncontent-length: 5\n\nabcde".to_owned(),
        ),
        (
            [head("POST", "/a", &[]), frame(DATA, "ab"), frame(DATA, "cde")].concat(),
            "0\r\n\r\n",
            "post /a http/1.1\nhost: a\ntransfer-encoding: chunked\n\nabcde;".to_owned(),
        ),
        (
            [head("POST", "/a", &[("content-length", "0")])].concat(),
            "\r\n\r\n",
            "post /a http/1.1\nhost: a\ncontent-length: 0\n\n".to_owned(),
        ),
        // Trailers, but for what could be taken for framing, routing or authentication (RFC 9110 section 6.5.1).
        (
            [
                head("POST", "/a", &[("trailer", "x-sum")]),
                frame(DATA, "abc"),
                frame(GREASE, "-"),
                frame(
                    HEADERS,
                    list(&[
                        ("x-sum", "3"),
                        ("content-length", "9"),
                        ("host", "b"),
                        ("authorization", "c"),
                        ("x-consumer-group-id", "e"),
                        ("x-b", "d"),
                    ]),
                ),
                frame(GREASE, "--"),
            ]
            .concat(),
            "\r\nx-b: d\r\n\r\n",
            "post /a http/1.1\nhost: a\ntrailer: x-sum\ntransfer-encoding: chunked\n\nabcx-sum: 3;x-b: d;;"
                .to_owned(),
        ),
        (
            [head("POST", "/a", &[]), frame(HEADERS, list(&[("x-sum", "0")]))].concat(),
            "\r\nx-sum: 0\r\n\r\n",
            "post /a http/1.1\nhost: a\ntransfer-encoding: chunked\n\nx-sum: 0;;".to_owned(),
        ),
    ];
    beside(
        |_| {},
        async move |site| {
            let client = site.client().await;
            for (bytes, until, wanted) in &cases {
                for singly in [false, true] {
                    site.serves(vec![Until(until), Send(OK), ToEnd]);
                    assert_eq!(client.ask_in_pieces(bytes, singly).await, WELL, "{wanted}");
                    let heard = site.heard().await;
                    assert_eq!(heard.iter().map(|heard| plain(heard)).collect::<Vec<_>>(), [&wanted[..]]);
                }
            }
            client.bye();
        },
    );
}

#[test]
fn malformed_requests_reset_only_their_stream() {
    let post = |length| head("POST", "/a", &[("content-length", length)]);
    let tail = |fields: &[(&str, &str)]| {
        [head("POST", "/a", &[]), frame(DATA, "a"), frame(HEADERS, list(fields))].concat()
    };
    let without = |name: &str| {
        let fields: Vec<_> = ask("GET", "/a", &[]).into_iter().filter(|field| field.0 != name).collect();
        frame(HEADERS, list(&fields))
    };
    let with = |name: &str, value: &str| {
        let put = |field: (&'static str, &'static str)| {
            (field.0, if field.0 == name { value.to_owned() } else { field.1.to_owned() })
        };
        let fields: Vec<_> = ask("GET", "/a", &[]).into_iter().map(put).collect();
        let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, &value[..])).collect();
        frame(HEADERS, list(&fields))
    };
    // Heads (sections 4.2 and 4.3.1).
    let mut cases: Vec<(String, Vec<u8>, u64)> = Vec::new();
    for name in [":method", ":scheme", ":path", ":authority"] {
        cases.push((format!("without {name}"), without(name), MESSAGE_ERROR));
        cases.push((format!("{name} is empty"), with(name, ""), MESSAGE_ERROR));
    }
    for (name, value) in [
        (":path", "a"),
        (":path", "http://a/a"),
        (":path", "/a b"),
        (":scheme", "ftp"),
        (":authority", "u@a"),
        (":authority", "a b"),
        (":method", "G T"),
        (":method", "CONNECT"),
    ] {
        cases.push((format!("{name}: {value}"), with(name, value), MESSAGE_ERROR));
    }
    for more in [
        (":method", "GET"),
        (":path", "/b"),
        (":status", "200"),
        (":own", "x"),
        (":protocol", "websocket"),
        ("X-Upper", "1"),
        ("", "1"),
        ("a b", "1"),
        ("a:b", "1"),
        ("x", "a\r\nb: c"),
        ("x", "a\nb"),
        ("x", "a\0"),
        ("x", " a"),
        ("x", "a\t"),
        ("host", "b"),
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("content-length", "1"),
        ("content-length", "x"),
        ("content-length", "-1"),
    ] {
        cases.push((format!("{more:?}"), head("GET", "/a", &[more]), MESSAGE_ERROR));
    }
    cases.push((
        "what belongs first comes last".to_owned(),
        frame(
            HEADERS,
            list(&[
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", "a"),
                ("x", "y"),
                (":path", "/a"),
            ]),
        ),
        MESSAGE_ERROR,
    ));
    cases.push((
        "two lengths".to_owned(),
        [head("POST", "/a", &[("content-length", "1"), ("content-length", "2")]), frame(DATA, "ab")].concat(),
        MESSAGE_ERROR,
    ));
    // A body has the announced length (section 4.1.2).
    for (about, bytes) in [
        ("too short", [post("3"), frame(DATA, "ab")].concat()),
        ("too short, in two", [post("4"), frame(DATA, "ab"), frame(DATA, "c")].concat()),
        ("too long", [post("1"), frame(DATA, "ab")].concat()),
        ("too long, in two", [post("3"), frame(DATA, "ab"), frame(DATA, "cd")].concat()),
        ("too long behind its end", [post("2"), frame(DATA, "ab"), frame(DATA, "c")].concat()),
        (
            "too short, with trailers",
            [post("2"), frame(DATA, "a"), frame(HEADERS, list(&[("x", "y")]))].concat(),
        ),
        ("none", post("2")),
    ] {
        cases.push((about.to_owned(), bytes, MESSAGE_ERROR));
    }
    // Trailers may not have connection-specific fields either (section 4.2).
    for fields in [
        [(":path", "/")],
        [(":status", "200")],
        [("X-Upper", "1")],
        [("a b", "1")],
        [("a", "b\0")],
        [("connection", "close")],
        [("keep-alive", "1")],
        [("proxy-connection", "close")],
        [("transfer-encoding", "chunked")],
        [("upgrade", "h2c")],
        [("te", "gzip")],
    ] {
        cases.push((format!("trailers {fields:?}"), tail(&fields), MESSAGE_ERROR));
    }
    // The stream ends before its head is complete.
    cases.push(("nothing".to_owned(), vec![], REQUEST_INCOMPLETE));
    cases.push(("nothing that is known".to_owned(), frame(GREASE, "x"), REQUEST_INCOMPLETE));
    beside(
        |_| {},
        async move |site| {
            for (about, bytes, code) in &cases {
                for singly in [false, true] {
                    let client = site.client().await;
                    // A server may get the request before its body turns out to be invalid. It gets no last chunk,
                    // or fewer bytes than Content-Length announces.
                    site.serves(vec![ToEnd]);
                    let answer = client.ask_in_pieces(bytes, singly && bytes.len() < 60).await;
                    assert_eq!(answer, format!("reset {code:x}"), "{about}");
                    site.forget();
                    for heard in site.heard().await {
                        assert!(bytes.len() > 2 && heard.starts_with("POST"), "{about}: {heard}");
                        assert!(!heard.ends_with("\r\n0\r\n\r\n"), "{about}: {heard}");
                    }
                    client.is_served(site, about).await;
                    client.bye();
                }
            }
        },
    );
}

#[test]
fn a_body_is_forwarded_only_up_to_its_announced_length() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            site.serves(vec![ToEnd]);
            let post = head("POST", "/a", &[("content-length", "3")]);
            let (mut send, mut recv) = client.begin(&[post, frame(DATA, "ab")].concat()).await;
            lull().await;
            // The stream need not end for that.
            say(&mut send, &frame(DATA, "cd"), false).await;
            let answer = testing::within(Duration::from_secs(1), answer(&mut recv)).await;
            assert_eq!(answer, Some(format!("reset {MESSAGE_ERROR:x}")));
            let heard = site.heard().await.concat();
            assert!(heard.ends_with("\r\n\r\nab"), "{heard}");
            client.bye();
        },
    );
}

#[test]
fn invalid_frames_end_the_connection() {
    let get = || head("GET", "/a", &[]);
    let post = || head("POST", "/a", &[]);
    let body = || [post(), frame(DATA, "a")].concat();
    let ended = || [body(), frame(HEADERS, list(&[("x", "y")]))].concat();
    let mut cases: Vec<(String, Vec<u8>, u64)> = vec![
        ("DATA first".to_owned(), frame(DATA, "a"), FRAME_UNEXPECTED),
        ("DATA behind trailers".to_owned(), [ended(), frame(DATA, "a")].concat(), FRAME_UNEXPECTED),
        ("empty DATA behind trailers".to_owned(), [ended(), frame(DATA, [])].concat(), FRAME_UNEXPECTED),
        (
            "trailers behind trailers".to_owned(),
            [ended(), frame(HEADERS, list(&[("x", "y")]))].concat(),
            FRAME_UNEXPECTED,
        ),
        ("an end within a head".to_owned(), cut_off(HEADERS, 9, [0, 0]), FRAME_ERROR),
        ("an end within a body".to_owned(), [post(), cut_off(DATA, 9, "a")].concat(), FRAME_ERROR),
        ("an end within trailers".to_owned(), [body(), cut_off(HEADERS, 9, [0, 0])].concat(), FRAME_ERROR),
        ("an end within an unknown frame".to_owned(), cut_off(GREASE, 9, "a"), FRAME_ERROR),
        ("the same in a body".to_owned(), [body(), cut_off(GREASE, 9, "a")].concat(), FRAME_ERROR),
        ("an end within a frame's head".to_owned(), [body(), vec![0, 0x40]].concat(), FRAME_ERROR),
        ("an end within the first frame's head".to_owned(), vec![1], FRAME_ERROR),
    ];
    for kind in [SETTINGS, GOAWAY, CANCEL_PUSH, MAX_PUSH_ID, PUSH_PROMISE, 2, 6, 8, 9] {
        for (about, before) in
            [("first", vec![]), ("behind a head", get()), ("in a body", body()), ("behind trailers", ended())]
        {
            cases.push((
                format!("a frame {kind:x} {about}"),
                [before, frame(kind, [0])].concat(),
                FRAME_UNEXPECTED,
            ));
        }
    }
    for (about, coded) in [
        ("nothing", &[][..]),
        ("half of what is first", &[0]),
        ("a Required Insert Count", &[1, 0, 0x80]),
        ("a negative base", &[0, 0x80]),
        ("a field of the dynamic table", &[0, 0, 0x80]),
        ("a name of the dynamic table", &[0, 0, 0x40, 0]),
        ("a field behind the base", &[0, 0, 0x10]),
        ("a field beyond the static table", &[0, 0, 0xff, 99 - 63]),
        ("half a field", &[0, 0, 0x21, b'a', 5, b'b']),
        ("a number without end", &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("invalid Huffman code", &[0, 0, 0x51, 0x81, 0]),
    ] {
        cases.push((about.to_owned(), frame(HEADERS, coded), DECOMPRESSION_FAILED));
        cases.push((
            format!("{about}, in trailers"),
            [body(), frame(HEADERS, coded)].concat(),
            DECOMPRESSION_FAILED,
        ));
    }
    let (report, reported) = faults();
    beside(report, async move |site| {
        for (about, bytes, code) in &cases {
            let client = site.client().await;
            site.serves(vec![ToEnd]);
            let answer = client.ask(bytes).await;
            assert_eq!(answer, format!("closed {code:x}"), "{about}");
            site.forget();
            site.heard().await;
            assert_eq!(rules(&reported), [named(*code)], "{about}");
        }
    });
}

#[test]
fn plain_connect_is_refused() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            let connect = frame(HEADERS, list(&[(":method", "CONNECT"), (":authority", "a:443")]));
            let answer = client.ask(&connect).await;
            assert!(answer.starts_with("405 ") && answer.ends_with(" | end"), "{answer}");
            for more in [(":path", ""), (":path", "/"), (":scheme", "https")] {
                let fields = [(":method", "CONNECT"), (":authority", "a:443"), more];
                let answer = client.ask(&frame(HEADERS, list(&fields))).await;
                assert_eq!(answer, format!("reset {MESSAGE_ERROR:x}"), "{more:?}");
            }
            client.bye();
        },
    );
}

#[test]
fn heads_that_are_too_large_get_431_unread() {
    let fields: Vec<(String, String)> = (0..11).map(|at| (format!("x-{at}"), "y".to_owned())).collect();
    let many = |count: usize| {
        let fields: Vec<_> = fields[..count].iter().map(|(name, value)| (&name[..], &value[..])).collect();
        head("GET", "/a", &fields)
    };
    let long = |length: usize| head("GET", "/a", &[("x", &"y".repeat(length))]);
    // The longest field section that is read. Its text is shorter than its encoding: eight backslashes are 19 bytes
    // in Huffman code (RFC 7541 appendix B).
    let longest = |longer: usize| {
        let bits: Vec<bool> = (0..128 * 19).map(|bit| bit % 19 < 15).collect();
        let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        let slashes: Vec<u8> = bits.chunks(8).map(byte).collect();
        let mut text = list(&ask("GET", "/a", &[]));
        text.extend([&[0x21, b'z'][..], &integer(0x80, 7, slashes.len()), &slashes].concat());
        // Where two bytes stand for the name and three for the length.
        let filler = 1000 + 16 * 10 + longer - text.len() - 2 - 3;
        text.extend(&list(&[("x", &"y".repeat(filler))])[2..]);
        assert_eq!(text.len(), 1160 + longer);
        frame(HEADERS, text)
    };
    // Two bytes for each of sixty.
    let bomb = frame(HEADERS, [&list(&ask("GET", "/a", &[]))[..], &[0xff, 0x23].repeat(40)].concat());
    let cases = [
        // The host counts, as it does where it is a field.
        ("as many as may be", many(9), "200"),
        ("one too many", many(10), "431"),
        ("long", long(800), "200"),
        ("too long", long(1000), "431"),
        ("long as it is coded", longest(0), "200"),
        ("too long as it is coded", longest(1), "431"),
        ("said to be a gigabyte", cut_off(HEADERS, 1 << 30, [0, 0]), "431"),
        ("said to be a little too long", cut_off(HEADERS, 1000 + 16 * 10 + 1, [0, 0]), "431"),
        ("little that stands for much", bomb, "431"),
    ];
    beside(
        |settings| (settings.request.head, settings.request.fields) = (1000, 10),
        async move |site| {
            for (about, bytes, status) in &cases {
                let client = site.client().await;
                site.serves(answers(OK));
                let (mut send, mut recv) = client.begin(bytes).await;
                if *status == "200" {
                    let _ = send.finish();
                    assert_eq!(answer(&mut recv).await, WELL, "{about}");
                } else {
                    let answer = answer(&mut recv).await;
                    assert!(answer.starts_with(status) && answer.ends_with(" | end"), "{about}: {answer}");
                    // The rest of the request is not read (section 4.1).
                    let stopped = within(send.stopped()).await.unwrap();
                    assert_eq!(stopped, Some(VarInt::from_u32(NO_ERROR as u32)), "{about}");
                    site.forget();
                }
                client.is_served(site, about).await;
                client.bye();
            }
        },
    );
}
