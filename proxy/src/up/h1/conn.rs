//! A connection to a server that speaks HTTP/1, between two requests.

use crate::rt::Io;

/// A connection to an upstream server.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) io: Io,
    /// Requests it has carried.
    pub(crate) requests: u64,
    /// It has carried a request before this one, so it may have died unnoticed.
    pub(crate) reused: bool,
}

impl Conn {
    pub(crate) fn new(io: Io) -> Conn {
        Conn { io, requests: 0, reused: false }
    }
}
