//! hot path
//!
//! A hash map whose copies share what they have in common.
//!
//! A trie over the bits of the key's hash, sixteen ways a level, with short
//! lists at its ends. Cloning it is cloning one `Arc`; changing a key copies
//! only the nodes on the way to it, and only those another copy still holds.
//! The caller brings the hash, which must be keyed: then nobody can choose keys
//! that meet in one list.

use std::sync::Arc;

/// Bits of the hash a level takes.
const BITS: u32 = 4;
const WAYS: usize = 1 << BITS;
/// A list longer than this becomes a branch, while the hash has bits left.
const LIST_MAX: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct Map<V> {
    root: Arc<Node<V>>,
    len: usize,
}

#[derive(Debug, Clone)]
enum Node<V> {
    List(Vec<Entry<V>>),
    Branch(Box<[Arc<Node<V>>; WAYS]>),
}

#[derive(Debug, Clone)]
struct Entry<V> {
    hash: u64,
    key: Arc<[u8]>,
    value: V,
}

impl<V> Default for Map<V> {
    fn default() -> Map<V> {
        Map { root: Arc::default(), len: 0 }
    }
}

impl<V> Default for Node<V> {
    fn default() -> Node<V> {
        Node::List(Vec::new())
    }
}

impl<V: Clone> Map<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&V> {
        let mut node = &*self.root;
        let mut bits = hash;
        loop {
            match node {
                Node::Branch(ways) => {
                    node = &ways[bits as usize % WAYS];
                    bits >>= BITS;
                }
                Node::List(list) => {
                    let entry = list.iter().find(|entry| entry.hash == hash && *entry.key == *key)?;
                    return Some(&entry.value);
                }
            }
        }
    }

    /// Puts in place of the key's value what `change` makes of it; `None` is no value.
    pub(super) fn update(&mut self, hash: u64, key: &[u8], change: impl FnOnce(Option<V>) -> Option<V>) {
        let (before, after) = Arc::make_mut(&mut self.root).update(0, hash, key, change);
        self.len = self.len - usize::from(before) + usize::from(after);
    }
}

impl<V: Clone> Node<V> {
    /// Says whether the key had a value before, and whether it has one now.
    fn update(
        &mut self,
        depth: u32,
        hash: u64,
        key: &[u8],
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> (bool, bool) {
        let list = match self {
            Node::Branch(ways) => {
                let way = &mut ways[way(hash, depth)];
                return Arc::make_mut(way).update(depth + 1, hash, key, change);
            }
            Node::List(list) => list,
        };
        let at = list.iter().position(|entry| entry.hash == hash && *entry.key == *key);
        let old = at.map(|at| list.swap_remove(at));
        let (before, key, value) = match old {
            Some(Entry { key, value, .. }) => (true, key, change(Some(value))),
            None => (false, Arc::from(key), change(None)),
        };
        let after = value.is_some();
        list.extend(value.map(|value| Entry { hash, key, value }));
        if list.len() > LIST_MAX && (depth + 1) * BITS < u64::BITS {
            *self = Node::split(std::mem::take(list), depth);
        }
        (before, after)
    }

    fn split(list: Vec<Entry<V>>, depth: u32) -> Node<V> {
        let mut ways: [Vec<Entry<V>>; WAYS] = Default::default();
        for entry in list {
            ways[way(entry.hash, depth)].push(entry);
        }
        Node::Branch(Box::new(ways.map(|list| Arc::new(Node::List(list)))))
    }
}

fn way(hash: u64, depth: u32) -> usize {
    (hash >> (depth * BITS)) as usize % WAYS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_is_a_map_and_copies_keep_theirs() {
        // Few different hashes, so that lists, branches and full collisions all come up.
        for spread in [u64::MAX, 0xf, 0] {
            let mut rng = fastrand::Rng::with_seed(7);
            let (mut map, mut model) = (Map::default(), HashMap::new());
            let mut old = (map.clone(), model.clone());
            for step in 0..5_000u32 {
                let key = rng.u16(..1000).to_be_bytes();
                let hash = (u64::from(key[0]) << 40 ^ u64::from(key[1])).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    & spread;
                let value = rng.bool().then_some(step);
                map.update(hash, &key, |before| {
                    assert_eq!(before, model.get(&(hash, key)).copied());
                    value
                });
                match value {
                    Some(value) => model.insert((hash, key), value),
                    None => model.remove(&(hash, key)),
                };
                assert_eq!(map.len(), model.len());
                if step == 2_500 {
                    old = (map.clone(), model.clone());
                }
            }
            for (map, model) in [old, (map, model)] {
                for key in (0..1000u16).map(u16::to_be_bytes) {
                    let hash = (u64::from(key[0]) << 40 ^ u64::from(key[1]))
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        & spread;
                    assert_eq!(map.get(hash, &key), model.get(&(hash, key)));
                }
            }
        }
    }
}
