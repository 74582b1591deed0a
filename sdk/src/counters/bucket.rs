//! hot path
//!
//! A few counters side by side, changed by compare-and-swap only.
//!
//! A slot is three words. `tag` identifies its key. `end` packs the millisecond its window ends
//! with a generation, and `count` packs the same generation with the count, so that a hit computed
//! on an older window fails to swap its count in. A hit that finds `count` of an older generation
//! than `end` starts the new count itself; no thread waits for the one that moved `end`.
//!
//! A slot changes its key in steps that leave at most one live slot per key, visible to all
//! threads:
//! 1. A thread that needs a slot reads `head`, then looks for its key.
//! 2. It freezes a slot whose window has ended (`end` := frozen, next generation). From then on the
//!    thread owns the slot, and the slot is dead to all others.
//! 3. It writes the tag and swaps `head` from the value it read to "slot, generation, pending". If
//!    `head` has changed, another key, maybe the same one, was inserted in between: it releases the
//!    slot and starts over.
//! 4. It thaws the slot and clears pending. A thread that sees `head` pending does this step first,
//!    so a worker suspended here does not delay the others.
//!
//! A bucket may also hold one number per slot ([`Bucket::update`]). The number takes the position
//! of `end`, and `count` is not used. The number and the frozen mark of a slot are one word, so an
//! eviction cannot lose a change it did not see.
//!
//! A loom model (`sdk/tests/counters_model.rs`) runs all interleavings of these steps. It includes
//! this file with its own atomics and fewer slots.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::Taken;
use super::platform::{AtomicU64, SLOTS, spin};

/// The memory of a bucket: the head, the tags, `end` and `count` of each slot, and padding to the
/// cache line. Plain words, since zeroed memory for them can be allocated without touching it.
pub(super) type Words = [AtomicU64; 3 * (SLOTS + 1)];

#[derive(Clone, Copy)]
pub(super) struct Bucket<'t>(pub &'t Words);

/// The arguments of a hit; see [`super::Counters::take`].
#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub cost: u32,
    pub limit: u64,
    pub window_ms: u64,
    pub now_ms: u64,
}

/// How a key got its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Found,
    Empty,
    Expired,
    Evicted,
}

/// The result of looking for a slot.
enum Lookup {
    At(usize, Placed),
    /// Another key was inserted in between.
    Again,
    /// No slot can be evicted.
    Full,
}

/// The number before a change, and the number after it if the change was made.
pub(super) type Changed = (u64, Option<u64>);

/// The key found no slot, and none can be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

const GENERATION: u64 = 0xffff;
/// The largest number that fits beside a generation; as a millisecond, it marks a frozen slot.
const MOST: u64 = (1 << 48) - 1;
/// The largest number [`Bucket::update`] stores.
pub(super) const LARGEST: u64 = MOST - 1;

#[inline]
fn pack(number: u64, generation: u64) -> u64 {
    number << 16 | generation & GENERATION
}

#[inline]
fn number(word: u64) -> u64 {
    word >> 16
}

#[inline]
fn generation(word: u64) -> u64 {
    word & GENERATION
}

#[inline]
fn frozen(end: u64) -> bool {
    number(end) == MOST
}

