//! TLS of listeners: `ssl` resources.

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::context::{Context, Report};
use super::upstream_tls::{certificate_pair, common_fields};
use super::value::{self, boolean, enumerated, items, texts};
use crate::finding::Severity::{Behaviour, Cosmetic};
use crate::node::Node;

/// TLS of a filter chain.
pub(super) struct ServerTls {
    pub(super) http2: bool,
}

/// Reads the transport socket of a filter chain; `None` is clear text.
pub(super) fn read(context: &mut Context<'_>, chain: &Node<'_>, names: &[String]) -> Option<ServerTls> {
    let mut report = Report::default();
    let found = settings(chain, &mut report);
    let read = found.map(|settings| certificates(context, &settings, names, &mut report));
    context.report.take(report, &[]);
    read
}

fn settings<'a>(chain: &Node<'a>, report: &mut Report) -> Option<Node<'a>> {
    if let Some(old) = chain.some("tls_context") {
        return Some(old);
    }
    let socket = chain.some("transport_socket")?;
    let extension = value::extension(&socket);
    match extension.kind.as_str() {
        "DownstreamTlsContext" | "tls" => extension.config,
        "RawBuffer" | "raw_buffer" => {
            socket.whole();
            None
        }
        _ => {
            socket.whole();
            report.guard(
                &socket,
                "transport_socket",
                format!("the transport `{}` is unknown; the port is in clear text", extension.name),
            );
            None
        }
    }
}

fn certificates(
    context: &mut Context<'_>,
    settings: &Node<'_>,
    names: &[String],
    report: &mut Report,
) -> ServerTls {
    let _ = settings.get("@type");
    report.fields(
        settings,
        &[
            (
                "session_ticket_keys",
                Behaviour,
                "tickets have keys of the gateway, so sessions do not resume across gateways",
            ),
            (
                "session_ticket_keys_sds_secret_config",
                Behaviour,
                "tickets have keys of the gateway, so sessions do not resume across gateways",
            ),
            (
                "disable_stateless_session_resumption",
                Cosmetic,
                "sessions resume as `apisix.ssl` in config.yaml says",
            ),
            (
                "disable_stateful_session_resumption",
                Cosmetic,
                "sessions resume as `apisix.ssl` in config.yaml says",
            ),
            ("session_timeout", Cosmetic, "sessions resume as `apisix.ssl` in config.yaml says"),
            ("ocsp_staple_policy", Behaviour, "no staple is sent; the plugin ocsp-stapling fetches one"),
            ("full_scan_certs_on_sni_mismatch", Cosmetic, "certificates are chosen by their names"),
            ("prefer_client_ciphers", Cosmetic, "ciphers are chosen by the gateway's own rules"),
            ("require_sni", Behaviour, "clients without a server name are served where a certificate fits"),
        ],
    );
    let Some(common) = settings.some("common_tls_context") else { return ServerTls { http2: false } };
    common_fields(&common, report);
    let protocols = texts(&common, "alpn_protocols");
    let http2 = protocols.iter().any(|protocol| protocol == "h2" || protocol.contains("h2,"));
    let mut ssl = Map::new();
    let (mut chains, mut keys) = (Vec::new(), Vec::new());
    for pair in items(&common, "tls_certificates") {
        match certificate_pair(context, &pair) {
            Ok((chain, key)) => {
                chains.push(chain);
                keys.push(key);
            }
            Err(problem) => report.behaviour(
                &pair,
                "tls_certificates",
                format!("without this certificate its clients cannot connect: {problem}"),
            ),
        }
    }
    let client = client_verification(context, settings, &common, report);
    if chains.is_empty() {
        return ServerTls { http2 };
    }
    ssl.insert("cert".to_owned(), json!(chains.remove(0)));
    ssl.insert("key".to_owned(), json!(keys.remove(0)));
    if !chains.is_empty() {
        ssl.insert("certs".to_owned(), json!(chains));
        ssl.insert("keys".to_owned(), json!(keys));
    }
    let snis = if names.is_empty() { vec!["*".to_owned()] } else { names.to_vec() };
    ssl.insert("snis".to_owned(), json!(snis));
    if let Some(client) = client {
        ssl.insert("client".to_owned(), client);
    }
    let versions = versions(&common);
    if !versions.is_empty() {
        ssl.insert("ssl_protocols".to_owned(), json!(versions));
    }
    let same =
        |known: &crate::Imported| known.key.kind == Kind::Ssl && known.value == Value::Object(ssl.clone());
    if !context.import.resources.iter().any(same) {
        let key: Key = context
            .key(Kind::Ssl, &[names.first().map_or("certificate", |name| name.trim_start_matches("*."))]);
        context.add(key, ssl, settings.place());
    }
    ServerTls { http2 }
}

