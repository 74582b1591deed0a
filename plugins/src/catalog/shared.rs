//! Values shared by resources with the same settings.
//!
//! A large configuration says the same again and again: `cors: {}` on a hundred thousand routes is one
//! instance, built once, and where that is all they have, one chain. Only what is pure
//! ([`sdk::Plugin::is_pure`]) and was built from its settings alone is shared: it has nothing that two
//! resources could notice.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use hashbrown::DefaultHashBuilder;

/// How many are remembered, each in the place that the hash of its key gives. Of two that meet in one place,
/// the later one stays.
const PLACES: usize = 64;

/// Instances or chains that are in use, by what they were made of.
pub(super) struct Shared<K, T: ?Sized> {
    /// Made when there is a first one.
    places: OnceLock<Places<K, T>>,
    hasher: DefaultHashBuilder,
}

type Places<K, T> = Box<[ArcSwapOption<Kept<K, T>>]>;

/// A value, kept as long as it is used elsewhere.
struct Kept<K, T: ?Sized> {
    key: K,
    value: Weak<T>,
}

impl<K: Hash + Eq, T: ?Sized> Shared<K, T> {
    /// The one in use that was made of this.
    pub fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Arc<T>>
    where
        K: Borrow<Q>,
    {
        let place = &self.places.get()?[self.place_of(key)];
        place.load().as_ref().filter(|kept| kept.key.borrow() == key)?.value.upgrade()
    }

    pub fn keep(&self, key: K, value: &Arc<T>) {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| ArcSwapOption::empty()).collect());
        let place = &places[self.place_of(&key)];
        place.store(Some(Arc::new(Kept { key, value: Arc::downgrade(value) })));
    }

    fn place_of<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        self.hasher.hash_one(key) as usize % PLACES
    }
}

impl<K, T: ?Sized> Default for Shared<K, T> {
    fn default() -> Shared<K, T> {
        Shared { places: OnceLock::new(), hasher: DefaultHashBuilder::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_found_by_what_it_was_made_of() {
        let shared: Shared<String, String> = Shared::default();
        assert!(shared.find("a").is_none());
        let value = Arc::new("made of a".to_owned());
        shared.keep("a".to_owned(), &value);
        assert!(shared.find("a").is_some_and(|found| Arc::ptr_eq(&found, &value)));
        assert!(shared.find("b").is_none());
        drop(value);
        assert!(shared.find("a").is_none(), "it is not in use any more");
    }

    #[test]
    fn however_many_there_are_only_so_many_are_remembered() {
        let shared: Shared<String, usize> = Shared::default();
        let all: Vec<Arc<usize>> = (0..10 * PLACES).map(Arc::new).collect();
        all.iter().for_each(|one| shared.keep(one.to_string(), one));
        let found: Vec<_> = (0..all.len()).filter_map(|one| shared.find(one.to_string().as_str())).collect();
        assert!(!found.is_empty() && found.len() <= PLACES);
        assert!(found.iter().all(|one| Arc::ptr_eq(one, &all[**one])));
    }
}
