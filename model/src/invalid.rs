//! Why a value was refused.
//!
//! An [`Invalid`] says it twice: once in APISIX's words, for tools that compare
//! them, and once in parts (where, what was expected, what was there, a hint)
//! for people. It never holds a source text or a file name; a
//! [`Diagnostic`](crate::Diagnostic) adds those.

use std::fmt;

/// A value that may not be used, and why.
///
/// `Display` prints [`reason`](Invalid::reason) alone, as APISIX does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// RFC 6901 pointer to the offending value from the value checked; empty is the whole.
    pub pointer: String,
    /// The message, worded as APISIX words it.
    pub reason: String,
    /// The valid type or values: `integer`, `one of http, https`.
    pub expected: Option<String>,
    /// The value that was refused. Type names and short harmless values only, since these reach logs.
    pub got: Option<Box<str>>,
    /// The remedy.
    pub hint: Option<String>,
    /// The kind of fault, which decides what is served instead.
    pub fault: Fault,
}

/// A kind of fault in a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// The value is invalid.
    #[default]
    Mistake,
    /// A secret or an environment variable that it refers to has no value: consumers that it identified are no longer
    /// accepted, and routes that it protected are not served.
    Unread,
}

impl Invalid {
    /// A refusal of the whole value.
    pub fn new(reason: impl Into<String>) -> Invalid {
        Invalid {
            pointer: String::new(),
            reason: reason.into(),
            expected: None,
            got: None,
            hint: None,
            fault: Fault::default(),
        }
    }

    /// A refusal of the key `name`, written in full as `path`, with the nearest of the known names.
    pub fn unknown_key<'a>(path: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Invalid {
        let invalid = Invalid::new(format!("unknown key `{path}`")).within(name).expected("a known property");
        match nearest(name, known) {
            Some(close) => invalid.hint(format!("did you mean `{close}`?")),
            None => invalid,
        }
    }

    /// A refusal of an object that lacks the field `name`.
    pub fn missing(name: &str) -> Invalid {
        Invalid::new(format!("property \"{name}\" is required"))
            .expected(format!("a property `{name}`"))
            .got("no such property")
    }

    /// Places the refusal at `pointer`, replacing where it was.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<String>) -> Invalid {
        self.pointer = pointer.into();
        self
    }

    /// Says the pointer was relative to `parent`: `Invalid::under("/plugins/limit-count")`.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Invalid {
        self.pointer.insert_str(0, parent);
        self
    }

    /// Like [`under`](Invalid::under) with one raw, unescaped name.
    #[must_use]
    pub fn within(mut self, name: impl fmt::Display) -> Invalid {
        let mut pointer = String::new();
        push_pointer(&mut pointer, &name.to_string());
        pointer.push_str(&self.pointer);
        self.pointer = pointer;
        self
    }

    /// Puts words before the reason: `invalid configuration: `.
    #[must_use]
    pub fn said(mut self, before: &str) -> Invalid {
        self.reason.insert_str(0, before);
        self
    }

    /// Says what would have been right.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Invalid {
        self.expected = Some(expected.into());
        self
    }

    /// Says what was there.
    #[must_use]
    pub fn got(mut self, got: impl Into<String>) -> Invalid {
        self.got = Some(got.into().into_boxed_str());
        self
    }

    /// Says that what it refers to has no value.
    #[must_use]
    pub fn unread(mut self) -> Invalid {
        self.fault = Fault::Unread;
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Invalid {
        self.hint = Some(hint.into());
        self
    }
}

/// Appends `/name` to an RFC 6901 pointer, escaping `~` and `/`.
pub fn push_pointer(pointer: &mut String, name: &str) {
    pointer.push('/');
    for c in name.chars() {
        match c {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            c => pointer.push(c),
        }
    }
}

/// The known name closest to `name`, if one is close enough to be a slip of the pen.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A pasted blob is no misspelt name, and the distance costs its length squared.
    if name.len() > 128 {
        return None;
    }
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_prefixed_and_escaped() {
        let invalid = Invalid::new("no").at("/count").under("/plugins/limit-count").within("a/b~c");
        assert_eq!(invalid.pointer, "/a~1b~0c/plugins/limit-count/count");
        assert_eq!(invalid.said("bad: ").to_string(), "bad: no");
    }

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        assert_eq!(nearest("rotues", ["services", "routes"]), Some("routes"));
        assert_eq!(nearest("zebra", ["services", "routes"]), None);
        assert_eq!(nearest(&"r".repeat(10_000), ["routes"]), None);
    }
}
