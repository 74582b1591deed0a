//! The last values of a series, in memory of a fixed size.

/// The last samples, the newest at `next - 1`.
#[derive(Debug)]
pub(super) struct Ring<T> {
    samples: Box<[T]>,
    next: usize,
    len: usize,
}

impl<T: Copy + Default> Ring<T> {
    pub fn new(size: usize) -> Ring<T> {
        Ring { samples: vec![T::default(); size].into(), next: 0, len: 0 }
    }

    /// Adds a sample; it is not made if the ring has no room at all.
    pub fn push(&mut self, sample: impl FnOnce() -> T) {
        let Some(place) = self.samples.get_mut(self.next) else { return };
        *place = sample();
        self.next = (self.next + 1) % self.samples.len();
        self.len = (self.len + 1).min(self.samples.len());
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// The newest one.
    pub fn last(&self) -> Option<T> {
        let at = (self.next + self.samples.len()).checked_sub(1)? % self.samples.len();
        (self.len > 0).then(|| self.samples[at])
    }

    /// From the oldest to the newest.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        let size = self.samples.len();
        let first = self.next + size - self.len;
        (first..first + self.len).map(move |at| self.samples[at % size])
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.samples)
    }
}
