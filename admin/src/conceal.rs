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
