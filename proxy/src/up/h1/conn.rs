//! A connection to a server that speaks HTTP/1, between two requests.

use std::rc::Rc;

use crate::rt::Io;

/// A connection to an upstream server.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) io: Io,
    /// Requests it has carried.
    pub(crate) requests: u64,
    /// It has carried a request before this one, so it may have died unnoticed.
    pub(crate) reused: bool,
    /// Shared by the worker's connections to this address, so that they are counted; see
    /// [`Pools::in_use`](crate::up::Pools::in_use).
    pub(crate) counted: Option<Rc<()>>,
}

impl Conn {
    /// In a box, since a connection moves between the pool and exchanges with every request.
    pub(crate) fn new(io: Io) -> Box<Conn> {
        Box::new(Conn { io, requests: 0, reused: false, counted: None })
    }
}
