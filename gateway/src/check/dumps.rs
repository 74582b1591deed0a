//! Checks dumps of an APISIX: the output of `etcdctl get --prefix /apisix`, as JSON or in lines, and the file of ADC.
//!
//! Each resource is read as the Admin API reads it, then all are compiled together. Resources that would be refused,
//! or behave differently here, are reported with their line.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::boot::Boot;
use model::yaml::{self, Variables};
use model::{Desired, Diagnostic, Document, Entry, Invalid, Key, Kind, Position, Resource, Severity, Source};
use sdk::Catalog;
use sdk::sink::Folders;
use serde_json::{Map, Value, json};
use snapshot::analysis::{Code, Finding};
use snapshot::compile::{Compiler, Touched};

use super::{NOT_ASKED, NoNames};
use crate::{files, wiring};

/// Files of a folder that are looked into, and bytes of each.
const MOST_FILES: usize = 100;
const MOST_BYTES: u64 = 256 << 20;
/// Lines in which a dump of etcd must show a resource.
const LINES: usize = 1000;

/// A resource in a dump.
struct Item {
    key: Key,
    value: Value,
    place: DumpSection,
}

/// Where it stands.
enum DumpSection {
    /// Under this pointer of the document; that of the second, within the value, is not part of it.
    Document(String, &'static str),
    Line(u32),
}

/// The format of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    EtcdJson,
    EtcdLines,
    Adc,
}

/// The dumps that a path names, or a folder holds.
pub fn find(path: Option<&Path>) -> Vec<PathBuf> {
    let Some(path) = path else { return Vec::new() };
    let is_dump = |path: &PathBuf| form(path).is_some();
    if path.is_file() {
        return Some(path.to_owned()).filter(is_dump).into_iter().collect();
    }
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let mut all: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).take(MOST_FILES).collect();
    all.sort();
    all.retain(is_dump);
    all
}

