//! The schemas of the secret managers.

use serde_json::{Value, json};

const URI: &str = r"^[^\/]+:\/\/([\da-zA-Z.-]+|\[[\da-fA-F:]+\])(:\d+)?";

/// The secret managers and their schemas.
pub fn of_secrets() -> [(&'static str, Value); 3] {
    [("vault", vault()), ("aws", aws()), ("gcp", gcp())]
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
