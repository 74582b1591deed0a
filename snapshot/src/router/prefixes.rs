//! hot path
//!
//! All stored keys that are prefixes of a text, the longest first.
//!
//! A few keys are compared one by one. Many are stored by hash: the text's prefixes are hashed in
//! one pass, at the lengths of the stored keys, and the map's filter selects those to look up. So a
//! look-up costs the length of the text, regardless of the number of keys and of near misses. As
//! with [`Map`], copies share their contents.

use std::sync::Arc;

use smallvec::SmallVec;

use super::hash::Hasher;
use super::map::Map;

#[derive(Debug, Clone)]
pub(super) enum Prefixes<V> {
    /// Longest first.
    Few(Arc<[Entry<V>]>),
    Many(Arc<Many<V>>),
}

#[derive(Debug, Clone)]
pub(super) struct Entry<V> {
    key: SmallVec<[u8; 40]>,
    value: V,
}

#[derive(Debug, Clone)]
pub(super) struct Many<V> {
    map: Map<V>,
    /// The lengths of all keys, ascending, and how many keys have each.
    lengths: Vec<(usize, usize)>,
}

/// With more keys than this, hashes are used.
const FEW: usize = 8;

impl<V: Clone> Prefixes<V> {
    pub(super) fn len(&self) -> usize {
        match self {
            Prefixes::Few(list) => list.len(),
            Prefixes::Many(many) => many.map.len(),
        }
    }

    /// The length of the longest key.
    pub(super) fn longest(&self) -> usize {
        match self {
            Prefixes::Few(list) => list.first().map_or(0, |known| known.key.len()),
            Prefixes::Many(many) => many.lengths.last().map_or(0, |(len, _)| *len),
        }
    }

    /// Offers each key that is a prefix of the text, longest first, until one is taken.
    #[inline]
    pub(super) fn find<'s, T>(
        &'s self,
        text: &[u8],
        hasher: &Hasher,
        mut take: impl FnMut(usize, &'s V) -> Option<T>,
    ) -> Option<T> {
        let many = match self {
            Prefixes::Few(list) => {
                let fitting = list.iter().filter(|known| text.starts_with(&known.key));
                return { fitting }.find_map(|known| take(known.key.len(), &known.value));
            }
            Prefixes::Many(many) => &**many,
        };
        let mut promising: SmallVec<[(usize, u64); 16]> = SmallVec::new();
        let mut walk = hasher.walk(text);
        for &(len, _) in &many.lengths {
            if len > text.len() {
                break;
            }
            let hash = walk.to(len);
            if many.map.may_have_hash(hash) {
                promising.push((len, hash));
            }
        }
        promising.iter().rev().find_map(|&(len, hash)| take(len, many.map.get(hash, &text[..len])?))
    }

    /// The value of a key itself.
    pub(super) fn get(&self, key: &[u8], hasher: &Hasher) -> Option<&V> {
        match self {
            Prefixes::Few(list) => list.iter().find(|known| *known.key == *key).map(|known| &known.value),
            Prefixes::Many(many) => many.map.get(hasher.hash(key), key),
        }
    }

    /// A value to change; other copies keep theirs.
    pub(super) fn get_mut(&mut self, key: &[u8], hasher: &Hasher) -> Option<&mut V> {
        match self {
            Prefixes::Few(list) => {
                let at = list.iter().position(|known| *known.key == *key)?;
                Some(&mut Arc::make_mut(list)[at].value)
            }
            Prefixes::Many(many) => Arc::make_mut(many).map.get_mut(hasher.hash(key), key),
        }
    }

    /// Adds a key that is not stored yet.
    pub(super) fn insert(&mut self, key: &[u8], value: V, hasher: &Hasher) {
        match self {
            Prefixes::Few(list) => {
                let at = list.partition_point(|known| known.key.len() >= key.len());
                let mut longer = list.to_vec();
                longer.insert(at, Entry { key: key.into(), value });
                *self = match longer.len() {
                    ..=FEW => Prefixes::Few(longer.into()),
                    _ => Prefixes::Many(Arc::new(Many::new(longer, hasher))),
                };
            }
            Prefixes::Many(many) => Arc::make_mut(many).insert(key, value, hasher),
        }
    }