/// Recognises a dump by its first line or its name. `None` for other files, and for those that a start reads.
fn form(path: &Path) -> Option<Form> {
    let name = path.file_name()?.to_string_lossy();
    let extension = path.extension()?.to_string_lossy().into_owned();
    let reads = ["yaml", "yml", "json", "txt", "dump", "etcd"].contains(&extension.as_str());
    let started = ["config.yaml", "config-default.yaml", "apisix.yaml", "apisix.json"].contains(&&*name);
    if !reads || started || std::fs::metadata(path).ok()?.len() > MOST_BYTES {
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    if first.starts_with('/') && text.lines().take(LINES).any(|line| key_of(line.trim()).is_some()) {
        return Some(Form::EtcdLines);
    }
    if first.starts_with('{') && text.contains("\"kvs\"") {
        return Some(Form::EtcdJson);
    }
    let is_adc = name == "adc.yaml" || name == "adc.yml" || name == "adc.json";
    is_adc.then_some(Form::Adc)
}

/// The resource under a key of etcd, with any prefix.
fn key_of(path: &str) -> Option<Key> {
    path.match_indices('/').find_map(|(at, _)| Key::parse(&path[..at], path))
}

/// How many resources there are, and what is to be said of them.
///
/// # Errors
/// A plugin's schema that does not compile, or TLS settings that cannot be used.
pub fn check(
    path: &Path,
    boot: &Boot,
    folders: &Arc<Folders>,
    analyses: bool,
) -> anyhow::Result<(usize, Vec<Diagnostic>)> {
    let name = path.display().to_string();
    let text = match files::read(path) {
        Ok(text) => text,
        Err(diagnostics) => return Ok((0, diagnostics)),
    };
    let source = Source { file: &name, text: &text };
    let mut found = Vec::new();
    let form = form(path);
    let (document, mut items) = match form {
        Some(Form::EtcdLines) => (Document::default(), lines(&source, &mut found)),
        Some(form) => {
            let document = match yaml::parse(&text, Variables::Keep) {
                Ok(document) => document,
                Err(error) => return Ok((0, vec![source.syntax(error)])),
            };
            let items = match form {
                Form::Adc => adc(&document.value, &source, &document, &mut found),
                _ => kvs(&document.value, &source, &document, &mut found),
            };
            (document, items)
        }
        None => return Ok((0, Vec::new())),
    };
    let diagnostic = |severity, item: &Item, invalid: Invalid| match &item.place {
        DumpSection::Line(line) => source.at(severity, Position { line: *line, column: 1 }, invalid),
        DumpSection::Document(pointer, without) => {
            let rest = invalid.pointer.strip_prefix(without).unwrap_or(&invalid.pointer).to_owned();
            let invalid = invalid.at(format!("{pointer}{rest}"));
            source.at(severity, document.nearest_position(&invalid.pointer), invalid)
        }
    };
    let catalog = wiring::checking(boot, folders)?;
    match form {
        Some(Form::EtcdLines | Form::EtcdJson) => decrypt(&mut items, boot, &*catalog, &name, &mut found)?,
        // Written by hand, as a file of resources is: most secrets in it are in the clear.
        _ => {
            let opener = wiring::opener(boot, &*catalog)?;
            for item in &mut items {
                if let Some(value) = opener.opened(&item.key, &item.value) {
                    item.value = value;
                }
            }
        }
    }
    let mut desired = Desired::default();
    for item in &items {
        match Resource::parse(item.key.kind, &item.key.id, &item.value) {
            Ok(resource) => {
                for invalid in model::gaps::ignored(item.key.kind, &item.value) {
                    found.push(diagnostic(Severity::Warning, item, named(item, invalid)));
                }
                let key = item.key.clone();
                desired.put(Arc::new(Entry::new(key, resource, 1, 1)));
            }
            Err(invalid) => found.push(diagnostic(Severity::Error, item, named(item, invalid))),
        }
    }
    let settings = wiring::compile_settings(boot, crate::tls::settings(boot)?);
    let mut compiler = Compiler::new(catalog.clone(), settings);
    let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 1);
    for one in compiled.rejected.iter().filter(|one| !one.invalid.reason.ends_with(NOT_ASKED)) {
        if let Some(item) = items.iter().find(|item| item.key == one.key) {
            found.push(diagnostic(Severity::Error, item, named(item, one.invalid.clone())));
        }
    }
    let by_key: HashMap<&Key, &Item> = items.iter().map(|item| (&item.key, item)).collect();
    for (key, invalid) in super::dangling(items.iter().map(|item| (&item.key, &item.value))) {
        let is_rejected = compiled.rejected.iter().any(|one| one.key == *key);
        if let Some(item) = by_key.get(key).filter(|_| !is_rejected) {
            found.push(diagnostic(Severity::Error, item, named(item, invalid)));
        }
    }
    // With items left out, the analysis would find that others are unused.
    if analyses && !found.iter().any(|one| one.severity == Severity::Error) {
        let analysis = crate::analysis::of(&desired, boot, &catalog);
        for Finding { code, key, invalid } in &analysis.findings {
            // Secrets were decrypted above, and fields without effect reported.
            let Some(item) = by_key.get(key).filter(|_| !matches!(code, Code::ClearSecret | Code::NoEffect))
            else {
                continue;
            };
            let mut invalid = named(item, invalid.clone());
            invalid.reason.push_str(&format!(" ({})", code.as_str()));
            found.push(diagnostic(Severity::Warning, item, invalid));
        }
        found.extend(analysis.more.iter().map(|(code, count)| {
            Diagnostic::new(Severity::Warning, &name, format!("and {count} more of {}", code.as_str()))
        }));
    }
    // Lines of a dump hold whole resources, secrets and all.
    found.iter_mut().for_each(|one| one.source = None);
    Ok((items.len(), found))
}

