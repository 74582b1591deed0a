//! Certificates: what is served over TLS under which name, and what upstreams are spoken to with.
//!
//! Everything is parsed when it is compiled. A handshake looks its name up, one or two hashes, and finds a
//! configuration that is ready to use.

mod peer;
mod pem;
mod tickets;
mod upstream;
mod verify;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::{SignatureAlgorithm, SupportedProtocolVersion, version};
use sdk::client::{ClientCertificate, Verdict};
use sdk::pattern::Pattern;
use smallvec::SmallVec;

use crate::router::hash::Hasher;
use crate::router::map::Map;
pub(crate) use pem::digest;
pub use pem::{Facts, certificates, check, expired_for, expiry, facts, pair};
pub use tickets::Tickets;
pub use upstream::{ClientTls, CommonTls};
pub use verify::Authorities;

/// How TLS is spoken, as the boot file says.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The cipher suites and key exchanges.
    pub provider: Arc<CryptoProvider>,
    /// Versions where a certificate names none.
    pub versions: Versions,
    /// Stands in for the name that a client does not send.
    pub fallback_sni: Option<String>,
    /// Without them every handshake is a full one.
    pub tickets: Option<Arc<Tickets>>,
    /// For upstreams.
    pub common: CommonTls,
}

impl Default for TlsSettings {
    fn default() -> TlsSettings {
        TlsSettings {
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            versions: Versions { tls12: true, tls13: true },
            fallback_sni: None,
            tickets: None,
            common: CommonTls::default(),
        }
    }
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub tls12: bool,
    pub tls13: bool,
}

impl Versions {
    fn list(self) -> SmallVec<[&'static SupportedProtocolVersion; 2]> {
        let all = [(self.tls13, &version::TLS13), (self.tls12, &version::TLS12)];
        all.into_iter().filter(|(on, _)| *on).map(|(_, version)| version).collect()
    }
}

/// What is served under some names.
#[derive(Debug)]
pub struct Certificate {
    /// The resource's.
    pub id: String,
    config: Arc<ServerConfig>,
    /// Asks clients to prove themselves.
    pub client: Option<ClientRules>,
}

/// How clients prove themselves.
#[derive(Debug)]
pub struct ClientRules {
    verifier: Arc<verify::Clients>,
    /// Paths for which they need not; none if the handshake itself refuses them.
    pub skip: Vec<Pattern>,
}

impl ClientRules {
    /// A digest of the authorities and the depth, on which a verdict depends.
    pub fn digest(&self) -> &[u8; 32] {
        self.verifier.digest()
    }
}

impl Certificate {
    /// For a handshake on a listener that speaks HTTP/1 alone, or HTTP/2 as well.
    pub fn config(&self, h2: bool) -> Arc<ServerConfig> {
        if !h2 {
            return self.config.clone();
        }
        // Costs a few counts and a list, next to a handshake nothing.
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols.insert(0, b"h2".to_vec());
        Arc::new(config)
    }

    /// For a handshake of QUIC, on which HTTP/3 is spoken.
    pub fn config_of_h3(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![b"h3".to_vec()];
        Arc::new(config)
    }

    /// For a handshake on a listener for streams, which may hold any protocol.
    pub fn config_of_streams(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols.clear();
        Arc::new(config)
    }

    /// Whether a client that sent these certificates has proved itself, `now` in seconds since 1970.
    pub fn verdict(&self, sent: Option<&[CertificateDer<'_>]>, now: u64) -> Verdict {
        match (&self.client, sent) {
            (None, _) | (_, None | Some([])) => Verdict::None,
            (Some(rules), Some(sent)) => rules.verifier.verdict(sent, now),
        }
    }
}

/// What is known of a certificate that a client sent; `None` if it cannot be read.
pub fn client_certificate(der: &CertificateDer<'_>) -> Option<ClientCertificate> {
    peer::read(der)
}

/// Subject and issuer of the client's certificate that a handshake on this thread has just refused, if there is one and
/// it can be read.
pub fn take_refused() -> Option<(String, String)> {
    peer::names(&verify::take_refused()?)
}

/// Certificates by server name. Copies share what they have in common.
#[derive(Debug, Clone, Default)]
pub struct Certificates {
    names: Map<Arc<[Arc<Certificate>]>>,
    hasher: Hasher,
    fallback: Option<Box<str>>,
    /// Certificates that ask clients for theirs.
    asking: usize,
}

/// A server name on the stack; the longest has 253 characters.
type Name = SmallVec<[u8; 256]>;

impl Certificates {
    pub(crate) fn new(fallback: Option<&str>) -> Certificates {
        Certificates { fallback: fallback.map(str::to_ascii_lowercase).map(Into::into), ..Default::default() }
    }

