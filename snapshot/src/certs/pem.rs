//! Parses PEM certificates and keys, with APISIX's error messages.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use model::{CertificatePair, Invalid, Ssl, SslType};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

/// A chain of certificates, the server's own first.
///
/// # Errors
/// The messages that APISIX takes from OpenSSL.
pub fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, Invalid> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let readable = |der: &CertificateDer<'_>| x509_parser::parse_x509_certificate(der).is_ok();
    match found {
        Ok(chain) if !chain.is_empty() && chain.iter().all(readable) => Ok(chain),
        _ => Err(Invalid::new("failed to parse cert: PEM_read_bio_X509_AUX() failed")
            .expected("certificates in PEM: lines of `-----BEGIN CERTIFICATE-----` and what follows"))
        .map_err(|invalid: Invalid| if is_path(text) { invalid.hint(NO_PATHS) } else { invalid }),
    }
}

const NO_PATHS: &str = "this looks like the path of a file: put the content of that file here";

/// Whether the text is a file path instead of the file's content.
fn is_path(text: &str) -> bool {
    let text = text.trim();
    let is_file = [".pem", ".crt", ".cer", ".key"].iter().any(|end| text.ends_with(end));
    text.len() < 4096 && !text.contains(['\n', ' ']) && (is_file || text.starts_with('/'))
}

/// A certificate with its key.
///
/// # Errors
/// The part that cannot be parsed or a key mismatch, with its pointer.
pub fn pair(pair: &CertificatePair, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Invalid> {
    let chain = certificates(&pair.cert).map_err(|invalid| invalid.at("/cert"))?;
    let unreadable = || {
        Invalid::new("failed to parse key: PEM_read_bio_PrivateKey() failed")
            .at("/key")
            .expected("a private key in PEM, not encrypted by a password")
    };
    if !pair.key.contains("-----BEGIN") {
        // APISIX takes an invalid key for an encrypted one and reports this.
        return Err(Invalid::new("failed to decrypt previous encrypted key")
            .at("/key")
            .expected("a private key in PEM, or one encrypted with a key of apisix.data_encryption.keyring")
            .hint(if is_path(&pair.key) { NO_PATHS } else { "use the PEM form: the store encrypts it" }));
    }
    let der = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|_| unreadable())?;
    let key = provider.key_provider.load_private_key(der).map_err(|_| {
        unreadable()
            .hint("RSA keys of 2048 to 8192 bits are used, and keys of P-256, P-384, P-521 and Ed25519")
    })?;
    let certified = CertifiedKey::new(chain, key);
    let belongs = match certified.keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => false,
        Ok(()) => true,
        // rustls rejects certificates of X.509 version 1, which `openssl ca` makes without
        // extensions.
        Err(_) => is_of(&certified).unwrap_or(true),
    };
    if belongs {
        return Ok(Arc::new(certified));
    }
    Err(Invalid::new("failed to parse key: X509_check_private_key() failed: key values mismatch")
        .at("/key")
        .expected("the private key of the certificate"))
}

/// Whether the first certificate matches the key; `None` if that cannot be determined.
fn is_of(certified: &CertifiedKey) -> Option<bool> {
    let (_, read) = x509_parser::parse_x509_certificate(certified.cert.first()?).ok()?;
    let key = certified.key.public_key()?;
    Some(read.public_key().raw == key.as_ref())
}

/// When a certificate expires, in seconds since 1970.
pub fn expiry(der: &CertificateDer<'_>) -> Option<i64> {
    let (_, read) = x509_parser::parse_x509_certificate(der).ok()?;
    Some(read.validity().not_after.timestamp())
}

/// Days since the first certificate of a PEM chain expired, at `now` in seconds since 1970. `None`
/// if it is still valid or cannot be parsed.
pub fn expired_for(text: &str, now: i64) -> Option<i64> {
    let end = certificates(text).ok()?.first().and_then(expiry)?;
    (end < now).then(|| (now - end) / 86_400)
}

/// Validity, names and issuer of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// In seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
    /// The DNS names it is for.
    pub names: Vec<String>,
    pub is_self_signed: bool,
}

/// Reads the first certificate of a PEM chain; `None` if it cannot be parsed.
pub fn facts(text: &str) -> Option<Facts> {
    let chain = certificates(text).ok()?;
    let (_, read) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    let names = read.subject_alternative_name().ok().flatten().map(|names| {
        let dns = names.value.general_names.iter().filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        dns.collect()
    });
    Some(Facts {
        not_before: read.validity().not_before.timestamp(),
        not_after: read.validity().not_after.timestamp(),
        names: names.unwrap_or_default(),
        is_self_signed: read.subject() == read.issuer(),
    })
}

/// Checks an ssl resource before it is stored, at `now` in seconds since 1970. References to
/// secrets are checked when they are used.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn check(ssl: &Ssl, provider: &CryptoProvider, now: i64) -> Result<(), Invalid> {
    for (at, written) in ssl.pairs.iter().enumerate() {
        if is_reference(&written.cert) || is_reference(&written.key) {
            continue;
        }
        let checked = pair(written, provider).and_then(|certified| not_over(&certified.cert, now));
        // Further pairs are in lists.
        checked.map_err(|invalid| match at {
            0 => invalid,
            _ => {
                let list = if invalid.pointer == "/key" { "keys" } else { "certs" };
                invalid
                    .at(format!("/{list}/{}", at - 1))
                    .said(&format!("failed to handle cert-key pair[{at}]: "))
            }
        })?;
    }
    if let Some(client) = &ssl.client
        && ssl.kind == SslType::Server
        && !is_reference(&client.ca)
    {
        certificates(&client.ca)
            .map_err(|invalid| invalid.at("/client/ca").said("failed to validate client_cert: "))?;
    }
    Ok(())
}

fn not_over(chain: &[CertificateDer<'_>], now: i64) -> Result<(), Invalid> {
    match chain.first().and_then(expiry) {
        Some(end) if end < now => {
            let ago = (now - end) / 86_400;
            Err(Invalid::new("failed to parse cert: certificate has expired")
                .at("/cert")
                .expected("a certificate that is still valid")
                .got(format!("one that expired {ago} days ago")))
        }
        _ => Ok(()),
    }
}

/// Whether a text is a reference to a secret instead of the secret itself.
pub(crate) fn is_reference(text: &str) -> bool {
    let begins = |start: &str| text.get(..start.len()).is_some_and(|is| is.eq_ignore_ascii_case(start));
    begins("$secret://") || begins("$env://")
}

/// A digest of several texts, each with its length.
pub(crate) fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod path_tests {
    use super::*;

    #[test]
    fn a_file_path_instead_of_pem_is_reported() {
        for path in ["/etc/ssl/a", "certs/server.crt", "key.pem\n"] {
            assert_eq!(certificates(path).unwrap_err().hint.as_deref(), Some(NO_PATHS), "{path}");
        }
        assert_eq!(certificates("MIIB").unwrap_err().hint, None);
        assert!(!is_path("-----BEGIN CERTIFICATE-----\n/abc\n"));
    }
}
