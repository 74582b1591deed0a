//! The first operation of a GraphQL request: its kind, its name, its root fields.
//!
//! This reads just enough of the grammar (GraphQL, October 2021, section 2) to
//! find them; what is inside arguments and deeper selections is only skipped,
//! with its brackets checked.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::read::{self, Arg, content_type};
use super::value::Value;
use crate::exchange::Exchange;
use wire::Method;

/// Longer documents are not looked at (APISIX: `graphql.max_size`, 1 MiB).
const MAX_DOCUMENT: usize = 1 << 20;
/// Brackets in brackets.
const MAX_DEPTH: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Operation,
    Name,
    RootFields,
}

impl Part {
    pub(super) fn named(name: &str) -> Option<Part> {
        match name {
            "operation" => Some(Part::Operation),
            "name" => Some(Part::Name),
            "root_fields" => Some(Part::RootFields),
            _ => None,
        }
    }
}

/// What a document's first definition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operation {
    /// `query`, `mutation` or `subscription`.
    kind: &'static str,
    /// Empty if it has none.
    name: String,
    /// A JSON array of the names of fields and of fragments spread at the root.
    root_fields: Json,
}

impl Operation {
    pub(super) fn part(&self, part: Part) -> Value<'_> {
        match part {
            Part::Operation => Value::Text(Cow::Borrowed(self.kind.as_bytes())),
            Part::Name => Value::Text(Cow::Borrowed(self.name.as_bytes())),
            Part::RootFields => Value::Json(Cow::Borrowed(&self.root_fields)),
        }
    }

    fn parse(document: &[u8]) -> Option<Operation> {
        let mut lexer = Lexer { rest: document };
        let mut operation = Operation { kind: "query", name: String::new(), root_fields: Json::Null };
        let mut token = lexer.next()?;
        if let Token::Name(kind) = token {
            operation.kind = match kind {
                b"query" => "query",
                b"mutation" => "mutation",
                b"subscription" => "subscription",
                _ => return None,
            };
            token = lexer.next()?;
            if let Token::Name(name) = token {
                operation.name = String::from_utf8_lossy(name).into_owned();
                token = lexer.next()?;
            }
            if token == Token::Mark(b'(') {
                lexer.skip_to(b')')?;
                token = lexer.next()?;
            }
            token = lexer.skip_directives(token)?;
        }
        let mut fields = Vec::new();
        if token != Token::Mark(b'{') {
            return None;
        }
        lexer.selections(&mut fields, 0)?;
        operation.root_fields = Json::Array(fields);
        // Whatever follows must at least be well formed.
        while let Some(token) = lexer.next() {
            match token {
                Token::Mark(open @ (b'{' | b'(' | b'[')) => lexer.skip_to(closing(open))?,
                Token::Mark(b'}' | b')' | b']') | Token::Broken => return None,
                _ => {}
            }
        }
        Some(operation)
    }
}

/// The operation of a GET's `query` argument or a POST's body.
pub(super) fn operation(x: &Exchange<'_>) -> Option<Operation> {
    let document: Cow<'_, [u8]> = match x.method() {
        Method::Get => match read::arg(x.query(), b"query")? {
            Arg::Text(text) => text,
            Arg::Bare => return None,
        },
        Method::Post if x.body().len() > MAX_DOCUMENT => return None,
        Method::Post if content_type(x) == b"application/json" => {
            let mut body: Json = serde_json::from_slice(x.body()).ok()?;
            match body.get_mut("query")?.take() {
                Json::String(text) => Cow::Owned(text.into_bytes()),
                _ => return None,
            }
        }
        Method::Post => Cow::Borrowed(x.body()),
        _ => return None,
    };
    if document.len() > MAX_DOCUMENT { None } else { Operation::parse(&document) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a [u8]),
    Mark(u8),
    /// `...`
    Spread,
    /// A number or a string.
    Literal,
    /// Not GraphQL.
    Broken,
}

struct Lexer<'a> {
    rest: &'a [u8],
}

