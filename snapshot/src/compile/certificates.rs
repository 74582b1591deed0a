//! Compiles ssl resources: what is served under which name, and what we show to upstreams.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use model::upstream::CheckType;
use model::{CertificatePair, Entry, Fault, Invalid, Key, Kind, Resource, Ssl, SslType, upstream as written};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use sdk::build::Names;
use sdk::pattern::Pattern;

use super::{Compiler, Pass, Tried, references};
use crate::certs::{self, Authorities, Certificate, ClientTls, Versions};
use crate::parallel;

/// The last good form of an ssl resource.
pub(super) struct CertificateUnit {
    pub entry: Arc<Entry>,
    /// It is made of secrets that others keep, which may change while the resource does not.
    refers: bool,
    made: Made,
    /// It lacks a secret: under its names, handshakes fail.
    refuses: bool,
    /// The responses that are wanted, and what of them is stapled.
    stapled: Vec<Stapled>,
}

/// A response that is wanted, and what there is.
type Stapled = (Arc<Stapling>, Option<Arc<[u8]>>);

/// A certificate whose OCSP response is to be stapled.
#[derive(Debug, PartialEq, Eq)]
pub struct Stapling {
    pub key: Key,
    /// A digest of the certificate and where it stands.
    pub id: [u8; 32],
    /// The certificate, and those behind it.
    pub chain: Vec<CertificateDer<'static>>,
    /// See [`model::ssl::OcspStapling`].
    pub skip_verify: bool,
    pub cache_ttl: Duration,
}

enum Made {
    Server {
        names: Vec<String>,
        certificate: Arc<Certificate>,
    },
    /// For upstreams.
    Client(Arc<CertifiedKey>),
}

