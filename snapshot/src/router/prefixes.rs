//! hot path
//!
//! A radix tree over bytes: all stored keys that a text begins with, in one walk.
//!
//! As [`super::map::Map`], copies share their nodes, and a change copies only
//! the nodes on its way. The walk takes a time linear in the text, whatever is
//! stored.

use std::sync::Arc;

use smallvec::SmallVec;

#[derive(Debug, Clone)]
pub(super) struct Prefixes<V> {
    root: Arc<Node<V>>,
    len: usize,
}

#[derive(Debug, Clone)]
struct Node<V> {
    /// What this node adds to the key of the one above; empty only at the root.
    label: SmallVec<[u8; 16]>,
    value: Option<V>,
    /// The first byte of each child's label.
    firsts: SmallVec<[u8; 16]>,
    children: Vec<Arc<Node<V>>>,
}

impl<V> Default for Prefixes<V> {
    fn default() -> Prefixes<V> {
        Prefixes { root: Arc::new(Node::new(&[])), len: 0 }
    }
}

impl<V: Clone> Prefixes<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The values of all keys the text begins with, shortest first.
    #[inline]
    pub(super) fn of<'s>(&'s self, text: &[u8]) -> SmallVec<[&'s V; 8]> {
        let mut found = SmallVec::new();
        let (mut node, mut rest) = (&*self.root, text);
        loop {
            found.extend(&node.value);
            let Some(first) = rest.first() else { return found };
            let Some(child) = node.child(*first) else { return found };
            node = &node.children[child];
            match rest.strip_prefix(&node.label[..]) {
                Some(after) => rest = after,
                None => return found,
            }
        }
    }

    /// Puts in place of the key's value what `change` makes of it; `None` is no value.
    pub(super) fn update(&mut self, key: &[u8], change: impl FnOnce(Option<V>) -> Option<V>) {
        let (before, after) = Arc::make_mut(&mut self.root).update(key, change);
        self.len = self.len - usize::from(before) + usize::from(after);
    }
}

impl<V> Node<V> {
    fn new(label: &[u8]) -> Node<V> {
        Node { label: label.into(), value: None, firsts: SmallVec::new(), children: Vec::new() }
    }

    #[inline]
    fn child(&self, first: u8) -> Option<usize> {
        self.firsts.iter().position(|&byte| byte == first)
    }
}

impl<V: Clone> Node<V> {
    /// `key` is what follows this node's label. Says whether there was a value, and is now.
    fn update(&mut self, key: &[u8], change: impl FnOnce(Option<V>) -> Option<V>) -> (bool, bool) {
        let Some(&first) = key.first() else {
            let before = self.value.is_some();
            self.value = change(self.value.take());
            return (before, self.value.is_some());
        };
        let at = self.child(first).unwrap_or_else(|| {
            self.firsts.push(first);
            self.children.push(Arc::new(Node::new(key)));
            self.children.len() - 1
        });
        let child = Arc::make_mut(&mut self.children[at]);
        let common = child.label.iter().zip(key).take_while(|(a, b)| a == b).count();
        if common < child.label.len() {
            child.split(common);
        }
        let done = child.update(&key[common..], change);
        if child.value.is_none() {
            match child.children.len() {
                0 => {
                    self.firsts.swap_remove(at);
                    self.children.swap_remove(at);
                }
                1 => child.join(),
                _ => {}
            }
        }
        done
    }

    /// Keeps the first bytes of the label here and moves the rest of the node below.
    fn split(&mut self, at: usize) {
        let mut below = Node::new(&self.label[at..]);
        self.label.truncate(at);
        std::mem::swap(&mut below.value, &mut self.value);
        std::mem::swap(&mut below.firsts, &mut self.firsts);
        std::mem::swap(&mut below.children, &mut self.children);
        self.firsts.push(below.label[0]);
        self.children.push(Arc::new(below));
    }

    /// Takes the place of the only child.
    fn join(&mut self) {
        if let Some(child) = self.children.pop() {
            let child = Arc::unwrap_or_clone(child);
            self.label.extend_from_slice(&child.label);
            self.value = child.value;
            self.firsts = child.firsts;
            self.children = child.children;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn model(keys: &BTreeMap<Vec<u8>, u32>, text: &[u8]) -> Vec<u32> {
        (0..=text.len()).filter_map(|end| keys.get(&text[..end]).copied()).collect()
    }

    #[test]
    fn it_finds_every_prefix_and_copies_keep_theirs() {
        let mut rng = fastrand::Rng::with_seed(3);
        let key = |rng: &mut fastrand::Rng| -> Vec<u8> {
            (0..rng.usize(..8)).map(|_| *rng.choice(b"ab/").unwrap_or(&0)).collect()
        };
        let (mut tree, mut keys) = (Prefixes::default(), BTreeMap::new());
        let mut old = (tree.clone(), keys.clone());
        for step in 0..20_000u32 {
            let key = key(&mut rng);
            let value = (rng.u8(..3) > 0).then_some(step);
            tree.update(&key, |before| {
                assert_eq!(before, keys.get(&key).copied());
                value
            });
            match value {
                Some(value) => keys.insert(key, value),
                None => keys.remove(&key),
            };
            assert_eq!(tree.len(), keys.len());
            if step == 10_000 {
                old = (tree.clone(), keys.clone());
            }
        }
        for _ in 0..2_000 {
            let text = [key(&mut rng), key(&mut rng)].concat();
            for (tree, keys) in [&old, &(tree.clone(), keys.clone())] {
                assert_eq!(tree.of(&text).into_iter().copied().collect::<Vec<_>>(), model(keys, &text));
            }
        }
        let left: Vec<_> = keys.keys().cloned().collect();
        for key in left {
            tree.update(&key, |_| None);
        }
        assert!(tree.root.children.is_empty() && tree.len() == 0, "nothing is left behind");
    }
}
