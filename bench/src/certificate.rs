//! The gateways' certificate, and the TLS client of the drivers and probes: one ECDSA P-256 key for
//! `localhost`, or an RSA key, generated for each run, and TLS 1.3 by rustls.

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

/// The server name (SNI) of all clients.
pub const NAME: &str = "localhost";

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
    der: CertificateDer<'static>,
}

impl Identity {
    /// Generates a self-signed certificate for `name`.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn new(name: &str) -> Result<Self> {
        Self::of(name, &rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?)
    }

    /// As [`Identity::new`], with an RSA key of 2048 bits.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn rsa(name: &str) -> Result<Self> {
        Self::of(name, &rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)?)
    }

    fn of(name: &str, key: &rcgen::KeyPair) -> Result<Self> {
        let certificate = rcgen::CertificateParams::new(vec![name.to_owned()])?.self_signed(key)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() })
    }

    /// Writes `tls.crt`, `tls.key`, and both in `tls.pem`, as HAProxy requires.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))
        };
        write("tls.crt", &self.certificate)?;
        write("tls.key", &self.key)?;
        write("tls.pem", &format!("{}{}", self.certificate, self.key))
    }
}

/// The first `count` of certificates with different names and keys, generated on first use.
///
/// # Errors
/// A key cannot be generated.
pub fn many(count: usize) -> Result<Arc<Vec<Identity>>> {
    static MANY: Mutex<Option<Arc<Vec<Identity>>>> = Mutex::new(None);
    let mut many = MANY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = many.as_ref().filter(|made| made.len() >= count) {
        return Ok(made.clone());
    }
    let made: Result<Vec<Identity>> = (0..count).map(|index| Identity::new(&name_of(index))).collect();
    Ok(many.insert(Arc::new(made?)).clone())
}

/// The name of certificate `index` of [`many`].
pub fn name_of(index: usize) -> String {
    format!("s{index}.bench.test")
}

/// Whether the server at `address` presents `identity` for `name`, and not another certificate.
///
/// # Errors
/// There is no server.
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
            // rustls rejects another certificate, or the server rejects the name.
            Err(error) if error.kind() == ErrorKind::InvalidData => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(connection.peer_certificates().is_some_and(|shown| shown.first() == Some(&identity.der)))
}

/// The certificate of all gateways of this run, with an RSA or an ECDSA key.
///
/// # Errors
/// The key cannot be generated.
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

/// The server name in the type of rustls.
///
/// # Errors
/// Never: the name is valid.
pub fn server_name() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from(NAME)?)
}

/// The options of a TLS client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub alpn: Option<&'static [u8]>,
    /// Offer only the post-quantum hybrid X25519MLKEM768; otherwise only X25519, which every
    /// gateway supports.
    pub hybrid: bool,
    pub resume: bool,
}

impl Client {
    /// A TLS 1.3 client that accepts only the shared certificates.
    ///
    /// # Errors
    /// rustls rejects the settings.
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

/// The client of probes and idle connections: HTTP/1.1 or HTTP/2 over X25519, without resumption.
///
/// # Errors
/// rustls rejects the settings.
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
