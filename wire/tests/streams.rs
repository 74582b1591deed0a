//! Random commands and replies of Redis and frames of Dubbo: valid ones with a few changed bytes,
//! and bytes of the few significant kinds.

use proptest::prelude::*;
use wire::redis::{Kind, Part, Replies, Requests};

#[path = "support/streams.rs"]
mod checks;

fn command(arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A reply of either version, with bounded nesting.
fn reply() -> impl Strategy<Value = Vec<u8>> {
    let line =
        |start: &'static str| "[ -~]{0,30}".prop_map(move |text| format!("{start}{text}\r\n").into_bytes());
    let bulk = (prop_oneof![Just("$"), Just("="), Just("!")], proptest::collection::vec(any::<u8>(), 0..40));
    let bulk = bulk.prop_map(|(start, text)| {
        let mut bytes = format!("{start}{}\r\n", text.len()).into_bytes();
        bytes.extend_from_slice(&text);
        bytes.extend_from_slice(b"\r\n");
        bytes
    });
    let leaf = prop_oneof![
        line("+"),
        line("-"),
        line(":"),
        line(","),
        line("#"),
        line("("),
        bulk,
        Just(b"$-1\r\n".to_vec()),
        Just(b"*-1\r\n".to_vec()),
        Just(b"_\r\n".to_vec()),
    ];
    leaf.prop_recursive(5, 40, 4, |inner| {
        let many = proptest::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            (prop_oneof![Just("*"), Just("~"), Just(">")], many.clone()).prop_map(|(start, all)| {
                [format!("{start}{}\r\n", all.len()).into_bytes(), all.concat()].concat()
            }),
            many.prop_map(|all| {
                let pairs: Vec<u8> = all.iter().flat_map(|one| [one.as_slice(), one].concat()).collect();
                [format!("%{}\r\n", all.len()).into_bytes(), pairs].concat()
            }),
            inner.prop_map(|one| [b"|1\r\n+k\r\n+v\r\n".to_vec(), one].concat()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn commands_round_trip(
        sent in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..6), 0..4),
        changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..4),
        cut in 1..40usize,
    ) {
        let mut bytes: Vec<u8> = sent.iter().flat_map(|one| command(one)).collect();
        let (mut requests, mut rest, mut got) = (Requests::default(), &bytes[..], Vec::<Vec<Vec<u8>>>::new());
        while !rest.is_empty() {
            let (used, part) = requests.next(rest).unwrap();
            match part {
                Some(Part::Command(_)) => got.push(Vec::new()),
                Some(Part::Argument(_)) => got.last_mut().unwrap().push(Vec::new()),
                Some(Part::Bytes(piece)) => got.last_mut().unwrap().last_mut().unwrap().extend_from_slice(piece),
                Some(Part::ArgumentEnd { .. }) | None => {}
            }
            rest = &rest[used..];
        }
        prop_assert_eq!(got, sent);
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        prop_assert_eq!(checks::commands(&bytes, cut), Ok(()));
    }

    #[test]
    fn replies_end_at_the_same_bytes(
        sent in proptest::collection::vec(reply(), 0..4),
        changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..4),
        cut in 1..40usize,
    ) {
        let mut bytes = sent.concat();
        let (mut replies, mut at, mut ends) = (Replies::default(), 0, Vec::new());
        while at < bytes.len() {
            let (used, reply) = replies.next(&bytes[at..]).unwrap();
            at += used;
            if reply.is_some() {
                ends.push(at);
            }
        }
        let expected = sent.iter().scan(0, |at, one| { *at += one.len(); Some(*at) });
        prop_assert_eq!(ends, expected.collect::<Vec<_>>());
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        prop_assert_eq!(checks::replies(&bytes, cut), Ok(()));
    }

    #[test]
    fn any_bytes_are_parsed_the_same_in_any_segmentation(
        bytes in proptest::collection::vec(
            prop_oneof![6 => proptest::sample::select(b"*$+-:%>|~_=!0123\r\n\xda\xbb\0".to_vec()), 1 => any::<u8>()],
            0..200),
        cut in 1..40usize,
    ) {
        prop_assert_eq!(checks::commands(&bytes, cut), Ok(()));
        prop_assert_eq!(checks::replies(&bytes, cut), Ok(()));
        let mut framed = b"\xda\xbb\xc2\0\0\0\0\0\0\0\0\x01\0\0\0\x03".to_vec();
        framed.extend_from_slice(&bytes);
        prop_assert_eq!(checks::frames(&framed, cut), Ok(()));
    }
}

#[test]
fn a_huge_reply_is_not_buffered() {
    let mut replies = Replies::default();
    assert_eq!(replies.next(b"*2\r\n$4000000000\r\n").unwrap().1, None);
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        assert_eq!(replies.next(&piece), Ok((piece.len(), None)));
    }
    assert!(size_of::<Replies>() < 512 && size_of::<Requests>() < 64);
    let mut other = Replies::default();
    assert_eq!(other.next(b"-ERR\r\n").unwrap().1.unwrap().kind, Kind::Error);
}
