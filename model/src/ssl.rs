//! An ssl resource: certificates, for the gateway's own names or as a client of upstreams.
//!
//! Certificates are carried as text; whoever speaks TLS reads them.

use serde::Deserialize;
use serde_json::Value;

use crate::Invalid;
use crate::field::{Meta, typed};
use crate::route;

/// An ssl of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct Ssl {
    pub meta: Meta,
    pub kind: SslType,
    /// `cert` with `key` first, then `certs` with `keys`; at least one.
    pub pairs: Vec<CertificatePair>,
    /// From `sni` or `snis`, in lower case; at least one for servers.
    pub snis: Vec<String>,
    /// Asks clients for certificates.
    pub client: Option<ClientVerification>,
    /// `status` is 1.
    pub enabled: bool,
    /// Asks for responses about the certificates, which clients are shown.
    pub ocsp: Option<OcspStapling>,
    /// `TLSv1.1`, `TLSv1.2`, `TLSv1.3`; empty leaves it to the boot file.
    pub protocols: Vec<String>,
}

/// Which end of TLS a certificate is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SslType {
    #[default]
    Server,
    Client,
}

/// A certificate chain and its private key: PEM, or `$secret://` and `$env://` references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePair {
    pub cert: String,
    pub key: String,
}

/// How clients prove themselves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClientVerification {
    /// PEM of the authorities trusted.
    pub ca: String,
    /// Certificates between the client's and the authority's.
    #[serde(default = "one")]
    pub depth: u64,
    /// Paths that need no client certificate.
    #[serde(default)]
    pub skip_mtls_uri_regex: Vec<String>,
}

/// `ocsp_stapling`, of the plugin of that name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OcspStapling {
    #[serde(default)]
    pub enabled: bool,
    /// Responses need no valid signature, and may say that the certificate is revoked.
    #[serde(default)]
    pub skip_verify: bool,
    /// Seconds after which a response is fetched again.
    #[serde(default = "hour")]
    pub cache_ttl: u64,
}

#[derive(Deserialize)]
struct Written {
    #[serde(rename = "type", default)]
    kind: SslType,
    cert: String,
    key: String,
    #[serde(default)]
    certs: Vec<String>,
    #[serde(default)]
    keys: Vec<String>,
    sni: Option<String>,
    snis: Option<Vec<String>>,
    client: Option<ClientVerification>,
    ocsp_stapling: Option<OcspStapling>,
    status: Option<i64>,
    #[serde(default)]
    ssl_protocols: Vec<String>,
}

impl Ssl {
    /// Types a value that has passed its schema.
    pub(crate) fn read(value: Value) -> Result<Ssl, Invalid> {
        let meta = Meta::of(&value)?;
        let written: Written = typed(value)?;
        if written.certs.len() != written.keys.len() {
            return Err(Invalid::new("mismatched number of certs and keys")
                .at("/certs")
                .expected(format!("{} certs, as there are keys", written.keys.len()))
                .got(written.certs.len().to_string()));
        }
        let more = written.certs.into_iter().zip(written.keys);
        let pairs = std::iter::once((written.cert, written.key)).chain(more);
        Ok(Ssl {
            meta,
            kind: written.kind,
            pairs: pairs.map(|(cert, key)| CertificatePair { cert, key }).collect(),
            snis: route::hosts(written.sni, written.snis),
            client: written.client,
            ocsp: written.ocsp_stapling.filter(|ocsp| ocsp.enabled),
            enabled: written.status != Some(0),
            protocols: written.ssl_protocols,
        })
    }
}

fn hour() -> u64 {
    3600
}

fn one() -> u64 {
    1
}
