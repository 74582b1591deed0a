//! Compiled resources of one kind, keyed by the id that each already contains.

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use hashbrown::hash_table::{Entry, HashTable};

/// Has an id of its own, which never changes.
pub(super) trait Named {
    fn id(&self) -> &str;
}

/// A map that keeps no keys beside its values.
pub(super) struct Units<T> {
    table: HashTable<T>,
    hasher: DefaultHashBuilder,
}

impl<T: Named> Units<T> {
    pub fn get(&self, id: &str) -> Option<&T> {
        self.table.find(self.hasher.hash_one(id), |unit| unit.id() == id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut T> {
        self.table.find_mut(self.hasher.hash_one(id), |unit| unit.id() == id)
    }

    /// Replaces the one with the same id.
    pub fn insert(&mut self, unit: T) {
        let hash = self.hasher.hash_one(unit.id());
        let hash_of = |unit: &T| self.hasher.hash_one(unit.id());
        match self.table.entry(hash, |known| known.id() == unit.id(), hash_of) {
            Entry::Occupied(mut there) => *there.get_mut() = unit,
            Entry::Vacant(place) => _ = place.insert(unit),
        }
    }

    pub fn remove(&mut self, id: &str) -> Option<T> {
        let found = self.table.find_entry(self.hasher.hash_one(id), |unit| unit.id() == id);
        found.ok().map(|found| found.remove().0)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.values().map(Named::id)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.table.iter()
    }
}

impl<T> Default for Units<T> {
    fn default() -> Units<T> {
        Units { table: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(String, u32);

    impl Named for One {
        fn id(&self) -> &str {
            &self.0
        }
    }

    #[test]
    fn behaves_as_a_map_by_id() {
        let mut units = Units::default();
        (0..1000).for_each(|n| units.insert(One(n.to_string(), n)));
        (0..1000).step_by(3).for_each(|n| units.insert(One(n.to_string(), n + 1)));
        (0..1000).step_by(2).for_each(|n| assert!(units.remove(&n.to_string()).is_some()));
        assert!(units.remove("0").is_none());
        units.get_mut("1").expect("it is there").1 = 7;
        for n in 0..1000_u32 {
            let wanted = match n {
                1 => Some(7),
                _ => (n % 2 == 1).then_some(n + u32::from(n % 3 == 0)),
            };
            assert_eq!(units.get(&n.to_string()).map(|unit| unit.1), wanted, "{n}");
        }
        assert_eq!((units.len(), units.values().count(), units.ids().count()), (500, 500, 500));
    }
}
