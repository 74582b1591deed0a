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
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const PLUGINS: &[&str] = &["cors", "key-auth", "limit-count"];

    fn parse(text: &str) -> Declarative {
        Declarative::parse("apisix.yaml", text, Format::Yaml, PLUGINS, &|_| None).unwrap()
    }

    fn keys(declarative: &Declarative) -> Vec<String> {
        declarative.items.iter().map(|item| item.key.to_string()).collect()
    }

    const SEED: &str = "
routes:
  -
    uri: /hello
    plugins:
      key-auth:
      limit-count:
        count: 999999999
        time_window: 60
        rejected_code: 503
        key: remote_addr
    upstream:
      nodes:
        \"127.0.0.1:1980\": 1
      type: roundrobin
consumers:
  - username: jack
    plugins:
      key-auth:
        key: user-key
#END
";

    #[test]
    fn what_is_loaded_is_what_is_parsed_and_mistakes_have_their_places() {
        let routes =
            |uri: &str| format!("{{\"routes\": [\n{{\"id\": \"1\", \"uri\": {uri}, \"plugins\": {{}}}}]}}");
        for (format, end) in [(Format::Json, ""), (Format::Yaml, "\n#END\n")] {
            let read = |text: &str, load: bool| {
                let read = if load { Declarative::load } else { Declarative::parse };
                read("apisix", text, format, PLUGINS, &|_| None).unwrap()
            };
            for (text, wrong) in [(routes("\"/a\""), None), (routes("7"), Some(2))] {
                let text = text + end;
                let (loaded, parsed) = (read(&text, true), read(&text, false));
                assert_eq!(keys(&loaded), keys(&parsed));
                assert_eq!(loaded.diagnostics, parsed.diagnostics);
                assert_eq!(loaded.diagnostics.first().map(|found| found.line), wrong);
                for (loaded, parsed) in loaded.items.iter().zip(&parsed.items) {
                    assert_eq!((&loaded.value, &loaded.resource), (&parsed.value, &parsed.resource));
                }
            }
        }
        assert!(Declarative::load("apisix.json", "{", Format::Json, PLUGINS, &|_| None).is_err());
    }

    #[test]
    fn the_seeds_file_loads() {
        let declarative = parse(SEED);
        assert!(declarative.diagnostics.is_empty(), "{:?}", declarative.diagnostics);
        assert_eq!(keys(&declarative), ["routes/arr_1", "consumers/jack"]);
        let Resource::Route(route) = &declarative.items[0].resource else { panic!("a route") };
        assert_eq!(route.plugins["key-auth"], json!({}));
        assert_eq!(declarative.items[0].value["id"], json!("arr_1"));
        assert_eq!(declarative.items[1].pointer, "/consumers/0");
    }

    #[test]
    fn every_section_is_read() {
        let declarative = parse(
            "routes:\n  - {id: 5, uri: /, upstream_id: 1}\n\
             upstreams:\n  - {id: 1, nodes: {'h:80': 1}}\n\
             services:\n  - {id: s}\n\
             consumers:\n  - {username: a}\n  - {id: a/credentials/x, plugins: {key-auth: {key: k}}}\n\
             consumer_groups:\n  - {id: g, plugins: {}}\n\
             global_rules:\n  - {id: 1, plugins: {cors: }}\n\
             plugin_configs:\n  - {id: 1, plugins: {}}\n\
             plugin_metadata:\n  - {id: http-logger, log_format: {}}\n\
             plugins:\n  - name: cors\n  - {name: mqtt-proxy, stream: true}\n\
             protos:\n  - {id: 1, content: x}\n\
             secrets:\n  - {id: vault/1, uri: 'http://v', prefix: p, token: t}\n\
             stream_routes:\n  - {id: 1, server_port: 9100}\n\
             ssls:\nroutes_conf_version: 3\n#END\n",
        );
        let refused: Vec<&str> = declarative.diagnostics.iter().map(|d| d.pointer.as_str()).collect();
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(
            keys(&declarative),
            [
                "routes/5",
                "upstreams/1",
                "services/s",
                "consumers/a",
                "consumers/a/credentials/x",
                "consumer_groups/g",
                "global_rules/1",
                "plugin_configs/1",
                "plugin_metadata/http-logger",
                "protos/1",
                "secrets/vault/1",
                "stream_routes/1",
            ]
        );
        let idle: Vec<&str> = declarative.warnings.iter().map(|d| d.pointer.as_str()).collect();
        assert_eq!(idle, ["/protos/0"], "nothing uses them yet");
        assert_eq!(declarative.plugins, Some(vec!["cors".to_owned()]));
        assert_eq!(declarative.stream_plugins, Some(vec!["mqtt-proxy".to_owned()]));
        assert_eq!(declarative.items[0].value["id"], json!(5));
    }

    #[test]
    fn a_bad_item_is_told_with_its_place_and_the_others_load() {
        let declarative = parse(
            "rotues: []\nroutes:\n  - uri: /a\n    plugins: {}\n  - uris: []\n    plugins: {}\n  - 7\n  - id: arr_1\n    uri: /\n    plugins: {}\nupstreams: {a: 1}\n#END\n",
        );
        assert_eq!(keys(&declarative), ["routes/arr_1"]);
        let told: Vec<(u32, u32, &str, &str)> = declarative
            .diagnostics
            .iter()
            .map(|d| (d.line, d.column, d.pointer.as_str(), d.message.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (1, 1, "/rotues", "unknown section `rotues`"),
                (
                    5,
                    5,
                    "/routes/1/uris",
                    "invalid configuration: property \"uris\" validation failed: expect array to have at least 1 items"
                ),
                (7, 5, "/routes/2", "invalid item data of [routes/3], it should be an object"),
                (8, 9, "/routes/3/id", "found duplicate route id: arr_1"),
                (11, 1, "/upstreams", "section `upstreams` must be a list"),
            ]
        );
        assert_eq!(declarative.diagnostics[0].hint.as_deref(), Some("did you mean `routes`?"));
    }

    #[test]
    fn a_holder_of_anchors_is_ignored_and_a_misspelled_section_counts_only_without_the_real_one() {
        let unread = |text: &str| {
            let text = format!("{text}\n#END\n");
            let read = [Declarative::parse, Declarative::load].map(|read| {
                let read = read("apisix.yaml", &text, Format::Yaml, PLUGINS, &|_| None).unwrap();
                (read.unread, read.diagnostics.len())
            });
            assert_eq!(read[0], read[1], "{text}");
            read[0].clone()
        };
        for name in ["x-consumers", "x-route", "x-plugins", ".routes", ".x", "x-"] {
            assert_eq!(unread(&format!("{name}: &a [{{}}]\nroutes: []")), (vec![], 0), "{name}");
            assert_eq!(unread(&format!("{name}: {{}}")), (vec![], 0), "{name}");
        }
        assert_eq!(unread("rotues: []"), (vec![Kind::Route], 1));
        assert_eq!(unread("rotues: []\nroutes: []"), (vec![], 1));
        assert_eq!(unread("routes:\nrotues: []"), (vec![], 1));
        assert_eq!(unread("rotues: []\nroutes: {a: 1}"), (vec![Kind::Route], 2));
    }

    #[test]
    fn a_file_without_its_end_is_refused() {
        let refused =
            |text| Declarative::parse("apisix.yaml", text, Format::Yaml, PLUGINS, &|_| None).unwrap_err();
        let diagnostic = refused("routes: []\n# END\n");
        assert_eq!(diagnostic.message, "missing valid end flag in file apisix.yaml");
        assert_eq!(diagnostic.line, 2);
        for (text, help) in [
            ("routes: []\n# END\n", "write `#END` without a space"),
            ("routes: []\n  #\tEND", "write `#END` without a space"),
            ("routes: []\n# End\n", "write `#END` in capital letters, without a space"),
            ("# END\nroutes: []\n", "add a line `#END` after everything else"),
            ("routes: []\n# the END\n", "add a line `#END` after everything else"),
            ("routes: []\nEND\n", "add a line `#END` after everything else"),
        ] {
            assert!(refused(text).hint.is_some_and(|hint| hint.starts_with(help)), "{text}");
        }
        assert_eq!(refused("").message, "missing valid end flag in file apisix.yaml");
        // Text behind `#END` may not be complete.
        assert_eq!(refused("routes: []\n#END\nservices: []\n").line, 3);
        assert_eq!(refused("").line, 1);
        assert_eq!(refused("a: [\n#END").line, 1);
        assert!(parse("#END").items.is_empty());
        assert!(parse("routes: [] #END\n\n").items.is_empty());
        assert_eq!(parse("# about #END\nservices: [{}]\n  #END\n").items.len(), 1);
        assert_eq!(parse("services: [{}]\n#END\nroutes:\n  - {uri: /, plugins: {}}\n#END\n").items.len(), 2);
        assert_eq!(refused("services: [{}]\n#END\nroutes:\n").line, 3, "still being written");
        assert_eq!(refused("services: [{}]\nx#END").line, 2);
        assert_eq!(refused("- 1\n#END\n").got.as_deref(), Some("array"));
    }

    #[test]
    fn what_has_no_effect_is_told_and_the_resource_is_used() {
        let declarative = parse(
            "upstreams:\n  - id: 1\n    nodes: {}\nservices:\n  - {plugins: {zipkin: {}}}\n\
             plugins:\n  - name: cors\n  - name: key-aut\n  - {name: mqtt-proxy, stream: true}\n#END\n",
        );
        assert!(declarative.diagnostics.is_empty());
        assert_eq!(declarative.items.len(), 2);
        let told: Vec<(u32, u32, &str)> = declarative
            .warnings
            .iter()
            .map(|found| (found.line, found.column, found.pointer.as_str()))
            .collect();
        assert_eq!(told, [(5, 16, "/services/0/plugins/zipkin"), (8, 5, "/plugins/1")]);
        assert_eq!(declarative.warnings[1].hint.as_deref(), Some("did you mean `key-auth`?"));
    }

    #[test]
    fn json_files_need_no_end() {
        let text = "{\"routes\": [{\"uri\": \"/${{P}}\", \"plugins\": {}}]}";
        let lookup = |name: &str| (name == "P").then(|| "x".to_owned());
        let declarative = Declarative::parse("apisix.json", text, Format::Json, PLUGINS, &lookup).unwrap();
        assert_eq!(declarative.items[0].value["uri"], json!("/x"));
        let error = Declarative::parse("apisix.json", text, Format::Json, PLUGINS, &|_| None).unwrap_err();
        assert_eq!((error.line, error.column), (1, 21));
    }

    /// A value with fields of a route, most of which make one.
    fn near_route() -> impl Strategy<Value = Value> {
        // Few digits: the last bit of others depends on who reads them.
        let number = || {
            prop_oneof![
                any::<i32>().prop_map(|n| json!(f64::from(n) / 8.0)),
                any::<i64>().prop_map(Value::from),
                Just(json!(1.0)),
            ]
        };
        let config = prop_oneof![
            Just(json!({})),
            Just(Value::Null),
            Just(json!([])),
            number().prop_map(|n| json!({"n": n}))
        ];
        let timeout = prop::option::of((1..100_000_u32).prop_map(|n| f64::from(n) / 8.0));
        let id = prop_oneof![Just(Value::Null), Just(json!(7)), Just(json!("a"))];
        (id, "[a-z0-9 é\"\\\\#:]{0,6}", number(), config, timeout).prop_map(|(id, text, number, config, timeout)| {
            let mut value = json!({
                "uri": format!("/{text}"), "desc": text, "host": "A.com", "vars": [["arg_a", "==", number]],
                "plugins": {"cors": config},
                "upstream": {"nodes": {"a.com:80": 1}, "retry_timeout": number, "checks": {"active": {}}},
            });
            if !id.is_null() {
                value["id"] = id;
            }
            if let Some(timeout) = timeout {
                value["timeout"] = json!({"connect": timeout, "send": timeout, "read": 3});
            }
            value
        })
    }

    proptest! {
        #[test]
        fn an_item_is_what_is_read_of_its_text(routes in proptest::collection::vec(near_route(), 1..4), yaml: bool) {
            let text = json!({ "routes": routes }).to_string();
            let (text, format) = match yaml {
                true => (format!("{text}\n#END\n"), Format::Yaml),
                false => (text, Format::Json),
            };
            let read = Declarative::load("f", &text, format, PLUGINS, &|_| None).unwrap();
            for Item { key, resource, value, .. } in read.items {
                let again: Value = serde_json::from_str(&value.to_string()).unwrap();
                prop_assert_eq!(Resource::parse(key.kind, &key.id, &again).unwrap(), resource);
            }
        }

        #[test]
        fn no_document_panics(text in "(routes|upstreams|consumers|plugins|ssls|x)?:? ?[-a-z\\n :{}\\[\\]\"0-9,.]{0,80}\\n#END") {
            let _ = Declarative::parse("f", &text, Format::Yaml, PLUGINS, &|_| None);
            let _ = Declarative::parse("f", &text, Format::Json, PLUGINS, &|_| None);
        }
    }
}
