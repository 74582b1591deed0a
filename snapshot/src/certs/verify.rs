//! Trust: authorities, and the verification of clients and servers.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use sdk::client::Verdict;
use webpki::{EndEntityCert, KeyUsage};

use super::pem::digest;

/// Trusted certificates: as issuers of others, and as themselves.
#[derive(Debug, Clone, Default)]
pub struct Authorities {
    anchors: Vec<TrustAnchor<'static>>,
    /// The certificates as configured.
    whole: Vec<CertificateDer<'static>>,
    digest: [u8; 32],
}

impl Authorities {
    /// Those that can be parsed. They are also trusted themselves.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Authorities {
        Authorities { whole: certificates.clone(), ..Authorities::roots(&certificates) }
    }

    /// Those that can be parsed, only as issuers: long lists then take less memory.
    pub fn roots(certificates: &[CertificateDer<'_>]) -> Authorities {
        let anchor = |der| Some(webpki::anchor_from_trusted_cert(der).ok()?.to_owned());
        Authorities {
            anchors: certificates.iter().filter_map(anchor).collect(),
            whole: Vec::new(),
            digest: digest(certificates.iter().map(|der| &der[..])),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    pub fn len(&self) -> usize {
        self.anchors.len()
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether an authority vouches for a certificate, through at most `depth` intermediates.
    fn vouch(
        &self,
        chain: &[CertificateDer<'_>],
        usage: KeyUsage,
        depth: u64,
        algorithms: &WebPkiSupportedAlgorithms,
        now: UnixTime,
    ) -> Result<(), CertificateError> {
        let [end, between @ ..] = chain else { return Err(CertificateError::BadEncoding) };
        // Self-signed certificates configured as trusted: webpki never accepts an authority as an
        // end entity.
        if self.whole.iter().any(|whole| whole == end) {
            return is_current(end, now);
        }
        let end = EndEntityCert::try_from(end).map_err(|_| CertificateError::BadEncoding)?;
        let short = |path: &webpki::VerifiedPath<'_>| match path.intermediate_certificates().count() as u64 {
            count if count <= depth => Ok(()),
            _ => Err(webpki::Error::MaximumPathDepthExceeded),
        };
        let path =
            end.verify_for_usage(algorithms.all, &self.anchors, between, now, usage, None, Some(&short));
        path.map(drop).map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateError::Expired,
            webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
            webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
            webpki::Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
            other => CertificateError::Other(rustls::OtherError(Arc::new(other))),
        })
    }
}

/// Whether a directly trusted certificate is valid now.
fn is_current(der: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let (_, read) = x509_parser::parse_x509_certificate(der).map_err(|_| CertificateError::BadEncoding)?;
    match read.validity() {
        validity if validity.not_after.timestamp() < now => Err(CertificateError::Expired),
        validity if validity.not_before.timestamp() > now => Err(CertificateError::NotValidYet),
        _ => Ok(()),
    }
}

thread_local! {
    /// The last client certificate rejected on this thread. rustls reports only the reason.
    static REFUSED: RefCell<Option<CertificateDer<'static>>> = const { RefCell::new(None) };
}

fn note_refused(certificate: &CertificateDer<'_>) {
    REFUSED.set(Some(certificate.clone().into_owned()));
}

/// Takes the client certificate that a handshake on this thread has just rejected.
pub(super) fn take_refused() -> Option<CertificateDer<'static>> {
    REFUSED.take()
}

/// Verifies client certificates.
#[derive(Debug)]
pub struct Clients {
    authorities: Authorities,
    /// The most intermediates between a client's certificate and an authority's.
    depth: u64,
    /// The handshake fails without a valid client certificate.
    mandatory: bool,
    /// A digest of everything a verdict depends on: the authorities and the depth.
    digest: [u8; 32],
    subjects: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Clients {
    pub(crate) fn new(
        authorities: Authorities,
        depth: u64,
        mandatory: bool,
        provider: &CryptoProvider,
    ) -> Clients {
        // The names of the authorities help clients choose a certificate.
        let subject = |anchor: &TrustAnchor<'_>| DistinguishedName::in_sequence(&anchor.subject);
        Clients {
            subjects: authorities.anchors.iter().map(subject).collect(),
            digest: digest([&depth.to_be_bytes()[..], &authorities.digest()]),
            authorities,
            depth,
            mandatory,
            algorithms: provider.signature_verification_algorithms,
        }
    }

    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// A digest of the rules that sessions are bound to: a ticket of a client without a certificate
    /// is invalid where a certificate is mandatory.
    pub(super) fn digest_for_tickets(&self) -> [u8; 32] {
        digest([&[u8::from(self.mandatory)][..], &self.digest])
    }

    fn check(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), CertificateError> {
        self.authorities.vouch(chain, KeyUsage::client_auth(), self.depth, &self.algorithms, now)
    }

    pub(super) fn verdict(&self, chain: &[CertificateDer<'_>], now: u64) -> Verdict {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now));
        match self.check(chain, now) {
            Ok(()) => Verdict::Success,
            Err(error) => Verdict::Failed(error.to_string().into()),
        }
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // If some paths need no certificate, requests are checked instead of the handshake.
        if self.mandatory {
            let chain: Vec<_> = std::iter::once(end).chain(between).cloned().collect();
            self.check(&chain, now).inspect_err(|_| note_refused(end))?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.algorithms).inspect_err(|_| note_refused(cert))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.algorithms).inspect_err(|_| note_refused(cert))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies servers; without authorities, accepts every server.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) trusted: Option<Arc<Authorities>>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

/// The most intermediates between a server's certificate and an authority's.
const SERVER_DEPTH: u64 = 5;

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(trusted) = &self.trusted {
            let chain: Vec<_> = std::iter::once(end).chain(between).cloned().collect();
            trusted.vouch(&chain, KeyUsage::server_auth(), SERVER_DEPTH, &self.algorithms, now)?;
            verify_server_name(&ParsedCertificate::try_from(end)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.trusted {
            Some(_) => verify_tls12_signature(message, cert, signed, &self.algorithms),
            // An unverified server may as well use another server's certificate.
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.trusted {
            Some(_) => verify_tls13_signature(message, cert, signed, &self.algorithms),
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
