//! Unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4).

use std::time::Duration;

use proxy::testing;
use quinn::{TransportConfig, VarInt};

use super::client::*;

/// The end of a stream.
#[derive(Debug, Clone, Copy)]
enum Then {
    Stay,
    Finish,
    Reset,
}
use Then::{Finish, Reset, Stay};

/// The bytes of a stream, and its end.
type Said = (Vec<u8>, Then);

/// Returns a stream's type and its bytes.
fn on(kind: u8, bytes: &[&[u8]]) -> Vec<u8> {
    [&[kind], &bytes.concat()[..]].concat()
}

/// Returns a control stream that begins with SETTINGS, as it must.
fn settings(bytes: &[&[u8]]) -> Vec<u8> {
    [on(CONTROL, &[&frame(SETTINGS, [])]), bytes.concat()].concat()
}

/// Connects a client and sends these unidirectional streams, in their order.
async fn says(site: &Site, streams: &[Said], singly: bool) -> Client {
    let mut client = site.mute(TransportConfig::default()).await.unwrap();
    for (bytes, then) in streams {
        let Ok(mut send) = client.conn.open_uni().await else { break };
        say(&mut send, bytes, singly).await;
        lull().await;
        match then {
            Stay => {}
            Finish => drop(send.finish()),
            Reset => drop(send.reset(VarInt::from_u32(7))),
        }
        client.kept.push(send);
        lull().await;
        if client.conn.close_reason().is_some() {
            break;
        }
    }
    client
}

