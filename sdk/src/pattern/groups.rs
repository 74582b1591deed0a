//! hot path
//!
//! Finding the groups of a match whose place is known, byte by byte, so that whoever takes the steps can stop between
//! them.
//!
//! The ways through the pattern are followed side by side, those that it prefers first, each with the places at which it
//! went through groups. A short match is left to `regex`, which often knows something faster.

use regex_automata::nfa::thompson::{NFA, State};
use regex_automata::util::primitives::{NonMaxUsize, StateID};
use regex_automata::{Anchored, Input, meta};
use smallvec::SmallVec;

use super::Groups;
use super::substitution::Slice;

/// A place in no group.
const NOWHERE: usize = usize::MAX;

/// A pattern that has groups.
#[derive(Debug)]
pub(super) struct Finder {
    nfa: NFA,
    regex: meta::Regex,
    slots: usize,
}

/// How far the groups of one match are found.
#[derive(Debug)]
pub(super) struct Threads {
    at: usize,
    now: List,
    next: List,
    stack: Vec<Frame>,
    /// The places of the way that is followed, while its next states are sought.
    current: Vec<usize>,
    /// Those of the best match so far.
    best: Option<Vec<usize>>,
}

/// States, those that are preferred first, with the places of each.
#[derive(Debug)]
struct List {
    states: Vec<StateID>,
    /// As many as there are slots, for each of `states`.
    places: Vec<usize>,
    /// Where a state may be in `seen`, by its number.
    index: Vec<u32>,
    /// All states that were come to, those that read nothing as well.
    seen: Vec<StateID>,
}

#[derive(Debug)]
enum Frame {
    Explore(StateID),
    Restore(usize, usize),
}

/// The memory of what a list has, and has room for.
fn room<T>(list: &Vec<T>) -> usize {
    list.capacity() * size_of::<T>()
}

impl List {
    fn new(states: usize) -> List {
        List { states: Vec::new(), places: Vec::new(), index: vec![0; states], seen: Vec::new() }
    }

    fn clear(&mut self) {
        self.states.clear();
        self.places.clear();
        self.seen.clear();
    }

    /// Whether it was not there yet.
    fn insert(&mut self, state: StateID) -> bool {
        let index = self.index[state.as_usize()];
        if self.seen.get(index as usize) == Some(&state) {
            return false;
        }
        self.index[state.as_usize()] = u32::try_from(self.seen.len()).unwrap_or(u32::MAX);
        self.seen.push(state);
        true
    }

    fn held(&self) -> usize {
        [room(&self.states), room(&self.places), room(&self.index), room(&self.seen)].into_iter().sum()
    }
}

impl Threads {
    /// The memory it takes.
    pub(super) fn held(&self) -> usize {
        let best = self.best.as_ref().map_or(0, room);
        [self.now.held(), self.next.held(), room(&self.stack), room(&self.current), best].into_iter().sum()
    }

    /// Comes to a state at a place, and to those behind it that nothing has to be read for. Returns the steps that took.
    fn reach(&mut self, nfa: &NFA, state: StateID, text: &[u8], at: usize) -> usize {
        let Threads { next, stack, current, .. } = self;
        let mut steps = 0;
        stack.push(Frame::Explore(state));
        while let Some(frame) = stack.pop() {
            let mut state = match frame {
                Frame::Explore(state) => state,
                Frame::Restore(slot, place) => {
                    current[slot] = place;
                    continue;
                }
            };
            while next.insert(state) {
                steps += 1;
                match nfa.state(state) {
                    State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) | State::Match { .. } => {
                        steps += current.len();
                        next.states.push(state);
                        next.places.extend_from_slice(current);
                        break;
                    }
                    State::Fail => break,
                    State::Look { look, next: behind } => {
                        if !nfa.look_matcher().matches(*look, text, at) {
                            break;
                        }
                        state = *behind;
                    }
                    State::Union { alternates } => {
                        let Some((&first, others)) = alternates.split_first() else { break };
                        steps += others.len();
                        stack.extend(others.iter().rev().copied().map(Frame::Explore));
                        state = first;
                    }
                    State::BinaryUnion { alt1, alt2 } => {
                        stack.push(Frame::Explore(*alt2));
                        state = *alt1;
                    }
                    State::Capture { next: behind, slot, .. } => {
                        if let Some(place) = current.get_mut(slot.as_usize()) {
                            stack.push(Frame::Restore(slot.as_usize(), *place));
                            *place = at;
                        }
                        state = *behind;
                    }
                }
            }
        }
        steps
    }
}

impl Finder {
    pub(super) fn new(nfa: NFA, regex: meta::Regex) -> Finder {
        let slots = nfa.group_info().slot_len();
        Finder { nfa, regex, slots }
    }

    /// Goes on with the groups of a match. None if the slice is used up before they are found.
    pub(super) fn find(
        &self,
        threads: &mut Option<Box<Threads>>,
        text: &[u8],
        (begin, end): (usize, usize),
        slice: &mut Slice,
    ) -> Option<Groups> {
        let steps = (end - begin + 1).saturating_mul(self.nfa.states().len());
        if threads.is_none() && steps <= slice.left() {
            slice.spend(steps);
            return Some(self.at_once(text, (begin, end)));
        }
        let threads = threads.get_or_insert_with(|| Box::new(self.begin(text, begin)));
        loop {
            let steps = self.step(threads, text, end);
            slice.spend(steps);
            if threads.at == end {
                break;
            }
            threads.at += 1;
            if slice.left() == 0 {
                return None;
            }
        }
        let group = |pair: &[usize]| match *pair {
            // A way that went into a group and to the end of the match came out of the group, too.
            [begin, end] if end != NOWHERE => Some((begin, end)),
            _ => None,
        };
        Some(match &threads.best {
            Some(places) => places.chunks(2).map(group).collect(),
            None => Groups::from_iter([Some((begin, end))]),
        })
    }