impl Compiler {
    pub(super) fn compile_certificates(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::Ssl);
        self.note_read(Kind::Ssl, &ids);
        for (key, drafted) in parallel::map(ids, |id| self.draft_certificate(id, pass)) {
            match drafted {
                None => {
                    self.drop_certificate(&key);
                    self.accept(&key);
                }
                Some(Drafted::Same) => {
                    self.accept(&key);
                    continue;
                }
                Some(Drafted::Tried(tried)) => {
                    let made = self.settle(&key, tried);
                    let made = made.or_else(|| {
                        let refusing = self.refusing_certificate(&key, pass)?;
                        self.tell_refusal(&key);
                        Some(refusing)
                    });
                    let Some(unit) = made else {
                        // It is for clients now, or cannot even refuse.
                        if self.certificate_units.get(&key.id).is_some_and(|old| old.refuses) {
                            self.drop_certificate(&key);
                        }
                        continue;
                    };
                    let is_last_good = |old: &CertificateUnit| {
                        Arc::ptr_eq(&old.entry, &unit.entry)
                            && !unit.refers
                            && old.stapled.len() == unit.stapled.len()
                            && old.stapled.iter().zip(&unit.stapled).all(|(old, new)| old.1 == new.1)
                    };
                    if self.certificate_units.get(&key.id).is_some_and(is_last_good) {
                        // Its last good form is served on.
                        continue;
                    }
                    self.drop_certificate(&key);
                    if let Made::Server { names, certificate } = &unit.made {
                        self.certificates.insert(names, certificate);
                    }
                    if !unit.stapled.is_empty() {
                        let wanted = unit.stapled.iter().map(|(stapling, _)| stapling.clone()).collect();
                        self.stapling.insert(key.id.clone(), wanted);
                        self.stapling_told = None;
                    }
                    self.certificate_units.insert(key.id.clone(), unit);
                }
            }
            self.touch_users(&key, pass);
        }
    }

    fn draft_certificate(&self, id: String, pass: &Pass<'_>) -> (Key, Option<Drafted>) {
        let key = Key { kind: Kind::Ssl, id };
        let entry = pass.desired.get(Kind::Ssl, &key.id);
        let drafted = entry.and_then(|entry| {
            let Resource::Ssl(ssl) = entry.resource() else { return None };
            if !ssl.enabled && ssl.kind == SslType::Server {
                return None;
            }
            let unit = self.certificate_units.get(&key.id);
            // Keys are not parsed again because a file was read again.
            let is_same = |unit: &CertificateUnit| {
                unit.entry.resource() == entry.resource()
                    && !unit.refers
                    && unit
                        .stapled
                        .iter()
                        .all(|(stapling, with)| self.staples.get(&stapling.id) == with.as_ref())
            };
            if unit.is_some_and(is_same) {
                return Some(Drafted::Same);
            }
            // Versions that are not spoken are no mistake that the last good form would hide.
            let keeps = |unit: &&CertificateUnit| !unit.refuses && !speaks_nothing(ssl);
            let last_good = unit.filter(keeps).map(|unit| &unit.entry);
            let make = |entry: &Arc<Entry>| match entry.resource() {
                Resource::Ssl(ssl) => self.make_certificate(entry, ssl, pass.names),
                _ => Err(Invalid::new("this is not an ssl resource")),
            };
            Some(Drafted::Tried(Tried::both(entry, last_good, make)))
        });
        (key, drafted)
    }

    fn drop_certificate(&mut self, key: &Key) {
        if let Some(unit) = self.certificate_units.remove(&key.id)
            && let Made::Server { names, certificate } = unit.made
        {
            self.certificates.remove(&names, &certificate);
        }
        if self.stapling.remove(&key.id).is_some() {
            self.stapling_told = None;
        }
    }

    /// Staples a response to a certificate from the next compile that touches its resource on, or none.
    pub fn staple(&mut self, id: [u8; 32], response: Option<Arc<[u8]>>) {
        match response {
            Some(response) => _ = self.staples.insert(id, response),
            None => _ = self.staples.remove(&id),
        }
    }

    /// The responses that are wanted. The same `Arc` as before if nothing changed.
    pub(super) fn wanted_staples(&mut self) -> Arc<[Arc<Stapling>]> {
        let all = &self.stapling;
        self.stapling_told
            .get_or_insert_with(|| all.values().flatten().cloned().collect::<Vec<_>>().into())
            .clone()
    }

    /// Staples to certificates what there is, and says what is wanted.
    fn staple_pairs(&self, entry: &Entry, ssl: &Ssl, pairs: &mut [Arc<CertifiedKey>]) -> Vec<Stapled> {
        let Some(wanted) = &ssl.ocsp else { return Vec::new() };
        let staple = |pair: &mut Arc<CertifiedKey>| {
            let own = pair.cert.first()?;
            let stapling = Stapling {
                key: entry.key.clone(),
                id: certs::digest([entry.key.id.as_bytes(), own.as_ref()]),
                chain: pair.cert.clone(),
                skip_verify: wanted.skip_verify,
                cache_ttl: Duration::from_secs(wanted.cache_ttl),
            };
            let response = self.staples.get(&stapling.id).cloned();
            if let Some(response) = &response {
                let mut stapled = CertifiedKey::clone(pair);
                stapled.ocsp = Some(response.to_vec());
                *pair = Arc::new(stapled);
            }
            Some((Arc::new(stapling), response))
        };
        pairs.iter_mut().filter_map(staple).collect()
    }

    fn make_certificate(
        &self,
        entry: &Arc<Entry>,
        ssl: &Ssl,
        names: &dyn Names,
    ) -> Result<CertificateUnit, Invalid> {
        let refers = !entry.resource().secrets().is_empty();
        let settings = &self.settings.tls;
        let mut pairs = Vec::with_capacity(ssl.pairs.len());
        for (at, pair) in ssl.pairs.iter().enumerate() {
            let pair = self.pair(pair, names).map_err(|invalid| match at {
                0 => invalid,
                _ => invalid.said(&format!("failed to handle cert-key pair[{at}]: ")),
            })?;
            pairs.push(pair);
        }
        if ssl.kind == SslType::Client {
            let first = pairs.into_iter().next().ok_or_else(|| Invalid::new("there is no certificate"))?;
            let made = Made::Client(first);
            let (entry, stapled) = (entry.clone(), Vec::new());
            return Ok(CertificateUnit { entry, refers, made, refuses: false, stapled });
        }
        let stapled = self.staple_pairs(entry, ssl, &mut pairs);
        let client = match &ssl.client {
            None => None,
            Some(client) => {
                let ca = self.text(&client.ca, names).map_err(|invalid| invalid.at("/client/ca"))?;
                let authorities = certs::certificates(&ca)
                    .map_err(|invalid| invalid.at("/client/ca").said("failed to validate client_cert: "))?;
                let skip = client.skip_mtls_uri_regex.iter().enumerate().map(|(at, pattern)| {
                    let found = Pattern::new(pattern, false);
                    found.map_err(|invalid| invalid.at(format!("/client/skip_mtls_uri_regex/{at}")))
                });
                let skip: Vec<Pattern> = skip.collect::<Result<_, _>>()?;
                let authorities = Authorities::new(authorities);
                Some((certs::clients(authorities, client.depth, skip.is_empty(), settings), skip))
            }
        };
        let versions = versions(ssl, settings.versions)?;
        let parts = certs::Parts { id: &entry.key.id, pairs, versions, client };
        let certificate = certs::certificate(parts, settings)
            .map_err(|error| Invalid::new(format!("it cannot be used for TLS: {error}")))?;
        let made = Made::Server { names: names_of(ssl), certificate: Arc::new(certificate) };
        Ok(CertificateUnit { entry: entry.clone(), refers, made, refuses: false, stapled })
    }

    /// For an ssl that lacks a secret and has no last good form, lacked one before the mistake it has now, or allows only
    /// versions that are not spoken: its names are found, and no handshake succeeds. Otherwise they would be those of
    /// the next ssl that fits, which may not ask clients for a certificate.
    fn refusing_certificate(&self, key: &Key, pass: &Pass<'_>) -> Option<CertificateUnit> {
        let entry = pass.desired.get(Kind::Ssl, &key.id)?;
        let Resource::Ssl(ssl) = entry.resource() else { return None };
        let rejected = self.rejected.get(key)?;
        let refused = self.certificate_units.get(&key.id).is_some_and(|old| old.refuses);
        if !speaks_nothing(ssl) && rejected.invalid.fault != Fault::Unread && !refused {
            return None;
        }
        if ssl.kind != SslType::Server {
            return None;
        }
        let settings = &self.settings.tls;
        // Whoever came in by another name is told that this one wants a certificate.
        let client = ssl.client.as_ref().map(|client| {
            (certs::clients(Authorities::new(Vec::new()), client.depth, true, settings), Vec::new())
        });
        let versions = versions(ssl, settings.versions).unwrap_or(settings.versions);
        let parts = certs::Parts { id: &entry.key.id, pairs: Vec::new(), versions, client };
        let certificate = Arc::new(certs::certificate(parts, settings).ok()?);
        let made = Made::Server { names: names_of(ssl), certificate };
        Some(CertificateUnit { entry: entry.clone(), refers: true, made, refuses: true, stapled: Vec::new() })
    }

    fn pair(&self, written: &CertificatePair, names: &dyn Names) -> Result<Arc<CertifiedKey>, Invalid> {
        let pair = CertificatePair {
            cert: self.text(&written.cert, names).map_err(|invalid| invalid.at("/cert"))?.into_owned(),
            key: self.text(&written.key, names).map_err(|invalid| invalid.at("/key"))?.into_owned(),
        };
        certs::pair(&pair, &self.settings.tls.provider)
    }

    /// A text, or what it refers to.
    fn text<'t>(&self, text: &'t str, names: &dyn Names) -> Result<Cow<'t, str>, Invalid> {
        references::text(text, &*self.settings.env, names)
    }

    /// How TLS is spoken to an upstream; `None` where none is.
    pub(super) fn upstream_tls(
        &self,
        from: &model::Upstream,
        names: &dyn Names,
    ) -> Result<Option<Arc<ClientTls>>, Invalid> {
        if !from.scheme.is_tls() {
            return Ok(None);
        }
        let verify = from.tls.as_ref().is_some_and(|tls| tls.verify);
        self.client_tls(from.tls.as_deref(), verify, names).map(Some)
    }

    /// How probes of an upstream speak TLS: with its client certificate and its authorities; whether they
    /// verify servers is for `checks` to say.
    pub(super) fn probe_tls(
        &self,
        from: &model::Upstream,
        names: &dyn Names,
    ) -> Result<Option<Arc<ClientTls>>, Invalid> {
        let active = from.checks.as_ref().map(|checks| &checks.active);
        let Some(active) = active.filter(|active| active.kind == CheckType::Https) else { return Ok(None) };
        self.client_tls(from.tls.as_deref(), active.https_verify_certificate, names).map(Some)
    }

    /// How TLS is spoken with these settings.
    fn client_tls(
        &self,
        tls: Option<&written::Tls>,
        verify: bool,
        names: &dyn Names,
    ) -> Result<Arc<ClientTls>, Invalid> {
        let common = &self.settings.tls.common;
        let default = written::Tls::default();
        let tls = tls.unwrap_or(&default);
        let mut lacks = None;
        let certificate = match (&tls.client_cert_id, &tls.client_cert, &tls.client_key) {
            (Some(id), _, _) => match self.client_certificate(id) {
                Ok(certificate) => Some(certificate),
                Err(why) => {
                    lacks = Some(why);
                    None
                }
            },
            (None, Some(cert), Some(key)) => {
                let pair = CertificatePair { cert: cert.clone(), key: key.clone() };
                Some(self.pair(&pair, names).map_err(|invalid| match invalid.pointer.as_str() {
                    "/key" => invalid.at("/tls/client_key"),
                    _ => invalid.at("/tls/client_cert"),
                })?)
            }
            _ => None,
        };
        let trusted = match (&tls.ca, verify) {
            (_, false) => None,
            (None, true) => Some(common.trusted.clone()),
            (Some(ca), true) => {
                let ca = self.text(ca, names).map_err(|invalid| invalid.at("/tls/ca"))?;
                let found = certs::certificates(&ca).map_err(|invalid| invalid.at("/tls/ca"))?;
                Some(Arc::new(Authorities::new(found)))
            }
        };
        let made = match (certificate, trusted) {
            (None, None) => common.trusting.clone(),
            (None, Some(_)) if tls.ca.is_none() => common.verifying.clone(),
            (certificate, trusted) => {
                let made = ClientTls::new(trusted, certificate, &common.provider);
                Arc::new(made.map_err(|error| {
                    Invalid::new(format!("it cannot be used for TLS: {error}")).at("/tls")
                })?)
            }
        };
        Ok(match lacks {
            Some(why) => Arc::new(made.lacking(why)),
            None => made,
        })
    }

    /// The certificate with this id, or why there is none. A certificate that was deleted is not shown any more:
    /// its last good form may be what it was deleted for.
    fn client_certificate(&self, id: &str) -> Result<Arc<CertifiedKey>, &'static str> {
        match self.certificate_units.get(id).map(|unit| &unit.made) {
            Some(Made::Client(certificate)) => Ok(certificate.clone()),
            Some(_) => Err("the ssl that the upstream's client_cert_id names is not of the type client"),
            None => Err("the ssl that the upstream's client_cert_id names does not exist"),
        }
    }
}

