//! Compiles ssl resources: server certificates by name, and client certificates for upstreams.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use model::upstream::CheckType;
use model::{CertificatePair, Entry, Fault, Invalid, Key, Kind, Resource, Ssl, SslType, upstream as written};
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use sdk::build::Names;
use sdk::pattern::Pattern;

use super::certificate_table::{CertificateUnit, CompiledSsl, Stapled, Stapling};
use super::{CompileOutcome, Compiler, Expiry, Pass, references};
use crate::certs::{self, Authorities, ClientTls, Versions};
use crate::parallel;

impl Compiler {
    pub(super) fn compile_certificates(&mut self, pass: &mut Pass<'_>) {
        let ids = pass.work.take(Kind::Ssl);
        self.note_read(Kind::Ssl, &ids);
        for (key, drafted) in parallel::map(ids, |id| self.draft_certificate(id, pass)) {
            match drafted {
                None => {
                    self.certificates.remove(&key.id);
                    self.rejections.accept(&key);
                }
                Some(SslDraft::Same) => {
                    self.rejections.accept(&key);
                    continue;
                }
                Some(SslDraft::Compiled(outcome)) => {
                    let made = self.rejections.settle(&key, outcome);
                    let made = made.or_else(|| {
                        let refusing = self.refusing_certificate(&key, pass)?;
                        self.rejections.mark_refused(&key);
                        Some(refusing)
                    });
                    let Some(unit) = made else {
                        // The ssl is now for clients, or cannot even be refused.
                        if self.certificates.get(&key.id).is_some_and(|old| old.refuses) {
                            self.certificates.remove(&key.id);
                        }
                        continue;
                    };
                    let is_last_good = |old: &CertificateUnit| {
                        Arc::ptr_eq(&old.entry, &unit.entry)
                            && !unit.refers
                            && old.stapled.len() == unit.stapled.len()
                            && old.stapled.iter().zip(&unit.stapled).all(|(old, new)| old.1 == new.1)
                    };
                    if self.certificates.get(&key.id).is_some_and(is_last_good) {
                        // Its last valid version keeps serving.
                        continue;
                    }
                    self.certificates.insert(&key.id, unit);
                }
            }
            self.touch_users(&key, pass);
        }
    }

    fn draft_certificate(&self, id: String, pass: &Pass<'_>) -> (Key, Option<SslDraft>) {
        let key = Key { kind: Kind::Ssl, id };
        let entry = pass.desired.get(Kind::Ssl, &key.id);
        let drafted = entry.and_then(|entry| {
            let Resource::Ssl(ssl) = entry.resource() else { return None };
            if !ssl.enabled && ssl.kind == SslType::Server {
                return None;
            }
            let unit = self.certificates.get(&key.id);
            // An unchanged file that is read again does not parse its keys again.
            let is_same = |unit: &CertificateUnit| {
                unit.entry.resource() == entry.resource()
                    && !unit.refers
                    && unit
                        .stapled
                        .iter()
                        .all(|(stapling, with)| self.certificates.response(&stapling.id) == with.as_ref())
            };
            if unit.is_some_and(is_same) {
                return Some(SslDraft::Same);
            }
            // Unsupported versions must not be hidden by the last valid version.
            let keeps = |unit: &&CertificateUnit| !unit.refuses && !allows_no_supported_version(ssl);
            let last_good = unit.filter(keeps).map(|unit| &unit.entry);
            let make = |entry: &Arc<Entry>| match entry.resource() {
                Resource::Ssl(ssl) => self.make_certificate(entry, ssl, pass.names),
                _ => Err(Invalid::new("this is not an ssl resource")),
            };
            Some(SslDraft::Compiled(CompileOutcome::or_last_good(entry, last_good, make)))
        });
        (key, drafted)
    }

    /// Sets or clears the OCSP response of a certificate. It is stapled from the next compile that
    /// touches its resource.
    pub fn staple(&mut self, id: [u8; 32], response: Option<Arc<[u8]>>) {
        self.certificates.staple(id, response);
    }

    /// Staples the available responses, and returns the needed ones.
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
            let response = self.certificates.response(&stapling.id).cloned();
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
        let (sni, used) = match ssl.kind {
            SslType::Server => (ssl.snis.first(), pairs.as_slice()),
            SslType::Client => (None, pairs.get(..1).unwrap_or_default()),
        };
        let expiry = Expiry::of(&entry.key, sni, used);
        if ssl.kind == SslType::Client {
            let first = pairs.into_iter().next().ok_or_else(|| Invalid::new("there is no certificate"))?;
            let made = CompiledSsl::Client(first);
            let (entry, stapled) = (entry.clone(), Vec::new());
            return Ok(CertificateUnit { entry, refers, made, refuses: false, stapled, expiry });
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
        let made = CompiledSsl::Server { names: names_of(ssl), certificate: Arc::new(certificate) };
        Ok(CertificateUnit { entry: entry.clone(), refers, made, refuses: false, stapled, expiry })
    }

