//! What is told of an exchange: its route, its times, how far its body is read.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// How far the request's body has been read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Body {
    /// The request has no body.
    #[default]
    None,
    /// It has one, still to be streamed from the client.
    Streaming,
    /// All of it is in [`Exchange::body`](super::Exchange::body).
    Whole,
    /// Somebody asked for it, but it is longer than that one's bound; it will be streamed.
    TooLarge,
}

/// What is known of a route while serving, fixed at compile time.
#[derive(Debug, Clone, Default)]
pub struct RouteInfo {
    pub id: Box<str>,
    /// Boxed: there may be very many routes without any.
    names: Option<Box<RouteNames>>,
}

/// What else a route goes by; empty where it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteNames {
    pub name: String,
    pub service_id: String,
    pub service_name: String,
}

impl RouteInfo {
    pub fn new(id: &str, names: RouteNames) -> RouteInfo {
        let names = (names != RouteNames::default()).then(|| Box::new(names));
        RouteInfo { id: id.into(), names }
    }
}

impl Deref for RouteInfo {
    type Target = RouteNames;

    #[inline]
    fn deref(&self) -> &RouteNames {
        static NONE: RouteNames =
            RouteNames { name: String::new(), service_id: String::new(), service_name: String::new() };
        self.names.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for RouteInfo {
    fn deref_mut(&mut self) -> &mut RouteNames {
        self.names.get_or_insert_default()
    }
}

/// Milliseconds and bytes of an exchange, for metrics and logs.
#[derive(Debug, Default, Clone, Copy)]
pub struct Timing {
    /// Microseconds from the request's head until now; in the log phase, the whole exchange.
    pub total_us: u64,
    /// When the upstream was asked first, by the worker's own clock; 0 if nobody wants to know.
    pub asked_us: u64,
    /// When the head of the upstream's response came, by the worker's own clock; 0 if nobody wants to know.
    pub answered_us: u64,
    /// Microseconds from choosing the upstream to the end of its response.
    pub upstream_us: u64,
    /// Requests its connection has brought, this one included.
    pub connection_requests: u64,
    /// Bytes received from the client: head and body.
    pub received: u64,
    /// Bytes sent to the client: head and body.
    pub sent: u64,
    /// Body bytes sent to the client.
    pub body_sent: u64,
}

/// A server that was asked in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub addr: SocketAddr,
    /// 502 or 504; 0 if it was not asked in the end.
    pub status: u16,
    /// Microseconds, where somebody wants to know.
    pub took_us: u64,
}

/// Who made the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// No response yet.
    #[default]
    None,
    Upstream,
    /// A stage's reply.
    Plugin,
    /// An error of ours: no route, no upstream, time-out …
    Gateway,
}

/// One piece of a response's body on its way to the client.
#[derive(Debug, Default)]
pub struct Chunk {
    /// May be changed in any way.
    pub data: Vec<u8>,
    /// No further piece follows; `data` may still hold bytes.
    pub last: bool,
    /// A stage would have to hold more of the body than the worker may ([`World::budget`](crate::World::budget)): the
    /// exchange fails.
    pub refused: bool,
}
