//! hot path
//!
//! Response bodies that the `h2` crate holds for one client because the connection takes no more.
//!
//! The crate bounds what it holds by stream. Here it is bounded by connection, for any number of streams, and beyond
//! a first part by what the worker may hold for all clients (`send_windows`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use sdk::budget::{Budget, Reservation};

/// The part that every connection has and that is not counted: one frame.
const FIRST: usize = 16 << 10;

/// The bodies that wait for one connection.
pub(crate) struct Backlog {
    bytes: Arc<AtomicUsize>,
    most: usize,
    budget: Budget,
    held: RefCell<Reservation>,
    /// Streams that wait for room, in the order in which they came.
    waiting: RefCell<Vec<Waker>>,
}

/// Part of a body. It counts until the crate has written it, or has dropped it with its stream.
struct Piece {
    data: Vec<u8>,
    bytes: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

impl Backlog {
    pub(crate) fn new(most: usize, budget: &Budget) -> Backlog {
        Backlog {
            bytes: Arc::default(),
            most: most.max(1),
            budget: budget.clone(),
            held: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until some of `wanted` bytes have room; returns how many.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<usize> {
        let bytes = self.bytes();
        let mut all = bytes.saturating_add(wanted).min(self.most);
        let mut held = self.held.borrow_mut();
        if held.resize(&self.budget, all.saturating_sub(FIRST)).is_err() {
            all = FIRST.min(self.most);
        }
        match all.saturating_sub(bytes) {
            0 => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
            room => Poll::Ready(room),
        }
    }

    /// A copy of these bytes, which counts as long as it exists.
    pub(crate) fn piece(&self, data: &[u8]) -> Bytes {
        self.bytes.fetch_add(data.len(), Ordering::Relaxed);
        Bytes::from_owner(Piece { data: data.to_vec(), bytes: self.bytes.clone() })
    }

    /// Called when the connection may have written: gives back room, and wakes the streams that wait for it.
    pub(crate) fn settle(&self) {
        let bytes = self.bytes();
        // Less always fits.
        let _ = self.held.borrow_mut().resize(&self.budget, bytes.saturating_sub(FIRST));
        if bytes <= self.most / 2 {
            self.wake();
        }
    }

    /// Wakes the streams that wait for room: there is some, or the connection is over.
    pub(crate) fn wake(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::count;

    #[test]
    fn what_a_connection_holds_is_bounded_and_counts_until_it_is_dropped() {
        let budget = Budget::new(1 << 20);
        let backlog = Backlog::new(32 << 10, &budget);
        let (woken, waker) = count();
        let cx = &mut Context::from_waker(&waker);
        assert_eq!(backlog.poll_room(cx, 100 << 10), Poll::Ready(32 << 10));
        let one = backlog.piece(&[1; 20 << 10]);
        assert_eq!(backlog.poll_room(cx, 100 << 10), Poll::Ready(12 << 10));
        // The crate cuts pieces into frames.
        let (mut rest, other) = (one, backlog.piece(&[2; 12 << 10]));
        let first = rest.split_to(5);
        assert_eq!((backlog.poll_room(cx, 1), budget.taken()), (Poll::Pending, 16 << 10));
        drop(first);
        backlog.settle();
        assert_eq!((woken.so_far(), backlog.bytes()), (0, 32 << 10), "nothing has left");
        drop(rest);
        backlog.settle();
        assert_eq!((woken.so_far(), budget.taken()), (1, 0));
        drop(other);
        drop(backlog);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn without_room_in_the_worker_each_connection_holds_one_frame() {
        let budget = Budget::new(8 << 10);
        let (one, other) = (Backlog::new(32 << 10, &budget), Backlog::new(32 << 10, &budget));
        let cx = &mut Context::from_waker(Waker::noop());
        assert_eq!(one.poll_room(cx, 24 << 10), Poll::Ready(24 << 10));
        let held = one.piece(&[0; 24 << 10]);
        assert_eq!(other.poll_room(cx, 24 << 10), Poll::Ready(FIRST));
        let frame = other.piece(&[0; FIRST]);
        assert_eq!(other.poll_room(cx, 1), Poll::Pending);
        drop(held);
        one.settle();
        // Room that one gives back another may take: 16 KiB are free, and 8 KiB of the worker's.
        assert_eq!(other.poll_room(cx, 8 << 10), Poll::Ready(8 << 10));
        drop(frame);
    }

    #[test]
    fn a_stream_waits_once() {
        let backlog = Backlog::new(16 << 10, &Budget::new(0));
        let ((woken, waker), (_, other)) = (count(), count());
        let full = backlog.piece(&[0; 16 << 10]);
        for waker in [&waker, &other, &waker, &waker] {
            assert_eq!(backlog.poll_room(&mut Context::from_waker(waker), 1), Poll::Pending);
        }
        assert_eq!(backlog.waiting.borrow().len(), 2);
        drop(full);
        backlog.settle();
        assert_eq!((woken.so_far(), backlog.waiting.borrow().len()), (1, 0));
    }
}
