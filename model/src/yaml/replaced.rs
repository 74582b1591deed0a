//! A text whose variables are replaced, and the places its parts had before that.

use std::ops::Range;

use crate::document::{Lines, Lookup, Position, SyntaxError};
use crate::variables;

/// Variables with line breaks that are tried as the cause of one error.
const MOST_TRIES: usize = 8;

/// A text after replacement, and which of its bytes came from where.
pub(super) struct Replaced<'a> {
    original: &'a str,
    pub(super) text: String,
    /// For each replacement, the byte ranges it has here and in the original.
    parts: Vec<(Range<usize>, Range<usize>)>,
}

impl<'a> Replaced<'a> {
    /// `None` if there is nothing to replace.
    pub(super) fn new(original: &'a str, lookup: Lookup<'_>) -> Result<Option<Replaced<'a>>, SyntaxError> {
        let mut replaced = Replaced { original, text: String::new(), parts: Vec::new() };
        let (mut copied, mut from) = (0, 0);
        while let Some(reference) = variables::next(original, from) {
            from = reference.end;
            if is_comment(original, reference.start) {
                continue;
            }
            let value = variables::resolve(&reference, lookup).map_err(|missing| SyntaxError {
                message: missing.message,
                position: Lines::new(original).position(missing.at),
                hint: missing.hint,
            })?;
            replaced.text.push_str(&original[copied..reference.start]);
            let start = replaced.text.len();
            replaced.text.push_str(&value);
            replaced.parts.push((start..replaced.text.len(), reference.start..reference.end));
            copied = reference.end;
        }
        replaced.text.push_str(&original[copied..]);
        Ok((!replaced.parts.is_empty()).then_some(replaced))
    }

    /// Where a position of this text stands in the original.
    pub(super) fn original(&self, from: &Lines<'_>, to: &Lines<'_>, position: Position) -> Position {
        let offset = from.offset(position);
        let before = self.parts.partition_point(|(here, _)| here.start <= offset);
        let Some((here, there)) = before.checked_sub(1).and_then(|at| self.parts.get(at)) else {
            return to.position(offset);
        };
        to.position(if offset < here.end { there.start } else { there.end + (offset - here.end) })
    }

    /// The error of a text that is invalid at `position` because of the line breaks in the value of a variable: with
    /// spaces in their place, the text fails later or not at all. `fails` returns the position of a text's error.
    pub(super) fn broken_by_line_breaks(
        &self,
        position: Position,
        fails: impl Fn(&str) -> Option<Position>,
    ) -> Option<SyntaxError> {
        let offset = Lines::new(&self.text).offset(position);
        // A position that a hint has moved stands at a quote in the same line, before the variable.
        let line_end = self.text[offset..].find('\n').map_or(self.text.len(), |at| offset + at);
        let before = self.parts.partition_point(|(here, _)| here.start <= line_end);
        let mut breaking =
            self.parts[..before].iter().rev().filter(|(here, _)| self.text[here.clone()].contains('\n'));
        let (_, there) = breaking.by_ref().take(MOST_TRIES).find(|(here, _)| {
            // One byte for each, so that all offsets stay the same.
            let value = self.text[here.clone()].replace(['\n', '\r'], " ");
            let mut text = self.text.clone();
            text.replace_range(here.clone(), &value);
            fails(&text).is_none_or(|position| Lines::new(&text).offset(position) > offset)
        })?;
        let name = variables::next(self.original, there.start)?.name;
        Some(SyntaxError {
            message: format!("the environment variable {name} has line breaks, which make the YAML invalid"),
            position: Lines::new(self.original).position(there.start),
            hint: Some(format!(
                "for a certificate, a key or a setting of a plugin, write `\"$env://{name}\"` in its place; \
                 elsewhere, set {name} to one line with `\\n` for each line break, and put it in double quotes"
            )),
        })
    }
}

/// Whether `at` is on a line that is nothing but a comment.
fn is_comment(text: &str, at: usize) -> bool {
    let start = text[..at].rfind('\n').map_or(0, |line| line + 1);
    text[start..at].trim_start().starts_with('#')
}
