//! Patterns of schemas: PCRE over bytes.
//!
//! They match bytes, as PCRE without its `u` flag does; `$` is the very end, never before a last
//! newline as in PCRE, since that lets a newline slip through. A pattern with look-around runs on a
//! backtracking engine, which gives up after a bounded number of steps: the text then does not match.

use std::cell::Cell;
use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

use crate::Invalid;
use crate::lookaround::{ANYWHERE, Growth, may_be_catastrophic};

/// Steps a backtracking search may take.
const STEPS: usize = 100_000;
/// Steps that one which could take far more than its text has bytes takes at first: most texts need no more.
const FEW_STEPS: usize = 256;
/// The cost of a step, in bytes that are looked at.
const STEP: usize = 128;

/// The most that all searches of one check may cost, in bytes that are looked at: half a second. The number of texts
/// in a body is not bounded.
const WORK: usize = 8 * ANYWHERE * ANYWHERE;
/// Any number of texts of up to this many bytes is searched: that takes no longer than reading them.
const SHORT: usize = 32;

thread_local! {
    /// The rest of [`WORK`].
    static LEFT: Cell<usize> = const { Cell::new(WORK) };
    /// A search was given up, and found nothing for want of an answer.
    static IN_DOUBT: Cell<bool> = const { Cell::new(false) };
}

/// Says that the check of another value begins.
pub fn begin() {
    LEFT.set(WORK);
    IN_DOUBT.set(false);
}

/// Whether a search of this check was given up. Where that it finds nothing lets a value pass, as within `not`, the
/// value is not known to fit.
pub fn is_in_doubt() -> bool {
    IN_DOUBT.get()
}

pub fn set_in_doubt(doubt: bool) {
    IN_DOUBT.set(doubt);
}

/// Whether one of several fits. If so, it does not matter which searches the others gave up.
pub fn one_fits<T>(items: impl IntoIterator<Item = T>, mut fits: impl FnMut(T) -> bool) -> bool {
    let before = is_in_doubt();
    let mut doubt = before;
    for item in items {
        set_in_doubt(before);
        if fits(item) {
            return true;
        }
        doubt |= is_in_doubt();
    }
    set_in_doubt(doubt);
    false
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
    pay(cost)
}

fn pay(cost: usize) -> bool {
    let left = LEFT.get().checked_sub(cost);
    LEFT.set(left.unwrap_or(0));
    left.is_some()
}

/// A compiled pattern.
pub enum Pattern {
    Linear(Regex),
    Backtracking(Box<Backtracking>),
}

pub struct Backtracking {
    regex: fancy_regex::Regex,
    /// The same for a few steps, where even a short text may take many.
    first: Option<fancy_regex::Regex>,
    growth: Growth,
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
            Err(regex::Error::Syntax(_)) => Backtracking::new(source)
                .map(|pattern| Pattern::Backtracking(Box::new(pattern)))
                .map_err(|error| refused(&error)),
            Err(error) => Err(refused(&error)),
        }
    }

    pub fn is_match(&self, text: &str) -> bool {
        match self {
            Pattern::Linear(regex) => regex.is_match(text.as_bytes()),
            Pattern::Backtracking(pattern) => pattern.is_match(text),
        }
    }
}

impl Backtracking {
    fn new(source: &str) -> Result<Backtracking, fancy_regex::Error> {
        let build = |steps: usize| fancy_regex::RegexBuilder::new(source).backtrack_limit(steps).build();
        Ok(Backtracking {
            regex: build(STEPS)?,
            first: may_be_catastrophic(source).then(|| build(FEW_STEPS)).transpose()?,
            growth: Growth::of(source),
        })
    }

    fn is_match(&self, text: &str) -> bool {
        let found = self.search(text);
        found.unwrap_or_else(|| {
            IN_DOUBT.set(true);
            false
        })
    }

