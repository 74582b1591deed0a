//! The table of consumers and their credentials, and which of them has which key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use model::{Entry, Invalid, Key, Kind};
use sdk::consumers::{Identity, Secret};
use sdk::{Consumer, Consumers};
use smallvec::SmallVec;

use super::metadata::ReadSet;
use crate::slots::Slots;

/// A credential with the key by which its auth plugin looks it up.
pub(super) struct KeyedCredential {
    pub auth_key: AuthKey,
    pub secret: Secret,
}

/// The lookup key of an auth plugin, which only one consumer or credential may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AuthKey {
    pub plugin: &'static str,
    pub key: Arc<[u8]>,
}

/// Which resources claim which key, so that a change visits only the affected ones.
#[derive(Debug, Default)]
struct Claims {
    /// Consumers come before credentials, then the smaller id: the first one gets the key.
    by_auth_key: HashMap<AuthKey, SmallVec<[Key; 1]>>,
    by_key: HashMap<Key, SmallVec<[AuthKey; 1]>>,
}

/// The last valid version of a consumer.
pub(super) struct ConsumerUnit {
    pub entry: Arc<Entry>,
    pub consumer: Arc<Consumer>,
    pub keyed: Box<[KeyedCredential]>,
    /// Its group does not exist: it is identified, then refused.
    pub refused: bool,
    /// The metadata its plugins were built with.
    pub read: ReadSet,
}

/// The last valid version of a credential.
pub(super) struct CredentialUnit {
    pub entry: Arc<Entry>,
    pub keyed: Option<KeyedCredential>,
}

/// Consumers, their credentials, and the index by which auth plugins find them.
#[derive(Default)]
pub(super) struct ConsumerTable {
    pub units: BTreeMap<String, ConsumerUnit>,
    pub credentials: BTreeMap<String, CredentialUnit>,
    pub index: Arc<Consumers>,
    pub slots: Slots,
    claims: Claims,
}

impl ConsumerTable {
    /// Updates the index with these consumers and credentials, and returns all that the change may concern. If two
    /// have the same key, the first keeps it.
    pub fn update_index(&mut self, mut touched: BTreeSet<Key>) -> BTreeSet<Key> {
        let mut auth_keys: Vec<AuthKey> = Vec::new();
        for key in &touched {
            let now: SmallVec<[AuthKey; 1]> =
                self.keyed_credentials_of(key).iter().map(|keyed| keyed.auth_key.clone()).collect();
            let index = Arc::make_mut(&mut self.index);
            match self.units.get(&key.id) {
                _ if key.kind != Kind::Consumer => {}
                Some(unit) => index.add(unit.consumer.clone()),
                None => index.remove(&key.id),
            }
            auth_keys.extend(now.iter().cloned());
            auth_keys.extend(self.claims.set(key, now));
        }
        for auth_key in &auth_keys {
            let claimants = self.claims.by_auth_key.get(auth_key);
            touched.extend(claimants.into_iter().flatten().cloned());
            let identity = claimants
                .and_then(|claimants| claimants.first())
                .and_then(|key| self.identity(key, auth_key));
            let index = Arc::make_mut(&mut self.index);
            match identity {
                Some(identity) => index.add_credential(auth_key.plugin, &auth_key.key, identity),
                None => index.remove_credential(auth_key.plugin, &auth_key.key),
            }
        }
        touched
    }

    /// The credentials of a claimant whose consumer exists.
    fn keyed_credentials_of(&self, key: &Key) -> &[KeyedCredential] {
        match key.kind {
            Kind::Consumer => self.units.get(&key.id).map(|unit| &unit.keyed[..]),
            _ => {
                let owner = key.owner().filter(|owner| self.units.contains_key(*owner));
                owner.and_then(|_| self.credentials.get(&key.id)).map(|unit| unit.keyed.as_slice())
            }
        }
        .unwrap_or_default()
    }

    /// The credentials of a consumer, whether it exists or not.
    pub fn credentials_of(&self, consumer: &str) -> Vec<Key> {
        let first = Key::credential(consumer, "").id;
        let ids = self.credentials.range(first.clone()..).map(|(id, _)| id);
        let own = ids.take_while(|id| id.starts_with(&first));
        own.map(|id| Key::new(Kind::Credential, id.as_str())).collect()
    }

    /// The consumer that a consumer or credential identifies.
    fn consumer_of(&self, key: &Key) -> Option<&ConsumerUnit> {
        match key.kind {
            Kind::Consumer => self.units.get(&key.id),
            _ => self.units.get(key.owner()?),
        }
    }

    fn identity(&self, key: &Key, auth_key: &AuthKey) -> Option<Identity> {
        let keyed = self.keyed_credentials_of(key).iter().find(|keyed| keyed.auth_key == *auth_key)?;
        Some(Identity {
            consumer: self.consumer_of(key)?.consumer.clone(),
            credential_id: (key.kind == Kind::Credential).then(|| key.leaf().to_owned()),
            secret: keyed.secret.clone(),
        })
    }

    /// An error for the first of its keys that another claimant holds.
    pub fn duplicate_key(&self, key: &Key) -> Option<Invalid> {
        let mut auth_keys = self.claims.by_key.get(key)?.iter();
        let (auth_key, other) = auth_keys.find_map(|auth_key| {
            let owner = self.claims.by_auth_key.get(auth_key)?.first()?;
            (owner != key).then_some((auth_key, owner))
        })?;
        let other = self.consumer_of(other)?;
        let reason = format!(
            "duplicate key of plugin {} found with consumer: {}",
            auth_key.plugin, other.consumer.name
        );
        let invalid = Invalid::new(reason).within(auth_key.plugin).under("/plugins");
        Some(invalid.hint("give each consumer a key of its own"))
    }
}

impl Claims {
    /// Replaces the keys of a claimant. Returns its previous keys.
    fn set(&mut self, key: &Key, now: SmallVec<[AuthKey; 1]>) -> SmallVec<[AuthKey; 1]> {
        let before = self.by_key.remove(key).unwrap_or_default();
        for auth_key in &before {
            if let Some(claimants) = self.by_auth_key.get_mut(auth_key) {
                claimants.retain(|claimant| claimant != key);
                if claimants.is_empty() {
                    self.by_auth_key.remove(auth_key);
                }
            }
        }
        for auth_key in &now {
            let claimants = self.by_auth_key.entry(auth_key.clone()).or_default();
            if let Err(at) = claimants.binary_search(key) {
                claimants.insert(at, key.clone());
            }
        }
        if !now.is_empty() {
            self.by_key.insert(key.clone(), now);
        }
        before
    }
}
