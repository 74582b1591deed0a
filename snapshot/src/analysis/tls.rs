//! TLS settings that protect less than they seem to.

use model::invalid::push_pointer;
use model::{Invalid, Key, Resource, Ssl, SslType, fault_of_sni};
use serde_json::Value;

use super::{Analysis, Code, Input};
use crate::certs;

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.iter() {
        if let Resource::Ssl(ssl) = entry.resource()
            && ssl.enabled
        {
            for (at, pair) in ssl.pairs.iter().enumerate() {
                if let Some(days) = certs::expired_for(&pair.cert, of.now) {
                    let place = if at == 0 { "/cert".to_owned() } else { format!("/certs/{}", at - 1) };
                    let invalid = Invalid::new(format!("this certificate expired {days} days ago"))
                        .at(place)
                        .hint("replace it and its key; until then handshakes of clients that verify it fail");
                    found.add(Code::ExpiredCertificate, &entry.key, invalid);
                }
            }
            other_names(ssl, &entry.key, found);
            no_hosts(ssl, &entry.key, found);
            for (at, protocol) in ssl.protocols.iter().enumerate() {
                if is_old(protocol) {
                    let invalid = Invalid::new(format!("{protocol} is broken and forbidden (RFC 8996)"))
                        .at(format!("/ssl_protocols/{at}"))
                        .hint("remove it; clients of the last ten years speak TLSv1.2 or TLSv1.3");
                    found.add(Code::WeakTls, &entry.key, invalid);
                }
            }
        }
        if let Some(upstream) = entry.resource().upstream()
            && upstream.scheme.is_tls()
            && !upstream.tls.as_ref().is_some_and(|tls| tls.verify)
        {
            let inside = if matches!(entry.resource(), Resource::Upstream(_)) { "" } else { "/upstream" };
            let invalid = Invalid::new(
                "the certificate of its servers is not verified: an attacker between the two can read and change everything",
            )
            .at(format!("{inside}/scheme"))
            .hint("set `tls: {verify: true}`, and `tls.ca` if the authority is your own");
            found.add(Code::WeakTls, &entry.key, invalid);
        }
        for (name, config) in entry.resource().plugins().into_iter().flatten() {
            for field in ["ssl_verify", "tls_verify"] {
                if config.get(field) == Some(&Value::Bool(false)) {
                    let mut pointer = String::from("/plugins");
                    push_pointer(&mut pointer, name);
                    let invalid =
                        Invalid::new(format!("{name} does not verify the certificate of its server"))
                            .at(format!("{pointer}/{field}"))
                            .hint("remove it: by default the plugin verifies certificates if it can");
                    found.add(Code::WeakTls, &entry.key, invalid);
                }
            }
        }
    }
}

/// Reports names served with a certificate that does not cover them.
fn other_names(ssl: &Ssl, key: &Key, found: &mut Analysis) {
    // An unreadable certificate may be a reference; one without DNS names cannot be judged.
    let names: Option<Vec<Vec<String>>> =
        ssl.pairs.iter().map(|pair| certs::facts(&pair.cert).map(|facts| facts.names)).collect();
    let Some(names) = names.filter(|names| names.iter().all(|names| !names.is_empty())) else { return };
    let names: Vec<String> = names.into_iter().flatten().collect();
    for sni in &ssl.snis {
        if !names.iter().any(|name| is_for(name, sni)) {
            let invalid =
                Invalid::new(format!("the certificate is not for `{sni}`: clients that verify it refuse it"))
                    .at("/cert")
                    .hint(format!(
                        "it is for {}: replace it, or remove the name that it does not cover",
                        names.join(", ")
                    ));
            found.add(Code::OtherName, key, invalid);
        }
    }
}

/// Names that no client can ask for. The schema takes many of them, as APISIX's does.
fn no_hosts(ssl: &Ssl, key: &Key, found: &mut Analysis) {
    if ssl.kind == SslType::Client {
        return;
    }
    for (at, sni) in ssl.snis.iter().enumerate() {
        if let Some(invalid) = fault_of_sni(sni) {
            found.add(Code::NoHost, key, invalid.at(ssl.sni_pointer(at)));
        }
    }
}

/// Whether a certificate name covers a server name, which may itself be a pattern.
fn is_for(name: &str, server: &str) -> bool {
    let name = name.to_ascii_lowercase();
    match (name.strip_prefix("*."), server.split_once('.')) {
        (Some(domain), Some((_, rest))) => domain == rest,
        _ => name == server,
    }
}

/// Whether a protocol version is obsolete (RFC 8996).
pub fn is_old(protocol: &str) -> bool {
    matches!(protocol, "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.0" | "TLSv1.1")
}
