//! Parts that several schemas share: identities, hosts, addresses, times and certificates.

use serde_json::{Value, json};

/// Every HTTP method a route may name.
pub const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

const HOST: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$";
const IPV4_CIDR: &str = "^([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])/([12]?[0-9]|3[0-2])$";
const IPV6_CIDR: &str = "^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/[0-9]{1,3}$";

/// `id`, `name` and what describes a resource.
pub fn metadata(name: Value) -> Value {
    let mut properties = json!({"id": id(), "name": name});
    extend(&mut properties, description());
    properties
}

pub fn description() -> Value {
    json!({
        "desc": {"type": "string", "maxLength": 256},
        "labels": {"type": "object", "patternProperties": {
            ".*": {"type": "string", "pattern": r"^\S+$", "maxLength": 256, "minLength": 1},
        }},
        "create_time": {"type": "integer"},
        "update_time": {"type": "integer"},
    })
}

pub fn id() -> Value {
    json!({"anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$"},
        {"type": "integer", "minimum": 1},
    ]})
}

pub fn name() -> Value {
    json!({"type": "string", "maxLength": 256, "minLength": 1})
}

pub fn host() -> Value {
    json!({"type": "string", "pattern": HOST})
}

pub fn hosts() -> Value {
    json!({"type": "array", "items": host(), "minItems": 1, "uniqueItems": true})
}

pub fn address() -> Value {
    json!({"type": "string", "anyOf": [
        {"title": "IPv4", "type": "string", "format": "ipv4"},
        {"title": "IPv4/CIDR", "type": "string", "pattern": IPV4_CIDR},
        {"title": "IPv6", "type": "string", "format": "ipv6"},
        {"title": "IPv6/CIDR", "type": "string", "pattern": IPV6_CIDR},
    ]})
}

pub fn port() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": 65535})
}

pub fn timeout() -> Value {
    let seconds = json!({"type": "number", "exclusiveMinimum": 0});
    json!({
        "type": "object",
        "properties": {"connect": seconds, "send": seconds, "read": seconds},
        "required": ["connect", "send", "read"],
    })
}

pub fn script() -> Value {
    json!({"type": "string", "minLength": 10, "maxLength": 102_400})
}

pub fn certificate() -> Value {
    json!({"type": "string", "minLength": 128, "maxLength": 65_536})
}

pub fn private_key() -> Value {
    json!({"type": "string", "minLength": 64, "maxLength": 65_536})
}

pub fn at_most_one(one: &str, many: &str) -> Value {
    json!([
        {"not": {"anyOf": [{"required": [one]}, {"required": [many]}]}},
        {"required": [one]},
        {"required": [many]},
    ])
}

pub fn extend(properties: &mut Value, more: Value) {
    if let (Value::Object(properties), Value::Object(more)) = (properties, more) {
        properties.extend(more);
    }
}