    /// What is served under a name that a client asks for: that of the whole name, of all names one
    /// label below (`*.a.com`), or of all names (`*`). A client that names none gets what the fallback names.
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Certificate>> {
        let name = name.or(self.fallback.as_deref())?;
        let mut key: Name = name.strip_suffix('.').unwrap_or(name).bytes().collect();
        key.make_ascii_lowercase();
        if let Some(found) = self.get(&key) {
            return Some(found);
        }
        let dot = key.iter().position(|byte| *byte == b'.');
        if let Some(dot) = dot.filter(|dot| *dot > 0) {
            // The label makes room for the star before its dot.
            key[dot - 1] = b'*';
            if let Some(found) = self.get(&key[dot - 1..]) {
                return Some(found);
            }
        }
        self.get(b"*")
    }

    /// The name that stands in for none.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether any certificate asks clients for theirs: without one there is nothing to look up.
    #[inline]
    pub fn ask_clients(&self) -> bool {
        self.asking > 0
    }

    fn get(&self, name: &[u8]) -> Option<&Arc<Certificate>> {
        if !self.names.may_have(name.len()) {
            return None;
        }
        self.names.get(self.hasher.hash(name), name)?.first()
    }

    /// Of several under one name, that with the lowest id is served.
    pub(crate) fn insert(&mut self, names: &[String], certificate: &Arc<Certificate>) {
        self.asking += usize::from(certificate.client.is_some());
        for name in names.iter().map(String::as_bytes) {
            let hash = self.hasher.hash(name);
            match self.names.get_mut(hash, name) {
                Some(list) => {
                    let mut all: Vec<_> = list.to_vec();
                    if !all.iter().any(|other| other.id == certificate.id) {
                        all.push(certificate.clone());
                        all.sort_by(|one, other| one.id.cmp(&other.id));
                    }
                    *list = all.into();
                }
                None => self.names.insert(hash, name, Arc::new([certificate.clone()])),
            }
        }
    }

    pub(crate) fn remove(&mut self, names: &[String], certificate: &Arc<Certificate>) {
        self.asking -= usize::from(certificate.client.is_some());
        for name in names.iter().map(String::as_bytes) {
            let hash = self.hasher.hash(name);
            let Some(list) = self.names.get_mut(hash, name) else { continue };
            let left: Vec<_> = list.iter().filter(|other| other.id != certificate.id).cloned().collect();
            match left.is_empty() {
                true => self.names.remove(hash, name),
                false => *list = left.into(),
            }
        }
    }
}

/// Everything a certificate is made of.
pub(crate) struct Parts<'a> {
    pub id: &'a str,
    pub pairs: Vec<Arc<CertifiedKey>>,
    pub versions: Versions,
    pub client: Option<(Arc<verify::Clients>, Vec<Pattern>)>,
}

/// What verifies clients; `mandatory` means in the handshake.
pub(crate) fn clients(
    authorities: Authorities,
    depth: u64,
    mandatory: bool,
    settings: &TlsSettings,
) -> Arc<verify::Clients> {
    Arc::new(verify::Clients::new(authorities, depth, mandatory, &settings.provider))
}

/// A certificate, ready for handshakes.
pub(crate) fn certificate(parts: Parts<'_>, settings: &TlsSettings) -> Result<Certificate, rustls::Error> {
    let Parts { id, pairs, versions, client } = parts;
    let builder = ServerConfig::builder_with_provider(settings.provider.clone());
    let builder = builder.with_protocol_versions(&versions.list())?;
    let builder = match &client {
        Some((verifier, _)) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Pairs(pairs)));
    // Ours is the order of preference, as with `ssl_prefer_server_ciphers`.
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    // Sessions are kept by clients, in tickets, or not at all: what workers share takes no lock.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match &settings.tickets {
        Some(tickets) => {
            // A session is resumed only where clients would prove themselves in the same way.
            let rules = client.as_ref().map(|(verifier, _)| verifier.digest_for_tickets());
            config.ticketer = tickets.bound_to(rules.unwrap_or_default());
        }
        None => config.send_tls13_tickets = 0,
    }
    let client = client.map(|(verifier, skip)| ClientRules { verifier, skip });
    Ok(Certificate { id: id.to_owned(), config: Arc::new(config), client })
}

/// Certificates of one name for different algorithms. The first that the client can verify is used.
#[derive(Debug)]
struct Pairs(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Pairs {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Pairs(pairs) = self;
        if let [only] = &pairs[..] {
            return Some(only.clone());
        }
        let schemes = hello.signature_schemes();
        let suits = |pair: &&Arc<CertifiedKey>| pair.key.choose_scheme(schemes).is_some();
        // Signing with RSA costs many times as much.
        let is_cheap = |pair: &&Arc<CertifiedKey>| pair.key.algorithm() != SignatureAlgorithm::RSA;
        let fit = pairs.iter().filter(suits).find(is_cheap).or_else(|| pairs.iter().find(suits));
        // Where none suits, the handshake fails for the right reason.
        fit.or(pairs.first()).cloned()
    }
}

#[cfg(test)]
mod tests;
