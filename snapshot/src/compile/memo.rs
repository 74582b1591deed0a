//! Lists that are derived from parts.

use std::sync::Arc;

/// A value derived from parts, kept until one of them changes: the same `Arc` while nothing does.
#[derive(Debug)]
pub(super) struct Memo<T: ?Sized>(Option<Arc<T>>);

impl<T: ?Sized> Default for Memo<T> {
    fn default() -> Memo<T> {
        Memo(None)
    }
}

impl<T: ?Sized> Memo<T> {
    pub fn get(&mut self, derive: impl FnOnce() -> Arc<T>) -> Arc<T> {
        self.0.get_or_insert_with(derive).clone()
    }

    /// A part has changed.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}
