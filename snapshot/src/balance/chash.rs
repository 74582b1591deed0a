//! hot path
//!
//! Consistent hashing: the same key goes to the same server, and when servers
//! come or go, only the keys of those move.
//!
//! Each server stands on a ring at 160 points for each unit of its weight (as in
//! lua-resty-chash); a key belongs to the first point at or after its hash. The
//! hash is our own and fixed, so all workers, nodes and versions agree.

use std::fmt;

use sdk::Exchange;
use sdk::template::Template;
use sdk::vars::Var;

use super::{Choice, Tier};
use crate::upstream::Endpoint;

/// Points for each unit of weight.
const POINTS: u64 = 160;
/// A ring has about so many points at most (8 bytes each); beyond, servers get fewer for their weight.
const MOST_POINTS: u64 = 1 << 17;
/// Memory kept for the bytes to hash.
const KEPT: usize = 1 << 10;

/// What is hashed. Where it is absent, the client's address is.
#[derive(Debug, Clone, PartialEq)]
pub enum HashOn {
    /// A variable, which also covers headers (`http_x`) and cookies (`cookie_x`).
    Var(Var),
    /// A text with variables; absent if none of them is there.
    Combination(Template),
    /// The consumer's name.
    Consumer,
}

impl HashOn {
    /// `bytes` is scratch memory.
    pub(super) fn hash(&self, x: &Exchange<'_>, bytes: &mut Vec<u8>) -> u32 {
        bytes.clear();
        let found = match self {
            HashOn::Var(var) => var.write(x, bytes),
            HashOn::Combination(template) => template.render(x, bytes) > 0,
            HashOn::Consumer => match x.consumer() {
                Some(consumer) => return hash(consumer.name.as_bytes(), 0),
                None => false,
            },
        };
        if !found {
            return hash(x.client.ip_text().as_bytes(), 0);
        }
        let hash = hash(bytes, 0);
        if bytes.capacity() > KEPT {
            bytes.clear();
            bytes.shrink_to(KEPT);
        }
        hash
    }
}

/// The ring of one tier.
#[derive(Clone, PartialEq)]
pub(crate) struct Ring {
    /// Sorted; (hash, index into the endpoints).
    points: Box<[(u32, u32)]>,
}

impl Ring {
    pub fn new(tier: &Tier, endpoints: &[Endpoint]) -> Ring {
        let all: u64 = endpoints[tier.range.clone()].iter().map(|e| u64::from(e.weight)).sum();
        // Halving keeps the points that remain where they are, so that few keys move at a step.
        let shift = (0..64).find(|shift| all.saturating_mul(POINTS) >> shift <= MOST_POINTS).unwrap_or(63);
        let mut points = Vec::new();
        for index in tier.range.clone() {
            let endpoint = &endpoints[index];
            if endpoint.weight == 0 {
                continue;
            }
            let name = endpoint.addr.to_string();
            let count = ((u64::from(endpoint.weight) * POINTS) >> shift).max(1);
            points.extend((0..count).map(|point| (hash(name.as_bytes(), point + 1), index as u32)));
        }
        points.sort_unstable_by_key(|&(hash, index)| (hash, endpoints[index as usize].addr, index));
        // Of servers at the same point, the one with the lower address has it, in whatever order they were written.
        points.dedup_by_key(|point| point.0);
        Ring { points: points.into() }
    }

    pub(super) fn pick(&self, hash: u32, choice: Choice<'_>) -> Option<usize> {
        let start = self.points.partition_point(|point| point.0 < hash);
        let (before, from) = self.points.split_at(start);
        let on = |&(_, index): &(u32, u32)| (choice.weight(index as usize) > 0).then_some(index as usize);
        // Without tries in vain the first point is it; with them, others are soon met unless none is left.
        if let Some(index) = from.iter().chain(before).take(64).find_map(on) {
            return Some(index);
        }
        if choice.tried.is_empty() || !(0..choice.endpoints.len()).any(|index| choice.weight(index) > 0) {
            return None;
        }
        from.iter().chain(before).find_map(on)
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} points)", self.points.len())
    }
}

/// FNV-1a over the bytes, then the finish of MurmurHash3, as FNV alone spreads short texts badly.
fn hash(bytes: &[u8], seed: u64) -> u32 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut hash =
        bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    for _ in 0..2 {
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
    (hash >> 32) as u32
}
