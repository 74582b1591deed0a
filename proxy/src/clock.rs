//! hot path
//!
//! Time on a worker: a coarse clock and one list of deadlines.
//!
//! A timer per wait costs more than the wait. Instead every task has one entry
//! in a list; a wait writes its deadline there, and a tick, a few times a
//! second, wakes the tasks whose deadline has passed. Deadlines are never early
//! and at most two ticks late.
//!
//! The clock runs while the worker does: a process that was stopped, or that had
//! no processor, could not see what its peers did, so that time is not theirs.
//! For the same reason the kernel is asked once more for events before a
//! deadline counts as passed ([`Clock::advance`], then [`Clock::strike`]).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::rt;

/// Time between two looks at the deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// The most that one tick adds to the clock: a tick that is a little late counts in full.
const STEP: Duration = Duration::from_millis(75);

const NEVER: u64 = u64::MAX;

/// A worker's clock.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The value of [`Clock::steady_ms`] at `origin`.
    steady_origin: u64,
    /// Unix milliseconds at `origin`.
    unix_origin: Cell<u64>,
    /// Milliseconds since `origin`, as of the last tick.
    looked: Cell<u64>,
    /// Milliseconds the worker has run, as of the last tick.
    coarse: Cell<u64>,
    /// The deadlines up to here have passed.
    struck: Cell<u64>,
    entries: RefCell<Vec<Timer>>,
    free: RefCell<Vec<usize>>,
    /// Counts waits without anything to do, so that the longest of them is known.
    rests: Cell<u64>,
}

#[derive(Debug)]
struct Timer {
    deadline: u64,
    waker: Option<Waker>,
    rest: Rest,
    /// Its rest was ended, and it has not begun another one.
    gives_way: bool,
}

/// Whether a wait may be ended to make room for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// No: something is on its way.
    Busy,
    /// Yes; what began earlier has the smaller number.
    Since(u64),
    /// It is to end.
    Over,
}

