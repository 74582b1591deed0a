//! HTTP/2 (RFC 9113) for both ends: frames, streams, flow control and send scheduling.
//!
//! [`Mux`] holds the state of a connection without its socket, [`Transport`] is the socket, and an exchange uses a
//! [`Stream`]. `wire` encodes and decodes frames and field blocks.

mod control;
mod field_blocks;
mod mux;
mod receive;
mod send;
mod slots;
mod stream;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use field_blocks::length;
pub(crate) use mux::{Budgets, EndReason, Limits, Mux, Role};
pub(crate) use receive::Event;
pub(crate) use send::PseudoFields;
pub(crate) use slots::{Priority, StreamError};
pub(crate) use stream::{BodyPart, FieldSink, SharedMux, Stream};
pub(crate) use transport::{Read, Transport};
