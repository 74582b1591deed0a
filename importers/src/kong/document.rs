//! The documents of a file, with their variables replaced.

use model::document::{Document, SyntaxError};
use model::yaml::{self, Variables};
use model::{Diagnostic, Severity, json};
use serde_json::Value;

use crate::Source;
use crate::node::Tree;

/// The largest file that is read.
const MAX_BYTES: usize = 64 << 20;

/// The parsed documents of a file.
pub(super) struct Documents {
    pub trees: Vec<Tree>,
    /// The pointers, documents and names of variables without a value.
    pub unset: Vec<(String, usize, String)>,
}

/// Parses a file: YAML, of which it may hold several documents, or JSON.
///
/// # Errors
/// The first syntax error; a file that is too large, or no text.
pub(super) fn read(source: &Source<'_>) -> Result<Documents, Box<Diagnostic>> {
    let text = source.text.strip_prefix('\u{FEFF}').unwrap_or(source.text);
    let whole = |message: String| Box::new(Diagnostic::new(Severity::Error, source.file, message));
    if text.len() > MAX_BYTES {
        let mut error = whole(format!("the file has {} bytes, and at most {MAX_BYTES} are read", text.len()));
        error.hint = Some("split it by services into several files".to_owned());
        return Err(error);
    }
    if text.contains('\0') {
        return Err(whole("the file is no text: it has NUL bytes".to_owned()));
    }
    let at =
        |error: SyntaxError| Box::new(model::diagnostic::Source { file: source.file, text }.syntax(error));
    let mut documents = Documents { trees: Vec::new(), unset: Vec::new() };
    for mut document in parse(text, source).map_err(at)? {
        let index = documents.trees.len();
        replace(&mut document.value, &mut String::new(), source, &mut |pointer, name| {
            documents.unset.push((pointer.to_owned(), index, name.to_owned()));
        });
        if !matches!(document.value, Value::Object(_) | Value::Null) {
            return Err(whole("a file of Kong is a map of sections such as `services`".to_owned()));
        }
        documents.trees.push(Tree::new(source.file, document));
    }
    Ok(documents)
}

fn parse(text: &str, source: &Source<'_>) -> Result<Vec<Document>, SyntaxError> {
    if text.trim_start().starts_with('{') {
        return Ok(vec![json::parse(text, None)?]);
    }
    let mut documents = Vec::new();
    for part in parts(text) {
        let parsed = yaml::parse(&part, Variables::Keep).or_else(|error| {
            // decK replaces variables before it parses, so they may stand where YAML has no value.
            match replaced(&part, source, &mut |_| {}) {
                Some(text) => yaml::parse(&text, Variables::Keep).map_err(|_| error),
                None => Err(error),
            }
        })?;
        documents.push(parsed);
    }
    Ok(documents)
}

/// The documents of a text of YAML, each with the empty lines before it that keep its line numbers.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for (line, content) in text.lines().enumerate() {
        let bare = content.trim_end();
        if bare == "---" || bare.starts_with("--- #") {
            parts.push("\n".repeat(line + 1));
            continue;
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(content);
            part.push('\n');
        }
    }
    let used = |part: &String| {
        part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    };
    parts.retain(used);
    parts
}

/// Replaces variables in all texts of a value, and passes pointer and name of those without a value.
fn replace(value: &mut Value, pointer: &mut String, source: &Source<'_>, unset: &mut dyn FnMut(&str, &str)) {
    let length = pointer.len();
    match value {
        Value::String(text) => {
            if let Some(new) = replaced(text, source, &mut |name| unset(pointer, name)) {
                *text = new;
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                model::invalid::push_pointer(pointer, &index.to_string());
                replace(item, pointer, source, unset);
                pointer.truncate(length);
            }
        }
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                model::invalid::push_pointer(pointer, name);
                replace(member, pointer, source, unset);
                pointer.truncate(length);
            }
        }
        _ => {}
    }
}

/// A text with its variables replaced, if it has any that have a value: `${NAME}`, `${NAME:default}`,
/// `${NAME:-default}` and decK's `${{ env "NAME" }}`.
fn replaced(text: &str, source: &Source<'_>, unset: &mut dyn FnMut(&str)) -> Option<String> {
    if !text.contains("${") {
        return None;
    }
    let (mut out, mut rest, mut changed) = (String::with_capacity(text.len()), text, false);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let Some((length, name, default)) = variable(from) else {
            out.push_str("${");
            rest = &from[2..];
            continue;
        };
        match (source.variables)(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => {
                out.push_str(&value);
                changed = true;
            }
            None => {
                unset(name);
                out.push_str(&from[..length]);
            }
        }
        rest = &from[length..];
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// Whether a text holds a variable that has no value.
pub(super) fn is_unset(text: &str) -> bool {
    text.match_indices("${").any(|(at, _)| variable(&text[at..]).is_some())
}

/// The length, name and default of the variable that a text begins with.
fn variable(text: &str) -> Option<(usize, &str, Option<&str>)> {
    let is_name = |name: &str| {
        let part = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        name.bytes().all(part) && !name.is_empty() && !name.as_bytes()[0].is_ascii_digit()
    };
    if let Some(inner) = text.strip_prefix("${{") {
        let end = inner.find("}}")?;
        let call = inner[..end].trim().strip_prefix("env")?.trim_start();
        let name = call.strip_prefix(['"', '\''])?.split(['"', '\'']).next()?;
        return is_name(name).then_some((end + 5, name, None));
    }
    let inner = text.strip_prefix("${")?;
    let end = inner.find('}')?;
    let (name, default) = match inner[..end].split_once(':') {
        Some((name, default)) => (name, Some(default.strip_prefix('-').unwrap_or(default))),
        None => (&inner[..end], None),
    };
    is_name(name).then_some((end + 3, name, default))
}
