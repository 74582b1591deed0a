//! Declarative files: `apisix.yaml` and `apisix.json`.
//!
//! One text holds all resources, in a list for each section. An invalid item is reported and left out; the whole
//! text is refused only if it cannot be parsed. This module neither reads the file nor watches it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::boot::{stands_at_top, unknown_plugins, unknown_stream_plugins};
use crate::diagnostic::{Diagnostic, Severity, Source};
use crate::document::{Document, Lookup, Position};
use crate::field::id_text;
use crate::invalid::{nearest, push_pointer};
use crate::yaml::{self, Variables};
use crate::{Invalid, Key, Kind, Resource, gaps, json, parallel, schema};

/// The hint for a file that does not exist.
pub const ABSENT: &str = "`config_provider` in config.yaml says that resources are in this file: write it, or have \
                          the gateway keep them itself with `config_provider: embedded`";

/// How a declarative file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Ends with a line `#END`, which says that all of it was written.
    Yaml,
    Json,
}

/// The contents of a declarative file.
#[derive(Debug, Clone)]
pub struct Declarative {
    /// The valid ones, in the order of the file.
    pub items: Vec<Item>,
    /// `plugins`, if the section is there: the HTTP plugins switched on.
    pub plugins: Option<Vec<String>>,
    /// Likewise, those of streams: the section is the whole list, as in APISIX.
    pub stream_plugins: Option<Vec<String>>,
    /// The errors of the others, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
    /// The keys of the others, where they could be read: their previous resources can still be used.
    pub refused: Vec<Key>,
    /// Kinds of which nothing could be read, as their section is no list, or is absent beside a misspelled one:
    /// their previous resources can still be used.
    pub unread: Vec<Kind>,
    /// Settings of the valid ones that have no effect, in the order of the file.
    pub warnings: Vec<Diagnostic>,
    /// For the places of what is found wrong later; see [`Source::invalid`] and [`Declarative::load`].
    pub document: Document,
}

/// One resource of a declarative file.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: Key,
    pub resource: Resource,
    /// As written, with its id.
    pub value: Arc<Value>,
    /// Where it stands in the document: `/routes/0`.
    pub pointer: String,
}

/// Everything in a document of sections, as [`read`] finds it.
#[derive(Debug, Default)]
pub struct Sections {
    pub items: Vec<Item>,
    pub plugins: Option<Vec<String>>,
    pub stream_plugins: Option<Vec<String>>,
    /// The errors of everything that was left out; pointers lead into the document.
    pub rejected: Vec<Invalid>,
    /// The keys of items that were left out, where they could be read.
    pub refused: Vec<Key>,
    /// Kinds whose section is no list, or is absent beside a misspelled one.
    pub unread: Vec<Kind>,
    /// Settings that have no effect, with the reason; pointers lead into the document.
    pub ignored: Vec<Invalid>,
}

impl Declarative {
    /// Reads the text of `file`, a name used in diagnostics alone. `plugins` are those this build
    /// has.
    ///
    /// # Errors
    /// A text that is cut off (no `#END`), is not YAML or JSON, names a variable
    /// that is not set, or is no map of sections.
    pub fn parse(
        file: &str,
        text: &str,
        format: Format,
        plugins: &[&str],
        lookup: Lookup<'_>,
    ) -> Result<Declarative, Box<Diagnostic>> {
        let source = Source { file, text };
        let parsed = match format {
            Format::Json => json::parse(text, Some(lookup)),
            Format::Yaml => yaml::parse(before_end(&source)?, Variables::InText(lookup)),
        };
        let document = parsed.map_err(|error| Box::new(source.syntax(error)))?;
        let sections = sections(Cow::Borrowed(&document.value), plugins)
            .map_err(|invalid| Box::new(source.invalid(&document, invalid)))?;
        Ok(Declarative::of(sections, &source, document))
    }

