//! Which resources refer to which.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use model::Key;

/// References between resources, in both directions.
#[derive(Debug, Default)]
pub(super) struct Users {
    users: HashMap<Arc<Key>, BTreeSet<Key>>,
    refers: HashMap<Key, Box<[Arc<Key>]>>,
}

impl Users {
    /// The resources that refer to `key`.
    pub fn of(&self, key: &Key) -> impl Iterator<Item = &Key> {
        self.users.get(key).into_iter().flatten()
    }

    /// Replaces the references of `user`, whether their targets exist or not. Rejected resources
    /// are included: they may become valid once a target changes.
    pub fn refer(&mut self, user: &Key, now: Vec<Key>) {
        let before = self.refers.get(user).map(Box::as_ref).unwrap_or_default();
        if before.iter().map(Arc::as_ref).eq(&now) {
            return;
        }
        for key in before.iter().filter(|key| !now.contains(key)) {
            if let Some(users) = self.users.get_mut(key) {
                users.remove(user);
                if users.is_empty() {
                    self.users.remove(key);
                }
            }
        }
        // Many refer to the same few resources.
        let refer = |key: Key| match self.users.get_key_value(&key).map(|(key, _)| key.clone()) {
            Some(known) => {
                self.users.get_mut(&known).map(|users| users.insert(user.clone()));
                known
            }
            None => {
                let key = Arc::new(key);
                self.users.insert(key.clone(), BTreeSet::from([user.clone()]));
                key
            }
        };
        let now: Box<[Arc<Key>]> = now.into_iter().map(refer).collect();
        match now.is_empty() {
            true => self.refers.remove(user),
            false => self.refers.insert(user.clone(), now),
        };
    }
}
