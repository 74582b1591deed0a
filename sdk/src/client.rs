//! hot path
//!
//! Who speaks to us, as plugins see it.

mod tls;

use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

pub use tls::{ClientCertificate, TlsSession, Verdict};
use wire::proxy_protocol::Ends;

/// Who speaks to us.
#[derive(Debug, Clone)]
pub struct Client {
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// Our end of it.
    pub local: SocketAddr,
    /// The client's address as plugins see it; the peer's unless a trusted proxy told another.
    ip: IpAddr,
    text: AddressText,
    port: u16,
    pub tls: bool,
    /// See [`Client::ends`].
    ends: Option<Arc<Ends>>,
    /// What TLS has agreed on with whoever is at the other end.
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

    /// The address as text, made once a connection.
    #[inline]
    pub fn ip_text(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Takes the address a trusted proxy named.
    pub fn set_ip(&mut self, ip: IpAddr) {
        self.ip = ip.to_canonical();
        self.text = AddressText::new(self.ip);
    }

    /// The same connection, with the address and the port that somebody else knows its client by.
    pub fn told(&self, ip: IpAddr, port: Option<u16>) -> Client {
        let mut client = self.clone();
        client.set_ip(ip);
        client.port = port.unwrap_or(0);
        client
    }

    /// The client's port as plugins see it; 0 if whoever told its address told no port.
    #[inline]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same client, on whose connection a PROXY protocol header told of these ends.
    #[must_use]
    pub fn proxied(self, ends: Ends) -> Client {
        Client { ends: Some(Arc::new(ends)), ..self }
    }

    /// The ends of the connection that the peer passes on, as its PROXY protocol header told. That says
    /// nothing of whether the peer is to be believed.
    #[inline]
    pub fn ends(&self) -> Option<&Ends> {
        self.ends.as_deref()
    }

    /// The same client, for a request that the gateway sends to itself in its name: it is known already,
    /// and headers tell no other.
    #[must_use]
    pub fn within(&self) -> Client {
        Client { within: true, ..self.clone() }
    }

    /// Whether this is a request that the gateway sent to itself ([`crate::World::dispatch`]).
    #[inline]
    pub fn is_within(&self) -> bool {
        self.within
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

/// The client of an exchange: that of the connection, until a plugin learns of another.
#[derive(Debug)]
pub enum Caller<'s> {
    Connection(&'s Client),
    Told(Box<Client>),
}

impl Deref for Caller<'_> {
    type Target = Client;

    #[inline]
    fn deref(&self) -> &Client {
        match self {
            Caller::Connection(client) => client,
            Caller::Told(client) => client,
        }
    }
}

/// An IP address as text, without an allocation.
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
    fn address_text_is_exact() {
        for text in ["127.0.0.1", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(AddressText::new(ip).as_bytes(), ip.to_string().as_bytes());
        }
        let mapped = Client::new("[::ffff:10.0.0.1]:5".parse().unwrap(), "[::1]:6".parse().unwrap(), false);
        assert_eq!(mapped.ip_text(), b"10.0.0.1");
        let mut told = mapped.clone();
        told.set_ip("::ffff:10.1.1.1".parse().unwrap());
        assert_eq!((told.ip_text(), told.ip()), (&b"10.1.1.1"[..], "10.1.1.1".parse().unwrap()));
        assert!(!told.is_within());
        assert_eq!((told.within().is_within(), told.within().ip_text()), (true, told.ip_text()));
    }
}
