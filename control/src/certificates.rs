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

/// Checks a certificate that is shown to upstreams. What refers to secrets elsewhere is looked at when it is used.
///
/// # Errors
/// What of it cannot be read, with its place, in APISIX's words.
pub fn check_client(pair: CertificatePair) -> Result<(), Invalid> {
    if [&pair.cert, &pair.key].iter().any(|text| text.starts_with('$')) {
        return Ok(());
    }
    let provider = certs::TlsSettings::default().provider;
    certs::pair(&pair, &provider).map(drop)
}
