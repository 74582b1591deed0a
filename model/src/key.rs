//! Where a resource lives in a store.
//!
//! `/apisix/routes/1`, `/apisix/consumers/jack/credentials/phone`,
//! `/apisix/secrets/vault/1`: the paths APISIX uses in etcd and prints in its
//! envelopes. Nothing here reads or writes a store.

use std::fmt;

use crate::{Invalid, Kind};

/// APISIX's default path in a store.
pub const DEFAULT_PREFIX: &str = "/apisix";

/// A resource's kind and id.
///
/// The id of a credential is `user/credentials/id`, that of a cost decoration
/// `service/graphql_cost_decorations/id` and that of a secret `manager/id`; all
/// others have no slash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub id: String,
}

impl Key {
    /// A key of `kind`, its id not checked; see [`Key::check`].
    pub fn new(kind: Kind, id: impl Into<String>) -> Key {
        Key { kind, id: id.into() }
    }

    /// The key of one of a consumer's credentials.
    pub fn credential(username: &str, id: &str) -> Key {
        Key::owned(Kind::Credential, username, id)
    }

    /// The key of one of a kind that belongs to another; see [`Kind::owner`].
    pub fn owned(kind: Kind, owner: &str, id: &str) -> Key {
        Key { kind, id: format!("{owner}/{}/{id}", kind.collection()) }
    }

    /// The same key, or that of what belongs to this kind where the id says so: `jack/credentials/phone` among
    /// consumers.
    #[must_use]
    pub fn or_owned(self) -> Key {
        let owned = self.kind.owned().filter(|owned| {
            let mut parts = self.id.splitn(3, '/');
            parts.nth(1) == Some(owned.collection()) && parts.next().is_some()
        });
        Key { kind: owned.unwrap_or(self.kind), ..self }
    }

    /// The store path below `prefix`: `/apisix/routes/1`.
    pub fn path(&self, prefix: &str) -> String {
        format!("{prefix}/{}/{}", Key::folder(self.kind), self.id)
    }

    /// The key of a store path, if it is one of ours.
    pub fn parse(prefix: &str, path: &str) -> Option<Key> {
        let (folder, id) = path.strip_prefix(prefix)?.strip_prefix('/')?.split_once('/')?;
        let kind = Kind::from_collection(folder).filter(|kind| kind.owner().is_none())?;
        let key = Key::new(kind, id).or_owned();
        key.check().ok().map(|()| key)
    }

    /// The last part of the id: `phone` of `jack/credentials/phone`, `1` of `vault/1`.
    pub fn leaf(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or(&self.id)
    }

    /// The id of what this belongs to (a credential's consumer, a decoration's service), or a secret's manager.
    pub fn owner(&self) -> Option<&str> {
        self.id.split_once('/').map(|(owner, _)| owner)
    }

    /// Checks the id against its kind's rules.
    ///
    /// # Errors
    /// In APISIX's words for a schema that an id does not meet.
    pub fn check(&self) -> Result<(), Invalid> {
        match self.kind {
            Kind::Consumer => check_username(&self.id),
            Kind::Credential => match self.id.split_once("/credentials/") {
                Some((username, id)) => check_username(username).and_then(|()| check_id(id)),
                None => Err(Invalid::new("invalid credential id").expected("user/credentials/id")),
            },
            Kind::CostDecoration => match self.id.split_once("/graphql_cost_decorations/") {
                Some((service, id)) => check_id(service).and_then(|()| check_id(id)),
                None => {
                    Err(Invalid::new("missing service id").expected("service/graphql_cost_decorations/id"))
                }
            },
            Kind::Secret => match self.id.split_once('/') {
                Some((manager, id)) => check_id(manager).and_then(|()| check_id(id)),
                None => Err(Invalid::new("no secret id").expected("manager/id")),
            },
            _ => check_id(&self.id),
        }
    }

    /// The first part of the path: credentials live below their consumer.
    fn folder(kind: Kind) -> &'static str {
        kind.owner().unwrap_or(kind).collection()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Key::folder(self.kind), self.id)
    }
}

