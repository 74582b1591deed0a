//! Which resources refer to which secrets.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::{Key, Kind};

/// References to secrets by resource, and resources by reference.
#[derive(Debug, Default)]
pub(super) struct Referrers {
    by_key: HashMap<Key, BTreeSet<String>>,
    by_reference: BTreeMap<String, BTreeSet<Key>>,
    /// Other secrets are referred to, or a manager changed.
    changed: bool,
}

impl Referrers {
    /// Replaces what a resource refers to.
    pub fn set(&mut self, key: &Key, now: BTreeSet<String>) {
        self.changed |= key.kind == Kind::Secret;
        if now.is_empty() && !self.by_key.contains_key(key) {
            return;
        }
        let before = match now.is_empty() {
            true => self.by_key.remove(key),
            false => self.by_key.insert(key.clone(), now.clone()),
        };
        let before = before.unwrap_or_default();
        for reference in before.difference(&now) {
            if let Some(users) = self.by_reference.get_mut(reference) {
                users.remove(key);
                if users.is_empty() {
                    self.by_reference.remove(reference);
                    self.changed = true;
                }
            }
        }
        for reference in now.difference(&before) {
            let users = self.by_reference.entry(reference.clone()).or_default();
            self.changed |= users.is_empty();
            users.insert(key.clone());
        }
    }

    /// The resources that refer to a secret.
    pub fn users(&self, reference: &str) -> impl Iterator<Item = &Key> {
        self.by_reference.get(reference).into_iter().flatten()
    }

    /// All secrets that are referred to, if anything changed since this was asked last.
    pub fn take(&mut self) -> Option<BTreeSet<String>> {
        std::mem::take(&mut self.changed).then(|| self.by_reference.keys().cloned().collect())
    }
}
