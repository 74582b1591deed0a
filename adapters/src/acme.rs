//! The ACME protocol (RFC 8555), by the instant-acme crate, and the certificate that proves a name in a handshake
//! (RFC 8737).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use control::acme::{Asking, Authority, Challenge, ChallengeResponse, Issued, Prover};
use http_body_util::{BodyExt, Full};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, Error,
    ExternalAccountKey, HttpClient, Identifier, NewAccount, NewOrder, OrderStatus, RetryPolicy,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls;
use tokio_rustls::rustls::ClientConfig;

use crate::http::{self, Names, Server};

/// The ALPN name of a handshake that proves a name.
const PROOF: &[u8] = b"acme-tls/1";
/// Bytes of an answer of the server.
const MOST: usize = 1 << 20;
/// For one request.
const PATIENCE: http::Timeouts = http::Timeouts { connect: 10_000, send: 10_000, read: 20_000, wait: 0 };
/// For the server to check a challenge, or to issue.
const WORK: Duration = Duration::from_secs(90);

/// An ACME server.
#[derive(Debug)]
pub struct Acme {
    /// The URL of its directory.
    pub directory: String,
    pub email: Option<String>,
    /// Whom it is bound to elsewhere: key id, and key in base64url.
    pub external: Option<(String, String)>,
    pub tls: Arc<ClientConfig>,
    pub names: Option<Names>,
}

/// Sends the requests of instant-acme.
struct Client(Arc<ClientConfig>, Option<Names>);

impl HttpClient for Client {
    fn request(
        &self,
        request: hyper::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (tls, names) = (self.0.clone(), self.1.clone());
        Box::pin(async move { send(request, &tls, names).await.map_err(|error| Error::Other(error.into())) })
    }
}

async fn send(
    request: hyper::Request<BodyWrapper<Bytes>>,
    tls: &Arc<ClientConfig>,
    names: Option<Names>,
) -> Result<BytesResponse, String> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    let authority = head.uri.authority().map(ToString::to_string).unwrap_or_default();
    let scheme = head.uri.scheme_str().unwrap_or_default();
    if scheme != "https" {
        return Err(format!("{}: expected an https:// address", head.uri));
    }
    let server = Server::parse(&format!("{scheme}://{authority}"), tls)?.resolved_by(names);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let fields = head.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let fields: Vec<(&str, &str)> = fields.collect();
    let question = http::Question { method: head.method, path, headers: &fields, body };
    let answer = server.send(question, PATIENCE, Duration::ZERO, MOST).await?;
    let mut response = hyper::Response::new(Full::new(answer.body));
    *response.status_mut() = hyper::StatusCode::from_u16(answer.status).map_err(|error| error.to_string())?;
    *response.headers_mut() = answer.headers;
    Ok(response.into())
}

impl Acme {
    fn client(&self) -> Box<dyn HttpClient> {
        Box::new(Client(self.tls.clone(), self.names.clone()))
    }

    async fn restored(&self, kept: &str) -> Result<Account, String> {
        let credentials: AccountCredentials =
            serde_json::from_str(kept).map_err(|error| format!("the account that is kept: {error}"))?;
        Account::builder_with_http(self.client()).from_credentials(credentials).await.map_err(words)
    }

    async fn made(&self) -> Result<String, String> {
        let contact = self.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.as_deref().into_iter().collect();
        let new =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let external = match &self.external {
            None => None,
            Some((id, key)) => {
                use base64::Engine;
                use base64::engine::general_purpose::URL_SAFE_NO_PAD;
                let key = URL_SAFE_NO_PAD.decode(key.trim_end_matches('='));
                let key = key.map_err(|error| format!("sluice.acme.eab.hmac_key: {error}"))?;
                Some(ExternalAccountKey::new(id.clone(), &key))
            }
        };
        let made = Account::builder_with_http(self.client())
            .create(&new, self.directory.clone(), external.as_ref())
            .await;
        let (_, credentials) = made.map_err(words)?;
        serde_json::to_string(&credentials).map_err(|error| error.to_string())
    }
}