#[test]
fn violations_end_the_connection_and_are_logged() {
    let mut cases: Vec<(&str, Vec<Said>, u64)> = vec![
        ("no settings first", vec![(on(CONTROL, &[&frame(GOAWAY, [0])]), Stay)], MISSING_SETTINGS),
        (
            "settings after an unknown frame",
            vec![(on(CONTROL, &[&frame(GREASE, [])]), Stay)],
            MISSING_SETTINGS,
        ),
        ("settings twice", vec![(settings(&[&frame(SETTINGS, [])]), Stay)], FRAME_UNEXPECTED),
        ("two streams of control", vec![(settings(&[]), Stay), (vec![CONTROL], Stay)], STREAM_CREATION_ERROR),
        ("two for the table", vec![(vec![ENCODER], Stay), (vec![ENCODER], Stay)], STREAM_CREATION_ERROR),
        ("two from the table", vec![(vec![DECODER], Stay), (vec![DECODER], Stay)], STREAM_CREATION_ERROR),
        ("a push", vec![(vec![PUSH, 0], Stay)], STREAM_CREATION_ERROR),
        ("no end of control", vec![(vec![CONTROL], Finish)], CLOSED_CRITICAL_STREAM),
        ("an end of control", vec![(settings(&[]), Finish)], CLOSED_CRITICAL_STREAM),
        ("a reset of control", vec![(settings(&[]), Reset)], CLOSED_CRITICAL_STREAM),
        (
            "a reset within settings",
            vec![(on(CONTROL, &[&cut_off(SETTINGS, 4, [6])]), Reset)],
            CLOSED_CRITICAL_STREAM,
        ),
        (
            "a reset within GOAWAY",
            vec![(settings(&[&cut_off(GOAWAY, 4, [0x80])]), Reset)],
            CLOSED_CRITICAL_STREAM,
        ),
        (
            "a reset within an unknown frame",
            vec![(settings(&[&cut_off(GREASE, 9, [1])]), Reset)],
            CLOSED_CRITICAL_STREAM,
        ),
        ("an end within a frame", vec![(settings(&[&cut_off(GREASE, 9, [1])]), Finish)], FRAME_ERROR),
        ("the end of the encoder", vec![(vec![ENCODER], Finish)], CLOSED_CRITICAL_STREAM),
        ("a reset of the encoder", vec![(vec![ENCODER, 0x20], Reset)], CLOSED_CRITICAL_STREAM),
        ("the end of the decoder", vec![(vec![DECODER, 0x41], Finish)], CLOSED_CRITICAL_STREAM),
        ("a reset of the decoder", vec![(vec![DECODER], Reset)], CLOSED_CRITICAL_STREAM),
        (
            "a setting twice",
            vec![(on(CONTROL, &[&frame(SETTINGS, [6, 1, 1, 0, 6, 1])]), Stay)],
            SETTINGS_ERROR,
        ),
        ("half a setting", vec![(on(CONTROL, &[&frame(SETTINGS, [6])]), Stay)], FRAME_ERROR),
        ("half a number", vec![(on(CONTROL, &[&frame(SETTINGS, [6, 0x40])]), Stay)], FRAME_ERROR),
        (
            "settings that are too long",
            vec![(on(CONTROL, &[&cut_off(SETTINGS, 4097, [])]), Stay)],
            EXCESSIVE_LOAD,
        ),
        (
            "a GOAWAY that is too long",
            vec![(settings(&[&cut_off(GOAWAY, 1 << 30, [])]), Stay)],
            EXCESSIVE_LOAD,
        ),
        ("a push that there is not", vec![(settings(&[&frame(CANCEL_PUSH, [0])]), Stay)], ID_ERROR),
        (
            "more pushes, then fewer",
            vec![(settings(&[&frame(MAX_PUSH_ID, [9]), &frame(MAX_PUSH_ID, [8])]), Stay)],
            ID_ERROR,
        ),
        (
            "going sooner, then later",
            vec![(settings(&[&frame(GOAWAY, [4]), &frame(GOAWAY, [5])]), Stay)],
            ID_ERROR,
        ),
        ("a table's size", vec![(vec![ENCODER, 0x21], Stay)], ENCODER_STREAM_ERROR),
        ("a table's field", vec![(vec![ENCODER, 0x41, b'a', 1, b'b'], Stay)], ENCODER_STREAM_ERROR),
        ("the beginning of one", vec![(vec![ENCODER, 0x41], Stay)], ENCODER_STREAM_ERROR),
        ("a field that was read", vec![(vec![DECODER, 0x80], Stay)], DECODER_STREAM_ERROR),
        ("fields that were learned", vec![(vec![DECODER, 0x20], Stay)], DECODER_STREAM_ERROR),
        (
            "a field behind a number",
            vec![(vec![DECODER, 0x7f, 0x80, 0x00, 0x80], Stay)],
            DECODER_STREAM_ERROR,
        ),
        ("no number behind a short one", vec![(vec![DECODER, 0x7e, 0x00], Stay)], DECODER_STREAM_ERROR),
    ];
    for id in 2..=5 {
        let bytes = on(CONTROL, &[&frame(SETTINGS, [1, 0, id, 0])]);
        cases.push(("a setting of HTTP/2", vec![(bytes, Stay)], SETTINGS_ERROR));
    }
    for kind in [DATA, HEADERS, PUSH_PROMISE, 2, 6, 8, 9] {
        let bytes = settings(&[&frame(kind, [0, 0])]);
        cases.push(("a frame that belongs elsewhere", vec![(bytes, Stay)], FRAME_UNEXPECTED));
    }
    for kind in [GOAWAY, CANCEL_PUSH, MAX_PUSH_ID] {
        for payload in [&[][..], &[0x40], &[0, 0], &[0x40, 0, 0]] {
            cases.push(("no number", vec![(settings(&[&frame(kind, payload)]), Stay)], FRAME_ERROR));
        }
    }
    let (report, reported) = faults();
    beside(report, async move |site| {
        for (about, streams, code) in &cases {
            for singly in [false, true] {
                let client = says(site, streams, singly && streams[0].0.len() < 100).await;
                let closed = client.closed().await;
                assert_eq!(closed, *code, "{about}: {streams:x?}: {closed:x}, not {code:x}");
                drop(client);
                site.heard().await;
                assert_eq!(rules(&reported), [named(*code)], "{about}");
            }
        }
    });
}

