//! The last values of a series, in memory of a bounded size.

/// The last samples.
#[derive(Debug)]
pub(super) struct Ring<T> {
    /// At most `size`. Memory is reserved with the first one and used as more come.
    samples: Vec<T>,
    size: usize,
    /// The place of the next one.
    next: usize,
}

impl<T: Copy> Ring<T> {
    pub fn new(size: usize) -> Ring<T> {
        Ring { samples: Vec::new(), size, next: 0 }
    }

    /// Adds a sample; it is not made if the ring has no room at all.
    pub fn push(&mut self, sample: impl FnOnce() -> T) {
        if self.size == 0 {
            return;
        }
        match self.samples.get_mut(self.next) {
            Some(oldest) => *oldest = sample(),
            None => {
                self.samples.reserve_exact(self.size - self.samples.len());
                self.samples.push(sample());
            }
        }
        self.next = (self.next + 1) % self.size;
    }

    pub fn clear(&mut self) {
        self.samples.clear();
        self.next = 0;
    }

    /// The newest one.
    pub fn last(&self) -> Option<T> {
        self.iter().next_back()
    }

    /// From the oldest to the newest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = T> {
        // Until the ring is full, the first one is the oldest.
        let (newer, older) = self.samples.split_at(self.next.min(self.samples.len()));
        older.iter().chain(newer).copied()
    }

    /// Bytes when it is full.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.size * size_of::<T>()
    }
}
