//! `sluice export`: the resources of a store as an `apisix.yaml` that loads again.
//!
//! A store that no process has open is read directly. Otherwise the Admin API of the process that has it open is
//! used, with the key that the same files give.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use control::store::{Embedded, Store, StoreError};
use model::boot::{Boot, Provider};
use model::{Key, Kind, private_keys};
use serde_json::{Map, Value};

use super::{Act, call, of_instance, reachable};
use crate::cli::Files;
use crate::files::Found;
use crate::yaml::{item, named, names, section};
use crate::{etcd, say, wiring};

/// Writes the resources to standard output, or to a file that only its owner may read: they hold
/// the keys of consumers. Private keys are left out `without_keys`. False if the files are wrong.
///
/// # Errors
/// No store, an Admin API that does not answer or does not show private keys, or a file that cannot be written.
pub fn export(files: &Files, output: Option<&Path>, without_keys: bool) -> anyhow::Result<bool> {
    let Some(found) = of_instance(files, Act::Ask)? else { return Ok(false) };
    if matches!(found.boot.provider, Provider::Yaml | Provider::Json) {
        let file = found.resources.unwrap_or_default();
        bail!("there is nothing to export: the resources are in {}", file.display());
    }
    let mut held = held(&found)?;
    if without_keys {
        held.take_out_keys();
    } else if !held.concealed.is_empty() {
        bail!(
            "a running gateway has the store open, and its Admin API shows no private keys: a copy would be without \
             those of {}, and not load again\n  help: `sluice backup` copies all of the store; --without-keys exports \
             the rest; for a file with the keys, stop the gateway first",
            names(&held.concealed)
        );
    }
    let mut text = yaml(&held);
    if !held.concealed.is_empty() {
        let lacking = format!("without the private keys of {}", names(&held.concealed));
        text.insert_str(0, &format!("# Written {lacking}.\n"));
        say::err(format_args!("warning: {lacking}"));
    }
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

/// The resources of a store.
#[derive(Debug, Default)]
pub struct StoredResources {
    pub items: Vec<(Key, Value)>,
    pub plugins: Option<Vec<String>>,
    /// Those of `items` that lack their private keys, which no API shows.
    pub concealed: Vec<Key>,
}

impl StoredResources {
    /// Leaves what the Admin API of a running gateway shows.
    fn take_out_keys(&mut self) {
        for (key, value) in &mut self.items {
            if private_keys::stand_in(key.kind, value) {
                private_keys::take_out(key.kind, value);
                self.concealed.push(key.clone());
            }
        }
    }
}

/// Reads the store of a configuration, through the Admin API if a running gateway has it open.
///
/// # Errors
/// No store, or an Admin API that does not answer.
pub fn held(found: &Found) -> anyhow::Result<StoredResources> {
    if found.boot.provider == Provider::Etcd {
        return etcd::held(found);
    }
    of_folder(&found.boot, &found.data).map(|(held, _)| held).or_else(|error| match error.downcast_ref() {
        Some(StoreError::Locked { .. }) => of_admin(found),
        _ => Err(error),
    })
}

/// Whether an embedded store is in a folder.
pub fn holds_store(data: &Path) -> bool {
    data.join("store.redb").exists()
}

/// Reads the embedded store in a folder; returns the result of [`control::store::Sealed::unopened`] too.
///
/// # Errors
/// No store, or one that another process has open.
pub fn of_folder(boot: &Boot, data: &Path) -> anyhow::Result<(StoredResources, Option<(String, usize)>)> {
    if !holds_store(data) {
        bail!(
            "there is no store in {}\n  help: name the configuration, or the folder with --data",
            data.display()
        );
    }
    let store = Embedded::open_with(data, wiring::history(boot))?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let store = wiring::sealed(boot, &*wiring::catalog(boot)?, Arc::new(store))?;
    Ok((runtime.block_on(of_store(&store))?, runtime.block_on(store.unopened())?))
}

/// Reads all resources of a store, with their secrets in the clear.
///
/// # Errors
/// Those of the store.
pub async fn of_store(store: &dyn Store) -> Result<StoredResources, StoreError> {
    let mut held = StoredResources { plugins: store.plugins().await?, ..StoredResources::default() };
    for kind in Kind::ALL {
        for row in store.rows(kind, "").await?.0 {
            match row.read() {
                Ok(value) => held.items.push((row.key, value)),
                Err(error) => {
                    say::err(format_args!("warning: {} is left out: the value is not JSON: {error}", row.key))
                }
            }
        }
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
fn of_admin(found: &Found) -> anyhow::Result<StoredResources> {
    let (address, key) = admin_of(found)?;
    let (status, body) =
        call(address, "GET", "/apisix/admin/configs", key.as_deref()).with_context(|| {
            format!("a running gateway has the store open, but its Admin API does not answer on {address}")
        })?;
    let document: Value = serde_json::from_str(&body).unwrap_or_default();
    if status != 200 {
        bail!(
            "the Admin API on {address} answers {status}: {}",
            document.get("error_msg").or_else(|| document.get("description")).unwrap_or(&document)
        );
    }
    of_document(&document)
}

/// Reads the resources from a document of the Admin API (`/apisix/admin/configs`).
fn of_document(document: &Value) -> anyhow::Result<StoredResources> {
    let section = |name: &str| document.get(name).and_then(Value::as_array);
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let plugins = section("plugins").map(|items| items.iter().filter_map(name).collect());
    let mut held = StoredResources { plugins, ..StoredResources::default() };
    for kind in Kind::ALL.into_iter().filter(|kind| kind.owner().is_none()) {
        for item in section(kind.collection()).into_iter().flatten() {
            let key =
                key_of(kind, item).with_context(|| format!("an item of {} has no id", kind.collection()))?;
            if private_keys::are_missing(key.kind, item) {
                held.concealed.push(key.clone());
            }
            held.items.push((key, item.clone()));
        }
    }
    Ok(held)
}

/// The key of an item of a section, in which what belongs to others stands among these.
fn key_of(kind: Kind, item: &Value) -> Option<Key> {
    let id = match item.get("id") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let owned = id.clone().map(|id| Key::new(kind, id).or_owned()).filter(|key| key.kind != kind);
    let username = item.get("username").and_then(Value::as_str).filter(|_| kind == Kind::Consumer);
    owned.or_else(|| Some(Key::new(kind, username.map(str::to_owned).or(id)?)))
}

/// The sections of a file or a document; what belongs to others stands among these.
pub fn sections(held: &StoredResources) -> Map<String, Value> {
    let mut sections = Map::new();
    if let Some(plugins) = &held.plugins {
        let items = plugins.iter().map(|name| Value::Object(Map::from_iter([named("name", name)])));
        sections.insert("plugins".to_owned(), items.collect());
    }
    for kind in Kind::ALL.into_iter().filter(|kind| kind.owner().is_none()) {
        let of_kind = held.items.iter().filter(|(key, _)| key.kind == kind || kind.owned() == Some(key.kind));
        let items: Vec<Value> = of_kind.map(|(key, value)| item(key, value)).collect();
        if !items.is_empty() {
            sections.insert(kind.collection().to_owned(), items.into());
        }
    }
    sections
}

/// The file: a section a kind, in the order of the kinds.
pub fn yaml(held: &StoredResources) -> String {
    let mut out = String::new();
    for (name, items) in &sections(held) {
        section(&mut out, name, items.as_array().map_or(&[], Vec::as_slice), &|_| Vec::new());
    }
    out.push_str("#END\n");
    out
}

#[cfg(test)]
mod tests {
    use model::Declarative;
    use model::declarative::Format;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn loaded(held: &StoredResources) -> Vec<(Key, Value)> {
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
        let held = StoredResources {
            items: items.clone(),
            plugins: Some(vec!["key-auth".to_owned()]),
            ..StoredResources::default()
        };
        assert_eq!(loaded(&held), items);
        assert_eq!(yaml(&StoredResources::default()), "#END\n");
    }

    #[test]
    fn a_document_is_taken_apart() {
        let held = of_document(&json!({
            "routes_conf_version": 7,
            "plugins": [{"name": "cors"}],
            "routes": [{"id": 5, "uri": "/"}],
            "consumers": [{"username": "jack"}, {"id": "jack/credentials/c1", "plugins": {}}],
            "ssls": [{"id": "1", "cert": "c"}, {"id": "2", "cert": "c", "key": "k"}],
        }))
        .unwrap();
        let keys: Vec<String> = held.items.iter().map(|(key, _)| key.to_string()).collect();
        let jack = Key::credential("jack", "c1").to_string();
        assert!(keys.contains(&jack) && keys.contains(&"consumers/jack".to_owned()), "{keys:?}");
        assert!(keys.contains(&"routes/5".to_owned()) && keys.len() == 5, "{keys:?}");
        assert_eq!(held.plugins, Some(vec!["cors".to_owned()]));
        assert_eq!(names(&held.concealed), "ssls/1");
        assert!(of_document(&json!({"routes": [{"uri": "/"}]})).is_err());
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
            let held = StoredResources { items: items.clone(), ..StoredResources::default() };
            prop_assert_eq!(loaded(&held), items);
        }
    }
}
