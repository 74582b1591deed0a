//! Where traffic comes in, and what it is.

use std::io;
use std::net::SocketAddr;

/// Connections the kernel may hold before they are accepted, as many as nginx lets it: a
/// longer queue would only be full of clients that have given up, when there is one.
pub(crate) const BACKLOG: i32 = 511;

/// An address that every worker listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    pub address: SocketAddr,
    pub traffic: Traffic,
    /// Connections begin with a TLS handshake.
    pub tls: bool,
    /// Connections begin with a PROXY protocol header, which tells of the client.
    pub proxy_protocol: bool,
}

/// Settings of a port for the streams on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPort {
    /// Connections to upstreams begin with a PROXY protocol header.
    pub proxy_protocol_to_upstream: bool,
}

/// The kind of traffic on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Requests, for routes.
    Http(Versions),
    /// Bytes, for stream routes.
    Stream(StreamPort),
}

/// Versions of HTTP. Of several, the client says which it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// 1.0 and 1.1.
    pub h1: bool,
    pub h2: bool,
    /// By QUIC, on the port of the same number for datagrams. Only with TLS.
    pub h3: bool,
}

/// The server of a listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    /// HTTP/1, and HTTP/2 where the client begins with it, or has agreed on it in a TLS handshake.
    Http {
        h2: bool,
        tls: bool,
    },
    Stream {
        port: StreamPort,
        tls: bool,
    },
}

impl Front {
    #[inline]
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Front::Http { tls: true, .. } | Front::Stream { tls: true, .. })
    }
}

impl Listener {
    /// HTTP/1 without anything around it.
    pub const fn http(address: SocketAddr) -> Listener {
        let traffic = Traffic::Http(Versions { h1: true, h2: false, h3: false });
        Listener { address, traffic, tls: false, proxy_protocol: false }
    }

    /// Streams without anything around them.
    pub const fn stream(address: SocketAddr, port: StreamPort) -> Listener {
        Listener { address, traffic: Traffic::Stream(port), tls: false, proxy_protocol: false }
    }

    /// HTTP/3 is served there, too.
    #[inline]
    pub fn h3(&self) -> bool {
        self.tls && matches!(self.traffic, Traffic::Http(Versions { h3: true, .. }))
    }

    /// Returns the server of its connections.
    ///
    /// # Errors
    /// It asks for traffic that is not served.
    pub(crate) fn front(&self) -> io::Result<Front> {
        let missing = match self {
            Listener { traffic: Traffic::Stream(port), tls, .. } => {
                return Ok(Front::Stream { port: *port, tls: *tls });
            }
            Listener { traffic: Traffic::Http(Versions { h1: true, h2, .. }), tls, .. } => {
                return Ok(Front::Http { h2: *h2, tls: *tls });
            }
            Listener { traffic: Traffic::Http(_), .. } => "HTTP without version 1",
        };
        let text = format!("{missing} is not served; it was asked for on {}", self.address);
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let plain = Listener::http(SocketAddr::from(([127, 0, 0, 1], 80)));
        assert_eq!(plain.front().unwrap(), Front::Http { h2: false, tls: false });
        let http = |h1, h2| Traffic::Http(Versions { h1, h2, h3: false });
        let both = Listener { tls: true, traffic: http(true, true), ..plain };
        assert_eq!(both.front().unwrap(), Front::Http { h2: true, tls: true });
        let streams = Listener::stream(plain.address, StreamPort::default());
        let of_streams = |tls| Listener { tls, ..streams }.front().unwrap();
        for (front, tls) in [
            (plain.front().unwrap(), false),
            (both.front().unwrap(), true),
            (of_streams(false), false),
            (of_streams(true), true),
        ] {
            assert_eq!(front.is_tls(), tls, "{front:?}");
        }
        for (listener, what) in [
            (Listener { traffic: http(false, true), ..plain }, "HTTP without version 1 "),
            (Listener { traffic: http(false, false), ..plain }, "HTTP without version 1 "),
        ] {
            let refused = listener.front().unwrap_err();
            assert!(refused.to_string().starts_with(what), "{refused}");
        }
    }

    #[test]
    fn quic_is_served_where_a_listener_of_that_address_says_so() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let http = |h3| Traffic::Http(Versions { h1: true, h2: true, h3 });
        let listener = |port, tls, h3| Listener { tls, traffic: http(h3), ..Listener::http(at(port)) };
        let streams = Listener { tls: true, ..Listener::stream(at(4), StreamPort::default()) };
        let listen =
            vec![listener(1, true, true), listener(2, true, false), listener(3, false, true), streams];
        assert_eq!(listen.iter().map(Listener::h3).collect::<Vec<_>>(), [true, false, false, false]);
        let settings = crate::Settings { listen, ..Default::default() };
        assert_eq!([1, 2, 3, 4, 5].map(|port| settings.is_h3(at(port))), [true, false, false, false, false]);
    }
}
