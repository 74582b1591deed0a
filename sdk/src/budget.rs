//! hot path
//!
//! The memory one worker may hold bodies in.
//!
//! Most bodies pass through a worker piece by piece. Some must be in memory whole: a condition or
//! a stage looks into a request's body, a filter changes a response's. Each has a bound of its own;
//! this one is for all of a worker together, so that many of them cannot take the machine's memory.

use std::cell::Cell;
use std::rc::Rc;

/// What a worker may hold, and how much of it is taken. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub struct Budget(Rc<State>);

#[derive(Debug)]
struct State {
    most: usize,
    taken: Cell<usize>,
}

/// A part of a [`Budget`]; it goes back when this is dropped.
#[derive(Debug, Default)]
pub struct Held {
    of: Option<Budget>,
    bytes: usize,
}

/// The worker holds as much as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent;

impl Budget {
    pub fn new(most: usize) -> Budget {
        Budget(Rc::new(State { most, taken: Cell::new(0) }))
    }

    /// Bytes that may still be taken.
    pub fn left(&self) -> usize {
        self.0.most.saturating_sub(self.0.taken.get())
    }

    /// Bytes that are taken now.
    pub fn taken(&self) -> usize {
        self.0.taken.get()
    }
}

impl Held {
    /// Bytes of this part.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes this part so many bytes in all.
    ///
    /// # Errors
    /// There is not that much left; the part stays as it was.
    pub fn resize(&mut self, budget: &Budget, bytes: usize) -> Result<(), Spent> {
        let others = budget.0.taken.get() - self.bytes;
        if bytes > self.bytes && bytes > budget.0.most.saturating_sub(others) {
            return Err(Spent);
        }
        budget.0.taken.set(others + bytes);
        self.bytes = bytes;
        if self.of.is_none() {
            self.of = Some(budget.clone());
        }
        Ok(())
    }

    /// Makes room for `more` bytes at the end of `body`, whose memory is what this part stands for.
    /// It grows as vectors do, but not beyond `limit` bytes without need.
    ///
    /// # Errors
    /// As [`Held::resize`]; `body` stays as it was.
    pub fn reserve(
        &mut self,
        budget: &Budget,
        body: &mut Vec<u8>,
        more: usize,
        limit: usize,
    ) -> Result<(), Spent> {
        let needed = body.len() + more;
        if needed > body.capacity() {
            // Twice as much each time, so that a long body is moved seldom; or what there is.
            let wanted = needed.max(body.capacity().saturating_mul(2).min(limit));
            let capacity = if self.resize(budget, wanted).is_ok() { wanted } else { needed };
            self.resize(budget, capacity)?;
            body.reserve_exact(capacity - body.len());
        }
        // Memory that lay ready counts as far as it is used.
        self.resize(budget, self.bytes.max(needed))
    }
}

impl Drop for Held {
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
    fn parts_share_a_budget_and_give_it_back() {
        let budget = Budget::new(100);
        let (mut one, mut two) = (Held::default(), Held::default());
        assert_eq!(one.resize(&budget, 60), Ok(()));
        assert_eq!(two.resize(&budget, 41), Err(Spent));
        assert_eq!(two.resize(&budget, 40), Ok(()));
        assert_eq!((budget.taken(), budget.left()), (100, 0));
        assert_eq!(one.resize(&budget, 61), Err(Spent));
        assert_eq!(one.resize(&budget, 10), Ok(()));
        drop(two);
        assert_eq!((budget.taken(), budget.left()), (10, 90));
        drop(one);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_body_is_charged_by_the_memory_it_takes() {
        let budget = Budget::new(1000);
        let (mut held, mut body) = (Held::default(), Vec::new());
        for _ in 0..30 {
            held.reserve(&budget, &mut body, 10, 300).unwrap();
            body.extend_from_slice(&[0; 10]);
            assert!(body.capacity() <= 300);
            assert_eq!(budget.taken(), body.capacity());
        }
        // A body that just fits stays where it is.
        let before = body.capacity();
        let room = before - body.len();
        held.reserve(&budget, &mut body, room, 2000).unwrap();
        assert_eq!((body.capacity(), budget.taken()), (before, before));
        assert_eq!(held.reserve(&budget, &mut body, 701, 2000), Err(Spent));
        assert_eq!((body.capacity(), budget.taken()), (before, before));
        // Memory that is used again is counted again.
        drop(held);
        body.clear();
        let mut held = Held::default();
        held.reserve(&budget, &mut body, 5, 300).unwrap();
        assert_eq!((body.capacity(), budget.taken()), (before, 5));
    }
}
