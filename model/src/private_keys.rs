//! Where private keys stand in resources.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::Kind;

/// In the upstreams that a traffic-split has of its own.
const SPLIT: &str = "plugins.traffic-split.rules.weighted_upstreams.upstream.tls.client_key";

/// The places of private keys in resources of a kind: names with dots between them, which lead through every
/// item of a list. At such a place there is a text or a list of texts.
pub fn places(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Ssl => &["key", "keys"],
        Kind::Upstream => &["tls.client_key"],
        Kind::Route | Kind::Service | Kind::StreamRoute => &["upstream.tls.client_key", SPLIT],
        Kind::GlobalRule | Kind::PluginConfig | Kind::ConsumerGroup | Kind::Consumer | Kind::Credential => {
            &[SPLIT]
        }
        Kind::PluginMetadata | Kind::Secret | Kind::Proto | Kind::CostDecoration | Kind::Script => &[],
    }
}

/// Whether a private key stands in a resource.
pub fn stand_in(kind: Kind, value: &Value) -> bool {
    any(kind, value, &|fields, name| fields.contains_key(name))
}

/// Whether a private key was taken out of a resource: its certificate is there without it.
pub fn are_missing(kind: Kind, value: &Value) -> bool {
    any(kind, value, &|fields, name| fields.contains_key(certificate(name)) && !fields.contains_key(name))
}

/// Takes the private keys out of a resource.
pub fn take_out(kind: Kind, value: &mut Value) {
    for place in places(kind) {
        each_mut(value, place, &mut |fields, name| _ = fields.shift_remove(name));
    }
}

/// Gives each certificate that lacks its private key the one that this certificate has in `before`, an earlier
/// form of the resource. Other certificates stay without.
pub fn put_back(kind: Kind, value: &mut Value, before: &Value) {
    let mut known: HashMap<&str, &Value> = HashMap::new();
    for place in places(kind) {
        each(before, place, &mut |fields, name| match (fields.get(certificate(name)), fields.get(name)) {
            (Some(Value::String(text)), Some(key)) => _ = known.insert(text, key),
            (Some(Value::Array(texts)), Some(Value::Array(keys))) => {
                let texts = texts.iter().filter_map(Value::as_str);
                known.extend(texts.zip(keys));
            }
            _ => {}
        });
    }
    let key_of = |certificate: &Value| known.get(certificate.as_str()?).map(|key| (*key).clone());
    for place in places(kind) {
        each_mut(value, place, &mut |fields, name| {
            let key = match fields.get(certificate(name)) {
                Some(Value::Array(all)) => {
                    all.iter().map(key_of).collect::<Option<Vec<_>>>().map(Value::Array)
                }
                Some(one) => key_of(one),
                None => None,
            };
            if let Some(key) = key {
                fields.entry(name).or_insert(key);
            }
        });
    }
}

/// The field with the certificate of a private key, beside it.
fn certificate(name: &str) -> &'static str {
    match name {
        "key" => "cert",
        "keys" => "certs",
        _ => "client_cert",
    }
}

/// Whether `is` holds for one of the objects that have the last name of a place, or could have it.
fn any(kind: Kind, value: &Value, is: &dyn Fn(&Map<String, Value>, &str) -> bool) -> bool {
    let mut found = false;
    for place in places(kind) {
        each(value, place, &mut |fields, name| found |= is(fields, name));
    }
    found
}

/// Calls `look` with each object that has the last name of a place, or could have it, and that name.
fn each<'v>(value: &'v Value, place: &str, look: &mut dyn FnMut(&'v Map<String, Value>, &str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each(item, place, look)),
        Value::Object(fields) => match place.split_once('.') {
            Some((name, rest)) => {
                if let Some(field) = fields.get(name) {
                    each(field, rest, look);
                }
            }
            None => look(fields, place),
        },
        _ => {}
    }
}

/// As [`each`], with objects that may be changed.
fn each_mut(value: &mut Value, place: &str, change: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_mut(item, place, change)),
        Value::Object(fields) => match place.split_once('.') {
            Some((name, rest)) => {
                if let Some(field) = fields.get_mut(name) {
                    each_mut(field, rest, change);
                }
            }
            None => change(fields, place),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_found_and_taken_out() {
        let tls = json!({"client_cert": "c", "client_key": "k"});
        let split =
            json!({"rules": [{}, {"weighted_upstreams": [{"weight": 1}, {"upstream": {"tls": tls}}]}]});
        for (kind, mut value) in [
            (Kind::Ssl, json!({"cert": "c", "key": "k"})),
            (Kind::Ssl, json!({"certs": ["c"], "keys": ["k"]})),
            (Kind::Upstream, json!({"tls": tls})),
            (Kind::Service, json!({"upstream": {"tls": tls}})),
            (Kind::GlobalRule, json!({"plugins": {"traffic-split": split}})),
        ] {
            assert!(stand_in(kind, &value) && !are_missing(kind, &value), "{value}");
            let before = value.clone();
            take_out(kind, &mut value);
            assert!(!stand_in(kind, &value) && are_missing(kind, &value), "{value}");
            let text = value.to_string();
            assert!(!text.contains("\"k\"") && text.contains("\"c\""), "{text}");
            let mut again = value.clone();
            put_back(kind, &mut again, &value);
            assert_eq!(again, value, "there is no key to put back");
            put_back(kind, &mut again, &before);
            assert_eq!(again, before);
        }
        let plain = json!({"uri": "/", "upstream": {"tls": {"verify": true}}, "plugins": []});
        assert!(!stand_in(Kind::Route, &plain) && !are_missing(Kind::Route, &plain));
    }

    #[test]
    fn a_key_comes_back_to_its_own_certificate_alone() {
        let before = json!({"cert": "c1", "key": "k1", "certs": ["c2", "c3"], "keys": ["k2", "k3"]});
        for (value, expected) in [
            (
                json!({"cert": "c3", "certs": ["c1"]}),
                json!({"cert": "c3", "key": "k3", "certs": ["c1"], "keys": ["k1"]}),
            ),
            (json!({"cert": "c1", "key": "new"}), json!({"cert": "c1", "key": "new"})),
            (
                json!({"cert": "other", "certs": ["c2", "other"]}),
                json!({"cert": "other", "certs": ["c2", "other"]}),
            ),
            (json!({"cert": "c1", "certs": 7}), json!({"cert": "c1", "key": "k1", "certs": 7})),
            (json!({"snis": ["a"]}), json!({"snis": ["a"]})),
        ] {
            let mut value = value;
            put_back(Kind::Ssl, &mut value, &before);
            assert_eq!(value, expected);
        }
    }
}
