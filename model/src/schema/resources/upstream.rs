//! The schema of an upstream: its servers, its checks and its keys of hashing.

use serde_json::{Value, json};

use super::parts::{METHODS, certificate, extend, host, id, metadata, name, port, private_key, timeout};

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

pub fn upstream() -> Value {
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
                    "sni": {"type": "string", "minLength": 1, "maxLength": 253},
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
