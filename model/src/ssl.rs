//! An ssl resource: certificates, for the gateway's own names or as a client of upstreams.
//!
//! Certificates stay text here; the rooms that speak TLS parse them.

use std::net::IpAddr;

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
    /// The first of `snis` is from `sni`.
    has_sni: bool,
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
struct Raw {
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
        let written: Raw = typed(value)?;
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
            has_sni: written.sni.is_some(),
            snis: route::hosts(written.sni, written.snis),
            client: written.client,
            ocsp: written.ocsp_stapling.filter(|ocsp| ocsp.enabled),
            enabled: written.status != Some(0),
            protocols: written.ssl_protocols,
        })
    }

    /// Where the server name at `index` of [`snis`](Ssl::snis) stands.
    pub fn sni_pointer(&self, index: usize) -> String {
        match index.checked_sub(usize::from(self.has_sni)) {
            Some(index) => format!("/snis/{index}"),
            None => "/sni".to_owned(),
        }
    }
}

/// Why no client can ask for a server name: it is not a host name, `*.` before one, or `*`. Addresses pass, since
/// `fallback_sni` may name one.
pub fn fault_of_sni(sni: &str) -> Option<Invalid> {
    let name = sni.strip_suffix('.').unwrap_or(sni);
    let name = name.strip_prefix("*.").unwrap_or(name);
    if sni == "*" || name.parse::<IpAddr>().is_ok() {
        return None;
    }
    let is_label = |label: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(allowed)
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        return None;
    }
    let help = if sni.contains('/') {
        "write the host alone, without a scheme and a path"
    } else if sni.contains(':') {
        "write the host without a port: the server name in a TLS handshake has none"
    } else if sni.contains('*') {
        "`*` stands for the first label alone, as in `*.example.com`; `*` by itself is every name"
    } else if !sni.is_ascii() {
        "write it in ASCII, as clients send it: `xn--bcher-kva.example` for `bücher.example`"
    } else {
        "a host name is labels of letters, digits, `-` and `_`, each of 1 to 63 characters, with dots between them"
    };
    let shown: String = sni.chars().take(253).collect();
    let invalid = Invalid::new(format!("the SNI `{shown}` is not a host name"));
    Some(invalid.expected("a host name, or `*.` before one").got(format!("`{shown}`")).hint(help))
}

/// The places of server names that are not host names, and why, in a value that may still fail its schema.
pub(crate) fn wrong_snis(value: &Value) -> Vec<(String, Invalid)> {
    let one = value.get("sni").map(|sni| ("/sni".to_owned(), sni));
    let many = value.get("snis").and_then(Value::as_array).into_iter().flatten().enumerate();
    let all = one.into_iter().chain(many.map(|(at, sni)| (format!("/snis/{at}"), sni)));
    all.filter_map(|(at, sni)| Some((at, fault_of_sni(sni.as_str()?)?))).collect()
}

fn hour() -> u64 {
    3600
}

fn one() -> u64 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_client_can_ask_for_are_helped_with() {
        for (sni, help) in [
            ("a.com", None),
            ("*.a.com", None),
            ("a.com.", None),
            ("*", None),
            ("localhost", None),
            ("b_c.example", None),
            ("127.0.0.1", None),
            ("::1", None),
            ("https://a.com/", Some("without a scheme")),
            ("a.com:443", Some("without a port")),
            ("[::1]:443", Some("without a port")),
            ("a.*.com", Some("first label")),
            ("*a.com", Some("first label")),
            ("*.*.com", Some("first label")),
            ("bücher.example", Some("ASCII")),
            ("a b", Some("labels of letters")),
            ("a..b", Some("labels of letters")),
            (".a.com", Some("labels of letters")),
            ("", Some("labels of letters")),
        ] {
            let found = fault_of_sni(sni).and_then(|invalid| invalid.hint);
            assert_eq!(found.is_some(), help.is_some(), "{sni}: {found:?}");
            assert!(found.unwrap_or_default().contains(help.unwrap_or_default()), "{sni}");
        }
        assert!(fault_of_sni(&"a".repeat(64)).is_some());
    }
}
