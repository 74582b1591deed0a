//! The certificate that every gateway shows, and the TLS client of the drivers and probes: one
//! ECDSA P-256 key for `localhost`, or one of RSA, made anew for each run, and TLS 1.3 by rustls.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

/// The server name everyone asks for.
pub const NAME: &str = "localhost";

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
    der: CertificateDer<'static>,
}

impl Identity {
    /// A self-signed one for `name`.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new(name: &str) -> Result<Self> {
        Self::of(name, &rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?)
    }

    /// The same with a key of RSA, of 2048 bits.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn rsa(name: &str) -> Result<Self> {
        Self::of(name, &rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)?)
    }

    fn of(name: &str, key: &rcgen::KeyPair) -> Result<Self> {
        let certificate = rcgen::CertificateParams::new(vec![name.to_owned()])?.self_signed(key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() })
    }

    /// Writes `tls.crt`, `tls.key`, and both in `tls.pem`, as HAProxy wants them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("tls.crt", &self.certificate)?;
        write("tls.key", &self.key)?;
        write("tls.pem", &format!("{}{}", self.certificate, self.key))
    }
}

/// The first `count` of certificates that differ in name and key, made when they are first asked for.
///
/// # Errors
/// When no key can be made.
pub fn many(count: usize) -> Result<Arc<Vec<Identity>>> {
    static MANY: Mutex<Option<Arc<Vec<Identity>>>> = Mutex::new(None);
    let mut many = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = many.as_ref().filter(|made| made.len() >= count) {
        return Ok(made.clone());
    }
    let made: Result<Vec<Identity>> = (0..count).map(|index| Identity::new(&name_of(index))).collect();
    Ok(many.insert(Arc::new(made?)).clone())
}

/// The name of certificate `index` of many.
pub fn name_of(index: usize) -> String {
    format!("s{index}.bench.test")
}

/// Whether the server at `address` shows `identity`, and no other certificate, for `name`.
///
/// # Errors
/// When there is no server.
pub fn shows(address: SocketAddr, name: &str, identity: &Identity) -> Result<bool> {
    let mut roots = RootCertStore::empty();
    roots.add(identity.der.clone())?;
    let config = Client { alpn: None, hybrid: false, resume: false }.with_roots(roots)?;
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::try_from(name.to_owned())?)?;
    while connection.is_handshaking() {
        match connection.complete_io(&mut socket) {
            Ok(_) => {}
            // rustls refuses another certificate, or the server the name.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(connection.peer_certificates().is_some_and(|shown| shown.first() == Some(&identity.der)))
}

/// The one all gateways of this run show, with a key of RSA or of ECDSA.
///
/// # Errors
/// When no key can be made.
pub fn shared(rsa: bool) -> Result<&'static Identity> {
    static SHARED: [OnceLock<Identity>; 2] = [const { OnceLock::new() }; 2];
    let cell = &SHARED[usize::from(rsa)];
    match cell.get() {
        Some(identity) => Ok(identity),
        None => {
            let identity = if rsa { Identity::rsa(NAME)? } else { Identity::new(NAME)? };
            Ok(cell.get_or_init(|| identity))
        }
    }
}

/// The name to ask for, as rustls takes it.
///
/// # Errors
/// Never, since the name is one.
pub fn server_name() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from(NAME)?)
}

/// How a client makes TLS connections.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub alpn: Option<&'static [u8]>,
    /// Offer the post-quantum hybrid X25519MLKEM768 and nothing else; otherwise X25519 alone, which
    /// every gateway speaks.
    pub hybrid: bool,
    pub resume: bool,
}

impl Client {
    /// TLS 1.3 that accepts the shared certificates and no other.
    ///
    /// # Errors
    /// When rustls refuses the settings.
    pub fn config(self) -> Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for rsa in [false, true] {
            roots.add(shared(rsa)?.der.clone())?;
        }
        self.with_roots(roots)
    }

    fn with_roots(self, roots: RootCertStore) -> Result<ClientConfig> {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![if self.hybrid { kx_group::X25519MLKEM768 } else { kx_group::X25519 }];
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = self.alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config.resumption =
            if self.resume { Resumption::in_memory_sessions(4) } else { Resumption::disabled() };
        Ok(config)
    }
}

/// For probes and idle connections: HTTP/1.1 or HTTP/2 over X25519, never resumed.
///
/// # Errors
/// When rustls refuses the settings.
pub fn probe(http2: bool) -> Result<Arc<ClientConfig>> {
    static CONFIGS: [OnceLock<Arc<ClientConfig>>; 2] = [const { OnceLock::new() }; 2];
    let cell = &CONFIGS[usize::from(http2)];
    if let Some(config) = cell.get() {
        return Ok(config.clone());
    }
    let alpn: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    let config = Arc::new(Client { alpn: Some(alpn), hybrid: false, resume: false }.config()?);
    Ok(cell.get_or_init(|| config).clone())
}