    /// The same, but the document is kept only if something in it is wrong.
    ///
    /// # Errors
    /// As there.
    pub fn load(
        file: &str,
        text: &str,
        format: Format,
        plugins: &[&str],
        lookup: Lookup<'_>,
    ) -> Result<Declarative, Box<Diagnostic>> {
        let source = Source { file, text };
        let value = match format {
            Format::Json => json::parse_values(text, Some(lookup)).ok(),
            Format::Yaml => before_end(&source).ok().and_then(|text| yaml::parse_values(text, lookup)),
        };
        if let Some(value) = value
            && let Ok(sections) = sections(Cow::Owned(value), plugins)
            && sections.rejected.is_empty()
            && sections.ignored.is_empty()
        {
            // Nothing is looked for in the document.
            return Ok(Declarative::of(sections, &source, Document::default()));
        }
        // Mistakes are reported with their places, which cost more to find than the value itself.
        Declarative::parse(file, text, format, plugins, lookup)
    }

    /// Checks resources that a program made of the text of another format; `place` returns the place of an item by
    /// section and index.
    pub fn of_sections(
        source: &Source<'_>,
        sections: Map<String, Value>,
        plugins: &[&str],
        place: impl Fn(&str, usize) -> Position,
    ) -> Declarative {
        let document = Document::of_sections(sections, place);
        let found = document.value.as_object().map(|map| read(map, plugins)).unwrap_or_default();
        Declarative::of(found, source, document)
    }

    /// Makes the result of sections. The document has the places of mistakes.
    fn of(sections: Sections, source: &Source<'_>, document: Document) -> Declarative {
        let Sections { items, plugins, stream_plugins, rejected, refused, unread, ignored } = sections;
        let rejected = rejected.into_iter().map(|invalid| source.invalid(&document, invalid));
        let ignored = ignored.into_iter().map(|invalid| source.warning(&document, invalid));
        let (mut diagnostics, mut warnings): (Vec<_>, Vec<_>) = (rejected.collect(), ignored.collect());
        for found in [&mut diagnostics, &mut warnings] {
            found.sort_by_key(|found| (found.line, found.column));
        }
        Declarative { items, plugins, stream_plugins, diagnostics, refused, unread, warnings, document }
    }
}

fn sections(document: Cow<'_, Value>, plugins: &[&str]) -> Result<Sections, Invalid> {
    let mut sections = Sections::default();
    match document {
        Cow::Borrowed(Value::Object(map)) => Ok(read(map, plugins)),
        Cow::Owned(Value::Object(map)) => {
            let present = present(&map);
            for (name, value) in map {
                sections.read(&name, Cow::Owned(value), plugins, &present);
            }
            Ok(sections)
        }
        // A file of nothing but `#END` is an empty configuration.
        Cow::Borrowed(Value::Null) | Cow::Owned(Value::Null) => Ok(sections),
        ref other => Err(Invalid::new("a declarative file must be a map of sections")
            .expected("sections such as `routes` and `upstreams`")
            .got(schema::json_name(other))),
    }
}

/// Reads sections by name: `routes`, `consumers`, `plugins`, …
///
/// An item's id is its `id`, or a consumer's `username`, or `arr_` and its place
/// from 1, as in APISIX. Credentials stand among consumers with an id
/// `user/credentials/id`; the id of a secret is `manager/id`. A key that starts with `x-` or `.` is ignored: it
/// holds values for YAML's anchors.
pub fn read(document: &Map<String, Value>, plugins: &[&str]) -> Sections {
    let mut sections = Sections::default();
    let present = present(document);
    for (name, value) in document {
        sections.read(name, Cow::Borrowed(value), plugins, &present);
    }
    sections
}

/// The kinds that have a section of their own.
fn present(document: &Map<String, Value>) -> Vec<Kind> {
    document.keys().filter_map(|name| kind_of_section(name)).collect()
}

impl Sections {
    fn read(&mut self, name: &str, value: Cow<'_, Value>, plugins: &[&str], present: &[Kind]) {
        if name.starts_with("x-") || name.starts_with('.') {
            return;
        }
        let mut pointer = String::new();
        push_pointer(&mut pointer, name);
        if name == "plugins" {
            self.read_plugins(&value, &pointer, plugins);
        } else if let Some(kind) = kind_of_section(name) {
            self.read_items(kind, value, &pointer);
        } else if name.strip_suffix("_conf_version").is_none_or(|section| !is_section(section)) {
            let misspelled = meant(name).and_then(kind_of_section);
            self.unread.extend(misspelled.filter(|kind| !present.contains(kind)));
            self.rejected.push(unknown_section(name).at(pointer));
        }
    }

