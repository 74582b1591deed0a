//! Towards upstreams over TLS: what a worker remembers of its sessions, and who a server has to be.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::{HashMap, HashSet};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, NamedGroup};
use snapshot::certs::ClientTls;

use crate::rt::Io;

/// Sessions with servers that may be resumed, for each kind of TLS.
const SESSIONS: usize = 256;

/// Kinds of TLS whose sessions are remembered.
const KINDS: usize = 256;

/// A worker's own copies of how TLS is spoken, with the sessions that it may resume.
#[derive(Debug, Default)]
pub(crate) struct Sessions(RefCell<HashMap<Asked, Kind>>);

/// The identity of a TLS configuration, and whether HTTP/2 is asked for.
type Asked = ([u8; 32], bool);

#[derive(Debug)]
struct Kind {
    resuming: Arc<ClientConfig>,
    sessions: Arc<Memory>,
    /// Servers that have refused a handshake which was to resume a session: they are asked for new ones.
    refusing: HashSet<ServerName<'static>>,
}

/// How TLS is spoken on one connection.
pub(crate) struct Spoken {
    pub(crate) config: Arc<ClientConfig>,
    sessions: Option<Arc<Memory>>,
}

impl Sessions {
    pub(crate) fn speak(&self, tls: &ClientTls, h2: bool, name: &ServerName<'static>) -> Spoken {
        let mut all = self.0.borrow_mut();
        let key = (*tls.identity(), h2);
        if all.len() >= KINDS && !all.contains_key(&key) {
            // Kinds in use come back; those of earlier configurations do not.
            all.clear();
        }
        let kind = all.entry(key).or_insert_with(|| Kind::new(tls, h2));
        if kind.refusing.contains(name) {
            return Spoken { config: tls.resuming(h2, Resumption::disabled()), sessions: None };
        }
        kind.sessions.offered.store(false, Ordering::Relaxed);
        Spoken { config: kind.resuming.clone(), sessions: Some(kind.sessions.clone()) }
    }

    /// The server has refused a handshake that offered a session.
    #[cold]
    pub(crate) fn refused(&self, tls: &ClientTls, h2: bool, name: &ServerName<'static>) {
        if let Some(kind) = self.0.borrow_mut().get_mut(&(*tls.identity(), h2)) {
            if kind.refusing.len() >= SESSIONS {
                kind.refusing.clear();
            }
            kind.refusing.insert(name.clone());
        }
    }
}

impl Kind {
    fn new(tls: &ClientTls, h2: bool) -> Kind {
        let known = ClientSessionMemoryCache::new(SESSIONS);
        let sessions = Arc::new(Memory { known, offered: AtomicBool::new(false) });
        let resuming = tls.resuming(h2, Resumption::store(sessions.clone()));
        Kind { resuming, sessions, refusing: HashSet::default() }
    }
}

impl Spoken {
    /// Whether the handshake that was begun last offers a session. To be asked before another one begins.
    pub(crate) fn offers_session(&self) -> bool {
        self.sessions.as_ref().is_some_and(|sessions| sessions.offered.load(Ordering::Relaxed))
    }
}

/// Sessions with servers, by name.
#[derive(Debug)]
struct Memory {
    known: ClientSessionMemoryCache,
    /// The latest handshake has one to offer.
    offered: AtomicBool,
}

impl Memory {
    fn offer<T>(&self, session: Option<T>) -> Option<T> {
        self.offered.store(session.is_some(), Ordering::Relaxed);
        session
    }
}

impl ClientSessionStore for Memory {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.known.set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.known.kx_hint(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.known.set_tls12_session(name, session);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.offer(self.known.tls12_session(name))
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.known.remove_tls12_session(name);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.known.insert_tls13_ticket(name, ticket);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.offer(self.known.take_tls13_ticket(name))
    }
}

/// The name that a server is asked for and must have: that of the Host it gets, without its port. What
/// is no name leaves the address, which is not sent.
pub(crate) fn server_name(authority: &[u8], addr: SocketAddr) -> ServerName<'static> {
    let text = std::str::from_utf8(authority).unwrap_or_default();
    let host = sdk::build::split_authority(text, 443).map_or(text, |(host, _)| host);
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    ServerName::try_from(host).unwrap_or_else(|_| addr.ip().into())
}

/// Why a server has ended a connection that was new, if it was because of our certificate: in TLS 1.3 its
/// handshake ends after ours. It did not look at the request.
#[cold]
pub(crate) fn refusal(io: &Io) -> Option<&'static str> {
    let alert = io.tls()?.alert()?;
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
    .then(|| reason(&Error::AlertReceived(alert)))
}

