//! `sluice export`: the resources of a store as an `apisix.yaml` that loads again.
//!
//! A store that no process holds is read as it is; one that is held is asked for through the
//! Admin API of whoever holds it, with the key that the same files give.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use control::store::{Embedded, Store, StoreError};
use model::boot::{Boot, Provider};
use model::{Key, Kind};
use serde_json::{Map, Value};

use super::{call, reachable, read};
use crate::cli::Files;
use crate::files::Found;
use crate::{etcd, say, wiring};

/// Writes the resources to standard output, or to a file that only its owner may read: they hold
/// the keys of consumers. False if the files are wrong.
///
/// # Errors
/// No store, nobody who gives what is in it, a file that cannot be written.
pub fn export(files: &Files, output: Option<&Path>) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    if matches!(found.boot.provider, Provider::Yaml | Provider::Json) {
        let file = found.resources.unwrap_or_default();
        bail!("there is nothing to export: the resources are in {}", file.display());
    }
    let held = held(&found)?;
    let text = yaml(&held);
    let Some(output) = output else {
        say::out(text.trim_end());
        return Ok(true);
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
        .open(output)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {} (it must be a new file)", output.display()))?;
    say::out(format_args!("{}: {} resources", output.display(), held.items.len()));
    Ok(true)
}

/// What a store holds.
#[derive(Debug, Default)]
pub struct Held {
    pub items: Vec<(Key, Value)>,
    pub plugins: Option<Vec<String>>,
}

/// What the store of a configuration holds.
///
/// # Errors
/// No store, or nobody who gives what is in it.
pub fn held(found: &Found) -> anyhow::Result<Held> {
    if found.boot.provider == Provider::Etcd {
        return etcd::held(found);
    }
    of_folder(&found.boot, &found.data).or_else(|error| match error.downcast_ref() {
        Some(StoreError::Locked { .. }) => of_admin(found),
        _ => Err(error),
    })
}

/// What the embedded store in a folder holds.
///
/// # Errors
/// No store, or one that another process has open.
pub fn of_folder(boot: &Boot, data: &Path) -> anyhow::Result<Held> {
    if !data.join("store.redb").exists() {
        bail!(
            "there is no store in {}\n  help: name the configuration, or the folder with --data",
            data.display()
        );
    }
    let store = Embedded::open_with(data, wiring::history(boot))?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let store = wiring::sealed(boot, &*wiring::catalog(boot)?, Arc::new(store))?;
    Ok(runtime.block_on(of_store(&store))?)
}

/// What a store holds, with its secrets in the clear.
///
/// # Errors
/// Those of the store.
pub async fn of_store(store: &dyn Store) -> Result<Held, StoreError> {
    let mut held = Held { plugins: store.plugins().await?, ..Held::default() };
    for kind in Kind::ALL {
        let (items, _) = store.list(kind, "").await?;
        held.items.extend(items.into_iter().map(|item| (item.key, Value::clone(&item.value))));
    }
    Ok(held)
}

/// Where the Admin API of a running instance is, and the key for it.
pub fn admin_of(found: &Found) -> anyhow::Result<(SocketAddr, Option<String>)> {
    let admin = &found.boot.admin;
    if !admin.enabled {
        bail!(
            "a running gateway has the store open and its Admin API is off: stop it first, or set apisix.enable_admin"
        );
    }
    if admin.tls.is_some() {
        bail!(
            "a running gateway has the store open and serves its Admin API over HTTPS, which this command does not \
             speak: stop it first, or ask the Admin API with curl"
        );
    }
    let key = match admin.keys.iter().find(|key| !key.key.is_empty()) {
        Some(key) => Some(key.key.clone()),
        None => std::fs::read_to_string(found.data.join("admin.key")).ok().map(|key| key.trim().to_owned()),
    };
    Ok((reachable(admin.listen), key))
}

/// Asks the process that holds the store.
fn of_admin(found: &Found) -> anyhow::Result<Held> {
    let (address, key) = admin_of(found)?;
    let list = |path: &str| -> anyhow::Result<Vec<Value>> {
        let path = format!("/apisix/admin/{path}");
        let (status, body) = call(address, "GET", &path, key.as_deref()).with_context(|| {
            format!("a running gateway has the store open, but its Admin API does not answer on {address}")
        })?;
        let value: Value = serde_json::from_str(&body).unwrap_or_default();
        match status {
            200 => {
                let items = value.get("list").or_else(|| value.pointer("/node/nodes"));
                Ok(items.and_then(Value::as_array).cloned().unwrap_or_default())
            }
            // A collection that does not exist until something is in it.
            404 => Ok(Vec::new()),
            _ => Err(anyhow!(
                "the Admin API on {address} answers {status}: {}",
                value.get("error_msg").or_else(|| value.get("description")).unwrap_or(&value)
            )),
        }
    };
    let mut held = Held::default();
    for kind in Kind::ALL {
        if kind.owner().is_some() {
            continue;
        }
        let items = match list(kind.collection()) {
            // Where streams are off, there is no such collection.
            Err(_) if kind == Kind::StreamRoute => Vec::new(),
            items => items?,
        };
        for item in items {
            let (key, value) =
                entry(kind, &item).with_context(|| format!("an item of {}", kind.collection()))?;
            let path = format!("{}/{}", kind.collection(), key.id);
            held.items.push((key, value));
            if let Some(owned) = kind.owned() {
                for item in list(&format!("{path}/{}", owned.collection()))? {
                    held.items.push(entry(owned, &item).with_context(|| format!("a {owned} of {path}"))?);
                }
            }
        }
    }
    Ok(held)
}

