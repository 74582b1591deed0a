//! Limits on bodies and trailers, and incomplete requests: cancelled, late, or not wanted (RFC 9114 sections 4.1 and
//! 4.1.1).

use quinn::VarInt;

use super::client::*;
use crate::support::Do::{Send, ToEnd, Until};

const CANCELLED: VarInt = VarInt::from_u32(REQUEST_CANCELLED as u32);

#[test]
fn trailers_are_no_larger_than_a_head() {
    let body = || [head("POST", "/a", &[]), frame(DATA, "a")].concat();
    let fields: Vec<(String, String)> = (0..11).map(|at| (format!("x-{at}"), "y".to_owned())).collect();
    let fields: Vec<_> = fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    let (fits, many) = (list(&fields[..10]), list(&fields));
    let full = list(&[("x", &"y".repeat(993))]);
    assert_eq!(full.len(), 1000);
    let cases = [
        ("as many as may be", frame(HEADERS, fits), true),
        ("as long as may be", frame(HEADERS, full), true),
        ("one too many", frame(HEADERS, many), false),
        ("a byte too long", cut_off(HEADERS, 1001, []), false),
        ("a gigabyte", cut_off(HEADERS, 1 << 30, [0, 0]), false),
        (
            "little that stands for much",
            frame(HEADERS, [&[0, 0][..], &[0xff, 0x23].repeat(40)].concat()),
            false,
        ),
    ];
    beside(
        |settings| (settings.request.head, settings.request.fields) = (1000, 10),
        async move |site| {
            for (about, trailers, fits) in &cases {
                let client = site.client().await;
                site.serves(if *fits {
                    vec![Until("0\r\nx"), Until("\r\n\r\n"), Send(OK), ToEnd]
                } else {
                    vec![ToEnd]
                });
                let (mut send, mut recv) = client.begin(&[body(), trailers.clone()].concat()).await;
                if *fits {
                    let _ = send.finish();
                }
                let answer = answer(&mut recv).await;
                assert_eq!(
                    answer,
                    if *fits { WELL.to_owned() } else { format!("reset {EXCESSIVE_LOAD:x}") },
                    "{about}"
                );
                client.is_served(site, about).await;
                client.bye();
            }
        },
    );
}

#[test]
fn a_body_is_no_larger_than_it_may_be() {
    let post = |more: &[(&'static str, &'static str)], body: &str| {
        [head("POST", "/a", more), frame(DATA, body)].concat()
    };
    let cases = [
        ("as large as may be", post(&[("content-length", "5")], "abcde"), true),
        ("the same, unmeasured", post(&[], "abcde"), true),
        ("too large", post(&[("content-length", "6")], "abcdef"), false),
        ("too large, unmeasured", post(&[], "abcdef"), false),
        ("too large in pieces", [post(&[], "abc"), frame(DATA, "def")].concat(), false),
    ];
    beside(
        |settings| settings.limits.body = 5,
        async move |site| {
            for (about, bytes, fits) in &cases {
                let client = site.client().await;
                site.serves(if *fits { vec![Until("abcde"), Send(OK), ToEnd] } else { vec![ToEnd] });
                let answer = client.ask(bytes).await;
                assert!(
                    answer.starts_with(if *fits { "200" } else { "413" }) && answer.ends_with(" | end"),
                    "{about}: {answer}"
                );
                site.forget();
                client.is_served(site, about).await;
                client.bye();
            }
        },
    );
}

