//! Random first messages: valid ones with a few changed bytes, which come close to invalid ones.

use proptest::prelude::*;

#[path = "support/prefaces.rs"]
mod checks;

const V1: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.2 56324 443\r\n";
const V2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x11\xc0\0\x02\x01\x0a\0\0\x02\xdc\x04\x01\xbb\x04\0\x02\x09\x09";
const HELLO: &[u8] = b"\x16\x03\x01\0\x3e\x01\0\0\x3a\x03\x03\
    01234567890123456789012345678901\0\0\x02\x13\x01\x01\0\0\x0f\0\0\0\x0b\0\x09\0\0\x06a.test";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn mutated_messages_have_one_meaning(
        which in 0..3usize,
        changes in proptest::collection::vec((0..80usize, any::<u8>()), 0..4),
        split in proptest::option::of(6..60usize),
        tail in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = [V1, V2, HELLO][which].to_vec();
        if let (2, Some(at)) = (which, split) {
            // The message in two records.
            let second = bytes.split_off(at);
            bytes[3..5].copy_from_slice(&(at as u16 - 5).to_be_bytes());
            bytes.extend_from_slice(&[22, 3, 1, 0, second.len() as u8]);
            bytes.extend_from_slice(&second);
        }
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.extend_from_slice(&tail);
        prop_assert_eq!(checks::proxy_protocol(&bytes), Ok(()));
        prop_assert_eq!(checks::client_hello(&bytes), Ok(()));
    }
}

#[test]
fn the_samples_are_valid() {
    use wire::{client_hello, proxy_protocol};
    for header in [V1, V2] {
        assert!(proxy_protocol::parse(header).unwrap().unwrap().ends.is_some());
    }
    let name = client_hello::Hello::Server(Some("a.test".into()));
    assert_eq!(client_hello::parse(HELLO), Ok(Some(name)));
}