/// Decrypts what the cluster has encrypted, with the keyring of the boot file.
fn decrypt(
    items: &mut [Item],
    boot: &Boot,
    catalog: &dyn Catalog,
    file: &str,
    found: &mut Vec<Diagnostic>,
) -> anyhow::Result<()> {
    let opener = wiring::opener(boot, catalog)?;
    let mut sealed_still = items.iter_mut().filter_map(|item| opener.open(&item.key, &mut item.value));
    if let Some(first) = sealed_still.next() {
        let more = match sealed_still.count() {
            0 => String::new(),
            more => format!(", and so are secrets of {more} other resources"),
        };
        found.push(Diagnostic::new(
            Severity::Warning,
            file,
            format!(
                "{first} looks encrypted and no key of apisix.data_encryption.keyring decrypts it{more}: check the \
                 dump beside the config.yaml of its cluster"
            ),
        ));
    }
    Ok(())
}

/// Says which resource it is about: a line does not show it.
fn named(item: &Item, mut invalid: Invalid) -> Invalid {
    invalid.reason.insert_str(0, &format!("{}: ", item.key));
    invalid
}

/// `{"kvs": [{"key": base64, "value": base64}]}`
fn kvs(value: &Value, source: &Source<'_>, document: &Document, found: &mut Vec<Diagnostic>) -> Vec<Item> {
    let text = |value: Option<&Value>| String::from_utf8(BASE64_STANDARD.decode(value?.as_str()?).ok()?).ok();
    let all = value.get("kvs").and_then(Value::as_array).into_iter().flatten().enumerate();
    let mut items = Vec::new();
    for (at, pair) in all {
        let pointer = format!("/kvs/{at}");
        let (Some(path), Some(json)) = (text(pair.get("key")), text(pair.get("value"))) else {
            let invalid = Invalid::new("this is not a key and a value in base64").at(pointer.as_str());
            found.push(source.invalid(document, invalid));
            continue;
        };
        let position = document.nearest_position(&pointer);
        items.extend(pair_of(&path, &json, position.line, source, found));
    }
    items
}

/// A key and, on the next line, its value.
fn lines(source: &Source<'_>, found: &mut Vec<Diagnostic>) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rest = source.text.lines().zip(1u32..).filter(|(line, _)| !line.trim().is_empty()).peekable();
    while let Some((path, _)) = rest.next() {
        // A folder has no value; the next line is a key again.
        let Some((json, line)) = rest.next_if(|(line, _)| !line.starts_with('/')) else { continue };
        items.extend(pair_of(path.trim(), json, line, source, found));
    }
    items
}

fn pair_of(
    path: &str,
    json: &str,
    line: u32,
    source: &Source<'_>,
    found: &mut Vec<Diagnostic>,
) -> Option<Item> {
    let position = Position { line, column: 1 };
    // APISIX keeps more there than resources: nodes, its list of plugins, markers of folders.
    let key = key_of(path)?;
    if json == "init_dir" {
        return None;
    }
    match serde_json::from_str(json) {
        Ok(value) => Some(Item { key, value, place: DumpSection::Line(line) }),
        Err(error) => {
            let invalid = Invalid::new(format!("{key}: the value is not JSON: {error}"));
            found.push(source.at(Severity::Error, position, invalid));
            None
        }
    }
}

