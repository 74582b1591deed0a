//! hot path
//!
//! The homes of what a plugin remembers.
//!
//! An instance is rebuilt with every change of its route, and its own state goes with it.
//! State that outlives it has one of two homes, requested while the instance is built:
//!
//! - **The node's** ([`crate::Build::node_state`]): one value for all workers, carried over while the
//!   instance's identity (owner, plugin, key) and its configuration stay.
//! - **The worker's own** ([`crate::Build::worker_state`]): one value a worker, reached without a lock.
//!
//! Counters of limits ([`crate::counters`]) are kept per node.
//!
//! With the last instance that holds it the value goes, too: its `Drop` is how it is told. A node's
//! value and an instance itself are dropped on the control side, where files and threads may be closed;
//! a worker's own value on its worker.

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

/// What instances remember, by identity. It holds nothing itself: values live as long as somebody has them.
#[derive(Default)]
pub struct States {
    known: Mutex<Known>,
    numbers: Arc<Numbers>,
}

#[derive(Default)]
struct Known {
    values: HashMap<String, Weak<Shared>>,
    /// How many there may be before those that are gone are looked for.
    most: usize,
}

impl States {
    /// The value of this identity; made now if nobody has one.
    pub(crate) fn get<T: Send + Sync + 'static>(&self, identity: String, make: impl FnOnce() -> T) -> Arc<T> {
        let find = |known: &Known| known.values.get(&identity)?.upgrade()?.downcast::<T>().ok();
        if let Some(found) = find(&lock(&self.known)) {
            return found;
        }
        // Made without the lock: it may ask for values itself.
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

/// The right to one value on each worker. Cheap to clone; clones stand for the same value.
#[derive(Debug)]
pub struct WorkerState<T> {
    number: Arc<Number>,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for WorkerState<T> {
    fn clone(&self) -> Self {
        WorkerState { number: self.number.clone(), of: PhantomData }
    }
}

impl<T: Default + 'static> WorkerState<T> {
    /// Works with this worker's value, which begins as the default. It is not to be asked for again
    /// within `f`, which would see another default.
    #[inline]
    pub fn with<R>(&self, world: &dyn crate::World, f: impl FnOnce(&mut T) -> R) -> R {
        world.states().with(&self.number, f)
    }
}

/// The values of one worker. A worker has one of these for all plugins.
#[derive(Debug, Default)]
pub struct WorkerStates(RefCell<Vec<Option<Place>>>);

#[derive(Debug)]
struct Place {
    number: Weak<Number>,
    /// Out while somebody works with it.
    value: Option<Box<dyn Any>>,
}

impl WorkerStates {
    #[inline]
    fn with<T: Default + 'static, R>(&self, number: &Arc<Number>, f: impl FnOnce(&mut T) -> R) -> R {
        let mut value: Box<T> = self.take(number).unwrap_or_default();
        let result = f(&mut value);
        if let Some(Some(place)) = self.0.borrow_mut().get_mut(number.index) {
            place.value = Some(value);
        }
        result
    }

    #[inline]
    fn take<T: 'static>(&self, number: &Arc<Number>) -> Option<Box<T>> {
        let mut places = self.0.borrow_mut();
        if places.len() <= number.index {
            places.resize_with(number.index + 1, || None);
        }
        let place = &mut places[number.index];
        match place {
            // A number is given out again; what its last owner left is not this one's.
            Some(place) if std::ptr::eq(place.number.as_ptr(), Arc::as_ptr(number)) => {
                place.value.take()?.downcast().ok()
            }
            _ => {
                *place = Some(Place { number: Arc::downgrade(number), value: None });
                None
            }
        }
    }

    /// Drops the values that no instance has a right to any more. The worker calls it now and then.
    pub fn sweep(&self) {
        let mut places = self.0.borrow_mut();
        let gone = |place: &Place| place.number.strong_count() == 0;
        let gone: Vec<Place> =
            places.iter_mut().filter_map(|place| place.take_if(|place| gone(place))).collect();
        // A value's own code runs without the borrow.
        drop(places);
        drop(gone);
    }
}

/// A place on every worker, given back when dropped.
#[derive(Debug)]
struct Number {
    index: usize,
    of: Arc<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// Those that came free, and the first that was never given out.
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
    // Nothing here is left half done by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::Probe;

    #[test]
    fn a_value_lives_as_long_as_somebody_has_it() {
        static GONE: AtomicUsize = AtomicUsize::new(0);
        struct Told(u8);
        impl Drop for Told {
            fn drop(&mut self) {
                GONE.fetch_add(1, Ordering::Relaxed);
            }
        }
        let states = States::default();
        let one = states.get("a".into(), || Told(1));
        let same = states.get("a".into(), || Told(2));
        assert!(Arc::ptr_eq(&one, &same));
        assert_eq!(states.get("b".into(), || Told(3)).0, 3);
        assert_eq!(GONE.load(Ordering::Relaxed), 1, "nobody kept b, and nothing was made for `same`");
        drop((one, same));
        assert_eq!(GONE.load(Ordering::Relaxed), 2);
        assert_eq!(states.get("a".into(), || Told(4)).0, 4);
        // Of another type it is another value.
        let text = states.get("a".into(), || "text".to_owned());
        assert_eq!(*text, "text");
        let kept = states.get("kept".into(), || 7);
        (0..1000).for_each(|n| drop(states.get(n.to_string(), || n)));
        assert!(Arc::ptr_eq(&kept, &states.get("kept".into(), || 8)));
        assert!(lock(&states.known).values.len() <= 64, "those that are gone are forgotten");
    }

    #[test]
    fn each_worker_has_its_own() {
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

        // The next owner of the place begins anew, whether the worker has swept or not.
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