    fn read_items(&mut self, kind: Kind, value: Cow<'_, Value>, pointer: &str) {
        let items: Vec<Cow<'_, Value>> = match value {
            Cow::Borrowed(Value::Array(items)) => items.iter().map(Cow::Borrowed).collect(),
            Cow::Owned(Value::Array(items)) => items.into_iter().map(Cow::Owned).collect(),
            Cow::Borrowed(Value::Null) | Cow::Owned(Value::Null) => return,
            ref empty if empty.as_object().is_some_and(Map::is_empty) => return,
            ref other => {
                let invalid = Invalid::new(format!("section `{}` must be a list", kind.collection()))
                    .at(pointer)
                    .expected("array")
                    .got(schema::json_name(other));
                self.unread.push(kind);
                self.rejected.push(invalid.hint("write `- ` before each item"));
                return;
            }
        };
        let mut seen = HashSet::new();
        let numbered = items.into_iter().enumerate().collect();
        let read = parallel::map(numbered, |(index, value)| {
            let read = item(kind, index, value, &format!("{pointer}/{index}"));
            let ignored = match &read {
                // Its id, which may have been added, is asked for nothing.
                Ok(item) => gaps::ignored(item.key.kind, &item.value),
                Err(_) => Vec::new(),
            };
            (read, ignored)
        });
        for (index, (read, ignored)) in read.enumerate() {
            let pointer = format!("{pointer}/{index}");
            match read {
                Ok(item) if seen.contains(&item.key) => {
                    let word = item.key.kind.word();
                    let id = if item.key.kind == Kind::Consumer { "/username" } else { "/id" };
                    self.rejected.push(
                        Invalid::new(format!("found duplicate {word} id: {}", item.key.id))
                            .at(format!("{pointer}{id}"))
                            .expected(format!("an id no other {word} has"))
                            .hint("the first one is used; give this one another id or remove it"),
                    );
                }
                Ok(item) => {
                    self.ignored.extend(ignored.into_iter().map(|invalid| invalid.under(&pointer)));
                    seen.insert(item.key.clone());
                    self.items.push(item);
                }
                Err(wrong) => {
                    let (key, invalid) = *wrong;
                    // A second item with this id is wrong in another way, and the first one counts.
                    self.refused.extend(key.filter(|key| !seen.contains(key)));
                    self.rejected.push(invalid.under(&pointer));
                }
            }
        }
    }

    fn read_plugins(&mut self, value: &Value, pointer: &str, built: &[&str]) {
        let names = match value {
            Value::Array(items) => items,
            Value::Null => return,
            other => {
                let invalid = Invalid::new("section `plugins` must be a list").at(pointer).expected("array");
                self.rejected.push(invalid.got(schema::json_name(other)));
                return;
            }
        };
        let (mut http, mut stream) = (Vec::new(), Vec::new());
        for (index, item) in names.iter().enumerate() {
            match item.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) {
                Some(name) if item.get("stream") == Some(&Value::Bool(true)) => stream.push(name.to_owned()),
                Some(name) => http.push(name.to_owned()),
                None => self.rejected.push(
                    Invalid::new("property \"name\" is required")
                        .at(format!("{pointer}/{index}"))
                        .expected("an object with the `name` of a plugin")
                        .hint("write `- name: limit-count`"),
                ),
            }
        }
        let listed = |of_streams: bool| {
            let is_of = move |item: &Value| (item.get("stream") == Some(&Value::Bool(true))) == of_streams;
            let items = names.iter().enumerate().filter(move |(_, item)| is_of(item));
            items.filter_map(|(at, item)| Some((format!("{pointer}/{at}"), item.get("name")?.as_str()?)))
        };
        self.ignored.extend(unknown_plugins(pointer, listed(false), built));
        self.ignored.extend(unknown_stream_plugins(listed(true)));
        self.plugins = Some(http);
        self.stream_plugins = Some(stream);
    }
}

