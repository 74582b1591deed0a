//! The schemas of the resources, as data.
//!
//! Facts of APISIX 3.18's `schema_def.lua` and `secret/*.lua`. One deliberate
//! difference: an upstream's `type` is one of the four balancers there are,
//! where APISIX takes any word and fails at the first request.

mod parts;
mod secrets;
mod upstream;

use serde_json::{Value, json};

use self::parts::{
    METHODS, address, at_most_one, certificate, description, extend, host, hosts, id, metadata, name, port,
    private_key, script, timeout,
};
pub use self::secrets::of_secrets;
use self::upstream::upstream;
pub use self::upstream::{hash_header, hash_vars};
use crate::Kind;
use crate::script::Role;

/// The schema of a kind.
pub fn of_kind(kind: Kind) -> Value {
    match kind {
        Kind::Route => route(),
        Kind::Service => service(),
        Kind::Upstream => upstream(),
        Kind::Consumer => consumer(),
        Kind::Credential => credential(),
        Kind::ConsumerGroup => plugin_set(name()),
        Kind::GlobalRule => global_rule(),
        Kind::PluginConfig => plugin_set(json!({"type": "string"})),
        Kind::PluginMetadata | Kind::Secret => json!({"type": "object"}),
        Kind::Ssl => ssl(),
        Kind::StreamRoute => stream_route(),
        Kind::Proto => proto(),
        Kind::CostDecoration => cost_decoration(),
        Kind::Script => a_script(),
    }
}

/// The list of plugins that are in use.
pub fn plugins() -> Value {
    let name = json!({"type": "string", "minLength": 1});
    let entry = json!({"name": name, "stream": {"type": "boolean"}});
    json!({
        "type": "array",
        "items": {"type": "object", "properties": entry, "required": ["name"], "additionalProperties": false},
    })
}

fn route() -> Value {
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "uri": {"type": "string", "minLength": 1, "maxLength": 4096},
            "uris": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": true},
            "priority": {"type": "integer", "default": 0},
            "methods": {"type": "array", "items": {"type": "string", "enum": METHODS}, "uniqueItems": true},
            "host": host(),
            "hosts": hosts(),
            "remote_addr": address(),
            "remote_addrs": {"type": "array", "items": address(), "minItems": 1, "uniqueItems": true},
            "timeout": timeout(),
            "vars": {"type": "array"},
            "filter_func": {"type": "string", "minLength": 10, "pattern": "^function"},
            "script": script(),
            "script_id": id(),
            "plugins": {"type": "object"},
            "plugin_config_id": id(),
            "upstream": upstream(),
            "service_id": id(),
            "upstream_id": id(),
            "enable_websocket": {"type": "boolean"},
            "status": {"type": "integer", "enum": [1, 0], "default": 1},
        }),
    );
    json!({
        "type": "object",
        "properties": properties,
        "allOf": [
            {"oneOf": [{"required": ["uri"]}, {"required": ["uris"]}]},
            {"oneOf": at_most_one("host", "hosts")},
            {"oneOf": at_most_one("remote_addr", "remote_addrs")},
        ],
        "anyOf": [
            {"required": ["plugins", "uri"]},
            {"required": ["upstream", "uri"]},
            {"required": ["upstream_id", "uri"]},
            {"required": ["service_id", "uri"]},
            {"required": ["plugins", "uris"]},
            {"required": ["upstream", "uris"]},
            {"required": ["upstream_id", "uris"]},
            {"required": ["service_id", "uris"]},
            {"required": ["script", "uri"]},
            {"required": ["script", "uris"]},
        ],
        "not": {"anyOf": [
            {"required": ["script", "plugins"]},
            {"required": ["script", "plugin_config_id"]},
        ]},
        "additionalProperties": false,
    })
}

fn service() -> Value {
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "plugins": {"type": "object"},
            "upstream": upstream(),
            "upstream_id": id(),
            "script": script(),
            "enable_websocket": {"type": "boolean"},
            "hosts": hosts(),
        }),
    );
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn consumer() -> Value {
    let mut properties = json!({
        "id": id(),
        "username": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[a-zA-Z0-9_\-]+$"},
    });
    extend(&mut properties, description());
    extend(&mut properties, json!({"group_id": id(), "plugins": {"type": "object"}}));
    json!({
        "type": "object",
        "properties": properties,
        "required": ["username"],
        "additionalProperties": false,
    })
}

