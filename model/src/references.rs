//! References to secrets that others keep: `$secret://manager/id/key`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::Resource;

/// The prefix of a reference to a secret manager.
pub const SECRET: &str = "$secret://";

/// The prefix of a reference to the environment, in any case.
pub const ENV: &str = "$env://";

/// Whether a text refers to a secret manager or to the environment.
pub fn refers(text: &str) -> bool {
    is_env(text) || text.starts_with(SECRET)
}

/// Whether a text refers to the environment.
pub fn is_env(text: &str) -> bool {
    text.get(..ENV.len()).is_some_and(|start| start.eq_ignore_ascii_case(ENV))
}

/// A reference, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'a> {
    /// `vault`, `aws`, `gcp`.
    pub manager: &'a str,
    /// The manager's own id.
    pub id: &'a str,
    /// The key under which the manager has the secret.
    pub key: &'a str,
}

/// Takes a reference apart.
///
/// # Errors
/// The first missing part, in APISIX's words.
pub fn parse(reference: &str) -> Result<Reference<'_>, &'static str> {
    let path = reference.strip_prefix(SECRET).ok_or("error secret_uri prefix")?;
    let (manager, rest) = path.split_once('/').ok_or("error format: no secret manager")?;
    let (id, key) = rest.split_once('/').ok_or("error format: no secret conf id")?;
    match key {
        "" => Err("error format: no secret key id"),
        key => Ok(Reference { manager, id, key }),
    }
}

impl Resource {
    /// The references to secret managers in it, wherever one is followed.
    pub fn secrets(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for config in self.plugins().into_iter().flat_map(|plugins| plugins.values()) {
            gather(config, &mut found);
        }
        let mut text = |text: &str| {
            if text.starts_with(SECRET) {
                found.insert(text.to_owned());
            }
        };
        if let Some(tls) = self.upstream().and_then(|upstream| upstream.tls.as_ref()) {
            [&tls.client_cert, &tls.client_key, &tls.ca].into_iter().flatten().for_each(|one| text(one));
        }
        let own = self.upstream().and_then(|upstream| upstream.own.as_ref());
        own.and_then(|own| own.sticky.as_ref()).iter().for_each(|sticky| text(&sticky.secret));
        match self {
            Resource::Ssl(ssl) => {
                ssl.pairs.iter().flat_map(|pair| [&pair.cert, &pair.key]).for_each(|one| text(one));
                ssl.client.iter().for_each(|client| text(&client.ca));
            }
            Resource::PluginMetadata(metadata) => {
                metadata.value.values().for_each(|value| gather(value, &mut found));
            }
            _ => {}
        }
        found
    }
}

fn gather(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if text.starts_with(SECRET) => _ = found.insert(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, found)),
        Value::Object(fields) => fields.values().for_each(|field| gather(field, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Kind;

    #[test]
    fn references_have_three_parts() {
        let found = parse("$secret://vault/1/apisix/jack/key").unwrap();
        assert_eq!(found, Reference { manager: "vault", id: "1", key: "apisix/jack/key" });
        for (wrong, why) in [
            ("secret://vault/1/a", "error secret_uri prefix"),
            ("$secret://vault", "error format: no secret manager"),
            ("$secret://vault/1", "error format: no secret conf id"),
            ("$secret://vault/1/", "error format: no secret key id"),
        ] {
            assert_eq!(parse(wrong), Err(why));
        }
    }

    #[test]
    fn every_place_where_one_is_followed_is_found() {
        let secrets = |kind, id: &str, value| {
            let found = Resource::parse(kind, id, &value).unwrap().secrets();
            found
                .into_iter()
                .map(|one| one.trim_start_matches("$secret://vault/1/").to_owned())
                .collect::<Vec<_>>()
        };
        let at = |key: &str| format!("$secret://vault/1/{key}");
        let upstream = json!({"scheme": "https", "nodes": {"a:1": 1}, "tls": {"client_cert": at("c"), "client_key": at("k")}});
        let plugins = json!({"a": {"b": [{"c": at("p")}, "x $secret://"]}});
        let route = json!({"uri": "/", "plugins": plugins, "upstream": upstream});
        assert_eq!(secrets(Kind::Route, "1", route), ["c", "k", "p"]);
        assert_eq!(secrets(Kind::Upstream, "1", upstream), ["c", "k"]);
        assert_eq!(secrets(Kind::Consumer, "jack", json!({"username": "jack", "plugins": plugins})), ["p"]);
        let ssl = json!({"sni": "a.b", "cert": at("c"), "key": at("k"), "certs": [at("c2")], "keys": [at("k2")], "client": {"ca": at("ca")}});
        assert_eq!(secrets(Kind::Ssl, "1", ssl), ["c", "c2", "ca", "k", "k2"]);
        assert_eq!(secrets(Kind::PluginMetadata, "a", json!({"x": at("m")})), ["m"]);
    }
}
