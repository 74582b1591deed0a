//! When the certificates of ssl resources expire.

use std::sync::Arc;

use model::Key;
use rustls::sign::CertifiedKey;

use crate::certs;

/// When a certificate in use expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expiry {
    /// The ssl resource.
    pub key: Key,
    /// The first name it is served under; `None` for one that is shown to upstreams.
    pub sni: Option<String>,
    /// In seconds since 1970; of several certificates of a resource, the soonest.
    pub not_after: i64,
}

impl Expiry {
    /// `None` if there is no certificate that can be read.
    pub(super) fn of(key: &Key, sni: Option<&String>, pairs: &[Arc<CertifiedKey>]) -> Option<Arc<Expiry>> {
        let each = pairs.iter().filter_map(|pair| pair.cert.first().and_then(certs::expiry));
        Some(Arc::new(Expiry { key: key.clone(), sni: sni.cloned(), not_after: each.min()? }))
    }
}
