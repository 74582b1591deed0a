//! Whether certificates may be stored.

use model::{Invalid, Ssl};
use snapshot::certs;

/// Checks an ssl, `now` in seconds since 1970.
///
/// # Errors
/// The first thing that is wrong, in APISIX's words where it has some.
pub fn check(ssl: &Ssl, now: u64) -> Result<(), Invalid> {
    let provider = certs::TlsSettings::default().provider;
    certs::check(ssl, &provider, i64::try_from(now).unwrap_or(i64::MAX))
}