/// The names an ssl is for, as they are looked up.
fn names_of(ssl: &Ssl) -> Vec<String> {
    ssl.snis.iter().map(|name| name.strip_suffix('.').unwrap_or(name).to_owned()).collect()
}

/// What became of an ssl resource.
enum Drafted {
    /// It is served as it is already.
    Same,
    Tried(Tried<CertificateUnit>),
}

/// The ssl resource that an upstream's client certificate stands in.
pub(super) fn client_certificate_of(upstream: Option<&model::Upstream>) -> Option<Key> {
    let id = upstream?.tls.as_ref()?.client_cert_id.as_deref()?;
    Some(Key::new(Kind::Ssl, id))
}

/// The versions that an ssl asks for, of those there are.
fn versions(ssl: &Ssl, general: Versions) -> Result<Versions, Invalid> {
    if ssl.protocols.is_empty() {
        return Ok(general);
    }
    if speaks_nothing(ssl) {
        return Err(Invalid::new(
            "TLS 1.1 and older are broken and not spoken, so handshakes with its names fail",
        )
        .at("/ssl_protocols")
        .expected("TLSv1.2, TLSv1.3 or both")
        .got(ssl.protocols.join(", ")));
    }
    let has = |name: &str| ssl.protocols.iter().any(|protocol| protocol == name);
    Ok(Versions { tls12: has("TLSv1.2"), tls13: has("TLSv1.3") })
}

/// Whether it allows only versions that there are not.
fn speaks_nothing(ssl: &Ssl) -> bool {
    let is_spoken = |protocol: &String| protocol == "TLSv1.2" || protocol == "TLSv1.3";
    !ssl.protocols.is_empty() && !ssl.protocols.iter().any(is_spoken)
}
