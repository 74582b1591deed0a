//! Protocols within streams, Redis and Dubbo: no panic, and one reading however the bytes are cut.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/streams.rs"]
mod streams;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&cut, bytes)) = input.split_first() else { return };
    for check in [streams::commands, streams::replies, streams::frames] {
        if let Err(disagreement) = check(bytes, cut.into()) {
            panic!("{disagreement}");
        }
    }
});
