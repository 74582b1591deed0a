//! The functions that templates may call.

use std::cell::RefCell;

use super::run::{DEEPEST, Run};
use super::value::{Parts, Value, arithmetic, name_of, of_json, text, truth};
use crate::tree::escape;

/// Functions by name; those of modules with the module's.
const FUNCTIONS: [&str; 27] = [
    "_escape_json",
    "_escape_xml",
    "tostring",
    "tonumber",
    "type",
    "next",
    "require",
    "string.upper",
    "string.lower",
    "string.len",
    "string.sub",
    "string.rep",
    "string.gsub",
    "string.find",
    "string.format",
    "table.concat",
    "table.insert",
    "math.floor",
    "math.ceil",
    "math.abs",
    "math.max",
    "math.min",
    "core.json.encode",
    "core.json.decode",
    "cjson.encode",
    "cjson.decode",
    "ngx.time",
];

pub(super) const MODULES: [&str; 7] = ["string", "table", "math", "core", "core.json", "cjson", "ngx"];

/// Bytes of a text that are escaped at a time.
pub(super) const PIECE: usize = 64 << 10;

pub(super) const REQUIRED: &str = "templates can require apisix.core, cjson and cjson.safe";

/// Returns the name that templates use for a module they may require.
pub(super) fn module(name: &[u8]) -> Option<&'static str> {
    match name {
        b"apisix.core" => Some("core"),
        b"cjson" | b"cjson.safe" => Some("cjson"),
        _ => None,
    }
}

pub(super) fn known(name: &str) -> Option<&'static str> {
    FUNCTIONS.into_iter().find(|function| *function == name)
}

