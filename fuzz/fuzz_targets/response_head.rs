//! Response heads: no panic, one reading with the reference parser, at once and in two parts.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use wire::Method;

fuzz_target!(|input: &[u8]| {
    let middle = usize::from(input.get(input.len() / 2).copied().unwrap_or_default());
    let method = [Method::Get, Method::Head, Method::Connect][middle % 3];
    if let Err(disagreement) = support::compare::responses(input, middle % (input.len() + 1), method) {
        panic!("{disagreement}");
    }
});