/// The file of ADC: services with their routes, consumers with their credentials, ssls, and maps of plugins.
fn adc(value: &Value, source: &Source<'_>, document: &Document, found: &mut Vec<Diagnostic>) -> Vec<Item> {
    const KNOWN: [&str; 6] =
        ["services", "ssls", "consumers", "consumer_groups", "global_rules", "plugin_metadata"];
    let mut items = Vec::new();
    let Some(sections) = value.as_object() else {
        found.push(source.invalid(document, Invalid::new("a file of ADC must be a map of sections")));
        return items;
    };
    for name in sections.keys().filter(|name| !KNOWN.contains(&name.as_str()) && !name.starts_with('$')) {
        let invalid = Invalid::unknown_key(name, name, KNOWN.into_iter());
        found.push(source.warning(document, invalid));
    }
    let mut add = |kind, id: String, value: Value, pointer: String, without| {
        items.push(Item { key: Key::new(kind, id), value, place: DumpSection::Document(pointer, without) });
    };
    let list = |name: &str| sections.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (at, service) in list("services").iter().enumerate() {
        let (id, pointer) = (format!("s{at}"), format!("/services/{at}"));
        for name in ["path_prefix", "strip_path_prefix"] {
            if service.get(name).is_some() {
                let invalid = Invalid::new(format!("{name} has no effect: it is of API7, not of APISIX"));
                found.push(source.warning(document, invalid.at(format!("{pointer}/{name}"))));
            }
        }
        let inside = ["routes", "stream_routes", "upstreams", "path_prefix", "strip_path_prefix"];
        add(Kind::Service, id.clone(), plain(service, &inside), pointer.clone(), "");
        for (name, kind) in [("routes", Kind::Route), ("stream_routes", Kind::StreamRoute)] {
            let all = service.get(name).and_then(Value::as_array).into_iter().flatten();
            for (index, route) in all.enumerate() {
                let mut value = plain(route, &[]);
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("service_id".to_owned(), json!(id));
                }
                add(kind, format!("{id}r{index}"), value, format!("{pointer}/{name}/{index}"), "");
            }
        }
    }
    for (at, ssl) in list("ssls").iter().enumerate() {
        let mut value = plain(ssl, &["certificates"]);
        let pairs = ssl.get("certificates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let part =
            |name: &str| -> Vec<Value> { pairs.iter().filter_map(|pair| pair.get(name).cloned()).collect() };
        let (certs, keys) = (part("certificate"), part("key"));
        if let (Some(fields), Some((cert, certs)), Some((key, keys))) =
            (value.as_object_mut(), certs.split_first(), keys.split_first())
        {
            fields.insert("cert".to_owned(), cert.clone());
            fields.insert("key".to_owned(), key.clone());
            if !certs.is_empty() {
                fields.insert("certs".to_owned(), json!(certs));
                fields.insert("keys".to_owned(), json!(keys));
            }
        }
        add(Kind::Ssl, format!("c{at}"), value, format!("/ssls/{at}"), "");
    }
    for (at, consumer) in list("consumers").iter().enumerate() {
        let (name, pointer) = (text(consumer, "username"), format!("/consumers/{at}"));
        add(Kind::Consumer, name.clone(), plain(consumer, &["credentials"]), pointer.clone(), "");
        let credentials = consumer.get("credentials").and_then(Value::as_array).into_iter().flatten();
        for (index, credential) in credentials.enumerate() {
            let mut value = plain(credential, &["type", "config"]);
            let plugin = text(credential, "type");
            let config = credential.get("config").cloned().unwrap_or_else(|| json!({}));
            if let Some(fields) = value.as_object_mut() {
                fields.insert("plugins".to_owned(), json!({ plugin: config }));
            }
            let id = Key::credential(&name, &format!("c{index}")).id;
            add(Kind::Credential, id, value, format!("{pointer}/credentials/{index}"), "");
        }
    }
    for (at, group) in list("consumer_groups").iter().enumerate() {
        let value = plain(group, &["consumers"]);
        add(Kind::ConsumerGroup, format!("g{at}"), value, format!("/consumer_groups/{at}"), "");
    }
    let map = |name: &str| sections.get(name).and_then(Value::as_object).into_iter().flatten();
    for (plugin, config) in map("global_rules") {
        let value = json!({"plugins": { plugin: config }});
        add(Kind::GlobalRule, plugin.clone(), value, "/global_rules".to_owned(), "/plugins");
    }
    for (plugin, config) in map("plugin_metadata") {
        let pointer = format!("/plugin_metadata/{plugin}");
        add(Kind::PluginMetadata, plugin.clone(), config.clone(), pointer, "");
    }
    items
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A resource without what is ADC's own.
fn plain(value: &Value, without: &[&str]) -> Value {
    let Some(fields) = value.as_object() else { return value.clone() };
    let mut all = Map::new();
    for (name, field) in fields {
        let name = match name.as_str() {
            name if without.contains(&name) || name == "id" => continue,
            "description" => "desc",
            name => name,
        };
        let field = match name {
            "upstream" => plain(field, &[]),
            _ => field.clone(),
        };
        all.insert(name.to_owned(), field);
    }
    Value::Object(all)
}
