//! The settings, and the zone they name.

use std::sync::Arc;

use cache::{Caches, Zone};
use model::Invalid;
use model::invalid::nearest;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub struct Config {
    pub(super) max_resp_body_size: u64,
    pub(super) cache_zone: String,
    pub(super) cache_strategy: Strategy,
    pub(super) cache_key: Vec<String>,
    pub(super) cache_http_status: Vec<u16>,
    pub(super) cache_method: Vec<String>,
    pub(super) hide_cache_headers: bool,
    pub(super) cache_control: bool,
    #[serde(default)]
    pub(super) cache_bypass: Vec<String>,
    #[serde(default)]
    pub(super) no_cache: Vec<String>,
    pub(super) cache_ttl: u64,
    pub(super) consumer_isolation: bool,
    pub(super) cache_set_cookie: bool,
    /// Milliseconds; 0 lets no request wait for another.
    pub(super) collapse_timeout: u64,
    #[serde(flatten)]
    pub(super) rfc: Rfc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Strategy {
    Disk,
    Memory,
}

/// The settings of `cache_control: true` that APISIX does not have.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Rfc {
    /// Seconds, where the response declares none.
    pub(super) stale_while_revalidate: u32,
    /// Seconds, where the response declares none.
    pub(super) stale_if_error: u32,
    /// The share of the time since Last-Modified in which a response without a lifetime is fresh.
    pub(super) heuristic_percent: u64,
    /// Seconds.
    pub(super) heuristic_max: u64,
    /// Names of fields that go before Cache-Control.
    #[serde(rename = "targeted_cache_control")]
    pub(super) targeted: Vec<String>,
}

pub(super) fn schema() -> Value {
    let part = "(^[^\\$].+$|^\\$[0-9a-zA-Z_]+$)";
    json!({
        "type": "object",
        "properties": {
            "max_resp_body_size": {
                "type": "integer", "minimum": 1, "default": 67_108_864,
                "description": "maximum response body size in bytes buffered into memory by the memory cache strategy; larger responses are streamed through without being cached",
            },
            "cache_zone": {"type": "string", "minLength": 1, "maxLength": 100, "default": "disk_cache_one"},
            "cache_strategy": {"type": "string", "enum": ["disk", "memory"], "default": "disk"},
            "cache_key": {
                "type": "array", "minItems": 1,
                "items": {"description": "a key for caching", "type": "string", "pattern": part},
                "default": ["$host", "$request_uri"],
            },
            "cache_http_status": {
                "type": "array", "minItems": 1,
                "items": {"description": "http response status", "type": "integer", "minimum": 200, "maximum": 599},
                "uniqueItems": true, "default": [200, 301, 404],
            },
            "cache_method": {
                "type": "array", "minItems": 1,
                "items": {"description": "supported http method", "type": "string", "enum": ["GET", "POST", "HEAD"]},
                "uniqueItems": true, "default": ["GET", "HEAD"],
            },
            "hide_cache_headers": {"type": "boolean", "default": false},
            "cache_control": {"type": "boolean", "default": false},
            "cache_bypass": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": part}},
            "no_cache": {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": part}},
            "cache_ttl": {"type": "integer", "minimum": 1, "default": 300},
            "consumer_isolation": {"type": "boolean", "default": true},
            "cache_set_cookie": {"type": "boolean", "default": false},
            "collapse_timeout": {"type": "integer", "minimum": 0, "maximum": 10_000, "default": 0},
            "stale_while_revalidate": {"type": "integer", "minimum": 0, "maximum": 2_147_483_647, "default": 0},
            "stale_if_error": {"type": "integer", "minimum": 0, "maximum": 2_147_483_647, "default": 0},
            "heuristic_percent": {"type": "integer", "minimum": 0, "maximum": 100, "default": 0},
            "heuristic_max": {"type": "integer", "minimum": 1, "default": 86400},
            "targeted_cache_control": {
                "type": "array", "maxItems": 8,
                "items": {"type": "string", "pattern": "^[A-Za-z0-9-]+$", "maxLength": 64},
                "uniqueItems": true, "default": [],
            },
        },
    })
}

/// The zone, if it is of the strategy's kind.
pub(super) fn zone(config: &Config, caches: &Caches) -> Result<Arc<Zone>, Invalid> {
    let name = config.cache_zone.as_str();
    let Some(zone) = caches.zone(name) else {
        let hint = match nearest(name, caches.names()) {
            Some(near) => format!("there is a zone {near}"),
            None => "zones are made in config.yaml: apisix.proxy_cache.zones".to_owned(),
        };
        return Err(Invalid::new(format!("cache_zone {name} not found")).hint(hint));
    };
    let (strategy, fits) = match config.cache_strategy {
        Strategy::Disk => ("disk", zone.disk().is_some()),
        Strategy::Memory => ("memory", zone.disk().is_none()),
    };
    if !fits {
        return Err(Invalid::new(format!("invalid or empty cache_zone for cache_strategy: {strategy}"))
            .hint("a zone with disk_path is for disk, one without for memory"));
    }
    Ok(zone.clone())
}