/// The versions of TLS that `tls_params` allows, if it says so.
fn versions(common: &Node<'_>) -> Vec<&'static str> {
    let Some(params) = common.some("tls_params") else { return Vec::new() };
    let bound = |name: &str, default: usize| match enumerated(&params, name).as_deref() {
        Some("TLSV1_0" | "TLSV1_1" | "TLSV1_2") => 0,
        Some("TLSV1_3") => 1,
        _ => default,
    };
    let (low, high) = (bound("tls_minimum_protocol_version", 0), bound("tls_maximum_protocol_version", 1));
    if (low, high) == (0, 1) || low > high {
        return Vec::new();
    }
    vec![["TLSv1.2", "TLSv1.3"][low]]
}

/// The verification of clients, if certificates are asked of them.
fn client_verification(
    context: &Context<'_>,
    settings: &Node<'_>,
    common: &Node<'_>,
    report: &mut Report,
) -> Option<Value> {
    let required = boolean(settings, "require_client_certificate") == Some(true);
    let combined = common.some("combined_validation_context");
    if let Some(combined) = &combined {
        common_fields(combined, report);
    }
    let validation =
        common.some("validation_context").or_else(|| combined?.some("default_validation_context"));
    let Some(validation) = validation else {
        if required {
            let place = settings.some("require_client_certificate").unwrap_or_else(|| settings.clone());
            report.guard(
                &place,
                "require_client_certificate",
                "certificates of clients are not verified, as no `trusted_ca` is here",
            );
        }
        return None;
    };
    for name in [
        "verify_certificate_hash",
        "verify_certificate_spki",
        "match_subject_alt_names",
        "match_typed_subject_alt_names",
        "verify_subject_alt_name",
        "crl",
        "custom_validator_config",
    ] {
        if let Some(part) = validation.some(name) {
            part.whole();
            report.guard(&part, name, "certificates of clients are not checked for this");
        }
    }
    report.fields(
        &validation,
        &[
            ("allow_expired_certificate", Behaviour, "expired certificates are refused"),
            ("require_signed_certificate_timestamp", Behaviour, "certificate transparency is not checked"),
            ("only_verify_leaf_cert_crl", Cosmetic, "revocation lists are not read"),
            ("watched_directory", Cosmetic, "files are read again with the configuration"),
            ("trust_chain_verification", Behaviour, "certificates of clients are always verified"),
        ],
    );
    let depth = value::number(&validation, "max_verify_depth");
    let Some(ca) = validation.some("trusted_ca") else {
        if required {
            report.guard(
                &validation,
                "require_client_certificate",
                "certificates of clients are not verified, as no `trusted_ca` is here",
            );
        }
        return None;
    };
    match context.data(&ca) {
        Ok(pem) if required => {
            let mut client = json!({"ca": pem});
            // Envoy has no bound of its own.
            client["depth"] = json!(depth.unwrap_or(10));
            Some(client)
        }
        Ok(_) => {
            report.behaviour(
                &ca,
                "trusted_ca",
                "certificates of clients are not asked for, as they are not required",
            );
            None
        }
        Err(problem) => {
            if required {
                report.guard(
                    &ca,
                    "trusted_ca",
                    format!("certificates of clients are not verified: {problem}"),
                );
            } else {
                report.behaviour(
                    &ca,
                    "trusted_ca",
                    format!("certificates of clients are not asked for: {problem}"),
                );
            }
            None
        }
    }
}
