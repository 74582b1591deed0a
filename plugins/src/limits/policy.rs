//! The policies by which limits are counted, as APISIX's schemas have them.

use model::Invalid;
use sdk::limit::{Kind, Limit, Wanted};
use sdk::{Build, Exchange, Reply, Step};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The settings that say where a limit is counted, in a plugin's configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Policy {
    policy: String,
    allow_degradation: bool,
    /// Settings of the server, and all that the schema does not know.
    #[serde(flatten)]
    more: Map<String, Value>,
}

/// Whether a request that cannot be counted is let in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Degradation {
    allowed: bool,
}

impl Policy {
    /// On this node.
    pub(crate) fn local() -> Policy {
        Policy { policy: "local".to_owned(), allow_degradation: false, more: Map::new() }
    }

    /// Drops the settings that are none of the policy's.
    pub(crate) fn settle(&mut self, kind: Kind) {
        let known = properties(&self.policy, kind);
        self.more.retain(|name, _| known.get(name).is_some() || name == "sync_interval");
        if self.policy == "local" {
            self.more.clear();
        }
    }

    /// Checks the rules that the schema cannot express, for windows of this length, where it is known.
    pub(crate) fn check(&self, window_s: Option<u64>) -> Result<(), Invalid> {
        let interval = self.more.get("sync_interval").and_then(Value::as_f64).unwrap_or(-1.0);
        if self.policy == "local" || interval == -1.0 {
            return Ok(());
        }
        let reason = if interval < 0.1 {
            "sync_interval should not be smaller than 0.1"
        } else if window_s.is_some_and(|window| interval >= window as f64) {
            "sync_interval should be smaller than time_window"
        } else {
            return Ok(());
        };
        Err(Invalid::new(reason).at("/sync_interval").got(interval.to_string()))
    }

    /// The limit of a plugin instance with these rules.
    pub(crate) fn limit(
        &self,
        plugin: &'static str,
        kind: Kind,
        rules: &Value,
        group: Option<&str>,
        cx: &Build<'_>,
    ) -> Result<Limit, Invalid> {
        cx.limit(&Wanted { plugin, kind, rules, group, policy: &self.policy, settings: &self.more })
    }

    /// A setting of the policy that is a positive integer.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.more.get(name)?.as_u64().filter(|number| *number > 0)
    }

    pub(crate) fn degradation(&self) -> Degradation {
        Degradation { allowed: self.allow_degradation }
    }
}

impl Degradation {
    /// The step with a request that cannot be counted for this reason.
    #[cold]
    pub(crate) fn step(self, reason: &'static str) -> Step {
        if self.allowed { Step::Next } else { Step::Reply(Reply::status(500).because(reason)) }
    }

    /// As [`Degradation::step`], with a line in the log and this body.
    #[cold]
    pub(crate) fn report(
        self,
        x: &Exchange<'_>,
        plugin: &'static str,
        reason: &'static str,
        message: Option<&str>,
    ) -> Step {
        x.complain(plugin, reason);
        match message {
            Some(message) if !self.allowed => {
                Step::Reply(Reply::json(500, &json!({"error_msg": message})).because(reason))
            }
            _ => self.step(reason),
        }
    }
}

/// Adds the policies to a plugin's schema: those named, `local` as the default.
pub(crate) fn with_policies(mut schema: Value, kind: Kind, names: &[&str]) -> Value {
    schema["properties"]["policy"] = json!({"type": "string", "enum": names, "default": "local"});
    schema["properties"]["allow_degradation"] = json!({"type": "boolean", "default": false});
    let mut branches = Value::Null;
    for name in ["redis-sentinel", "redis-cluster", "redis"].into_iter().filter(|name| names.contains(name)) {
        let mut branch = json!({
            "if": {"properties": {"policy": {"enum": [name]}}},
            "then": {"properties": properties(name, kind), "required": required(name)},
        });
        if branches.is_object() {
            branch["else"] = branches;
        }
        branches = branch;
    }
    if let (Value::Object(schema), Value::Object(branches)) = (&mut schema, branches) {
        schema.extend(branches);
    }
    let sentinel: &[&str] = if names.contains(&"redis-sentinel") { &["sentinel_password"] } else { &[] };
    schema["encrypt_fields"] = json!([&["redis_password"], sentinel].concat());
    schema
}

fn required(policy: &str) -> &'static [&'static str] {
    match policy {
        "redis" => &["redis_host"],
        "redis-cluster" => &["redis_cluster_nodes", "redis_cluster_name"],
        _ => &["redis_sentinels", "redis_master_name"],
    }
}

/// The settings of a policy.
fn properties(policy: &str, kind: Kind) -> Value {
    let mut properties = match policy {
        "redis" => json!({
            "redis_host": {"type": "string", "minLength": 2},
            "redis_port": {"type": "integer", "minimum": 1, "default": 6379},
            "redis_username": {"type": "string", "minLength": 1},
            "redis_password": {"type": "string", "minLength": 0},
            "redis_database": {"type": "integer", "minimum": 0, "default": 0},
            "redis_timeout": {"type": "integer", "minimum": 1, "default": 1000},
            "redis_ssl": {"type": "boolean", "default": false},
            "redis_ssl_verify": {"type": "boolean", "default": false},
            "redis_keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 10000},
            "redis_keepalive_pool": {"type": "integer", "minimum": 1, "default": 100},
        }),
        "redis-cluster" => json!({
            "redis_cluster_nodes": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "string", "minLength": 2, "maxLength": 100},
            },
            "redis_password": {"type": "string", "minLength": 0},
            "redis_timeout": {"type": "integer", "minimum": 1, "default": 1000},
            "redis_cluster_name": {"type": "string"},
            "redis_cluster_ssl": {"type": "boolean", "default": false},
            "redis_cluster_ssl_verify": {"type": "boolean", "default": false},
            "redis_keepalive_timeout": {"type": "integer", "minimum": 1000, "default": 10000},
            "redis_keepalive_pool": {"type": "integer", "minimum": 1, "default": 100},
        }),
        "redis-sentinel" => json!({
            "redis_sentinels": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "host": {"type": "string", "minLength": 2},
                        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
                    },
                    "required": ["host", "port"],
                    "additionalProperties": false,
                },
            },
            "redis_master_name": {"type": "string", "minLength": 1},
            "redis_role": {"type": "string", "enum": ["master", "slave"], "default": "master"},
            "redis_connect_timeout": {"type": "integer", "minimum": 1, "default": 1000},
            "redis_read_timeout": {"type": "integer", "minimum": 1, "default": 1000},
            "redis_keepalive_timeout": {"type": "integer", "minimum": 1, "default": 60000},
            "redis_database": {"type": "integer", "minimum": 0, "default": 0},
            "redis_username": {"type": "string", "minLength": 1},
            "redis_password": {"type": "string", "minLength": 0},
            "sentinel_username": {"type": "string", "minLength": 1},
            "sentinel_password": {"type": "string", "minLength": 0},
        }),
        _ => json!({}),
    };
    if kind == Kind::Concurrency && policy != "local" {
        properties["key_ttl"] = json!({"type": "integer", "default": 3600});
    }
    properties
}
