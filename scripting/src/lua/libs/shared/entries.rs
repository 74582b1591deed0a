//! The entries of one shard: a hash map with the order of use.

use std::collections::VecDeque;

use hashbrown::HashTable;

/// Bytes that an entry takes besides its key and value.
const OVERHEAD: usize = 96;

/// A value as a script stored it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stored {
    Boolean(bool),
    Number(f64),
    Text(Box<[u8]>),
    List(VecDeque<Stored>),
}

impl Stored {
    pub(super) fn size(&self) -> usize {
        match self {
            Stored::Boolean(_) | Stored::Number(_) => 0,
            Stored::Text(text) => text.len(),
            Stored::List(items) => items.iter().map(|item| 32 + item.size()).sum(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Box<[u8]>,
    pub(super) value: Stored,
    pub(super) flags: u32,
    /// The time in milliseconds at which it expires; 0 is never.
    pub(super) expires: u64,
}

impl Entry {
    pub(super) fn size(&self) -> usize {
        OVERHEAD + self.key.len() + self.value.size()
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Node {
    /// Absent in a free node.
    entry: Option<Entry>,
    hash: u64,
    /// The neighbours in the order of use.
    newer: usize,
    older: usize,
}

/// The entries of a shard. Nodes refer to each other by number; freed ones are used again.
#[derive(Debug)]
pub(super) struct Entries {
    index: HashTable<usize>,
    nodes: Vec<Node>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
}

impl Default for Entries {
    fn default() -> Entries {
        Entries { index: HashTable::new(), nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Entries {
    fn position(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let is_it = |at: &usize| self.nodes[*at].entry.as_ref().is_some_and(|entry| *entry.key == *key);
        self.index.find(hash, is_it).copied()
    }

    /// Finds an entry and makes it the newest.
    pub(super) fn touch(&mut self, hash: u64, key: &[u8]) -> Option<&mut Entry> {
        let at = self.position(hash, key)?;
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
        self.nodes[at].entry.as_mut()
    }

    /// Finds an entry and leaves the order.
    pub(super) fn peek(&mut self, hash: u64, key: &[u8]) -> Option<&mut Entry> {
        let at = self.position(hash, key)?;
        self.nodes[at].entry.as_mut()
    }

    /// Adds an entry whose key is absent.
    pub(super) fn insert(&mut self, hash: u64, entry: Entry) {
        let node = Node { entry: Some(entry), hash, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.link(at);
        let nodes = &self.nodes;
        self.index.insert_unique(hash, at, |at| nodes[*at].hash);
    }

    pub(super) fn remove(&mut self, hash: u64, key: &[u8]) -> Option<Entry> {
        let at = self.position(hash, key)?;
        self.take(at)
    }

    /// Removes the entry that was used longest ago.
    pub(super) fn remove_oldest(&mut self) -> Option<Entry> {
        if self.oldest == NONE { None } else { self.take(self.oldest) }
    }

    /// Removes up to `most` expired entries among the `looked` that were used longest ago; the removed ones are
    /// passed to `each`.
    pub(super) fn remove_expired(
        &mut self,
        now: u64,
        most: usize,
        looked: usize,
        mut each: impl FnMut(Entry),
    ) {
        let (mut at, mut left) = (self.oldest, most);
        for _ in 0..looked {
            if at == NONE || left == 0 {
                break;
            }
            let newer = self.nodes[at].newer;
            if self.nodes[at].entry.as_ref().is_some_and(|entry| entry.is_expired(now)) {
                self.take(at).into_iter().for_each(&mut each);
                left -= 1;
            }
            at = newer;
        }
    }

    /// The entries, last used first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        let next = |at: usize| (at != NONE).then_some(at);
        let order = std::iter::successors(next(self.newest), move |at| next(self.nodes[*at].older));
        order.filter_map(|at| self.nodes[at].entry.as_ref())
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.nodes.iter_mut().filter_map(|node| node.entry.as_mut())
    }

    fn take(&mut self, at: usize) -> Option<Entry> {
        self.unlink(at);
        if let Ok(found) = self.index.find_entry(self.nodes[at].hash, |other| *other == at) {
            found.remove();
        }
        self.free.push(at);
        self.nodes[at].entry.take()
    }

    fn link(&mut self, at: usize) {
        self.nodes[at].older = self.newest;
        self.nodes[at].newer = NONE;
        match self.nodes.get_mut(self.newest) {
            Some(newest) => newest.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.nodes[at].newer, self.nodes[at].older);
        match self.nodes.get_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}
