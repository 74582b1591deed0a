//! hot path
//!
//! A hash map whose copies share what they have in common.
//!
//! A trie over the bits of the key's hash, 64 ways a level, with short lists at
//! its ends: 100,000 keys lie two levels deep. Cloning it is cloning one `Arc`;
//! changing a key copies only the nodes on the way to it, and only those another
//! copy still holds. The caller brings the hash, which must be keyed: then
//! nobody can choose keys that meet in one list.

use std::sync::Arc;

use smallvec::SmallVec;

/// Bits of the hash a level takes.
const BITS: u32 = 6;
const WAYS: usize = 1 << BITS;
/// A list longer than this becomes a branch, while the hash has bits left.
const LIST_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Map<V> {
    root: Node<V>,
    len: usize,
}

#[derive(Debug)]
enum Node<V> {
    List(Arc<[Entry<V>]>),
    Branch(Arc<[Node<V>; WAYS]>),
}

#[derive(Debug)]
struct Entry<V> {
    hash: u64,
    leaf: Arc<Leaf<V>>,
}

/// Key and value side by side, so that comparing the one fetches the other.
#[derive(Debug, Clone)]
struct Leaf<V> {
    key: SmallVec<[u8; 40]>,
    value: V,
}

impl<V: Clone> Map<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&V> {
        let mut node = &self.root;
        let mut bits = hash;
        loop {
            match node {
                Node::Branch(ways) => {
                    node = &ways[bits as usize % WAYS];
                    bits >>= BITS;
                }
                Node::List(list) => {
                    let entry = list.iter().find(|entry| entry.is(hash, key))?;
                    return Some(&entry.leaf.value);
                }
            }
        }
    }

    /// A value to change, the copies of others left as they are.
    pub(super) fn get_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut V> {
        let list = self.root.list_mut(hash);
        let at = list.iter().position(|entry| entry.is(hash, key))?;
        Some(&mut Arc::make_mut(&mut Arc::make_mut(list)[at].leaf).value)
    }

    /// Adds a key that is not there yet.
    pub(super) fn insert(&mut self, hash: u64, key: &[u8], value: V) {
        self.len += 1;
        let mut node = &mut self.root;
        let mut depth = 0;
        while let Node::Branch(ways) = node {
            node = &mut Arc::make_mut(ways)[way(hash, depth)];
            depth += 1;
        }
        if let Node::List(list) = node {
            let new = Entry { hash, leaf: Arc::new(Leaf { key: key.into(), value }) };
            let longer: Vec<_> = list.iter().cloned().chain(std::iter::once(new)).collect();
            let split = longer.len() > LIST_MAX && (depth + 1) * BITS < u64::BITS;
            *node = if split { Node::split(longer, depth) } else { Node::List(longer.into()) };
        }
    }

    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) {
        let list = self.root.list_mut(hash);
        let before = list.len();
        *list = list.iter().filter(|entry| !entry.is(hash, key)).cloned().collect();
        self.len -= before - list.len();
    }
}

impl<V> Node<V> {
    /// The list this hash leads to; nodes on the way are made this map's own.
    fn list_mut(&mut self, hash: u64) -> &mut Arc<[Entry<V>]> {
        let (mut node, mut depth) = (self, 0);
        loop {
            match node {
                Node::List(list) => return list,
                Node::Branch(ways) => {
                    node = &mut Arc::make_mut(ways)[way(hash, depth)];
                    depth += 1;
                }
            }
        }
    }

    fn split(list: Vec<Entry<V>>, depth: u32) -> Node<V> {
        let mut ways: [Vec<Entry<V>>; WAYS] = std::array::from_fn(|_| Vec::new());
        for entry in list {
            ways[way(entry.hash, depth)].push(entry);
        }
        Node::Branch(Arc::new(ways.map(|list| Node::List(list.into()))))
    }
}

impl<V> Entry<V> {
    #[inline]
    fn is(&self, hash: u64, key: &[u8]) -> bool {
        self.hash == hash && *self.leaf.key == *key
    }
}

impl<V> Default for Map<V> {
    fn default() -> Map<V> {
        Map { root: Node::List(Arc::default()), len: 0 }
    }
}

// By hand, since copies share values and need not be able to clone them.

impl<V> Clone for Map<V> {
    fn clone(&self) -> Map<V> {
        Map { root: self.root.clone(), len: self.len }
    }
}

impl<V> Clone for Node<V> {
    fn clone(&self) -> Node<V> {
        match self {
            Node::List(list) => Node::List(list.clone()),
            Node::Branch(ways) => Node::Branch(ways.clone()),
        }
    }
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Entry<V> {
        Entry { hash: self.hash, leaf: self.leaf.clone() }
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
        for spread in [u64::MAX, 0x3f, 0] {
            let mut rng = fastrand::Rng::with_seed(7);
            let (mut map, mut model) = (Map::default(), HashMap::new());
            let mut old = (map.clone(), model.clone());
            for step in 0..20_000u32 {
                let key = rng.u16(..4000).to_be_bytes();
                let hash = (u64::from(key[0]) << 40 ^ u64::from(key[1])).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    & spread;
                let value = rng.bool().then_some(step);
                match (map.get_mut(hash, &key), value) {
                    (Some(old), Some(value)) => *old = value,
                    (None, Some(value)) => map.insert(hash, &key, value),
                    (_, None) => map.remove(hash, &key),
                }
                match value {
                    Some(value) => model.insert((hash, key), value),
                    None => model.remove(&(hash, key)),
                };
                assert_eq!(map.len(), model.len());
                if step == 10_000 {
                    old = (map.clone(), model.clone());
                }
            }
            for (map, model) in [old, (map, model)] {
                for key in (0..4000u16).map(u16::to_be_bytes) {
                    let hash = (u64::from(key[0]) << 40 ^ u64::from(key[1]))
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        & spread;
                    assert_eq!(map.get(hash, &key), model.get(&(hash, key)));
                }
            }
        }
    }
}
