//! Tests of the schemas. One program, as each costs the linker time.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

mod api7;
mod documents;
