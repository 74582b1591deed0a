//! Everything operators want at one moment.
//!
//! The control plane folds changes into this and compiles snapshots from it.
//! Entries are shared, so a copy of the whole costs a pointer an entry, and
//! what did not change is the same allocation before and after.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{Entry, Key, Kind, Resource, Route};

/// An entry in its place among those of its kind.
#[derive(Debug, Clone, PartialEq)]
struct ById(Arc<Entry>);

/// All current resources.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// By [`Kind::index`], then by id, which the entries have already.
    kinds: [BTreeSet<ById>; Kind::ALL.len()],
    /// The plugins switched on, if the store says; else the boot file does.
    pub plugins: Option<Vec<String>>,
    /// The plugins that streams may use, likewise.
    pub stream_plugins: Option<Vec<String>>,
}

impl Desired {
    /// Puts `entry` under its key and gives back what was there.
    pub fn put(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        self.kinds[entry.key.kind.index()].replace(ById(entry)).map(|before| before.0)
    }

    /// Puts many; much faster than one by one where there are none of their kinds yet, if they come in order.
    pub fn put_all(&mut self, entries: Vec<Arc<Entry>>) {
        let mut kinds = Kind::ALL.map(|_| Vec::new());
        for entry in entries {
            kinds[entry.key.kind.index()].push(ById(entry));
        }
        for (there, entries) in self.kinds.iter_mut().zip(kinds) {
            if there.is_empty() {
                *there = entries.into_iter().collect();
            } else {
                entries.into_iter().for_each(|entry| _ = there.replace(entry));
            }
        }
    }

    /// Puts the entry under `key` to rest, and gives it as it was and as it is now; `None` if it stays as it is.
    pub fn put_to_rest(&mut self, key: &Key) -> Option<(Arc<Entry>, Arc<Entry>)> {
        let resting = Arc::new(self.get(key.kind, &key.id)?.at_rest()?);
        Some((self.put(resting.clone())?, resting))
    }

    /// The same for a look at many: what is read here is not kept in memory by those this was copied from.
    #[must_use]
    pub fn apart(&self) -> Desired {
        let copies = |kind: &BTreeSet<ById>| {
            kind.iter().map(|ById(entry)| ById(Arc::new(Entry::clone(entry)))).collect()
        };
        Desired {
            kinds: self.kinds.each_ref().map(copies),
            plugins: self.plugins.clone(),
            stream_plugins: self.stream_plugins.clone(),
        }
    }

    /// Takes out what is under `key`.
    pub fn delete(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.kinds[key.kind.index()].take(key.id.as_str()).map(|before| before.0)
    }

    /// The hosts a route is for: its own, else those of its service. None is every host.
    pub fn hosts_of<'a>(&'a self, route: &'a Route) -> &'a [String] {
        if !route.hosts.is_empty() {
            return &route.hosts;
        }
        let service = route.service_id.as_ref().and_then(|id| self.get(Kind::Service, id));
        match service.map(|entry| entry.resource()) {
            Some(Resource::Service(service)) => &service.hosts,
            _ => &[],
        }
    }

    /// The entry of `kind` under `id`.
    pub fn get(&self, kind: Kind, id: &str) -> Option<&Arc<Entry>> {
        self.kinds[kind.index()].get(id).map(|found| &found.0)
    }

    /// The entries of `kind`, in the order of their ids.
    pub fn of(&self, kind: Kind) -> impl DoubleEndedIterator<Item = &Arc<Entry>> + ExactSizeIterator {
        self.kinds[kind.index()].iter().map(|entry| &entry.0)
    }

    /// All entries, by kind and id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.kinds.iter().flatten().map(|entry| &entry.0)
    }

    /// How many entries of `kind` there are.
    pub fn count(&self, kind: Kind) -> usize {
        self.kinds[kind.index()].len()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.kinds.iter().map(BTreeSet::len).sum()
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, the lists of plugins too.
    pub fn clear(&mut self) {
        *self = Desired::default();
    }
}

impl Borrow<str> for ById {
    fn borrow(&self) -> &str {
        &self.0.key.id
    }
}

impl Eq for ById {}

impl Ord for ById {
    fn cmp(&self, other: &ById) -> Ordering {
        self.0.key.id.cmp(&other.0.key.id)
    }
}

impl PartialOrd for ById {
    fn partial_cmp(&self, other: &ById) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(id: &str, modified: u64) -> Arc<Entry> {
        let value = json!({"uri": "/", "plugins": {}});
        let resource = Resource::parse(Kind::Route, id, &value).unwrap();
        Arc::new(Entry::of_text(Key::new(Kind::Route, id), resource, value.to_string().into(), 1, modified))
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

    #[test]
    fn an_entry_at_rest_is_another_allocation_and_a_copy_apart_wakes_nobody() {
        let mut desired = Desired::default();
        desired.put(entry("a", 1));
        let key = Key::new(Kind::Route, "a");
        let (before, now) = desired.put_to_rest(&key).unwrap();
        assert_eq!(before, now);
        assert!(Arc::ptr_eq(&now, desired.get(Kind::Route, "a").unwrap()));
        assert!(desired.put_to_rest(&key).is_none());
        let apart = desired.apart();
        apart.iter().for_each(|entry| _ = entry.resource());
        assert!(desired.put_to_rest(&key).is_none());
        desired.iter().for_each(|entry| _ = entry.resource());
        assert!(desired.put_to_rest(&key).is_some());
        assert!(desired.put_to_rest(&Key::new(Kind::Service, "a")).is_none());
    }
}
