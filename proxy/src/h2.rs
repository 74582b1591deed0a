//! HTTP/2 (RFC 9113), alike for clients and servers: frames, streams, flow control and the turns in which streams send.
//!
//! [`Mux`] is a connection without its socket, which the [`Line`] is. An exchange has a [`Stream`] of it. The forms of
//! frames and field blocks are `wire`'s.

mod control;
mod line;
mod mux;
mod receive;
mod send;
mod slots;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use line::{Line, Read};
pub(crate) use mux::{Budgets, Limits, Mux, Over, Role};
pub(crate) use receive::{Event, length};
pub(crate) use send::First;
pub(crate) use slots::{Gone, Priority};
pub(crate) use stream::{Came, FieldSink, Shared, Stream};
