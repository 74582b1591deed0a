//! hot path
//!
//! The upstreams of a snapshot, by slot.
//!
//! Plans name an upstream by its slot, so that new addresses of one that
//! thousands of routes share are one change here and none in their plans.
//! Cloning the table is cloning one `Arc`; changing an entry copies only the
//! nodes on the way to it.

use std::sync::Arc;

use crate::upstream::Upstream;

#[derive(Debug, Clone, Default)]
pub struct Upstreams {
    root: Node,
    /// Branches on the way to an upstream.
    levels: u32,
}

#[derive(Debug, Clone, Default)]
enum Node {
    #[default]
    Empty,
    Upstream(Arc<Upstream>),
    Branch(Arc<[Node; WAYS]>),
}

/// Bits of a slot a level takes.
const BITS: u32 = 5;
const WAYS: usize = 1 << BITS;

impl Upstreams {
    #[inline]
    pub fn get(&self, slot: u32) -> Option<&Arc<Upstream>> {
        let (mut node, mut level) = (&self.root, self.levels);
        if !self.reaches(slot) {
            return None;
        }
        loop {
            match node {
                Node::Branch(ways) => {
                    level = level.saturating_sub(1);
                    node = &ways[digit(slot, level)];
                }
                Node::Upstream(upstream) => return Some(upstream),
                Node::Empty => return None,
            }
        }
    }

    /// Puts an upstream at its slot.
    pub(crate) fn insert(&mut self, upstream: Arc<Upstream>) {
        let slot = upstream.slot;
        while !self.reaches(slot) {
            let low = std::mem::take(&mut self.root);
            self.root = match low {
                Node::Empty => Node::Empty,
                low => Node::branch(low),
            };
            self.levels += 1;
        }
        *self.root.way_to(slot, self.levels) = Node::Upstream(upstream);
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        if self.get(slot).is_some() {
            *self.root.way_to(slot, self.levels) = Node::Empty;
        }
    }

    /// Whether there may be something at this slot.
    #[inline]
    fn reaches(&self, slot: u32) -> bool {
        slot.checked_shr(BITS * self.levels).is_none_or(|rest| rest == 0)
    }
}

impl Node {
    /// A branch with one way.
    fn branch(first: Node) -> Node {
        let mut first = Some(first);
        Node::Branch(Arc::new(std::array::from_fn(|_| first.take().unwrap_or_default())))
    }

    fn way_to(&mut self, slot: u32, levels: u32) -> &mut Node {
        let Some(level) = levels.checked_sub(1) else { return self };
        if !matches!(self, Node::Branch(_)) {
            *self = Node::branch(Node::Empty);
        }
        match self {
            Node::Branch(ways) => Arc::make_mut(ways)[digit(slot, level)].way_to(slot, level),
            _ => unreachable!("it was made a branch above"),
        }
    }
}

#[inline]
fn digit(slot: u32, level: u32) -> usize {
    (slot >> (BITS * level)) as usize % WAYS
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::upstream::Policy;

    #[test]
    fn it_is_a_table_and_copies_keep_theirs() {
        let mut rng = fastrand::Rng::with_seed(11);
        let (mut table, mut model) = (Upstreams::default(), BTreeMap::new());
        let mut old = (table.clone(), model.clone());
        for step in 0..5_000u32 {
            // It grows on the way; the last slots are the highest there are.
            let slot = if step > 4_900 { u32::MAX - rng.u32(..40) } else { rng.u32(..=step) };
            if rng.u8(..3) == 0 {
                table.remove(slot);
                model.remove(&slot);
            } else {
                let upstream = Arc::new(Upstream::new("u", slot, Vec::new(), Policy::default()));
                table.insert(upstream.clone());
                model.insert(slot, upstream);
            }
            if step == 2_500 {
                old = (table.clone(), model.clone());
            }
        }
        for (table, model) in [old, (table, model)] {
            for slot in (0..6_000).chain(u32::MAX - 50..=u32::MAX) {
                match (table.get(slot), model.get(&slot)) {
                    (Some(found), Some(upstream)) => assert!(Arc::ptr_eq(found, upstream)),
                    (found, upstream) => assert_eq!((found, upstream), (None, None), "{slot}"),
                }
            }
        }
    }
}
