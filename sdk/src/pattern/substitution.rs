//! hot path
//!
//! Replaces matches in texts of any length, such as a response body.
//!
//! Each search is linear in the rest of the text, but `a.*c|b` in a long line of `b` reads the
//! whole line for each match. So a replacement can pause between matches ([`Until`]) and resume
//! later, on another thread.

use model::Invalid;
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::syntax;

use super::{Captures, Engine, Pattern, Replacement, SIZE_LIMIT, StepLimit};
use crate::offload::Until;

/// Steps per byte of a pattern with look-around.
const BACKTRACKING: u64 = 16;
/// As above, if a search may read the whole text at each byte: steps for one part of
/// [`super::Longest::cost`].
const FAR: u64 = 800;

/// A pattern and the replacement of its matches.
#[derive(Debug)]
pub struct Substitution {
    pattern: Pattern,
    replacement: Replacement,
    global: bool,
    /// Maximum steps per byte read.
    states: u64,
    /// Bytes of the longest match, unless a repetition is unbounded.
    longest: Option<usize>,
}

/// The progress of a replacement in one text.
#[derive(Debug, Default)]
pub struct Progress {
    /// The new text so far.
    out: Vec<u8>,
    /// Bytes of the old text copied so far.
    copied: usize,
    from: usize,
    count: usize,
    gave_up: bool,
}

/// The result of [`Substitution::go_on`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    All,
    /// A search was undecided ([`StepLimit`]); the text is unchanged from where it began.
    GaveUp,
    Paused,
    /// No room for the new text. Resuming needs `least` bytes in total; `wanted` avoids frequent
    /// reallocation.
    Full {
        least: usize,
        wanted: usize,
    },
}

impl Progress {
    /// The capacity of the new text.
    pub fn held(&self) -> usize {
        self.out.capacity()
    }

    /// The finished new text; `None` if nothing was replaced.
    pub fn into_text(self) -> Option<Vec<u8>> {
        (self.count > 0).then_some(self.out)
    }

    /// Reserves `more` bytes within `room`; the first time as many as the old text has.
    fn grow(&mut self, more: usize, room: usize, old: usize) -> Result<(), Replaced> {
        let least = self.out.len() + more;
        let capacity = self.out.capacity();
        if least > capacity {
            let wanted = least.max(capacity.saturating_mul(2)).max(old);
            if least > room {
                return Err(Replaced::Full { least, wanted });
            }
            self.out.reserve_exact(wanted.min(room) - self.out.len());
        }
        Ok(())
    }
}

impl Substitution {
    /// Replaces all matches, or only the first.
    ///
    /// # Errors
    /// The pattern or the replacement is invalid, or the pattern is too large.
    pub fn new(
        pattern: &str,
        case_insensitive: bool,
        replacement: &str,
        global: bool,
    ) -> Result<Substitution, Invalid> {
        let (source, pattern) = (pattern, Pattern::new(pattern, case_insensitive)?);
        let replacement = Replacement::parse(replacement)?;
        let (states, longest) = weigh(source, case_insensitive).unwrap_or((1000, None));
        Ok(Substitution { pattern, replacement, global, states, longest })
    }

    /// Resumes replacing in this text, which must be the same each time. The new text may take
    /// `room` bytes.
    pub fn go_on(
        &self,
        progress: &mut Progress,
        text: &[u8],
        room: usize,
        until: &mut Until<'_>,
    ) -> Replaced {
        while progress.from <= text.len() && (self.global || progress.count == 0) {
            if !until.allows(self.cost(text, progress.from, None)) {
                return Replaced::Paused;
            }
            let found = match self.search(text, progress.from) {
                Ok(found) => found,
                Err(StepLimit) => {
                    progress.gave_up = true;
                    break;
                }
            };
            let Some(captures) = found else { break };
            until.spend(self.cost(text, progress.from, Some(captures.whole())));
            let (start, end) = captures.whole();
            let before = &text[progress.copied..start];
            if let Err(full) = progress.grow(before.len() + self.replacement.len(&captures), room, text.len())
            {
                return full;
            }
            progress.out.extend_from_slice(before);
            self.replacement.expand(&captures, &mut progress.out);
            progress.count += 1;
            progress.copied = end;
            // An empty match must not be found again at the same position.
            progress.from = if end == start { end + 1 } else { end };
            if until.is_over() {
                return Replaced::Paused;
            }
        }
        // The search is not repeated if there is no room for the rest.
        progress.from = text.len() + 1;
        if progress.count > 0 {
            let rest = &text[progress.copied..];
            if let Err(full) = progress.grow(rest.len(), room, text.len()) {
                return full;
            }
            progress.out.extend_from_slice(rest);
        }
        if progress.gave_up { Replaced::GaveUp } else { Replaced::All }
    }

