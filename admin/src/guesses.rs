//! Limits the wrong keys that an address may send.
//!
//! An address with too many wrong keys is refused for the rest of the minute, even with a right key:
//! otherwise guessing could continue until one is accepted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time after which wrong keys are forgotten.
const MINUTE: Duration = Duration::from_secs(60);

/// The number of addresses that are remembered; one more replaces the oldest.
const ADDRESSES: usize = 4096;

/// Counts wrong keys by address.
#[derive(Debug)]
pub(crate) struct Guesses {
    /// Wrong keys in a minute; 0 is no limit.
    most: u32,
    counted: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl Guesses {
    pub fn new(most: u32) -> Guesses {
        Guesses { most, counted: Mutex::default() }
    }

    /// Returns the seconds to wait, if this address has sent too many wrong keys.
    pub fn wait(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = counted.get(&network(peer))?;
        let left = MINUTE.checked_sub(now.saturating_duration_since(*since))?;
        (self.most > 0 && *count >= self.most).then(|| left.as_secs().max(1))
    }

    /// Counts a wrong key.
    pub fn wrong(&self, peer: IpAddr, now: Instant) {
        if self.most == 0 {
            return;
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |since: &Instant| now.saturating_duration_since(*since) < MINUTE;
        if counted.len() >= ADDRESSES {
            counted.retain(|_, (since, _)| fresh(since));
        }
        if counted.len() >= ADDRESSES
            && let Some(oldest) = counted.iter().min_by_key(|(_, (since, _))| *since).map(|(peer, _)| *peer)
        {
            counted.remove(&oldest);
        }
        let entry = counted.entry(network(peer)).or_insert((now, 0));
        if !fresh(&entry.0) {
            *entry = (now, 0);
        }
        entry.1 = entry.1.saturating_add(1);
    }
}

/// Returns the address to count by: for IPv6 the /64, since a client mostly controls all of it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_wrong_keys_shut_an_address_out_for_a_minute() {
        let (guesses, start) = (Guesses::new(3), Instant::now());
        let (one, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for _ in 0..3 {
            assert_eq!(guesses.wait(one, start), None);
            guesses.wrong(one, start);
        }
        assert_eq!(guesses.wait(one, start + Duration::from_secs(20)), Some(40));
        assert_eq!(guesses.wait("::ffff:10.0.0.1".parse().unwrap(), start), Some(60));
        assert_eq!(guesses.wait(other, start), None);
        assert_eq!(guesses.wait(one, start + MINUTE + Duration::from_secs(1)), None);
        guesses.wrong(one, start + MINUTE);
        assert_eq!(guesses.wait(one, start + MINUTE), None, "a new minute");
    }

    #[test]
    fn neighbours_in_ipv6_are_one_and_memory_is_bounded() {
        let (guesses, now) = (Guesses::new(1), Instant::now());
        guesses.wrong("2001:db8::1".parse().unwrap(), now);
        assert!(guesses.wait("2001:db8::ffff".parse().unwrap(), now).is_some());
        assert!(guesses.wait("2001:db8:0:1::1".parse().unwrap(), now).is_none());
        for at in 0..2 * ADDRESSES as u32 {
            guesses.wrong(IpAddr::V4(at.into()), now);
        }
        assert_eq!(guesses.counted.lock().unwrap().len(), ADDRESSES);
        let off = Guesses::new(0);
        off.wrong("10.0.0.1".parse().unwrap(), now);
        assert_eq!(off.wait("10.0.0.1".parse().unwrap(), now), None);
    }
}
