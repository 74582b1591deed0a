//! Certificates of servers.

use std::collections::HashSet;

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::directive::Directive;
use super::report::Report;
use super::servers::{Index, Name, Server};
use crate::{Imported, Severity, Source};

/// The `ssl` resources of servers that listen with TLS.
pub(super) fn read(
    servers: &[Server<'_>],
    index: &Index<'_>,
    source: &Source<'_>,
    report: &mut Report,
) -> Vec<Imported> {
    let mut resources: Vec<Imported> = Vec::new();
    let mut named = HashSet::new();
    for (at, server) in servers.iter().enumerate() {
        let pairs: Vec<(&Directive, &Directive)> = server
            .scope
            .all("ssl_certificate")
            .into_iter()
            .zip(server.scope.all("ssl_certificate_key"))
            .collect();
        let protocols = server.scope.get("ssl_protocols");
        let client = client(server, source, report);
        if !server.listens.iter().any(|listen| listen.tls) {
            continue;
        }
        if pairs.is_empty() {
            if server.scope.flag("ssl_reject_handshake") != Some(true) {
                report.add(
                    server.directive,
                    Severity::Behaviour,
                    "it has no certificate: clients of TLS cannot connect",
                );
            }
            continue;
        }
        let (mut certs, mut keys) = (Vec::new(), Vec::new());
        for (cert, key) in pairs {
            match (source.files.read(cert.arg(0)), source.files.read(key.arg(0))) {
                (Ok(cert), Ok(key)) => {
                    certs.push(cert);
                    keys.push(key);
                }
                (Err(error), _) | (_, Err(error)) => {
                    let hint = "add the certificate as an `ssl` resource";
                    let effect = format!("clients of TLS cannot connect to these names: {error}");
                    report.add_with_hint(cert, Severity::Behaviour, effect, Some(hint));
                }
            }
        }
        if certs.is_empty() {
            continue;
        }
        let mut snis: Vec<String> = server
            .names
            .iter()
            .filter_map(|name| match name {
                Name::Host(host) => Some(host.clone()),
                Name::Pattern(_) => None,
            })
            .collect();
        // The default server of an address serves clients of any name, and those that send none.
        let mut secure = server.listens.iter().filter(|listen| listen.tls);
        let is_default = secure.any(|listen| index.is_default(at, listen.endpoint));
        if snis.is_empty() || is_default {
            snis.push("*".to_owned());
        }
        snis.retain(|sni| named.insert(sni.clone()));
        if snis.is_empty() {
            continue;
        }
        let mut value = Map::new();
        value.insert("cert".to_owned(), json!(certs.remove(0)));
        value.insert("key".to_owned(), json!(keys.remove(0)));
        if !certs.is_empty() {
            value.insert("certs".to_owned(), json!(certs));
            value.insert("keys".to_owned(), json!(keys));
        }
        value.insert("snis".to_owned(), json!(snis));
        if let Some(client) = client {
            value.insert("client".to_owned(), client);
        }
        if let Some(protocols) = protocols {
            let known: Vec<&str> = protocols
                .args
                .iter()
                .map(String::as_str)
                .filter(|name| ["TLSv1.2", "TLSv1.3"].contains(name))
                .collect();
            if known.len() < protocols.args.len() {
                report.add(protocols, Severity::Behaviour, "versions before TLS 1.2 are refused");
            }
            if !known.is_empty() {
                value.insert("ssl_protocols".to_owned(), json!(known));
            }
        }
        let base = server.id.clone();
        let number = resources.iter().filter(|known| known.key.id.starts_with(&base)).count();
        let id = if number == 0 { base } else { format!("{base}-{}", number + 1) };
        let place = server.directive.place.clone();
        resources.push(Imported { key: Key::new(Kind::Ssl, id), value: Value::Object(value), place });
    }
    resources
}

fn client(server: &Server<'_>, source: &Source<'_>, report: &mut Report) -> Option<Value> {
    let verify = server.scope.get("ssl_verify_client");
    let (ca, depth) = (server.scope.get("ssl_client_certificate"), server.scope.number("ssl_verify_depth"));
    let verify = verify.filter(|verify| verify.arg(0) != "off")?;
    if verify.arg(0) != "on" {
        report.add(verify, Severity::Guard, "clients are not asked for certificates that they may leave out");
        return None;
    }
    let Some(ca) = ca else {
        report.add(verify, Severity::Guard, "not carried over: no authority of clients is named");
        return None;
    };
    match source.files.read(ca.arg(0)) {
        Ok(text) => {
            let mut client = json!({ "ca": text });
            if let Some(depth) = depth {
                client["depth"] = json!(depth);
            }
            Some(client)
        }
        Err(error) => {
            report.add(ca, Severity::Guard, format!("certificates of clients are not checked: {error}"));
            None
        }
    }
}