impl<'t> Bucket<'t> {
    /// version << 32 | generation << 8 | slot << 1 | pending
    #[inline]
    fn head(self) -> &'t AtomicU64 {
        &self.0[0]
    }

    /// The key of the slot; 0 if it has none.
    #[inline]
    fn tag(self, slot: usize) -> &'t AtomicU64 {
        &self.0[1 + slot]
    }

    /// millisecond << 16 | generation
    #[inline]
    fn end(self, slot: usize) -> &'t AtomicU64 {
        &self.0[SLOTS + 1 + 2 * slot]
    }

    /// count << 16 | generation
    #[inline]
    fn count(self, slot: usize) -> &'t AtomicU64 {
        &self.0[SLOTS + 2 + 2 * slot]
    }

    /// Counts a hit of this key, which gets a slot first if it has none; `placed` is called with
    /// how it got the slot. See [`super::Counters::take`].
    #[inline]
    pub(super) fn take(self, tag: u64, hit: Hit, mut placed: impl FnMut(Placed)) -> Taken {
        let mut at = self.find(tag);
        loop {
            if let Some(slot) = at
                && let Some(taken) = self.hit(slot, tag, hit)
            {
                return taken;
            }
            at = match self.place(tag, hit.now_ms, true) {
                Lookup::At(slot, how) => {
                    placed(how);
                    Some(slot)
                }
                Lookup::Again | Lookup::Full => {
                    spin();
                    None
                }
            };
        }
    }

    /// Changes this key's number, initially 0, to the result of `change`; does nothing if that is
    /// `None`. A key without a slot gets one whose number is 0 or, if numbers may be evicted
    /// (`evicts`), the one with the smallest number.
    #[inline]
    pub(super) fn update(
        self,
        tag: u64,
        evicts: bool,
        change: impl Fn(u64) -> Option<u64>,
        mut placed: impl FnMut(Placed),
    ) -> Result<Changed, Full> {
        let mut at = self.find(tag);
        loop {
            if let Some(slot) = at
                && let Some(changed) = self.change(slot, tag, &change)
            {
                return Ok(changed);
            }
            if change(0).is_none() {
                return Ok((0, None));
            }
            at = match self.place(tag, 0, evicts) {
                Lookup::At(slot, how) => {
                    placed(how);
                    Some(slot)
                }
                Lookup::Again => {
                    spin();
                    None
                }
                Lookup::Full => return Err(Full),
            };
        }
    }

    /// Applies the change; `None` if the slot went to another key meanwhile.
    #[inline]
    fn change(self, slot: usize, tag: u64, change: impl Fn(u64) -> Option<u64>) -> Option<Changed> {
        loop {
            let word = self.end(slot).load(Acquire);
            // Read last: if the slot still belongs to this key, so did the number.
            if frozen(word) || self.tag(slot).load(Acquire) != tag {
                return None;
            }
            let Some(next) = change(number(word)) else { return Some((number(word), None)) };
            let next = next.min(LARGEST);
            let packed = pack(next, generation(word));
            if packed == word || self.end(slot).compare_exchange(word, packed, AcqRel, Acquire).is_ok() {
                return Some((number(word), Some(next)));
            }
        }
    }

    /// The number of a slot; `None` if the slot does not belong to the key.
    #[inline]
    pub(super) fn number(self, slot: usize, tag: u64) -> Option<u64> {
        let word = self.end(slot).load(Acquire);
        (!frozen(word) && self.tag(slot).load(Acquire) == tag).then_some(number(word))
    }

    /// Finds the slot with this tag, unless it is frozen.
    #[inline]
    pub(super) fn find(self, tag: u64) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.tag(slot).load(Acquire) == tag && !frozen(self.end(slot).load(Acquire)))
    }

    /// Counts a hit; `None` if the slot went to another key meanwhile.
    #[inline]
    fn hit(self, slot: usize, tag: u64, hit: Hit) -> Option<Taken> {
        let Hit { cost, limit, window_ms, now_ms } = hit;
        // Counts stay below 2^48, enough for a hundred years at a million hits per second.
        let bound = limit.min(MOST);
        let cost = u64::from(cost);
        loop {
            let end = self.end(slot).load(Acquire);
            let count = self.count(slot).load(Acquire);
            // Read last: if the slot still belongs to this key, so did `end`.
            if frozen(end) || self.tag(slot).load(Acquire) != tag {
                return None;
            }
            if now_ms >= number(end) {
                let next = now_ms.saturating_add(window_ms).min(MOST - 1);
                let next = pack(next, generation(end) + 1);
                let _ = self.end(slot).compare_exchange(end, next, AcqRel, Acquire);
                continue;
            }
            let current = generation(count) == generation(end);
            if !current && self.end(slot).load(Acquire) != end {
                continue;
            }
            // The count is of an earlier window, so this window's count is 0.
            let used = if current { number(count) } else { 0 };
            let allowed = used + cost <= bound;
            let after = if allowed { used + cost } else { used };
            let next = pack(after, generation(end));
            if next != count && self.count(slot).compare_exchange(count, next, AcqRel, Acquire).is_err() {
                continue;
            }
            let remaining = limit.saturating_sub(after);
            return Some(Taken { allowed, remaining, reset_ms: number(end) - now_ms });
        }
    }

    /// The count and the milliseconds left of a live slot; `None` if the window ended or the slot
    /// does not belong to the key.
    #[inline]
    pub(super) fn peek(self, slot: usize, tag: u64, now_ms: u64) -> Option<(u64, u64)> {
        let end = self.end(slot).load(Acquire);
        let count = self.count(slot).load(Acquire);
        if frozen(end) || self.tag(slot).load(Acquire) != tag || now_ms >= number(end) {
            return None;
        }
        let used = if generation(count) == generation(end) { number(count) } else { 0 };
        Some((used, number(end) - now_ms))
    }

    /// Finds or claims a slot for the key. Without eviction, only slots whose window ended, or
    /// whose number is 0, are reused.
    fn place(self, tag: u64, now_ms: u64, evicts: bool) -> Lookup {
        let head = self.head().load(Acquire);
        if head & 1 == 1 {
            self.finish(head);
            return Lookup::Again;
        }
        if let Some(slot) = self.find(tag) {
            return Lookup::At(slot, Placed::Found);
        }
        let Some((slot, end)) = self.victim() else { return Lookup::Again };
        let what = match number(end) {
            0 if self.tag(slot).load(Acquire) == 0 => Placed::Empty,
            ends if ends <= now_ms => Placed::Expired,
            _ if evicts => Placed::Evicted,
            // A slot that is changing its key may become free.
            _ if (0..SLOTS).any(|slot| frozen(self.end(slot).load(Acquire))) => return Lookup::Again,
            _ => return Lookup::Full,
        };
        let frozen_end = pack(MOST, generation(end) + 1);
        if self.end(slot).compare_exchange(end, frozen_end, AcqRel, Acquire).is_err() {
            return Lookup::Again;
        }
        self.tag(slot).store(tag, Release);
        let version = (head >> 32).wrapping_add(1);
        let pending = version << 32 | generation(frozen_end) << 8 | (slot as u64) << 1 | 1;
        if self.head().compare_exchange(head, pending, AcqRel, Acquire).is_err() {
            self.tag(slot).store(0, Release);
            self.end(slot).store(pack(0, generation(frozen_end) + 1), Release);
            return Lookup::Again;
        }
        self.finish(pending);
        Lookup::At(slot, what)
    }

    /// The last step of a change of keys, done by any thread that finds it pending.
    fn finish(self, pending: u64) {
        let slot = (pending >> 1 & 0x7f) as usize;
        let frozen_end = pack(MOST, pending >> 8);
        // The swaps fail if another thread was faster; the generation distinguishes a later freeze
        // from this one.
        let thawed = pack(0, generation(frozen_end) + 1);
        let _ = self.end(slot).compare_exchange(frozen_end, thawed, AcqRel, Acquire);
        let _ = self.head().compare_exchange(pending, pending & !1, AcqRel, Acquire);
    }

    /// The slot whose window ended, or will end, first; empty slots ended at 0.
    fn victim(self) -> Option<(usize, u64)> {
        let ends = (0..SLOTS).map(|slot| (slot, self.end(slot).load(Acquire)));
        ends.filter(|(_, end)| !frozen(*end)).min_by_key(|(_, end)| number(*end))
    }
}