    fn begin(&self, text: &[u8], begin: usize) -> Threads {
        let states = self.nfa.states().len();
        let mut threads = Threads {
            at: begin,
            now: List::new(states),
            next: List::new(states),
            stack: Vec::new(),
            current: vec![NOWHERE; self.slots],
            best: None,
        };
        threads.reach(&self.nfa, self.nfa.start_anchored(), text, begin);
        std::mem::swap(&mut threads.now, &mut threads.next);
        threads
    }

    /// From one place to the next, with the byte between them; behind the last one there is none.
    fn step(&self, threads: &mut Threads, text: &[u8], end: usize) -> usize {
        let at = threads.at;
        let byte = text.get(at).filter(|_| at < end);
        let mut steps = 1;
        threads.next.clear();
        for index in 0..threads.now.states.len() {
            steps += 1;
            let places = index * self.slots..(index + 1) * self.slots;
            let behind = match (self.nfa.state(threads.now.states[index]), byte) {
                // What is preferred less is followed no more.
                (State::Match { .. }, _) => {
                    let best = threads.best.get_or_insert_default();
                    best.clear();
                    best.extend_from_slice(&threads.now.places[places]);
                    break;
                }
                (State::ByteRange { trans }, Some(&byte)) => trans.matches_byte(byte).then_some(trans.next),
                (State::Sparse(sparse), Some(&byte)) => sparse.matches_byte(byte),
                (State::Dense(dense), Some(&byte)) => dense.matches_byte(byte),
                _ => None,
            };
            if let Some(behind) = behind {
                threads.current.copy_from_slice(&threads.now.places[places]);
                steps += threads.reach(&self.nfa, behind, text, at + 1);
            }
        }
        std::mem::swap(&mut threads.now, &mut threads.next);
        steps
    }

    fn at_once(&self, text: &[u8], (begin, end): (usize, usize)) -> Groups {
        let input = Input::new(text).range(begin..end).anchored(Anchored::Yes);
        let mut slots: SmallVec<[_; 16]> = SmallVec::from_elem(None, self.regex.group_info().slot_len());
        if self.regex.search_slots(&input, &mut slots).is_none() {
            return Groups::from_iter([Some((begin, end))]);
        }
        let group = |pair: &[Option<NonMaxUsize>]| {
            Some((pair.first()?.as_ref()?.get(), pair.get(1)?.as_ref()?.get()))
        };
        slots.chunks(2).map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(pattern: &str) -> Finder {
        Finder::new(NFA::new(pattern).unwrap(), meta::Regex::new(pattern).unwrap())
    }

    #[test]
    fn all_that_is_kept_is_held() {
        let list = |states, places, index, seen| List {
            states: Vec::with_capacity(states),
            places: Vec::with_capacity(places),
            index: vec![0; index],
            seen: Vec::with_capacity(seen),
        };
        let mut threads = Threads {
            at: 0,
            now: list(1, 20, 300, 4000),
            next: list(2, 30, 400, 5000),
            stack: Vec::with_capacity(60_000),
            current: vec![0; 700_000],
            best: None,
        };
        assert_eq!(threads.now.held(), 4 * (1 + 300 + 4000) + 8 * 20);
        assert_eq!(threads.next.held(), 4 * (2 + 400 + 5000) + 8 * 30);
        let held = threads.now.held() + threads.next.held() + size_of::<Frame>() * 60_000 + 8 * 700_000;
        assert_eq!(threads.held(), held);
        threads.best = Some(vec![0; 3]);
        assert_eq!(threads.held(), held + 8 * 3);
    }

    #[test]
    fn a_short_match_is_found_at_once_if_the_slice_lasts_for_it() {
        let (finder, text) = (finder("(b+)c"), b"aabbca");
        // As if every state were looked at before and behind every byte.
        let steps = 4 * finder.nfa.states().len();
        let groups = Groups::from_iter([Some((2, 5)), Some((2, 4))]);
        let (mut threads, mut slice) = (None, Slice::of(steps));
        assert_eq!(finder.find(&mut threads, text, (2, 5), &mut slice), Some(groups.clone()));
        assert!(threads.is_none());
        assert_eq!(slice.left(), 0);
        let mut slice = Slice::of(steps - 1);
        while finder.find(&mut threads, text, (2, 5), &mut slice).is_none() {}
        assert!(threads.is_some());
    }

    #[test]
    fn every_state_that_is_come_to_is_a_step() {
        // One that has begun is not found at once, whatever the slice is. Every place is a step, and so is each state
        // there; of those behind it, each that is come to, its places if it reads a byte or is the end, and each way but
        // the first where there are many. What stands behind the match counts nothing.
        for (pattern, text, whole, steps) in [
            ("(b)c", b"abca".as_slice(), (1, 3), (1 + 1 + 2 + 4) + (1 + 1 + 2 + 4) + (1 + 1)),
            ("(?:(ab))+", b"abac", (0, 2), (1 + 1 + 1 + 4) + (1 + 1 + 6 + 2 * 4) + (1 + 2)),
            ("(?:(aa)|(bb)|(cc)|(dd))+", b"aabb", (0, 4), 175),
        ] {
            let finder = finder(pattern);
            let (mut threads, mut slice) = (Some(Box::new(finder.begin(text, whole.0))), Slice::of(10_000));
            let groups = finder.find(&mut threads, text, whole, &mut slice).unwrap();
            assert_eq!(groups, finder.at_once(text, whole), "{pattern}");
            assert_eq!(10_000 - slice.left(), steps, "{pattern}");
        }
    }
}
