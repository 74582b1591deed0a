//! hot path
//!
//! A linear search that stops after so many bytes and goes on where it stopped.
//!
//! `regex` looks for a match in one go, which may read all that is left of a text, and does so again for the next one:
//! with `a.*c|b` in a long line of `b` each match costs the line. Its own automata, taken step by step, find the same
//! matches, and whoever takes the steps can count them. Nothing here knows `fancy-regex`.

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::prefilter::Prefilter;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, Span, meta};

use super::groups::{Finder, Threads};
use super::substitution::Slice;
use super::{Groups, SIZE_LIMIT, Spent};

/// The memory of the states of one direction, beyond which they are forgotten and made again; more where a pattern is so
/// long that a few of its states take more.
pub(super) const CACHE: usize = 256 << 10;
/// What making a state costs beside the states of the pattern that it stands for.
const STATE: usize = 64;

/// A pattern's automata.
#[derive(Debug)]
pub(super) struct Scanner {
    /// Finds the end of the first match.
    forward: DFA,
    /// Finds the beginning of a match whose end is known.
    backward: DFA,
    /// How every match begins; what stands before that need not be looked at.
    prefix: Option<Prefilter>,
    /// A match can only begin where the text does.
    at_begin: bool,
    /// Finds the groups of a match whose place is known.
    groups: Option<Finder>,
    /// The states of the pattern: a search for which nothing is prepared may have to go through all of them at a byte.
    states: usize,
}

/// What a search has found out about states, kept from match to match.
#[derive(Debug)]
pub(super) struct Caches {
    forward: Cache,
    backward: Cache,
}

/// Where a search has come to. States are numbers in the caches, which nobody else uses meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Place {
    #[default]
    Begin,
    /// Before the byte `at`; `end` is that of the best match so far.
    Forward { state: LazyStateID, at: usize, end: Option<usize> },
    /// Behind the byte `at`.
    Backward { state: LazyStateID, at: usize, begin: usize, end: usize, read: usize },
}

/// What a search found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) whole: Option<(usize, usize)>,
    /// The last byte that was read to find it, or the end of the text.
    pub(super) read: usize,
}

impl Caches {
    /// The memory they take.
    pub(super) fn held(&self) -> usize {
        self.forward.memory_usage() + self.backward.memory_usage()
    }
}

impl Scanner {
    /// None if there is no such automaton: for a pattern that asks for word boundaries of Unicode.
    pub(super) fn new(pattern: &str, case_insensitive: bool, with_groups: bool) -> Option<Scanner> {
        let syntax = syntax::Config::new().unicode(false).utf8(false).case_insensitive(case_insensitive);
        let hir = syntax::parse_with(pattern, &syntax).ok()?;
        let nfa = |reverse: bool, captures| {
            let config = thompson::Config::new()
                .utf8(false)
                .reverse(reverse)
                .nfa_size_limit(Some(SIZE_LIMIT))
                .which_captures(captures);
            thompson::Compiler::new().configure(config).build_from_hir(&hir).ok()
        };
        let dfa = |kind, reverse: bool| {
            // It must never give up. When its memory is full, it forgets its states and makes them again.
            let config = Config::new()
                .match_kind(kind)
                .specialize_start_states(!reverse)
                .cache_capacity(CACHE)
                .skip_cache_capacity_check(true)
                .minimum_cache_clear_count(None);
            DFA::builder().configure(config).build_from_nfa(nfa(reverse, WhichCaptures::None)?).ok()
        };
        let groups = || {
            let config = meta::Config::new().utf8_empty(false).nfa_size_limit(Some(SIZE_LIMIT));
            let regex = meta::Builder::new().configure(config).build_from_hir(&hir).ok()?;
            Some(Finder::new(nfa(false, WhichCaptures::All)?, regex))
        };
        let forward = dfa(MatchKind::LeftmostFirst, false)?;
        let at_begin = forward.get_nfa().is_always_start_anchored();
        // Where there is one place for a match, it is looked at, and nothing is sought behind it.
        let prefix = Some(&hir)
            .filter(|_| !at_begin)
            .and_then(|hir| Prefilter::from_hir_prefix(MatchKind::LeftmostFirst, hir))
            .filter(Prefilter::is_fast);
        Some(Scanner {
            at_begin,
            states: forward.get_nfa().states().len(),
            forward,
            backward: dfa(MatchKind::All, true)?,
            prefix,
            groups: if with_groups { Some(groups()?) } else { None },
        })
    }

