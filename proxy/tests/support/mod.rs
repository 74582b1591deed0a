//! Runs scripts on both sides of a gateway, under many schedules.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a test"
)]

mod case;
pub mod datagrams;
mod filters;
mod gateways;
pub mod http2;
pub mod http2_server;
pub mod recorder;
mod resources;
mod routes;
mod script;
mod streams;
pub mod tls;
mod trailers;

pub use case::{Case, http};
pub use gateways::{check_panics, settle, with_gateways};
pub use resources::{SERVER, snapshot};
pub use script::{Do, Got, play};
