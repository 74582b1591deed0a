//! Patterns of schemas: PCRE over bytes.
//!
//! They match bytes, as PCRE without its `u` flag does; `$` is the very end, never before a last
//! newline as in PCRE, since that lets a newline slip through. A pattern with look-around runs on a
//! backtracking engine, which gives up after a bounded number of steps: the text then does not match.

use std::cell::Cell;
use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

use crate::Invalid;
use crate::lookaround::{ANYWHERE, Growth};

/// Steps a backtracking search may take.
const STEPS: usize = 100_000;

/// What the searches of one check may cost together, in bytes that are looked at: half a second. A body may hold as
/// many texts as it likes.
const WORK: usize = 8 * ANYWHERE * ANYWHERE;
/// Texts of so many bytes are searched however many they are: that takes no longer than to read so many.
const SHORT: usize = 32;

thread_local! {
    /// What is left of [`WORK`].
    static LEFT: Cell<usize> = const { Cell::new(WORK) };
}

/// Says that the check of another value begins.
pub fn begin() {
    LEFT.set(WORK);
}

/// Pays for a search of a text.
fn may_search(growth: Growth, length: usize) -> bool {
    let square = length * length;
    let cost = match growth {
        Growth::Linear => 0,
        Growth::Square if length <= SHORT => 0,
        Growth::Square => square,
        Growth::Cube => length * square.min(STEPS),
    };
    let left = LEFT.get().checked_sub(cost);
    LEFT.set(left.unwrap_or(0));
    left.is_some()
}

/// A compiled pattern.
pub enum Pattern {
    Linear(Regex),
    /// And what its searches cost.
    Backtracking(Box<fancy_regex::Regex>, Growth),
}

impl Pattern {
    /// # Errors
    /// A pattern that no engine takes.
    pub fn new(source: &str) -> Result<Pattern, Invalid> {
        let refused =
            |error: &dyn fmt::Display| Invalid::new(format!("pattern {source} does not compile: {error}"));
        match RegexBuilder::new(source).unicode(false).build() {
            Ok(regex) => Ok(Pattern::Linear(regex)),
            // Properties such as `\p{L}` are about letters, not bytes.
            Err(regex::Error::Syntax(_)) => fancy_regex::RegexBuilder::new(source)
                .backtrack_limit(STEPS)
                .build()
                .map(|regex| Pattern::Backtracking(Box::new(regex), Growth::of(source)))
                .map_err(|error| refused(&error)),
            Err(error) => Err(refused(&error)),
        }
    }

    pub fn is_match(&self, text: &str) -> bool {
        match self {
            Pattern::Linear(regex) => regex.is_match(text.as_bytes()),
            Pattern::Backtracking(regex, growth) => {
                text.len() <= growth.longest_text()
                    && may_search(*growth, text.len())
                    && regex.is_match(text).unwrap_or(false)
            }
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Linear(regex) => fmt::Debug::fmt(regex, f),
            Pattern::Backtracking(regex, _) => fmt::Debug::fmt(regex, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lookaround::{AT_BEGIN, BACK_AND_FORTH};

    #[test]
    fn look_around_is_judged_within_a_bound() {
        let pattern = Pattern::new("^(?!tag=)[ -~]*").unwrap();
        assert!(pattern.is_match("a") && !pattern.is_match("tag=a"));
        let pattern = Pattern::new(r"^(\w+\s?)*(?<!x)$").unwrap();
        assert!(pattern.is_match("a b") && !pattern.is_match("a x"));
        assert!(!pattern.is_match(&format!("{}!", "a".repeat(200))), "too many steps");
        for (source, longest) in
            [("^(?!tag=)[ -~]*", AT_BEGIN), ("(?!tag=)[ -~]+", ANYWHERE), ("a*(?!tag=).*a", BACK_AND_FORTH)]
        {
            let pattern = Pattern::new(source).unwrap();
            let judged = [longest, longest + 1].map(|length| pattern.is_match(&"a".repeat(length)));
            assert_eq!(judged, [true, false], "{source}");
        }
        assert!(Pattern::new("(").unwrap_err().reason.starts_with("pattern ( does not compile"));
    }

    #[test]
    fn many_long_texts_are_searched_within_a_bound() {
        let schema = crate::Schema::new(&json!({"items": {"pattern": "(?=.*1)a"}})).unwrap();
        let list = |texts: usize, length: usize| json!(vec![format!("{}1", "a".repeat(length - 1)); texts]);
        for (texts, length, searched) in [
            (8, ANYWHERE, true),
            (9, ANYWHERE, false),
            (100_000, SHORT, true),
            (8192, 256, true),
            (8193, 256, false),
        ] {
            // Each check anew.
            for _ in 0..2 {
                assert_eq!(schema.check(&list(texts, length)).is_ok(), searched, "{texts} of {length}");
            }
        }
        let schema = crate::Schema::new(&json!({"items": {"pattern": "^(?=.*1)a"}})).unwrap();
        assert!(schema.check(&list(100, ANYWHERE)).is_ok(), "at their beginnings");
        let schema = crate::Schema::new(&json!({"items": {"pattern": "a.*(?=.*1)a"}})).unwrap();
        // Each takes as many steps as a search may, or as many as there are pairs of places.
        for (texts, length, searched) in
            [(5, BACK_AND_FORTH, true), (6, BACK_AND_FORTH, false), (4096, 50, true), (4296, 50, false)]
        {
            assert_eq!(schema.check(&list(texts, length)).is_ok(), searched, "{texts} of {length}");
        }
    }
}
