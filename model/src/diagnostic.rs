//! A finding about a file, with its place, in the form of a compiler's.

use std::fmt;

use crate::conceal::concealed;
use crate::document::{Document, Position, SyntaxError};
use crate::{Fault, Invalid};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The part of the file that it is about is not used.
    Error,
    /// The part of the file that it is about has no effect, or an unexpected one.
    Warning,
    /// Information that needs no change.
    Note,
}

/// A finding in a file.
///
/// `Display` prints it over several lines with the line it speaks of, in which
/// secrets are covered as far as they are known (`conceal.rs`).
#[derive(Debug, Clone, PartialEq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub file: String,
    /// From 1; 0 if the finding is about the file as a whole.
    pub line: u32,
    /// In characters, from 1; 0 if the finding is about the file as a whole.
    pub column: u32,
    /// RFC 6901; empty is the whole file.
    pub pointer: String,
    pub message: String,
    pub expected: Option<String>,
    pub got: Option<String>,
    pub hint: Option<String>,
    /// The line it speaks of, without its secrets.
    pub source: Option<String>,
}

/// A file's name and text, which diagnostics quote.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Diagnostic {
    /// A finding about the file as a whole.
    pub fn new(severity: Severity, file: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity,
            file: file.to_owned(),
            line: 0,
            column: 0,
            pointer: String::new(),
            message: message.into(),
            expected: None,
            got: None,
            hint: None,
            source: None,
        }
    }

    /// The same without the place in the file.
    pub fn to_invalid(&self) -> Invalid {
        Invalid {
            pointer: self.pointer.clone(),
            reason: self.message.clone(),
            expected: self.expected.clone(),
            got: self.got.as_deref().map(Into::into),
            hint: self.hint.clone(),
            fault: Fault::default(),
        }
    }

    /// `message (file:line:column; expected …; got …; hint)` in one line, for logs, whose level says
    /// how bad it is.
    pub fn one_line(&self) -> String {
        let mut line = format!("{} (", printable(&self.message));
        line.push_str(&self.file);
        if self.line > 0 {
            line.push_str(&format!(":{}:{}", self.line, self.column));
        }
        for (words, part) in [("; expected ", &self.expected), ("; got ", &self.got), ("; ", &self.hint)] {
            if let Some(part) = part {
                line.push_str(words);
                line.push_str(&printable(part));
            }
        }
        line.push(')');
        line
    }
}

impl<'a> Source<'a> {
    /// A finding at a place.
    pub fn at(&self, severity: Severity, position: Position, invalid: Invalid) -> Diagnostic {
        let line = self.text.lines().nth((position.line as usize).saturating_sub(1));
        let line = line.map(|line| concealed(line, &invalid.pointer));
        Diagnostic {
            severity,
            file: self.file.to_owned(),
            line: position.line,
            column: position.column,
            pointer: invalid.pointer,
            message: invalid.reason,
            expected: invalid.expected,
            got: invalid.got.map(String::from),
            hint: invalid.hint,
            source: line,
        }
    }

    /// An error where the pointer of `invalid` leads in `document`.
    pub fn invalid(&self, document: &Document, invalid: Invalid) -> Diagnostic {
        let names_a_key = invalid.expected.as_deref() == Some("a known property");
        let key = if names_a_key { document.key_position(&invalid.pointer) } else { None };
        let position = key.unwrap_or_else(|| document.nearest_position(&invalid.pointer));
        self.at(Severity::Error, position, invalid)
    }

    /// A warning about the name or item that the pointer of `invalid` leads to.
    pub fn warning(&self, document: &Document, invalid: Invalid) -> Diagnostic {
        let key = document.key_position(&invalid.pointer);
        let position = key.unwrap_or_else(|| document.nearest_position(&invalid.pointer));
        self.at(Severity::Warning, position, invalid)
    }

