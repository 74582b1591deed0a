//! The operation of a GraphQL request: its kind, its name, its root fields.
//!
//! This parses just enough of the grammar (GraphQL, October 2021, section 2) to find them;
//! arguments and deeper selections are skipped, checking only their brackets.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::read::{self, Arg};
use super::value::Value;
use super::{body, json};
use crate::exchange::Exchange;
use crate::verdict::{ReadError, Undecidable};
use wire::Method;

/// Maximum depth of nested brackets.
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

/// The parts of an operation's definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Operation {
    /// `query`, `mutation` or `subscription`.
    kind: &'static str,
    /// Empty without a name.
    name: String,
    /// A JSON array of the names of fields and spread fragments at the root.
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

    /// The operation of this name, or without a name the first one.
    fn parse(document: &[u8], wanted: Option<&str>) -> Option<Operation> {
        let mut lexer = Lexer { rest: document };
        let mut found: Option<Operation> = None;
        // The rest of the document must be well-formed, too.
        while let Some(token) = lexer.next() {
            let Some(operation) = lexer.definition(token)? else { continue };
            let replaces = found.as_ref().is_none_or(|found| {
                wanted.is_some_and(|wanted| operation.name == wanted && found.name != wanted)
            });
            if replaces {
                found = Some(operation);
            }
        }
        found
    }
}

/// The number of operations in a document.
///
/// # Errors
/// The line with a syntax error, or the last one of a document without an operation.
pub fn operations(document: &[u8]) -> Result<usize, usize> {
    let mut lexer = Lexer { rest: document };
    let mut operations = 0;
    while let Some(token) = lexer.next() {
        match lexer.definition(token) {
            Some(operation) => operations += usize::from(operation.is_some()),
            None => {
                let read = &document[..document.len() - lexer.rest.len()];
                return Err(1 + read.iter().filter(|byte| **byte == b'\n').count());
            }
        }
    }
    if operations > 0 {
        Ok(operations)
    } else {
        Err(1 + document.iter().filter(|byte| **byte == b'\n').count())
    }
}

/// The operation of a GET's `query` argument or a POST's body. Unreadable if it is not GraphQL; of
/// several operations, the request's `operationName` selects one, else the first is used.
pub(super) fn operation(x: &Exchange<'_>) -> Result<Option<Operation>, ReadError> {
    let unreadable = ReadError::from(Undecidable::Unreadable);
    let limit = x.world().bounds().graphql;
    let given = |name: &str| read::args(x.query()).filter(|(key, _)| **key == *name.as_bytes()).count();
    let mut wanted = match read::arg(x.query(), b"operationName") {
        Some(Arg::Text(name)) => Some(String::from_utf8_lossy(&name).into_owned()),
        _ => None,
    };
    // Servers disagree about repeated arguments, and about arguments in both query and body.
    if given("operationName") > 1 || given("query") > usize::from(x.method() == Method::Get) {
        return match x.method() {
            Method::Get | Method::Post => Err(unreadable),
            _ => Ok(None),
        };
    }
    let document: Cow<'_, [u8]> = match x.method() {
        Method::Get => match read::arg(x.query(), b"query") {
            Some(Arg::Text(text)) => text,
            Some(Arg::Bare) => return Err(unreadable),
            None => return Ok(None),
        },
        Method::Post => {
            let Some(body) = body::held(x)? else { return Ok(None) };
            let kind = body::media_type(x)?;
            if body.len() > limit {
                return Err(Undecidable::TooLarge.into());
            }
            if body::is(kind, body::JSON) {
                // A list is a batch of requests.
                if body.trim_ascii_start().first() != Some(&b'{') {
                    return Err(unreadable);
                }
                body::legible(kind)?;
                if let Some(Value::Text(name)) = json::at(body, &["operationName".into()])? {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    if wanted.replace(name).is_some_and(|other| Some(other) != wanted) {
                        return Err(unreadable);
                    }
                }
                match json::at(body, &["query".into()])? {
                    Some(Value::Text(text)) => text,
                    Some(_) => return Err(unreadable),
                    None => return Ok(None),
                }
            } else {
                body::legible(kind)?;
                Cow::Borrowed(body)
            }
        }
        _ => return Ok(None),
    };
    if document.len() > limit {
        return Err(Undecidable::TooLarge.into());
    }
    Operation::parse(&document, wanted.as_deref()).map(Some).ok_or(unreadable)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a [u8]),
    Mark(u8),
    /// `...`
    Spread,
    /// A number or a string.
    Literal,
    /// Invalid.
    Broken,
}

struct Lexer<'a> {
    rest: &'a [u8],
}