impl Run<'_> {
    pub fn call(&mut self, name: &'static str, arguments: &[Value]) -> Result<Value, String> {
        let first = arguments.first().unwrap_or(&Value::Nil);
        let number = |run: &mut Self, at: usize, default: f64| match arguments.get(at) {
            None | Some(Value::Nil) => Ok(default),
            Some(value) => run.arithmetic(value),
        };
        let needed = |run: &mut Self, at: usize| match arguments.get(at) {
            None | Some(Value::Nil) => {
                let found = if at < arguments.len() { "nil" } else { "no value" };
                let function = name.rsplit('.').next().unwrap_or(name);
                Err(format!("bad argument #{} to '{function}' (number expected, got {found})", at + 1))
            }
            Some(value) => run.arithmetic(value),
        };
        match name {
            "_escape_json" | "core.json.encode" | "cjson.encode" => {
                let mut out = Vec::new();
                self.json(first, 0, &mut out)?;
                self.may_be(out.len())?;
                self.made(out)
            }
            "core.json.decode" | "cjson.decode" => {
                let bytes = self.bytes(name, arguments, 0)?;
                self.spend(bytes.len() + crate::tree::weight(&bytes) / 64)?;
                Ok(crate::tree::read(&bytes).map_or(Value::Nil, of_json))
            }
            "_escape_xml" => {
                let bytes = self.bytes(name, arguments, 0)?;
                let mut out = Vec::with_capacity(bytes.len());
                for &byte in &bytes {
                    match byte {
                        b'&' => out.extend_from_slice(b"&amp;"),
                        b'<' => out.extend_from_slice(b"&lt;"),
                        b'>' => out.extend_from_slice(b"&gt;"),
                        b'\'' => out.extend_from_slice(b"&apos;"),
                        b'"' => out.extend_from_slice(b"&quot;"),
                        _ => out.push(byte),
                    }
                    self.may_be(out.len())?;
                }
                self.made(out)
            }
            "tostring" => {
                let bytes = self.text_of(first)?;
                self.made(bytes)
            }
            "tonumber" => {
                self.look(first)?;
                Ok(arithmetic(first).map_or(Value::Nil, Value::Number))
            }
            "type" => Ok(text(name_of(first).as_bytes())),
            "next" => match first {
                Value::Table(table) => {
                    let table = table.borrow();
                    let passed = table.list.iter().take_while(|value| matches!(value, Value::Nil)).count();
                    self.spend((passed + table.map.empty_places()) / 16)?;
                    if passed < table.list.len() {
                        return Ok(Value::Number((passed + 1) as f64));
                    }
                    Ok(table.map.iter().next().map_or(Value::Nil, |(key, _)| Value::Text(key.clone())))
                }
                other => Err(format!("bad argument #1 to 'next' (table expected, got {})", name_of(other))),
            },
            "require" => {
                let Value::Text(name) = first else { return Err(REQUIRED.into()) };
                module(name).map(Value::Module).ok_or_else(|| REQUIRED.into())
            }
            "string.upper" => {
                let bytes = self.bytes(name, arguments, 0)?;
                self.made(bytes.to_ascii_uppercase())
            }
            "string.lower" => {
                let bytes = self.bytes(name, arguments, 0)?;
                self.made(bytes.to_ascii_lowercase())
            }
            "string.len" => Ok(Value::Number(self.bytes(name, arguments, 0)?.len() as f64)),
            "string.sub" => {
                let bytes = self.bytes(name, arguments, 0)?;
                let from = place(&bytes, needed(self, 1)?).max(1);
                let to = place(&bytes, number(self, 2, -1.0)?).min(bytes.len());
                self.made(bytes.get(from - 1..to).unwrap_or_default().to_vec())
            }
            "string.rep" => {
                let bytes = self.bytes(name, arguments, 0)?;
                let times = needed(self, 1)?.max(0.0) as usize;
                let length = bytes.len().saturating_mul(times);
                self.may_be(length)?;
                self.spend(length / 64)?;
                self.made(bytes.repeat(times))
            }
            "string.find" => {
                let (bytes, what) = (self.bytes(name, arguments, 0)?, self.bytes(name, arguments, 1)?);
                let what = if arguments.get(3).is_some_and(truth) { what } else { literal(&what)? };
                let from = (place(&bytes, number(self, 2, 1.0)?).max(1) - 1).min(bytes.len());
                self.spend(bytes.len() / 8)?;
                let found = memchr::memmem::find(&bytes[from..], &what);
                Ok(found.map_or(Value::Nil, |at| Value::Number((from + at + 1) as f64)))
            }
            "string.gsub" => {
                let (bytes, what) = (self.bytes(name, arguments, 0)?, self.bytes(name, arguments, 1)?);
                let with = self.bytes(name, arguments, 2)?;
                let what = literal(&what)?;
                if with.contains(&b'%') || what.is_empty() {
                    return Err("templates replace plain texts only".into());
                }
                let (mut out, mut from) = (Vec::with_capacity(bytes.len()), 0);
                for at in memchr::memmem::find_iter(&bytes, &what) {
                    out.extend_from_slice(&bytes[from..at]);
                    out.extend_from_slice(&with);
                    from = at + what.len();
                    self.may_be(out.len())?;
                }
                out.extend_from_slice(&bytes[from..]);
                self.may_be(out.len())?;
                self.spend(bytes.len() / 8)?;
                self.made(out)
            }
            "string.format" => self.format(arguments),
            "table.concat" => {
                let Value::Table(list) = first else {
                    return Err(format!(
                        "bad argument #1 to 'concat' (table expected, got {})",
                        name_of(first)
                    ));
                };
                let between = if arguments.len() > 1 { self.bytes(name, arguments, 1)? } else { Vec::new() };
                let list = list.borrow();
                let mut out = Vec::new();
                for (index, element) in list.list.iter().enumerate() {
                    if index > 0 {
                        out.extend_from_slice(&between);
                    }
                    if !matches!(element, Value::Text(_) | Value::Number(_)) {
                        let what = name_of(element);
                        return Err(format!(
                            "invalid value ({what}) at index {} in table for 'concat'",
                            index + 1
                        ));
                    }
                    out.extend_from_slice(&self.text_of(element)?);
                    self.may_be(out.len())?;
                    self.spend(1 + between.len() / 64)?;
                }
                self.made(out)
            }
            "table.insert" => match (first, arguments.get(1)) {
                (Value::Table(list), Some(value)) if arguments.len() == 2 => {
                    let value = self.copy(value.clone(), 0)?;
                    list.borrow_mut().list.push(value);
                    Ok(Value::Nil)
                }
                _ => Err("templates insert one value at a list's end".into()),
            },
            "math.floor" => Ok(Value::Number(self.arithmetic(first)?.floor())),
            "math.ceil" => Ok(Value::Number(self.arithmetic(first)?.ceil())),
            "math.abs" => Ok(Value::Number(self.arithmetic(first)?.abs())),
            "math.max" | "math.min" => {
                let mut best = self.arithmetic(first)?;
                for value in &arguments[1..] {
                    let value = self.arithmetic(value)?;
                    best = if name == "math.max" { best.max(value) } else { best.min(value) };
                }
                Ok(Value::Number(best))
            }
            _ => Ok(Value::Number(self.request.now as f64)),
        }
    }

    /// A text or a number that a function is given.
    fn bytes(&mut self, function: &str, arguments: &[Value], at: usize) -> Result<Vec<u8>, String> {
        match arguments.get(at) {
            Some(value @ (Value::Text(_) | Value::Number(_))) => self.text_of(value),
            other => {
                let found = other.map_or("no value", name_of);
                let function = function.rsplit('.').next().unwrap_or(function);
                Err(format!("bad argument #{} to '{function}' (string expected, got {found})", at + 1))
            }
        }
    }

    fn format(&mut self, arguments: &[Value]) -> Result<Value, String> {
        let pattern = self.bytes("string.format", arguments, 0)?;
        let (mut out, mut rest, mut at) = (Vec::new(), &pattern[..], 0);
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            let flags = rest.iter().take_while(|byte| matches!(byte, b'.' | b'0'..=b'9')).count().min(4);
            let (flags, after) = rest.split_at(flags);
            let (&kind, after) = after.split_first().ok_or("invalid option in 'format'")?;
            rest = after;
            if kind == b'%' {
                out.push(b'%');
                continue;
            }
            at += 1;
            let value = arguments
                .get(at)
                .ok_or_else(|| format!("bad argument #{} to 'format' (no value)", at + 1))?;
            let made = match (kind, flags) {
                (b's', b"") => {
                    out.extend_from_slice(&self.text_of(value)?);
                    self.may_be(out.len())?;
                    continue;
                }
                (b'd' | b'i', b"") => format!("{:.0}", self.arithmetic(value)?.trunc()),
                (b'f', [b'.', digits @ ..]) => {
                    let digits =
                        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0);
                    format!("{:.*}", digits, self.arithmetic(value)?)
                }
                (b'f', b"") => format!("{:.6}", self.arithmetic(value)?),
                _ => return Err("templates format with %s, %d, %f and %.Nf only".into()),
            };
            // Each digit of a large number is a division of all of it.
            self.spend(made.len())?;
            out.extend_from_slice(made.as_bytes());
        }
        self.made(out)
    }

    pub fn part(
        &mut self,
        parts: &RefCell<Parts>,
        method: &str,
        arguments: &[Value],
    ) -> Result<Value, String> {
        match method {
            "tostring" => {
                let parts = parts.borrow();
                let mut out = Vec::new();
                for (name, value) in &parts.all {
                    out.extend_from_slice(b"--");
                    out.extend_from_slice(&parts.boundary);
                    out.extend_from_slice(b"\r\nContent-Disposition: form-data; name=\"");
                    out.extend_from_slice(name);
                    out.extend_from_slice(b"\"\r\n\r\n");
                    out.extend_from_slice(value);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"--");
                out.extend_from_slice(&parts.boundary);
                out.extend_from_slice(b"--\r\n");
                drop(parts);
                self.made(out)
            }
            "set_simple" => {
                let (name, value) = (self.bytes(method, arguments, 1)?, self.bytes(method, arguments, 2)?);
                if name.iter().any(|byte| matches!(byte, b'"' | b'\r' | b'\n')) {
                    return Err("this cannot be the name of a part".into());
                }
                let mut parts = parts.borrow_mut();
                self.spend(search_cost(&parts, &name))?;
                match parts.all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, old)) => *old = value,
                    None => parts.all.push((name, value)),
                }
                Ok(Value::Nil)
            }
            "delete" => {
                let name = self.bytes(method, arguments, 1)?;
                let mut parts = parts.borrow_mut();
                self.spend(search_cost(&parts, &name))?;
                parts.all.retain(|(known, _)| *known != name);
                Ok(Value::Nil)
            }
            _ => Err(format!("attempt to call method '{method}' (not known to templates)")),
        }
    }

    /// A text that is made is no longer than an output may be.
    pub(super) fn may_be(&self, length: usize) -> Result<(), String> {
        if length > self.most { Err("a text is too long".into()) } else { Ok(()) }
    }

    /// A JSON string. It may take six times the bytes of the text, so it is made piece by piece.
    fn quote(&self, text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        out.push(b'"');
        for piece in text.chunks(PIECE) {
            escape(piece, out);
            self.may_be(out.len())?;
        }
        out.push(b'"');
        Ok(())
    }

    fn json(&mut self, value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<(), String> {
        self.spend(1)?;
        if depth == DEEPEST {
            return Err("Found too many nested data structures".into());
        }
        match value {
            Value::Nil | Value::Null => out.extend_from_slice(b"null"),
            Value::Bool(truth) => out.extend_from_slice(truth.to_string().as_bytes()),
            Value::Number(number) if !number.is_finite() => {
                return Err("Cannot serialise number: must not be NaN or Infinity".into());
            }
            Value::Number(_) => out.extend_from_slice(&self.text_of(value)?),
            Value::Text(text) => {
                self.spend(text.len() / 64)?;
                self.quote(text, out)?;
            }
            Value::Table(table) => {
                let table = table.borrow();
                if table.map.is_empty() && (table.is_list || !table.list.is_empty()) {
                    for (index, element) in table.list.iter().enumerate() {
                        out.push(if index == 0 { b'[' } else { b',' });
                        self.json(element, depth + 1, out)?;
                    }
                    out.extend_from_slice(if table.list.is_empty() { b"[]" } else { b"]" });
                    return Ok(());
                }
                out.push(b'{');
                let numbered = table.list.iter().enumerate();
                let numbered =
                    numbered.map(|(index, value)| ((index + 1).to_string().into_bytes().into(), value));
                let members = numbered.chain(table.map.iter().map(|(key, value)| (key.clone(), value)));
                for (index, (key, value)) in members.enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    self.spend(key.len() / 64)?;
                    self.quote(&key, out)?;
                    out.push(b':');
                    self.json(value, depth + 1, out)?;
                }
                out.push(b'}');
            }
            other => return Err(format!("Cannot serialise {}: type not supported", name_of(other))),
        }
        Ok(())
    }
}

/// A place in a text, the first of which is 1; those below zero are counted from its end.
fn place(text: &[u8], at: f64) -> usize {
    (if at < 0.0 { text.len() as f64 + at + 1.0 } else { at }) as usize
}

/// The steps of a look at the names of all parts, which a client chooses.
fn search_cost(parts: &Parts, name: &[u8]) -> usize {
    parts.all.len() * (1 + name.len() / 64) / 16
}

/// A pattern of Lua's that stands for itself, without its escapes.
fn literal(pattern: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(escaped) if escaped.is_ascii_punctuation() => out.push(*escaped),
                _ => return Err("templates know plain texts, not patterns".into()),
            },
            b'^' | b'$' | b'(' | b')' | b'.' | b'[' | b']' | b'*' | b'+' | b'-' | b'?' => {
                return Err("templates know plain texts, not patterns".into());
            }
            _ => out.push(byte),
        }
    }
    Ok(out)
}