#[test]
fn cancelled_requests_end_at_the_server_too() {
    let open = || [head("POST", "/a", &[("content-length", "9")]), frame(DATA, "abc")].concat();
    // Name, the bytes the client has sent, and whether a server gets the request.
    let cases: Vec<(&str, Vec<u8>, bool)> = vec![
        ("nothing", vec![], false),
        ("half a head", head("POST", "/a", &[])[..9].to_vec(), false),
        ("half an unknown frame", cut_off(GREASE, 9, "a"), false),
        ("half a body", open(), true),
        ("a body within a frame", [open(), cut_off(DATA, 6, "def")].concat(), true),
        ("a body, and no end", [open(), frame(DATA, "defghi")].concat(), true),
        ("half of its trailers", [open(), frame(DATA, "defghi"), cut_off(HEADERS, 9, [0, 0])].concat(), true),
    ];
    beside(
        |_| {},
        async move |site| {
            let client = site.client().await;
            for (about, bytes, asks) in &cases {
                if *asks {
                    site.serves(vec![Until("abc"), ToEnd]);
                }
                let (mut send, mut recv) = client.begin(bytes).await;
                lull().await;
                send.reset(CANCELLED).unwrap();
                assert_eq!(answer(&mut recv).await, format!("reset {REQUEST_CANCELLED:x}"), "{about}");
                client.is_served(site, about).await;
            }
            // The client stops reading: the request to the server ends, before its response and during it.
            for before in [&[][..], &[Send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")]] {
                site.serves([&[Until("\r\n\r\n")], before, &[ToEnd]].concat());
                let (mut send, mut recv) = client.begin(&head("GET", "/a", &[])).await;
                send.finish().unwrap();
                lull().await;
                recv.stop(CANCELLED).unwrap();
                client.is_served(site, "stopped").await;
            }
            // Closing the connection ends its requests at once.
            site.serves(vec![Until("abc"), ToEnd]);
            let _kept = client.begin(&open()).await;
            lull().await;
            client.bye();
        },
    );
}

#[test]
fn an_early_response_is_whole_and_the_rest_of_the_request_is_not_read() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            let head = head("POST", "/nowhere", &[("content-length", "9")]);
            let (send, mut recv) = client.begin(&[head, frame(DATA, "abc")].concat()).await;
            let answer = answer(&mut recv).await;
            assert!(answer.starts_with("404 ") && answer.ends_with(" | end"), "{answer}");
            assert_eq!(within(send.stopped()).await.unwrap(), Some(VarInt::from_u32(NO_ERROR as u32)));
            // There is no STOP_SENDING for a request that was read to its end.
            let (mut send, mut recv) = client.begin(&super::client::head("GET", "/nowhere", &[])).await;
            send.finish().unwrap();
            assert!(super::client::answer(&mut recv).await.starts_with("404 "));
            assert_eq!(within(send.stopped()).await.unwrap(), None);
            client.bye();
        },
    );
}

#[test]
fn slow_requests_get_408() {
    beside(
        |settings| settings.timeouts.keepalive = std::time::Duration::from_secs(100),
        async |site| {
            let client = site.client().await;
            for bytes in [head("GET", "/a", &[])[..20].to_vec(), cut_off(GREASE, 9, "a")] {
                let (_send, mut recv) = client.begin(&bytes).await;
                let answer = answer(&mut recv).await;
                assert!(answer.starts_with("408 ") && answer.ends_with(" | end"), "{answer}");
            }
            site.serves(vec![ToEnd]);
            let (_send, mut recv) = client
                .begin(&[head("POST", "/a", &[("content-length", "9")]), frame(DATA, "abc")].concat())
                .await;
            let answer = answer(&mut recv).await;
            assert!(answer.starts_with("408 ") && answer.ends_with(" | end"), "{answer}");
            client.bye();
        },
    );
}

#[test]
fn request_bytes_are_recorded() {
    beside(
        |_| {},
        async |site| {
            let client = site.client().await;
            site.serves(vec![Until("abcde"), Send(OK), ToEnd]);
            let coded = list(&ask("POST", "/recorded", &[("content-length", "5")]));
            let bytes = [frame(HEADERS, &coded), frame(DATA, "abc"), frame(DATA, "de")].concat();
            let (mut send, mut recv) = client.begin(&bytes).await;
            send.finish().unwrap();
            // Heads and bodies count, without their frames.
            let (head, body) = (next_frame(&mut recv).await, next_frame(&mut recv).await);
            let (received, sent) = (coded.len() + 5, head.1.len() + body.1.len());
            crate::support::recorder::check(
                &["POST 200 body 2 from [200] in 0, 0"],
                received,
                sent,
                false,
                "recorded",
            );
            client.bye();
        },
    );
}
