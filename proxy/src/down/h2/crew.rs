//! hot path
//!
//! The exchanges of one connection, polled by the connection's task.
//!
//! A task of the runtime for each stream would cost an allocation, and two more polls of tasks for each request: the
//! connection's task runs anyway when a request comes in and when a response goes out.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::rt;

/// An exchange on a stream.
pub(super) type Exchange = Pin<Box<dyn Future<Output = ()>>>;

/// Exchanges whose state is in one word; the last bit is [`AWAKE`].
const GROUP: usize = 63;

/// The connection's task runs, and will look at the word: it need not be woken.
const AWAKE: u64 = 1 << GROUP;

/// The exchanges of one connection.
#[derive(Default)]
pub(super) struct Crew {
    members: Vec<Member>,
    free: Vec<usize>,
    groups: Vec<Arc<Group>>,
}

struct Member {
    exchange: Option<Exchange>,
    waker: Waker,
}

/// Up to [`GROUP`] exchanges.
struct Group {
    /// The exchanges that were woken.
    woken: AtomicU64,
    /// Of the connection's task.
    driver: Waker,
}

/// Wakes one exchange.
struct Alarm {
    group: Arc<Group>,
    bit: u64,
}

impl Wake for Alarm {
    fn wake(self: Arc<Alarm>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Alarm>) {
        if self.group.woken.fetch_or(self.bit, Ordering::AcqRel) == 0 {
            self.group.driver.wake_by_ref();
        }
    }
}

impl Crew {
    /// The connection's task runs: until [`Crew::poll`], it is not woken for exchanges.
    pub(super) fn begin_turn(&mut self, cx: &Context<'_>) {
        for group in &self.groups {
            group.woken.fetch_or(AWAKE, Ordering::AcqRel);
        }
        if self.groups.first().is_some_and(|group| !group.driver.will_wake(cx.waker())) {
            self.follow(cx);
        }
    }

    /// Another task drives the connection from here on: all exchanges are polled, so that they note their new wakers.
    #[cold]
    fn follow(&mut self, cx: &Context<'_>) {
        self.groups.clear();
        for index in 0..self.members.len() {
            self.members[index].waker = self.waker(index, cx);
            self.wake(index);
        }
    }

    /// Adds an exchange, which the next [`Crew::poll`] begins.
    pub(super) fn add(&mut self, exchange: Exchange, cx: &Context<'_>) {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let waker = self.waker(self.members.len(), cx);
                self.members.push(Member { exchange: None, waker });
                self.members.len() - 1
            }
        };
        self.members[index].exchange = Some(exchange);
        self.wake(index);
    }

    /// The waker of a member.
    fn waker(&mut self, index: usize, cx: &Context<'_>) -> Waker {
        if index / GROUP == self.groups.len() {
            let group = Group { woken: AtomicU64::new(AWAKE), driver: cx.waker().clone() };
            self.groups.push(Arc::new(group));
        }
        Arc::new(Alarm { group: self.groups[index / GROUP].clone(), bit: 1 << (index % GROUP) }).into()
    }

    fn wake(&self, index: usize) {
        self.groups[index / GROUP].woken.fetch_or(1 << (index % GROUP), Ordering::AcqRel);
    }

    /// Polls the exchanges that were woken. One that panics ends alone, as a task of its own would.
    pub(super) fn poll(&mut self) {
        for (number, group) in self.groups.iter().enumerate() {
            let mut woken = group.woken.swap(0, Ordering::AcqRel) & !AWAKE;
            while woken != 0 {
                let index = number * GROUP + woken.trailing_zeros() as usize;
                woken &= woken - 1;
                let member = &mut self.members[index];
                if member.exchange.is_none() {
                    // Its waker outlived it.
                    continue;
                }
                let _ = catch_unwind(AssertUnwindSafe(|| member.poll()));
                if member.exchange.is_none() {
                    self.free.push(index);
                }
            }
        }
    }

    /// Gives the exchanges that are left tasks of their own: the connection is over, and they find that out.
    pub(super) fn disperse(self) {
        for exchange in self.members.into_iter().filter_map(|member| member.exchange) {
            rt::spawn_unboxed(exchange);
        }
    }

    /// Frees all memory if there are no exchanges.
    pub(super) fn release(&mut self) {
        if self.free.len() == self.members.len() {
            *self = Crew::default();
        }
    }
}

impl Member {
    #[inline]
    fn poll(&mut self) {
        /// Ends the exchange unless it waits; while unwinding as well.
        struct Held<'a>(&'a mut Option<Exchange>, bool);

