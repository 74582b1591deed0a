//! Resources written as the YAML of an `apisix.yaml`.

use std::fmt::Write as _;

use model::{Key, Kind};
use serde_json::{Map, Value};

/// The most resources that a message names.
const NAMED: usize = 10;

/// Names of resources for a message.
pub fn names(keys: &[Key]) -> String {
    let mut named = keys.iter().take(NAMED).map(Key::to_string).collect::<Vec<_>>().join(", ");
    if keys.len() > NAMED {
        let _ = write!(named, " and {} more", keys.len() - NAMED);
    }
    named
}

/// A resource as an item of its section.
pub fn item(key: &Key, value: &Value) -> Value {
    let Value::Object(fields) = value else { return value.clone() };
    let mut all = Map::new();
    let name = if key.kind == Kind::Consumer { "username" } else { "id" };
    all.extend([named(name, &key.id)]);
    let rest = fields.iter().filter(|(field, _)| *field != "id" && *field != name);
    all.extend(rest.map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(all)
}

/// An object as a document.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, 0);
    out.trim_start().to_owned()
}

pub fn named(name: &str, text: &str) -> (String, Value) {
    (name.to_owned(), Value::from(text))
}

/// A section of items, with lines of comments before each.
pub fn section(out: &mut String, name: &str, items: &[Value], comments: &dyn Fn(usize) -> Vec<String>) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(out, "{name}:");
    for (index, item) in items.iter().enumerate() {
        for line in comments(index) {
            let _ = writeln!(out, "  # {line}");
        }
        out.push_str("  -");
        write(out, item, 2);
    }
}

/// A value behind its name or dash, down to the end of its last line.
fn write(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    // Writing to a string cannot fail.
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            for (name, field) in fields {
                let _ = write!(out, "{indent}{}:", text(name));
                write(out, field, depth + 1);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                let _ = write!(out, "{indent}-");
                write(out, item, depth + 1);
            }
        }
        Value::String(value) => _ = writeln!(out, " {}", text(value)),
        plain => _ = writeln!(out, " {plain}"),
    }
}

/// Quotes a text for JSON and YAML. Escapes `$`, which could begin a variable of the environment, and all
/// characters that YAML wants escaped.
fn text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '$' => quoted.push_str("\\x24"),
            c if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() => quoted.push(c),
            c if u32::from(c) > 0xffff => _ = write!(quoted, "\\U{:08x}", u32::from(c)),
            c => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
        }
    }
    quoted.push('"');
    quoted
}
