//! Chunked bodies: no panic, one reading with the reference, in any pieces; what is relayed is
//! canonical and holds the same payload.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let step = usize::from(input.get(input.len() / 2).copied().unwrap_or_default()) % 32;
    if let Err(disagreement) = support::compare::chunked(input, step) {
        panic!("{disagreement}");
    }
});
