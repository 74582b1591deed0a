//! Waits for entries on a dedicated thread.
#![cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "the thread is not a worker's"))]

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use super::queue::{Intake, Next, Room};

impl Intake {
    /// Waits for the next item, on a thread of its own. It must always be the same thread.
    pub fn next(&self) -> Next {
        let waker = self.thread.get_or_init(|| Waker::from(Arc::new(Unpark(std::thread::current()))));
        let mut cx = Context::from_waker(waker);
        loop {
            match self.poll_next(&mut cx, Room { entries: 1, bytes: 1 }) {
                Poll::Ready(next) => return next,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}