/// When the first worker began, and the Unix milliseconds of that moment: steady time counts from there,
/// the same for all workers.
static BEGAN: OnceLock<(Instant, u64)> = OnceLock::new();

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
        let origin = now();
        let (began, unix) = *BEGAN.get_or_init(|| (origin, unix_now()));
        let clock = Clock {
            origin,
            steady_origin: unix + origin.saturating_duration_since(began).as_millis() as u64,
            unix_origin: Cell::new(0),
            looked: Cell::new(0),
            coarse: Cell::new(0),
            struck: Cell::new(0),
            entries: RefCell::default(),
            free: RefCell::default(),
            rests: Cell::new(0),
        };
        clock.set_unix_origin();
        Rc::new(clock)
    }

    fn set_unix_origin(&self) {
        self.unix_origin.set(unix_now().saturating_sub(self.looked.get()));
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

    /// Milliseconds of a clock that cannot be set: see [`sdk::World::steady_ms`].
    #[inline]
    pub(crate) fn steady_ms(&self) -> u64 {
        self.steady_ms_at(self.micros())
    }

    /// As [`Clock::steady_ms`], for a reading of [`Clock::micros`].
    #[inline]
    pub(crate) fn steady_ms_at(&self, micros: u64) -> u64 {
        self.steady_origin + micros / 1000
    }

    /// Unix milliseconds as of the last tick.
    #[inline]
    pub(crate) fn coarse_unix_ms(&self) -> u64 {
        self.unix_ms(self.looked.get() * 1000)
    }

    /// Milliseconds the worker has run, up to one tick old. Time in which it could not run is
    /// left out.
    #[inline]
    pub(crate) fn coarse_ms(&self) -> u64 {
        self.coarse.get()
    }

    /// A deadline that far from now, never early.
    #[inline]
    pub(crate) fn after(&self, duration: Duration) -> u64 {
        self.coarse.get().saturating_add(duration.saturating_add(STEP).as_millis() as u64)
    }

    #[inline]
    pub(crate) fn is_over(&self, deadline: u64) -> bool {
        self.struck.get() >= deadline
    }

    /// The first half of a tick: reads the time, and says whether it brings a deadline to its
    /// end. If so, the tasks for which the kernel has events by now are to run before
    /// [`Clock::strike`]. The wall clock is read again each time, so a step of it is followed
    /// and never ends a wait.
    pub(crate) fn advance(&self) -> bool {
        self.advance_to(self.micros() / 1000)
    }

    fn advance_to(&self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.looked.get());
        self.looked.set(now_ms);
        self.set_unix_origin();
        let coarse = self.coarse.get() + passed.min(STEP.as_millis() as u64);
        self.coarse.set(coarse);
        self.entries.borrow().iter().any(|entry| entry.deadline <= coarse)
    }

    /// The second half: wakes every task whose deadline has passed.
    pub(crate) fn strike(&self) {
        let now = self.coarse.get();
        self.struck.set(now);
        for entry in self.entries.borrow_mut().iter_mut() {
            if entry.deadline <= now {
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

    /// Tells those that have rested longest that their wait is over: an eighth of all that rest,
    /// at least one and at most `most`. Says how many.
    #[cold]
    pub(crate) fn end_longest_rests(&self, most: usize) -> usize {
        let mut entries = self.entries.borrow_mut();
        let mut since: Vec<u64> = entries
            .iter()
            .filter_map(|entry| match entry.rest {
                Rest::Since(rest) => Some(rest),
                Rest::Busy | Rest::Over => None,
            })
            .collect();
        let count = since.len().div_ceil(8).min(most);
        if count == 0 {
            return 0;
        }
        let (_, &mut last, _) = since.select_nth_unstable(count - 1);
        for entry in entries.iter_mut() {
            if matches!(entry.rest, Rest::Since(rest) if rest <= last) {
                entry.rest = Rest::Over;
                entry.gives_way = true;
                if let Some(waker) = &entry.waker {
                    waker.wake_by_ref();
                }
            }
        }
        count
    }

    /// How many of those have not ended yet.
    #[cold]
    pub(crate) fn giving_way(&self) -> usize {
        self.entries.borrow().iter().filter(|entry| entry.gives_way).count()
    }

    /// How many tasks may wait here.
    pub(crate) fn waiters(&self) -> usize {
        self.entries.borrow().len()
    }

    pub(crate) fn waiter(self: &Rc<Clock>) -> Waiter {
        let entry = Timer { deadline: NEVER, waker: None, rest: Rest::Busy, gives_way: false };
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

    /// From now on the wait is for nothing that has begun, so that it may be ended to make room.
    #[inline]
    pub(crate) fn rest(&self) {
        let number = self.clock.rests.get() + 1;
        self.clock.rests.set(number);
        let entry = &mut self.clock.entries.borrow_mut()[self.index];
        (entry.rest, entry.gives_way) = (Rest::Since(number), false);
    }

    /// Whether its rest is to end.
    #[inline]
    pub(crate) fn is_unwanted(&self) -> bool {
        self.clock.entries.borrow()[self.index].rest == Rest::Over
    }

    /// There is something to do.
    #[inline]
    pub(crate) fn end_rest(&self) {
        self.clock.entries.borrow_mut()[self.index].rest = Rest::Busy;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut entries = self.clock.entries.borrow_mut();
        entries[self.index] = Timer { deadline: NEVER, waker: None, rest: Rest::Busy, gives_way: false };
        self.clock.free.borrow_mut().push(self.index);
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The monotonic clock, read in this one place of the data plane.
#[inline]
fn now() -> Instant {
    #[cfg(debug_assertions)]
    READS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    rt::now()
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
pub(crate) mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    /// Counts how often a task is woken.
    pub(crate) struct Count(AtomicUsize);

    impl Count {
        pub(crate) fn so_far(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        (count.clone(), Waker::from(count))
    }

    #[test]
    fn a_wait_ends_after_its_deadline_and_not_before() {
        let clock = Clock::new();
        let waiter = clock.waiter();
        let (count, waker) = count();
        let mut cx = Context::from_waker(&waker);
        clock.advance_to(1000);
        clock.strike();
        let deadline = clock.after(Duration::from_millis(100));
        let mut wait = pin!(waiter.until::<()>(deadline, |_| Poll::Pending));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        // It may have begun a whole step after the tick before.
        for now in [1050, 1100, 1150, 1174] {
            assert!(!clock.advance_to(now), "at {now}");
            clock.strike();
            assert!(wait.as_mut().poll(&mut cx).is_pending());
        }
        assert_eq!(count.so_far(), 0, "not yet");
        assert!(clock.advance_to(1175), "a deadline ends");
        assert!(wait.as_mut().poll(&mut cx).is_pending(), "but what the kernel has goes first");
        clock.strike();
        assert_eq!(count.so_far(), 1);
        assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Err(Elapsed)));
    }

    #[test]
    fn what_is_there_goes_before_the_deadline() {
        let clock = Clock::new();
        let waiter = clock.waiter();
        let (_, waker) = count();
        let mut cx = Context::from_waker(&waker);
        let ready = Cell::new(false);
        let deadline = clock.after(Duration::ZERO);
        let mut wait =
            pin!(waiter.until(deadline, |_| if ready.get() { Poll::Ready(()) } else { Poll::Pending }));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        assert!(clock.advance_to(75));
        ready.set(true);
        clock.strike();
        assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    }

    #[test]
    fn time_in_which_the_worker_did_not_run_is_nobody_s() {
        let clock = Clock::new();
        clock.advance_to(1000);
        let before = clock.coarse_ms();
        let deadline = clock.after(Duration::from_millis(200));
        clock.advance_to(61_000);
        clock.strike();
        assert_eq!(clock.coarse_ms() - before, STEP.as_millis() as u64);
        assert!(!clock.is_over(deadline));
        // The date follows all the same.
        assert!(clock.coarse_unix_ms() - clock.unix_ms(0) == 61_000);
        // A deadline made between the halves of a tick is not early either.
        clock.advance_to(62_000);
        let deadline = clock.after(Duration::ZERO);
        clock.strike();
        assert!(!clock.is_over(deadline));
    }

    #[test]
    fn steady_time_is_no_wall_clock_and_the_same_for_all_workers() {
        let (clock, other) = (Clock::new(), Clock::new());
        let before = clock.steady_ms();
        // As after a step of the wall clock by a year.
        clock.unix_origin.set(clock.unix_origin.get() + 31_536_000_000);
        assert!(clock.unix_ms(clock.micros()) > before + 31_000_000_000);
        let between = other.steady_ms();
        let after = clock.steady_ms();
        // Each of them cuts off less than a millisecond.
        assert!(before <= between + 1 && between <= after + 1, "{before} {between} {after}");
    }

    #[test]
    fn steady_time_begins_with_the_date_and_goes_on() {
        rt::run_paused(async {
            let clock = Clock::new();
            // It is later than 2023.
            assert!(unix_now() > 1_700_000_000_000 && clock.steady_ms() > 1_700_000_000_000);
            let before = clock.steady_ms();
            rt::sleep(Duration::from_secs(5)).await;
            assert!((5000..=5002).contains(&(clock.steady_ms() - before)));
        })
        .unwrap();
    }

    #[test]
    fn whoever_waits_last_is_woken() {
        let clock = Clock::new();
        let waiter = clock.waiter();
        let (first, second) = (count(), count());
        for (_, waker) in [&first, &second] {
            let mut cx = Context::from_waker(waker);
            assert!(waiter.poll_elapsed::<()>(NEVER - 1, &mut cx).is_pending());
        }
        clock.wake_all();
        assert_eq!([first, second].map(|(count, _)| count.so_far()), [0, 1]);
    }

    #[test]
    fn those_that_rested_longest_go_first() {
        let clock = Clock::new();
        let waiters: Vec<_> = (0..17).map(|_| clock.waiter()).collect();
        assert_eq!(clock.end_longest_rests(32), 0, "no waiter rests");
        for waiter in waiters.iter().rev() {
            waiter.rest();
        }
        waiters[16].end_rest();
        let (count, waker) = count();
        let mut cx = Context::from_waker(&waker);
        for waiter in &waiters {
            assert!(waiter.poll_elapsed::<()>(NEVER - 1, &mut cx).is_pending());
        }
        assert_eq!(clock.end_longest_rests(32), 2, "an eighth of sixteen");
        assert_eq!(count.so_far(), 2);
        let unwanted: Vec<usize> = (0..17).filter(|&at| waiters[at].is_unwanted()).collect();
        assert_eq!(unwanted, [14, 15]);
        assert_eq!(clock.end_longest_rests(1), 1, "those give way already");
        assert!(waiters[13].is_unwanted());
        assert_eq!(clock.giving_way(), 3);
        waiters[13].rest();
        assert!(!waiters[13].is_unwanted(), "it began again");
        assert_eq!(clock.giving_way(), 2);
        waiters[14].end_rest();
        assert_eq!(clock.giving_way(), 2, "it ends, and has not ended");
        drop(waiters);
        assert_eq!(clock.giving_way(), 0);
    }

    #[test]
    fn places_are_used_again() {
        let clock = Clock::new();
        for _ in 0..10 {
            drop((clock.waiter(), clock.waiter()));
        }
        assert_eq!(clock.waiters(), 2);
    }
}
