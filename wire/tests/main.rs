//! Tests of the codecs, and comparisons with other parsers. One program, as each costs the linker time.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

mod differential;
mod frames;
mod hpack;
mod hyper;
mod parts;
mod prefaces;
mod requests;
mod responses;
mod streams;
#[allow(dead_code, reason = "shared with fuzz targets and an example")]
mod support;