/// Checks an id: 1 to 64 of `a-z A-Z 0-9 - _ .` (APISIX `id_schema`).
///
/// # Errors
/// `invalid configuration: property "id" validation failed: …`.
pub fn check_id(id: &str) -> Result<(), Invalid> {
    let fits = (1..=64).contains(&id.len()) && id.bytes().all(|b| is_word(b) || b == b'.');
    // "." and ".." would pass the pattern and then walk up a path that a proxy normalises.
    if fits && id != "." && id != ".." {
        return Ok(());
    }
    Err(Invalid::new(
        "invalid configuration: property \"id\" validation failed: object matches none of the required",
    )
    .at("/id")
    .expected("1 to 64 characters of a-z A-Z 0-9 - _ .")
    .got(abridged(id)))
}

/// Checks a consumer's name: 1 to 256 of `a-z A-Z 0-9 _ -` (APISIX `consumer.username`).
///
/// # Errors
/// `invalid configuration: property "username" validation failed: …`.
pub fn check_username(name: &str) -> Result<(), Invalid> {
    if (1..=256).contains(&name.len()) && name.bytes().all(is_word) {
        return Ok(());
    }
    let reason = match name.len() {
        0 => "string too short, expected at least 1, got 0".to_owned(),
        1..=256 => {
            format!("failed to match pattern \"^[a-zA-Z0-9_\\\\-]+$\" with {}", crate::schema::quoted(name))
        }
        length => format!("string too long, expected at most 256, got {length}"),
    };
    Err(Invalid::new(format!("invalid configuration: property \"username\" validation failed: {reason}"))
        .at("/username")
        .expected("1 to 256 characters of a-z A-Z 0-9 _ -")
        .got(abridged(name)))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn abridged(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_keys_lead_to_each_other() {
        let keys = [
            (Key::new(Kind::Route, "1"), "/apisix/routes/1"),
            (Key::new(Kind::PluginMetadata, "http-logger"), "/apisix/plugin_metadata/http-logger"),
            (Key::new(Kind::Consumer, "jack"), "/apisix/consumers/jack"),
            (Key::credential("jack", "phone"), "/apisix/consumers/jack/credentials/phone"),
            (Key::new(Kind::Secret, "vault/1"), "/apisix/secrets/vault/1"),
            (
                Key::owned(Kind::CostDecoration, "shop", "d1"),
                "/apisix/services/shop/graphql_cost_decorations/d1",
            ),
        ];
        for (key, path) in keys {
            assert_eq!(key.path(DEFAULT_PREFIX), path);
            assert_eq!(Key::parse(DEFAULT_PREFIX, path), Some(key));
        }
    }

    #[test]
    fn foreign_and_malformed_paths_are_no_keys() {
        for path in [
            "/apisix/routes/",
            "/apisix/routes",
            "/apisix/routes/a/b",
            "/apisix/routes/a b",
            "/apisix/routes/..",
            "/apisix/credentials/1",
            "/apisix/consumers/jack/1",
            "/apisix/consumers/jack/graphql_cost_decorations/1",
            "/apisix/services/a/credentials/1",
            "/apisix/services/a/graphql_cost_decorations/",
            "/apisix/graphql_cost_decorations/1",
            "/apisix/secrets/1",
            "/apisix/plugins/x",
            "/other/routes/1",
            "",
        ] {
            assert_eq!(Key::parse(DEFAULT_PREFIX, path), None, "{path}");
        }
    }

    #[test]
    fn the_parts_of_a_nested_id_are_found() {
        let key = Key::credential("jack", "phone");
        assert_eq!((key.owner(), key.leaf()), (Some("jack"), "phone"));
        assert_eq!(Key::new(Kind::Route, "1").owner(), None);
        assert_eq!(Key::new(Kind::Route, "1").leaf(), "1");
    }

    #[test]
    fn bad_ids_are_told_in_apisix_words() {
        let invalid = check_id("a b").unwrap_err();
        assert_eq!(
            invalid.reason,
            "invalid configuration: property \"id\" validation failed: object matches none of the required"
        );
        assert_eq!(invalid.got.as_deref(), Some("`a b`"));
        let invalid = check_username("a.b").unwrap_err();
        assert_eq!(
            invalid.reason,
            "invalid configuration: property \"username\" validation failed: \
             failed to match pattern \"^[a-zA-Z0-9_\\\\-]+$\" with \"a.b\""
        );
        assert!(check_id(&"a".repeat(65)).is_err());
    }
}
