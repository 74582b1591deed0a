//! Certificates with their server names, and the authorities that services trust.

use std::collections::{HashMap, HashSet};

use model::Kind;
use serde_json::{Value, json};

use super::Output;
use super::document::is_unset;
use super::entities::{Entity, Kong};
use crate::node::Node;

/// Makes an ssl resource of each certificate that has server names.
pub(super) fn convert(kong: &Kong<'_>, out: &mut Output) {
    let mut owned: HashMap<String, Vec<&Node<'_>>> = HashMap::new();
    for sni in &kong.snis {
        owner(sni).into_iter().for_each(|owner| owned.entry(owner).or_default().push(sni));
    }
    for node in &kong.certificates {
        let entity = Entity::new(node.clone());
        let mut snis: Vec<String> = Vec::new();
        for sni in node.some("snis").map(|node| node.items()).unwrap_or_default() {
            snis.extend(sni.text().or_else(|| Entity::new(sni).text("name")));
        }
        for sni in id(node).and_then(|id| owned.get(&id)).into_iter().flatten() {
            snis.extend(Entity::new((*sni).clone()).text("name"));
        }
        for name in ["cert", "key", "cert_alt", "key_alt", "passphrase"] {
            node.get(name).map(|part| part.whole());
        }
        if snis.is_empty() {
            continue;
        }
        let Some((cert, key)) = pair(&entity, "cert", "key") else {
            out.behaviour(
                node,
                "the certificate or its key is no PEM, so its server names have no certificate",
            );
            continue;
        };
        let (fitting, odd): (Vec<String>, Vec<String>) = snis.into_iter().partition(|sni| is_sni(sni));
        for sni in odd {
            out.behaviour(node, format!("server name `{sni}`: a star is possible at the beginning only"));
        }
        if fitting.is_empty() {
            continue;
        }
        let mut value = json!({"cert": cert, "key": key, "snis": fitting});
        if let Some((cert, key)) = pair(&entity, "cert_alt", "key_alt") {
            value["certs"] = json!([cert]);
            value["keys"] = json!([key]);
        }
        if let Some(tags) = entity.tags() {
            value["labels"] = json!({ "tags": tags });
        }
        let id = out.names.id(Kind::Ssl, fitting[0].trim_start_matches("*."));
        out.add(Kind::Ssl, id, value, node.place());
    }
    let known: HashSet<String> = kong.certificates.iter().filter_map(id).collect();
    for sni in &kong.snis {
        if owner(sni).is_none_or(|owner| !known.contains(&owner)) {
            sni.whole();
            out.behaviour(sni, "its certificate is not in the file");
        }
    }
    for node in &kong.ca_certificates {
        Entity::new(node.clone());
        node.get("cert").map(|part| part.whole());
        node.get("cert_digest").map(|part| part.whole());
    }
}

/// Certificates and authorities by their ids, for connections to upstreams.
pub(super) struct Pems<'a> {
    certificates: HashMap<String, Node<'a>>,
    authorities: HashMap<String, Node<'a>>,
}

impl<'a> Pems<'a> {
    pub(super) fn of(kong: &Kong<'a>) -> Pems<'a> {
        let by_id = |nodes: &[Node<'a>]| {
            let mut found = HashMap::new();
            for node in nodes {
                if let Some(id) = id(node) {
                    found.entry(id).or_insert_with(|| node.clone());
                }
            }
            found
        };
        Pems { certificates: by_id(&kong.certificates), authorities: by_id(&kong.ca_certificates) }
    }

    /// The certificate and the key of this id.
    pub(super) fn client(&self, id: &str) -> Option<(String, String)> {
        pair(&Entity::new(self.certificates.get(id)?.clone()), "cert", "key")
    }

    /// The authorities of these ids; none if one of them is missing.
    pub(super) fn authorities(&self, ids: &[String]) -> Option<String> {
        let mut all = String::new();
        for id in ids {
            let cert = secret(&self.authorities.get(id)?.some("cert")?.text()?)?;
            if !is_pem(&cert) {
                return None;
            }
            all.push_str(cert.trim_end());
            all.push('\n');
        }
        Some(all)
    }
}

fn id(node: &Node<'_>) -> Option<String> {
    node.some("id")?.text()
}

/// The id of the certificate that a server name belongs to.
fn owner(sni: &Node<'_>) -> Option<String> {
    let owner = sni.some("certificate")?;
    owner.text().or_else(|| id(&owner))
}

fn pair(entity: &Entity<'_>, cert: &str, key: &str) -> Option<(String, String)> {
    let (cert, key) = (secret(&entity.text(cert)?)?, secret(&entity.text(key)?)?);
    (is_pem(&cert) && is_pem(&key)).then_some((cert, key))
}

fn is_pem(text: &str) -> bool {
    text.starts_with("$env://") || (text.contains("-----BEGIN ") && (128..=65_536).contains(&text.len()))
}

fn is_sni(name: &str) -> bool {
    let rest = name.strip_prefix('*').unwrap_or(name);
    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// The text of a secret: a reference to Kong's environment vault becomes one to the environment. None if
/// it refers to another vault, or holds a variable without a value.
pub(super) fn secret(text: &str) -> Option<String> {
    let Some(reference) = text.trim().strip_prefix("{vault://").and_then(|rest| rest.strip_suffix('}'))
    else {
        return (!is_unset(text)).then(|| text.to_owned());
    };
    let path = reference.strip_prefix("env/")?;
    let (name, part) = path.split_once('/').map_or((path, None), |(name, part)| (name, Some(part)));
    let name = name.to_ascii_uppercase().replace('-', "_");
    Some(match part.map(|part| part.trim_matches('/')).filter(|part| !part.is_empty()) {
        Some(part) => format!("$env://{name}/{part}"),
        None => format!("$env://{name}"),
    })
}

/// The text of a secret as a JSON value.
pub(super) fn secret_value(node: &Node<'_>) -> Option<Value> {
    secret(&node.text()?).map(Value::from)
}
