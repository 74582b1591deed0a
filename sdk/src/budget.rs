//! hot path
//!
//! The memory one worker may use for bodies.
//!
//! Most bodies are streamed through a worker. Some must be buffered: a condition or a plugin reads
//! a request's body, a filter changes a response's. Each buffer has its own limit; this budget
//! limits all buffers of a worker together, so that many of them cannot exhaust the machine's
//! memory.

use std::cell::Cell;
use std::rc::Rc;

/// A worker's limit, and the bytes in use. Cheap to clone; clones share the count.
#[derive(Debug, Clone)]
pub struct Budget(Rc<State>);

#[derive(Debug)]
struct State {
    most: usize,
    taken: Cell<usize>,
}

/// Bytes reserved from a [`Budget`]; returned to it on drop.
#[derive(Debug, Default)]
pub struct Reservation {
    of: Option<Budget>,
    bytes: usize,
}

/// The budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted;

impl Budget {
    pub fn new(most: usize) -> Budget {
        Budget(Rc::new(State { most, taken: Cell::new(0) }))
    }

    /// Bytes that can still be reserved.
    pub fn left(&self) -> usize {
        self.0.most.saturating_sub(self.0.taken.get())
    }

    /// Bytes that are reserved.
    pub fn taken(&self) -> usize {
        self.0.taken.get()
    }
}

impl Reservation {
    /// Bytes of this reservation.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes this reservation to `bytes` in total.
    ///
    /// # Errors
    /// Too few bytes are left; the reservation is unchanged.
    pub fn resize(&mut self, budget: &Budget, bytes: usize) -> Result<(), Exhausted> {
        let others = budget.0.taken.get() - self.bytes;
        if bytes > self.bytes && bytes > budget.0.most.saturating_sub(others) {
            return Err(Exhausted);
        }
        budget.0.taken.set(others + bytes);
        self.bytes = bytes;
        if self.of.is_none() {
            self.of = Some(budget.clone());
        }
        Ok(())
    }

    /// Reserves capacity for `more` bytes at the end of `body`, and counts the capacity in this
    /// reservation. Capacity grows as for any vector, but not beyond `limit` bytes without need.
    ///
    /// # Errors
    /// As for [`Reservation::resize`]; `body` is unchanged.
    pub fn reserve(
        &mut self,
        budget: &Budget,
        body: &mut Vec<u8>,
        more: usize,
        limit: usize,
    ) -> Result<(), Exhausted> {
        let needed = body.len() + more;
        if needed > body.capacity() {
            // Doubles the capacity, so that a long body is seldom moved; less if less is left.
            let wanted = needed.max(body.capacity().saturating_mul(2).min(limit));
            let capacity = if self.resize(budget, wanted).is_ok() { wanted } else { needed };
            self.resize(budget, capacity)?;
            body.reserve_exact(capacity - body.len());
        }
        // Spare capacity of a reused buffer is counted as it is used.
        self.resize(budget, self.bytes.max(needed))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(budget) = &self.of {
            budget.0.taken.set(budget.0.taken.get() - self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_share_a_budget_and_return_to_it_on_drop() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (Reservation::default(), Reservation::default());
        assert_eq!(one.resize(&budget, 60), Ok(()));
        assert_eq!(two.resize(&budget, 41), Err(Exhausted));
        assert_eq!(two.resize(&budget, 40), Ok(()));
        assert_eq!((budget.taken(), budget.left()), (100, 0));
        assert_eq!(one.resize(&budget, 61), Err(Exhausted));
        assert_eq!(one.resize(&budget, 10), Ok(()));
        drop(two);
        assert_eq!((budget.taken(), budget.left()), (10, 90));
        drop(one);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn the_capacity_of_a_body_is_reserved() {
        let budget = Budget::new(1000);
        let (mut held, mut body) = (Reservation::default(), Vec::new());
        for _ in 0..30 {
            held.reserve(&budget, &mut body, 10, 300).unwrap();
            body.extend_from_slice(&[0; 10]);
            assert!(body.capacity() <= 300);
            assert_eq!(budget.taken(), body.capacity());
        }
        // A body that just fits is not moved.
        let before = body.capacity();
        let room = before - body.len();
        held.reserve(&budget, &mut body, room, 2000).unwrap();
        assert_eq!((body.capacity(), budget.taken()), (before, before));
        assert_eq!(held.reserve(&budget, &mut body, 701, 2000), Err(Exhausted));
        assert_eq!((body.capacity(), budget.taken()), (before, before));
        // Reused memory is counted again.
        drop(held);
        body.clear();
        let mut held = Reservation::default();
        held.reserve(&budget, &mut body, 5, 300).unwrap();
        assert_eq!((body.capacity(), budget.taken()), (before, 5));
    }
}
