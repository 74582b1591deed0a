//! hot path
//!
//! Streams: connections of bytes, or sessions of datagrams, that are forwarded without being
//! parsed.
//!
//! To plugins a stream is an [`Exchange`](crate::Exchange) without messages: its client, route,
//! variables and upstream are the same as for requests. The request's head is empty, and the status
//! is that of nginx for such a session (200, 400, 403, 500, 502, 503).

use std::net::SocketAddr;

/// The additional data of an exchange that is a stream.
#[derive(Debug, Default)]
pub struct Stream {
    pub protocol: Protocol,
    /// The address of the listener, which may be a wildcard.
    pub listener: Option<SocketAddr>,
    /// The server name of a TLS client, read without decrypting, in lower case.
    pub server_name: Option<Box<str>>,
    /// The client identifier of an MQTT session, if a plugin has read it.
    pub mqtt_client_id: Option<Box<[u8]>>,
    /// Bytes to and from the upstream.
    pub upstream_sent: u64,
    pub upstream_received: u64,
    /// Microseconds to connect to the upstream; `None` until connected.
    pub connect_us: Option<u64>,
    /// The call that has just ended, while its loggers run.
    pub call: Option<Call>,
}

/// A call of a protocol that is parsed within a stream.
#[derive(Debug, Default)]
pub struct Call {
    /// Duration in microseconds.
    pub took_us: u64,
    /// A Redis command with its arguments, long ones truncated.
    pub redis_line: Option<Vec<u8>>,
}

/// An end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Upstream,
}

impl Side {
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Client => Side::Upstream,
            Side::Upstream => Side::Client,
        }
    }
}

/// The transport of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
}

impl Protocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }
}
