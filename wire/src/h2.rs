//! hot path
//!
//! HTTP/2: header compression.

pub mod hpack;
