//! How TLS is spoken to upstreams.

use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::pem::digest;
use super::verify::{Authorities, Servers};

/// Our side of TLS to upstreams. Two that would do the same are equal.
#[derive(Debug)]
pub struct ClientTls {
    identity: [u8; 32],
    config: Arc<ClientConfig>,
    /// The server's certificate is verified.
    pub verifies: bool,
    /// Why no server is spoken to: a certificate is to be shown that there is not.
    pub lacks: Option<&'static str>,
}

impl ClientTls {
    /// Verifies servers if there are authorities; shows a certificate if there is one.
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
        // To trust nobody is not to trust everybody, though neither has an authority.
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
        // Copies have memories of their own, see `resuming`.
        config.resumption = Resumption::disabled();
        Ok(ClientTls { identity, config: Arc::new(config), verifies, lacks: None })
    }

    /// Speaks to nobody.
    #[must_use]
    pub fn lacking(&self, why: &'static str) -> ClientTls {
        let identity = digest([&self.identity[..], why.as_bytes()]);
        ClientTls { identity, config: self.config.clone(), verifies: self.verifies, lacks: Some(why) }
    }

    /// Tells apart what would be said to a server.
    #[inline]
    pub fn identity(&self) -> &[u8; 32] {
        &self.identity
    }

    /// For connections that resume no sessions.
    pub fn without_sessions(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// For connections that share a memory of sessions: a worker's, say.
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

/// What most upstreams are spoken to with, and requests of plugins.
#[derive(Debug, Clone)]
pub struct CommonTls {
    pub provider: Arc<CryptoProvider>,
    /// Who is trusted where nobody else is named.
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
    /// Trusts nobody where it has to.
    fn default() -> CommonTls {
        CommonTls::new(Arc::default()).expect("the default provider speaks TLS")
    }
}
