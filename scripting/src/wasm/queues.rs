//! Queues that plugins share, on all workers.

use std::collections::VecDeque;
#[expect(
    clippy::disallowed_types,
    reason = "locked for one change in memory, never while a module runs"
)]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::status::{Outcome, Refusal};

/// Queues of all plugins, and the longest name.
const MOST_QUEUES: usize = 1000;
pub(super) const LONGEST_NAME: usize = 256;

/// The memory of an item besides its bytes.
const ITEM: usize = 32;

/// Tasks that wait for items of one queue, those that have ended since included.
const MOST_WATCHERS: usize = 10_000;

#[expect(clippy::disallowed_types, reason = "see above")]
pub struct Queues {
    /// Bytes of the queues that one plugin has registered.
    most: usize,
    all: Mutex<Vec<Queue>>,
}

pub(super) struct Queue {
    plugin: &'static str,
    name: Vec<u8>,
    items: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Items that were ever added.
    added: u64,
    watchers: Vec<Waker>,
}

impl Queues {
    pub(super) fn new(most: usize) -> Queues {
        Queues { most, all: Default::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Queue>> {
        // No code inside the lock can fail half-way.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(all: &[Queue], plugin: &[u8], name: &[u8]) -> Option<u32> {
        let at = all.iter().position(|queue| queue.plugin.as_bytes() == plugin && queue.name == name)?;
        Some(at as u32 + 1)
    }

    pub(super) fn register(&self, plugin: &'static str, name: Vec<u8>) -> Outcome<u32> {
        let mut all = self.lock();
        if let Some(known) = Queues::find(&all, plugin.as_bytes(), &name) {
            return Ok(known);
        }
        if all.len() == MOST_QUEUES {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        let (items, watchers) = Default::default();
        all.push(Queue { plugin, name, items, bytes: 0, added: 0, watchers });
        Ok(all.len() as u32)
    }

    pub(super) fn push(&self, queue: u32, item: Vec<u8>) -> Outcome {
        let mut all = self.lock();
        let at = (queue as usize).wrapping_sub(1);
        let plugin = all.get(at).ok_or(Refusal::NOT_FOUND)?.plugin;
        let used: usize = all.iter().filter(|queue| queue.plugin == plugin).map(|queue| queue.bytes).sum();
        let size = item.len() + ITEM;
        if used + size > self.most {
            return Err(Refusal::INTERNAL_FAILURE);
        }
        let queue = &mut all[at];
        queue.bytes += size;
        queue.added += 1;
        queue.items.push_back(item);
        let watchers = std::mem::take(&mut queue.watchers);
        drop(all);
        watchers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    pub(super) fn pop(&self, queue: u32) -> Outcome<Vec<u8>> {
        let mut all = self.lock();
        let queue = all.get_mut((queue as usize).wrapping_sub(1)).ok_or(Refusal::NOT_FOUND)?;
        let item = queue.items.pop_front().ok_or(Refusal::EMPTY)?;
        queue.bytes -= item.len() + ITEM;
        Ok(item)
    }

    /// Waits for items that were added after the first `seen` ones, and returns how many were added in all.
    pub(super) fn poll_added(&self, queue: u32, seen: u64, cx: &mut Context<'_>) -> Poll<u64> {
        let mut all = self.lock();
        let Some(queue) = all.get_mut((queue as usize).wrapping_sub(1)) else { return Poll::Pending };
        if queue.added > seen {
            return Poll::Ready(queue.added);
        }
        if queue.watchers.iter().any(|known| known.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        // Of too many, those that still wait come again.
        let others = if queue.watchers.len() < MOST_WATCHERS {
            Vec::new()
        } else {
            std::mem::take(&mut queue.watchers)
        };
        queue.watchers.push(cx.waker().clone());
        drop(all);
        others.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_out_in_order_and_are_bounded() {
        let queues = Queues::new(200);
        let Ok(queue) = queues.register("a", b"q".to_vec()) else { panic!("there is room for a queue") };
        assert!(matches!(queues.register("a", b"q".to_vec()), Ok(same) if same == queue));
        assert!(matches!(queues.register("b", b"q".to_vec()), Ok(other) if other != queue));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(queues.poll_added(queue, 0, &mut cx).is_pending());
        assert!(queues.push(queue, b"one".to_vec()).is_ok() && queues.push(queue, b"two".to_vec()).is_ok());
        assert_eq!(queues.poll_added(queue, 0, &mut cx), Poll::Ready(2));
        assert!(queues.poll_added(queue, 2, &mut cx).is_pending());
        assert!(matches!(queues.push(queue, vec![0; 200]), Err(Refusal::Status(10))));
        assert!(queues.pop(queue).is_ok_and(|item| item == b"one"));
        assert!(queues.pop(queue).is_ok_and(|item| item == b"two"));
        assert!(matches!(queues.pop(queue), Err(Refusal::Status(7))));
        assert!(matches!(queues.pop(99), Err(Refusal::Status(1))));
        assert!(matches!(queues.pop(0), Err(Refusal::Status(1))));
        assert!(matches!(queues.push(0, Vec::new()), Err(Refusal::Status(1))));
    }
}
