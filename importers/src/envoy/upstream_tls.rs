//! TLS towards the endpoints of a cluster.

use serde_json::{Map, Value, json};

use super::context::{Context, Report};
use super::value::{self, items, text};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;
use crate::server_name::is_server_name;

/// TLS settings of a cluster.
pub(super) struct Security {
    /// `tls` of the upstream.
    pub(super) tls: Map<String, Value>,
    pub(super) sni: Option<String>,
    pub(super) verifies: bool,
}

/// Files in which systems keep the authorities they trust.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// Reads the transport socket of a cluster; `None` is clear text. `host` is the name of all its endpoints.
pub(super) fn read(
    context: &Context<'_>,
    cluster: &Node<'_>,
    host: Option<&str>,
    report: &mut Report,
) -> Option<Security> {
    let settings = match cluster.some("tls_context") {
        Some(context) => context,
        None => {
            let socket = cluster.some("transport_socket")?;
            let extension = value::extension(&socket);
            match extension.kind.as_str() {
                "UpstreamTlsContext" | "tls" => match extension.config {
                    Some(config) => config,
                    None => return Some(Security { tls: Map::new(), sni: None, verifies: false }),
                },
                "RawBuffer" | "raw_buffer" => {
                    socket.whole();
                    return None;
                }
                _ => {
                    socket.whole();
                    report.guard(
                        &socket,
                        "transport_socket",
                        format!(
                            "the transport `{}` is unknown; connections are in clear text",
                            extension.name
                        ),
                    );
                    return None;
                }
            }
        }
    };
    let _ = settings.get("@type");
    report.fields(
        &settings,
        &[
            ("allow_renegotiation", Cosmetic, "TLS is never renegotiated"),
            ("max_session_keys", Cosmetic, "sessions are kept by the gateway's own rules"),
            ("enforce_rsa_key_usage", Cosmetic, "certificates are checked by the gateway's own rules"),
            ("auto_sni_san_validation", Cosmetic, "certificates are verified for the name that TLS asks for"),
        ],
    );
    let mut sni = text(&settings, "sni").filter(|sni| !sni.is_empty()).map(str::to_owned);
    if let (Some(name), Some(place)) = (sni.take_if(|name| !is_server_name(name)), settings.some("sni")) {
        let effect = if name.contains("${") || name.contains("{{") {
            "is a template whose variable is not set"
        } else {
            "is not a valid server name"
        };
        report.behaviour(&place, "sni", format!("`{name}` {effect}; TLS asks for another name"));
    }
    let mut security = Security { tls: Map::new(), sni, verifies: false };
    if let Some(sni) = &security.sni {
        security.tls.insert("sni".to_owned(), json!(sni));
    }
    let Some(common) = settings.some("common_tls_context") else { return Some(security) };
    common_fields(&common, report);
    // HTTP/2 is spoken where the cluster says it.
    if let Some(alpn) = common.get("alpn_protocols") {
        alpn.whole();
    }
    if let Some(pair) = items(&common, "tls_certificates").first() {
        match certificate_pair(context, pair) {
            Ok((chain, key)) => {
                security.tls.insert("client_cert".to_owned(), json!(chain));
                security.tls.insert("client_key".to_owned(), json!(key));
            }
            Err(problem) => report.behaviour(
                pair,
                "tls_certificates",
                format!("the client certificate is not sent: {problem}"),
            ),
        }
    }
    for more in items(&common, "tls_certificates").iter().skip(1) {
        more.whole();
        report.behaviour(
            more,
            "tls_certificates",
            "an upstream has one client certificate; the first is sent",
        );
    }
    let elsewhere = ["validation_context_sds_secret_config", "combined_validation_context"];
    if elsewhere.iter().any(|name| common.value().get(name).is_some()) {
        // Which authorities are trusted is unknown here, so those of the system are.
        security.verifies = true;
        security.tls.insert("verify".to_owned(), json!(true));
    }
    if let Some(combined) = common.some("combined_validation_context") {
        common_fields(&combined, report);
    }
    if let Some(validation) = validation_of(&common) {
        validate(context, &validation, host, &mut security, report);
    }
    Some(security)
}

fn validation_of<'a>(common: &Node<'a>) -> Option<Node<'a>> {
    let combined = common.some("combined_validation_context");
    common.some("validation_context").or_else(|| combined?.some("default_validation_context"))
}

