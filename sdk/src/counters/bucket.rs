//! hot path
//!
//! A few counters side by side, changed by compare-and-swap alone.
//!
//! A slot is three words. `tag` says whose it is. `end` packs the millisecond
//! its window ends with a generation, and `count` packs the same generation
//! with the count, so that a hit which was decided on an older window fails to
//! swap its count in. A hit that finds `count` behind `end` begins the new
//! count itself; nobody has to wait for whoever moved `end`.
//!
//! A slot changes hands in steps that leave at most one live slot a key, seen
//! by all:
//! 1. Whoever needs a slot looks for its key first, having read `head`.
//! 2. It freezes a slot whose window has ended (`end` := frozen, next generation).
//!    From then on the slot is its own and dead to all others.
//! 3. It writes the tag and swaps `head` from what it read to "slot, generation,
//!    pending". If `head` has moved, another key, maybe this very one, got in
//!    between: it lets the slot go and starts over.
//! 4. It thaws the slot and clears pending. Whoever sees `head` pending does
//!    this step for it before anything else, so a worker that is held up here
//!    holds up no other.
//!
//! A bucket may also hold one number a slot ([`Bucket::update`]): it stands in the place of `end`, and
//! `count` is not used. The number and the freezing of its slot are one word, so no change is lost to
//! an eviction that did not see it.
//!
//! All interleavings of these steps are run through by a model (`sdk/tests/counters_model.rs`), which
//! includes this file with its own atomics and fewer slots.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::Taken;
use super::platform::{AtomicU64, SLOTS, spin};

/// The memory of a bucket: the head, the tags, then end and count of each slot,
/// and words to fill the line. Plain words, as those can be had zeroed
/// without touching them.
pub(super) type Words = [AtomicU64; 3 * (SLOTS + 1)];

#[derive(Clone, Copy)]
pub(super) struct Bucket<'t>(pub &'t Words);

/// What a hit asks for; see [`super::Counters::take`].
#[derive(Clone, Copy)]
pub(super) struct Hit {
    pub cost: u32,
    pub limit: u64,
    pub window_ms: u64,
    pub now_ms: u64,
}

/// How a key came by its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    Found,
    Empty,
    Expired,
    Evicted,
}

/// What came of looking for a slot.
enum Place {
    At(usize, Placed),
    /// Another key got in between.
    Again,
    /// Nothing may give way.
    Full,
}

/// What a change came to: the number before it, and the one after it if it was made.
pub(super) type Changed = (u64, Option<u64>);

/// A key found no slot, and none may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

const GENERATION: u64 = 0xffff;
/// The largest number beside a generation; as a millisecond, a frozen slot.
const MOST: u64 = (1 << 48) - 1;
/// The largest number that [`Bucket::update`] stores.
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

    /// Whose the slot is; 0 is nobody's.
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

    /// Counts a hit of this key, which gets a slot first if it has none; `placed` is told how it came
    /// by one. See [`super::Counters::take`].
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
                Place::At(slot, how) => {
                    placed(how);
                    Some(slot)
                }
                Place::Again | Place::Full => {
                    spin();
                    None
                }
            };
        }
    }

    /// Changes this key's number, which is 0 before the first time, to what `change` makes of it; does
    /// nothing where that makes nothing of it. A key without a slot gets one: one that stands at 0, or
    /// where numbers may be evicted (`evicts`), the one with the smallest number.
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
                Place::At(slot, how) => {
                    placed(how);
                    Some(slot)
                }
                Place::Again => {
                    spin();
                    None
                }
                Place::Full => return Err(Full),
            };
        }
    }

    /// The change itself; none if the slot went to another key meanwhile.
    #[inline]
    fn change(self, slot: usize, tag: u64, change: impl Fn(u64) -> Option<u64>) -> Option<Changed> {
        loop {
            let word = self.end(slot).load(Acquire);
            // Read last: if the slot is still this key's, the number was this key's as well.
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

    /// The number of a slot; none if the slot is not the key's.
    #[inline]
    pub(super) fn number(self, slot: usize, tag: u64) -> Option<u64> {
        let word = self.end(slot).load(Acquire);
        (!frozen(word) && self.tag(slot).load(Acquire) == tag).then_some(number(word))
    }

    /// The slot that carries this tag, unless it is frozen.
    #[inline]
    pub(super) fn find(self, tag: u64) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.tag(slot).load(Acquire) == tag && !frozen(self.end(slot).load(Acquire)))
    }

    /// Counts a hit; none if the slot went to another key meanwhile.
    #[inline]
    fn hit(self, slot: usize, tag: u64, hit: Hit) -> Option<Taken> {
        let Hit { cost, limit, window_ms, now_ms } = hit;
        // Counts stay below 2^48, a hundred years of a million hits a second.
        let bound = limit.min(MOST);
        let cost = u64::from(cost);
        loop {
            let end = self.end(slot).load(Acquire);
            let count = self.count(slot).load(Acquire);
            // Read last: if the slot is still this key's, `end` was this key's as well.
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
            // A count behind its window is one of an earlier window: this one stands at nothing.
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

    /// Count and milliseconds left of a live slot; none if the window ended or the slot is not the key's.
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

    /// Finds or makes a slot for the key. Where nothing is evicted, only a slot whose window ended, or
    /// whose number is 0, gives way.
    fn place(self, tag: u64, now_ms: u64, evicts: bool) -> Place {
        let head = self.head().load(Acquire);
        if head & 1 == 1 {
            self.finish(head);
            return Place::Again;
        }
        if let Some(slot) = self.find(tag) {
            return Place::At(slot, Placed::Found);
        }
        let Some((slot, end)) = self.victim() else { return Place::Again };
        let what = match number(end) {
            0 if self.tag(slot).load(Acquire) == 0 => Placed::Empty,
            ends if ends <= now_ms => Placed::Expired,
            _ if evicts => Placed::Evicted,
            // A slot that is changing hands may come free.
            _ if (0..SLOTS).any(|slot| frozen(self.end(slot).load(Acquire))) => return Place::Again,
            _ => return Place::Full,
        };
        let ice = pack(MOST, generation(end) + 1);
        if self.end(slot).compare_exchange(end, ice, AcqRel, Acquire).is_err() {
            return Place::Again;
        }
        self.tag(slot).store(tag, Release);
        let version = (head >> 32).wrapping_add(1);
        let pending = version << 32 | generation(ice) << 8 | (slot as u64) << 1 | 1;
        if self.head().compare_exchange(head, pending, AcqRel, Acquire).is_err() {
            self.tag(slot).store(0, Release);
            self.end(slot).store(pack(0, generation(ice) + 1), Release);
            return Place::Again;
        }
        self.finish(pending);
        Place::At(slot, what)
    }

    /// The last step of a change of hands, done by whoever sees it undone.
    fn finish(self, pending: u64) {
        let slot = (pending >> 1 & 0x7f) as usize;
        let ice = pack(MOST, pending >> 8);
        // Swapping fails where others were faster; the generation tells a later freeze from this.
        let thawed = pack(0, generation(ice) + 1);
        let _ = self.end(slot).compare_exchange(ice, thawed, AcqRel, Acquire);
        let _ = self.head().compare_exchange(pending, pending & !1, AcqRel, Acquire);
    }

    /// The slot whose window ended, or will end, first; empty slots ended at 0.
    fn victim(self) -> Option<(usize, u64)> {
        let ends = (0..SLOTS).map(|slot| (slot, self.end(slot).load(Acquire)));
        ends.filter(|(_, end)| !frozen(*end)).min_by_key(|(_, end)| number(*end))
    }
}
