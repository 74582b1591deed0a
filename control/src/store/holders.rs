//! The unique fields of consumers, and an index of who has which.
//!
//! Writing a consumer checks that no other has the same key. The index answers
//! that without scanning all consumers. It is built at the first such write,
//! since many gateways never see one, and is kept up to date from then on.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use model::{Key, Kind};
use serde_json::Value;
use snapshot::parallel;

use super::Row;
use super::table::ByKey;

/// The field of each plugin that must be unique among consumers.
const UNIQUE: [(&str, &str); 6] = [
    ("key-auth", "key"),
    ("basic-auth", "username"),
    ("jwt-auth", "key"),
    ("hmac-auth", "key_id"),
    ("ldap-auth", "user_dn"),
    ("ldap-auth-advanced", "user_dn"),
];

/// A unique field and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim<'v> {
    pub plugin: &'static str,
    pub field: &'static str,
    pub text: &'v str,
}

/// The unique fields of a consumer or credential.
pub fn claims(value: &Value) -> impl Iterator<Item = Claim<'_>> {
    UNIQUE.iter().filter_map(|&(plugin, field)| {
        let text = value.get("plugins")?.get(plugin)?.get(field)?.as_str()?;
        Some(Claim { plugin, field, text })
    })
}

/// Whether resources of this kind have unique fields.
pub(super) fn claims_in(kind: Kind) -> bool {
    matches!(kind, Kind::Consumer | Kind::Credential)
}

/// Consumers and credentials by the hash of their unique fields.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_claim: HashMap<u64, Vec<Key>>,
    hasher: RandomState,
}

impl Holders {
    pub fn of(rows: &ByKey) -> Holders {
        let mut holders = Holders::default();
        let claiming = rows.iter().map(|placed| &placed.0).filter(|row| claims_in(row.key.kind)).collect();
        for (key, hashes) in parallel::map(claiming, |row: &Row| (&row.key, holders.hashes(row))) {
            for hash in hashes {
                holders.by_claim.entry(hash).or_default().push(key.clone());
            }
        }
        holders
    }

    /// All who have it, and possibly others whose field has the same hash.
    pub fn of_claim(&self, claim: &Claim<'_>) -> &[Key] {
        self.by_claim.get(&self.hasher.hash_one(claim)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Updates the index for one changed row.
    pub fn replace(&mut self, before: Option<&Row>, after: Option<&Row>) {
        for row in before.into_iter().filter(|row| claims_in(row.key.kind)) {
            for hash in self.hashes(row) {
                if let Some(keys) = self.by_claim.get_mut(&hash) {
                    keys.retain(|key| *key != row.key);
                    if keys.is_empty() {
                        self.by_claim.remove(&hash);
                    }
                }
            }
        }
        for row in after.into_iter().filter(|row| claims_in(row.key.kind)) {
            for hash in self.hashes(row) {
                self.by_claim.entry(hash).or_default().push(row.key.clone());
            }
        }
    }

    fn hashes(&self, row: &Row) -> Vec<u64> {
        claims(&row.value()).map(|claim| self.hasher.hash_one(claim)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::table::Placed;

    fn row(key: Key, text: &str) -> Row {
        let json = json!({"plugins": {"key-auth": {"key": text}, "cors": {}}}).to_string().into();
        Row { key, json, created: 1, modified: 1, expires: None }
    }

    #[test]
    fn the_index_follows_every_change() {
        let (jack, card) = (Key::new(Kind::Consumer, "jack"), Key::credential("rose", "c"));
        let first = [row(jack.clone(), "a"), row(card.clone(), "b"), row(Key::new(Kind::Route, "1"), "a")];
        let mut holders = Holders::of(&first.iter().cloned().map(Placed).collect());
        let of = |holders: &Holders, text| {
            holders.of_claim(&Claim { plugin: "key-auth", field: "key", text }).to_vec()
        };
        assert_eq!((of(&holders, "a"), of(&holders, "b")), (vec![jack.clone()], vec![card.clone()]));
        assert_eq!(holders.of_claim(&Claim { plugin: "jwt-auth", field: "key", text: "a" }), []);
        holders.replace(Some(&first[0]), Some(&row(jack.clone(), "b")));
        assert_eq!((of(&holders, "a"), of(&holders, "b")), (vec![], vec![card, jack.clone()]));
        holders.replace(Some(&first[1]), None);
        assert_eq!(of(&holders, "b"), [jack]);
        holders.replace(Some(&first[2]), None);
        assert_eq!(holders.by_claim.len(), 1);
    }
}