    /// The error of a text that could not be parsed.
    pub fn syntax(&self, error: SyntaxError) -> Diagnostic {
        let mut invalid = Invalid::new(error.message);
        invalid.hint = error.hint;
        self.at(Severity::Error, error.position, invalid)
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, printable(&self.message))?;
        let number = if self.line > 0 { self.line.to_string() } else { String::new() };
        let margin = " ".repeat(number.len());
        if self.line > 0 {
            write!(f, "\n{margin}--> {}:{}:{}", self.file, self.line, self.column)?;
        } else {
            write!(f, "\n--> {}", self.file)?;
        }
        if let Some(source) = &self.source {
            let (text, caret) = excerpt(source, self.column);
            write!(f, "\n{margin} |\n{number} | {text}\n{margin} | {caret}")?;
        }
        let pointer = Some(&self.pointer).filter(|pointer| !pointer.is_empty());
        for (label, part) in [
            ("at", pointer),
            ("expected", self.expected.as_ref()),
            ("got", self.got.as_ref()),
            ("help", self.hint.as_ref()),
        ] {
            if let Some(part) = part {
                write!(f, "\n{margin} = {label}: {}", printable(part))?;
            }
        }
        Ok(())
    }
}

/// The part of a line around `column` and the marks below it.
fn excerpt(line: &str, column: u32) -> (String, String) {
    const BEFORE: usize = 60;
    const WIDTH: usize = 120;
    let at = (column as usize).saturating_sub(1);
    let start = at.saturating_sub(BEFORE);
    let chars: Vec<char> = line.chars().skip(start).take(WIDTH + 1).collect();
    let (lead, trail) = (if start > 0 { "…" } else { "" }, if chars.len() > WIDTH { "…" } else { "" });
    let shown: String = chars.iter().take(WIDTH).map(|c| visible(*c)).collect();
    let marked = chars.iter().take(WIDTH).skip(at - start);
    let mut width = marked.take_while(|c| !c.is_whitespace() && !matches!(c, ',' | ']' | '}')).count().max(1);
    let text: String = chars.iter().skip(at - start).take(width).collect();
    if let Some(name) = text.strip_suffix(':') {
        width = name.chars().count().max(1);
    }
    let indent = at - start + lead.chars().count();
    (format!("{lead}{shown}{trail}"), format!("{}{}", " ".repeat(indent), "^".repeat(width)))
}

/// Text that cannot steer a terminal or forge a log line.
fn printable(text: &str) -> String {
    text.chars().map(visible).collect()
}

fn visible(c: char) -> char {
    match c {
        '\t' | '\n' => ' ',
        c if c.is_control() => '\u{FFFD}',
        c => c,
    }
}

impl From<Position> for (u32, u32) {
    fn from(position: Position) -> (u32, u32) {
        (position.line, position.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_drawn_as_compilers_draw_it() {
        let source = Source { file: "conf/apisix.yaml", text: "routes:\n  - uris: [] # none\n#END\n" };
        let invalid = Invalid::new("too few")
            .at("/routes/0/uris")
            .expected("at least 1 items")
            .got("0")
            .hint("add one");
        let position = Position { line: 2, column: 11 };
        let drawn = source.at(Severity::Error, position, invalid).to_string();
        assert_eq!(
            drawn,
            "error: too few\n --> conf/apisix.yaml:2:11\n  |\n2 |   - uris: [] # none\n  |           ^\n  \
             = at: /routes/0/uris\n  = expected: at least 1 items\n  = got: 0\n  = help: add one"
        );
    }

    #[test]
    fn a_name_is_underlined_without_its_colon_and_long_lines_are_cut() {
        assert_eq!(excerpt("  rotues: 1", 3).1, "  ^^^^^^");
        let long = format!("{}needle{}", "x".repeat(500), "y".repeat(500));
        let (text, caret) = excerpt(&long, 501);
        assert_eq!(text.chars().count(), 122);
        assert_eq!(text.chars().nth(caret.chars().count() - caret.trim().len()), Some('n'));
    }

    #[test]
    fn what_a_file_says_cannot_steer_a_terminal() {
        let mut diagnostic = Diagnostic::new(Severity::Warning, "f", "a\u{1b}[31m\nb");
        diagnostic.source = Some("\u{7}".to_owned());
        let drawn = diagnostic.to_string();
        assert!(!drawn.contains('\u{1b}') && !drawn.contains('\u{7}'));
        assert_eq!(diagnostic.one_line(), "a\u{FFFD}[31m b (f)");
    }
}
