//! The same work on many items, on all cores.
//!
//! For the start with a large store, not for small changes while traffic flows: fewer than [`FEW`]
//! items are processed on the calling thread. The result for an item must depend on that item alone.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Fewer items are not worth a thread.
const FEW: usize = 512;

/// Maps every item, in order. A panic in `work` propagates.
pub fn map<T: Send, U: Send>(mut items: Vec<T>, work: impl Fn(T) -> U + Sync) -> Vec<U> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let parts = cores.min(items.len() / FEW);
    if parts < 2 {
        return items.into_iter().map(work).collect();
    }
    let size = items.len().div_ceil(parts);
    let work = &work;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        while items.len() > size {
            let part = items.split_off(items.len() - size);
            threads.push(scope.spawn(move || part.into_iter().map(work).collect::<Vec<U>>()));
        }
        let mut all: Vec<U> = items.into_iter().map(work).collect();
        for thread in threads.into_iter().rev() {
            all.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    })
}

/// Runs `use_up` on another thread with what `make` sends from here. A panic there propagates.
pub fn beside<T: Send, U: Send>(
    use_up: impl FnOnce(Receiver<T>) -> U + Send,
    make: impl FnOnce(&Sender<T>),
) -> U {
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let thread = scope.spawn(move || use_up(receiver));
        make(&sender);
        drop(sender);
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::{FEW, beside, map};

    #[test]
    fn order_is_kept_whatever_the_size() {
        for size in [0, 1, FEW, 2 * FEW, 2 * FEW + 1, 40 * FEW + 7] {
            let items: Vec<usize> = (0..size).collect();
            let wanted: Vec<usize> = items.iter().map(|item| item * 3).collect();
            assert_eq!(map(items, |item| item * 3), wanted, "{size}");
        }
    }

    #[test]
    fn what_is_made_here_is_used_up_there() {
        let sum = beside(
            |numbers| numbers.into_iter().sum::<u64>(),
            |sender| {
                (0..1000).for_each(|number| sender.send(number).unwrap());
            },
        );
        assert_eq!(sum, 499_500);
    }

    #[test]
    fn a_panic_comes_through() {
        let items: Vec<usize> = (0..10 * FEW).collect();
        let caught = std::panic::catch_unwind(|| map(items, |item| assert!(item < 9 * FEW)));
        assert!(caught.is_err());
    }
}
