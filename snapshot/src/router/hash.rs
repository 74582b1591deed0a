//! hot path
//!
//! Hashes of a text and of all its prefixes, in one pass.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher as _};

use foldhash::quality::{FoldHasher, RandomState};

/// Keyed by random numbers of this router, so that clients cannot choose texts with equal hashes.
/// Clients only choose look-ups, never stored keys, and learn no hash: a fast keyed function is
/// enough.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hasher(RandomState);

/// Bytes hashed at a time.
const WORD: usize = 8;

impl Hasher {
    #[inline]
    pub(crate) fn hash(&self, text: &[u8]) -> u64 {
        self.walk(text).to(text.len())
    }

    /// The hashes of prefixes of `text`, shortest first.
    #[inline]
    pub(crate) fn walk<'t>(&'t self, text: &'t [u8]) -> Walk<'t> {
        Walk { state: self.0.build_hasher(), text, done: 0 }
    }
}

pub(crate) struct Walk<'t> {
    state: FoldHasher<'t>,
    text: &'t [u8],
    /// Bytes already hashed, in whole words.
    done: usize,
}

impl Walk<'_> {
    /// The hash of the first `len` bytes, equal to [`Hasher::hash`] of them alone. `len` is at most
    /// the text's length and not less than in the previous call.
    #[inline]
    pub(crate) fn to(&mut self, len: usize) -> u64 {
        while self.done + WORD <= len {
            self.state.write_u64(word(&self.text[self.done..]));
            self.done += WORD;
        }
        // The last word includes its length, so no two texts have the same encoding.
        let left = len - self.done;
        let mask = (1u64 << (left * 8)) - 1;
        let last = word(&self.text[self.done..]) & mask | (left as u64 + 1) << (WORD * 7);
        let mut state = self.state.clone();
        state.write_u64(last);
        state.finish()
    }
}

/// The first bytes as a number, padded with zeros.
#[inline]
fn word(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => text.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// A text that is hashed on first use: most long ones never need it.
#[derive(Debug)]
pub(crate) struct Hashed<'t> {
    pub(crate) text: &'t [u8],
    hash: Cell<Option<u64>>,
}

impl<'t> Hashed<'t> {
    #[inline]
    pub(crate) fn new(text: &'t [u8]) -> Hashed<'t> {
        Hashed { text, hash: Cell::new(None) }
    }

    #[inline]
    pub(crate) fn hash(&self, hasher: &Hasher) -> u64 {
        self.hash.get().unwrap_or_else(|| {
            let hash = hasher.hash(self.text);
            self.hash.set(Some(hash));
            hash
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_hashes_every_prefix() {
        let hasher = Hasher::default();
        let text: Vec<u8> = (0..100).map(|n| n * 2 + 1).collect();
        let mut walk = hasher.walk(&text);
        let all: Vec<u64> = (0..=text.len()).map(|len| walk.to(len)).collect();
        for (len, hash) in all.iter().enumerate() {
            assert_eq!(*hash, hasher.hash(&text[..len]), "{len}");
        }
        let zeros = [0; 40];
        let mut walk = hasher.walk(&zeros);
        let mut distinct: Vec<u64> = (0..=40).map(|len| walk.to(len)).chain(all).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 41 + 101 - 1, "only the empty text is in both");
    }
}
