//! The same work on many items, on all cores.
//!
//! For the start with a large store, not for small changes while traffic flows: fewer than [`FEW`]
//! items are processed on the calling thread. The result for an item must depend on that item alone.

#![expect(
    clippy::disallowed_types,
    reason = "the locks are shared by threads that begin and end within one call, and hand out whole pieces of work"
)]

use std::iter::Flatten;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{thread, vec};

/// Fewer items are not worth a thread.
const FEW: usize = 512;

/// Items that a thread takes at a time. Threads that get less of a processor take fewer pieces, so all end
/// at about the same time.
const PIECE: usize = 256;

/// The mapped items, in their order. Iterating frees their memory piece by piece.
pub type Mapped<U> = Flatten<vec::IntoIter<Vec<U>>>;

/// Maps every item, in order. A panic in `work` propagates.
pub fn map<T: Send, U: Send>(items: Vec<T>, work: impl Fn(T) -> U + Sync) -> Mapped<U> {
    let threads = threads(items.len());
    if threads < 2 {
        let all: Vec<U> = items.into_iter().map(work).collect();
        return vec![all].into_iter().flatten();
    }
    let queue = Mutex::new((0, items.into_iter()));
    let next = || {
        let mut queue = lock(&queue);
        let piece: Vec<T> = queue.1.by_ref().take(PIECE).collect();
        queue.0 += 1;
        (!piece.is_empty()).then_some((queue.0 - 1, piece))
    };
    let made = Mutex::new(Vec::new());
    let (next, made_here, work) = (&next, &made, &work);
    let run = move || {
        while let Some((at, piece)) = next() {
            let piece = piece.into_iter().map(work).collect();
            put(&mut lock(made_here), at, piece);
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        run();
        others.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
    });
    made.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten()
}

/// Maps what `make` gives while it is still at work, in order. A panic on either side propagates.
///
/// # Errors
/// That of `make`.
pub fn map_made<T: Send, U: Send, E>(
    make: impl FnOnce(&mut dyn FnMut(T)) -> Result<(), E>,
    work: impl Fn(T) -> U + Sync,
) -> Result<Mapped<U>, E> {
    // The receiver is shared by the thread beside and, once everything is made, this one.
    let (sender, receiver) = channel::<(usize, Vec<T>)>();
    let receiver = Mutex::new(receiver);
    let made = Mutex::new(Vec::new());
    let (receiver, made_here, work) = (&receiver, &made, &work);
    let run = move || {
        loop {
            // The thread that waits here holds the lock; the others need it only to wait here too.
            let piece = lock(receiver).recv();
            let Ok((at, piece)) = piece else { return };
            let piece = piece.into_iter().map(work).collect();
            put(&mut lock(made_here), at, piece);
        }
    };
    thread::scope(|scope| {
        let mut others = Vec::new();
        let (mut piece, mut at) = (Vec::new(), 0);
        let result = make(&mut |item| {
            piece.push(item);
            if piece.len() == PIECE {
                if others.is_empty() && at * PIECE >= FEW {
                    others.push(scope.spawn(run));
                }
                // It fails only if that thread has panicked, which `join` below returns.
                _ = sender.send((at, std::mem::take(&mut piece)));
                at += 1;
            }
        });
        if !piece.is_empty() {
            _ = sender.send((at, piece));
        }
        drop(sender);
        if result.is_ok() {
            let more = threads(at * PIECE).saturating_sub(2);
            others.extend((0..more).map(|_| scope.spawn(run)));
            run();
        }
        others.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        result
    })?;
    Ok(made.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten())
}

/// Returns the number of threads for a number of items.
fn threads(items: usize) -> usize {
    match items / FEW {
        // To ask how many cores there are takes the system longer than most changes take here.
        worth @ (0 | 1) => worth,
        worth => thread::available_parallelism().map_or(1, NonZero::get).min(worth),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is reported by the thread that had it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put<U>(made: &mut Vec<Vec<U>>, at: usize, piece: Vec<U>) {
    if made.len() <= at {
        made.resize_with(at + 1, Vec::new);
    }
    made[at] = piece;
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
    use super::{FEW, PIECE, beside, map, map_made};

    const SIZES: [usize; 8] = [0, 1, PIECE, FEW, 2 * FEW, 2 * FEW + 1, 4 * FEW + 1, 40 * FEW + 7];

    #[test]
    fn order_is_kept_whatever_the_size() {
        for size in SIZES {
            let items: Vec<usize> = (0..size).collect();
            let wanted: Vec<usize> = items.iter().map(|item| item * 3).collect();
            assert!(map(items, |item| item * 3).eq(wanted), "{size}");
        }
    }

    #[test]
    fn what_is_made_meanwhile_keeps_its_order_too() {
        for size in SIZES {
            let all = map_made(
                |give| {
                    (0..size).for_each(give);
                    Ok::<(), ()>(())
                },
                |item| item * 3,
            );
            assert!(all.unwrap().eq((0..size).map(|item| item * 3)), "{size}");
        }
    }

    #[test]
    fn making_that_fails_ends_it() {
        let failed = map_made(
            |give| {
                (0..10 * FEW).for_each(give);
                Err("no more")
            },
            |item| item,
        );
        assert_eq!(failed.err(), Some("no more"));
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
        let wrong = |item: usize| assert!(item < 9 * FEW);
        let caught = std::panic::catch_unwind(|| map((0..10 * FEW).collect(), wrong).count());
        assert!(caught.is_err());
        let make = |give: &mut dyn FnMut(usize)| {
            (0..10 * FEW).for_each(give);
            Ok::<(), ()>(())
        };
        assert!(std::panic::catch_unwind(|| map_made(make, wrong).map(Iterator::count)).is_err());
    }
}
