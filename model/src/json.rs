//! JSON as APISIX takes it, with positions.
//!
//! Strict JSON but for one thing: raw control characters such as newlines may
//! stand inside strings, as lua-cjson lets them. Names may not repeat (two
//! parsers would pick different ones), and nesting is bounded.

use std::str::FromStr;

use serde_json::{Map, Number, Value};

use crate::document::{Document, Lines, Lookup, Position, Spot, SyntaxError};
use crate::schema::has;
use crate::variables;

/// How deep values may nest.
pub const MAX_DEPTH: usize = 128;

/// Reads one JSON value, the body of an Admin API request.
///
/// # Errors
/// The first mistake, with its line and column.
pub fn read(text: &[u8]) -> Result<Value, SyntaxError> {
    document(text, None, false).map(|document| document.value)
}

/// Reads a JSON file; with `variables`, `${{NAME}}` in strings and names is replaced.
///
/// # Errors
/// The first mistake, with its line and column; a variable that is not set is one too.
pub fn parse(text: &str, variables: Option<Lookup<'_>>) -> Result<Document, SyntaxError> {
    document(text.as_bytes(), variables, true)
}

fn document(text: &[u8], variables: Option<Lookup<'_>>, places: bool) -> Result<Document, SyntaxError> {
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let valid = std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default();
            return Err(SyntaxError {
                message: "invalid UTF-8".to_owned(),
                position: Lines::new(valid).position(valid.len()),
                hint: Some("write it in UTF-8".to_owned()),
            });
        }
    };
    let mut reader = Reader { text, at: 0, position: Position::START, counted: 0, variables, places };
    let read = reader.document();
    read.map_err(|problem| SyntaxError {
        message: problem.message,
        position: Lines::new(text).position(problem.at),
        hint: problem.hint,
    })
}

/// [`parse`] without the places, which cost more than the values; all places in the document are its start.
///
/// # Errors
/// As there.
pub fn parse_values(text: &str, variables: Option<Lookup<'_>>) -> Result<Value, SyntaxError> {
    document(text.as_bytes(), variables, false).map(|document| document.value)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The position of byte `counted`; kept as reading goes on, so each byte is counted once.
    position: Position,
    counted: usize,
    variables: Option<Lookup<'a>>,
    /// Whether to keep where each part stands, which costs more than the value itself.
    places: bool,
}

struct Problem {
    message: String,
    at: usize,
    hint: Option<String>,
}

impl Problem {
    /// Says what to do about it, unless something said so already.
    fn helped(self, hint: &str) -> Problem {
        Problem { hint: self.hint.or_else(|| Some(hint.to_owned())), ..self }
    }
}

type Read<T> = Result<T, Problem>;

