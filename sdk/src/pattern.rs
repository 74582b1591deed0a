//! hot path
//!
//! Regular expressions as in APISIX: PCRE over bytes.
//!
//! A pattern runs on `regex`, whose time is linear in the text. Only a pattern with look-around,
//! back-references or atomic groups runs on `fancy-regex`, with a limit on its steps, similar to
//! PCRE's match limit. A search that hits the limit is undecided; the caller chooses what follows
//! from that ([`StepLimit`]). As in OpenResty without the `u` option, texts are bytes, `\w`, `\d`, `\s`
//! mean ASCII, and `$` matches before a final newline as well as at the very end; in patterns with
//! look-around only at the very end.

mod substitution;

use std::cell::Cell;
use std::fmt;

use model::Invalid;
use model::lookaround::{AT_BEGIN, Growth, longest_answer, may_be_catastrophic};
use regex::bytes;
use smallvec::SmallVec;

pub use substitution::{Progress, Replaced, Substitution};

/// Maximum steps of a backtracking search: a few milliseconds.
const BACKTRACK_LIMIT: usize = 100_000;
/// Maximum bytes of a compiled pattern.
const SIZE_LIMIT: usize = 4 << 20;

/// A compiled pattern.
#[derive(Clone)]
pub struct Pattern {
    engine: Engine,
    /// The pattern has a `$` and runs on `regex`, where `$` is the very end: texts that end with a
    /// newline are also searched without it.
    ends: bool,
}

#[derive(Clone)]
enum Engine {
    Linear(bytes::Regex),
    Backtracking(fancy_regex::Regex, Longest),
}

/// The maximum text length of a backtracking search. A step may read all of the remaining text, so
/// a limit on steps does not limit the time.
#[derive(Debug, Clone, Copy)]
struct Longest {
    growth: Growth,
    /// Whether it may take many steps in a short text.
    is_catastrophic: bool,
    /// Maximum bytes of a text from an upstream. The limit of texts for conditions, which clients
    /// may choose, follows from `growth`.
    answer: usize,
}

/// The budget left for an exchange's searches with backtracking patterns: a request may be matched
/// against the conditions of many routes, each with a text of maximum length.
#[derive(Debug)]
pub struct Searches(Cell<u64>);

/// The cost of a search in a text of maximum length; at worst a fifth of a second.
const LONGEST_SEARCH: u64 = 1 << 16;
/// Number of such searches per exchange.
const SEARCHES: u64 = 4;
/// The cost of the maximum steps in a short text: some milliseconds.
const STEPS: u64 = LONGEST_SEARCH / 40;
/// Shorter texts take few steps.
const FEW_STEPS: usize = 12;

impl Default for Searches {
    fn default() -> Searches {
        Searches(Cell::new(SEARCHES * LONGEST_SEARCH))
    }
}

impl Searches {
    fn pay(&self, cost: u64) -> Result<(), StepLimit> {
        self.0.set(self.0.get().checked_sub(cost).ok_or(StepLimit)?);
        Ok(())
    }
}

impl Longest {
    /// The cost of a search at worst.
    fn cost(self, length: usize) -> Result<u64, StepLimit> {
        let longest = self.growth.longest_text();
        if length > longest {
            return Err(StepLimit);
        }
        let part = (length as u64 * 1024) / longest as u64;
        let steps = if self.is_catastrophic && length >= FEW_STEPS { STEPS } else { 0 };
        Ok(steps
            + match self.growth {
                // As long as reading all of it once.
                Growth::Linear => part,
                Growth::Square => part * part / 16,
                Growth::Cube => part * part * part / (16 * 1024),
            })
    }
}

/// A search hit its limit of steps, or the text is too long for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimit;

/// The positions of a match and its groups in the text; group 0 is the whole match.
#[derive(Debug, Clone)]
pub struct Captures<'t> {
    text: &'t [u8],
    groups: Groups,
}

type Groups = SmallVec<[Option<(usize, usize)>; 8]>;

/// The replacement of a match, with `$0`, `$1`, `${1}` for groups and `$$` for a dollar sign (the
/// templates of OpenResty's `ngx.re.sub`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Group(usize),
}

