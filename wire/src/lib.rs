//! Parsers and serialisers of protocol messages, without sockets.
//!
//! This room implements HTTP/1.0 and HTTP/1.1 (RFC 9110, RFC 9112), fields of HTTP/2 (RFC 7541),
//! frames and fields of HTTP/3 (RFC 9114, RFC 9204), the PROXY protocol, the first message of TLS,
//! and the protocols of Redis and Dubbo, as plain functions over byte slices. It never reads a
//! socket, a clock or a configuration: callers pass bytes and limits, and get heads, framing and
//! errors. All input from a peer is either understood in exactly one way or refused.

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

pub mod client_hello;
pub mod dubbo;
pub mod field_list;
pub mod fields;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod head;
mod huffman;
pub mod method;
pub mod names;
pub mod parts;
mod prefixed;
pub mod proxy_protocol;
pub mod redis;
pub mod target;
pub mod websocket;

pub use field_list::List;
pub use fields::{BadField, Field, FieldLines, Fields, Span};
pub use head::{Framing, RequestHead, ResponseHead, Version};
pub use method::Method;
pub use names::Name;
