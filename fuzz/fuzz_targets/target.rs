//! Paths and queries: no panic; normal forms agree with the reference and are their own normal
//! forms; decoding a query's arguments never lengthens them.
#![no_main]

#[allow(dead_code, reason = "shared with other targets")]
#[path = "../../wire/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use wire::target::{percent_decode, query_args};

fuzz_target!(|input: &[u8]| {
    if let Err(disagreement) = support::compare::paths(input) {
        panic!("{disagreement}");
    }
    let (mut out, mut total) = (Vec::new(), 0);
    for (name, value) in query_args(input) {
        total += name.len() + value.len();
        for part in [name, value] {
            out.clear();
            percent_decode(part, true, &mut out);
            assert!(out.len() <= part.len());
            assert!(!part.contains(&b'&'));
        }
        assert!(!name.contains(&b'='));
    }
    assert!(total <= input.len());
});
