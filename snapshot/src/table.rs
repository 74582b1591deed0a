//! hot path
//!
//! A table indexed by number, whose copies share their contents.
//!
//! Plans name an upstream by its slot in one, so that new addresses of an upstream that thousands
//! of routes share are one change here and none in their plans; the router's maps keep their pages
//! in another. Cloning a table is cloning one `Arc`; changing an entry copies only the nodes on the
//! path to it, and only those that another copy still holds.

use std::sync::Arc;

#[derive(Debug)]
pub struct Table<T> {
    root: Node<T>,
    /// Levels of branches above the entries.
    levels: u32,
}

#[derive(Debug, Default)]
enum Node<T> {
    #[default]
    Empty,
    Entry(Arc<T>),
    Branch(Arc<[Node<T>; WAYS]>),
}

/// Bits of the number per level.
const BITS: u32 = 5;
const WAYS: usize = 1 << BITS;

impl<T> Table<T> {
    #[inline]
    pub fn get(&self, number: u32) -> Option<&Arc<T>> {
        let (mut node, mut level) = (&self.root, self.levels);
        if !self.reaches(number) {
            return None;
        }
        loop {
            match node {
                Node::Branch(ways) => {
                    level = level.saturating_sub(1);
                    node = &ways[digit(number, level)];
                }
                Node::Entry(entry) => return Some(entry),
                Node::Empty => return None,
            }
        }
    }

    /// Sets the entry of this number.
    pub fn insert(&mut self, number: u32, entry: Arc<T>) {
        *self.way_to(number) = Node::Entry(entry);
    }

    pub(crate) fn remove(&mut self, number: u32) {
        if self.get(number).is_some() {
            *self.way_to(number) = Node::Empty;
        }
    }

    /// Calls `look` for all entries, in order of their numbers.
    pub(crate) fn each<'t>(&'t self, mut look: impl FnMut(&'t T)) {
        self.root.each(&mut look);
    }

    /// The node of a number; the table grows as needed.
    fn way_to(&mut self, number: u32) -> &mut Node<T> {
        while !self.reaches(number) {
            self.root = match std::mem::take(&mut self.root) {
                Node::Empty => Node::Empty,
                low => Node::branch(low),
            };
            self.levels += 1;
        }
        self.root.way_to(number, self.levels)
    }

    /// Whether the table is deep enough for this number.
    #[inline]
    fn reaches(&self, number: u32) -> bool {
        number.checked_shr(BITS * self.levels).is_none_or(|rest| rest == 0)
    }
}

impl<T: Clone + Default> Table<T> {
    /// A mutable entry, without affecting other copies; inserts a default one if missing.
    pub(crate) fn entry(&mut self, number: u32) -> &mut T {
        let place = self.way_to(number);
        if let Node::Empty = place {
            *place = Node::Entry(Arc::default());
        }
        match place {
            Node::Entry(entry) => Arc::make_mut(entry),
            Node::Empty | Node::Branch(_) => unreachable!("the way to a number ends at its entry"),
        }
    }
}

impl<T> Node<T> {
    /// Wraps a node in a branch, as its first child.
    fn branch(first: Node<T>) -> Node<T> {
        let mut first = Some(first);
        Node::Branch(Arc::new(std::array::from_fn(|_| first.take().unwrap_or_default())))
    }

    fn way_to(&mut self, number: u32, levels: u32) -> &mut Node<T> {
        let Some(level) = levels.checked_sub(1) else { return self };
        if !matches!(self, Node::Branch(_)) {
            *self = Node::branch(Node::Empty);
        }
        match self {
            Node::Branch(ways) => Arc::make_mut(ways)[digit(number, level)].way_to(number, level),
            _ => unreachable!("it was made a branch above"),
        }
    }

    fn each<'t>(&'t self, look: &mut impl FnMut(&'t T)) {
        match self {
            Node::Empty => {}
            Node::Entry(entry) => look(entry),
            Node::Branch(ways) => ways.iter().for_each(|node| node.each(look)),
        }
    }
}

// The derived implementations would require the same of `T`, which is never cloned here.

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { root: Node::Empty, levels: 0 }
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Table<T> {
        Table { root: self.root.clone(), levels: self.levels }
    }
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Node<T> {
        match self {
            Node::Empty => Node::Empty,
            Node::Entry(entry) => Node::Entry(entry.clone()),
            Node::Branch(ways) => Node::Branch(ways.clone()),
        }
    }
}

#[inline]
fn digit(number: u32, level: u32) -> usize {
    (number >> (BITS * level)) as usize % WAYS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_first_number_may_be_large() {
        for first in [0, 1, 5, 40, 70_000, u32::MAX] {
            let mut table = Table::default();
            table.insert(first, Arc::new(first));
            table.insert(first ^ 1, Arc::new(first ^ 1));
            for number in [0, 1, 4, 5, 40, 41, 70_000, u32::MAX] {
                let expected = (number | 1 == first | 1).then_some(number);
                assert_eq!(table.get(number).map(|entry| **entry), expected, "{first} {number}");
            }
        }
    }

    #[test]
    fn matches_a_model_and_copies_are_independent() {
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut table, mut model) = (Table::default(), BTreeMap::new());
        let mut old = (table.clone(), model.clone());
        for step in 0..5_000u32 {
            // It grows meanwhile; the last numbers are the highest possible.
            let number = if step > 4_900 { u32::MAX - rng.u32(..40) } else { rng.u32(..=step) };
            match rng.u8(..4) {
                0 => {
                    table.remove(number);
                    model.remove(&number);
                }
                1 => {
                    *table.entry(number) += step;
                    *model.entry(number).or_default() += step;
                }
                _ => {
                    table.insert(number, Arc::new(step));
                    model.insert(number, step);
                }
            }
            if step == 2_500 {
                old = (table.clone(), model.clone());
            }
        }
        for (table, model) in [old, (table, model)] {
            for number in (0..6_000).chain(u32::MAX - 50..=u32::MAX) {
                assert_eq!(table.get(number).map(|entry| &**entry), model.get(&number), "{number}");
            }
            let mut all = Vec::new();
            table.each(|entry| all.push(*entry));
            assert!(all.iter().eq(model.values()));
        }
    }
}
