//! Slot numbers, stable across configuration changes.
//!
//! A worker keeps its state of an object in a vector, at the object's slot. A freed slot is reused
//! only after many further compiles, when hardly any exchange can still be on a snapshot that used
//! it; state found at a reused slot is therefore never trusted, only carried over.

use std::collections::VecDeque;

use hashbrown::HashMap;
use model::{Key, Kind};

/// Compiles that must pass before a freed number is reused.
const REST: u64 = 1024;

/// The slots of objects of one kind.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// By [`Kind::index`], then by id.
    taken: [HashMap<Box<str>, u32>; Kind::ALL.len()],
    /// Freed numbers, and the compile at which each was freed.
    free: VecDeque<(u64, u32)>,
    /// All lower numbers have been used.
    next: u32,
    now: u64,
}

impl Slots {
    /// Starts a compile.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// The slot of this object; allocates one if it has none.
    pub fn of(&mut self, key: &Key) -> u32 {
        if let Some(slot) = self.known(key) {
            return slot;
        }
        let slot = self.fresh();
        self.taken[key.kind.index()].insert(key.id.as_str().into(), slot);
        slot
    }

    /// A slot for an object that stores it itself, and returns it with [`Slots::free`].
    pub fn fresh(&mut self) -> u32 {
        match self.free.front() {
            Some(&(since, slot)) if since + REST <= self.now => {
                self.free.pop_front();
                slot
            }
            _ => {
                self.next += 1;
                self.next - 1
            }
        }
    }

    /// The slot of this object, if it has one.
    pub fn known(&self, key: &Key) -> Option<u32> {
        self.taken[key.kind.index()].get(key.id.as_str()).copied()
    }

    /// Frees the slot of a removed object and returns it.
    pub fn release(&mut self, key: &Key) -> Option<u32> {
        let slot = self.taken[key.kind.index()].remove(key.id.as_str())?;
        self.free(slot);
        Some(slot)
    }

    /// Frees a slot from [`Slots::fresh`].
    pub fn free(&mut self, slot: u32) {
        self.free.push_back((self.now, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Key {
        Key::new(Kind::Upstream, id)
    }

    #[test]
    fn numbers_stay_and_are_reused_only_later() {
        let mut slots = Slots::default();
        assert_eq!((slots.of(&key("a")), slots.of(&key("b")), slots.of(&key("a"))), (0, 1, 0));
        slots.release(&key("a"));
        assert_eq!(slots.of(&key("c")), 2);
        for _ in 0..REST {
            slots.tick();
        }
        assert_eq!((slots.of(&key("d")), slots.of(&key("e")), slots.of(&key("b"))), (0, 3, 1));
        assert_eq!((slots.release(&key("never there")), slots.release(&key("e"))), (None, Some(3)));
        assert_eq!(slots.of(&key("a")), 4);
    }
}
