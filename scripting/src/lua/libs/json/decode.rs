//! JSON to Lua values, with the messages of `cjson`.

use mlua::{Lua, Table, Value};

use super::{DEEPEST, Marks};

/// The settings of a decoder.
pub(super) struct Options {
    depth: usize,
    invalid_numbers: bool,
    array_mt: bool,
}

impl Options {
    pub(super) fn read(from: &Table) -> mlua::Result<Options> {
        Ok(Options {
            depth: from
                .raw_get::<Option<f64>>("decode_depth")?
                .map_or(DEEPEST, |depth| (depth as usize).min(DEEPEST)),
            invalid_numbers: from.raw_get::<Option<bool>>("decode_invalid_numbers")?.unwrap_or(true),
            array_mt: from.raw_get::<Option<bool>>("decode_array_mt")?.unwrap_or(false),
        })
    }
}

pub(super) fn decode(lua: &Lua, text: &[u8], options: &Options, marks: &Marks) -> Result<Value, String> {
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err("JSON parser does not support UTF-16 or UTF-32".to_owned());
    }
    let mut decoder = Decoder { lua, text, at: 0, options, marks };
    let value = decoder.run()?;
    let after = decoder.token();
    match after.kind {
        Kind::End => Ok(value),
        _ => Err(unexpected("the end", &after)),
    }
}

struct Decoder<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    options: &'a Options,
    marks: &'a Marks,
}

struct Token {
    kind: Kind,
    at: usize,
}

