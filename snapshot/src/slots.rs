//! Numbers for things, stable over configuration changes.
//!
//! A worker keeps its own state for a thing in a vector, at the thing's slot.
//! A number that came free is given out again only after many further
//! compiles, when no exchange can still be on a snapshot that used it, unless
//! it stands still for long; state found at a reused number is never trusted
//! blindly, only carried over.

use std::collections::VecDeque;

use hashbrown::HashMap;
use model::Key;

/// Compiles that must pass before a number is given to another thing.
const REST: u64 = 1024;

/// The numbers of things of one kind.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: HashMap<Key, u32>,
    /// Numbers that came free, and at which compile.
    free: VecDeque<(u64, u32)>,
    /// All below were given out at some time.
    next: u32,
    now: u64,
}

impl Slots {
    /// One more compile begins.
    pub fn tick(&mut self) {
        self.now += 1;
    }

    /// The number of this thing, a new one if it has none.
    pub fn of(&mut self, key: &Key) -> u32 {
        if let Some(&slot) = self.taken.get(key) {
            return slot;
        }
        let slot = match self.free.front() {
            Some(&(since, slot)) if since + REST <= self.now => {
                self.free.pop_front();
                slot
            }
            _ => {
                self.next += 1;
                self.next - 1
            }
        };
        self.taken.insert(key.clone(), slot);
        slot
    }

    /// The thing is gone. Gives the number it had.
    pub fn release(&mut self, key: &Key) -> Option<u32> {
        let slot = self.taken.remove(key)?;
        self.free.push_back((self.now, slot));
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;

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
