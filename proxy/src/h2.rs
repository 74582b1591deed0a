//! Parts that the client and the server of HTTP/2 share (RFC 9113).
//!
//! Frames, HPACK, flow control and the states of streams are the `h2` crate's. It runs over our own
//! [`Line`], which counts what the crate does not: frames that ask for nothing, and a peer that reads
//! nothing.

mod backlog;
pub(crate) mod fields;
mod line;
mod meter;
mod outlet;
mod unread;

pub(crate) use backlog::Backlog;
pub(crate) use line::Line;
pub(crate) use outlet::Outlet;
pub(crate) use unread::Unread;