fn validate(
    context: &Context<'_>,
    validation: &Node<'_>,
    host: Option<&str>,
    security: &mut Security,
    report: &mut Report,
) {
    let trusts_all = text(validation, "trust_chain_verification") == Some("ACCEPT_UNTRUSTED");
    let ca = validation.some("trusted_ca");
    let system = validation.some("system_root_certs");
    if let Some(system) = &system {
        report.opaque(system, "system_root_certs", "the authorities of the system are trusted");
    }
    let pins = value::texts(validation, "verify_certificate_hash").len()
        + value::texts(validation, "verify_certificate_spki").len();
    if pins > 0 {
        report.guard(
            validation,
            "verify_certificate_hash",
            "servers are not recognised by the digest of their certificate",
        );
    }
    let names: Vec<Node<'_>> =
        ["match_subject_alt_names", "match_typed_subject_alt_names", "verify_subject_alt_name"]
            .iter()
            .flat_map(|name| items(validation, name))
            .collect();
    for name in &names {
        let exact = name.str().map(str::to_owned).or_else(|| {
            let matcher = name.some("matcher").unwrap_or_else(|| name.clone());
            text(&matcher, "exact").map(str::to_owned)
        });
        name.whole();
        if exact.is_none() || exact != security.sni {
            report.behaviour(
                name,
                "match_typed_subject_alt_names",
                "certificates are verified for `sni`, or else the Host that is sent, not for this name",
            );
        }
    }
    report.fields(
        validation,
        &[
            ("crl", Behaviour, "revocation lists are not read"),
            ("allow_expired_certificate", Behaviour, "expired certificates are refused"),
            ("require_signed_certificate_timestamp", Behaviour, "certificate transparency is not checked"),
            ("only_verify_leaf_cert_crl", Cosmetic, "revocation lists are not read"),
            ("max_verify_depth", Cosmetic, "chains are verified by the gateway's own rules"),
            ("custom_validator_config", Behaviour, "custom validators are not used"),
            ("ca_certificate_provider_instance", Behaviour, "the authorities of the system are trusted"),
            ("watched_directory", Cosmetic, "files are read again with the configuration"),
        ],
    );
    let provided = validation.value().get("ca_certificate_provider_instance").is_some();
    if trusts_all || (ca.is_none() && system.is_none() && !provided) {
        return;
    }
    security.verifies = true;
    security.tls.insert("verify".to_owned(), json!(true));
    let Some(ca) = ca else { return };
    if text(&ca, "filename").is_some_and(|path| SYSTEM_BUNDLES.contains(&path)) {
        return;
    }
    match context.data(&ca) {
        Ok(pem) => {
            security.tls.insert("ca".to_owned(), json!(pem));
        }
        Err(problem) => {
            report.behaviour(
                &ca,
                "trusted_ca",
                format!("the authorities of the system are trusted instead: {problem}"),
            );
        }
    }
    if names.is_empty() {
        let name = match (&security.sni, host) {
            (Some(sni), _) => format!("`{sni}`, the name of `sni`"),
            (None, Some(host)) => {
                security.tls.insert("sni".to_owned(), json!(host));
                format!("`{host}`, which servers are asked for")
            }
            (None, None) => "the name of the Host that is sent".to_owned(),
        };
        let effect = format!("a certificate must also be valid for {name}; otherwise requests get 502");
        report.behaviour(validation, "validation_context", effect);
        report.hint("set `sni` to the name in the certificate");
    }
}

/// Chain and key of a `TlsCertificate`.
pub(super) fn certificate_pair(context: &Context<'_>, pair: &Node<'_>) -> Result<(String, String), String> {
    for name in ["watched_directory", "ocsp_staple", "private_key_provider"] {
        if let Some(part) = pair.some(name) {
            part.whole();
        }
    }
    let data = |name: &str| {
        pair.some(name).ok_or_else(|| format!("`{name}` is missing")).and_then(|data| context.data(&data))
    };
    let (chain, key) = (data("certificate_chain"), data("private_key"));
    Ok((chain?, key?))
}

/// Fields that clients' and servers' sides of TLS share.
pub(super) fn common_fields(common: &Node<'_>, report: &mut Report) {
    report.fields(
        common,
        &[
            ("tls_params", Cosmetic, "versions and ciphers are those of `apisix.ssl` in config.yaml"),
            (
                "tls_certificate_sds_secret_configs",
                Behaviour,
                "certificates from a control plane or an SDS file are not used",
            ),
            (
                "validation_context_sds_secret_config",
                Behaviour,
                "authorities from a control plane or an SDS file are not used",
            ),
            ("custom_handshaker", Cosmetic, "the handshake is the gateway's own"),
            ("key_log", Cosmetic, "keys are never logged"),
        ],
    );
}
