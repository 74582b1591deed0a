//! What no API gives out: private keys.

use std::sync::Arc;

use control::store::Stored;
use model::private_keys;

/// Takes private keys out of what is shown.
pub(crate) fn conceal(stored: &mut Stored) {
    if private_keys::stand_in(stored.key.kind, &stored.value) {
        private_keys::take_out(stored.key.kind, Arc::make_mut(&mut stored.value));
    }
}

#[cfg(test)]
mod tests {
    use model::{Key, Kind};
    use serde_json::json;

    use super::*;

    #[test]
    fn no_key_is_left() {
        let tls = json!({"client_cert": "c", "client_key": "k"});
        let split = json!({"rules": [{"weighted_upstreams": [{"upstream": {"tls": tls}}]}]});
        for (kind, value) in [
            (Kind::Ssl, json!({"cert": "c", "key": "k", "keys": ["k"]})),
            (Kind::Upstream, json!({"tls": tls})),
            (Kind::Route, json!({"uri": "/", "upstream": {"tls": tls}})),
            (Kind::Service, json!({"upstream": {"tls": tls}})),
            (Kind::Route, json!({"uri": "/", "plugins": {"traffic-split": split}})),
        ] {
            let key = Key::new(kind, "1");
            let mut stored = Stored { key, value: Arc::new(value), created: 1, modified: 1, expires: None };
            conceal(&mut stored);
            let text = stored.value.to_string();
            assert!(!text.contains("\"k\"") && (text.contains("\"c\"")), "{text}");
        }
    }
}
