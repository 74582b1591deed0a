//! Tests of compiled configurations. One program, as each costs the linker time.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

mod analysis;
mod certificates;
mod changes;
mod explain;
mod explained;
mod fuzzed;
mod incremental;
mod mistakes;
mod plans;
mod runtime;
mod support;