impl Pattern {
    /// Compiles a pattern. It matches anywhere in a text; it is not anchored.
    pub fn new(pattern: &str, case_insensitive: bool) -> Result<Pattern, Invalid> {
        let linear = bytes::RegexBuilder::new(pattern)
            .case_insensitive(case_insensitive)
            .unicode(false)
            .size_limit(SIZE_LIMIT)
            .build();
        let engine = match linear {
            Ok(regex) => Engine::Linear(regex),
            Err(regex::Error::CompiledTooBig(limit)) => {
                return Err(Invalid::new(format!("regex takes more than {limit} bytes when compiled"))
                    .hint("use smaller repetition counts"));
            }
            Err(_) => fancy_regex::RegexBuilder::new(pattern)
                .case_insensitive(case_insensitive)
                .bytes_mode(fancy_regex::BytesMode::Ascii)
                .backtrack_limit(BACKTRACK_LIMIT)
                .delegate_size_limit(SIZE_LIMIT)
                .build()
                .map(|regex| {
                    let (growth, answer) = (Growth::of(pattern), longest_answer(pattern));
                    let is_catastrophic = may_be_catastrophic(pattern);
                    Engine::Backtracking(regex, Longest { growth, is_catastrophic, answer })
                })
                .map_err(|error| {
                    Invalid::new(format!("invalid regex: {error}")).expected("a regular expression (PCRE)")
                })?,
        };
        let ends = matches!(engine, Engine::Linear(_)) && has_end(pattern);
        Ok(Pattern { engine, ends })
    }

    /// The text without its final newline, if a `$` matches before that.
    #[inline]
    fn before_newline<'t>(&self, text: &'t [u8]) -> Option<&'t [u8]> {
        if self.ends { text.strip_suffix(b"\n") } else { None }
    }

    pub fn as_str(&self) -> &str {
        match &self.engine {
            Engine::Linear(regex) => regex.as_str(),
            Engine::Backtracking(regex, _) => regex.as_str(),
        }
    }

    /// Whether a search may be undecided, see [`StepLimit`].
    pub fn may_be_spent(&self) -> bool {
        matches!(self.engine, Engine::Backtracking(..))
    }

    /// Whether the pattern matches; an undecided search is an error.
    #[inline]
    pub fn judge(&self, text: &[u8], searches: &Searches) -> Result<bool, StepLimit> {
        match &self.engine {
            Engine::Linear(regex) => {
                let before = || self.before_newline(text).is_some_and(|text| regex.is_match(text));
                Ok(regex.is_match(text) || before())
            }
            Engine::Backtracking(regex, longest) => {
                searches.pay(longest.cost(text.len())?)?;
                regex.is_match(text).map_err(|_| StepLimit)
            }
        }
    }

    /// Whether the pattern matches in a test; undecided counts as no match.
    #[cfg(test)]
    fn is_match(&self, text: &[u8]) -> bool {
        self.judge(text, &Searches::default()).unwrap_or(false)
    }

    /// The first match and its groups; an undecided search is an error.
    pub fn captures<'t>(
        &self,
        text: &'t [u8],
        searches: &Searches,
    ) -> Result<Option<Captures<'t>>, StepLimit> {
        if let Engine::Backtracking(_, longest) = &self.engine {
            searches.pay(longest.cost(text.len())?)?;
        }
        self.captures_from(text, 0)
    }

    /// Whether a search may read much more than the text's or the match's length.
    fn may_read_far(&self) -> bool {
        match &self.engine {
            Engine::Linear(_) => true,
            Engine::Backtracking(_, longest) => longest.is_catastrophic || longest.answer < AT_BEGIN,
        }
    }

    /// As [`Pattern::captures`], in a text from an upstream.
    fn captures_of_answer<'t>(&self, text: &'t [u8], from: usize) -> Result<Option<Captures<'t>>, StepLimit> {
        match &self.engine {
            Engine::Backtracking(_, longest) if text.len() > longest.answer => Err(StepLimit),
            _ => self.captures_from(text, from),
        }
    }

    /// The position of the first match; `None` for a pattern with look-around.
    fn find_from(&self, text: &[u8], from: usize) -> Option<(usize, usize)> {
        let Engine::Linear(regex) = &self.engine else { return None };
        let find = |text: &[u8]| regex.find_at(text, from).map(|found| (found.start(), found.end()));
        let before = self.before_newline(text).filter(|text| from <= text.len());
        earlier(find(text), before.and_then(find))
    }

    fn captures_from<'t>(&self, text: &'t [u8], from: usize) -> Result<Option<Captures<'t>>, StepLimit> {
        let groups = match &self.engine {
            Engine::Linear(regex) => {
                let found = regex.captures_at(text, from);
                let before = self.before_newline(text).filter(|text| from <= text.len());
                let before = before.and_then(|text| regex.captures_at(text, from));
                let start =
                    |found: &bytes::Captures<'_>| found.get(0).map_or(usize::MAX, |whole| whole.start());
                let found = match (found, before) {
                    (Some(found), Some(before)) if start(&before) < start(&found) => before,
                    (Some(found), _) | (None, Some(found)) => found,
                    (None, None) => return Ok(None),
                };
                found.iter().map(|group| group.map(|m| (m.start(), m.end()))).collect()
            }
            Engine::Backtracking(regex, _) => {
                let found = regex.captures_from_pos(text, from).map_err(|_| StepLimit)?;
                let Some(found) = found else { return Ok(None) };
                (0..found.len()).map(|i| found.get(i).map(|m| (m.start(), m.end()))).collect()
            }
        };
        Ok(Some(Captures { text, groups }))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.as_str())
    }
}

