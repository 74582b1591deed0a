//! Timers of a worker: a list of deadlines, and one timer of the kernel (`timerfd`) for the earliest of them.
//!
//! Tokio's own timers read the clock twice each time a worker asks for events: a twentieth of the instructions of a plain
//! request, which needs none of them. These cost nothing unless one is set.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

use super::now;

/// The shortest wait: a task that sleeps in a loop lets others run, however short its times are.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest wait, which stands for an endless one: about thirty years.
const LONGEST: Duration = Duration::from_secs(1 << 30);

thread_local! {
    static TIMERS: RefCell<Option<Timers>> = const { RefCell::new(None) };
}

struct Timers {
    kernel: Rc<Receiver>,
    /// The deadline that the kernel's timer is set to.
    set_to: Option<Instant>,
    waiting: BTreeMap<Key, Waker>,
    /// Number of timers so far.
    count: u64,
}

/// Deadlines may be equal: the number tells such timers apart.
type Key = (Instant, u64);

/// This thread has timers until it is dropped.
pub(super) struct Started(());

/// Starts the timers of this thread. Called within its runtime.
///
/// # Errors
/// The kernel gives no timer, for want of file descriptors.
pub(super) fn start() -> io::Result<Started> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    // It is read like a pipe, and tokio has no type of its own for it.
    let kernel = Rc::new(Receiver::from_owned_fd_unchecked(timer)?);
    super::spawn(wake_when_due(kernel.clone()));
    TIMERS.set(Some(Timers { kernel, set_to: None, waiting: BTreeMap::new(), count: 0 }));
    Ok(Started(()))
}

impl Drop for Started {
    fn drop(&mut self) {
        // Dropped here, where the list is no longer borrowed: a waker may hold a task, and a task timers.
        let _stopped = TIMERS.take();
    }
}