    pub(super) fn caches(&self) -> Caches {
        Caches { forward: self.forward.create_cache(), backward: self.backward.create_cache() }
    }

    /// The steps of a search in one go through so many bytes, at worst.
    pub(super) fn steps(&self, length: usize) -> usize {
        length.saturating_mul(self.states)
    }

    /// The steps of making a state, at worst.
    fn state(&self) -> usize {
        STATE + self.states
    }

    pub(super) fn finds_groups(&self) -> bool {
        self.groups.is_some()
    }

    /// Goes on with the search for the first match from a place on. None if the slice is used up before it is at its
    /// end.
    ///
    /// # Errors
    /// None that is known: these automata never give up.
    pub(super) fn find(
        &self,
        caches: &mut Caches,
        place: &mut Place,
        text: &[u8],
        from: usize,
        slice: &mut Slice,
    ) -> Result<Option<Found>, Spent> {
        loop {
            *place = match *place {
                Place::Begin => {
                    Place::Forward { state: self.begin(caches, text, from)?, at: from, end: None }
                }
                Place::Forward { state, at, end } => {
                    let mut run = Run { state, at, best: end };
                    let is_over = self.forward(caches, &mut run, text, slice)?;
                    let Run { state, at, best } = run;
                    match best {
                        _ if !is_over => {
                            *place = Place::Forward { state, at, end: best };
                            return Ok(None);
                        }
                        None => return Ok(Some(Found { whole: None, read: at })),
                        Some(end) if self.at_begin => {
                            return Ok(Some(Found { whole: Some((from, end)), read: at }));
                        }
                        Some(end) => {
                            let input = Input::new(text).range(from..end).anchored(Anchored::Yes);
                            let state = self.backward.start_state_reverse(&mut caches.backward, &input);
                            Place::Backward {
                                state: state.map_err(|_| Spent)?,
                                at: end,
                                begin: end,
                                end,
                                read: at,
                            }
                        }
                    }
                }
                Place::Backward { state, at, begin, end, read } => {
                    let mut run = Run { state, at, best: Some(begin) };
                    let is_over = self.backward(caches, &mut run, text, from, slice)?;
                    let begin = run.best.unwrap_or(begin);
                    if is_over {
                        return Ok(Some(Found { whole: Some((begin, end)), read }));
                    }
                    *place = Place::Backward { state: run.state, at: run.at, begin, end, read };
                    return Ok(None);
                }
            };
        }
    }

    fn begin(&self, caches: &mut Caches, text: &[u8], at: usize) -> Result<LazyStateID, Spent> {
        let anchored = if self.at_begin { Anchored::Yes } else { Anchored::No };
        let input = Input::new(text).range(at..).anchored(anchored);
        self.forward.start_state_forward(&mut caches.forward, &input).map_err(|_| Spent)
    }

    /// Whether it came to an end. A state tells of a match with the byte behind it.
    fn forward(
        &self,
        caches: &mut Caches,
        run: &mut Run,
        text: &[u8],
        slice: &mut Slice,
    ) -> Result<bool, Spent> {
        let begun = run.at;
        let mut stop = begun.saturating_add(slice.left()).min(text.len());
        let mut was_sought = false;
        while run.at < stop {
            if let Some(prefix) = self.prefix.as_ref().filter(|_| run.state.is_start() && !was_sought) {
                // One that begins before the stop may end behind it.
                let until = text.len().min(stop.saturating_add(prefix.max_needle_len()));
                let found = prefix.find(text, Span { start: run.at, end: until });
                let next = found.map_or(stop, |found| found.start.min(stop));
                was_sought = true;
                if next > run.at {
                    run.at = next;
                    run.state = self.begin(caches, text, next)?;
                }
                continue;
            }
            was_sought = false;
            let (next, made) = step(&self.forward, &mut caches.forward, run.state, text[run.at])?;
            run.state = next;
            if made {
                slice.spend(self.state());
                stop = begun.saturating_add(slice.left()).min(text.len());
            }
            if run.state.is_tagged() {
                if run.state.is_match() {
                    run.best = Some(run.at);
                } else if run.state.is_dead() {
                    slice.spend(run.at - begun);
                    return Ok(true);
                }
            }
            run.at += 1;
        }
        slice.spend(run.at - begun);
        if run.at < text.len() {
            return Ok(false);
        }
        let last = self.forward.next_eoi_state(&mut caches.forward, run.state).map_err(|_| Spent)?;
        if last.is_match() {
            run.best = Some(text.len());
        }
        Ok(true)
    }

