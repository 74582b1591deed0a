//! hot path
//!
//! A worker's tasks and the queue of those that are ready.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::remote::Remote;

thread_local! {
    /// Tasks of this thread that are to be polled, oldest first.
    static READY: RefCell<VecDeque<u32>> = const { RefCell::new(VecDeque::new()) };
    /// Whose thread this is: compared only, never followed.
    static HERE: Cell<*const Remote> = const { Cell::new(ptr::null()) };
}

/// What a waker leads to.
struct Handle {
    task: u32,
    /// It is in a queue, or has ended.
    queued: AtomicBool,
    remote: Arc<Remote>,
}

impl Wake for Handle {
    fn wake(self: Arc<Handle>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Handle>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if ptr::eq(HERE.get(), Arc::as_ptr(&self.remote)) {
            READY.with_borrow_mut(|ready| ready.push_back(self.task));
        } else {
            self.remote.push(self.task);
        }
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    handle: Arc<Handle>,
    waker: Waker,
}

/// All tasks of a worker.
pub(super) struct Tasks {
    /// A task is away from its place while it is polled.
    places: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<u32>>,
    remote: Arc<Remote>,
}

impl Tasks {
    /// Makes this thread theirs.
    pub(super) fn new() -> std::io::Result<Tasks> {
        let remote = Arc::new(Remote::new()?);
        let tasks = Tasks { places: RefCell::default(), free: RefCell::default(), remote };
        READY.with_borrow_mut(VecDeque::clear);
        HERE.set(Arc::as_ptr(&tasks.remote));
        Ok(tasks)
    }

    /// Readable, once another thread has made a task ready.
    pub(super) fn event(&self) -> std::os::fd::BorrowedFd<'_> {
        self.remote.event()
    }

    /// The event was seen: takes over what other threads have made ready.
    pub(super) fn collect_remote(&self) {
        READY.with_borrow_mut(|ready| self.remote.take(ready));
    }

    pub(super) fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut places = self.places.borrow_mut();
        let task = self.free.borrow_mut().pop().unwrap_or_else(|| {
            places.push(None);
            (places.len() - 1) as u32
        });
        let handle = Arc::new(Handle { task, queued: AtomicBool::new(true), remote: self.remote.clone() });
        let waker = Waker::from(handle.clone());
        places[task as usize] = Some(Task { future: Box::pin(future), handle, waker });
        READY.with_borrow_mut(|ready| ready.push_back(task));
    }

    /// Polls each task that is ready now, once. A panic ends its task and is passed on.
    pub(super) fn run(&self, mut on_panic: impl FnMut(u32, Box<dyn Any + Send>)) {
        for _ in 0..READY.with_borrow(VecDeque::len) {
            let Some(index) = READY.with_borrow_mut(VecDeque::pop_front) else { break };
            let Some(mut task) = self.places.borrow_mut()[index as usize].take() else { continue };
            task.handle.queued.store(false, Ordering::Release);
            let mut cx = Context::from_waker(&task.waker);
            let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(&mut cx)));
            if let Ok(Poll::Pending) = polled {
                self.places.borrow_mut()[index as usize] = Some(task);
                continue;
            }
            // Wakers that outlive the task shall not wake its successor.
            task.handle.queued.store(true, Ordering::Release);
            if let Err(panic) = polled {
                on_panic(index, panic);
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(task))) {
                on_panic(index, panic);
            }
            self.free.borrow_mut().push(index);
        }
    }

    /// Nothing is left to poll.
    pub(super) fn are_idle(&self) -> bool {
        READY.with_borrow(VecDeque::is_empty)
    }

    /// Drops all tasks, with what they hold.
    pub(super) fn clear(&self) {
        let count = self.places.borrow().len();
        for index in 0..count {
            let task = self.places.borrow_mut()[index].take();
            drop(task);
        }
        HERE.set(ptr::null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_task_is_polled_when_woken_from_here_and_from_elsewhere() {
        let tasks = Tasks::new().unwrap();
        let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
        let polls = Rc::new(Cell::new(0));
        let (kept, counted) = (waker.clone(), polls.clone());
        tasks.spawn(std::future::poll_fn(move |cx| {
            counted.set(counted.get() + 1);
            *kept.borrow_mut() = Some(cx.waker().clone());
            if counted.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
        }));
        let run = || tasks.run(|_, _| panic!("nothing panics"));
        run();
        assert_eq!((polls.get(), tasks.are_idle()), (1, true));
        let waker = waker.borrow_mut().take().unwrap();
        waker.wake_by_ref();
        waker.wake_by_ref();
        run();
        assert_eq!((polls.get(), tasks.are_idle()), (2, true), "once, however often it is woken");
        std::thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
        });
        assert!(tasks.are_idle());
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(tasks.event(), &mut count), Ok(8), "the event was raised");
        tasks.collect_remote();
        run();
        assert_eq!(polls.get(), 3);
        waker.wake();
        assert!(tasks.are_idle(), "it has ended");
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let tasks = Tasks::new().unwrap();
        let done = Rc::new(Cell::new(false));
        let seen = done.clone();
        tasks.spawn(async { panic!("as expected") });
        tasks.spawn(async move { seen.set(true) });
        let mut panics = 0;
        tasks.run(|_, _| panics += 1);
        assert_eq!((panics, done.get()), (1, true));
    }
}
