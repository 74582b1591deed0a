//! Bytes that were received and not taken.

use std::rc::Rc;

use bytes::BytesMut;

use super::Shared;

/// The bytes of one socket. All sockets of a machine have a bound, and one has half of it.
pub(super) struct Input {
    bytes: BytesMut,
    shared: Rc<Shared>,
    most: usize,
}

impl Input {
    pub(super) fn new(shared: &Rc<Shared>, most: usize) -> Input {
        Input { bytes: BytesMut::new(), shared: shared.clone(), most }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Adds bytes; returns false if there are too many.
    #[must_use]
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        let all = self.shared.buffered.get() + bytes.len();
        if all > self.most || self.bytes.len() + bytes.len() > self.most / 2 {
            return false;
        }
        self.shared.buffered.set(all);
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Removes the first `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Vec<u8> {
        let taken = self.bytes.split_to(n.min(self.bytes.len())).to_vec();
        self.shared.buffered.set(self.shared.buffered.get() - taken.len());
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
        taken
    }

    pub(super) fn clear(&mut self) {
        let n = self.bytes.len();
        self.take(n);
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_one_socket_and_of_all_are_bounded() {
        let shared = Rc::<Shared>::default();
        let mut inputs = [0; 3].map(|_| Input::new(&shared, 100));
        assert!(inputs[0].add(&[1; 50]) && !inputs[0].add(&[1]));
        assert!(inputs[1].add(&[2; 50]) && !inputs[2].add(&[3]));
        assert_eq!(inputs[0].take(10), [1; 10]);
        assert!(inputs[2].add(&[3; 10]) && !inputs[2].add(&[3]));
        inputs[1].clear();
        assert!(inputs[2].add(&[3; 40]));
        drop(inputs);
        assert_eq!(shared.buffered.get(), 0);
    }
}