impl Reader<'_> {
    fn document(&mut self) -> Read<Document> {
        // A byte order mark is no JSON, but editors leave it.
        if self.text.starts_with('\u{FEFF}') {
            self.at = '\u{FEFF}'.len_utf8();
        }
        self.skip_space();
        let (value, spots) = self.value(0, None)?;
        self.skip_space();
        match self.peek() {
            None => Ok(Document { value, spots }),
            Some(_) => Err(self.problem("expected the end of the text but found more")),
        }
    }

    fn value(&mut self, depth: usize, key: Option<Position>) -> Read<(Value, Spot)> {
        let mut spot = Spot { key, value: self.position(), children: Vec::new() };
        let value = match self.peek() {
            None => return Err(self.problem("expected value but found the end of the text")),
            Some(b'{' | b'[') if depth >= MAX_DEPTH => {
                return Err(self.problem(&format!("nested too deeply, more than {MAX_DEPTH} levels")));
            }
            Some(b'{') => self.object(depth, &mut spot.children)?,
            Some(b'[') => self.array(depth, &mut spot.children)?,
            Some(b'"') => {
                let start = self.at;
                let text = self.string()?;
                self.substituted(text, start, variables::typed)?
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Value::Bool(true))?,
            Some(b'f') => self.word("false", Value::Bool(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            Some(b'\'') => {
                let problem = self.problem("expected value but found invalid token");
                return Err(problem.helped("write texts in double quotes"));
            }
            Some(_) => return Err(self.problem("expected value but found invalid token")),
        };
        Ok((value, spot))
    }

    fn object(&mut self, depth: usize, spots: &mut Vec<Spot>) -> Read<Value> {
        self.at += 1;
        let mut map = Map::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(map));
        }
        loop {
            let (start, key) = (self.at, self.position());
            if self.peek() != Some(b'"') {
                let problem = self.problem("expected object key string");
                return Err(match self.peek() {
                    Some(b'}') => problem.helped("remove the comma before it"),
                    Some(b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'\'') => {
                        problem.helped("write names in double quotes")
                    }
                    _ => problem,
                });
            }
            let text = self.string()?;
            let name = match self.substituted(text, start, Value::String)? {
                Value::String(name) => name,
                other => other.to_string(),
            };
            if has(&map, &name) {
                return Err(Problem {
                    message: format!("duplicate key {}", crate::schema::quoted(&name)),
                    at: start,
                    hint: Some("keep one of the two".to_owned()),
                });
            }
            self.skip_space();
            if !self.take(b':') {
                return Err(self.problem("expected colon after the key"));
            }
            self.skip_space();
            let (value, spot) = self.value(depth + 1, Some(key))?;
            map.insert(name, value);
            if self.places {
                spots.push(spot);
            }
            self.skip_space();
            if self.take(b'}') {
                return Ok(Value::Object(map));
            }
            if !self.take(b',') {
                return Err(self.problem("expected comma or object end"));
            }
            self.skip_space();
        }
    }

    fn array(&mut self, depth: usize, spots: &mut Vec<Spot>) -> Read<Value> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            if self.peek() == Some(b']') {
                let problem = self.problem("expected value but found invalid token");
                return Err(problem.helped("remove the comma before it"));
            }
            let (value, spot) = self.value(depth + 1, None)?;
            items.push(value);
            if self.places {
                spots.push(spot);
            }
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.problem("expected comma or array end"));
            }
            self.skip_space();
        }
    }

    /// Reads a string, its quotes included.
    fn string(&mut self) -> Read<String> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(stop) = memchr::memchr2(b'"', b'\\', rest.as_bytes()) else {
                return Err(Problem {
                    message: "unexpected end of string".to_owned(),
                    at: start,
                    hint: Some("close the string with a double quote".to_owned()),
                });
            };
            out.push_str(&rest[..stop]);
            self.at += stop + 1;
            if rest.as_bytes()[stop] == b'"' {
                return Ok(out);
            }
            out.push(self.escape()?);
        }
    }

    fn escape(&mut self) -> Read<char> {
        let start = self.at - 1;
        let invalid = |message: &str| Problem { message: message.to_owned(), at: start, hint: None };
        let byte = self.peek().ok_or_else(|| invalid("unexpected end of string"))?;
        self.at += 1;
        Ok(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex4().ok_or_else(|| invalid("invalid unicode escape code"))?;
                if let Some(c) = char::from_u32(first) {
                    return Ok(c);
                }
                let second = if self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    self.hex4()
                } else {
                    None
                };
                second
                    .filter(|second| (0xD800..0xDC00).contains(&first) && (0xDC00..0xE000).contains(second))
                    .and_then(|second| char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)))
                    .ok_or_else(|| invalid("invalid unicode escape code"))?
            }
            _ => return Err(invalid("invalid escape code")),
        })
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Read<Value> {
        let rest = &self.text[self.at..];
        let is_part = |byte: u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let end = rest.bytes().position(|byte| !is_part(byte)).unwrap_or(rest.len());
        match Number::from_str(&rest[..end]) {
            Ok(number) => {
                self.at += end;
                Ok(Value::Number(number))
            }
            Err(_) => Err(self.problem("invalid number")),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Read<Value> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.problem("expected value but found invalid token"));
        }
        self.at += word.len();
        Ok(value)
    }

    /// Replaces variables in a string; one that had any becomes what `typed` makes of it.
    fn substituted(&self, text: String, start: usize, typed: fn(String) -> Value) -> Read<Value> {
        let Some(lookup) = self.variables else { return Ok(Value::String(text)) };
        match variables::substitute(&text, lookup) {
            Ok(None) => Ok(Value::String(text)),
            Ok(Some(replaced)) => Ok(typed(replaced)),
            Err(missing) => Err(Problem { message: missing.message, at: start, hint: missing.hint }),
        }
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn position(&mut self) -> Position {
        if !self.places {
            return Position::START;
        }
        for c in self.text[self.counted..self.at].chars() {
            if c == '\n' {
                self.position = Position { line: self.position.line.saturating_add(1), column: 1 };
            } else {
                self.position.column = self.position.column.saturating_add(1);
            }
        }
        self.counted = self.at;
        self.position
    }

    fn problem(&self, message: &str) -> Problem {
        let rest = &self.text[self.at..];
        let is_comment = ["#", "//", "/*"].iter().any(|begin| rest.starts_with(begin));
        let hint = is_comment.then(|| "JSON has no comments: remove it".to_owned());
        Problem { message: message.to_owned(), at: self.at, hint }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn problem(text: &str) -> (String, u32, u32) {
        let error = read(text.as_bytes()).unwrap_err();
        (error.message, error.position.line, error.position.column)
    }

    #[test]
    fn raw_control_characters_pass_in_strings() {
        assert_eq!(read(b"{\"a\":\"x\ny\t\x01\"}").unwrap(), json!({"a": "x\ny\t\u{1}"}));
    }

    #[test]
    fn errors_say_where() {
        let cases = [
            ("", "expected value but found the end of the text", 1, 1),
            ("{\n \"a\": 1,\n \"a\": 2}", "duplicate key \"a\"", 3, 2),
            ("{\"a\" 1}", "expected colon after the key", 1, 6),
            ("[1, 2", "expected comma or array end", 1, 6),
            ("{\"é\": x}", "expected value but found invalid token", 1, 7),
            ("[01]", "invalid number", 1, 2),
            ("1 2", "expected the end of the text but found more", 1, 3),
            ("\"abc", "unexpected end of string", 1, 1),
            ("\"\\ud800\"", "invalid unicode escape code", 1, 2),
            ("{a: 1}", "expected object key string", 1, 2),
            ("[1,]", "expected value but found invalid token", 1, 4),
        ];
        for (text, message, line, column) in cases {
            assert_eq!(problem(text), (message.to_owned(), line, column), "{text}");
        }
        assert_eq!(read(b"{\"a\": \"\xff\"}").unwrap_err().position, Position { line: 1, column: 8 });
    }

    #[test]
    fn usual_mistakes_are_helped_with() {
        for (text, help) in [
            ("{\"a\": 1,}", Some("remove the comma before it")),
            ("[1, ]", Some("remove the comma before it")),
            ("{a: 1}", Some("write names in double quotes")),
            ("{'a': 1}", Some("write names in double quotes")),
            ("[1, 'a']", Some("write texts in double quotes")),
            ("{\n# one\n\"a\": 1}", Some("JSON has no comments: remove it")),
            ("{\"a\": // one\n1}", Some("JSON has no comments: remove it")),
            ("{\"a\": 1, // one\n\"b\": 1}", Some("JSON has no comments: remove it")),
            ("{\"a\": 1 /* one */}", Some("JSON has no comments: remove it")),
            ("[1 // one\n]", Some("JSON has no comments: remove it")),
            ("# one\n{}", Some("JSON has no comments: remove it")),
            ("{} # one", Some("JSON has no comments: remove it")),
            ("[/a]", None),
            ("[a]", None),
            ("{\"a\": 1,, \"b\": 2}", None),
            ("{\"a\": 1, ", None),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap_err().hint.as_deref(), help, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(problem(&nested(MAX_DEPTH + 1)).0, "nested too deeply, more than 128 levels");
        assert!(read("[".repeat(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn surrogate_pairs_join() {
        assert_eq!(read(br#""\ud83d\ude00\u00e9\/""#).unwrap(), json!("😀é/"));
    }

    #[test]
    fn places_are_known() {
        let document = parse("{\n  \"a/b\": [1,\n    {\"c\": null}]\n}", None).unwrap();
        assert_eq!(document.position("/a~1b").map(<(u32, u32)>::from), Some((2, 3)));
        assert_eq!(document.position("/a~1b/0").map(<(u32, u32)>::from), Some((2, 11)));
        assert_eq!(document.position("/a~1b/1/c").map(<(u32, u32)>::from), Some((3, 11)));
        assert_eq!(document.key_position("/a~1b/1/c").map(<(u32, u32)>::from), Some((3, 6)));
        assert_eq!(document.position("/x"), None);
        assert_eq!(<(u32, u32)>::from(document.nearest_position("/a~1b/1/x/y")), (3, 5));
    }

    #[test]
    fn variables_in_strings_are_replaced_and_typed() {
        let lookup = |name: &str| (name == "PORT").then(|| "9080".to_owned());
        let text = r#"{"port": "${{PORT}}", "${{PORT}}": "p${{ PORT }}", "on": "${{ON:=true}}"}"#;
        let document = parse(text, Some(&lookup)).unwrap();
        assert_eq!(document.value, json!({"port": 9080, "9080": "p9080", "on": true}));
        let error = parse("{\"a\":\n \"${{NOPE}}\"}", Some(&lookup)).unwrap_err();
        assert_eq!((error.position.line, error.position.column), (2, 2));
        assert!(error.message.contains("can't find environment variable NOPE"));
    }

    proptest! {
        #[test]
        fn no_input_panics(text in ".*", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(text.as_bytes());
            let _ = read(&bytes);
        }

        #[test]
        fn what_is_json_reads_as_serde_json_reads_it(text in r#"[\[\]{}:,"\\a1.eu0 \-tn]{0,40}"#) {
            let theirs: Result<Value, _> = serde_json::from_str(&text);
            match (read(text.as_bytes()), theirs) {
                (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, theirs),
                (Err(error), Ok(_)) => prop_assert!(error.message.starts_with("duplicate key"), "{}", error),
                (Ok(_), Err(error)) => prop_assert!(false, "taken where serde_json says {}", error),
                (Err(_), Err(_)) => {}
            }
        }
    }
}
