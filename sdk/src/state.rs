//! hot path
//!
//! State that plugins keep across exchanges and configuration changes.
//!
//! An instance is rebuilt with every change of its route, and its own fields are dropped with it.
//! State that must outlive it is kept in one of two places, requested while the instance is built:
//!
//! - **The node** ([`crate::Build::node_state`]): one value for all workers, kept while the
//!   instance's identity (owner, plugin, key) and its configuration stay the same.
//! - **The worker** ([`crate::Build::worker_state`]): one value per worker, accessed without a
//!   lock.
//!
//! Counters of limits ([`crate::counters`]) are kept per node.
//!
//! A value is dropped with the last instance that holds it. A node's value and an instance itself
//! are dropped on the control side, where closing files and joining threads is allowed; a worker's
//! value on its worker.

#![expect(
    clippy::disallowed_types,
    reason = "locks of the control side: workers only read and drop nothing here"
)]

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashbrown::HashMap;

type Shared = dyn Any + Send + Sync;

/// State of instances, by identity. Holds weak references only: a value lives as long as an
/// instance holds it.
#[derive(Default)]
pub struct States {
    known: Mutex<Values>,
    numbers: Arc<Numbers>,
}

#[derive(Default)]
struct Values {
    values: HashMap<String, Weak<Shared>>,
    /// Number of entries at which dropped ones are removed.
    most: usize,
}

impl States {
    /// Returns the value of this identity; makes it if no instance holds one.
    pub(crate) fn get<T: Send + Sync + 'static>(&self, identity: String, make: impl FnOnce() -> T) -> Arc<T> {
        let find = |known: &Values| known.values.get(&identity)?.upgrade()?.downcast::<T>().ok();
        if let Some(found) = find(&lock(&self.known)) {
            return found;
        }
        // Made without the lock: `make` may request values itself.
        let made = Arc::new(make());
        let mut known = lock(&self.known);
        if let Some(found) = find(&known) {
            return found;
        }
        if known.values.len() >= known.most {
            known.values.retain(|_, value| value.strong_count() > 0);
            known.most = (known.values.len() * 2).max(64);
        }
        let shared: Arc<Shared> = made.clone();
        known.values.insert(identity, Arc::downgrade(&shared));
        made
    }

    pub(crate) fn worker_state<T: 'static>(&self, identity: String) -> WorkerState<T> {
        let number = self.get(identity, || Number::new(&self.numbers));
        WorkerState { number, of: PhantomData }
    }
}

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("States").field("values", &lock(&self.known).values.len()).finish()
    }
}

/// A handle to one value per worker. Cheap to clone; clones refer to the same value.
#[derive(Debug)]
pub struct WorkerState<T> {
    pub(crate) number: Arc<Number>,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for WorkerState<T> {
    fn clone(&self) -> Self {
        WorkerState { number: self.number.clone(), of: PhantomData }
    }
}

/// The values of one worker, for all plugins.
#[derive(Debug, Default)]
pub struct WorkerStates(RefCell<Vec<Option<Entry>>>);

#[derive(Debug)]
struct Entry {
    number: Weak<Number>,
    /// `None` while in use.
    value: Option<Box<dyn Any>>,
}

impl WorkerStates {
    #[inline]
    pub(crate) fn with<T: Default + 'static, R>(
        &self,
        number: &Arc<Number>,
        f: impl FnOnce(&mut T) -> R,
    ) -> R {
        let mut value: Box<T> = self.take(number).unwrap_or_default();
        let result = f(&mut value);
        if let Some(Some(entry)) = self.0.borrow_mut().get_mut(number.index) {
            entry.value = Some(value);
        }
        result
    }

    #[inline]
    fn take<T: 'static>(&self, number: &Arc<Number>) -> Option<Box<T>> {
        let mut entries = self.0.borrow_mut();
        if entries.len() <= number.index {
            entries.resize_with(number.index + 1, || None);
        }
        let entry = &mut entries[number.index];
        match entry {
            // Numbers are reused; a previous owner's value does not belong to this one.
            Some(entry) if std::ptr::eq(entry.number.as_ptr(), Arc::as_ptr(number)) => {
                entry.value.take()?.downcast().ok()
            }
            _ => {
                *entry = Some(Entry { number: Arc::downgrade(number), value: None });
                None
            }
        }
    }

    /// Drops the values whose handles are all dropped. The worker calls it from time to time.
    pub fn sweep(&self) {
        let mut entries = self.0.borrow_mut();
        let unused = |entry: &Entry| entry.number.strong_count() == 0;
        let unused: Vec<Entry> =
            entries.iter_mut().filter_map(|entry| entry.take_if(|entry| unused(entry))).collect();
        // Destructors of values run without the borrow.
        drop(entries);
        drop(unused);
    }
}

/// An index into every worker's values, freed on drop.
#[derive(Debug)]
pub(crate) struct Number {
    index: usize,
    of: Arc<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The freed indexes, and the lowest index never used.
    free: Mutex<(Vec<usize>, usize)>,
}

impl Number {
    fn new(of: &Arc<Numbers>) -> Number {
        let mut free = lock(&of.free);
        let index = free.0.pop().unwrap_or_else(|| {
            free.1 += 1;
            free.1 - 1
        });
        Number { index, of: of.clone() }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&self.of.free).0.push(self.index);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no inconsistent state here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::Probe;

    #[test]
    fn a_value_lives_as_long_as_it_is_held() {
        static DROPPED: AtomicUsize = AtomicUsize::new(0);
        struct CountsDrops(u8);
        impl Drop for CountsDrops {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let states = States::default();
        let one = states.get("a".into(), || CountsDrops(1));
        let same = states.get("a".into(), || CountsDrops(2));
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!(states.get("b".into(), || CountsDrops(3)).0, 3);
        assert_eq!(DROPPED.load(Ordering::Relaxed), 1, "b was not held, and no value was made for `same`");
        drop((one, same));
        assert_eq!(DROPPED.load(Ordering::Relaxed), 2);
        assert_eq!(states.get("a".into(), || CountsDrops(4)).0, 4);
        // A value of another type is separate.
        let text = states.get("a".into(), || "text".to_owned());
        assert_eq!(*text, "text");
        let kept = states.get("kept".into(), || 7);
        (0..1000).for_each(|n| drop(states.get(n.to_string(), || n)));
        assert!(Arc::ptr_eq(&kept, &states.get("kept".into(), || 8)));
        assert!(lock(&states.known).values.len() <= 64, "entries of dropped values are removed");
    }

    #[test]
    fn each_worker_has_its_own_value() {
        let states = States::default();
        let (one, two) = (Probe::default(), Probe::default());
        let count: WorkerState<u32> = states.worker_state("a".into());
        let again: WorkerState<u32> = states.worker_state("a".into());
        let other: WorkerState<u32> = states.worker_state("b".into());
        let add = |state: &WorkerState<u32>, probe: &Probe| {
            state.with(&probe.world, |count| {
                *count += 1;
                *count
            })
        };
        assert_eq!(
            (add(&count, &one), add(&again, &one), add(&other, &one), add(&count, &two)),
            (1, 2, 1, 1)
        );

        // The next owner of the index starts with the default, whether the worker has swept or not.
        let index = count.number.index;
        drop((count, again));
        let next: WorkerState<u32> = states.worker_state("c".into());
        assert_eq!(next.number.index, index);
        assert_eq!(add(&next, &one), 1);
        drop(next);
        one.world.states.sweep();
        assert!(one.world.states.0.borrow()[index].is_none());
        assert!(one.world.states.0.borrow()[other.number.index].is_some());
    }
}
