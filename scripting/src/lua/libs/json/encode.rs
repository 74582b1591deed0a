//! Lua values to JSON.

use mlua::{Lua, Table, Value};

use super::super::super::machine::{self, Machine};
use super::{DEEPEST, Marks, shortest};

/// The settings of an encoder.
pub(super) struct Options {
    depth: usize,
    precision: usize,
    empty_as_object: bool,
    sparse_convert: bool,
    sparse_ratio: u64,
    sparse_safe: u64,
    escape_slash: bool,
    invalid_numbers: Invalid,
    skip_unsupported: bool,
    sorted: bool,
    space: String,
}

/// The treatment of numbers that JSON has not.
enum Invalid {
    Refused,
    Null,
    Written,
}

impl Options {
    pub(super) fn read(from: &Table) -> mlua::Result<Options> {
        let number = |name: &str, default: u64| {
            Ok::<_, mlua::Error>(from.raw_get::<Option<f64>>(name)?.map_or(default, |number| number as u64))
        };
        let switch = |name: &str, default: bool| {
            Ok::<_, mlua::Error>(from.raw_get::<Option<bool>>(name)?.unwrap_or(default))
        };
        Ok(Options {
            depth: (number("depth", 1000)? as usize).min(DEEPEST),
            precision: number("precision", 14)? as usize,
            empty_as_object: switch("empty_as_object", true)?,
            sparse_convert: switch("sparse_convert", false)?,
            sparse_ratio: number("sparse_ratio", 2)?,
            sparse_safe: number("sparse_safe", 10)?,
            escape_slash: switch("escape_slash", true)?,
            invalid_numbers: match from.raw_get::<Value>("invalid_numbers")? {
                Value::Boolean(true) => Invalid::Written,
                Value::String(text) if text == "null" => Invalid::Null,
                _ => Invalid::Refused,
            },
            skip_unsupported: switch("skip_unsupported", false)?,
            sorted: switch("sorted", false)?,
            space: from.raw_get::<Option<String>>("indent")?.unwrap_or_default(),
        })
    }

    pub(super) fn for_schemas() -> Options {
        Options {
            depth: 100,
            precision: 17,
            empty_as_object: true,
            sparse_convert: true,
            sparse_ratio: 2,
            sparse_safe: 10,
            escape_slash: false,
            invalid_numbers: Invalid::Null,
            skip_unsupported: true,
            sorted: false,
            space: String::new(),
        }
    }
}

pub(super) fn encode(lua: &Lua, value: Value, options: &Options, marks: &Marks) -> Result<Vec<u8>, String> {
    let machine = machine::current();
    let mut encoder = Encoder { lua, options, marks, machine: machine.as_deref(), held: 0, out: Vec::new() };
    encoder.run(value)?;
    Ok(encoder.out)
}

struct Encoder<'a> {
    lua: &'a Lua,
    options: &'a Options,
    marks: &'a Marks,
    machine: Option<&'a Machine>,
    /// Bytes of the fields of open tables.
    held: usize,
    out: Vec<u8>,
}

/// The bytes that a string may have only escaped, and the slash.
const ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut control = 0;
    while control < 32 {
        escaped[control] = true;
        control += 1;
    }
    escaped[127] = true;
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped[b'/' as usize] = true;
    escaped
};

/// A table that is being written. They are on a list rather than on the stack of the thread.
struct Open {
    items: Items,
    /// Of its fields.
    bytes: usize,
    is_first: bool,
}

enum Items {
    Array { table: Table, next: u64, length: u64 },
    Object(std::vec::IntoIter<(Vec<u8>, Value)>),
}

/// A value of a table, with its key in an object.
type Item = (Option<Vec<u8>>, Value);