    pub(super) fn remove(&mut self, key: &[u8], hasher: &Hasher) {
        match self {
            Prefixes::Few(list) => {
                *list = list.iter().filter(|known| *known.key != *key).cloned().collect();
            }
            Prefixes::Many(many) => Arc::make_mut(many).remove(key, hasher),
        }
        if self.len() == 0 {
            *self = Prefixes::default();
        }
    }
}

impl<V: Clone> Many<V> {
    fn new(list: Vec<Entry<V>>, hasher: &Hasher) -> Many<V> {
        let mut many = Many { map: Map::default(), lengths: Vec::new() };
        list.into_iter().for_each(|known| many.insert(&known.key, known.value, hasher));
        many
    }

    fn insert(&mut self, key: &[u8], value: V, hasher: &Hasher) {
        self.map.insert(hasher.hash(key), key, value);
        match self.lengths.binary_search_by_key(&key.len(), |(len, _)| *len) {
            Ok(at) => self.lengths[at].1 += 1,
            Err(at) => self.lengths.insert(at, (key.len(), 1)),
        }
    }

    fn remove(&mut self, key: &[u8], hasher: &Hasher) {
        let before = self.map.len();
        self.map.remove(hasher.hash(key), key);
        if before == self.map.len() {
            return;
        }
        if let Ok(at) = self.lengths.binary_search_by_key(&key.len(), |(len, _)| *len) {
            self.lengths[at].1 -= 1;
            if self.lengths[at].1 == 0 {
                self.lengths.remove(at);
            }
        }
    }
}

impl<V> Default for Prefixes<V> {
    fn default() -> Prefixes<V> {
        Prefixes::Few(Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Keys = BTreeMap<Vec<u8>, u32>;

    fn found(prefixes: &Prefixes<u32>, text: &[u8], hasher: &Hasher) -> Vec<(usize, u32)> {
        let mut all = Vec::new();
        let taken: Option<()> = prefixes.find(text, hasher, |len, value| {
            all.push((len, *value));
            None
        });
        assert!(taken.is_none());
        all
    }

    fn expected(keys: &Keys, text: &[u8]) -> Vec<(usize, u32)> {
        (0..=text.len()).rev().filter_map(|end| Some((end, *keys.get(&text[..end])?))).collect()
    }

    #[test]
    fn finds_every_prefix_and_copies_are_independent() {
        let hasher = Hasher::default();
        // Few keys are compared one by one; many make the filter grow.
        for (longest, steps) in [(3, 500), (8, 20_000), (14, 20_000)] {
            let mut rng = fastrand::Rng::with_seed(3);
            let key = |rng: &mut fastrand::Rng| -> Vec<u8> {
                (0..rng.usize(..longest)).map(|_| *rng.choice(b"ab/").unwrap_or(&0)).collect()
            };
            let (mut prefixes, mut keys) = (Prefixes::default(), Keys::new());
            let mut old = (prefixes.clone(), keys.clone());
            for step in 0..steps {
                let key = key(&mut rng);
                let value = (rng.u8(..3) > 0).then_some(step);
                match (prefixes.get_mut(&key, &hasher), value) {
                    (Some(old), Some(value)) => *old = value,
                    (None, Some(value)) => prefixes.insert(&key, value, &hasher),
                    (_, None) => prefixes.remove(&key, &hasher),
                }
                match value {
                    Some(value) => keys.insert(key, value),
                    None => keys.remove(&key),
                };
                assert_eq!(prefixes.len(), keys.len());
                assert_eq!(prefixes.longest(), keys.keys().map(Vec::len).max().unwrap_or(0));
                if step == steps / 2 {
                    old = (prefixes.clone(), keys.clone());
                }
            }
            for _ in 0..2_000 {
                let text = [key(&mut rng), key(&mut rng)].concat();
                for (prefixes, keys) in [&old, &(prefixes.clone(), keys.clone())] {
                    assert_eq!(found(prefixes, &text, &hasher), expected(keys, &text));
                }
            }
            keys.keys().for_each(|key| prefixes.remove(key, &hasher));
            assert!(matches!(&prefixes, Prefixes::Few(list) if list.is_empty()), "nothing is left behind");
        }
    }
}
