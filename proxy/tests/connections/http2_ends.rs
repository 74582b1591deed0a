//! The end of HTTP/2 connections: which requests still begin, which faults are reported, and what the client gets.

use std::time::Duration;

use proxy::testing::{self, End, Gateway, Schedule};
use proxy::{FaultKind, Flood, Settings};

use crate::support::recorder::faults;
use crate::support::{settle, with_gateways};

const SECOND: Duration = Duration::from_secs(1);

/// Kinds of frames (RFC 9113 section 6), and how their streams and heads end.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const GOAWAY: u8 = 7;
const WHOLE: u8 = 5;

/// Reasons (section 7).
const NO_ERROR: u8 = 0;
const CALM: u8 = 11;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// Returns the preface and empty SETTINGS of a client.
fn begins() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// Returns a GET request with these bytes after its other fields.
fn get(stream: u8, path: &str, more: &[u8]) -> Vec<u8> {
    let head = [&[0x82, 0x86, 0x41, 1, b'a', 4, path.len() as u8], path.as_bytes(), more].concat();
    frame(HEADERS, WHOLE, stream, &head)
}

fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[7; 8])
}

/// Reads to the end: kind, stream and payload of each frame.
async fn rest(end: &End) -> Vec<(u8, u8, Vec<u8>)> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = end.read(&mut part).await {
        bytes.extend_from_slice(&part[..n]);
    }
    let (mut frames, mut bytes) = (Vec::new(), &bytes[..]);
    while let Some((&[_, a, b, kind, _, _, _, _, stream], behind)) = bytes.split_first_chunk::<9>() {
        let (payload, behind) = behind.split_at(usize::from(a) << 8 | usize::from(b));
        frames.push((kind, stream, payload.to_vec()));
        bytes = behind;
    }
    frames
}

/// Returns the error codes of the GOAWAY frames.
fn reasons(frames: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
    frames.iter().filter(|frame| frame.0 == GOAWAY).map(|frame| frame.2[7]).collect()
}

fn connect(gateway: &Gateway) -> End {
    gateway.connect_any(Schedule::default(), Schedule::default())
}

#[test]
fn a_flood_ends_the_connection_and_requests_that_came_with_it_do_not_begin() {
    let (report, reported) = faults();
    let mut settings = Settings::default();
    settings.http2.control_frames = 20;
    report(&mut settings);
    with_gateways(settings, 1, async move |mut gateways, meters| {
        let gateway = gateways.next().unwrap();
        let mut begun = 0;
        for (about, requests, pause) in [("at once", 8, false), ("later", 1, true)] {
            let end = connect(&gateway);
            let asks = (0..requests).flat_map(|at| get(2 * at + 1, "/nowhere", &[]));
            let mut first: Vec<u8> = begins().into_iter().chain(asks).collect();
            let flood = ping().repeat(400);
            if pause {
                end.write_all(&first).await.unwrap();
                testing::sleep(SECOND).await;
                first = flood;
            } else {
                first.extend(flood);
            }
            end.write_all(&first).await.unwrap();
            let frames = testing::within(SECOND, rest(&end)).await.expect("it ends");
            assert_eq!(reasons(&frames), [CALM], "{about}");
            drop(end);
            settle(&gateway, about).await;
            let floods: Vec<_> = reported.try_iter().map(|fault| fault.fault.kind).collect();
            assert_eq!(floods, [FaultKind::Flood(Flood::Frames)], "{about}");
            begun += u64::from(pause);
            assert_eq!(meters.read(1, |reading| reading.totals()).began, begun, "{about}");
        }
    });
}

#[test]
fn broken_rules_are_reported() {
    let (report, reported) = faults();
    let mut settings = Settings::default();
    settings.http2.max_stream_errors = 1;
    report(&mut settings);
    with_gateways(settings, 1, async move |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        // `connection` is not a valid field in HTTP/2.
        let bad = |stream| get(stream, "/nowhere", b"\0\x0aconnection\x01x");
        let errors = [bad(1), bad(3), bad(5)].concat();
        let bytewise = Schedule { most: 1, ..Schedule::default() };
        let whole = Schedule::default;
        let broken = |name| Some((format!("the client broke a rule of HTTP/2 ({name})"), 400));
        let flood = |flood| Some((FaultKind::Flood(flood).words().to_owned(), 429));
        // The largest increment, which overflows the window.
        let window = frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]);
        for (about, theirs, bytes, reason, expected) in [
            ("DATA on stream 0", whole(), frame(DATA, 0, 0, b"x"), Some(1), broken("PROTOCOL_ERROR")),
            ("too large a window", whole(), window, Some(3), broken("FLOW_CONTROL_ERROR")),
            (
                "too long a frame",
                whole(),
                frame(DATA, 0, 1, &[0; (16 << 10) + 1]),
                Some(6),
                broken("FRAME_SIZE_ERROR"),
            ),
            (
                "an invalid header block",
                whole(),
                frame(HEADERS, WHOLE, 1, &[0xff; 9]),
                Some(9),
                broken("COMPRESSION_ERROR"),
            ),
            ("many stream errors", whole(), errors.clone(), Some(CALM), flood(Flood::StreamErrors)),
            (
                "many stream errors, written in pieces",
                bytewise,
                errors,
                Some(CALM),
                flood(Flood::StreamErrors),
            ),
            ("GOAWAY of the client", whole(), frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, CALM]), None, None),
            ("a client that closes within a frame", whole(), vec![0, 0, 8, PING], None, None),
        ] {
            let end = gateway.connect_any(theirs, Schedule::default());
            end.write_all(&[begins(), bytes].concat()).await.unwrap();
            if reason.is_none() {
                testing::turn().await;
                end.shut_down();
            }
            let frames = testing::within(SECOND, rest(&end)).await.expect("it ends");
            let reasons = reasons(&frames);
            assert_eq!(reasons.iter().find(|reason| **reason != NO_ERROR), reason.as_ref(), "{about}");
            drop(end);
            settle(&gateway, about).await;
            // Requests under way end with the connection, which is reported as well.
            let reported = reported.try_iter().filter(|fault| fault.fault.kind != FaultKind::ClientGone);
            // As is each request that was refused.
            let reported: Vec<_> = reported
                .map(|fault| (fault.fault.kind.words().to_owned(), fault.status))
                .filter(|(words, _)| !words.contains("Connection names"))
                .collect();
            assert_eq!(reported, expected.into_iter().collect::<Vec<_>>(), "{about}");
        }
    });
}