    /// A refusing unit for an ssl that lacks a secret and has no last valid version, that lacked
    /// one before its present error, or that allows only unsupported versions: its names are found,
    /// and all handshakes fail. Otherwise these names would fall to the next ssl that matches,
    /// which may not require a client certificate.
    fn refusing_certificate(&self, key: &Key, pass: &Pass<'_>) -> Option<CertificateUnit> {
        let entry = pass.desired.get(Kind::Ssl, &key.id)?;
        let Resource::Ssl(ssl) = entry.resource() else { return None };
        let rejected = self.rejections.get(key)?;
        let refused = self.certificates.get(&key.id).is_some_and(|old| old.refuses);
        if !allows_no_supported_version(ssl) && rejected.invalid.fault != Fault::Unread && !refused {
            return None;
        }
        if ssl.kind != SslType::Server {
            return None;
        }
        let settings = &self.settings.tls;
        // Connections made under another name still learn that this one requires a certificate.
        let client = ssl.client.as_ref().map(|client| {
            (certs::clients(Authorities::new(Vec::new()), client.depth, true, settings), Vec::new())
        });
        let versions = versions(ssl, settings.versions).unwrap_or(settings.versions);
        let parts = certs::Parts { id: &entry.key.id, pairs: Vec::new(), versions, client };
        let certificate = Arc::new(certs::certificate(parts, settings).ok()?);
        let made = CompiledSsl::Server { names: names_of(ssl), certificate };
        let (entry, stapled) = (entry.clone(), Vec::new());
        Some(CertificateUnit { entry, refers: true, made, refuses: true, stapled, expiry: None })
    }

    fn pair(&self, written: &CertificatePair, names: &dyn Names) -> Result<Arc<CertifiedKey>, Invalid> {
        let pair = CertificatePair {
            cert: self.text(&written.cert, names).map_err(|invalid| invalid.at("/cert"))?.into_owned(),
            key: self.text(&written.key, names).map_err(|invalid| invalid.at("/key"))?.into_owned(),
        };
        certs::pair(&pair, &self.settings.tls.provider)
    }

    /// A text, or the secret it refers to.
    fn text<'t>(&self, text: &'t str, names: &dyn Names) -> Result<Cow<'t, str>, Invalid> {
        references::text(text, &*self.settings.env, names)
    }

    /// TLS to an upstream; `None` if it uses no TLS.
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

    /// TLS of probes: the upstream's client certificate and authorities; `checks` decides whether
    /// servers are verified.
    pub(super) fn probe_tls(
        &self,
        from: &model::Upstream,
        names: &dyn Names,
    ) -> Result<Option<Arc<ClientTls>>, Invalid> {
        let active = from.checks.as_ref().map(|checks| &checks.active);
        let Some(active) = active.filter(|active| active.kind == CheckType::Https) else { return Ok(None) };
        self.client_tls(from.tls.as_deref(), active.https_verify_certificate, names).map(Some)
    }

    /// Client TLS with these settings.
    pub(super) fn client_tls(
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
        let made = match &tls.sni {
            Some(name) => Arc::new(made.named(server_name(name)?)),
            None => made,
        };
        Ok(match lacks {
            Some(why) => Arc::new(made.lacking(why)),
            None => made,
        })
    }

    /// The client certificate of this id, or why it is missing. A deleted certificate is never
    /// presented again: its last valid version may be the reason it was deleted.
    fn client_certificate(&self, id: &str) -> Result<Arc<CertifiedKey>, &'static str> {
        match self.certificates.get(id).map(|unit| &unit.made) {
            Some(CompiledSsl::Client(certificate)) => Ok(certificate.clone()),
            Some(_) => Err("the ssl that the upstream's client_cert_id names is not of the type client"),
            None => Err("the ssl that the upstream's client_cert_id names does not exist"),
        }
    }
}

/// The name of `tls.sni`, which may be an address.
fn server_name(text: &str) -> Result<ServerName<'static>, Invalid> {
    ServerName::try_from(text.to_ascii_lowercase()).map_err(|_| {
        Invalid::new("this is no name of a server").at("/tls/sni").expected("a host name or an IP address")
    })
}

/// The names of an ssl, as look-up keys.
fn names_of(ssl: &Ssl) -> Vec<String> {
    ssl.snis.iter().map(|name| name.strip_suffix('.').unwrap_or(name).to_owned()).collect()
}

/// The result of compiling an ssl resource.
enum SslDraft {
    /// It is unchanged.
    Same,
    Compiled(CompileOutcome<CertificateUnit>),
}

/// The ssl resource that holds an upstream's client certificate.
pub(super) fn client_certificate_of(upstream: Option<&model::Upstream>) -> Option<Key> {
    let id = upstream?.tls.as_ref()?.client_cert_id.as_deref()?;
    Some(Key::new(Kind::Ssl, id))
}

/// The supported versions that an ssl allows.
fn versions(ssl: &Ssl, general: Versions) -> Result<Versions, Invalid> {
    if ssl.protocols.is_empty() {
        return Ok(general);
    }
    if allows_no_supported_version(ssl) {
        return Err(Invalid::new(
            "TLS 1.1 and older are insecure and not supported, so handshakes with its names fail",
        )
        .at("/ssl_protocols")
        .expected("TLSv1.2, TLSv1.3 or both")
        .got(ssl.protocols.join(", ")));
    }
    let has = |name: &str| ssl.protocols.iter().any(|protocol| protocol == name);
    Ok(Versions { tls12: has("TLSv1.2"), tls13: has("TLSv1.3") })
}

/// Whether it allows only unsupported versions.
fn allows_no_supported_version(ssl: &Ssl) -> bool {
    let is_spoken = |protocol: &String| protocol == "TLSv1.2" || protocol == "TLSv1.3";
    !ssl.protocols.is_empty() && !ssl.protocols.iter().any(is_spoken)
}