impl<'t> Captures<'t> {
    /// The text of a group; `None` if there is no such group or it did not participate in the
    /// match.
    #[inline]
    pub fn group(&self, index: usize) -> Option<&'t [u8]> {
        let (start, end) = (*self.groups.get(index)?)?;
        Some(&self.text[start..end])
    }

    /// Number of groups, including the whole match.
    pub fn count(&self) -> usize {
        self.groups.len()
    }

    /// Writes the text with the match replaced.
    pub fn replace(&self, replacement: &Replacement, out: &mut Vec<u8>) {
        let (start, end) = self.whole();
        out.extend_from_slice(&self.text[..start]);
        replacement.expand(self, out);
        out.extend_from_slice(&self.text[end..]);
    }

    /// Start and end of the whole match.
    pub fn whole(&self) -> (usize, usize) {
        // Both engines return group 0 with every match.
        self.groups.first().copied().flatten().unwrap_or_default()
    }
}

impl Replacement {
    pub fn parse(template: &str) -> Result<Replacement, Invalid> {
        let mut parts = Vec::new();
        let mut text = Vec::new();
        let mut rest = template.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'$' {
                text.push(byte);
            } else if let Some(after) = rest.strip_prefix(b"$") {
                text.push(b'$');
                rest = after;
            } else {
                let (group, after) = group_number(rest).ok_or_else(|| {
                    Invalid::new(format!("invalid capturing variable name found in \"{template}\""))
                        .expected("`$` and a number, `${number}`, or `$$` for a dollar sign")
                })?;
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Group(group));
                rest = after;
            }
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Replacement { parts })
    }

    /// The highest group number.
    pub fn max_group(&self) -> Option<usize> {
        self.parts.iter().filter_map(|part| if let Part::Group(n) = part { Some(*n) } else { None }).max()
    }

    /// Length in bytes with the groups filled in.
    fn len(&self, captures: &Captures<'_>) -> usize {
        let of = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Group(index) => captures.group(*index).map_or(0, <[u8]>::len),
        };
        self.parts.iter().map(of).sum()
    }

    /// Appends it with the groups filled in; a group without text is empty.
    pub fn expand(&self, captures: &Captures<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Group(index) => out.extend_from_slice(captures.group(*index).unwrap_or_default()),
            }
        }
    }
}

/// The match that starts first; `one` if both start at the same position.
fn earlier(one: Option<(usize, usize)>, two: Option<(usize, usize)>) -> Option<(usize, usize)> {
    match (one, two) {
        (Some(one), Some(two)) if two.0 < one.0 => Some(two),
        (one, two) => one.or(two),
    }
}

/// Whether a pattern has a `$` that may match the end of the text. A pattern with `\z` does not
/// count: that means the very end, so its texts are never searched without their newline. A `$` in
/// a character class or a comment counts, too: the additional search finds nothing more then.
fn has_end(pattern: &str) -> bool {
    let mut found = false;
    let mut bytes = pattern.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if bytes.next() == Some(b'z') => return false,
            b'$' => found = true,
            _ => {}
        }
    }
    found
}

/// Parses `12…` or `{12}…`.
fn group_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (braced, digits) = match bytes.strip_prefix(b"{") {
        Some(after) => (true, after),
        None => (false, bytes),
    };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&digits[..len]).ok()?.parse().ok()?;
    let rest = &digits[len..];
    Some((number, if braced { rest.strip_prefix(b"}")? } else { rest }))
}

#[cfg(test)]
mod tests {
    use model::lookaround::{ANYWHERE, AT_BEGIN, BACK_AND_FORTH};

    use super::*;

    #[test]
    fn patterns_match_as_in_pcre() {
        for (pattern, insensitive, text, expected) in [
            ("^/a/", false, "/a/b", true),
            (r"\/iphone\/", false, "x/iphone/", true),
            ("[a-z]+", false, "ABC", false),
            ("[a-z]+", true, "ABC", true),
            ("(?i)abc", false, "ABC", true),
            (r"^(?!/public).*$", false, "/public/x", false),
            (r"^(?!/public).*$", false, "/private", true),
            (r"(a+)b\1", false, "aabaa", true),
            (r"(?<=x)y", false, "xy", true),
            (r"(?>a+)b", false, "aab", true),
            ("é", false, "café", true),
            ("", false, "", true),
        ] {
            let pattern = Pattern::new(pattern, insensitive).unwrap();
            assert_eq!(pattern.is_match(text.as_bytes()), expected, "{pattern:?} in {text}");
        }
        assert!(Pattern::new("^.b$", false).unwrap().is_match(b"\xffb"));
        assert!(Pattern::new("^(?!a).b$", false).unwrap().is_match(b"\xffb"));
        assert!(Pattern::new("(", false).unwrap_err().reason.starts_with("invalid regex"));
    }

