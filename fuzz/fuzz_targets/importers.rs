//! Files of other gateways, with any text.
#![no_main]

#[path = "../../importers/tests/support/any_file.rs"]
mod any_file;

libfuzzer_sys::fuzz_target!(|input: &str| any_file::check(input));