    /// The same backwards, down to a place.
    fn backward(
        &self,
        caches: &mut Caches,
        run: &mut Run,
        text: &[u8],
        from: usize,
        slice: &mut Slice,
    ) -> Result<bool, Spent> {
        let begun = run.at;
        let mut stop = begun.saturating_sub(slice.left()).max(from);
        while run.at > stop {
            let (next, made) = step(&self.backward, &mut caches.backward, run.state, text[run.at - 1])?;
            run.state = next;
            if made {
                slice.spend(self.state());
                stop = begun.saturating_sub(slice.left()).max(from);
            }
            if run.state.is_match() {
                run.best = Some(run.at);
            } else if run.state.is_dead() {
                slice.spend(begun - run.at);
                return Ok(true);
            }
            run.at -= 1;
        }
        slice.spend(begun - run.at);
        if run.at > from {
            return Ok(false);
        }
        let before = from.checked_sub(1).and_then(|before| text.get(before));
        let last = match before {
            Some(&before) => self.backward.next_state(&mut caches.backward, run.state, before),
            None => self.backward.next_eoi_state(&mut caches.backward, run.state),
        };
        if last.map_err(|_| Spent)?.is_match() {
            run.best = Some(from);
        }
        Ok(true)
    }

    /// Goes on with the groups of a match that was found. None if the slice is used up before they are known.
    pub(super) fn groups(
        &self,
        threads: &mut Option<Box<Threads>>,
        text: &[u8],
        whole: (usize, usize),
        slice: &mut Slice,
    ) -> Option<Groups> {
        let Some(finder) = &self.groups else { return Some(Groups::from_iter([Some(whole)])) };
        finder.find(threads, text, whole, slice)
    }
}

/// The state behind a byte, and whether that had to be found out. Behind a state of a match or a beginning this is seen
/// only if the state is new.
#[inline]
fn step(dfa: &DFA, cache: &mut Cache, state: LazyStateID, byte: u8) -> Result<(LazyStateID, bool), Spent> {
    let before = if state.is_tagged() {
        Some(cache.memory_usage())
    } else {
        let next = dfa.next_state_untagged(cache, state, byte);
        if !next.is_unknown() {
            return Ok((next, false));
        }
        None
    };
    let next = dfa.next_state(cache, state, byte).map_err(|_| Spent)?;
    Ok((next, before.is_none_or(|before| cache.memory_usage() != before)))
}

/// A part of a search in one direction.
struct Run {
    state: LazyStateID,
    at: usize,
    best: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of two searches after one another, and what they found.
    fn steps(pattern: &str, text: &[u8], from: usize) -> [(usize, Option<(usize, usize)>); 2] {
        let scanner = Scanner::new(pattern, false, false).unwrap();
        let mut caches = scanner.caches();
        [(); 2].map(|()| {
            let mut slice = Slice::of(10_000);
            let found =
                scanner.find(&mut caches, &mut Place::Begin, text, from, &mut slice).unwrap().unwrap();
            (10_000 - slice.left(), found.whole)
        })
    }

    #[test]
    fn what_is_known_costs_the_bytes_that_are_read() {
        for (pattern, text, from, read, whole) in [
            // A state tells of a match with the byte behind it, so one byte more is read, forwards and backwards.
            ("[ab]+", b"cccabab".as_slice(), 1, 6 + 5, Some((3, 7))),
            ("[ab]+", b"cccababcccc", 1, 7 + 5, Some((3, 7))),
            // The text has no more, and the search goes back to where it began.
            ("[ab]+", b"abab", 1, 3 + 3, Some((1, 4))),
            ("[ab]+", b"cccc", 1, 3, None),
            // Where it can only begin at one place, there is no way back.
            ("^[ab]+", b"ababcccc", 0, 5, Some((0, 4))),
            ("^[ab]+", b"caba", 0, 0, None),
        ] {
            assert_eq!(steps(pattern, text, from)[1], (read, whole), "{pattern} in {}", text.escape_ascii());
        }
    }

    #[test]
    fn no_state_is_made_for_what_stands_before_a_match() {
        assert_eq!(steps("ca", b"bcbccbcb", 1), [(7, None); 2]);
    }
}