impl<'a> Lexer<'a> {
    /// The next token; `None` at the end.
    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let &first = self.rest.first()?;
        Some(match first {
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                Token::Name(self.take_while(|byte| byte == b'_' || byte.is_ascii_alphanumeric()))
            }
            b'-' | b'0'..=b'9' => {
                self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-'));
                Token::Literal
            }
            b'"' => self.string(),
            b'.' if self.rest.starts_with(b"...") => {
                self.rest = &self.rest[3..];
                Token::Spread
            }
            b'!' | b'$' | b'&' | b'(' | b')' | b':' | b'=' | b'@' | b'[' | b']' | b'{' | b'|' | b'}' => {
                self.rest = &self.rest[1..];
                Token::Mark(first)
            }
            _ => {
                self.rest = &[];
                Token::Broken
            }
        })
    }

    fn skip_blank(&mut self) {
        self.rest = self.rest.strip_prefix(b"\xef\xbb\xbf").unwrap_or(self.rest);
        loop {
            self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b','));
            if self.rest.first() != Some(&b'#') {
                return;
            }
            self.take_while(|byte| byte != b'\n' && byte != b'\r');
        }
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !keep(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn string(&mut self) -> Token<'a> {
        let block = self.rest.starts_with(b"\"\"\"");
        let quote: &[u8] = if block { b"\"\"\"" } else { b"\"" };
        let mut at = quote.len();
        loop {
            let Some(rest) = self.rest.get(at..).filter(|rest| !rest.is_empty()) else {
                self.rest = &[];
                return Token::Broken;
            };
            if rest.starts_with(quote) {
                self.rest = &rest[quote.len()..];
                return Token::Literal;
            }
            at += match rest[0] {
                b'\\' if block && rest.starts_with(b"\\\"\"\"") => 4,
                b'\\' if block => 1,
                b'\\' => 2,
                b'\n' | b'\r' if !block => self.rest.len(),
                _ => 1,
            };
        }
    }

    /// Skips to the bracket that closes the one just read.
    fn skip_to(&mut self, close: u8) -> Option<()> {
        let mut open = vec![close];
        while let Some(&close) = open.last() {
            match self.next()? {
                Token::Mark(mark @ (b'{' | b'(' | b'[')) if open.len() < MAX_DEPTH => {
                    open.push(closing(mark))
                }
                Token::Mark(mark) if mark == close => {
                    open.pop();
                }
                Token::Mark(b'{' | b'(' | b'[' | b'}' | b')' | b']') | Token::Broken => return None,
                _ => {}
            }
        }
        Some(())
    }

    /// Skips `@name(...)` as often as it comes; gives the token after.
    fn skip_directives(&mut self, mut token: Token<'a>) -> Option<Token<'a>> {
        while token == Token::Mark(b'@') {
            let Token::Name(_) = self.next()? else { return None };
            token = self.next()?;
            if token == Token::Mark(b'(') {
                self.skip_to(b')')?;
                token = self.next()?;
            }
        }
        Some(token)
    }

    /// Collects the names of a selection set whose `{` was just read. The fields of an inline
    /// fragment count as the root's own.
    fn selections(&mut self, fields: &mut Vec<Json>, depth: usize) -> Option<()> {
        let mut token = self.next()?;
        loop {
            match token {
                Token::Mark(b'}') => return Some(()),
                Token::Name(mut name) => {
                    token = self.next()?;
                    if token == Token::Mark(b':') {
                        let Token::Name(field) = self.next()? else { return None };
                        name = field;
                        token = self.next()?;
                    }
                    fields.push(Json::String(String::from_utf8_lossy(name).into_owned()));
                    if token == Token::Mark(b'(') {
                        self.skip_to(b')')?;
                        token = self.next()?;
                    }
                    token = self.skip_directives(token)?;
                    if token == Token::Mark(b'{') {
                        self.skip_to(b'}')?;
                        token = self.next()?;
                    }
                }
                Token::Spread => {
                    token = self.next()?;
                    let mut inline = true;
                    if let Token::Name(name) = token {
                        if name == b"on" {
                            let Token::Name(_) = self.next()? else { return None };
                        } else {
                            inline = false;
                            fields.push(Json::String(String::from_utf8_lossy(name).into_owned()));
                        }
                        token = self.next()?;
                    }
                    token = self.skip_directives(token)?;
                    if inline {
                        if token != Token::Mark(b'{') || depth >= MAX_DEPTH {
                            return None;
                        }
                        self.selections(fields, depth + 1)?;
                        token = self.next()?;
                    }
                }
                _ => return None,
            }
        }
    }
}

fn closing(open: u8) -> u8 {
    match open {
        b'{' => b'}',
        b'(' => b')',
        _ => b']',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_operation_is_read() {
        for (document, expected) in [
            ("{ a }", Some(("query", "", vec!["a"]))),
            (
                "query getRepo { owner { name } repo { created } }",
                Some(("query", "getRepo", vec!["owner", "repo"])),
            ),
            (
                "mutation M($x: [Int!]! = [1, 2]) @d(a: \"}\") { z: del(id: $x, o: {k: \"\"\"}\"\"\"}) { b c } ...F }",
                Some(("mutation", "M", vec!["del", "F"])),
            ),
            (
                "subscription{ ... on Q @include(if: true) { a, ...{ b } } c } # }",
                Some(("subscription", "", vec!["a", "b", "c"])),
            ),
            ("\u{feff}query { a } fragment F on T { x }", Some(("query", "", vec!["a"]))),
            ("{}", Some(("query", "", vec![]))),
            ("", None),
            ("{ a", None),
            ("{ a } }", None),
            ("{ a(b: [1) }", None),
            ("type A { b: C }", None),
            ("fragment F on T { x } query { a }", None),
            ("query { a(b: \"x\n\") }", None),
            ("query { a % }", None),
        ] {
            let found = Operation::parse(document.as_bytes());
            let found = found.as_ref().map(|operation| {
                let fields = operation.root_fields.as_array().unwrap();
                (operation.kind, operation.name.as_str(), fields.iter().filter_map(Json::as_str).collect())
            });
            assert_eq!(found, expected, "{document}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let spreads = format!("{{{}", "...{".repeat(100_000));
        assert_eq!(Operation::parse(spreads.as_bytes()), None);
        let fields = format!("{{a{}", "{a".repeat(100_000));
        assert_eq!(Operation::parse(fields.as_bytes()), None);
    }
}
