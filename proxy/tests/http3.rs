//! HTTP/3 from clients that follow the protocol or break it, byte by byte. RFC 9114 and RFC 9204 define the expected
//! results; `docs` describes the gateway's own choices.

#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_macros, reason = "a test")]

#[path = "http3/bodies.rs"]
mod bodies;
#[path = "http3/bounds.rs"]
mod bounds;
#[path = "http3/client.rs"]
mod client;
#[path = "http3/control.rs"]
mod control;
#[path = "http3/life.rs"]
mod life;
#[path = "http3/requests.rs"]
mod requests;
#[path = "http3/responses.rs"]
mod responses;
mod support;
