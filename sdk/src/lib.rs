//! The interface between plugins and the gateway.
//!
//! A plugin is built from its configuration once, when the configuration changes ([`Build`]). It is
//! then called in the phases it declared ([`Plugin`]) with the [`Exchange`], and returns a
//! [`Step`]. [`World`] gives access to everything outside the exchange; sockets, stores and the
//! internals of the proxy are not in this crate, so plugins cannot reach them.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

pub mod budget;
pub mod build;
pub mod call;
pub mod catalog;
pub mod chain;
pub mod client;
pub mod condition;
pub mod connection;
pub mod consumers;
mod cookies;
pub mod counters;
pub mod endpoint;
pub mod engine;
pub mod error_log;
mod escape;
pub mod exchange;
pub mod expr;
mod fetch_error;
pub mod files;
pub mod grpc;
mod header;
pub mod inert;
pub mod instance;
pub mod limit;
pub mod log_entry;
pub mod log_format;
pub mod meters;
pub mod offload;
pub mod otlp;
pub mod pattern;
mod permit;
pub mod phase;
pub mod plugin;
pub mod protobuf;
pub mod protos;
pub mod resolve;
pub mod response_body;
pub mod scripts;
pub mod sink;
pub mod state;
pub mod step;
pub mod storage;
pub mod stream;
pub mod tap;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod upload;
pub mod upstream;
pub mod vars;
pub mod verdict;
pub mod world;

pub use build::{Build, Owner};
pub use catalog::Catalog;
pub use chain::{Chain, Instance};
pub use client::Client;
pub use consumers::{Consumer, Consumers};
pub use endpoint::Endpoint;
pub use exchange::{Chunk, Exchange, RouteInfo, RouteNames};
pub use header::{Digits, HeaderName, Named, NumberBuffer};
pub use instance::Factory;
pub use phase::{Phase, Phases};
pub use plugin::Plugin;
pub use response_body::Coder;
pub use scripts::Scripts;
pub use step::{Reply, Step, SureAnswer};
pub use upload::RequestFilter;
pub use upstream::UpstreamHandle;
pub use verdict::{Bounds, Undecidable, Verdict};
pub use world::World;

/// Re-exported from `wire`, since plugins depend on this crate only.
pub use wire::h1::encode::reason;
pub use wire::target::Doubtful;
pub use wire::{BadField, FieldLines, Fields, Framing, Method, Name, Span, Version, target};
