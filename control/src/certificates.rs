//! Whether certificates may be stored.

use model::{CertificatePair, Invalid, Ssl};
use snapshot::certs;

/// Checks an ssl, `now` in seconds since 1970.
///
/// # Errors
/// The first thing that is wrong, in APISIX's words where it has some.
pub fn check(ssl: &Ssl, now: u64) -> Result<(), Invalid> {
    let provider = certs::TlsSettings::default().provider;
    certs::check(ssl, &provider, i64::try_from(now).unwrap_or(i64::MAX))
}

/// Checks a certificate that is shown to upstreams. References to secrets are checked when they are used.
///
/// # Errors
/// The field that cannot be read, with its pointer, in APISIX's words.
pub fn check_client(pair: CertificatePair) -> Result<(), Invalid> {
    if [&pair.cert, &pair.key].iter().any(|text| text.starts_with('$')) {
        return Ok(());
    }
    let provider = certs::TlsSettings::default().provider;
    certs::pair(&pair, &provider).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_none_is_refused_and_a_reference_is_not() {
        let check =
            |key: &str| check_client(CertificatePair { cert: "$env://C".to_owned(), key: key.to_owned() });
        assert_eq!(check("a"), Ok(()), "the certificate stands elsewhere");
        let cert = include_str!("../../tests/certs/server-ec.crt");
        let check = |key: &str| check_client(CertificatePair { cert: cert.to_owned(), key: key.to_owned() });
        assert_eq!(check("$secret://vault/1/key"), Ok(()));
        let refused = check("bm90IGEga2V5").unwrap_err();
        assert_eq!(
            (refused.reason.as_str(), refused.pointer.as_str()),
            ("failed to decrypt previous encrypted key", "/key")
        );
        assert!(check("-----BEGIN PRIVATE KEY-----").is_err());
    }
}
