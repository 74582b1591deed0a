//! Patterns of schemas: PCRE over bytes.
//!
//! They match bytes, as PCRE without its `u` flag does; `$` is the very end, never before a last
//! newline as in PCRE, since that lets a newline slip through. A pattern with look-around runs on a
//! backtracking engine, which gives up after a bounded number of steps: the text then does not match.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

use crate::Invalid;

/// Steps a backtracking search may take.
const STEPS: usize = 100_000;
/// Bytes of a text that a backtracking search judges; a step may read all that is left of it.
const TEXT: usize = 64 << 10;

/// A compiled pattern.
pub enum Pattern {
    Linear(Regex),
    Backtracking(Box<fancy_regex::Regex>),
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
                .map(|regex| Pattern::Backtracking(Box::new(regex)))
                .map_err(|error| refused(&error)),
            Err(error) => Err(refused(&error)),
        }
    }

    pub fn is_match(&self, text: &str) -> bool {
        match self {
            Pattern::Linear(regex) => regex.is_match(text.as_bytes()),
            Pattern::Backtracking(regex) => text.len() <= TEXT && regex.is_match(text).unwrap_or(false),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Linear(regex) => fmt::Debug::fmt(regex, f),
            Pattern::Backtracking(regex) => fmt::Debug::fmt(regex, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_around_is_judged_within_a_bound() {
        let pattern = Pattern::new("^(?!tag=)[ -~]*").unwrap();
        assert!(pattern.is_match("a") && !pattern.is_match("tag=a"));
        let pattern = Pattern::new(r"^(\w+\s?)*(?<!x)$").unwrap();
        assert!(pattern.is_match("a b") && !pattern.is_match("a x"));
        assert!(!pattern.is_match(&format!("{}!", "a".repeat(200))), "too many steps");
        assert!(!Pattern::new("^(?!tag=)[ -~]*").unwrap().is_match(&"a".repeat(TEXT + 1)));
        assert!(Pattern::new("(").unwrap_err().reason.starts_with("pattern ( does not compile"));
    }
}