/// Types one item; pointers of refusals start at the item. A refusal has the item's key, if that
/// can be read.
fn item(
    kind: Kind,
    index: usize,
    value: Cow<'_, Value>,
    pointer: &str,
) -> Result<Item, Box<(Option<Key>, Invalid)>> {
    let Value::Object(map) = &*value else {
        let invalid = Invalid::new(format!(
            "invalid item data of [{}/{}], it should be an object",
            kind.collection(),
            index + 1
        ))
        .expected("object")
        .got(schema::json_name(&value));
        return Err(Box::new((None, invalid)));
    };
    let named = |name: &str| map.get(name).and_then(id_text);
    let own = match kind {
        Kind::Consumer => {
            let owned = |id: &String| Key::new(kind, id.as_str()).or_owned().kind != kind;
            named("id").filter(owned).or_else(|| named("username"))
        }
        _ => named("id"),
    };
    let id = own.unwrap_or_else(|| format!("arr_{}", index + 1));
    let key = Key::new(kind, id).or_owned();
    let resource = Resource::parse(key.kind, &key.id, &value)
        .map_err(|invalid| Box::new((Some(key.clone()), invalid)))?;
    let mut value = value.into_owned();
    if let Value::Object(map) = &mut value
        && !map.contains_key("id")
        && key.kind != Kind::Consumer
    {
        map.insert("id".to_owned(), Value::from(key.id.as_str()));
    }
    Ok(Item { key, resource, value: Arc::new(value), pointer: pointer.to_owned() })
}

fn kind_of_section(name: &str) -> Option<Kind> {
    Kind::from_collection(name).filter(|kind| kind.owner().is_none())
}

fn is_section(name: &str) -> bool {
    name == "plugins" || kind_of_section(name).is_some()
}

fn known_sections() -> impl Iterator<Item = &'static str> {
    Kind::ALL.iter().map(|kind| kind.collection()).filter(|name| is_section(name)).chain(["plugins"])
}

/// The section that an unknown name is a misspelling of.
fn meant(name: &str) -> Option<&'static str> {
    nearest(name, known_sections())
}

fn unknown_section(name: &str) -> Invalid {
    if stands_at_top(name) {
        return Invalid::new(format!("`{name}` has no effect in a file of resources"))
            .expected("a section such as `routes` and `upstreams`")
            .hint("move it to config.yaml");
    }
    let known: Vec<_> = known_sections().collect();
    let invalid =
        Invalid::new(format!("unknown section `{name}`")).expected(format!("one of {}", known.join(", ")));
    match meant(name) {
        Some(close) => invalid.hint(format!("did you mean `{close}`?")),
        None if name == "credentials" => {
            invalid.hint("credentials stand under `consumers`, with an id `user/credentials/id`")
        }
        None => invalid,
    }
}

/// The text before the `#END` that ends it. Others before that are comments, as in APISIX; with
/// anything behind it the file is still being written.
fn before_end<'a>(source: &Source<'a>) -> Result<&'a str, Box<Diagnostic>> {
    let text = source.text.trim_end();
    if let Some(before) = text.strip_suffix("#END")
        && (before.is_empty() || before.ends_with(char::is_whitespace))
    {
        return Ok(before);
    }
    let line = crate::document::count(text.lines().count().max(1));
    let last = text.lines().last().and_then(|last| last.trim_start().strip_prefix('#'));
    let help = match last.map(str::trim_start) {
        Some("END") => "write `#END` without a space",
        Some(end) if end.eq_ignore_ascii_case("END") => "write `#END` in capital letters, without a space",
        _ => "add a line `#END` after everything else; it tells that the file was written to its end",
    };
    let invalid = Invalid::new(format!("missing valid end flag in file {}", source.file))
        .expected("a last line `#END`")
        .hint(help);
    Err(Box::new(source.at(Severity::Error, Position { line, column: 1 }, invalid)))
}

#[cfg(test)]
mod tests;
