//! Private keys: no API shows them, and a resource that is written as it was read keeps its own.

use std::sync::Arc;

use control::store::Stored;
use model::{Key, private_keys};
use serde_json::Value;

use crate::Admin;
use crate::answer::ErrorAnswer;

/// Takes private keys out of what is shown.
pub(crate) fn conceal(stored: &mut Stored) {
    if private_keys::stand_in(stored.key.kind, &stored.value) {
        private_keys::take_out(stored.key.kind, Arc::make_mut(&mut stored.value));
    }
}

impl Admin {
    /// Puts the stored private keys into a resource that lacks them, where its certificates are the stored ones.
    pub(crate) async fn put_keys_back(&self, key: &Key, value: &mut Value) -> Result<(), ErrorAnswer> {
        if private_keys::are_missing(key.kind, value)
            && key.check().is_ok()
            && let Some(stored) = self.store.get(key).await?
        {
            private_keys::put_back(key.kind, value, &stored.value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;
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
