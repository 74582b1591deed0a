//! What no API gives out: private keys.

use std::sync::Arc;

use control::store::Stored;
use model::Kind;
use serde_json::Value;

/// Takes private keys out of what is shown.
pub(crate) fn conceal(stored: &mut Stored) {
    let holds = |value: &Value| keys(stored.key.kind).1.iter().any(|name| value.get(*name).is_some());
    if stored.value.pointer(keys(stored.key.kind).0).is_some_and(holds) {
        conceal_in(stored.key.kind, Arc::make_mut(&mut stored.value));
    }
}

/// Takes the private keys out that are not encrypted: what was just written is shown as it is stored.
pub(crate) fn conceal_clear(stored: &mut Stored) {
    let is_clear = |value: &Value| match value {
        Value::String(text) => text.trim_start().starts_with("---"),
        Value::Array(items) => {
            items.iter().any(|item| item.as_str().is_some_and(|text| text.trim_start().starts_with("---")))
        }
        _ => false,
    };
    let (place, names) = keys(stored.key.kind);
    let written = stored.value.pointer(place);
    if written.is_some_and(|value| names.iter().any(|name| value.get(*name).is_some_and(is_clear))) {
        conceal(stored);
    }
}

/// Takes private keys out of a resource of this kind.
pub(crate) fn conceal_in(kind: Kind, value: &mut Value) {
    let (place, names) = keys(kind);
    if let Some(Value::Object(map)) = value.pointer_mut(place) {
        names.iter().for_each(|name| _ = map.shift_remove(*name));
    }
}

/// Where private keys stand, and their names.
fn keys(kind: Kind) -> (&'static str, &'static [&'static str]) {
    match kind {
        Kind::Ssl => ("", &["key", "keys"]),
        Kind::Upstream => ("/tls", &["client_key"]),
        Kind::Route | Kind::Service | Kind::StreamRoute => ("/upstream/tls", &["client_key"]),
        _ => ("", &[]),
    }
}

#[cfg(test)]
mod tests {
    use model::Key;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_encrypted_key_is_shown_to_who_wrote_it_and_a_clear_one_is_not() {
        let clear = "-----BEGIN PRIVATE KEY-----";
        for (value, shown) in [
            (json!({"key": "c2VhbGVk", "keys": ["c2VhbGVk"]}), true),
            (json!({"key": clear}), false),
            (json!({"key": "c2VhbGVk", "keys": ["c2VhbGVk", clear]}), false),
        ] {
            let key = Key::new(Kind::Ssl, "1");
            let mut stored = Stored { key, value: Arc::new(value), created: 1, modified: 1, expires: None };
            conceal_clear(&mut stored);
            assert_eq!(stored.value.get("key").is_some(), shown);
        }
    }

    #[test]
    fn no_key_is_left() {
        let tls = json!({"client_cert": "c", "client_key": "k"});
        for (kind, value) in [
            (Kind::Ssl, json!({"cert": "c", "key": "k", "keys": ["k"]})),
            (Kind::Upstream, json!({"tls": tls})),
            (Kind::Route, json!({"uri": "/", "upstream": {"tls": tls}})),
            (Kind::Service, json!({"upstream": {"tls": tls}})),
        ] {
            let key = Key::new(kind, "1");
            let mut stored = Stored { key, value: Arc::new(value), created: 1, modified: 1, expires: None };
            conceal(&mut stored);
            let text = stored.value.to_string();
            assert!(!text.contains("\"k\"") && (text.contains("\"c\"")), "{text}");
        }
    }
}
