//! HTTP/3, from a client that keeps to the protocol or does not, byte by byte. What is expected stands in RFC 9114
//! and RFC 9204; what is the gateway's to choose, in `docs`.

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
