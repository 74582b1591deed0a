//! hot path
//!
//! The streams of a connection that carries many requests, counted for as long as their exchanges run.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use crate::rt;
use crate::worker::Worker;

/// How many streams there are, and the connection's own task, which looks when that changes.
pub(super) struct Streams {
    worker: Rc<Worker>,
    open: Cell<usize>,
    begun: Cell<u64>,
    /// See [`Streams::end`].
    ending: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Streams {
    pub(super) fn new(worker: &Rc<Worker>) -> Streams {
        Streams {
            worker: worker.clone(),
            open: Cell::new(0),
            begun: Cell::new(0),
            ending: Cell::new(false),
            waker: RefCell::default(),
        }
    }

    /// Streams that are being served.
    #[inline]
    pub(super) fn open(&self) -> usize {
        self.open.get()
    }

    /// Streams there have been.
    #[inline]
    pub(super) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Has the connection closed gently.
    #[cold]
    pub(super) fn end(&self) {
        self.ending.set(true);
        self.wake();
    }

    /// The same where the stream that ends now is the last one.
    #[cold]
    pub(super) fn end_if_last(&self) {
        if self.open() == 1 {
            self.end();
        }
    }

    /// Whether no more streams are to begin.
    #[inline]
    pub(super) fn are_ending(&self) -> bool {
        self.ending.get()
    }

    /// Notes the connection's own task.
    pub(super) fn note_waker(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Wakes that task, for which something has changed.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

/// Starts a task for a stream. `serve` gets the number of the connection's streams so far, this one included.
/// Boxed, as a task is moved several times before it runs, and an exchange is large.
pub(super) fn begin<S: 'static, F: Future<Output = ()> + 'static>(
    shared: &Rc<S>,
    streams: fn(&S) -> &Streams,
    serve: impl FnOnce(u64) -> Pin<Box<F>>,
) {
    let open = Open::new(shared, streams);
    let serving = serve(streams(shared).begun());
    rt::spawn_unboxed(async move {
        let _open = open;
        serving.await;
    });
}

/// Counts a stream until its exchange ends, however it ends.
pub(super) struct Open<S> {
    shared: Rc<S>,
    streams: fn(&S) -> &Streams,
}

impl<S> Open<S> {
    pub(super) fn new(shared: &Rc<S>, streams: fn(&S) -> &Streams) -> Open<S> {
        let counts = streams(shared);
        counts.open.set(counts.open.get() + 1);
        counts.begun.set(counts.begun.get() + 1);
        Open { shared: shared.clone(), streams }
    }
}

impl<S> Drop for Open<S> {
    fn drop(&mut self) {
        let streams = (self.streams)(&self.shared);
        if std::thread::panicking() {
            streams.worker.shard.panicked();
        }
        streams.open.set(streams.open.get() - 1);
        streams.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::count;
    use crate::settings::Settings;
    use crate::testing::beside_worker;
    use std::time::Duration;

    #[test]
    fn a_stream_counts_as_long_as_it_is_served_and_its_end_is_reported() {
        beside_worker(Settings::default(), async |worker, _| {
            let streams = Rc::new(Streams::new(&worker));
            let (count, waker) = count();
            streams.note_waker(&Context::from_waker(&waker));
            let ended = Rc::new(RefCell::new(Vec::new()));
            for _ in 0..3 {
                begin(
                    &streams,
                    |streams| streams,
                    |number| {
                        ended.borrow_mut().push(number);
                        Box::pin(rt::sleep(Duration::from_secs(number)))
                    },
                );
            }
            assert_eq!(*ended.borrow(), [1, 2, 3], "each gets its number");
            for over in 0..=3 {
                let woken = count.so_far();
                assert_eq!((streams.open(), streams.begun(), woken), (3 - over, 3, over));
                rt::sleep(Duration::from_millis(if over == 0 { 1500 } else { 1000 })).await;
            }
        });
    }
}