/// The key and the value of an item of a list.
fn entry(kind: Kind, item: &Value) -> Option<(Key, Value)> {
    let collection = kind.owner().unwrap_or(kind).collection();
    let path = item.get("key")?.as_str()?;
    let id = path.strip_prefix("/apisix/")?.strip_prefix(collection)?.strip_prefix('/')?;
    Some((Key::new(kind, id), item.get("value")?.clone()))
}

/// The file: a section a kind, in the order of the kinds; what belongs to others stands among these.
pub fn yaml(held: &Held) -> String {
    let mut out = String::new();
    if let Some(plugins) = &held.plugins {
        let items = plugins.iter().map(|name| Value::Object(Map::from_iter([named("name", name)])));
        section(&mut out, "plugins", items);
    }
    for kind in Kind::ALL.into_iter().filter(|kind| kind.owner().is_none()) {
        let of_kind = held.items.iter().filter(|(key, _)| key.kind == kind || kind.owned() == Some(key.kind));
        let items = of_kind.map(|(key, value)| match value {
            Value::Object(fields) => {
                let mut all = Map::new();
                if key.kind != Kind::Consumer {
                    all.extend([named("id", &key.id)]);
                }
                let rest = fields.iter().filter(|(name, _)| *name != "id");
                all.extend(rest.map(|(name, value)| (name.clone(), value.clone())));
                Value::Object(all)
            }
            other => other.clone(),
        });
        section(&mut out, kind.collection(), items);
    }
    out.push_str("#END\n");
    out
}

fn named(name: &str, text: &str) -> (String, Value) {
    (name.to_owned(), Value::from(text))
}

fn section(out: &mut String, name: &str, items: impl Iterator<Item = Value>) {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "{name}:");
    for item in items {
        out.push_str("  -");
        write(out, &item, 2);
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

/// A text in quotes, as JSON has it and YAML too. What could be a variable of the environment, and
/// what YAML wants escaped, is.
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

#[cfg(test)]
mod tests {
    use model::Declarative;
    use model::declarative::Format;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn loaded(held: &Held) -> Vec<(Key, Value)> {
        let text = yaml(held);
        let names = plugins::names();
        let set = |_: &str| Some("replaced".to_owned());
        let read = Declarative::parse("apisix.yaml", &text, Format::Yaml, &names, &set);
        let read = read.unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(read.diagnostics.is_empty(), "{:?}\n{text}", read.diagnostics);
        assert_eq!(read.plugins, held.plugins);
        read.items.into_iter().map(|item| (item.key, Value::clone(&item.value))).collect()
    }

    #[test]
    fn what_is_exported_loads_again() {
        let items = vec![
            (
                Key::new(Kind::Route, "1"),
                json!({"id": "1", "uri": "/a", "plugins": {"response-rewrite": {"body": "${{HOME}} $5\n\u{1}\u{85}ä𝄞"}},
                    "upstream": {"nodes": {"127.0.0.1:80": 1}}, "create_time": 1, "update_time": 2}),
            ),
            (Key::new(Kind::Route, "007"), json!({"id": "007", "uris": ["/b", "/c"], "plugins": {}})),
            (
                Key::new(Kind::Consumer, "jack"),
                json!({"username": "jack", "plugins": {"key-auth": {"key": "yes"}}}),
            ),
            (
                Key::credential("jack", "c1"),
                json!({"id": "jack/credentials/c1", "plugins": {"key-auth": {"key": "null"}}}),
            ),
            (
                Key::new(Kind::PluginMetadata, "limit-count"),
                json!({"id": "limit-count", "limit_header": "X"}),
            ),
        ];
        let held = Held { items: items.clone(), plugins: Some(vec!["key-auth".to_owned()]) };
        assert_eq!(loaded(&held), items);
        assert_eq!(yaml(&Held::default()), "#END\n");
    }

    #[test]
    fn an_item_of_a_list_has_its_key() {
        let item = json!({"key": "/apisix/consumers/jack/credentials/c1", "value": {"plugins": {}}});
        let (key, _) = entry(Kind::Credential, &item).unwrap();
        assert_eq!(key, Key::credential("jack", "c1"));
        assert!(entry(Kind::Route, &item).is_none());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1.0e9..1.0e9).prop_map(|number: f64| json!(number)),
            any::<String>().prop_map(Value::from),
            "(true|~|null|1e3|0x1|- a|a: b|#c|\\$\\{\\{A\\}\\}| .*|2020-01-01|)".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[a-z .:#$-]{0,6}", inner, 0..4)
                    .prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_comes_back(value in value()) {
            let metadata = json!({"id": "http-logger", "log_format": {"a": value}});
            let items = vec![(Key::new(Kind::PluginMetadata, "http-logger"), metadata)];
            let held = Held { items: items.clone(), plugins: None };
            prop_assert_eq!(loaded(&held), items);
        }
    }
}
