//! TLS as the boot file wants it: versions, cipher suites, tickets, and who is trusted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use model::boot::{self, Boot};
use model::{CertificatePair, Invalid, Severity};
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suites};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CipherSuite, ProtocolVersion, RootCertStore, SupportedCipherSuite};
use snapshot::certs::{self, Authorities, CommonTls, Tickets, TlsSettings, Versions};

/// OpenSSL's names of the cipher suites of TLS 1.2 that there are. Those of TLS 1.3 are always on.
const SUITES: [(&str, SupportedCipherSuite); 6] = [
    ("ECDHE-ECDSA-AES256-GCM-SHA384", suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-AES256-GCM-SHA384", suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES128-GCM-SHA256", suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Where systems keep the certificates they trust.
const SYSTEM: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Returns the protocols and cipher suites of the boot file that are not supported.
pub fn check(tls: &boot::Tls) -> Vec<(Severity, Invalid)> {
    let mut found = Vec::new();
    let old: Vec<&str> = tls.protocols.iter().map(String::as_str).filter(|name| !is_spoken(name)).collect();
    if !old.is_empty() {
        let all = old.len() == tls.protocols.len();
        let severity = if all { Severity::Error } else { Severity::Warning };
        let invalid = Invalid::new(format!("{} is not supported: it is broken", old.join(", ")));
        found.push((severity, invalid.at("/apisix/ssl/ssl_protocols").expected("TLSv1.2, TLSv1.3 or both")));
    }
    let missing: Vec<&str> =
        tls.ciphers.iter().flatten().map(String::as_str).filter(|name| !is_known(name)).collect();
    if !missing.is_empty() {
        let used = tls.ciphers.iter().flatten().any(|name| is_known(name));
        let instead = match used {
            true => "the others are enabled",
            false => "none of those named is known, so all are enabled",
        };
        let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
        found.push((
            Severity::Warning,
            Invalid::new(format!("unknown cipher suites: {}; {instead}", missing.join(", ")))
                .at("/apisix/ssl/ssl_ciphers")
                .expected(names.join(", ")),
        ));
    }
    found
}

fn is_spoken(protocol: &str) -> bool {
    matches!(protocol, "TLSv1.2" | "TLSv1.3")
}

fn is_known(name: &str) -> bool {
    SUITES.iter().any(|(known, _)| *known == name) || name.starts_with("TLS_")
}

/// TLS as it is spoken with clients and upstreams.
///
/// # Errors
/// A file of trusted certificates that cannot be read.
pub fn settings(boot: &Boot) -> anyhow::Result<TlsSettings> {
    let tls = &boot.tls;
    let mut provider = aws_lc_rs::default_provider();
    let named: Vec<CipherSuite> = tls.ciphers.iter().flatten().filter_map(|name| suite(name)).collect();
    if !named.is_empty() {
        let place = |suite: &SupportedCipherSuite| named.iter().position(|name| *name == suite.suite());
        provider
            .cipher_suites
            .retain(|suite| suite.version().version == ProtocolVersion::TLSv1_3 || place(suite).is_some());
        // In the order of the file, behind those of TLS 1.3.
        provider.cipher_suites.sort_by_key(|suite| place(suite).map_or(0, |at| at + 1));
    }
    let has = |name: &str| tls.protocols.iter().any(|protocol| protocol == name);
    let lifetime = u32::try_from(tls.session_timeout.as_secs()).unwrap_or(u32::MAX).max(1);
    Ok(TlsSettings {
        provider: Arc::new(provider),
        versions: Versions { tls12: has("TLSv1.2"), tls13: has("TLSv1.3") },
        fallback_sni: tls.fallback_sni.clone(),
        tickets: match tls.tickets {
            true => Some(Tickets::new(lifetime).context("the system has no random numbers")?),
            false => None,
        },
        common: CommonTls::new(Arc::new(trusted(tls.trusted.as_deref())?))?,
    })
}

/// TLS as the Admin API speaks it; `None` if it speaks none.
///
/// # Errors
/// A file of `deployment.admin.admin_api_mtls` that cannot be used.
pub fn admin(boot: &Boot, common: &CommonTls) -> anyhow::Result<Option<Arc<ServerConfig>>> {
    let Some(boot::AdminTls { cert, key, ca }) = &boot.admin.tls else { return Ok(None) };
    let what =
        |name: &str, path: &Path| format!("deployment.admin.admin_api_mtls.{name}: {}", path.display());
    let read = |name: &str, path: &Path| std::fs::read_to_string(path).with_context(|| what(name, path));
    let pair = CertificatePair { cert: read("admin_ssl_cert", cert)?, key: read("admin_ssl_cert_key", key)? };
    let certified = certs::pair(&pair, &common.provider)
        .map_err(|invalid| anyhow::anyhow!("{invalid}"))
        .with_context(|| what("admin_ssl_cert", cert))?;
    let builder =
        ServerConfig::builder_with_provider(common.provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let wrong = || what("admin_ssl_ca_cert", ca);
            let found = certs::certificates(&read("admin_ssl_ca_cert", ca)?)
                .map_err(|invalid| anyhow::anyhow!("{invalid}"))
                .with_context(wrong)?;
            let mut roots = RootCertStore::empty();
            for der in found {
                roots.add(der).with_context(wrong)?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), common.provider.clone());
            builder.with_client_cert_verifier(verifier.build().with_context(wrong)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

fn suite(name: &str) -> Option<CipherSuite> {
    SUITES.iter().find(|(known, _)| *known == name).map(|(_, suite)| suite.suite())
}

/// Returns the authorities of a file, or of the system. A system without any trusts no certificate.
fn trusted(file: Option<&Path>) -> anyhow::Result<Authorities> {
    let path = match file {
        Some(path) => path.to_owned(),
        None => match system() {
            Some(path) => path,
            None => return Ok(Authorities::default()),
        },
    };
    let what = || format!("apisix.ssl.ssl_trusted_certificate: {}", path.display());
    let text = std::fs::read_to_string(&path).with_context(what)?;
    let found =
        certs::certificates(&text).map_err(|invalid| anyhow::anyhow!("{invalid}")).with_context(what)?;
    Ok(match file {
        Some(_) => Authorities::new(found),
        None => Authorities::roots(&found),
    })
}

/// Returns the file with the authorities that the system trusts.
pub fn system() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.into_iter().chain(SYSTEM.into_iter().map(PathBuf::from)).find(|path| path.is_file())
}

/// Gives tickets new keys, for ever.
pub async fn rotate(tickets: Arc<Tickets>, every: std::time::Duration) {
    let mut times = tokio::time::interval(every.max(std::time::Duration::from_secs(1)));
    // The first is now, and the keys are new.
    times.tick().await;
    loop {
        times.tick().await;
        tickets.rotate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(ssl: &str) -> boot::Tls {
        let text = format!("apisix: {{ssl: {ssl}}}\n");
        Boot::parse("config.yaml", &text, &[], &|_| None).expect("a valid file").0.tls
    }

    #[test]
    fn what_is_not_spoken_is_named() {
        assert!(check(&Boot::default().tls).is_empty());
        let found = check(&tls(
            "{ssl_protocols: TLSv1.1 TLSv1.2, ssl_ciphers: 'ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA'}",
        ));
        let found: Vec<_> =
            found.iter().map(|(severity, invalid)| (*severity, invalid.reason.as_str())).collect();
        assert_eq!(
            found,
            [
                (Severity::Warning, "TLSv1.1 is not supported: it is broken"),
                (Severity::Warning, "unknown cipher suites: AES128-SHA; the others are enabled"),
            ]
        );
        assert_eq!(check(&tls("{ssl_protocols: TLSv1}"))[0].0, Severity::Error);
    }

    #[test]
    fn suites_are_those_of_the_file_in_its_order() {
        let named = "'ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256'";
        let text = format!("apisix: {{ssl: {{ssl_ciphers: {named}, ssl_session_tickets: false}}}}\n");
        let boot = Boot::parse("config.yaml", &text, &[], &|_| None).expect("a valid file").0;
        let settings = settings(&boot).unwrap();
        assert!(settings.tickets.is_none());
        let suites: Vec<CipherSuite> =
            settings.provider.cipher_suites.iter().map(|suite| suite.suite()).collect();
        assert_eq!(suites.len(), 5, "{suites:?}");
        assert_eq!(
            suites[3..],
            [
                CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
                CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            ]
        );
    }
}
