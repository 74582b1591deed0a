//! hot path
//!
//! A radix tree over bytes: all stored keys that a text begins with, in one walk.
//!
//! As [`super::map::Map`], copies share their nodes, and a change copies only
//! the nodes on its way. The walk takes a time linear in the text, whatever is
//! stored.

use std::sync::Arc;

use smallvec::SmallVec;

#[derive(Debug)]
pub(super) struct Prefixes<V> {
    root: Node<V>,
    len: usize,
}

#[derive(Debug)]
struct Node<V> {
    /// What this node adds to the key of the one above; empty only at the root.
    label: SmallVec<[u8; 16]>,
    /// The first byte of each child's label.
    firsts: SmallVec<[u8; 16]>,
    /// Side by side, so that going down is one step in memory.
    children: Arc<[Node<V>]>,
    value: Option<Arc<V>>,
}

impl<V: Clone> Prefixes<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The values of all keys the text begins with and the keys' lengths, shortest first.
    #[inline]
    pub(super) fn of<'s>(&'s self, text: &[u8]) -> SmallVec<[(usize, &'s V); 8]> {
        let mut found = SmallVec::new();
        let (mut node, mut rest) = (&self.root, text);
        loop {
            if let Some(value) = &node.value {
                found.push((text.len() - rest.len(), &**value));
            }
            let Some(child) = rest.first().and_then(|first| node.child(*first)) else { return found };
            node = &node.children[child];
            match rest.strip_prefix(&node.label[..]) {
                Some(after) => rest = after,
                None => return found,
            }
        }
    }

    /// A value to change, the copies of others left as they are.
    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let (mut node, mut rest) = (&mut self.root, key);
        while let Some(first) = rest.first() {
            let child = node.child(*first)?;
            rest = rest.strip_prefix(&node.children[child].label[..])?;
            node = &mut Arc::make_mut(&mut node.children)[child];
        }
        node.value.as_mut().map(Arc::make_mut)
    }

    /// Adds a key that is not there yet.
    pub(super) fn insert(&mut self, key: &[u8], value: V) {
        self.len += 1;
        let (mut node, mut rest) = (&mut self.root, key);
        while let Some(&first) = rest.first() {
            let at = match node.child(first) {
                Some(at) => at,
                None => node.push(Node::new(rest)),
            };
            node = &mut Arc::make_mut(&mut node.children)[at];
            let common = node.label.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if common < node.label.len() {
                node.split(common);
            }
            rest = &rest[common..];
        }
        node.value = Some(Arc::new(value));
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if self.root.remove(key) {
            self.len -= 1;
        }
    }
}

impl<V> Node<V> {
    fn new(label: &[u8]) -> Node<V> {
        Node { label: label.into(), firsts: SmallVec::new(), children: Arc::default(), value: None }
    }

    #[inline]
    fn child(&self, first: u8) -> Option<usize> {
        self.firsts.iter().position(|&byte| byte == first)
    }

    fn push(&mut self, child: Node<V>) -> usize {
        self.firsts.push(child.label[0]);
        self.children = self.children.iter().cloned().chain(std::iter::once(child)).collect();
        self.children.len() - 1
    }

    /// Keeps the first bytes of the label here and moves the rest of the node below.
    fn split(&mut self, at: usize) {
        let mut below = Node::new(&self.label[at..]);
        self.label.truncate(at);
        std::mem::swap(&mut below.value, &mut self.value);
        std::mem::swap(&mut below.firsts, &mut self.firsts);
        std::mem::swap(&mut below.children, &mut self.children);
        self.push(below);
    }

    /// Removes what stands under `key`, which follows this node's label, and nodes that are of
    /// no use any more. Says whether there was something.
    fn remove(&mut self, key: &[u8]) -> bool {
        let Some(&first) = key.first() else { return self.value.take().is_some() };
        let Some(at) = self.child(first) else { return false };
        let Some(rest) = key.strip_prefix(&self.children[at].label[..]) else { return false };
        let child = &mut Arc::make_mut(&mut self.children)[at];
        let removed = child.remove(rest);
        if child.value.is_none() {
            match child.children.len() {
                0 => {
                    self.firsts.remove(at);
                    let others = self.children.iter().enumerate().filter(|(i, _)| *i != at);
                    self.children = others.map(|(_, child)| child.clone()).collect();
                }
                1 => child.join(),
                _ => {}
            }
        }
        removed
    }

    /// Takes the place of the only child.
    fn join(&mut self) {
        if let Some(child) = self.children.first().cloned() {
            self.label.extend_from_slice(&child.label);
            *self = Node { label: std::mem::take(&mut self.label), ..child };
        }
    }
}

impl<V> Default for Prefixes<V> {
    fn default() -> Prefixes<V> {
        Prefixes { root: Node::new(&[]), len: 0 }
    }
}

// By hand, since copies share values and need not be able to clone them.

impl<V> Clone for Prefixes<V> {
    fn clone(&self) -> Prefixes<V> {
        Prefixes { root: self.root.clone(), len: self.len }
    }
}

impl<V> Clone for Node<V> {
    fn clone(&self) -> Node<V> {
        Node {
            label: self.label.clone(),
            firsts: self.firsts.clone(),
            children: self.children.clone(),
            value: self.value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn model(keys: &BTreeMap<Vec<u8>, u32>, text: &[u8]) -> Vec<(usize, u32)> {
        (0..=text.len()).filter_map(|end| Some((end, *keys.get(&text[..end])?))).collect()
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
            match (tree.get_mut(&key), value) {
                (Some(old), Some(value)) => *old = value,
                (None, Some(value)) => tree.insert(&key, value),
                (_, None) => tree.remove(&key),
            }
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
                assert_eq!(
                    tree.of(&text).into_iter().map(|(len, value)| (len, *value)).collect::<Vec<_>>(),
                    model(keys, &text)
                );
            }
        }
        let left: Vec<_> = keys.keys().cloned().collect();
        for key in left {
            tree.remove(&key);
        }
        assert!(tree.root.children.is_empty() && tree.len() == 0, "nothing is left behind");
    }
}
