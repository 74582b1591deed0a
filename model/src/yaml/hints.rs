//! Hints for invalid YAML: the parser's messages are about its grammar, but an operator sees a line.
//!
//! Looks at the line of the error and those near it. A text that was read gets no hints.

use crate::document::{Position, SyntaxError};

/// Adds a hint where the mistake is a usual one, and moves to the place of the mistake where the parser noticed
/// it elsewhere.
pub fn add(text: &str, mut error: SyntaxError) -> SyntaxError {
    if error.hint.is_some() {
        return error;
    }
    let says = |words: &str| error.message.contains(words);
    let deeper = "this line is indented deeper than the one above it, which has a value already: align it with the \
                  names it belongs to";
    let line = line(text, error.position.line);
    let (before, after) = split(line, error.position.column);
    let hint = if says("tab") {
        let Some(at) = tab(text, error.position.line) else { return error };
        error.message = "there is a tab in the indentation".into();
        error.position = at;
        "indent with spaces: YAML allows no tabs there"
    } else if says("quoted scalar") && (says("multiline") || says("end of")) {
        let Some(at) = open_quote(text, error.position.line) else { return error };
        error.message = "this quote is not closed in its line".into();
        error.position = at;
        "close it; within a text in double quotes, a quote is written `\\\"`"
    } else if says("anchor") && after.starts_with(['*', '&']) {
        "put the value in quotes: in YAML, `*` and `&` at its beginning have a meaning of their own"
    } else if says("unexpected character") {
        "put the value in quotes: it cannot begin with this character otherwise"
    } else if says("mapping values are not allowed") {
        if before.contains(": ") {
            "put the value in quotes: it contains a colon"
        } else if previous(text, error.position.line)
            .is_some_and(|above| indentation(line) > indentation(above) && names_something(above))
        {
            deeper
        } else {
            "the line above lacks a colon, or its value is not closed"
        }
    } else if says("did not find expected key") {
        deeper
    } else if says("did not find expected '-'") {
        "begin each item of a list with `- `, and align the names of an item with its first one"
    } else if says("block sequence entries are not allowed") {
        "write a list below the name it belongs to, each item on a line of its own"
    } else if says("flow") || says("placement of ':'") {
        "a `[` or `{` above is not closed, or a comma is missing"
    } else {
        return error;
    };
    error.hint = Some(hint.to_owned());
    error
}

fn line(text: &str, number: u32) -> &str {
    text.lines().nth(number as usize - 1).unwrap_or_default()
}

/// A line before and from a column on.
fn split(line: &str, column: u32) -> (&str, &str) {
    let at = line.char_indices().nth(column as usize - 1).map_or(line.len(), |(at, _)| at);
    line.split_at(at)
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Whether a line has a name with a colon behind it.
fn names_something(line: &str) -> bool {
    line.contains(": ") || line.trim_end().ends_with(':')
}

/// The last line above one that says something.
fn previous(text: &str, number: u32) -> Option<&str> {
    let says = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    text.lines().take(number as usize - 1).filter(says).last()
}

/// The first tab in an indentation from a line on.
fn tab(text: &str, from: u32) -> Option<Position> {
    let indented = |line: &str| line[..indentation(line)].chars().position(|c| c == '\t');
    let (number, column) = (from..)
        .zip(text.lines().skip(from as usize - 1))
        .find_map(|(n, line)| Some((n, indented(line)?)))?;
    Some(Position { line: number, column: u32::try_from(column).ok()? + 1 })
}

/// The quote that a line at or above one opens and does not close.
fn open_quote(text: &str, up_to: u32) -> Option<Position> {
    let open = |line: &str| {
        let mut open: Option<(usize, char)> = None;
        let mut last = ' ';
        for (at, c) in line.chars().enumerate() {
            match open {
                Some((_, quote)) if c == quote && last != '\\' => open = None,
                // Elsewhere a quote is a character like any other.
                None if matches!(c, '"' | '\'') && " [{,:".contains(last) => open = Some((at, c)),
                None if c == '#' && last == ' ' => break,
                _ => {}
            }
            last = c;
        }
        open.map(|(at, _)| at)
    };
    let lines: Vec<&str> = text.lines().take(up_to as usize).collect();
    let (index, at) = lines.iter().enumerate().rev().find_map(|(index, line)| Some((index, open(line)?)))?;
    Some(Position { line: u32::try_from(index).ok()? + 1, column: u32::try_from(at).ok()? + 1 })
}

#[cfg(test)]
mod tests {
    use crate::yaml::{Variables, parse};

    #[test]
    fn usual_mistakes_have_a_place_and_a_hint() {
        for (text, place, hint) in [
            ("a:\n\tb: 1\n", (2, 1), "indent with spaces"),
            ("a:\n  - b\n\tc: 1\n", (3, 1), "indent with spaces"),
            ("a:\n  b: 1\n# no\n \tc: 1\n", (4, 2), "indent with spaces"),
            ("a: \"x\nb: 1\n", (1, 4), "close it"),
            ("a: 'it\nb: \"1\"\n", (1, 4), "close it"),
            ("a: \"x\\\"y\" # it's\nb: \"x\n", (2, 4), "close it"),
            ("a: *\n", (1, 4), "put the value in quotes"),
            ("é: 1\na: *.foo.com\n", (2, 4), "put the value in quotes"),
            ("a: @x\n", (1, 4), "put the value in quotes"),
            ("uri: /a: b\n", (1, 8), "it contains a colon"),
            ("a:\n  - name: x\n      key: y\n", (3, 10), "deeper than the one above"),
            ("a: 1\n\n# no\n b: 2\n", (4, 2), "deeper than the one above"),
            ("a\nb: 1\n", (2, 2), "lacks a colon"),
            ("a:\n  keys\n  - name: x\n    key: y\n", (3, 9), "the line above lacks a colon"),
            ("a:\n  keys\n    - name: x\n      key: y\n", (3, 11), "the line above lacks a colon"),
            ("a:\n  keys\n    name: x\n", (3, 9), "the line above lacks a colon"),
            ("a:\n - x: 1\n  y: 2\n", (3, 3), "begin each item"),
            ("a: - b\n", (1, 4), "on a line of its own"),
            ("a: {b: 1\nc: 2\n", (2, 2), "not closed"),
            ("a: [b, 1\nc: 2\n", (2, 2), "not closed"),
        ] {
            let error = parse(text, Variables::Keep).unwrap_err();
            assert_eq!(<(u32, u32)>::from(error.position), place, "{text}: {error}");
            assert!(error.hint.as_deref().unwrap_or_default().contains(hint), "{text}: {:?}", error.hint);
        }
    }

    #[test]
    fn a_place_that_was_moved_is_one_of_the_original() {
        let lookup = |_: &str| Some("two\nlines".to_owned());
        let error = parse("a: |\n  ${{X}}\nb:\n\tc: 1\n", Variables::InText(&lookup)).unwrap_err();
        assert!(error.position.line <= 4, "{error}");
    }
}