impl Authority for Acme {
    fn account(&self, kept: Option<String>) -> Asking<'_, String> {
        Box::pin(async move {
            let directory = |text: &str| {
                let value: serde_json::Value = serde_json::from_str(text).ok()?;
                Some(value.get("directory")?.as_str()? == self.directory)
            };
            match kept {
                // Those of another server are of no use here.
                Some(kept) if directory(&kept) == Some(true) => Ok(kept),
                _ => self.made().await,
            }
        })
    }

    fn issue<'a>(
        &'a self,
        account: &'a str,
        domains: &'a [String],
        challenge: Challenge,
        prover: &'a dyn Prover,
    ) -> Asking<'a, Issued> {
        Box::pin(async move {
            let account = self.restored(account).await?;
            let names: Vec<Identifier> = domains.iter().cloned().map(Identifier::Dns).collect();
            let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(words)?;
            let kind = match challenge {
                Challenge::Http01 => ChallengeType::Http01,
                Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let mut authorizations = order.authorizations();
            while let Some(authorization) = authorizations.next().await {
                let mut authorization = authorization.map_err(words)?;
                match authorization.status {
                    AuthorizationStatus::Valid => continue,
                    AuthorizationStatus::Pending => {}
                    other => return Err(format!("an authorization is {other:?}")),
                }
                let domain = authorization.identifier().to_string();
                let mut asked = authorization
                    .challenge(kind.clone())
                    .ok_or_else(|| format!("{domain}: the server does not offer the challenge {kind:?}"))?;
                let text = asked.key_authorization().as_str().to_owned();
                prover
                    .prove(ChallengeResponse { domain, token: asked.token.clone(), text, until: 0 })
                    .await?;
                asked.set_ready().await.map_err(words)?;
            }
            let retries = RetryPolicy::default().timeout(WORK);
            let status = order.poll_ready(&retries).await.map_err(words)?;
            if status != OrderStatus::Ready {
                return Err(refusal(&mut order).await.unwrap_or_else(|| format!("the order is {status:?}")));
            }
            let key = order.finalize().await.map_err(words)?;
            let chain = order.poll_certificate(&retries).await.map_err(words)?;
            Ok(Issued { chain, key })
        })
    }
}

/// Returns the server's reason why the challenge failed.
async fn refusal(order: &mut instant_acme::Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(authorization)) = authorizations.next().await {
        let failed = authorization.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(problem) = failed {
            let domain = authorization.identifier().to_string();
            return Some(format!(
                "{domain}: {}",
                problem.detail.as_deref().unwrap_or("the challenge failed")
            ));
        }
    }
    None
}

fn words(error: Error) -> String {
    match error {
        Error::Api(problem) => format!("the server says: {problem}"),
        other => other.to_string(),
    }
}

/// Makes the configuration for the TLS-ALPN-01 handshake that validates a name (RFC 8737).
///
/// # Errors
/// No certificate can be made of the answer.
pub fn proof(
    answer: &ChallengeResponse,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<ServerConfig>, String> {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, answer.text.as_bytes());
    let made = rcgen::CertificateParams::new([answer.domain.clone()]).and_then(|mut params| {
        params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(digest.as_ref())];
        let key = rcgen::KeyPair::generate()?;
        Ok((params.self_signed(&key)?, key))
    });
    let (certificate, key) = made.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    // Not as an ordinary certificate: its one critical extension is known to ACME servers alone.
    let key = provider.key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    let pair = CertifiedKey::new(vec![CertificateDer::from(certificate.der().to_vec())], key);
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![PROOF.to_vec()];
    // Nothing is resumed.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_proved_by_a_certificate_of_its_own() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let answer = |domain: &str| ChallengeResponse {
            domain: domain.to_owned(),
            token: "t".to_owned(),
            text: "t.print".to_owned(),
            until: 0,
        };
        let config = proof(&answer("a.test"), &provider).unwrap();
        assert_eq!(config.alpn_protocols, [PROOF.to_vec()]);
        assert!(proof(&answer("not a name \u{e9}"), &provider).is_err());
    }
}