impl<'a> Lexer<'a> {
    /// Parses a definition that starts with this token: an operation, or a fragment, which yields
    /// `None`.
    fn definition(&mut self, mut token: Token<'a>) -> Option<Option<Operation>> {
        let mut operation = Operation { kind: "query", name: String::new(), root_fields: Json::Null };
        let mut fragment = false;
        if let Token::Name(kind) = token {
            match kind {
                b"query" => operation.kind = "query",
                b"mutation" => operation.kind = "mutation",
                b"subscription" => operation.kind = "subscription",
                b"fragment" => fragment = true,
                _ => return None,
            }
            token = self.next()?;
            if let Token::Name(name) = token {
                operation.name = String::from_utf8_lossy(name).into_owned();
                token = self.next()?;
            }
            if fragment {
                let (Token::Name(b"on"), Token::Name(_)) = (token, self.next()?) else { return None };
                token = self.next()?;
            } else if token == Token::Mark(b'(') {
                self.skip_to(b')')?;
                token = self.next()?;
            }
            token = self.skip_directives(token)?;
        }
        if token != Token::Mark(b'{') {
            return None;
        }
        let mut fields = Vec::new();
        self.selections(&mut fields, 0)?;
        operation.root_fields = Json::Array(fields);
        Some((!fragment).then_some(operation))
    }

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

    /// Skips any number of `@name(...)`; returns the token after them.
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

    /// Collects the names of a selection set whose `{` was just read. Fields of inline fragments
    /// count as fields of the root.
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
    fn the_first_operation_is_parsed() {
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
            ("fragment F on T { x } query { a ...F }", Some(("query", "", vec!["a", "F"]))),
            ("fragment F on T { x }", None),
            ("fragment on T { x } { a }", None),
            ("query { a } mutation { b }", Some(("query", "", vec!["a"]))),
            ("query { a } b", None),
            ("query { a(b: \"x\n\") }", None),
            ("query { a % }", None),
            // Dots and comments.
            ("{ ..a b }", None),
            ("{ a # } %\n b # }\r c }", Some(("query", "", vec!["a", "b", "c"]))),
            // Brackets in arguments and in deeper selections.
            ("{ a { b(c: 1) } d }", Some(("query", "", vec!["a", "d"]))),
            ("{ a(b: ]) c }", None),
            ("{ a(b: {c: [(]}) }", None),
            // Strings, and block strings, which have one escape.
            (r#"{ a(b: "\"}\t") c }"#, Some(("query", "", vec!["a", "c"]))),
            (r#"{ a(b: "\"") c }"#, Some(("query", "", vec!["a", "c"]))),
            (r#"{ a(b: """\"""}""") c }"#, Some(("query", "", vec!["a", "c"]))),
            (r#"{ a(b: """\\"""}""") c }"#, Some(("query", "", vec!["a", "c"]))),
            (r#"{ a(b: """\n""") c }"#, Some(("query", "", vec!["a", "c"]))),
            ("{ a(b: \"\"\"\n}\n\"\"\") c }", Some(("query", "", vec!["a", "c"]))),
        ] {
            let found = Operation::parse(document.as_bytes(), None);
            let found = found.as_ref().map(|operation| {
                let fields = operation.root_fields.as_array().unwrap();
                (operation.kind, operation.name.as_str(), fields.iter().filter_map(Json::as_str).collect())
            });
            assert_eq!(found, expected, "{document}");
        }
    }

    #[test]
    fn operations_are_counted() {
        for (document, expected) in [
            ("{ a }", Ok(1)),
            ("query A { a } query B { b } fragment F on T { c }", Ok(2)),
            ("fragment F on T { c }", Err(1)),
            ("", Err(1)),
            ("uery {}", Err(1)),
            ("{ a }\n\n{ b", Err(3)),
        ] {
            assert_eq!(operations(document.as_bytes()), expected, "{document}");
        }
    }

    #[test]
    fn operation_name_selects_an_operation() {
        let document = b"query A { a } mutation B { b } query A { c }";
        let kind = |wanted| Operation::parse(document, wanted).map(|found| (found.kind, found.name));
        assert_eq!(kind(None), Some(("query", "A".into())));
        assert_eq!(kind(Some("A")), Some(("query", "A".into())));
        assert_eq!(kind(Some("B")), Some(("mutation", "B".into())));
        assert_eq!(kind(Some("C")), Some(("query", "A".into())));
        let document = b"query A { a } query C { c } mutation B { b } subscription B { d }";
        let kind = |wanted| Operation::parse(document, wanted).map(|found| (found.kind, found.name));
        assert_eq!(kind(Some("B")), Some(("mutation", "B".into())), "the first of that name");
        assert_eq!(kind(Some("D")), Some(("query", "A".into())));
    }

    #[test]
    fn depth_is_bounded() {
        let spreads = format!("{{{}", "...{".repeat(100_000));
        assert_eq!(Operation::parse(spreads.as_bytes(), None), None);
        let nested = |levels: usize| format!("{{ a(b: {}{}) }}", "[".repeat(levels), "]".repeat(levels));
        assert!(Operation::parse(nested(MAX_DEPTH - 1).as_bytes(), None).is_some());
        assert_eq!(Operation::parse(nested(MAX_DEPTH).as_bytes(), None), None);
        let fields = format!("{{a{}", "{a".repeat(100_000));
        assert_eq!(Operation::parse(fields.as_bytes(), None), None);
    }
}
