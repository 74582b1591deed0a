//! Bodies read into values, as APISIX reads them: JSON with cjson's words for what is wrong, and forms.
//!
//! A tree takes many times the memory of its text, so plugins ask [`weight`] before they read one and
//! count that against the worker's budget.

use serde_json::{Map, Value};

use crate::query;

/// The most bytes that the values of this text may take, as JSON or as a form.
pub(crate) fn weight(text: &[u8]) -> usize {
    // Each value but the first stands behind one of these; lists grow by doubling, and a member has
    // its name, its hash and its place in the index.
    let marks = text.iter().map(|byte| match byte {
        b',' | b'[' => 2 * size_of::<Value>(),
        b':' | b'&' => 2 * (size_of::<Value>() + size_of::<String>() + 32),
        b'{' => 2 * size_of::<Map<String, Value>>(),
        _ => 0,
    });
    marks.fold(2 * text.len() + 512, usize::saturating_add)
}

/// Reads JSON. The error is what cjson says, where it refuses the same.
pub(crate) fn read(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map_err(|error| {
        let mut scan = Scan { text, at: 0 };
        match scan.value(0).and_then(|()| scan.expect_end()) {
            Err(words) => words,
            // cjson would take it: deeper than is read here, no UTF-8, a number such as `0x1`.
            Ok(()) => error.to_string(),
        }
    })
}

/// The arguments of a form or a query: a text, `true` without `=`, a list where there are several.
/// Invalid UTF-8 is replaced.
pub(crate) fn form(text: &[u8]) -> Map<String, Value> {
    let mut all = Map::new();
    for pair in text.split(|&byte| byte == b'&') {
        let (key, value) = query::split(pair);
        if key.is_empty() {
            continue;
        }
        let words = |text| String::from_utf8_lossy(&query::decode(text)).into_owned();
        let value = value.map_or(Value::Bool(true), |value| Value::String(words(value)));
        match all.entry(words(key)) {
            serde_json::map::Entry::Vacant(entry) => {
                entry.insert(value);
            }
            serde_json::map::Entry::Occupied(mut entry) => match entry.get_mut() {
                Value::Array(list) => list.push(value),
                first => *first = Value::Array(vec![first.take(), value]),
            },
        }
    }
    all
}

/// A JSON string, whose bytes stay as they are where they need no escape, as cjson has it.
pub(crate) fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escape(text, out);
    out.push(b'"');
}

/// The inside of a JSON string.
pub(crate) fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..=0x1f | 0x7f => {
                let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
}

/// Finds what is wrong with a text as cjson finds it.
struct Scan<'t> {
    text: &'t [u8],
    at: usize,
}

