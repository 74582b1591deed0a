//! hot path
//!
//! The client, as plugins see it.

mod tls;

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

pub use tls::{ClientCertificate, TlsSession, Verdict};
use wire::proxy_protocol::Ends;

/// The client of a connection or an exchange.
#[derive(Debug, Clone)]
pub struct Client {
    /// The remote address of the connection.
    pub peer: SocketAddr,
    /// The local address of the connection.
    pub local: SocketAddr,
    /// The client's address as plugins see it; the peer's unless a trusted proxy has sent another.
    ip: IpAddr,
    text: AddressText,
    port: u16,
    pub tls: bool,
    /// See [`Client::ends`].
    ends: Option<Arc<Ends>>,
    /// The TLS session of the connection.
    pub session: Option<Arc<TlsSession>>,
    /// See [`Client::within`].
    within: bool,
}

impl Client {
    pub fn new(peer: SocketAddr, local: SocketAddr, tls: bool) -> Client {
        let ip = peer.ip().to_canonical();
        Client {
            peer,
            local,
            ip,
            text: AddressText::new(ip),
            port: peer.port(),
            tls,
            ends: None,
            session: None,
            within: false,
        }
    }

    #[inline]
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The client IP as text, formatted once per connection.
    #[inline]
    pub fn ip_text(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Sets the client IP that a trusted proxy has sent.
    pub fn set_ip(&mut self, ip: IpAddr) {
        self.ip = ip.to_canonical();
        self.text = AddressText::new(self.ip);
    }

    /// Returns the same connection with another client IP and port, as sent by a trusted proxy.
    pub fn with_address(&self, ip: IpAddr, port: Option<u16>) -> Client {
        let mut client = self.clone();
        client.set_ip(ip);
        client.port = port.unwrap_or(0);
        client
    }

    /// The client's port as plugins see it; 0 if its address was sent without a port.
    #[inline]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the same client with the addresses from a PROXY protocol header on its connection.
    #[must_use]
    pub fn proxied(self, ends: Ends) -> Client {
        Client { ends: Some(Arc::new(ends)), ..self }
    }

    /// The addresses of the connection in the peer's PROXY protocol header. The peer need not be a
    /// trusted proxy.
    #[inline]
    pub fn ends(&self) -> Option<&Ends> {
        self.ends.as_deref()
    }

    /// Returns the same client for a request that the gateway sends to itself on its behalf: its
    /// address is known already, and headers cannot change it.
    #[must_use]
    pub fn for_subrequest(&self) -> Client {
        Client { within: true, ..self.clone() }
    }

    /// Whether this is a request that the gateway sent to itself ([`crate::World::dispatch`]).
    #[inline]
    pub fn is_subrequest(&self) -> bool {
        self.within
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The client of an exchange: the connection's, until a plugin sets another address.
#[derive(Debug)]
pub enum Caller<'s> {
    Connection(&'s Client),
    Changed(Box<Client>),
}

impl Deref for Caller<'_> {
    type Target = Client;

    #[inline]
    fn deref(&self) -> &Client {
        match self {
            Caller::Connection(client) => client,
            Caller::Changed(client) => client,
        }
    }
}

/// An IP address as text, without allocation.
#[derive(Debug, Clone, Copy)]
struct AddressText {
    bytes: [u8; 46],
    len: u8,
}

impl AddressText {
    fn new(ip: IpAddr) -> AddressText {
        use std::io::Write;
        let mut bytes = [0u8; 46];
        let mut rest = &mut bytes[..];
        // The longest address has 45 characters, so this cannot fail.
        let _ = write!(rest, "{ip}");
        let left = rest.len();
        AddressText { bytes, len: (46 - left) as u8 }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_format_as_the_standard_library_does() {
        for text in ["127.0.0.1", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(AddressText::new(ip).as_bytes(), ip.to_string().as_bytes());
        }
        let mapped = Client::new("[::ffff:10.0.0.1]:5".parse().unwrap(), "[::1]:6".parse().unwrap(), false);
        assert_eq!(mapped.ip_text(), b"10.0.0.1");
        let mut changed = mapped.clone();
        changed.set_ip("::ffff:10.1.1.1".parse().unwrap());
        assert_eq!((changed.ip_text(), changed.ip()), (&b"10.1.1.1"[..], "10.1.1.1".parse().unwrap()));
        assert!(!changed.is_subrequest());
        assert_eq!(
            (changed.for_subrequest().is_subrequest(), changed.for_subrequest().ip_text()),
            (true, changed.ip_text())
        );
    }
}
