//! `sluice apply`: replaces all resources by those of a file, or with `--dry-run` shows what would change.
//!
//! The whole file is checked first. The current resources are read from the store, or from the Admin API of the
//! process that has it open; the change is one transaction of the Admin API.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use model::boot::Provider;
use model::{Key, private_keys};
use serde_json::Value;

use super::export::{self, StoredResources, admin_of};
use super::{Act, of_instance, send};
use crate::cli::Files;
use crate::{check, etcd, say, yaml};

/// Fields that a store adds, which a file need not have.
const TIMES: [&str; 2] = ["create_time", "update_time"];

/// False if the files are wrong.
///
/// # Errors
/// The Admin API does not answer, or refuses the request.
pub fn apply(files: &Files, file: &Path, dry: bool, confirm: Option<&str>) -> anyhow::Result<bool> {
    let act = if dry { Act::Ask } else { Act::Change };
    let Some(found) = of_instance(files, act)? else { return Ok(false) };
    if matches!(found.boot.provider, Provider::Yaml | Provider::Json) {
        let file = found.resources.unwrap_or_default();
        bail!("the resources are in {}: change that file", file.display());
    }
    // As a start checks such a file, including its references.
    if !check::resources(file, &found)? {
        return Ok(false);
    }
    let Some(wanted) = etcd::source(&found, file)? else { return Ok(false) };
    let there = export::held(&found)?;
    // The values of variables and nothing else: the server replaces none.
    let body = Value::Object(export::sections(&wanted)).to_string();
    if body.len() > admin::MAX_BODY {
        bail!(
            "the resources come to {} bytes of JSON, and the Admin API takes {} in one document",
            body.len(),
            admin::MAX_BODY
        );
    }
    let changes = changes(&there, &wanted.items);
    if !there.concealed.is_empty() {
        let names = yaml::names(&there.concealed);
        say::out(format_args!(
            "not compared: the private keys of {names}, which the Admin API does not show"
        ));
    }
    changes.iter().for_each(say::out);
    let count = |word: &str| changes.iter().filter(|change| change.starts_with(word)).count();
    let summary =
        format!("{} created, {} changed, {} deleted", count("create "), count("change "), count("delete "));
    if dry {
        say::out(format_args!("would be: {summary}"));
        return Ok(true);
    }
    if changes.is_empty() && there.concealed.is_empty() {
        say::out("nothing differs");
        return Ok(true);
    }
    let (address, key) = admin_of(&found)?;
    // Each file is applied, also one that was applied before something else changed.
    let digest = format!("{}-{}", std::process::id(), control::store::unix_ms());
    let mut headers = vec![("X-Digest", digest.as_str()), ("Content-Type", "application/json")];
    headers.extend(confirm.map(|confirm| ("X-Sluice-Confirm", confirm)));
    let (status, body) = send(address, "PUT", "/apisix/admin/configs", key.as_deref(), &headers, &body)
        .with_context(|| format!("no gateway answers on its Admin API, {address}"))?;
    if status != 202 {
        let answer: Value = serde_json::from_str(&body).unwrap_or_default();
        bail!("{}", answer.get("error_msg").and_then(Value::as_str).unwrap_or(&body));
    }
    say::out(summary);
    if let Some(confirm) = confirm {
        let within = confirm.split(';').next().unwrap_or_default();
        say::out(format_args!("undone in {within} unless confirmed: sluice confirm"));
    }
    Ok(true)
}

/// A line for each resource that differs, with the fields of those that change.
fn changes(there: &StoredResources, wanted: &[(Key, Value)]) -> Vec<String> {
    let by_key = |items: &[(Key, Value)]| -> BTreeMap<Key, Value> {
        items.iter().map(|(key, value)| (key.clone(), plain(value))).collect()
    };
    let (concealed, there, mut wanted) = (&there.concealed, by_key(&there.items), by_key(wanted));
    for key in concealed {
        if let Some(value) = wanted.get_mut(key) {
            private_keys::take_out(key.kind, value);
        }
    }
    let mut lines = Vec::new();
    for (key, value) in &wanted {
        match there.get(key) {
            None => lines.push(format!("create {key}")),
            Some(before) if before != value => lines.push(format!("change {key}: {}", fields(before, value))),
            Some(_) => {}
        }
    }
    lines.extend(there.keys().filter(|key| !wanted.contains_key(key)).map(|key| format!("delete {key}")));
    lines
}

fn plain(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, _| name != "id" && !TIMES.contains(&name.as_str()));
    }
    value
}

/// The names of what differs. No values: there may be secrets among them.
fn fields(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        return "all of it".to_owned();
    };
    let mut names: Vec<&str> = Vec::new();
    for name in before.keys().chain(after.keys()) {
        if before.get(name) != after.get(name) && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use model::Kind;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_is_named_and_no_more() {
        let item = |id: &str, value: Value| (Key::new(Kind::Route, id), value);
        let items = vec![
            item("1", json!({"id": "1", "uri": "/a", "create_time": 5})),
            item("2", json!({"uri": "/b", "desc": "secret"})),
            item("3", json!({"uri": "/c"})),
            (Key::new(Kind::Ssl, "1"), json!({"cert": "a"})),
            (Key::new(Kind::Ssl, "2"), json!({"cert": "a"})),
        ];
        let concealed = vec![Key::new(Kind::Ssl, "1"), Key::new(Kind::Ssl, "2")];
        let there = StoredResources { items, concealed, ..StoredResources::default() };
        let wanted = [
            item("1", json!({"id": 1, "uri": "/a"})),
            item("2", json!({"uri": "/b", "status": 0})),
            item("4", json!({"uri": "/d"})),
            (Key::new(Kind::Ssl, "1"), json!({"cert": "a", "key": "not compared"})),
            (Key::new(Kind::Ssl, "2"), json!({"cert": "b", "key": "not compared"})),
        ];
        let listed = changes(&there, &wanted);
        assert_eq!(
            listed,
            ["change routes/2: desc, status", "create routes/4", "change ssls/2: cert", "delete routes/3"]
        );
    }
}