impl Open {
    fn next(&mut self) -> Result<Option<Item>, String> {
        Ok(match &mut self.items {
            Items::Array { next, length, .. } if *next > *length => None,
            Items::Array { table, next, .. } => {
                let item = table.raw_get(*next as i64).map_err(said)?;
                *next += 1;
                Some((None, item))
            }
            Items::Object(fields) => fields.next().map(|(key, value)| (Some(key), value)),
        })
    }
}

/// A failure of the machine as text.
fn said(error: mlua::Error) -> String {
    error.to_string()
}

impl Encoder<'_> {
    fn run(&mut self, value: Value) -> Result<(), String> {
        let mut stack = Vec::new();
        self.value(value, &mut stack)?;
        loop {
            let depth = stack.len();
            let Some(open) = stack.last_mut() else { return Ok(()) };
            // A table is written once for each reference to it, so a small table can have a very long text.
            self.check()?;
            let Some((key, value)) = open.next()? else {
                self.close(open, depth);
                self.held -= open.bytes;
                stack.pop();
                continue;
            };
            if self.options.skip_unsupported && !self.is_supported(&value) {
                continue;
            }
            if !std::mem::take(&mut open.is_first) {
                self.out.push(b',');
            }
            self.line(depth);
            if let Some(key) = key {
                self.text(&key)?;
                self.out.extend_from_slice(if self.options.space.is_empty() { b":" } else { b": " });
            }
            self.value(value, &mut stack)?;
        }
    }

    fn is_supported(&self, value: &Value) -> bool {
        match value {
            Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::String(_) => true,
            Value::Table(_) => true,
            Value::LightUserData(pointer) => pointer.0.is_null() || *value == self.marks.empty,
            _ => false,
        }
    }

    /// Writes a value, or the beginning of a table.
    fn value(&mut self, value: Value, stack: &mut Vec<Open>) -> Result<(), String> {
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::Boolean(on) => self.out.extend_from_slice(if on { b"true" } else { b"false" }),
            Value::Integer(number) => self.number(number as f64)?,
            Value::Number(number) => self.number(number)?,
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Table(table) => {
                let open = self.open(table, stack.len() + 1)?;
                stack.push(open);
            }
            Value::LightUserData(pointer) if pointer.0.is_null() => self.out.extend_from_slice(b"null"),
            ref other if *other == self.marks.empty => self.out.extend_from_slice(b"[]"),
            other => return Err(format!("Cannot serialise {}: type not supported", other.type_name())),
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), String> {
        if !number.is_finite() {
            match self.options.invalid_numbers {
                Invalid::Refused => {
                    return Err("Cannot serialise number: must not be NaN or Infinity".to_owned());
                }
                Invalid::Null => {
                    self.out.extend_from_slice(b"null");
                    return Ok(());
                }
                Invalid::Written => {}
            }
        }
        if number.fract() == 0.0 && number.abs() < 1e14 && number != 0.0 {
            use std::io::Write;
            // Writing to memory cannot fail.
            let _ = write!(self.out, "{}", number as i64);
        } else {
            self.out.extend_from_slice(shortest(number, self.options.precision).as_bytes());
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Result<(), String> {
        self.out.push(b'"');
        for mut rest in text.chunks(64 << 10) {
            while let Some(at) = rest.iter().position(|byte| ESCAPED[usize::from(*byte)]) {
                self.out.extend_from_slice(&rest[..at]);
                self.escaped(rest[at]);
                rest = &rest[at + 1..];
            }
            self.out.extend_from_slice(rest);
            self.check()?;
        }
        self.out.push(b'"');
        Ok(())
    }

    /// # Errors
    /// The limit that the text exceeds.
    fn check(&self) -> Result<(), String> {
        self.machine.map_or(Ok(()), |machine| machine.check_text(self.out.len() + self.held))
    }

    /// Writes one of the [`ESCAPED`] bytes.
    fn escaped(&mut self, byte: u8) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        match byte {
            b'/' if !self.options.escape_slash => self.out.push(byte),
            b'"' | b'\\' | b'/' => self.out.extend([b'\\', byte]),
            b'\n' => self.out.extend_from_slice(b"\\n"),
            b'\r' => self.out.extend_from_slice(b"\\r"),
            b'\t' => self.out.extend_from_slice(b"\\t"),
            8 => self.out.extend_from_slice(b"\\b"),
            12 => self.out.extend_from_slice(b"\\f"),
            _ => {
                self.out.extend_from_slice(b"\\u00");
                self.out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
        }
    }

    fn open(&mut self, table: Table, depth: usize) -> Result<Open, String> {
        if depth > self.options.depth {
            return Err(format!("Cannot serialise, excessive depth ({depth})"));
        }
        let meta = table.metatable();
        let length = if meta.as_ref() == Some(&self.marks.array) {
            Some(table.raw_len() as u64)
        } else {
            self.array_length(&table)?.filter(|length| {
                let is_array =
                    meta.as_ref() == Some(&self.marks.empty_array) || !self.options.empty_as_object;
                *length > 0 || is_array
            })
        };
        let items = match length {
            // Without the ratio of holes, an index of a script would be the length of the text.
            Some(length) if length > 1 << 26 => {
                return Err("Cannot serialise table: array is too long".to_owned());
            }
            Some(length) => Items::Array { table, next: 1, length },
            None => Items::Object(self.fields(&table)?.into_iter()),
        };
        let bytes = match &items {
            Items::Array { .. } => 0,
            Items::Object(fields) => {
                let fields = fields.as_slice();
                size_of_val(fields) + fields.iter().map(|(key, _)| key.len()).sum::<usize>()
            }
        };
        self.held += bytes;
        self.out.push(if matches!(items, Items::Array { .. }) { b'[' } else { b'{' });
        Ok(Open { items, bytes, is_first: true })
    }

    /// The length of a table that is an array, with holes.
    fn array_length(&self, table: &Table) -> Result<Option<u64>, String> {
        let (mut longest, mut count) = (0, 0_u64);
        for pair in table.pairs::<Value, Value>() {
            let index = match pair.map_err(said)?.0 {
                Value::Integer(index) if index >= 1 => index as u64,
                Value::Number(index) if index >= 1.0 && index.fract() == 0.0 => index as u64,
                _ => return Ok(None),
            };
            longest = longest.max(index);
            count += 1;
        }
        let Options { sparse_ratio, sparse_safe, .. } = *self.options;
        if sparse_ratio > 0 && longest > count.saturating_mul(sparse_ratio) && longest > sparse_safe {
            if !self.options.sparse_convert {
                return Err("Cannot serialise table: excessively sparse array".to_owned());
            }
            return Ok(None);
        }
        Ok(Some(longest))
    }

    fn fields(&self, table: &Table) -> Result<Vec<(Vec<u8>, Value)>, String> {
        let mut fields = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(said)?;
            fields.push((self.key(key)?, value));
        }
        if self.options.sorted {
            fields.sort_by(|one, two| one.0.cmp(&two.0));
        }
        Ok(fields)
    }

    fn key(&self, key: Value) -> Result<Vec<u8>, String> {
        match key {
            Value::String(text) => Ok(text.as_bytes().to_vec()),
            Value::Integer(_) | Value::Number(_) => {
                let text = self.lua.coerce_string(key).map_err(said)?;
                Ok(text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())
            }
            other => {
                Err(format!("Cannot serialise {}: table key must be a number or string", other.type_name()))
            }
        }
    }

    fn close(&mut self, open: &Open, depth: usize) {
        if !open.is_first {
            self.line(depth - 1);
        }
        self.out.push(if matches!(open.items, Items::Array { .. }) { b']' } else { b'}' });
    }

    fn line(&mut self, depth: usize) {
        if !self.options.space.is_empty() {
            self.out.push(b'\n');
            (0..depth).for_each(|_| self.out.extend_from_slice(self.options.space.as_bytes()));
        }
    }
}
