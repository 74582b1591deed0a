//! ClientHellos: no panic, and one reading however the bytes are cut.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/prefaces.rs"]
mod prefaces;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Err(disagreement) = prefaces::client_hello(input) {
        panic!("{disagreement}");
    }
});