fn credential() -> Value {
    let mut properties = json!({
        "id": {"oneOf": [
            id(),
            {
                "type": "string",
                "minLength": 15,
                "maxLength": 128,
                "pattern": "^[a-zA-Z0-9-_]+/credentials/[a-zA-Z0-9-_.]+$",
            },
        ]},
        "name": name(),
    });
    extend(&mut properties, description());
    extend(&mut properties, json!({"plugins": {"type": "object", "maxProperties": 1}}));
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// A consumer group or a plugin config: plugins under a name.
fn plugin_set(name: Value) -> Value {
    let mut properties = metadata(name);
    extend(&mut properties, json!({"plugins": {"type": "object"}}));
    json!({
        "type": "object",
        "properties": properties,
        "required": ["id", "plugins"],
        "additionalProperties": false,
    })
}

fn global_rule() -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": id(),
            "create_time": {"type": "integer"},
            "update_time": {"type": "integer"},
            "plugins": {"type": "object"},
        },
        "required": ["id", "plugins"],
        "additionalProperties": false,
    })
}

fn ssl() -> Value {
    let mut properties = json!({"id": id()});
    extend(&mut properties, description());
    extend(
        &mut properties,
        json!({
            "type": {"type": "string", "default": "server", "enum": ["server", "client"]},
            "cert": certificate(),
            "key": private_key(),
            "sni": host(),
            "snis": {"type": "array", "items": host(), "minItems": 1},
            "certs": {"type": "array", "items": certificate()},
            "keys": {"type": "array", "items": private_key()},
            "client": {
                "type": "object",
                "properties": {
                    "ca": certificate(),
                    "depth": {"type": "integer", "minimum": 0, "default": 1},
                    "skip_mtls_uri_regex": {
                        "type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string"},
                    },
                },
                "required": ["ca"],
            },
            "status": {"type": "integer", "enum": [1, 0], "default": 1},
            // Of the plugin ocsp-stapling.
            "ocsp_stapling": {
                "type": "object",
                "properties": {
                    "enabled": {"type": "boolean", "default": false},
                    "skip_verify": {"type": "boolean", "default": false},
                    "cache_ttl": {"type": "integer", "minimum": 60, "default": 3600},
                },
            },
            "ssl_protocols": {
                "type": "array",
                "maxItems": 3,
                "uniqueItems": true,
                "items": {"enum": ["TLSv1.1", "TLSv1.2", "TLSv1.3"]},
            },
        }),
    );
    json!({
        "type": "object",
        "properties": properties,
        "if": {"properties": {"type": {"enum": ["server"]}}},
        "then": {"oneOf": [{"required": ["sni", "key", "cert"]}, {"required": ["snis", "key", "cert"]}]},
        "else": {"required": ["key", "cert"]},
        "additionalProperties": false,
    })
}

fn stream_route() -> Value {
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "remote_addr": address(),
            "server_addr": address(),
            "server_port": port(),
            "sni": host(),
            "upstream": upstream(),
            "upstream_id": id(),
            "service_id": id(),
            "plugins": {"type": "object"},
            "protocol": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "superior_id": id(),
                    "conf": {"type": "object"},
                    "logger": {"type": "array", "items": {
                        "properties": {
                            "name": {"type": "string"},
                            "filter": {"type": "array"},
                            "conf": {"type": "object"},
                        },
                        "dependencies": {"name": ["conf"]},
                        "additionalProperties": false,
                    }},
                },
                "required": ["name"],
            },
        }),
    );
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn proto() -> Value {
    let mut properties = metadata(name());
    extend(&mut properties, json!({"content": {"type": "string", "minLength": 1, "maxLength": 1_048_576}}));
    json!({
        "type": "object",
        "properties": properties,
        "required": ["content"],
        "additionalProperties": false,
    })
}

fn a_script() -> Value {
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "type": {"type": "string", "enum": Role::WORDS, "default": "plugin"},
            "content": {"type": "string", "minLength": 1, "maxLength": 1_048_576},
        }),
    );
    json!({
        "type": "object",
        "properties": properties,
        "required": ["content"],
        "additionalProperties": false,
    })
}

fn cost_decoration() -> Value {
    let arguments = json!({"type": "array", "items": {"type": "string", "minLength": 1}});
    let value = json!({"type": "number", "minimum": 0, "default": 1});
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "service_id": id(),
            "field_path": {"type": "string", "pattern": r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"},
            "add_value": value,
            "add_arguments": arguments,
            "mul_value": value,
            "mul_arguments": arguments,
        }),
    );
    json!({
        "type": "object",
        "properties": properties,
        "required": ["field_path"],
        "additionalProperties": false,
    })
}
