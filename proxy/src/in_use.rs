//! Counts things of a worker that have a bound.

use std::cell::Cell;
use std::rc::Rc;

/// How many of a kind are in use.
#[derive(Debug, Default)]
pub(crate) struct InUse(Rc<Cell<usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Rc<Cell<usize>>);

impl InUse {
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.get()
    }

    pub(crate) fn permit(&self, most: usize) -> Option<Permit> {
        (self.0.get() < most).then(|| {
            self.0.set(self.0.get() + 1);
            Permit(self.0.clone())
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
