//! Changes of the query that the upstream gets: `query` of proxy-rewrite, an option of ours.
//!
//! The order is that of Kong's request-transformer: `remove`, `rename`, `replace`, `set`, `default`, `add`. Arguments that
//! no change concerns stay byte by byte.

use std::collections::BTreeMap;

use percent_encoding::percent_encode;
use sdk::Exchange;
use sdk::template::Template;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::form::UNRESERVED;
use crate::query::{decode, split};

/// The settings.
#[derive(Debug, Deserialize)]
pub struct QuerySettings {
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    rename: BTreeMap<String, String>,
    #[serde(default)]
    replace: BTreeMap<String, String>,
    #[serde(default)]
    set: BTreeMap<String, String>,
    #[serde(default)]
    default: BTreeMap<String, String>,
    #[serde(default)]
    add: BTreeMap<String, String>,
}

/// The changes, in their order.
pub(super) struct QueryEdits(Box<[(String, Change)]>);

enum Change {
    Remove,
    /// The new name, encoded.
    Rename(Vec<u8>),
    /// Only where the argument is present.
    Replace(Template),
    Set(Template),
    /// Only where the argument is absent.
    Default(Template),
    Add(Template),
}

/// The longest query that is made, in bytes: a template may repeat long headers.
const MAX_QUERY: usize = 64 << 10;

pub(super) fn schema() -> Value {
    let name = json!({"type": "string", "minLength": 1, "maxLength": 256});
    let map = json!({
        "type": "object", "minProperties": 1, "maxProperties": 64, "propertyNames": name,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    });
    json!({
        "type": "object", "minProperties": 1, "additionalProperties": false,
        "properties": {
            "remove": {"type": "array", "minItems": 1, "maxItems": 64, "items": name},
            "rename": {
                "type": "object", "minProperties": 1, "maxProperties": 64, "propertyNames": name,
                "additionalProperties": name,
            },
            "replace": map, "set": map, "default": map, "add": map,
        },
    })
}

impl QueryEdits {
    pub(super) fn new(settings: QuerySettings) -> QueryEdits {
        let mut edits: Vec<(String, Change)> = Vec::new();
        edits.extend(settings.remove.into_iter().map(|name| (name, Change::Remove)));
        edits.extend(settings.rename.into_iter().map(|(old, new)| {
            let mut encoded = Vec::new();
            encode(new.as_bytes(), &mut encoded);
            (old, Change::Rename(encoded))
        }));
        let mut values = |values: BTreeMap<String, String>, change: fn(Template) -> Change| {
            edits.extend(values.into_iter().map(|(name, value)| (name, change(Template::parse(&value)))));
        };
        values(settings.replace, Change::Replace);
        values(settings.set, Change::Set);
        values(settings.default, Change::Default);
        values(settings.add, Change::Add);
        QueryEdits(edits.into())
    }

    /// The query with all changes; `None` if it became too long.
    pub(super) fn apply(&self, x: &Exchange<'_>, query: &[u8]) -> Option<Vec<u8>> {
        let mut query = query.to_vec();
        for (name, change) in &self.0 {
            query = change.apply(x, name.as_bytes(), &query);
            if query.len() > MAX_QUERY {
                return None;
            }
        }
        Some(query)
    }
}

impl Change {
    fn apply(&self, x: &Exchange<'_>, name: &[u8], query: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(query.len());
        let mut is_present = false;
        for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
            let (key, value) = split(pair);
            let concerns = *decode(key) == *name;
            let was_present = is_present;
            is_present |= concerns;
            match self {
                _ if !concerns => push(&mut out, pair),
                Change::Remove | Change::Set(_) => {}
                Change::Rename(new) => {
                    push(&mut out, new);
                    if let Some(value) = value {
                        out.push(b'=');
                        out.extend_from_slice(value);
                    }
                }
                // One value takes the place of all.
                Change::Replace(_) if was_present => {}
                Change::Replace(value) => argument(x, name, value, &mut out),
                Change::Default(_) | Change::Add(_) => push(&mut out, pair),
            }
        }
        match self {
            Change::Set(value) | Change::Add(value) => argument(x, name, value, &mut out),
            Change::Default(value) if !is_present => argument(x, name, value, &mut out),
            _ => {}
        }
        out
    }
}

fn push(out: &mut Vec<u8>, pair: &[u8]) {
    if !out.is_empty() {
        out.push(b'&');
    }
    out.extend_from_slice(pair);
}

fn argument(x: &Exchange<'_>, name: &[u8], value: &Template, out: &mut Vec<u8>) {
    let mut rendered = Vec::new();
    value.render(x, &mut rendered);
    push(out, b"");
    encode(name, out);
    out.push(b'=');
    encode(&rendered, out);
}

/// Percent-encodes all but the characters that never need it (RFC 3986 section 2.3).
fn encode(text: &[u8], out: &mut Vec<u8>) {
    out.extend(percent_encode(text, UNRESERVED).flat_map(str::bytes));
}

#[cfg(test)]
mod tests {
    use sdk::testing::Probe;

    use super::*;

    fn changed(settings: Value, query: &str) -> String {
        let mut probe = Probe::request("GET", "/", &[("X-A", "a b&c=d")]);
        let edits = QueryEdits::new(serde_json::from_value(settings).unwrap());
        String::from_utf8(edits.apply(&probe.exchange(), query.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn arguments_are_changed_in_order() {
        for (settings, query, expected) in [
            (json!({"remove": ["a"]}), "a=1&b=%31&a&%61=2", "b=%31"),
            (json!({"rename": {"a": "c d"}}), "a=%31&b=2&a", "c%20d=%31&b=2&c%20d"),
            (json!({"replace": {"a": "$http_x_a", "x": "1"}}), "a=1&b=2&a=3", "a=a%20b%26c%3Dd&b=2"),
            (json!({"set": {"a": "1"}}), "a=2&b&a=3", "b&a=1"),
            (json!({"set": {"a": "1"}}), "", "a=1"),
            (json!({"default": {"a": "1", "b": "2"}}), "b=9", "b=9&a=1"),
            (json!({"add": {"a": "1"}}), "a=2", "a=2&a=1"),
            (json!({"remove": ["a"], "rename": {"b": "a"}, "add": {"a": "3"}}), "a=1&b=2", "a=2&a=3"),
            (json!({"default": {"a": "$http_absent"}}), "b=1", "b=1&a="),
        ] {
            assert_eq!(changed(settings.clone(), query), expected, "{settings} {query}");
        }
    }

    #[test]
    fn a_query_has_a_bound() {
        let mut probe = Probe::request("GET", "/", &[("X-A", &"x".repeat(30_000))]);
        let settings = json!({"add": {"a": "$http_x_a$http_x_a", "b": "$http_x_a"}});
        let edits = QueryEdits::new(serde_json::from_value(settings).unwrap());
        assert_eq!(edits.apply(&probe.exchange(), b""), None);
    }
}