enum Kind {
    Symbol(&'static str),
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    End,
    Error(&'static str),
}

fn unexpected(expected: &str, token: &Token) -> String {
    let found = match &token.kind {
        Kind::Symbol(name) | Kind::Error(name) => name,
        Kind::Text(_) => "T_STRING",
        Kind::Number(_) => "T_NUMBER",
        Kind::Boolean(_) => "T_BOOLEAN",
        Kind::Null => "T_NULL",
        Kind::End => "T_END",
    };
    format!("Expected {expected} but found {found} at character {}", token.at + 1)
}

impl Decoder<'_> {
    fn token(&mut self) -> Token {
        while self.text.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
        let at = self.at;
        let Some(&byte) = self.text.get(at) else { return Token { kind: Kind::End, at } };
        let symbol = |name| (Kind::Symbol(name), 1);
        let (kind, length) = match byte {
            b'{' => symbol("T_OBJ_BEGIN"),
            b'}' => symbol("T_OBJ_END"),
            b'[' => symbol("T_ARR_BEGIN"),
            b']' => symbol("T_ARR_END"),
            b',' => symbol("T_COMMA"),
            b':' => symbol("T_COLON"),
            b'"' => match self.string() {
                Ok(text) => (Kind::Text(text), 0),
                Err((reason, at)) => return Token { kind: Kind::Error(reason), at },
            },
            b'-' | b'0'..=b'9' => self.number(),
            _ => {
                let rest = &self.text[at..];
                if rest.starts_with(b"true") {
                    (Kind::Boolean(true), 4)
                } else if rest.starts_with(b"false") {
                    (Kind::Boolean(false), 5)
                } else if rest.starts_with(b"null") {
                    (Kind::Null, 4)
                } else if self.options.invalid_numbers && b"iInN".contains(&byte) {
                    self.number()
                } else {
                    (Kind::Error("invalid token"), 0)
                }
            }
        };
        self.at += length;
        Token { kind, at }
    }

    /// A number and its length. Unless invalid numbers are off, those of C are numbers as well.
    fn number(&self) -> (Kind, usize) {
        let rest = &self.text[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let negate = |number: f64| if sign == 1 { -number } else { number };
        let body = &rest[sign..];
        if self.options.invalid_numbers {
            let begins = |word: &str| {
                body.len() >= word.len() && body[..word.len()].eq_ignore_ascii_case(word.as_bytes())
            };
            for (word, number) in [("infinity", f64::INFINITY), ("inf", f64::INFINITY), ("nan", f64::NAN)] {
                if begins(word) {
                    return (Kind::Number(negate(number)), sign + word.len());
                }
            }
            if begins("0x") {
                let digits = body[2..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                let number = body[2..2 + digits].iter().fold(0.0, |sum, byte| {
                    sum * 16.0 + f64::from(char::from(*byte).to_digit(16).unwrap_or(0))
                });
                if digits > 0 {
                    return (Kind::Number(negate(number)), sign + 2 + digits);
                }
            }
        }
        let digits = |from: usize| body.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
        let whole = digits(0);
        let mut length = whole;
        if body.get(length) == Some(&b'.') && digits(length + 1) > 0 {
            length += 1 + digits(length + 1);
        }
        if matches!(body.get(length), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(body.get(length + 1), Some(b'+' | b'-')));
            let exponent = digits(length + 1 + sign);
            if exponent > 0 {
                length += 1 + sign + exponent;
            }
        }
        let has_leading_zero = whole > 1 && body[0] == b'0' && !self.options.invalid_numbers;
        let number = std::str::from_utf8(&body[..length]).ok().and_then(|text| text.parse::<f64>().ok());
        match number {
            Some(number) if whole > 0 && !has_leading_zero => (Kind::Number(negate(number)), sign + length),
            _ => (Kind::Error("invalid number"), 0),
        }
    }

    /// A string; moves past its closing quote. A failure has its reason and offset.
    fn string(&mut self) -> Result<Vec<u8>, (&'static str, usize)> {
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0));
            let Some(plain) = plain else { return Err(("unexpected end of string", self.text.len())) };
            out.extend_from_slice(&rest[..plain]);
            self.at += plain + 1;
            match rest[plain] {
                b'"' => return Ok(out),
                0 => return Err(("unexpected end of string", self.at - 1)),
                _ => {}
            }
            let start = self.at - 1;
            let escaped = self.text.get(self.at).copied();
            self.at += 1;
            out.push(match escaped {
                Some(byte @ (b'"' | b'\\' | b'/')) => byte,
                Some(b'b') => 8,
                Some(b'f') => 12,
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'u') => {
                    let Some(character) = self.unicode() else {
                        return Err(("invalid unicode escape code", start));
                    };
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
                _ => return Err(("invalid escape code", start)),
            });
        }
    }

    /// The character of `\uXXXX` or of a pair of surrogates.
    fn unicode(&mut self) -> Option<char> {
        let high = self.four_digits()?;
        if !(0xD800..0xDC00).contains(&high) {
            return char::from_u32(high);
        }
        if self.text.get(self.at..self.at + 2)? != b"\\u" {
            return None;
        }
        self.at += 2;
        let low = self.four_digits().filter(|low| (0xDC00..0xE000).contains(low))?;
        char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |sum, byte| Some(sum << 4 | char::from(*byte).to_digit(16)?))
    }

    /// Reads a value. Open tables are on a list rather than on the stack of the thread.
    fn run(&mut self) -> Result<Value, String> {
        let mut stack: Vec<Open> = Vec::new();
        let mut token = self.token();
        loop {
            let mut value = match token.kind {
                Kind::Text(text) => Value::String(self.lua.create_string(text).map_err(failed)?),
                Kind::Number(number) => Value::Number(number),
                Kind::Boolean(on) => Value::Boolean(on),
                Kind::Null => Value::NULL,
                Kind::Symbol("T_OBJ_BEGIN") => {
                    let table = self.table(stack.len() + 1, token.at)?;
                    let first = self.token();
                    if !matches!(first.kind, Kind::Symbol("T_OBJ_END")) {
                        stack.push(Open { table, key: Some(self.key(first)?), length: 0 });
                        token = self.token();
                        continue;
                    }
                    Value::Table(table)
                }
                Kind::Symbol("T_ARR_BEGIN") => {
                    let table = self.table(stack.len() + 1, token.at)?;
                    if self.options.array_mt {
                        table.set_metatable(Some(self.marks.array.clone())).map_err(failed)?;
                    }
                    let first = self.token();
                    if !matches!(first.kind, Kind::Symbol("T_ARR_END")) {
                        stack.push(Open { table, key: None, length: 0 });
                        token = first;
                        continue;
                    }
                    Value::Table(table)
                }
                _ => return Err(unexpected("value", &token)),
            };
            // Puts the value into the innermost table, and closes the tables that end after it.
            token = loop {
                let Some(open) = stack.last_mut() else { return Ok(value) };
                let is_object = open.key.is_some();
                open.put(self.lua, value).map_err(failed)?;
                let after = self.token();
                match after.kind {
                    Kind::Symbol("T_COMMA") => {
                        if is_object {
                            let next = self.token();
                            open.key = Some(self.key(next)?);
                        }
                        break self.token();
                    }
                    Kind::Symbol("T_OBJ_END") if is_object => {}
                    Kind::Symbol("T_ARR_END") if !is_object => {}
                    _ if is_object => return Err(unexpected("comma or object end", &after)),
                    _ => return Err(unexpected("comma or array end", &after)),
                }
                value = stack.pop().map_or(Value::Nil, |open| Value::Table(open.table));
            };
        }
    }

    fn table(&self, depth: usize, at: usize) -> Result<Table, String> {
        if depth > self.options.depth {
            return Err(format!("Found too many nested data structures ({depth}) at character {}", at + 1));
        }
        self.lua.create_table().map_err(failed)
    }

    /// The key that a token is, with its colon.
    fn key(&mut self, token: Token) -> Result<Vec<u8>, String> {
        let Kind::Text(key) = token.kind else { return Err(unexpected("object key string", &token)) };
        let colon = self.token();
        match colon.kind {
            Kind::Symbol("T_COLON") => Ok(key),
            _ => Err(unexpected("colon", &colon)),
        }
    }
}

/// A table that is being read, with the key of the next value if it is an object.
struct Open {
    table: Table,
    key: Option<Vec<u8>>,
    length: i64,
}

impl Open {
    fn put(&mut self, lua: &Lua, value: Value) -> mlua::Result<()> {
        match &self.key {
            Some(key) => self.table.raw_set(lua.create_string(key)?, value),
            None => {
                self.length += 1;
                self.table.raw_set(self.length, value)
            }
        }
    }
}

fn failed(error: mlua::Error) -> String {
    error.to_string()
}
