//! Plugins that are loaded while the gateway runs. They implement the traits of `sdk` and are registered in the
//! catalog, so routing, order, explain and the Admin API treat them like the linked ones.
#![deny(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

#[cfg(any(feature = "lua", feature = "wasm"))]
mod lent;
pub mod log;
#[cfg(feature = "lua")]
pub mod lua;
#[cfg(feature = "wasm")]
pub mod wasm;
