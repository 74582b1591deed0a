//! Values that the instances of a plugin share, on all workers (`proxy_get_shared_data`).

use hashbrown::HashMap;
#[expect(
    clippy::disallowed_types,
    reason = "locked for one look-up or change in memory, never while a module runs"
)]
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::status::{Outcome, Refusal};

/// The longest key, and the memory of an entry besides its key and value.
pub(super) const LONGEST_KEY: usize = 1024;
const ENTRY: usize = 64;

/// The values of all plugins.
#[expect(clippy::disallowed_types, reason = "see above")]
pub struct Shared {
    /// Bytes of one plugin.
    most: usize,
    plugins: Mutex<HashMap<&'static str, Values>>,
}

#[derive(Default)]
struct Values {
    bytes: usize,
    /// The next number for a compare-and-swap.
    next: u32,
    values: HashMap<Vec<u8>, (Vec<u8>, u32)>,
}

impl Shared {
    pub(super) fn new(most: usize) -> Shared {
        Shared { most, plugins: Default::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<&'static str, Values>> {
        // No code inside the lock can fail half-way.
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, plugin: &str, key: &[u8]) -> Option<(Vec<u8>, u32)> {
        self.lock().get(plugin)?.values.get(key).cloned()
    }

    /// Sets a value; with a number other than 0 only if that is the value's.
    pub(super) fn set(&self, plugin: &'static str, key: Vec<u8>, value: Vec<u8>, cas: u32) -> Outcome {
        let mut plugins = self.lock();
        let values = plugins.entry(plugin).or_default();
        let known = values.values.get(&key);
        if cas != 0 && known.map(|(_, cas)| *cas) != Some(cas) {
            return Err(Refusal::CAS_MISMATCH);
        }
        let freed = known.map_or(0, |(value, _)| value.len() + key.len() + ENTRY);
        let bytes = values.bytes - freed + value.len() + key.len() + ENTRY;
        if bytes > self.most {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        values.bytes = bytes;
        values.next = values.next.wrapping_add(1).max(1);
        let number = values.next;
        values.values.insert(key, (value, number));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(outcome: Outcome) -> u32 {
        match outcome {
            Ok(()) => 0,
            Err(Refusal::Status(status)) => status,
            Err(Refusal::Trap(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn values_are_swapped_only_with_their_number() {
        let shared = Shared::new(1000);
        let set = |plugin, value: &str, cas| status(shared.set(plugin, b"k".to_vec(), value.into(), cas));
        assert!(shared.get("a", b"k").is_none());
        assert_eq!(set("a", "1", 7), 8, "no value has the number 7");
        assert_eq!(set("a", "1", 0), 0);
        let (value, first) = shared.get("a", b"k").unwrap();
        assert_eq!(value, b"1");
        assert_eq!(set("a", "2", first), 0);
        assert_eq!(set("a", "3", first), 8, "the value has another number by now");
        assert_eq!(shared.get("a", b"k").unwrap().0, b"2");
        assert!(shared.get("b", b"k").is_none(), "plugins have values of their own");
    }

    #[test]
    fn a_plugin_has_a_bounded_amount() {
        let shared = Shared::new(1000);
        assert_eq!(status(shared.set("a", b"big".to_vec(), vec![0; 2000], 0)), 10);
        let stored =
            (0..100_u32).filter(|n| shared.set("a", n.to_le_bytes().to_vec(), vec![0; 32], 0).is_ok());
        assert_eq!(stored.count(), 10);
        assert_eq!(status(shared.set("b", b"k".to_vec(), vec![0; 500], 0)), 0, "another plugin has room");
        // A value that is replaced frees its room.
        for _ in 0..100 {
            assert_eq!(status(shared.set("b", b"k".to_vec(), vec![0; 500], 0)), 0);
        }
    }
}
