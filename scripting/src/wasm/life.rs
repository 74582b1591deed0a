//! The life of a context, and work that ends with it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Weak;
use std::task::{Poll, Waker};

/// A context, or a timer of it, has one. Once it is dropped, the tasks that follow it end.
#[derive(Default)]
pub(super) struct Life(RefCell<Vec<Waker>>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }
}

/// Waits as long as the life lasts; `None` once it has ended.
pub(super) async fn during<T>(life: &Weak<Life>, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    poll_fn(|cx| {
        let Some(lives) = life.upgrade() else { return Poll::Ready(None) };
        let mut wakers = lives.0.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        drop(wakers);
        drop(lives);
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn work_ends_with_the_life_that_it_follows() {
        let (life, woken) = (Rc::new(Life::default()), Arc::new(Count::default()));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let weak = Rc::downgrade(&life);
        let mut done = pin!(during(&weak, async { 7 }));
        assert_eq!(done.as_mut().poll(&mut cx), Poll::Ready(Some(7)));
        let mut waits = pin!(during(&weak, std::future::pending::<()>()));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        assert_eq!(life.0.borrow().len(), 1, "a task is woken once");
        drop(life);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(waits.as_mut().poll(&mut cx), Poll::Ready(None));
    }
}