        impl Drop for Held<'_> {
            #[inline]
            fn drop(&mut self) {
                if !self.1 {
                    *self.0 = None;
                }
            }
        }

        let mut held = Held(&mut self.exchange, false);
        let mut cx = Context::from_waker(&self.waker);
        held.1 = held.0.as_mut().is_some_and(|exchange| exchange.as_mut().poll(&mut cx) == Poll::Pending);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};
    use std::rc::Rc;

    use super::*;
    use crate::clock::tests::count;

    /// Waits until it is woken `wakes` times; notes its polls and its waker.
    fn waits(wakes: usize, polls: &Rc<Cell<usize>>, waker: &Rc<Cell<Option<Waker>>>) -> Exchange {
        let (polls, waker, mut left) = (polls.clone(), waker.clone(), wakes);
        Box::pin(poll_fn(move |cx| {
            polls.set(polls.get() + 1);
            waker.set(Some(cx.waker().clone()));
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            Poll::Pending
        }))
    }

    #[test]
    fn only_woken_exchanges_are_polled_and_they_wake_the_task() {
        let (woken, driver) = count();
        let cx = Context::from_waker(&driver);
        let mut crew = Crew::default();
        let polls: Vec<Rc<Cell<usize>>> = (0..200).map(|_| Rc::default()).collect();
        let wakers: Vec<Rc<Cell<Option<Waker>>>> = (0..200).map(|_| Rc::default()).collect();
        crew.begin_turn(&cx);
        for (polls, waker) in polls.iter().zip(&wakers) {
            crew.add(waits(1, polls, waker), &cx);
        }
        crew.poll();
        assert!(polls.iter().all(|polls| polls.get() == 1));
        assert_eq!(woken.so_far(), 0, "the task runs");
        let wake = |index: usize| wakers[index].take().unwrap().wake();
        wake(70);
        assert_eq!(woken.so_far(), 1);
        wake(64);
        assert_eq!(woken.so_far(), 1, "once for all of a group");
        crew.begin_turn(&cx);
        wake(3);
        assert_eq!(woken.so_far(), 1, "the task runs");
        crew.poll();
        let polled: Vec<usize> = (0..200).filter(|index| polls[*index].get() == 2).collect();
        assert_eq!((polled, crew.free.len()), (vec![3, 64, 70], 3));
        // Their wakers outlive them.
        wake(64);
        crew.begin_turn(&cx);
        crew.poll();
        assert_eq!((polls[64].get(), crew.free.len(), crew.members.len()), (2, 3, 200));
        let (again, waker) = (Rc::default(), Rc::default());
        crew.add(waits(0, &again, &waker), &cx);
        crew.poll();
        assert_eq!((again.get(), crew.free.len(), crew.members.len()), (1, 3, 200), "in a free place");
    }

    #[test]
    fn another_task_is_followed() {
        let (first, driver) = count();
        let mut crew = Crew::default();
        let (polls, waker) = (Rc::default(), Rc::default());
        crew.add(waits(2, &polls, &waker), &Context::from_waker(&driver));
        crew.poll();
        let (second, driver) = count();
        crew.begin_turn(&Context::from_waker(&driver));
        crew.poll();
        assert_eq!(polls.get(), 2, "so that it notes its waker");
        waker.take().unwrap().wake();
        assert_eq!((first.so_far(), second.so_far()), (0, 1));
    }

    #[test]
    fn an_exchange_that_panics_ends_alone() {
        /// Notes whether it is dropped in a panic.
        struct Dropped(Rc<Cell<Option<bool>>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.set(Some(std::thread::panicking()));
            }
        }
        let (_, driver) = count();
        let cx = Context::from_waker(&driver);
        let mut crew = Crew::default();
        let dropped = Rc::new(Cell::new(None));
        let held = Dropped(dropped.clone());
        crew.add(
            Box::pin(async move {
                let _held = held;
                panic!("in a stream");
            }),
            &cx,
        );
        let (polls, waker) = (Rc::default(), Rc::default());
        crew.add(waits(1, &polls, &waker), &cx);
        crew.poll();
        assert_eq!((dropped.get(), polls.get(), crew.free.len()), (Some(true), 1, 1));
        crew.release();
        assert_eq!(crew.members.len(), 2, "an exchange is left");
        waker.take().unwrap().wake();
        crew.poll();
        crew.release();
        assert_eq!(crew.members.capacity(), 0);
        crew.add(Box::pin(pending()), &cx);
        crew.poll();
        assert_eq!(crew.free.len(), 0);
    }
}
