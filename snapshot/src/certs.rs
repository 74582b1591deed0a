//! Certificates: server certificates by name, and client TLS to upstreams.
//!
//! Everything is parsed when it is compiled. A handshake looks up its name (one or two hashes) and
//! finds a configuration that is ready to use.

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

/// TLS settings of the boot file.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The cipher suites and key exchanges.
    pub provider: Arc<CryptoProvider>,
    /// Versions for certificates that declare none.
    pub versions: Versions,
    /// Server name assumed for clients that send none.
    pub fallback_sni: Option<String>,
    /// Session tickets; without them every handshake is a full one.
    pub tickets: Option<Arc<Tickets>>,
    /// TLS to upstreams.
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

/// Enabled TLS versions.
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

/// The server certificate of some names.
#[derive(Debug)]
pub struct Certificate {
    /// The id of the ssl resource.
    pub id: String,
    config: Arc<ServerConfig>,
    /// Rules for client certificates, if they are required.
    pub client: Option<ClientRules>,
}

/// How client certificates are verified.
#[derive(Debug)]
pub struct ClientRules {
    verifier: Arc<verify::Clients>,
    /// Paths that need no client certificate; empty if the handshake itself enforces it.
    pub skip: Vec<Pattern>,
}

impl ClientRules {
    /// A digest of the authorities and the depth, on which a verdict depends.
    pub fn digest(&self) -> &[u8; 32] {
        self.verifier.digest()
    }
}

impl Certificate {
    /// The configuration for a TCP listener, with HTTP/2 if `h2` is set.
    pub fn config(&self, h2: bool) -> Arc<ServerConfig> {
        if !h2 {
            return self.config.clone();
        }
        // A few reference counts and a list: negligible beside a handshake.
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols.insert(0, b"h2".to_vec());
        Arc::new(config)
    }

    /// The configuration for QUIC handshakes, which carry HTTP/3.
    pub fn config_of_h3(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = vec![b"h3".to_vec()];
        Arc::new(config)
    }

    /// The configuration for stream listeners, which may carry any protocol.
    pub fn config_of_streams(&self) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols.clear();
        Arc::new(config)
    }

    /// Verifies the certificates that a client sent, at `now` in seconds since 1970.
    pub fn verdict(&self, sent: Option<&[CertificateDer<'_>]>, now: u64) -> Verdict {
        match (&self.client, sent) {
            (None, _) | (_, None | Some([])) => Verdict::None,
            (Some(rules), Some(sent)) => rules.verifier.verdict(sent, now),
        }
    }
}

/// Reads the fields of a client certificate; `None` if it cannot be parsed.
pub fn client_certificate(der: &CertificateDer<'_>) -> Option<ClientCertificate> {
    peer::read(der)
}

/// Subject and issuer of the client certificate that a handshake on this thread has just rejected,
/// if there was one and it can be parsed.
pub fn take_refused() -> Option<(String, String)> {
    peer::names(&verify::take_refused()?)
}

/// Certificates by server name. Copies share their contents.
#[derive(Debug, Clone, Default)]
pub struct Certificates {
    names: Map<Arc<[Arc<Certificate>]>>,
    hasher: Hasher,
    fallback: Option<Box<str>>,
    /// The number of entries that require a client certificate.
    asking: usize,
}

/// A server name on the stack; the longest has 253 characters.
type Name = SmallVec<[u8; 256]>;

impl Certificates {
    pub(crate) fn new(fallback: Option<&str>) -> Certificates {
        Certificates { fallback: fallback.map(str::to_ascii_lowercase).map(Into::into), ..Default::default() }
    }

    /// Finds the certificate for a server name: that of the exact name, else of all names one label
    /// below (`*.a.com`), else of all names (`*`). The fallback name stands in for a missing one.
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

    /// The server name assumed for clients that send none.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether any certificate requires a client certificate; if not, no look-up is needed.
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

    /// Among several certificates for one name, the one with the lowest id is served.
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

/// The parts of a certificate.
pub(crate) struct Parts<'a> {
    pub id: &'a str,
    pub pairs: Vec<Arc<CertifiedKey>>,
    pub versions: Versions,
    pub client: Option<(Arc<verify::Clients>, Vec<Pattern>)>,
}

/// Creates the verifier of client certificates; `mandatory` enforces them in the handshake.
pub(crate) fn clients(
    authorities: Authorities,
    depth: u64,
    mandatory: bool,
    settings: &TlsSettings,
) -> Arc<verify::Clients> {
    Arc::new(verify::Clients::new(authorities, depth, mandatory, &settings.provider))
}

/// Builds a certificate that is ready for handshakes.
pub(crate) fn certificate(parts: Parts<'_>, settings: &TlsSettings) -> Result<Certificate, rustls::Error> {
    let Parts { id, pairs, versions, client } = parts;
    let builder = ServerConfig::builder_with_provider(settings.provider.clone());
    let builder = builder.with_protocol_versions(&versions.list())?;
    let builder = match &client {
        Some((verifier, _)) => builder.with_client_cert_verifier(verifier.clone()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Pairs(pairs)));
    // The server's order of preference applies, as with `ssl_prefer_server_ciphers`.
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()];
    // Clients keep sessions in tickets, or not at all: workers share no locked session store.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match &settings.tickets {
        Some(tickets) => {
            // Sessions resume only under the same client certificate rules.
            let rules = client.as_ref().map(|(verifier, _)| verifier.digest_for_tickets());
            config.ticketer = tickets.bound_to(rules.unwrap_or_default());
        }
        None => config.send_tls13_tickets = 0,
    }
    let client = client.map(|(verifier, skip)| ClientRules { verifier, skip });
    Ok(Certificate { id: id.to_owned(), config: Arc::new(config), client })
}

/// Certificates of one name with different algorithms. The first that the client can verify is
/// used.
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
        // RSA signatures cost many times as much.
        let is_cheap = |pair: &&Arc<CertifiedKey>| pair.key.algorithm() != SignatureAlgorithm::RSA;
        let fit = pairs.iter().filter(suits).find(is_cheap).or_else(|| pairs.iter().find(suits));
        // Without a suitable one, the handshake fails with the right error.
        fit.or(pairs.first()).cloned()
    }
}

#[cfg(test)]
mod tests;