/// A token's name in cjson's words, or what is wrong with it, and where it stands from 1.
type Token = (&'static str, usize);

impl Scan<'_> {
    fn value(&mut self, depth: usize) -> Result<(), String> {
        // serde_json reads no deeper, so nothing deeper needs words.
        if depth > 128 {
            return Err("Found too many nested data structures (129)".into());
        }
        let token = self.token();
        match token.0 {
            "T_STRING" | "T_NUMBER" | "T_BOOLEAN" | "T_NULL" => Ok(()),
            "T_OBJ_BEGIN" => self.object(depth),
            "T_ARR_BEGIN" => self.list(depth),
            _ => Err(unexpected("value", token)),
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), String> {
        let mut token = self.token();
        if token.0 == "T_OBJ_END" {
            return Ok(());
        }
        loop {
            if token.0 != "T_STRING" {
                return Err(unexpected("object key string", token));
            }
            token = self.token();
            if token.0 != "T_COLON" {
                return Err(unexpected("colon", token));
            }
            self.value(depth + 1)?;
            token = self.token();
            match token.0 {
                "T_OBJ_END" => return Ok(()),
                "T_COMMA" => token = self.token(),
                _ => return Err(unexpected("comma or object end", token)),
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<(), String> {
        let before = self.at;
        if self.token().0 == "T_ARR_END" {
            return Ok(());
        }
        self.at = before;
        loop {
            self.value(depth + 1)?;
            let token = self.token();
            match token.0 {
                "T_ARR_END" => return Ok(()),
                "T_COMMA" => {}
                _ => return Err(unexpected("comma or array end", token)),
            }
        }
    }

    fn expect_end(&mut self) -> Result<(), String> {
        match self.token() {
            ("T_END", _) => Ok(()),
            token => Err(unexpected("the end", token)),
        }
    }

    fn token(&mut self) -> Token {
        let rest = &self.text[self.at..];
        self.at += rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        let (rest, place) = (&self.text[self.at..], self.at + 1);
        let (name, length) = match rest.first() {
            None => ("T_END", 0),
            Some(b'{') => ("T_OBJ_BEGIN", 1),
            Some(b'}') => ("T_OBJ_END", 1),
            Some(b'[') => ("T_ARR_BEGIN", 1),
            Some(b']') => ("T_ARR_END", 1),
            Some(b':') => ("T_COLON", 1),
            Some(b',') => ("T_COMMA", 1),
            Some(b'"') => return self.string(),
            Some(b'-' | b'0'..=b'9') => ("T_NUMBER", number(rest)),
            _ if rest.starts_with(b"true") => ("T_BOOLEAN", 4),
            _ if rest.starts_with(b"false") => ("T_BOOLEAN", 5),
            _ if rest.starts_with(b"null") => ("T_NULL", 4),
            _ => ("invalid token", 0),
        };
        self.at += length;
        (name, place)
    }

    fn string(&mut self) -> Token {
        let place = self.at + 1;
        self.at += 1;
        while let Some(&byte) = self.text.get(self.at) {
            match (byte, self.text.get(self.at + 1)) {
                (b'"', _) => {
                    self.at += 1;
                    return ("T_STRING", place);
                }
                (b'\\', Some(b'u')) => {
                    let digits = self.text.get(self.at + 2..self.at + 6);
                    if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                        return ("invalid unicode escape code", self.at + 1);
                    }
                    self.at += 6;
                }
                (b'\\', Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => self.at += 2,
                (b'\\', _) => return ("invalid escape code", self.at + 1),
                _ => self.at += 1,
            }
        }
        ("unexpected end of string", self.at + 1)
    }
}

fn number(text: &[u8]) -> usize {
    text.iter().take_while(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')).count()
}

fn unexpected(expected: &str, (found, place): Token) -> String {
    format!("Expected {expected} but found {found} at character {place}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_cjsons_words() {
        for (text, words) in [
            ("", "Expected value but found T_END at character 1"),
            ("invalid", "Expected value but found invalid token at character 1"),
            ("{", "Expected object key string but found T_END at character 2"),
            ("{\"a\"}", "Expected colon but found T_OBJ_END at character 5"),
            ("{\"a\":}", "Expected value but found T_OBJ_END at character 6"),
            ("{\"a\":1 \"b\"", "Expected comma or object end but found T_STRING at character 8"),
            ("{\"a\":1,}", "Expected object key string but found T_OBJ_END at character 8"),
            ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
            ("[1,]", "Expected value but found T_ARR_END at character 4"),
            ("[[], {}, true, null] x", "Expected the end but found invalid token at character 22"),
            ("\"abc", "Expected value but found unexpected end of string at character 5"),
            ("\"\\x\"", "Expected value but found invalid escape code at character 2"),
            ("\"\\u12g4\"", "Expected value but found invalid unicode escape code at character 2"),
            ("\"\\u0041\" x", "Expected the end but found invalid token at character 10"),
            ("\"\\u123", "Expected value but found invalid unicode escape code at character 2"),
            // Text before the mistake counts with all its bytes.
            ("[12.5e+3 x", "Expected comma or array end but found invalid token at character 10"),
            (
                "[\"\\\"\\n\\u0041\\/z\" x",
                "Expected comma or array end but found invalid token at character 18",
            ),
            ("[{\"a\":1,\"b\":[]},", "Expected value but found T_END at character 17"),
            ("[\"a\\q\"]", "Expected value but found invalid escape code at character 4"),
            ("[false x", "Expected comma or array end but found invalid token at character 8"),
            ("{\"a\":{} x", "Expected comma or object end but found invalid token at character 9"),
            ("{\"a\":[] x", "Expected comma or object end but found invalid token at character 9"),
        ] {
            assert_eq!(read(text.as_bytes()), Err(words.to_owned()), "{text}");
        }
        assert_eq!(read(b" {\"a\": [1.5, \"\\u00e9\"]} "), Ok(json!({"a": [1.5, "\u{e9}"]})));
        let deep = |open: &str, times: usize| read(open.repeat(times).as_bytes()).unwrap_err();
        for open in ["[", "{\"a\":"] {
            assert_eq!(deep(open, 129), "Found too many nested data structures (129)");
            assert!(deep(open, 128).starts_with("Expected "), "{}", deep(open, 128));
            let closed = format!("{}1{}", open.repeat(127), if open == "[" { "]" } else { "}" }.repeat(127));
            assert!(read(closed.as_bytes()).is_ok());
        }
        for stricter in [&b"\"\xff\""[..], "[".repeat(200).as_bytes(), b"-"] {
            assert!(read(stricter).is_err());
        }
    }

    #[test]
    fn texts_are_quoted_as_cjson_quotes_them() {
        let mut out = Vec::new();
        quote(b"\"\\/\n\r\t\x00\x1f\x7f\xc3\xa9\xff~", &mut out);
        assert_eq!(out, b"\"\\\"\\\\/\\n\\r\\t\\u0000\\u001f\\u007f\xc3\xa9\xff~\"");
    }

    #[test]
    fn forms_are_read_as_nginx_reads_them() {
        let expected = json!({"a": ["1", "2", true], "b": "", "c d": "e+&"});
        assert_eq!(Value::Object(form(b"a=1&a=2&b=&=x&&a&c+d=e%2B%26")), expected);
        assert_eq!(form(b"").len(), 0);
        assert_eq!(form(b"a=%FF")["a"], "\u{fffd}");
    }

    #[test]
    fn a_text_is_weighed_by_what_it_could_become() {
        let list = format!("[{}0]", "0,".repeat(10_000));
        assert!(weight(list.as_bytes()) > 10_000 * size_of::<Value>());
        let members = "\"a\":0,".repeat(1000);
        assert!(weight(members.as_bytes()) > 1000 * (size_of::<Value>() + size_of::<String>()));
        assert!(weight(&[b'x'; 1000]) < 4000);
        // A list has room for up to twice its values, and a member lies with its name and in an index.
        let (value, name, map) = (size_of::<Value>(), size_of::<String>(), size_of::<Map<String, Value>>());
        for (unit, least, most) in [
            (",", 2 * value, 3 * value),
            ("[", 2 * value, 3 * value),
            (":", 2 * (value + name + 32), 3 * (value + name + 32)),
            ("&", 2 * (value + name + 32), 3 * (value + name + 32)),
            ("{", 2 * map, 3 * map),
            ("x", 2, 3),
        ] {
            let each = (weight(unit.repeat(2000).as_bytes()) - weight(unit.repeat(1000).as_bytes())) / 1000;
            assert!((least..=most).contains(&each), "{unit}: {each}");
        }
    }
}
