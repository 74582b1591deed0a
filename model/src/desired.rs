//! Everything operators want at one moment.
//!
//! The control plane folds changes into this and compiles snapshots from it.
//! Entries are shared, so a copy of the whole costs a pointer an entry, and
//! what did not change is the same allocation before and after.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Key, Kind, Resource, Route};

/// One resource as it was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub key: Key,
    pub resource: Resource,
    /// The store's revision when the key came to be.
    pub created: u64,
    /// The store's revision of this value.
    pub modified: u64,
}

/// All current resources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// By [`Kind::index`], then by id.
    kinds: [BTreeMap<String, Arc<Entry>>; Kind::ALL.len()],
    /// The plugins switched on, if the store says; else the boot file does.
    pub plugins: Option<Vec<String>>,
}

impl Desired {
    /// Puts `entry` under its key and gives back what was there.
    pub fn put(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.kinds[entry.key.kind.index()].insert(entry.key.id.clone(), entry)
    }

    /// Takes out what is under `key`.
    pub fn delete(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.kinds[key.kind.index()].remove(&key.id)
    }

    /// The hosts a route is for: its own, else those of its service. None is every host.
    pub fn hosts_of<'a>(&'a self, route: &'a Route) -> &'a [String] {
        if !route.hosts.is_empty() {
            return &route.hosts;
        }
        let service = route.service_id.as_ref().and_then(|id| self.get(Kind::Service, id));
        match service.map(|entry| &entry.resource) {
            Some(Resource::Service(service)) => &service.hosts,
            _ => &[],
        }
    }

    /// The entry of `kind` under `id`.
    pub fn get(&self, kind: Kind, id: &str) -> Option<&Arc<Entry>> {
        self.kinds[kind.index()].get(id)
    }

    /// The entries of `kind`, in the order of their ids.
    pub fn of(&self, kind: Kind) -> impl DoubleEndedIterator<Item = &Arc<Entry>> + ExactSizeIterator {
        self.kinds[kind.index()].values()
    }

    /// All entries, by kind and id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.kinds.iter().flat_map(BTreeMap::values)
    }

    /// How many entries of `kind` there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.kinds[kind.index()].len()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.kinds.iter().map(BTreeMap::len).sum()
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, the list of plugins too.
    pub fn clear(&mut self) {
        *self = Desired::default();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(id: &str, modified: u64) -> Arc<Entry> {
        let value = json!({"uri": "/", "plugins": {}});
        Arc::new(Entry {
            key: Key::new(Kind::Route, id),
            resource: Resource::parse(Kind::Route, id, &value).unwrap(),
            created: 1,
            modified,
        })
    }

    #[test]
    fn entries_come_in_the_order_of_their_ids() {
        let mut desired = Desired::default();
        for id in ["b", "a", "c"] {
            assert!(desired.put(entry(id, 1)).is_none());
        }
        assert_eq!(desired.put(entry("b", 2)).map(|old| old.modified), Some(1));
        let ids: Vec<&str> = desired.of(Kind::Route).map(|entry| entry.key.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(desired.get(Kind::Route, "b").map(|entry| entry.modified), Some(2));
        assert_eq!((desired.len(), desired.count(Kind::Service)), (3, 0));
        assert!(desired.delete(&Key::new(Kind::Route, "a")).is_some());
        assert!(desired.delete(&Key::new(Kind::Service, "b")).is_none());
        assert_eq!(desired.iter().count(), 2);
    }
}
