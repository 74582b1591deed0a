//! hot path
//!
//! What is known of a stream: a connection of bytes, or a session of datagrams, that is passed on without
//! being taken apart.
//!
//! To plugins a stream is an [`Exchange`](crate::Exchange) without messages: its client, its route, its
//! variables and its upstream are what they are for requests. The request's head is empty, and the
//! status is what nginx gives such a session (200, 400, 403, 500, 502, 503).

use std::net::SocketAddr;

/// What an exchange has besides, where it is a stream.
#[derive(Debug, Default)]
pub struct Stream {
    pub protocol: Protocol,
    /// The address that is listened on, also where it is a wildcard.
    pub listener: Option<SocketAddr>,
    /// The server that a TLS client asked for, as it was seen without decrypting, in lower case.
    pub server_name: Option<Box<str>>,
    /// The client's name in an MQTT session, where a plugin has read it.
    pub mqtt_client_id: Option<Box<[u8]>>,
    /// Bytes to and from the upstream.
    pub upstream_sent: u64,
    pub upstream_received: u64,
    /// Microseconds that connecting to the upstream took; `None` until there is a connection.
    pub connect_us: Option<u64>,
    /// The call that has ended, while its loggers are told of it.
    pub call: Option<Call>,
}

/// A call of a protocol that is understood within a stream.
#[derive(Debug, Default)]
pub struct Call {
    /// Microseconds that it took.
    pub took_us: u64,
    /// A command of Redis with its arguments, long ones cut.
    pub redis_line: Option<Vec<u8>>,
}

/// What a stream runs over.
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
