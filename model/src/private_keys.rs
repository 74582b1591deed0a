//! Where private keys stand in resources.

use serde_json::Value;

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
        Kind::PluginMetadata | Kind::Secret | Kind::Proto | Kind::CostDecoration => &[],
    }
}

/// Whether a private key stands in a resource.
pub fn stand_in(kind: Kind, value: &Value) -> bool {
    places(kind).iter().any(|place| holder(value, place, &|fields, name| fields.get(name).is_some()))
}

/// Whether a private key was taken out of a resource: its certificate is there without it.
pub fn are_missing(kind: Kind, value: &Value) -> bool {
    let alone = |fields: &Value, name: &str| {
        let certificate = match name {
            "key" => "cert",
            "keys" => "certs",
            _ => "client_cert",
        };
        fields.get(certificate).is_some() && fields.get(name).is_none()
    };
    places(kind).iter().any(|place| holder(value, place, &alone))
}

/// Takes the private keys out of a resource.
pub fn take_out(kind: Kind, value: &mut Value) {
    places(kind).iter().for_each(|place| take(value, place));
}

/// Whether `is` holds for one of the objects that have the last name of a place, or could have it.
fn holder(value: &Value, place: &str, is: &dyn Fn(&Value, &str) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| holder(item, place, is)),
        Value::Object(fields) => match place.split_once('.') {
            Some((name, rest)) => fields.get(name).is_some_and(|field| holder(field, rest, is)),
            None => is(value, place),
        },
        _ => false,
    }
}

fn take(value: &mut Value, place: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| take(item, place)),
        Value::Object(fields) => match place.split_once('.') {
            Some((name, rest)) => {
                if let Some(field) = fields.get_mut(name) {
                    take(field, rest);
                }
            }
            None => _ = fields.shift_remove(place),
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
            take_out(kind, &mut value);
            assert!(!stand_in(kind, &value) && are_missing(kind, &value), "{value}");
            let text = value.to_string();
            assert!(!text.contains("\"k\"") && text.contains("\"c\""), "{text}");
        }
        let plain = json!({"uri": "/", "upstream": {"tls": {"verify": true}}, "plugins": []});
        assert!(!stand_in(Kind::Route, &plain) && !are_missing(Kind::Route, &plain));
    }
}
