//! Request heads: no panic, one reading with the reference parser and httparse, at once and
//! in two parts; stripping and writing what was read gives a head that reads the same.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let cut = usize::from(input.get(input.len() / 2).copied().unwrap_or_default()) % (input.len() + 1);
    if let Err(disagreement) = support::compare::requests(input, cut) {
        panic!("{disagreement}");
    }
    support::written_again::check(input);
});