    fn search<'t>(&self, text: &'t [u8], from: usize) -> Result<Option<Captures<'t>>, StepLimit> {
        match &self.pattern.engine {
            // Finding a match is much cheaper than finding its groups.
            Engine::Linear(_) if self.replacement.max_group().unwrap_or(0) == 0 => {
                let found = self.pattern.find_from(text, from);
                Ok(found.map(|whole| Captures { text, groups: [Some(whole)].into_iter().collect() }))
            }
            _ => self.pattern.captures_of_answer(text, from),
        }
    }

    /// The steps of a search from a position that finds this match, or without one reads the rest
    /// of the text.
    fn cost(&self, text: &[u8], from: usize, found: Option<(usize, usize)>) -> u64 {
        let left = text.len() - from;
        let read = match (found, self.longest) {
            // At most as far as a match that begins there can extend.
            (Some((start, end)), Some(longest)) => {
                left.min(end.max(start.saturating_add(longest)) - from + 1)
            }
            _ => left,
        };
        match &self.pattern.engine {
            Engine::Linear(_) => (read as u64 + 1).saturating_mul(self.states),
            // Undecided at once.
            Engine::Backtracking(_, longest) if text.len() > longest.answer => 1,
            Engine::Backtracking(_, longest) if self.pattern.may_read_far() => {
                longest.cost(text.len()).map_or(u64::MAX, |cost| (cost + 1).saturating_mul(FAR))
            }
            Engine::Backtracking(..) => {
                let read = found.map_or(left, |(_, end)| end - from);
                (read as u64 + 1) * BACKTRACKING
            }
        }
    }
}

/// The number of states of a pattern's automaton, and the length of its longest match in bytes.
fn weigh(pattern: &str, case_insensitive: bool) -> Option<(u64, Option<usize>)> {
    let syntax = syntax::Config::new().unicode(false).utf8(false).case_insensitive(case_insensitive);
    let hir = syntax::parse_with(pattern, &syntax).ok()?;
    let config = thompson::Config::new()
        .utf8(false)
        .nfa_size_limit(Some(SIZE_LIMIT))
        .which_captures(WhichCaptures::None);
    let nfa = thompson::Compiler::new().configure(config).build_from_hir(&hir).ok()?;
    Some((nfa.states().len() as u64, hir.properties().maximum_len()))
}

#[cfg(test)]
mod tests {
    use model::lookaround::{ANYWHERE, AT_BEGIN, BACK_AND_FORTH};

    use super::*;
    use crate::offload::TimeSlice;

    /// The result, the new text so far, and the number of parts of the work, of one search each if
    /// it pauses. `most` is the room for the new text.
    fn in_parts(
        (pattern, replacement, global): (&str, &str, bool),
        text: &[u8],
        most: usize,
        pauses: bool,
    ) -> (Replaced, Vec<u8>, usize) {
        let substitution = Substitution::new(pattern, false, replacement, global).unwrap();
        let mut progress = Progress::default();
        let mut room = 0;
        for parts in 1.. {
            let is_over = || pauses;
            let turn = TimeSlice::new(&is_over);
            match substitution.go_on(&mut progress, text, room, &mut Until::TimeSlice(&turn)) {
                Replaced::Paused => {}
                Replaced::Full { least, wanted } if least <= most => {
                    assert!(room < least && least <= wanted);
                    room = wanted.min(most);
                }
                full @ Replaced::Full { .. } => return (full, progress.out, parts),
                end => {
                    assert!(progress.count > 0 || progress.out.capacity() == 0);
                    return (end, progress.into_text().unwrap_or_else(|| text.to_vec()), parts);
                }
            }
        }
        unreachable!("the replacement did not finish");
    }

    fn replace(what: (&str, &str, bool), text: &[u8], most: usize) -> (Replaced, Vec<u8>) {
        let (end, out, _) = in_parts(what, text, most, false);
        (end, out)
    }

