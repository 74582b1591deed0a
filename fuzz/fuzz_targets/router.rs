//! The router, with any rules in any order.
#![no_main]

#[path = "../../snapshot/tests/support/any_rules.rs"]
mod any_rules;

libfuzzer_sys::fuzz_target!(|input: &str| any_rules::check(input));
