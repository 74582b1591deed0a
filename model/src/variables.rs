//! `${{NAME}}` and `${{NAME:=default}}`, as APISIX's files have them.

use serde_json::{Number, Value};
use std::str::FromStr;

use crate::document::Lookup;

/// A variable that is not set and has no default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub message: String,
    pub hint: Option<String>,
    /// The byte offset of its `${{`.
    pub at: usize,
}

/// A reference found in a text.
pub struct Reference<'a> {
    /// The byte offsets of the whole, braces included.
    pub start: usize,
    pub end: usize,
    pub name: &'a str,
    default: Option<&'a str>,
}

/// Replaces every reference in `text`; `None` if it has no reference.
///
/// # Errors
/// The first variable that is neither set nor has a default.
pub fn substitute(text: &str, lookup: Lookup<'_>) -> Result<Option<String>, Missing> {
    // Nearly every text ends here.
    if memchr::memchr(b'$', text.as_bytes()).is_none() {
        return Ok(None);
    }
    let mut out = String::new();
    let mut from = 0;
    while let Some(reference) = next(text, from) {
        out.push_str(&text[from..reference.start]);
        out.push_str(&resolve(&reference, lookup)?);
        from = reference.end;
    }
    if from == 0 {
        return Ok(None);
    }
    out.push_str(&text[from..]);
    Ok(Some(out))
}

/// The first reference at or after byte `from`; it ends on the line it begins.
pub fn next(text: &str, from: usize) -> Option<Reference<'_>> {
    let mut from = from;
    loop {
        let start = from + text[from..].find("${{")?;
        let inside = &text[start + 3..];
        let line = &inside[..inside.find('\n').unwrap_or(inside.len())];
        if let Some(close) = line.find("}}") {
            let inner = line[..close].trim();
            let (name, default) = match inner.split_once(":=") {
                Some((name, default)) => (name, Some(default.trim())),
                None => (inner, None),
            };
            // With another first character it is no reference in APISIX either, and is kept.
            if name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
                return Some(Reference { start, end: start + 3 + close + 2, name, default });
            }
        }
        from = start + 3;
    }
}

/// The text a reference stands for.
pub fn resolve(reference: &Reference<'_>, lookup: Lookup<'_>) -> Result<String, Missing> {
    let name = reference.name;
    lookup(name).or_else(|| reference.default.map(str::to_owned)).ok_or_else(|| Missing {
        message: format!("failed to handle configuration: can't find environment variable {name}"),
        hint: Some(format!("set {name}, or give a default: ${{{{{name}:=value}}}}")),
        at: reference.start,
    })
}

/// A replaced string as APISIX types it: a number or a boolean if it reads as one.
pub fn typed(text: String) -> Value {
    match text.as_str() {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Number::from_str(text.trim()).map_or(Value::String(text), Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "A" => Some("1".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn references_are_replaced() {
        for (text, replaced) in [
            ("x${{A}}y", Some("x1y")),
            ("${{ A }}${{A}}", Some("11")),
            ("${{B:= b c }}", Some("b c")),
            ("${{A:=2}}", Some("1")),
            ("${{B:=}}|", Some("|")),
            ("${{EMPTY:=x}}", Some("")),
            ("plain", None),
            ("${A} $A ${{ }} ${{-}} ${{A", None),
            ("${{A\n}}", None),
            ("${{ }} ${{A}}", Some("${{ }} 1")),
        ] {
            assert_eq!(substitute(text, &lookup).unwrap().as_deref(), replaced, "{text}");
        }
    }

    #[test]
    fn a_missing_variable_is_named() {
        let missing = substitute("ab${{B}}", &lookup).unwrap_err();
        assert_eq!(missing.at, 2);
        assert_eq!(missing.message, "failed to handle configuration: can't find environment variable B");
        assert_eq!(missing.hint.as_deref(), Some("set B, or give a default: ${{B:=value}}"));
    }
}