    fn fits(end: Replaced) -> bool {
        !matches!(end, Replaced::Full { .. })
    }

    /// Replaces the first match, and all matches.
    fn replaced(pattern: &str, template: &str, text: &str) -> [String; 2] {
        [false, true].map(|global| {
            let (end, out) = replace((pattern, template, global), text.as_bytes(), usize::MAX);
            assert_eq!(end, Replaced::All);
            String::from_utf8(out).unwrap()
        })
    }

    #[test]
    fn the_new_text_stays_within_its_room() {
        for (text, most, made) in
            [("axx", 11, true), ("axx", 10, false), ("xaaa", 8, true), ("xaaa", 7, false), ("aaaa", 0, true)]
        {
            assert_eq!(fits(replace(("x", "-----", true), text.as_bytes(), most).0), made, "{text}, {most}");
        }
        let (end, out) = replace(("x", "-----", true), &[b'x'; 10_000], 100);
        assert!(!fits(end) && out.len() <= 100 && out.capacity() <= 100, "{} bytes", out.len());
        // One match may be the whole text, many times.
        for (most, made) in [(33, true), (32, false), (31, false)] {
            for global in [false, true] {
                let (end, out) = replace(("x+", "$0$0-$0", global), b"axxxxxxxxxxb", most);
                assert_eq!(fits(end), made, "{most}");
                assert!(most > 31 || out.len() < 2, "{out:?}");
            }
        }
    }

    #[test]
    fn the_text_after_an_undecided_search_is_unchanged() {
        let pattern = r"a(?=b)|x(y|y)*(?=b)\1$";
        let text = [b"ab ".as_slice(), b"x", &[b'y'; 4000]].concat();
        let rest = &text[1..];
        let (end, out) = replace((pattern, "-", true), &text, usize::MAX);
        assert_eq!((end, out), (Replaced::GaveUp, [b"-", rest].concat()));
        let (end, out) = replace((pattern, "-", false), rest, usize::MAX);
        assert_eq!((end, &*out), (Replaced::GaveUp, rest));
        // Also if room for the rest is provided later.
        let (end, out) = replace((pattern, "-----", true), &text, text.len() + 4);
        assert_eq!((end, out), (Replaced::GaveUp, [b"-----", rest].concat()));
    }

    #[test]
    fn dollar_matches_before_the_final_newline() {
        for (pattern, text, all) in [
            (r"\w\S+$", "hello world\n", "hello *\n"),
            (r"\w\S+$", "hello world", "hello *"),
            (r"world\s*$", "hello world\n", "hello *"),
            ("b$", "ab\n\n", "ab\n\n"),
            ("b$", "b\nb\n", "b\n*\n"),
            ("$", "a\n", "a*\n*"),
            ("$|a", "a\n", "**\n*"),
            (r"b\z", "ab\n", "ab\n"),
            (r"b$|b\z", "ab\n", "ab\n"),
            (r"b\$", "ab\n", "ab\n"),
            ("[]$]", "a$\n", "a*\n"),
            ("[^]a]$", "ab\n", "a**"),
            ("(?m)b$", "b\nb\n", "*\n*\n"),
            ("(?x) b # not [\n $", "ab\n", "a*\n"),
        ] {
            assert_eq!(replaced(pattern, "*", text)[1], all, "{pattern} in {text:?}");
            let (pattern, found) = (Pattern::new(pattern, false).unwrap(), all.contains('*'));
            assert_eq!(pattern.is_match(text.as_bytes()), found, "{pattern:?} in {text:?}");
        }
    }

    #[test]
    fn expensive_patterns_are_searched_in_short_texts_only() {
        for (pattern, longest) in [
            ("^(?=a)a", usize::MAX),
            ("(?<=a)b", AT_BEGIN),
            ("(?=.*b)a", ANYWHERE),
            (".*(?=.*b).*a", BACK_AND_FORTH),
        ] {
            // The match is near its beginning.
            let made = |length: usize| {
                let text = [b"ab", &*vec![b'\n'; length - 2]].concat();
                let [first, all] =
                    [false, true].map(|global| replace((pattern, "-", global), &text, usize::MAX).0);
                assert_eq!(first, all, "{pattern:?}, {length}");
                all
            };
            match longest {
                usize::MAX => assert_eq!(made(1 << 20), Replaced::All, "{pattern:?}"),
                longest => {
                    assert_eq!(made(longest), Replaced::All, "{pattern:?}");
                    assert_eq!(made(longest + 1), Replaced::GaveUp, "{pattern:?}");
                }
            }
        }
    }