/// Returns a SETTINGS frame with unknown settings of 4096 bytes, the most that is read.
fn most_settings() -> Vec<u8> {
    let text: Vec<u8> =
        (0..512).flat_map(|at| [number(0x21 + 0x1f * (10_000 + at)), number(1 << 20)].concat()).collect();
    assert_eq!(text.len(), 4096);
    frame(SETTINGS, text)
}

#[test]
fn unknown_and_unneeded_frames_and_streams_are_ignored() {
    let cases: Vec<(&str, Vec<Said>)> = vec![
        (
            "known and unknown settings",
            vec![(on(CONTROL, &[&frame(SETTINGS, [6, 0x44, 0, 1, 0, 0x21, 7])]), Stay)],
        ),
        ("the longest settings", vec![(on(CONTROL, &[&most_settings()]), Stay)]),
        (
            "unknown frames",
            vec![(
                settings(&[&frame(GREASE, []), &frame(GREASE, vec![b'x'; 9000]), &frame(GREASE + 0x1f, [1])]),
                Stay,
            )],
        ),
        (
            "MAX_PUSH_ID, though the gateway never pushes",
            vec![(
                settings(&[
                    &frame(MAX_PUSH_ID, [7]),
                    &frame(MAX_PUSH_ID, [7]),
                    &frame(MAX_PUSH_ID, [0x40, 8]),
                ]),
                Stay,
            )],
        ),
        ("GOAWAY", vec![(settings(&[&frame(GOAWAY, [8]), &frame(GOAWAY, [8]), &frame(GOAWAY, [0])]), Stay)]),
        ("a table of size 0", vec![(vec![ENCODER, 0x20, 0x20], Stay), (settings(&[]), Stay)]),
        ("cancelled field sections", vec![(vec![DECODER, 0x40, 0x7f, 0xff, 0x80, 0x01, 0x7e, 0x41], Stay)]),
        (
            "streams of unknown types",
            vec![(vec![0x21, 1, 2, 3], Finish), (vec![0x40, 0x40, 1], Reset), (vec![0x54], Stay)],
        ),
        (
            "streams that end within their type",
            vec![(vec![], Finish), (vec![0x40], Finish), (vec![0xc0, 0], Reset)],
        ),
        (
            "one stream of each type",
            vec![(vec![DECODER], Stay), (vec![ENCODER], Stay), (settings(&[]), Stay)],
        ),
    ];
    let (report, reported) = faults();
    beside(report, async move |site| {
        for (about, streams) in &cases {
            for singly in [false, true] {
                let client = says(site, streams, singly && streams[0].0.len() < 100).await;
                client.is_served(site, about).await;
                client.bye();
                site.heard().await;
                assert!(reported.try_iter().next().is_none(), "{about}");
            }
        }
        // The gateway stops reading a stream of an unknown type (STOP_SENDING).
        let client = site.client().await;
        let unknown = client.one_way(&[0x21, 1, 2]).await;
        let stopped = within(unknown.stopped()).await.unwrap();
        assert_eq!(stopped, Some(VarInt::from_u32(STREAM_CREATION_ERROR as u32)));
        client.bye();
    });
}

#[test]
fn the_gateway_sends_settings_and_nothing_else() {
    beside(
        |settings| {
            settings.request.head = 5000;
            settings.request.fields = 7;
        },
        async |site| {
            let client = site.client().await;
            client.is_served(site, "first").await;
            let (kind, mut control) = client.hear().await;
            // Each field counts 32 bytes more than its length (section 4.2.2). Setting 8 enables extended CONNECT
            // (RFC 9220 section 3).
            let expected = frame(SETTINGS, [&[6][..], &number(5000 + 7 * 32), &[8, 1]].concat());
            let mut got = vec![0; expected.len()];
            within(control.read_exact(&mut got)).await.unwrap();
            assert_eq!((kind, got), (CONTROL, expected));
            let second = Duration::from_secs(1);
            assert!(testing::within(second, client.conn.accept_uni()).await.is_none(), "another stream");
            assert!(testing::within(second, control.read_chunk(9, true)).await.is_none(), "more on this one");
            client.bye();
        },
    );
}