#[test]
fn invalid_prefaces_are_reported() {
    let (report, reported) = faults();
    let mut settings = Settings::default();
    report(&mut settings);
    with_gateways(settings, 1, async move |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        for (bytes, is_reported) in [
            (&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], true),
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            // An incomplete preface may be a client that closed early.
            (b"PRI * HTTP/2.0\r\n\r\n", false),
            (b"", false),
        ] {
            let end = gateway.connect_h2(Schedule::default(), Schedule::default());
            end.write_all(bytes).await.unwrap();
            testing::turn().await;
            end.shut_down();
            testing::within(SECOND, rest(&end)).await.expect("it ends");
            drop(end);
            settle(&gateway, "a preface").await;
            let reported: Vec<_> =
                reported.try_iter().map(|fault| (fault.fault.kind.words(), fault.status)).collect();
            let expected = ("the connection does not begin with the preface of HTTP/2 (PROTOCOL_ERROR)", 400);
            assert_eq!(reported, if is_reported { vec![expected] } else { vec![] });
        }
    });
}

#[test]
fn a_closing_connection_waits_only_for_bytes_that_the_client_could_lose() {
    let settings = Settings::with(|settings| {
        settings.timeouts.keepalive = 5 * SECOND;
        settings.timeouts.linger = 2 * SECOND;
        settings.timeouts.send = 60 * SECOND;
    });
    with_gateways(settings, 1, async |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        // The client has read everything but does not answer the PING by which the gateway asks.
        let end = connect(&gateway);
        end.write_all(&[begins(), get(1, "/nowhere", &[])].concat()).await.unwrap();
        let frames = testing::within(8 * SECOND, rest(&end)).await.expect("it ends");
        assert_eq!(reasons(&frames), [NO_ERROR]);
        testing::turn().await;
        assert_eq!(gateway.connections(), 0);
        // The client has not read its response yet.
        let end = connect(&gateway);
        end.write_all(&[begins(), get(1, "/recorded-long", &[])].concat()).await.unwrap();
        testing::sleep(20 * SECOND).await;
        let frames = rest(&end).await;
        let body: usize = frames.iter().filter(|frame| frame.0 == DATA).map(|frame| frame.2.len()).sum();
        assert_eq!((body, reasons(&frames)), (20_000, vec![NO_ERROR]));
        drop(end);
        settle(&gateway, "one that takes its answer late").await;
    });
}

#[test]
fn a_client_that_floods_and_does_not_read_is_disconnected() {
    let mut settings = Settings::with(|settings| {
        settings.timeouts.linger = 2 * SECOND;
        settings.timeouts.send = 60 * SECOND;
    });
    settings.http2.control_frames = 20;
    with_gateways(settings, 1, async |mut gateways, meters| {
        let gateway = gateways.next().unwrap();
        let narrow = Schedule { room: 1000, ..Schedule::default() };
        let end = gateway.connect_any(Schedule::default(), narrow);
        end.write_all(&[begins(), get(1, "/recorded-long", &[])].concat()).await.unwrap();
        testing::sleep(SECOND).await;
        let asks = [get(3, "/nowhere", &[]), get(5, "/nowhere", &[]), get(7, "/nowhere", &[])].concat();
        end.write_all(&[asks, frame(PRIORITY, 0, 9, &[0; 5]).repeat(400)].concat()).await.unwrap();
        testing::sleep(SECOND).await;
        assert_eq!(gateway.connections(), 1, "time to read GOAWAY");
        testing::sleep(2 * SECOND).await;
        assert_eq!(gateway.connections(), 0, "that time is over");
        let begun = meters.read(1, |reading| reading.totals()).began;
        assert_eq!(begun, 1, "requests that come with the flood do not begin");
        drop(end);
    });
}

#[test]
fn a_connection_ends_when_its_last_stream_takes_too_long_to_send() {
    let settings = Settings::with(|settings| {
        settings.timeouts.send = 3 * SECOND;
        settings.timeouts.keepalive = 600 * SECOND;
    });
    with_gateways(settings, 1, async |mut gateways, _| {
        let gateway = gateways.next().unwrap();
        let end = connect(&gateway);
        // The client's INITIAL_WINDOW_SIZE is 0.
        let shut = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let asks = [begins(), shut, get(1, "/recorded-long", &[])].concat();
        end.write_all(&asks).await.unwrap();
        testing::sleep(2 * SECOND).await;
        assert_eq!(gateway.connections(), 1);
        testing::sleep(20 * SECOND).await;
        assert_eq!(gateway.connections(), 0);
    });
}
