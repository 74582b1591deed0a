//! The state of an import: what was found so far, and the ids that are taken.

use std::collections::HashSet;

use model::{Key, Kind};
use serde_json::{Map, Value};

use crate::finding::{Finding, Place, Severity};
use crate::node::Node;
use crate::output::{Import, Imported};
use crate::{FileError, Source};

/// Findings of one part of a file.
#[derive(Default)]
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
}

impl Report {
    pub(super) fn add(
        &mut self,
        severity: Severity,
        node: &Node<'_>,
        construct: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.findings.push(Finding {
            place: node.place(),
            severity,
            construct: construct.into(),
            effect: effect.into(),
            hint: None,
            resources: Vec::new(),
        });
    }

    pub(super) fn guard(&mut self, node: &Node<'_>, construct: impl Into<String>, effect: impl Into<String>) {
        self.add(Severity::Guard, node, construct, effect);
    }

    pub(super) fn behaviour(
        &mut self,
        node: &Node<'_>,
        construct: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.add(Severity::Behaviour, node, construct, effect);
    }

    pub(super) fn cosmetic(
        &mut self,
        node: &Node<'_>,
        construct: impl Into<String>,
        effect: impl Into<String>,
    ) {
        self.add(Severity::Cosmetic, node, construct, effect);
    }

    /// Adds a hint to the last finding.
    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        if let Some(last) = self.findings.last_mut() {
            last.hint = Some(hint.into());
        }
    }

    /// Reads an object whose members have no effect here, if it has some.
    pub(super) fn opaque(&mut self, node: &Node<'_>, construct: &str, effect: &str) {
        node.whole();
        let empty = node.names().all(|name| name == "@type") && !node.value().is_array();
        if !empty {
            self.cosmetic(node, construct, effect);
        }
    }

    /// Reports the fields of an object that a table lists.
    pub(super) fn fields(&mut self, node: &Node<'_>, table: &[(&str, Severity, &str)]) {
        for (name, severity, effect) in table {
            if let Some(field) = node.some(name) {
                field.whole();
                self.add(*severity, &field, *name, *effect);
            }
        }
    }

    /// Adds all findings of another report; those without resources concern these.
    pub(super) fn take(&mut self, mut other: Report, concerns: &[Key]) {
        for finding in &mut other.findings {
            if finding.resources.is_empty() {
                finding.resources = concerns.to_vec();
            }
        }
        self.findings.append(&mut other.findings);
    }
}

/// An import that goes on.
pub(super) struct Context<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) import: Import,
    pub(super) report: Report,
    ids: HashSet<Key>,
}

impl<'a> Context<'a> {
    pub(super) fn new(source: &'a Source<'a>) -> Context<'a> {
        Context { source, import: Import::default(), report: Report::default(), ids: HashSet::new() }
    }

    /// A key that no other resource has, readable by its names.
    pub(super) fn key(&mut self, kind: Kind, names: &[&str]) -> Key {
        let allowed = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_') || (c == '.' && kind != Kind::Consumer)
        };
        let mut id = String::new();
        for name in names.iter().filter(|name| !name.is_empty()) {
            let part: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
            let part = part.trim_matches(['-', '.']);
            if !id.is_empty() && !part.is_empty() {
                id.push('-');
            }
            id.push_str(part);
        }
        if id.is_empty() {
            id.push_str(kind.word().split(' ').next().unwrap_or("item"));
        }
        id.truncate(60);
        let mut key = Key::new(kind, id.clone());
        let mut number = 1;
        while !self.ids.insert(key.clone()) {
            number += 1;
            let suffix = format!("-{number}");
            let kept = id.len().min(64 - suffix.len());
            key = Key::new(kind, format!("{}{suffix}", &id[..kept]));
        }
        key
    }

    pub(super) fn add(&mut self, key: Key, value: Map<String, Value>, place: Place) {
        self.import.resources.push(Imported { key, value: Value::Object(value), place });
    }

    /// The text of a `DataSource`, from the file it names, a variable or the configuration itself. The error says
    /// what is missing.
    pub(super) fn data(&self, node: &Node<'_>) -> Result<String, String> {
        if let Some(text) = node.some("inline_string").and_then(|text| text.str()) {
            return Ok(text.to_owned());
        }
        if let Some(text) = node.some("inline_bytes").and_then(|text| text.str()) {
            let bytes = crate::base64::decode(text).ok_or("`inline_bytes` is not Base64")?;
            return String::from_utf8(bytes).map_err(|_| "`inline_bytes` is not a text".to_owned());
        }
        if let Some(name) = node.some("environment_variable").and_then(|name| name.str()) {
            return (self.source.variables)(name).ok_or_else(|| format!("the variable `{name}` is not set"));
        }
        let Some(path) = node.some("filename").and_then(|path| path.str()) else {
            return Err("no data source is given".to_owned());
        };
        if let Some(watched) = node.get("watched_directory") {
            watched.whole();
        }
        self.source.files.read(path).map_err(|error: FileError| format!("`{path}`: {error}"))
    }
}