    /// Nothing if the search was given up.
    fn search(&self, text: &str) -> Option<bool> {
        if text.len() > self.growth.longest_text() || !may_search(self.growth, text.len()) {
            return None;
        }
        if let Some(first) = &self.first {
            if !pay(FEW_STEPS * STEP) {
                return None;
            }
            if let Ok(found) = first.is_match(text) {
                return Some(found);
            }
            if !pay(STEPS * STEP) {
                return None;
            }
        }
        self.regex.is_match(text).ok()
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Linear(regex) => fmt::Debug::fmt(regex, f),
            Pattern::Backtracking(pattern) => fmt::Debug::fmt(&pattern.regex, f),
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
            // Each check has its own bound.
            for _ in 0..2 {
                assert_eq!(schema.check(&list(texts, length)).is_ok(), searched, "{texts} of {length}");
            }
        }
        let schema = crate::Schema::new(&json!({"items": {"pattern": "^(?=.*1)a"}})).unwrap();
        assert!(schema.check(&list(100, ANYWHERE)).is_ok(), "at their beginnings");
        // As many steps as they may take, or hardly any.
        let schema = crate::Schema::new(&json!({"items": {"pattern": r"^(\w+\s?)*(?<!x)$"}})).unwrap();
        for (text, texts, searched) in [("aaaa bbbb", 16_384, true), ("aaaa bbbb", 16_385, false)] {
            assert_eq!(schema.check(&json!(vec![text; texts])).is_ok(), searched, "{texts} of {text}");
        }
        let text = format!("{}!", "a".repeat(14));
        for (texts, searched) in [(41, true), (42, false)] {
            begin();
            let pattern = Pattern::new(r"^(\w+\s?)*(?<!x)$").unwrap();
            assert!((0..texts).all(|_| !pattern.is_match(&text)));
            assert_eq!(!is_in_doubt(), searched, "{texts} that take many steps");
        }
        let schema = crate::Schema::new(&json!({"items": {"pattern": "a.*(?=.*1)a"}})).unwrap();
        // Each takes as many steps as a search may, or as many as there are pairs of places.
        for (texts, length, searched) in
            [(5, BACK_AND_FORTH, true), (6, BACK_AND_FORTH, false), (4096, 50, true), (4296, 50, false)]
        {
            assert_eq!(schema.check(&list(texts, length)).is_ok(), searched, "{texts} of {length}");
        }
    }

    #[test]
    fn nothing_fits_because_a_search_was_given_up() {
        let long = "a".repeat(ANYWHERE);
        let too_long = "a".repeat(ANYWHERE + 1);
        let pattern = json!({"pattern": "(?!a)b"});
        for (schema, known) in [
            (json!({"not": pattern}), true),
            (json!({"if": pattern, "then": {"maxLength": 1}}), true),
            (json!({"oneOf": [pattern, {"minLength": 1}]}), true),
            (json!({"anyOf": [pattern, {"minLength": 1}]}), false),
            (json!({"anyOf": [{"minLength": 1}, pattern]}), false),
            (json!({"anyOf": [{"not": pattern}, {"maxLength": 1}]}), true),
            (json!({"not": pattern, "anyOf": [{"maxLength": 1}, {"minLength": 1}]}), true),
        ] {
            let compiled = crate::Schema::new(&schema).unwrap();
            assert!(compiled.check(&json!(long)).is_ok(), "{schema}");
            assert_eq!(compiled.check(&json!(too_long)).is_err(), known, "{schema}");
            assert_eq!(compiled.parse(json!(too_long)).is_err(), known, "{schema}");
        }
        let schema = crate::Schema::new(&json!({"patternProperties": {"(?!a)b": false}})).unwrap();
        assert!(schema.check(&json!({ &*long: 1 })).is_ok());
        let refused = schema.check(&json!({ &*too_long: 1 })).unwrap_err();
        assert!(refused.reason.contains("look-around"), "{refused}");
    }
}
