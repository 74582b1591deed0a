//! Tests of whole workers: over connections in memory, and over sockets. One program, as each costs the linker time.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

mod connections;
mod hosted;
mod http3;
mod panic;
mod random;
mod support;
