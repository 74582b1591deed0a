//! Where traffic arrives: addresses, and TLS with clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// An address for traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    /// The IPv6 address of a port without a configured address: it may fail where there is no IPv6, and takes no IPv4
    /// connections.
    pub optional: bool,
    /// HTTP/2 is served there, too.
    pub http2: bool,
    /// HTTP/3 is served on the port of the same number for datagrams. Only with TLS.
    pub http3: bool,
}

/// `apisix.ssl`: TLS with clients, and who is trusted as an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// None if it is not enabled.
    pub listen: Vec<Listen>,
    /// The addresses are the defaults: if one is in use already, the gateway serves without it.
    pub is_default: bool,
    /// `ssl_protocols`, as written.
    pub protocols: Vec<String>,
    /// `ssl_ciphers`, OpenSSL's names; `None` are all there are.
    pub ciphers: Option<Vec<String>>,
    /// `ssl_session_tickets`; on by default, other than in APISIX, as their keys rotate.
    pub tickets: bool,
    /// How long a session may be resumed (ours).
    pub session_timeout: Duration,
    /// `ssl_trusted_certificate`: a file; `None` are the system's.
    pub trusted: Option<PathBuf>,
    pub fallback_sni: Option<String>,
    /// For a whole handshake (ours).
    pub handshake_timeout: Duration,
}

/// Addresses of a port on all interfaces.
pub(super) fn wildcard(port: u16) -> [SocketAddr; 2] {
    [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)]
        .map(|ip| SocketAddr::new(ip, port))
}
