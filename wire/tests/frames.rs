//! Random fields of HTTP/3 and random frames of WebSocket: valid ones with a few bytes changed.

use proptest::prelude::*;
use wire::Name;
use wire::h3::qpack;

#[path = "support/frames.rs"]
mod checks;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_fields_have_one_meaning(
        listed in proptest::collection::vec(("[a-z:-]{1,20}", proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
        changes in proptest::collection::vec((0..200usize, any::<u8>()), 0..4),
        random in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut coded = Vec::new();
        qpack::begin(&mut coded);
        for (name, value) in &listed {
            qpack::put(Name::from_bytes(name.as_bytes()), name.as_bytes(), value, &mut coded);
        }
        let mut list = wire::List::default();
        prop_assert_eq!(qpack::decode(&coded, &mut list, 1 << 20, 100), Ok(()));
        let expected = listed.iter().map(|(name, value)| (name.as_bytes(), &value[..], Name::from_bytes(name.as_bytes())));
        prop_assert!(list.iter().eq(expected), "{:?}", list);
        for (at, byte) in changes {
            if let Some(place) = coded.get_mut(at) {
                *place = byte;
            }
        }
        prop_assert_eq!(checks::fields(&coded), Ok(()));
        prop_assert_eq!(checks::fields(&random), Ok(()));
        prop_assert_eq!(checks::numbers(&random), Ok(()));
    }

    #[test]
    fn websocket_frames_end_at_the_same_bytes(
        bytes in proptest::collection::vec(prop_oneof![4 => 0..20u8, 1 => any::<u8>()], 0..300),
        cut in 1..50usize,
    ) {
        prop_assert_eq!(checks::websocket(&bytes, cut), Ok(()));
    }
}
