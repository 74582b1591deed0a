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
#[cfg(test)]
mod tests;

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
    /// Takes the whole budget, for searches on another thread; [`Searches::put_back`] returns the rest.
    #[must_use]
    pub fn take(&self) -> Searches {
        Searches(Cell::new(self.0.take()))
    }

    /// Returns the rest of a budget.
    pub fn put_back(&self, rest: &Searches) {
        self.0.set(self.0.get().saturating_add(rest.0.take()));
    }

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

    /// As [`Pattern::captures`], from an offset in the text on; what is before it is seen by look-behind and `\b`.
    pub fn captures_at<'t>(
        &self,
        text: &'t [u8],
        from: usize,
        searches: &Searches,
    ) -> Result<Option<Captures<'t>>, StepLimit> {
        if from > text.len() {
            return Ok(None);
        }
        if let Engine::Backtracking(_, longest) = &self.engine {
            searches.pay(longest.cost(text.len() - from)?)?;
        }
        self.captures_from(text, from)
    }

    /// The names of the groups by number; group 0 and others without a name have none.
    pub fn group_names(&self) -> Vec<Option<&str>> {
        match &self.engine {
            Engine::Linear(regex) => regex.capture_names().collect(),
            Engine::Backtracking(regex, _) => regex.capture_names().collect(),
        }
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

    /// The position of a group in the text; `None` as for [`Captures::group`].
    pub fn position(&self, index: usize) -> Option<(usize, usize)> {
        self.groups.get(index).copied().flatten()
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