/// Why a handshake with a server came to nothing, in words.
pub(crate) fn reason(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the upstream's certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the upstream's certificate is not valid yet"
            }
            CertificateError::UnknownIssuer => {
                "the upstream's certificate is from an authority that is not trusted"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the upstream's certificate is for another name"
            }
            CertificateError::BadEncoding => {
                "the upstream's certificate is malformed, or not of X.509 version 3"
            }
            CertificateError::Revoked => "the upstream's certificate is revoked",
            CertificateError::BadSignature => "the upstream's certificate has a signature that is not valid",
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the upstream's certificate is not for servers"
            }
            // Self-signed certificates are often made so. The library has no variant of its own for it.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "the upstream's certificate is that of an authority (CA), not of a server"
            }
            _ => "the upstream's certificate is not valid",
        },
        Error::AlertReceived(AlertDescription::UnrecognisedName) => {
            "the upstream does not know the server name (TLS alert unrecognized_name)"
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the upstream requires a client certificate (TLS alert certificate_required)"
        }
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => "the upstream refused the client certificate",
        Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "the upstream speaks no version of TLS that the gateway does (TLS alert protocol_version)"
        }
        Error::AlertReceived(_) => "the upstream refused the TLS handshake",
        Error::InvalidMessage(_) => "the upstream does not speak TLS",
        Error::PeerIncompatible(_) => "the upstream and the gateway have no TLS parameters in common",
        _ => "the TLS handshake with the upstream failed",
    }
}

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, PeerIncompatible};
    use snapshot::certs::TlsSettings;

    use super::*;

    #[test]
    fn what_came_of_a_handshake_is_said_in_words() {
        use AlertDescription as Alert;
        let of_certificate = |error| Error::InvalidCertificate(error);
        for (error, words) in [
            (of_certificate(CertificateError::Expired), "has expired"),
            (of_certificate(CertificateError::NotValidYet), "is not valid yet"),
            (of_certificate(CertificateError::UnknownIssuer), "authority that is not trusted"),
            (of_certificate(CertificateError::NotValidForName), "is for another name"),
            (of_certificate(CertificateError::BadEncoding), "is malformed"),
            (of_certificate(CertificateError::Revoked), "is revoked"),
            (of_certificate(CertificateError::InvalidPurpose), "is not for servers"),
            (of_certificate(CertificateError::UnknownRevocationStatus), "certificate is not valid"),
            (Error::AlertReceived(Alert::UnrecognisedName), "does not know the server name"),
            (Error::AlertReceived(Alert::CertificateRequired), "requires a client certificate"),
            (Error::AlertReceived(Alert::UnknownCA), "refused the client certificate"),
            (Error::AlertReceived(Alert::ProtocolVersion), "speaks no version of TLS"),
            (Error::AlertReceived(Alert::HandshakeFailure), "refused the TLS handshake"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not speak TLS"),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "no TLS parameters in common",
            ),
            (Error::DecryptError, "the TLS handshake with the upstream failed"),
        ] {
            assert!(reason(&error).contains(words), "{error:?}: {}", reason(&error));
        }
    }

    #[test]
    fn a_server_that_refuses_to_resume_is_remembered() {
        let tls = ClientTls::new(None, None, &TlsSettings::default().provider).unwrap();
        let name = |text: &str| ServerName::try_from(text.to_owned()).unwrap();
        let sessions = Sessions::default();
        let resumes = |h2, text| sessions.speak(&tls, h2, &name(text)).sessions.is_some();
        assert!(resumes(false, "a.com"));
        for text in ["a.com", "b.com"] {
            sessions.refused(&tls, false, &name(text));
        }
        assert!(resumes(true, "a.com") && resumes(false, "c.com"), "they did not");
        // As many kinds as there may be, and what is known among them.
        for number in 0..=u8::MAX {
            assert!(!resumes(false, "a.com") && !resumes(false, "b.com"));
            sessions.0.borrow_mut().insert(([number; 32], false), Kind::new(&tls, false));
        }
        assert!(!resumes(false, "a.com"));
        sessions.0.borrow_mut().remove(&(*tls.identity(), true));
        assert!(resumes(true, "a.com"));
        assert_eq!(sessions.0.borrow().len(), 1, "one more, and all are forgotten");
    }

    #[test]
    fn servers_are_asked_for_by_the_name_they_get() {
        let addr = SocketAddr::from(([10, 0, 0, 1], 443));
        for (authority, expected) in [
            ("A.com", "a.com"),
            ("a.com:8443", "a.com"),
            ("a.com.", "a.com"),
            ("a_b.com", "a_b.com"),
            ("10.0.0.2:443", "10.0.0.2"),
            ("[::1]:443", "::1"),
            ("", "10.0.0.1"),
            ("a b", "10.0.0.1"),
            ("*", "10.0.0.1"),
        ] {
            assert_eq!(server_name(authority.as_bytes(), addr).to_str(), expected, "{authority}");
        }
    }
}
