//! Facts about an exchange: its route, its times, the state of its body.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// How far the request's body has been buffered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Body {
    /// The request has no body.
    #[default]
    None,
    /// The body is still to be streamed from the client.
    Streaming,
    /// All of it is in [`Exchange::body`](super::Exchange::body).
    Whole,
    /// The body was requested, but exceeds the limit; it will be streamed.
    TooLarge,
}

/// Facts about a route used while serving, fixed at compile time.
#[derive(Debug, Clone, Default)]
pub struct RouteInfo {
    pub id: Box<str>,
    /// Boxed: most routes may have no names.
    names: Option<Box<RouteNames>>,
}

/// Further names of a route; empty if not configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteNames {
    pub name: String,
    pub service_id: String,
    pub service_name: String,
    /// Its labels, for scripts.
    pub labels: Vec<(String, String)>,
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
        static NONE: RouteNames = RouteNames {
            name: String::new(),
            service_id: String::new(),
            service_name: String::new(),
            labels: Vec::new(),
        };
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
    /// When an instance asked for the log phase, by the worker's clock; see [`crate::Exchange::expect_log`].
    pub log_asked_us: Option<u64>,
    /// When the upstream was first contacted, by the worker's clock; 0 unless timing is consumed.
    pub asked_us: u64,
    /// When the head of the upstream's response arrived, by the worker's clock; 0 unless timing is
    /// consumed.
    pub answered_us: u64,
    /// Microseconds from choosing the upstream to the end of its response.
    pub upstream_us: u64,
    /// Requests on its connection so far, this one included.
    pub connection_requests: u64,
    /// Bytes received from the client: head and body.
    pub received: u64,
    /// Bytes sent to the client: head and body.
    pub sent: u64,
    /// Body bytes sent to the client.
    pub body_sent: u64,
}

/// A failed attempt with one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Try {
    pub addr: SocketAddr,
    /// 502 or 504; 0 if the server was not contacted after all.
    pub status: u16,
    /// Microseconds, if timing is consumed.
    pub took_us: u64,
}

/// The origin of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// No response yet.
    #[default]
    None,
    Upstream,
    /// A plugin.
    Plugin,
    /// An error of the gateway: no route, no upstream, timeout …
    Gateway,
}

/// A chunk of a response's body on its way to the client.
#[derive(Debug, Default)]
pub struct Chunk {
    /// May be changed freely.
    pub data: Vec<u8>,
    /// Whether this is the last chunk; `data` may still hold bytes.
    pub last: bool,
    /// A plugin would have to buffer more of the body than the worker's budget allows
    /// ([`World::budget`](crate::World::budget)): the exchange fails.
    pub refused: bool,
}
