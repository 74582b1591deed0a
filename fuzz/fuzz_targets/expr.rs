//! Expressions of any JSON.
#![no_main]

#[path = "../../snapshot/tests/support/any_expression.rs"]
mod any_expression;

libfuzzer_sys::fuzz_target!(|input: &str| any_expression::check(input));
