//! hot path
//!
//! Bounds the frames of a client that ask for nothing.
//!
//! Each frame that asks for nothing costs credit. Requests and what is sent in answer earn it, and so does
//! time. A client without credit is a flood.

use std::cell::Cell;

/// Credit that a second brings.
const PER_SECOND: u64 = 100;

/// A reset stream was work for nothing.
pub(crate) const RESET: i64 = 8;

/// Credit that a request earns: as much as it costs to reset half of all requests.
const REQUEST: i64 = 4;

/// The cost of a refused request.
const REFUSED: i64 = 16;

#[derive(Debug)]
pub(crate) struct Credit {
    left: Cell<i64>,
    most: i64,
    /// Milliseconds: until when time has been paid for.
    paid: Cell<u64>,
}

impl Credit {
    /// `most` is the credit to begin with and the most there can be.
    pub(crate) fn new(most: u32, now: u64) -> Credit {
        let most = i64::from(most);
        Credit { left: Cell::new(most), most, paid: Cell::new(now) }
    }

    pub(crate) fn spend(&self, cost: i64) {
        self.left.set(self.left.get().saturating_sub(cost));
    }

    fn earn(&self, credit: i64) {
        self.left.set(self.left.get().saturating_add(credit).min(self.most));
    }

    /// A request began.
    pub(crate) fn request(&self) {
        self.earn(REQUEST);
    }

    /// A request was sent to the peer, which may reset it.
    pub(crate) fn asked(&self) {
        self.earn(RESET);
    }

    /// A message of the peer was refused.
    pub(crate) fn refused(&self) {
        self.spend(REFUSED);
    }

    /// Earns credit for a part of a body that went to the peer, which may acknowledge it.
    pub(crate) fn sent(&self, bytes: usize) {
        self.earn(4 + (bytes >> 10) as i64);
    }

    /// It is used up, also with what time brings.
    pub(crate) fn is_flood(&self, now: u64) -> bool {
        if self.left.get() >= 0 {
            return false;
        }
        let passed = now.saturating_sub(self.paid.get());
        let earned = passed * PER_SECOND / 1000;
        if earned > 0 {
            self.paid.set(now);
            self.earn(i64::try_from(earned).unwrap_or(i64::MAX));
        }
        self.left.get() < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sends_what_is_refused_is_a_flood_before_long() {
        let credit = Credit::new(1000, 0);
        let refused = (0..1000).take_while(|_| {
            credit.refused();
            !credit.is_flood(0)
        });
        assert!(refused.count() < 100);
    }

    #[test]
    fn what_goes_to_a_peer_pays_for_its_acknowledgements_and_for_little_else() {
        for kib in [0, 1, 64] {
            let credit = Credit::new(1000, 0);
            credit.spend(1000);
            credit.sent(kib << 10);
            credit.spend(kib as i64);
            assert!(!credit.is_flood(0), "{kib} KiB");
            credit.spend(10);
            assert!(credit.is_flood(0), "{kib} KiB");
        }
    }

    #[test]
    fn time_counts_however_often_it_is_looked_at() {
        let credit = Credit::new(0, 0);
        credit.spend(100);
        let over = (0..=1000).step_by(5).find(|&now| !credit.is_flood(now));
        assert_eq!(over, Some(1000), "a second pays for 100");
    }
}