    #[test]
    fn groups_are_filled_into_replacements() {
        assert_eq!(replaced("(b)|(c)", "[$1$2]", "abc"), ["a[b]c", "a[b][c]"]);
        assert_eq!(replaced("x*", "-", "axb")[1], "-a--b-");
        assert_eq!(replaced("(?<!a)b", "$0$0", "abb")[1], "abbb");
        assert_eq!(replaced("^/no$", "/x", "/yes")[0], "/yes");
        assert_eq!(replaced("^/a/(.*)/b/(.*)", "/$2/${1}0$$", "/a/x/b/y")[0], "/y/x0$");
    }

    #[test]
    fn pauses_do_not_change_the_result() {
        let text = b"ab abc bca\nabab c";
        for pattern in ["a", "a|ab", "a*", "(a)(b)?", "^a", "$", r"\b", "", "(?<=a)b", "(?i)AB"] {
            for replacement in ["-", "<$0>"] {
                let once = in_parts((pattern, replacement, true), text, usize::MAX, false);
                let parts = in_parts((pattern, replacement, true), text, usize::MAX, true);
                assert_eq!((once.0, &once.1), (parts.0, &parts.1), "{pattern}");
                assert!(once.2 < 6 && parts.2 > once.2, "{pattern}: {}, {}", once.2, parts.2);
            }
        }
    }

    /// Whether a text is finished within this number of steps.
    fn takes(steps: u64, pattern: &str, text: &[u8], global: bool) -> bool {
        let substitution = Substitution::new(pattern, false, "-", global).unwrap();
        let end = substitution.go_on(&mut Progress::default(), text, usize::MAX, &mut Until::Steps(steps));
        assert!(matches!(end, Replaced::All | Replaced::Paused), "{pattern}: {end:?}");
        end == Replaced::All
    }

    #[test]
    fn steps_match_the_cost_of_a_search() {
        const LENGTH: usize = 10_000;
        let page = b"hello world\n".repeat(LENGTH / 12);
        let line = vec![b'b'; LENGTH];
        for (pattern, text, global, least, most) in [
            // About its length for each state of a short pattern, with or without matches.
            ("x", &page, true, 1, 8),
            ("world", &page, true, 4, 20),
            ("world", &page, false, 4, 20),
            // A longer pattern has more states.
            ("o.{300}x", &page, true, 300, 1000),
            // The rest of the text for each match.
            ("b.*c|b", &line, true, 2000, usize::MAX),
            // Look-around that reads little, and that reads far.
            ("(?<=x)y", &page, true, 10, 20),
            ("(?=.*x)y", &line[..1000].to_vec(), true, 20, 1000),
        ] {
            let steps = |times: usize| (text.len() as u64).saturating_mul(times as u64);
            assert!(!takes(steps(least), pattern, text, global), "{pattern} costs less than {least} a byte");
            assert!(takes(steps(most), pattern, text, global), "{pattern} costs more than {most} a byte");
        }
        // An undecided search costs nothing.
        assert!(!Until::Steps(1).allows(2));
        let substitution = Substitution::new("(?=.*x)y", false, "-", true).unwrap();
        let end = substitution.go_on(&mut Progress::default(), &line, usize::MAX, &mut Until::Steps(1));
        assert_eq!(end, Replaced::GaveUp);
    }

    #[test]
    fn a_new_text_of_equal_length_needs_no_more_room() {
        let text = [&[b'a'; 49], b"x".as_slice(), &[b'a'; 50]].concat();
        let substitution = Substitution::new("x", false, "-", true).unwrap();
        let mut progress = Progress::default();
        let end = substitution.go_on(&mut progress, &text, 0, &mut Until::Steps(u64::MAX));
        assert_eq!(end, Replaced::Full { least: 50, wanted: 100 });
        let end = substitution.go_on(&mut progress, &text, 100, &mut Until::Steps(u64::MAX));
        assert_eq!((end, progress.held()), (Replaced::All, 100));
    }
}
