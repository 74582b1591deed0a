//! The table of certificates: those served by name, their OCSP responses, and when they expire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use model::{Entry, Key};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use super::Expiry;
use super::memo::Memo;
use crate::certs::{Certificate, Certificates};

/// The last valid version of an ssl resource.
pub(super) struct CertificateUnit {
    pub entry: Arc<Entry>,
    /// It contains references to secrets, which may change while the resource does not.
    pub refers: bool,
    pub made: CompiledSsl,
    /// It lacks a secret: handshakes for its names fail.
    pub refuses: bool,
    /// The needed OCSP responses, and those currently stapled.
    pub stapled: Vec<Stapled>,
    /// `None` if it has no certificate.
    pub expiry: Option<Arc<Expiry>>,
}

/// A needed OCSP response, and the present one.
pub(super) type Stapled = (Arc<Stapling>, Option<Arc<[u8]>>);

/// A certificate that needs a stapled OCSP response.
#[derive(Debug, PartialEq, Eq)]
pub struct Stapling {
    pub key: Key,
    /// A digest of the certificate and its location.
    pub id: [u8; 32],
    /// The certificate and its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// See [`model::ssl::OcspStapling`].
    pub skip_verify: bool,
    pub cache_ttl: Duration,
}

pub(super) enum CompiledSsl {
    Server {
        names: Vec<String>,
        certificate: Arc<Certificate>,
    },
    /// A client certificate for upstreams.
    Client(Arc<CertifiedKey>),
}

/// Certificates, and the ssl resources they were built from.
pub(super) struct CertificateTable {
    /// Server certificates by name.
    pub served: Certificates,
    pub units: HashMap<String, CertificateUnit>,
    /// OCSP responses by certificate, and the needed ones by resource.
    responses: HashMap<[u8; 32], Arc<[u8]>>,
    stapling: BTreeMap<String, Vec<Arc<Stapling>>>,
    stapling_list: Memo<[Arc<Stapling>]>,
    expiries: Memo<[Arc<Expiry>]>,
}

impl CertificateTable {
    pub fn new(fallback_sni: Option<&str>) -> CertificateTable {
        CertificateTable {
            served: Certificates::new(fallback_sni),
            units: HashMap::default(),
            responses: HashMap::default(),
            stapling: BTreeMap::new(),
            stapling_list: Memo::default(),
            expiries: Memo::default(),
        }
    }

    pub fn get(&self, id: &str) -> Option<&CertificateUnit> {
        self.units.get(id)
    }

    /// Replaces the unit of a resource.
    pub fn insert(&mut self, id: &str, unit: CertificateUnit) {
        self.remove(id);
        if let CompiledSsl::Server { names, certificate } = &unit.made {
            self.served.insert(names, certificate);
        }
        if !unit.stapled.is_empty() {
            let wanted = unit.stapled.iter().map(|(stapling, _)| stapling.clone()).collect();
            self.stapling.insert(id.to_owned(), wanted);
            self.stapling_list.reset();
        }
        self.units.insert(id.to_owned(), unit);
        self.expiries.reset();
    }

    pub fn remove(&mut self, id: &str) {
        if let Some(unit) = self.units.remove(id) {
            self.expiries.reset();
            if let CompiledSsl::Server { names, certificate } = unit.made {
                self.served.remove(&names, &certificate);
            }
        }
        if self.stapling.remove(id).is_some() {
            self.stapling_list.reset();
        }
    }

    /// Sets or clears the OCSP response of a certificate.
    pub fn staple(&mut self, id: [u8; 32], response: Option<Arc<[u8]>>) {
        match response {
            Some(response) => _ = self.responses.insert(id, response),
            None => _ = self.responses.remove(&id),
        }
    }

    pub fn response(&self, id: &[u8; 32]) -> Option<&Arc<[u8]>> {
        self.responses.get(id)
    }

    /// The needed OCSP responses. The same `Arc` as before if nothing changed.
    pub fn stapling(&mut self) -> Arc<[Arc<Stapling>]> {
        self.stapling_list.get(|| self.stapling.values().flatten().cloned().collect())
    }

    /// When the certificates in use expire, the soonest first. The same `Arc` as before if nothing changed.
    pub fn expiries(&mut self) -> Arc<[Arc<Expiry>]> {
        self.expiries.get(|| {
            let mut all: Vec<_> = self.units.values().filter_map(|unit| unit.expiry.clone()).collect();
            all.sort_by(|a, b| (a.not_after, &a.key).cmp(&(b.not_after, &b.key)));
            all.into()
        })
    }
}
