//! The schemas of the resources, as data.
//!
//! Facts of APISIX 3.18's `schema_def.lua` and `secret/*.lua`. One deliberate
//! difference: an upstream's `type` is one of the four balancers there are,
//! where APISIX takes any word and fails at the first request.

use serde_json::{Value, json};

use crate::Kind;

/// Every HTTP method a route may name.
pub const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

const HOST: &str = r"^\*$|^\*?[0-9a-zA-Z-._\[\]:]+$";
const IPV4_CIDR: &str = "^([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])/([12]?[0-9]|3[0-2])$";
const IPV6_CIDR: &str = "^([a-fA-F0-9]{0,4}:){1,8}(:[a-fA-F0-9]{0,4}){0,8}([a-fA-F0-9]{0,4})?/[0-9]{1,3}$";
const URI: &str = r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?";

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
    }
}

/// The secret managers and their schemas.
pub fn of_secrets() -> [(&'static str, Value); 3] {
    [("vault", vault()), ("aws", aws()), ("gcp", gcp())]
}

/// `key` of a chash upstream with `hash_on: vars`.
pub fn hash_vars() -> Value {
    json!({
        "type": "string",
        "pattern": "^((uri|server_name|server_addr|request_uri|remote_port|remote_addr|query_string|host|hostname|mqtt_client_id)|arg_[0-9a-zA-z_-]+)$",
    })
}

/// `key` of a chash upstream with `hash_on: header` or `cookie`.
pub fn hash_header() -> Value {
    json!({"type": "string", "pattern": "^[a-zA-Z0-9-_]+$"})
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

fn upstream() -> Value {
    let mut properties = metadata(name());
    extend(
        &mut properties,
        json!({
            "nodes": nodes(),
            "retries": {"type": "integer", "minimum": 0},
            "retry_timeout": {"type": "number", "minimum": 0},
            "timeout": timeout(),
            "tls": {
                "type": "object",
                "properties": {
                    "client_cert_id": id(),
                    "client_cert": certificate(),
                    "client_key": private_key(),
                    "verify": {"type": "boolean", "default": false},
                    // Ours.
                    "ca": certificate(),
                },
                "dependencies": {
                    "client_cert": {"required": ["client_key"]},
                    "client_key": {"required": ["client_cert"]},
                    "client_cert_id": {"not": {"required": ["client_cert", "client_key"]}},
                },
            },
            "keepalive_pool": {
                "type": "object",
                "properties": {
                    "size": {"type": "integer", "default": 320, "minimum": 1},
                    "idle_timeout": {"type": "number", "default": 60, "minimum": 0},
                    "requests": {"type": "integer", "default": 1000, "minimum": 1},
                    // Ours.
                    "min_idle": {"type": "integer", "minimum": 0, "maximum": 1000},
                },
            },
            "type": {
                "type": "string",
                "default": "roundrobin",
            },
            "checks": checks(),
            "sluice": crate::upstream::own_schema(),
            "hash_on": {
                "type": "string",
                "default": "vars",
                "enum": ["vars", "header", "cookie", "consumer", "vars_combinations"],
            },
            "key": {"type": "string"},
            "scheme": {
                "default": "http",
                "enum": ["grpc", "grpcs", "http", "https", "tcp", "tls", "udp", "kafka", "h2", "h2c"],
            },
            "discovery_type": {"type": "string"},
            "discovery_args": {
                "type": "object",
                "properties": {"namespace_id": {"type": "string"}, "group_name": {"type": "string"}},
            },
            "pass_host": {"type": "string", "enum": ["pass", "node", "rewrite"], "default": "pass"},
            "upstream_host": host(),
            "service_name": {"type": "string", "maxLength": 256, "minLength": 1},
        }),
    );
    json!({
        "type": "object",
        "properties": properties,
        "oneOf": [{"required": ["nodes"]}, {"required": ["service_name", "discovery_type"]}],
        "additionalProperties": false,
    })
}

fn nodes() -> Value {
    json!({"anyOf": [
        {"type": "object", "patternProperties": {".*": {"type": "integer", "minimum": 0}}},
        {"type": "array", "items": {
            "type": "object",
            "properties": {
                "host": host(),
                "port": port(),
                "weight": {"type": "integer", "minimum": 0},
                "priority": {"type": "integer", "default": 0},
                "metadata": {"type": "object"},
            },
            "required": ["host", "weight"],
        }},
    ]})
}

fn checks() -> Value {
    let counter = |min: u32, default: u32| json!({"type": "integer", "minimum": min, "maximum": 254, "default": default});
    let statuses = |default: &[u16]| {
        json!({
            "type": "array",
            "minItems": 1,
            "items": {"type": "integer", "minimum": 200, "maximum": 599},
            "uniqueItems": true,
            "default": default,
        })
    };
    let protocol = json!({"type": "string", "enum": ["http", "https", "tcp"], "default": "http"});
    let interval = json!({"type": "integer", "minimum": 1, "default": 1});
    json!({
        "type": "object",
        "properties": {
            "active": {"type": "object", "properties": {
                "type": protocol,
                "timeout": {"type": "number", "default": 1},
                "concurrency": {"type": "integer", "default": 10},
                "host": host(),
                "port": port(),
                "http_method": {"type": "string", "enum": METHODS, "default": "GET"},
                "http_path": {"type": "string", "default": "/"},
                "http_req_body": {"type": "string", "default": ""},
                "https_verify_certificate": {"type": "boolean", "default": true},
                "healthy": {"type": "object", "properties": {
                    "interval": interval,
                    "http_statuses": statuses(&[200, 302]),
                    "successes": counter(1, 2),
                }},
                "unhealthy": {"type": "object", "properties": {
                    "interval": interval,
                    "http_statuses": statuses(&[429, 404, 500, 501, 502, 503, 504, 505]),
                    "http_failures": counter(1, 5),
                    "tcp_failures": counter(1, 2),
                    "timeouts": counter(1, 3),
                }},
                "req_headers": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            }},
            "passive": {"type": "object", "properties": {
                "type": protocol,
                "healthy": {"type": "object", "properties": {
                    "http_statuses": statuses(&[
                        200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 306, 307,
                        308,
                    ]),
                    "successes": counter(0, 5),
                }},
                "unhealthy": {"type": "object", "properties": {
                    "http_statuses": statuses(&[429, 500, 503]),
                    "tcp_failures": counter(0, 2),
                    "timeouts": counter(0, 7),
                    "http_failures": counter(0, 5),
                }},
            }},
        },
        "anyOf": [{"required": ["active"]}, {"required": ["active", "passive"]}],
    })
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

fn vault() -> Value {
    json!({
        "type": "object",
        "properties": {
            "uri": {"type": "string", "pattern": URI},
            "prefix": {"type": "string"},
            "token": {"type": "string"},
            "namespace": {"type": "string"},
        },
        "required": ["uri", "prefix", "token"],
    })
}

fn aws() -> Value {
    json!({
        "type": "object",
        "properties": {
            "access_key_id": {"type": "string"},
            "secret_access_key": {"type": "string"},
            "session_token": {"type": "string"},
            "region": {"type": "string", "default": "us-east-1"},
            "endpoint_url": {"type": "string", "pattern": URI},
        },
        "required": ["access_key_id", "secret_access_key"],
    })
}

fn gcp() -> Value {
    json!({
        "type": "object",
        "properties": {
            "auth_config": {
                "type": "object",
                "properties": {
                    "client_email": {"type": "string"},
                    "private_key": {"type": "string"},
                    "project_id": {"type": "string"},
                    "token_uri": {"type": "string", "default": "https://oauth2.googleapis.com/token"},
                    "scope": {
                        "type": "array",
                        "items": {"type": "string"},
                        "default": ["https://www.googleapis.com/auth/cloud-platform"],
                    },
                    "entries_uri": {"type": "string", "default": "https://secretmanager.googleapis.com/v1"},
                },
                "required": ["client_email", "private_key", "project_id"],
            },
            "ssl_verify": {"type": "boolean", "default": true},
            "auth_file": {"type": "string"},
        },
        "oneOf": [{"required": ["auth_config"]}, {"required": ["auth_file"]}],
    })
}

/// `id`, `name` and what describes a resource.
fn metadata(name: Value) -> Value {
    let mut properties = json!({"id": id(), "name": name});
    extend(&mut properties, description());
    properties
}

fn description() -> Value {
    json!({
        "desc": {"type": "string", "maxLength": 256},
        "labels": {"type": "object", "patternProperties": {
            ".*": {"type": "string", "pattern": r"^\S+$", "maxLength": 256, "minLength": 1},
        }},
        "create_time": {"type": "integer"},
        "update_time": {"type": "integer"},
    })
}

fn id() -> Value {
    json!({"anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 64, "pattern": "^[a-zA-Z0-9-_.]+$"},
        {"type": "integer", "minimum": 1},
    ]})
}

fn name() -> Value {
    json!({"type": "string", "maxLength": 256, "minLength": 1})
}

fn host() -> Value {
    json!({"type": "string", "pattern": HOST})
}

fn hosts() -> Value {
    json!({"type": "array", "items": host(), "minItems": 1, "uniqueItems": true})
}

fn address() -> Value {
    json!({"type": "string", "anyOf": [
        {"title": "IPv4", "type": "string", "format": "ipv4"},
        {"title": "IPv4/CIDR", "type": "string", "pattern": IPV4_CIDR},
        {"title": "IPv6", "type": "string", "format": "ipv6"},
        {"title": "IPv6/CIDR", "type": "string", "pattern": IPV6_CIDR},
    ]})
}

fn port() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": 65535})
}

fn timeout() -> Value {
    let seconds = json!({"type": "number", "exclusiveMinimum": 0});
    json!({
        "type": "object",
        "properties": {"connect": seconds, "send": seconds, "read": seconds},
        "required": ["connect", "send", "read"],
    })
}

fn script() -> Value {
    json!({"type": "string", "minLength": 10, "maxLength": 102_400})
}

fn certificate() -> Value {
    json!({"type": "string", "minLength": 128, "maxLength": 65_536})
}

fn private_key() -> Value {
    json!({"type": "string", "minLength": 64, "maxLength": 65_536})
}

fn at_most_one(one: &str, many: &str) -> Value {
    json!([
        {"not": {"anyOf": [{"required": [one]}, {"required": [many]}]}},
        {"required": [one]},
        {"required": [many]},
    ])
}

fn extend(properties: &mut Value, more: Value) {
    if let (Value::Object(properties), Value::Object(more)) = (properties, more) {
        properties.extend(more);
    }
}
