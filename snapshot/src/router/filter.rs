//! hot path
//!
//! A Bloom filter: quickly excludes keys that are not stored.

use std::sync::Arc;

/// A Bloom filter in which the three bits of a hash lie in one word.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// Their number is a power of two.
    pages: Vec<Arc<[u64; PAGE]>>,
    noted: usize,
}

/// Words in a page, which is what a change copies.
const PAGE: usize = 256;
/// Hashes per word: about one in a hundred unknown hashes is then a false positive.
const PER_WORD: usize = 4;

impl Filter {
    /// A filter with room for twice as many hashes.
    pub(crate) fn new(hashes: usize) -> Filter {
        let pages = (hashes * 2).div_ceil(PAGE * PER_WORD).next_power_of_two();
        Filter { pages: (0..pages).map(|_| Arc::new([0; PAGE])).collect(), noted: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.noted >= self.pages.len() * PAGE * PER_WORD
    }

    pub(crate) fn note(&mut self, hash: u64) {
        self.noted += 1;
        let (page, word, bits) = self.place(hash);
        Arc::make_mut(&mut self.pages[page])[word] |= bits;
    }

    #[inline]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let (page, word, bits) = self.place(hash);
        self.pages[page][word] & bits == bits
    }

    /// The word a hash belongs to, and its bits there.
    #[inline]
    fn place(&self, hash: u64) -> (usize, usize, u64) {
        let bits = 1 << (hash >> 58) | 1 << (hash >> 52 & 63) | 1 << (hash >> 46 & 63);
        let at = hash as usize / PAGE;
        (at & (self.pages.len() - 1), hash as usize % PAGE, bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_has_few_false_positives() {
        let (mut rng, keys) = (fastrand::Rng::with_seed(5), 10_000);
        let known: Vec<u64> = std::iter::repeat_with(|| rng.u64(..)).take(keys).collect();
        let mut filter = Filter::new(1);
        for (count, hash) in known.iter().enumerate() {
            if filter.is_full() {
                filter = Filter::new(count);
                known[..count].iter().for_each(|hash| filter.note(*hash));
            }
            filter.note(*hash);
        }
        assert!(known.iter().all(|hash| filter.may_have(*hash)));
        let passed = std::iter::repeat_with(|| rng.u64(..)).take(keys).filter(|hash| filter.may_have(*hash));
        assert!(passed.count() < keys / 50);
    }
}
