//! Values that the instances of a plugin share, on all workers (`proxy_get_shared_data`).

use hashbrown::HashMap;
#[expect(
    clippy::disallowed_types,
    reason = "locked for one look-up or change in memory, never while a module runs"
)]
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::status::{Outcome, Refusal};

/// The longest key, and the memory of an entry besides its key and value.
pub(super) const LONGEST_KEY: usize = 1024;
const ENTRY: usize = 64;

/// The values of all plugins.
#[expect(clippy::disallowed_types, reason = "see above")]
pub struct Shared {
    /// Bytes of one plugin.
    most: usize,
    plugins: Mutex<HashMap<&'static str, Arc<Values>>>,
}

/// The values of one plugin.
#[expect(clippy::disallowed_types, reason = "see above")]
pub(super) struct Values {
    most: usize,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    bytes: usize,
    /// The next number for a compare-and-swap.
    next: u32,
    values: HashMap<Vec<u8>, (Arc<[u8]>, u32)>,
}

impl Shared {
    pub(super) fn new(most: usize) -> Shared {
        Shared { most, plugins: Default::default() }
    }

    pub(super) fn of(&self, plugin: &'static str) -> Arc<Values> {
        // No code inside the lock can fail half-way.
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        let values = plugins.entry(plugin);
        values.or_insert_with(|| Arc::new(Values { most: self.most, all: Default::default() })).clone()
    }
}

impl Values {
    fn lock(&self) -> MutexGuard<'_, All> {
        // As above.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<(Arc<[u8]>, u32)> {
        self.lock().values.get(key).cloned()
    }

    /// Sets a value; with a number other than 0 only if that is the value's.
    pub(super) fn set(&self, key: Vec<u8>, value: Vec<u8>, cas: u32) -> Outcome {
        // Bytes are copied and freed outside the lock.
        let (value, size): (Arc<[u8]>, usize) = (value.into(), key.len() + ENTRY);
        let mut all = self.lock();
        let known = all.values.get(&key);
        if cas != 0 && known.map(|(_, cas)| *cas) != Some(cas) {
            return Err(Refusal::CAS_MISMATCH);
        }
        let freed = known.map_or(0, |(value, _)| value.len() + size);
        let bytes = all.bytes - freed + value.len() + size;
        if bytes > self.most {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        all.bytes = bytes;
        all.next = all.next.wrapping_add(1).max(1);
        let number = all.next;
        let replaced = all.values.insert(key, (value, number));
        drop(all);
        drop(replaced);
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
        let set = |plugin, value: &str, cas| status(shared.of(plugin).set(b"k".to_vec(), value.into(), cas));
        assert!(shared.of("a").get(b"k").is_none());
        assert_eq!(set("a", "1", 7), 8, "no value has the number 7");
        assert_eq!(set("a", "1", 0), 0);
        let (value, first) = shared.of("a").get(b"k").unwrap();
        assert_eq!(&value[..], b"1");
        assert_eq!(set("a", "2", first), 0);
        assert_eq!(set("a", "3", first), 8, "the value has another number by now");
        assert_eq!(&shared.of("a").get(b"k").unwrap().0[..], b"2");
        assert!(shared.of("b").get(b"k").is_none(), "plugins have values of their own");
    }

    #[test]
    fn a_plugin_has_a_bounded_amount() {
        let shared = Shared::new(1000);
        assert_eq!(status(shared.of("a").set(b"big".to_vec(), vec![0; 2000], 0)), 10);
        let stored =
            (0..100_u32).filter(|n| shared.of("a").set(n.to_le_bytes().to_vec(), vec![0; 32], 0).is_ok());
        assert_eq!(stored.count(), 10);
        assert_eq!(status(shared.of("b").set(b"k".to_vec(), vec![0; 500], 0)), 0, "another plugin has room");
        // A value that is replaced frees its room.
        for _ in 0..100 {
            assert_eq!(status(shared.of("b").set(b"k".to_vec(), vec![0; 500], 0)), 0);
        }
    }
}