async fn wake_when_due(kernel: Rc<Receiver>) {
    while kernel.readable().await.is_ok() {
        // Not read: epoll tells each time that it expires, and the number of times does not matter.
        let _ = kernel.try_io(|| Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        let due = with(Timers::take_due).unwrap_or_default();
        due.into_values().for_each(Waker::wake);
    }
}

fn with<T>(f: impl FnOnce(&mut Timers) -> T) -> Option<T> {
    TIMERS.try_with(|timers| timers.borrow_mut().as_mut().map(f)).ok().flatten()
}

impl Timers {
    fn take_due(&mut self) -> BTreeMap<Key, Waker> {
        self.set_to = None;
        let later = self.waiting.split_off(&(now(), u64::MAX));
        let due = std::mem::replace(&mut self.waiting, later);
        self.set();
        due
    }

    fn add(&mut self, deadline: Instant, waker: &Waker) -> Key {
        self.count += 1;
        let key = (deadline, self.count);
        self.waiting.insert(key, waker.clone());
        self.set();
        key
    }

    /// Sets the kernel's timer, unless it is set to a time before the first deadline: it may expire for nothing.
    fn set(&mut self) {
        let Some((&(first, _), _)) = self.waiting.first_key_value() else { return };
        if self.set_to.is_some_and(|set_to| set_to <= first) {
            return;
        }
        // Zero would switch it off.
        let wait = first.saturating_duration_since(now()).max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if timerfd_settime(&*self.kernel, TimerfdTimerFlags::empty(), &once).is_ok() {
            self.set_to = Some(first);
        }
    }
}

/// Ends at a deadline, never before it. `Send` as `quinn` requires it, but polled and dropped on its worker's thread:
/// on another one its key has no meaning.
#[derive(Debug)]
pub(crate) struct Sleep {
    deadline: Instant,
    /// Its place in the list, which may have an earlier deadline: then it waits again.
    key: Option<Key>,
    /// On a runtime whose clock jumps, which has timers of its own.
    #[cfg(feature = "testing")]
    jumping: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Sleep {
    pub(super) fn until(deadline: Instant) -> Sleep {
        Sleep {
            deadline,
            key: None,
            #[cfg(feature = "testing")]
            jumping: with(|_| ()).is_none().then(|| Box::pin(tokio::time::sleep_until(deadline.into()))),
        }
    }

    pub(super) fn after(duration: Duration) -> Sleep {
        Sleep::until(now() + duration.clamp(SHORTEST, LONGEST))
    }

    /// Changes the deadline. Takes effect with the next poll.
    pub(super) fn reset(&mut self, deadline: Instant) {
        self.deadline = deadline;
        #[cfg(feature = "testing")]
        if let Some(jumping) = &mut self.jumping {
            jumping.as_mut().reset(deadline.into());
        }
    }

    fn wait(&mut self, waker: &Waker) {
        let Sleep { deadline, key, .. } = self;
        // Dropped where the list is no longer borrowed: a waker may hold other timers.
        let _previous = with(|timers| {
            if let Some(place) = key.filter(|key| key.0 <= *deadline)
                && let Some(known) = timers.waiting.get_mut(&place)
            {
                return (!known.will_wake(waker)).then(|| std::mem::replace(known, waker.clone()));
            }
            let previous = key.take().and_then(|place| timers.waiting.remove(&place));
            *key = Some(timers.add(*deadline, waker));
            previous
        });
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "testing")]
        if let Some(jumping) = &mut self.jumping {
            return jumping.as_mut().poll(cx);
        }
        if now() >= self.deadline {
            return Poll::Ready(());
        }
        self.wait(cx.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let _waker = with(|timers| timers.waiting.remove(&key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{run, sleep, spawn, turn};

    async fn poll(sleep: &mut Sleep) -> Poll<()> {
        std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *sleep).poll(cx))).await
    }

    fn waiting() -> usize {
        with(|timers| timers.waiting.len()).unwrap()
    }

    #[test]
    fn sleeps_end_in_the_order_of_their_deadlines_and_never_early() {
        run(async {
            let began = now();
            let ended = Rc::new(RefCell::new(Vec::new()));
            for ms in [30, 10, 20, 10, 1] {
                let ended = ended.clone();
                spawn(async move {
                    sleep(Duration::from_millis(ms)).await;
                    assert!(now() - began >= Duration::from_millis(ms));
                    ended.borrow_mut().push(ms);
                });
            }
            sleep(Duration::from_millis(40)).await;
            assert_eq!(*ended.borrow(), [1, 10, 10, 20, 30]);
            assert_eq!(waiting(), 0);
        })
        .unwrap();
    }

    #[test]
    fn a_sleep_that_is_dropped_leaves_the_list() {
        run(async {
            let (mut long, short) = (Box::pin(sleep(Duration::MAX)), sleep(Duration::from_millis(1)));
            crate::rt::either(&mut long, short).await.unwrap_err();
            assert_eq!(waiting(), 1);
            drop(long);
            assert_eq!(waiting(), 0);
        })
        .unwrap();
    }

    #[test]
    fn sleeping_in_a_loop_lets_others_run() {
        run(async {
            let has_run = Rc::new(std::cell::Cell::new(false));
            let other = has_run.clone();
            spawn(async move { other.set(true) });
            for _ in 0..3 {
                sleep(Duration::ZERO).await;
            }
            assert!(has_run.get());
        })
        .unwrap();
    }

    /// A waker that holds a timer.
    struct Holds {
        _sleep: Sleep,
    }

    impl std::task::Wake for Holds {
        fn wake(self: std::sync::Arc<Self>) {}
    }

    #[test]
    fn a_replaced_waker_may_hold_a_timer() {
        run(async {
            let long = || Sleep::after(Duration::from_secs(3600));
            let mut sleep = long();
            for moves in [false, true] {
                let mut held = long();
                assert!(poll(&mut held).await.is_pending());
                let waker = Waker::from(std::sync::Arc::new(Holds { _sleep: held }));
                assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
                drop(waker);
                assert_eq!(waiting(), 2);
                if moves {
                    sleep.reset(now() + Duration::from_secs(60));
                }
                assert!(poll(&mut sleep).await.is_pending());
                assert_eq!(waiting(), 1);
            }
        })
        .unwrap();
    }

    #[test]
    fn a_deadline_may_move_both_ways() {
        run(async {
            let began = now();
            let mut moved = Sleep::after(Duration::from_secs(3600));
            assert!(poll(&mut moved).await.is_pending());
            moved.reset(began + Duration::from_millis(5));
            assert!(poll(&mut moved).await.is_pending());
            assert_eq!(waiting(), 1);
            moved.reset(began + Duration::from_millis(20));
            moved.await;
            assert!(now() - began >= Duration::from_millis(20));
            turn().await;
            assert_eq!(waiting(), 0);
        })
        .unwrap();
    }
}