    #[test]
    fn hostile_patterns_are_rejected_or_bounded() {
        assert!(Pattern::new(r"(\w{1,1000}){1,1000}", false).is_err());
        let pattern = Pattern::new(r"^(a|a)*(?=b)\1$", false).unwrap();
        let text = vec![b'a'; 4096];
        assert!(pattern.may_be_spent());
        assert_eq!(pattern.judge(&text, &Searches::default()), Err(StepLimit));
        assert!(!pattern.is_match(&text));
        assert_eq!(pattern.captures(&text, &Searches::default()).err(), Some(StepLimit));
    }

    #[test]
    fn backtracking_searches_of_long_texts_are_undecided() {
        let text = vec![b'a'; AT_BEGIN + 1];
        for (pattern, long) in
            [("a+$", Ok(true)), ("^b", Ok(false)), ("^(?=a)a", Err(StepLimit)), ("(?!a)a", Err(StepLimit))]
        {
            let pattern = Pattern::new(pattern, false).unwrap();
            assert_eq!(pattern.judge(&text, &Searches::default()), long, "{pattern:?}");
        }
        for (pattern, longest) in [
            ("^(?=a)a", AT_BEGIN),
            ("(?=a)a", ANYWHERE),
            ("^.*(?!b).*a", ANYWHERE),
            (".*(?!b).*a", BACK_AND_FORTH),
        ] {
            let pattern = Pattern::new(pattern, false).unwrap();
            let judged =
                [longest, longest + 1].map(|length| pattern.judge(&text[..length], &Searches::default()));
            assert_eq!(judged, [Ok(true), Err(StepLimit)], "{pattern:?}");
            let found =
                |length| pattern.captures(&text[..length], &Searches::default()).map(|found| found.is_some());
            assert_eq!([longest, longest + 1].map(found), judged, "{pattern:?}");
        }
    }

    #[test]
    fn searches_of_one_exchange_share_a_budget() {
        let searched = |pattern: &str, length: usize| {
            let (pattern, text) = (Pattern::new(pattern, false).unwrap(), vec![b'a'; length]);
            let searches = Searches::default();
            let judged = (0..2000).take_while(|_| pattern.judge(&text, &searches).is_ok()).count();
            let searches = Searches::default();
            let captured = (0..2000).take_while(|_| pattern.captures(&text, &searches).is_ok()).count();
            assert_eq!(judged, captured, "{pattern:?}");
            judged
        };
        for (pattern, longest) in [("(?=a)a", ANYWHERE), (".*(?!b).*a", BACK_AND_FORTH)] {
            assert_eq!(searched(pattern, longest), 4, "{pattern}");
            assert!((5..100).contains(&searched(pattern, longest / 2)), "{pattern}");
            assert_eq!(searched(pattern, 100), 2000, "{pattern}");
        }
        assert_eq!(searched("^(?=a)a", AT_BEGIN), 256);
        assert_eq!(searched(r"^(\w+\s?)*(?<!x)$", 11), 2000);
        assert_eq!(searched(r"^(\w+\s?)*(?<!x)$", 12), 160);
        // A search that is linear in the text costs nothing.
        assert_eq!(searched("a+$", 5000), 2000);
    }

    #[test]
    fn only_backtracking_patterns_may_be_spent() {
        for (pattern, may) in [("a(b|c)*$", false), ("a(?=b)", true), (r"(a)\1", true)] {
            let compiled = Pattern::new(pattern, false).unwrap();
            assert_eq!((compiled.may_be_spent(), compiled.as_str()), (may, pattern));
        }
    }

    #[test]
    fn matches_have_groups_and_are_replaced() {
        for pattern in ["(b)(x)?c", "(b)(x)?(?=c)c"] {
            let pattern = Pattern::new(pattern, false).unwrap();
            let captures = pattern.captures(b"abcd", &Searches::default()).unwrap().unwrap();
            assert_eq!(captures.count(), 3, "{pattern:?}");
            let groups = [0, 1, 2, 3].map(|index| captures.group(index));
            assert_eq!(groups, [Some(b"bc".as_slice()), Some(b"b"), None, None], "{pattern:?}");
            let mut out = b"/".to_vec();
            captures.replace(&Replacement::parse("<$1$2>").unwrap(), &mut out);
            assert_eq!(out, b"/a<b>d", "{pattern:?}");
        }
    }

    #[test]
    fn replacements_refer_to_groups() {
        for bad in ["$", "$x", "${1", "${x}", "a$", "$99999999999999999999"] {
            assert!(Replacement::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Replacement::parse("$1$7").unwrap().max_group(), Some(7));
    }
}
