//! Random blocks of HPACK, and random fields from an encoder to a decoder.

use proptest::prelude::*;
use wire::List;
use wire::h2::hpack::Decoder;

#[path = "support/hpack.rs"]
mod checks;

/// Few names and values, so that many repeat, and some that are unlike all others.
fn field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let name = prop_oneof![
        4 => proptest::sample::select(vec![
            ":authority", ":method", ":path", ":protocol", ":scheme", "server", "Server", "accept-encoding",
            "content-length", "cookie", "x-own", "X-Own", "x-a-longer-name", "X-A-Longer-Name", "date",
        ])
        .prop_map(|name| name.as_bytes().to_vec()),
        1 => "[a-zA-Z-]{1,40}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        4 => proptest::sample::select(vec!["", "1", "GET", "https", "/", "gzip, deflate", "a value of 24 characters"])
            .prop_map(|value| value.as_bytes().to_vec()),
        1 => (0..5u8, 0..900usize).prop_map(|(byte, length)| vec![byte; length]),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    (name, value)
}

fn settings() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        4 => Just(Vec::new()),
        1 => proptest::collection::vec(prop_oneof![0..300u32, 300..9000u32, Just(4096)], 1..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn fields_round_trip_while_sizes_change(
        sent in proptest::collection::vec((settings(), proptest::collection::vec(field(), 0..12)), 1..20),
    ) {
        prop_assert_eq!(checks::round_trip(&sent), Ok(()));
    }

    #[test]
    fn random_blocks_are_decoded_within_bounds(
        // Indices, sizes, literals with short texts, and any bytes.
        pieces in proptest::collection::vec(prop_oneof![
            3 => (0x80..=0xffu8).prop_map(|index| vec![index]),
            1 => (0x20..0x40u8).prop_map(|size| vec![size]),
            3 => (prop_oneof![Just(0x40u8), Just(0), Just(0x10)], 0..9u8, 0..9u8).prop_map(|(form, name, value)| {
                [vec![form, name], vec![b'n'; name.into()], vec![value], vec![b'v'; value.into()]].concat()
            }),
            3 => (0x41..0x7fu8, 0..90u8).prop_map(|(form, value)| [vec![form, value], vec![b'v'; value.into()]].concat()),
            1 => proptest::collection::vec(any::<u8>(), 0..10),
        ], 0..60),
        cut in any::<u8>(),
    ) {
        prop_assert_eq!(checks::blocks(&[vec![cut], pieces.concat()].concat()), Ok(()));
    }
}

/// Blocks and verdicts of an independent implementation.
#[test]
fn blocks_of_another_encoder_are_decoded_alike() {
    let (mut decoder, mut list, mut blocks) = (Decoder::new(0), List::default(), 0);
    let mut lines = include_str!("hpack/vectors.txt").lines().peekable();
    while let Some(line) = lines.next() {
        let (kind, rest) = line.split_once(' ').unwrap();
        if kind == "table" {
            decoder = Decoder::new(rest.parse().unwrap());
            continue;
        }
        let byte = |at| u8::from_str_radix(&rest[at..at + 2], 16).unwrap();
        let block: Vec<u8> = (0..rest.len()).step_by(2).map(byte).collect();
        let done = decoder.decode(&block, &mut list, 1 << 16, 100);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = list.iter().map(|(name, value, _)| format!("{}: {}", text(name), text(value)));
        let is_field =
            |line: &&str| !["table ", "block ", "refused "].iter().any(|kind| line.starts_with(kind));
        let expected: Vec<_> = std::iter::from_fn(|| lines.next_if(is_field)).collect();
        assert_eq!(done.is_ok(), kind == "block", "{rest}: {done:?}");
        assert_eq!(fields.collect::<Vec<_>>(), expected, "{rest}");
        blocks += 1;
    }
    assert!(blocks > 200, "{blocks}");
}
