//! TLS to upstreams.

use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::pem::digest;
use super::verify::{Authorities, Servers};

/// The client side of TLS to upstreams. Equal if they behave the same.
#[derive(Debug)]
pub struct ClientTls {
    identity: [u8; 32],
    config: Arc<ClientConfig>,
    /// Server certificates are verified.
    pub verifies: bool,
    /// Why connections are refused: the client certificate to present is missing.
    pub lacks: Option<&'static str>,
    /// The name that servers are asked for and must have, instead of that in `Host`.
    pub name: Option<ServerName<'static>>,
}

impl ClientTls {
    /// Verifies servers if there are authorities; presents a certificate if there is one.
    ///
    /// # Errors
    /// The provider has no version of TLS.
    pub fn new(
        trusted: Option<Arc<Authorities>>,
        certificate: Option<Arc<CertifiedKey>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<ClientTls, rustls::Error> {
        let authorities = trusted.as_ref().map(|trusted| trusted.digest()).unwrap_or_default();
        let chain = certificate.iter().flat_map(|certified| certified.cert.iter().map(|der| &der[..]));
        let verifies = trusted.is_some();
        // Trusting no authority is not the same as trusting every server, though neither has one.
        let identity = digest([&[u8::from(verifies)][..], &authorities].into_iter().chain(chain));
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder =
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Servers { trusted, algorithms }));
        let mut config = match certificate {
            Some(certified) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified))),
            None => builder.with_no_client_auth(),
        };
        // Copies have their own session memory, see `resuming`.
        config.resumption = Resumption::disabled();
        Ok(ClientTls { identity, config: Arc::new(config), verifies, lacks: None, name: None })
    }

    /// A configuration that asks servers for this name.
    #[must_use]
    pub fn named(&self, name: ServerName<'static>) -> ClientTls {
        let identity = digest([&self.identity[..], b"name", name.to_str().as_bytes()]);
        let config = self.config.clone();
        ClientTls { identity, config, verifies: self.verifies, lacks: self.lacks, name: Some(name) }
    }

    /// A configuration that refuses all connections.
    #[must_use]
    pub fn lacking(&self, why: &'static str) -> ClientTls {
        let identity = digest([&self.identity[..], why.as_bytes()]);
        ClientTls {
            identity,
            config: self.config.clone(),
            verifies: self.verifies,
            lacks: Some(why),
            name: self.name.clone(),
        }
    }

    /// A digest of everything that affects handshakes.
    #[inline]
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// For connections that do not resume sessions.
    pub fn without_sessions(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// For connections that share a session memory, such as a worker's.
    pub fn resuming(&self, h2: bool, sessions: Resumption) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = sessions;
        if h2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Arc::new(config)
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &ClientTls) -> bool {
        self.identity == other.identity
    }
}

/// TLS shared by most upstreams and by subrequests of plugins.
#[derive(Debug, Clone)]
pub struct CommonTls {
    pub provider: Arc<CryptoProvider>,
    /// The default trust anchors.
    pub trusted: Arc<Authorities>,
    pub verifying: Arc<ClientTls>,
    pub trusting: Arc<ClientTls>,
}

impl CommonTls {
    /// # Errors
    /// As [`ClientTls::new`].
    pub fn new(trusted: Arc<Authorities>) -> Result<CommonTls, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Ok(CommonTls {
            verifying: Arc::new(ClientTls::new(Some(trusted.clone()), None, &provider)?),
            trusting: Arc::new(ClientTls::new(None, None, &provider)?),
            trusted,
            provider,
        })
    }
}

impl Default for CommonTls {
    /// Trusts no authority.
    fn default() -> CommonTls {
        CommonTls::new(Arc::default()).expect("the default provider speaks TLS")
    }
}
