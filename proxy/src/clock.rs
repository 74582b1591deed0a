//! hot path
//!
//! Time on a worker: a coarse clock and one list of deadlines.
//!
//! A timer per wait costs more than the wait. Instead every task has one entry
//! in a list; a wait writes its deadline there, and a tick, a few times a
//! second, wakes the tasks whose deadline has passed. Deadlines are never early
//! and at most one tick late.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between two looks at the deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(50);

const NEVER: u64 = u64::MAX;

/// A worker's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// Unix milliseconds at `origin`.
    unix_origin: Cell<u64>,
    /// Milliseconds since `origin`, as of the last tick.
    coarse: Cell<u64>,
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<usize>>,
}

#[derive(Debug)]
struct Entry {
    deadline: u64,
    waker: Option<Waker>,
}

/// A task's place in the list of deadlines; given back when dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    clock: Rc<Clock>,
    index: usize,
}

/// The deadline of a wait has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elapsed;

impl Clock {
    pub(crate) fn new() -> Rc<Clock> {
        let clock = Clock {
            origin: now(),
            unix_origin: Cell::new(0),
            coarse: Cell::new(0),
            entries: RefCell::default(),
            free: RefCell::default(),
        };
        clock.set_unix_origin();
        Rc::new(clock)
    }

    fn set_unix_origin(&self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        self.unix_origin.set(unix.saturating_sub(self.coarse.get()));
    }

    /// Microseconds since the worker began, exact.
    #[inline]
    pub(crate) fn micros(&self) -> u64 {
        now().duration_since(self.origin).as_micros() as u64
    }

    /// Unix milliseconds for a reading of [`Clock::micros`].
    #[inline]
    pub(crate) fn unix_ms(&self, micros: u64) -> u64 {
        self.unix_origin.get() + micros / 1000
    }

    /// Milliseconds since the worker began, up to one tick old.
    #[inline]
    pub(crate) fn coarse_ms(&self) -> u64 {
        self.coarse.get()
    }

    /// A deadline that far from now, never early.
    #[inline]
    pub(crate) fn after(&self, duration: Duration) -> u64 {
        self.coarse.get().saturating_add((duration + TICK).as_millis() as u64)
    }

    #[inline]
    pub(crate) fn is_over(&self, deadline: u64) -> bool {
        self.coarse.get() >= deadline
    }

    /// Reads the time and wakes every task whose deadline has passed. The wall clock is
    /// read again each time, so a step of it is followed and never ends a wait.
    pub(crate) fn tick(&self) {
        let now_ms = self.micros() / 1000;
        self.coarse.set(now_ms);
        self.set_unix_origin();
        for entry in self.entries.borrow_mut().iter_mut() {
            if entry.deadline <= now_ms {
                entry.deadline = NEVER;
                if let Some(waker) = &entry.waker {
                    waker.wake_by_ref();
                }
            }
        }
    }

    /// Wakes every waiting task, so that each looks at the worker's state again.
    pub(crate) fn wake_all(&self) {
        for entry in self.entries.borrow().iter() {
            if let Some(waker) = &entry.waker {
                waker.wake_by_ref();
            }
        }
    }

    pub(crate) fn waiter(self: &Rc<Clock>) -> Waiter {
        let entry = Entry { deadline: NEVER, waker: None };
        let index = match self.free.borrow_mut().pop() {
            Some(index) => {
                self.entries.borrow_mut()[index] = entry;
                index
            }
            None => {
                let mut entries = self.entries.borrow_mut();
                entries.push(entry);
                entries.len() - 1
            }
        };
        Waiter { clock: self.clone(), index }
    }
}

impl Waiter {
    /// Polls until it is ready or the deadline has passed.
    #[inline]
    pub(crate) async fn until<T>(
        &self,
        deadline: u64,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Elapsed> {
        poll_fn(|cx| match poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => self.poll_elapsed(deadline, cx),
        })
        .await
    }

    /// Ready once the deadline has passed; else makes sure this task is woken then.
    #[inline]
    pub(crate) fn poll_elapsed<T>(&self, deadline: u64, cx: &mut Context<'_>) -> Poll<Result<T, Elapsed>> {
        if self.clock.is_over(deadline) {
            return Poll::Ready(Err(Elapsed));
        }
        let entry = &mut self.clock.entries.borrow_mut()[self.index];
        entry.deadline = deadline;
        match &entry.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => entry.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut entries = self.clock.entries.borrow_mut();
        entries[self.index] = Entry { deadline: NEVER, waker: None };
        self.clock.free.borrow_mut().push(self.index);
    }
}

/// The monotonic clock, read in this one place of the data plane.
#[allow(clippy::disallowed_methods)]
#[inline]
fn now() -> Instant {
    #[cfg(debug_assertions)]
    READS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Instant::now()
}

#[cfg(debug_assertions)]
static READS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// How often the data plane has read its clock, counted in debug builds: for the test of what a
/// request may cost.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub fn clock_reads() -> u64 {
    READS.load(std::sync::atomic::Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wait_ends_after_its_deadline_and_not_before() {
        let clock = Clock::new();
        let waiter = clock.waiter();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let deadline = clock.after(Duration::from_millis(1));
        let mut wait = pin!(waiter.until::<()>(deadline, |_| Poll::Pending));
        use std::future::Future;
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        clock.tick();
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "not yet");
        std::thread::sleep(TICK + Duration::from_millis(5));
        clock.tick();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(Elapsed)));
    }

    #[test]
    fn places_are_used_again() {
        let clock = Clock::new();
        for _ in 0..10 {
            drop((clock.waiter(), clock.waiter()));
        }
        assert_eq!(clock.entries.borrow().len(), 2);
    }
}
