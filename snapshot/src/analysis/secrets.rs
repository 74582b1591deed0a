//! Secrets in clear text that could be references or encrypted.

use std::collections::HashMap;

use model::invalid::push_pointer;
use model::{Invalid, Key, Kind, Resource};
use sdk::catalog::Subsystem;
use serde_json::Value;

use super::{Analysis, Code, Input};

/// The secret fields of a plugin's settings: on routes and the like, on consumers, and in metadata.
type Fields = [Vec<String>; 3];

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    // An encrypting store holds no secret in clear text.
    if of.encrypts {
        return;
    }
    let mut known: HashMap<String, Fields> = HashMap::new();
    for entry in of.desired.iter() {
        let key = &entry.key;
        if let Resource::PluginMetadata(metadata) = entry.resource() {
            let fields = known.entry(key.id.clone()).or_insert_with(|| fields(of, &key.id));
            let value = Value::Object(metadata.value.clone());
            report(key, &value, &fields[2], "", found);
        }
        let at = usize::from(matches!(key.kind, Kind::Consumer | Kind::Credential));
        for (name, config) in entry.resource().plugins().into_iter().flatten() {
            if !known.contains_key(name) {
                known.insert(name.clone(), fields(of, name));
            }
            let mut pointer = String::from("/plugins");
            push_pointer(&mut pointer, name);
            report(key, config, &known[name][at], &pointer, found);
        }
        keys(key, entry.resource(), found);
    }
}

fn fields(of: Input<'_>, plugin: &str) -> Fields {
    let facts = [Subsystem::Http, Subsystem::Stream].map(|subsystem| of.catalog.facts(subsystem, plugin));
    let mut fields = Fields::default();
    for facts in facts.into_iter().flatten() {
        let on_consumers = facts.consumer_schema.as_ref().unwrap_or(&facts.schema);
        for (at, schema) in
            [Some(&facts.schema), Some(on_consumers), facts.metadata_schema.as_ref()].into_iter().enumerate()
        {
            let secret = schema.and_then(|schema| schema.get("encrypt_fields")?.as_array());
            let texts = secret.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
            fields[at].extend(texts);
        }
    }
    fields
}

fn report(key: &Key, config: &Value, fields: &[String], pointer: &str, found: &mut Analysis) {
    for field in fields {
        walk(config, &field.split('.').collect::<Vec<_>>(), pointer.to_owned(), &mut |pointer| {
            let invalid = Invalid::new("this secret is written in the clear").at(pointer).hint(
                "write `$env://NAME` or `$secret://MANAGER/ID/KEY` in its place, or `${{NAME}}` in a file; a store of \
                 Sluice encrypts it with apisix.data_encryption",
            );
            found.add(Code::ClearSecret, key, invalid);
        });
    }
}

/// Calls `see` for every string under a path that is not a reference.
fn walk(value: &Value, path: &[&str], pointer: String, see: &mut dyn FnMut(String)) {
    match (value, path) {
        (Value::Array(items), path) => {
            for (at, item) in items.iter().enumerate() {
                walk(item, path, format!("{pointer}/{at}"), see);
            }
        }
        (Value::String(text), []) if !text.is_empty() && !text.starts_with('$') => see(pointer),
        (Value::Object(fields), []) => {
            for (name, field) in fields {
                let mut pointer = pointer.clone();
                push_pointer(&mut pointer, name);
                walk(field, path, pointer, see);
            }
        }
        (Value::Object(fields), [name, rest @ ..]) => {
            if let Some(field) = fields.get(*name) {
                let mut pointer = pointer;
                push_pointer(&mut pointer, name);
                walk(field, rest, pointer, see);
            }
        }
        _ => {}
    }
}

/// Reports private keys of certificates in clear text.
fn keys(key: &Key, resource: &Resource, found: &mut Analysis) {
    let mut report = |text: &str, pointer: &str| {
        if text.trim_start().starts_with("---") {
            let invalid = Invalid::new("this private key is written in the clear")
                .at(pointer)
                .hint("write `$env://NAME` or `$secret://MANAGER/ID/KEY` in its place");
            found.add(Code::ClearSecret, key, invalid);
        }
    };
    if let Resource::Ssl(ssl) = resource {
        ssl.pairs.iter().take(1).for_each(|pair| report(&pair.key, "/key"));
        for (at, pair) in ssl.pairs.iter().skip(1).enumerate() {
            report(&pair.key, &format!("/keys/{at}"));
        }
    }
    let tls = resource.upstream().and_then(|upstream| upstream.tls.as_ref());
    if let Some(text) = tls.and_then(|tls| tls.client_key.as_ref()) {
        let pointer = match resource {
            Resource::Upstream(_) => "/tls/client_key",
            _ => "/upstream/tls/client_key",
        };
        report(text, pointer);
    }
}
