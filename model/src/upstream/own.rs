//! Options of an upstream that APISIX does not have: all under its key `sluice`, and off by default.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::field;

/// `sluice` of an upstream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Own {
    pub outlier: Option<Outlier>,
    /// Over this time a node that is new or back gets ever more requests.
    #[serde(deserialize_with = "field::seconds_opt")]
    pub slow_start: Option<Duration>,
    pub retry: Option<Retry>,
    pub limits: Limits,
    pub adaptive_concurrency: Option<AdaptiveConcurrency>,
    pub subset: Option<Subset>,
    pub locality: Option<Locality>,
    pub sticky: Option<Sticky>,
    /// The status that clients get where no node answered, instead of 502.
    pub failure_status: Option<u16>,
}

/// Requests go to the nodes whose metadata has the value they ask for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Subset {
    /// A key of the metadata of nodes.
    pub metadata: String,
    /// The variable whose value is asked for.
    pub key: String,
    /// No node is better than one of another subset.
    #[serde(default)]
    pub required: bool,
}

/// The share of the requests that the nodes of each place get together.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Locality {
    /// A key of the metadata of nodes.
    pub metadata: String,
    /// By its value; places that are not written get nothing.
    pub weights: std::collections::BTreeMap<String, u32>,
}

/// Clients stay with a node, which a cookie names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sticky {
    /// The key of the digest that names a node in the cookie, so that clients cannot forge one. May be a reference.
    pub secret: String,
    #[serde(default = "sticky_name")]
    pub name: String,
    #[serde(default = "root")]
    pub path: String,
    pub domain: Option<String>,
    /// Seconds; without it the cookie ends with the browser.
    pub max_age: Option<u64>,
    #[serde(default = "yes")]
    pub secure: bool,
    #[serde(default = "yes")]
    pub http_only: bool,
    #[serde(default)]
    pub same_site: SameSite,
}

/// `SameSite` of a cookie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum SameSite {
    Strict,
    #[default]
    Lax,
    None,
}

fn sticky_name() -> String {
    "sluice_sticky".to_owned()
}

fn root() -> String {
    "/".to_owned()
}

fn yes() -> bool {
    true
}

/// When a node is ejected for what the traffic shows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Outlier {
    /// Failed tries in a row.
    pub consecutive_failures: Option<u32>,
    /// Percent of tries that succeed; below it a node is ejected.
    pub success_rate: Option<f64>,
    /// Mean time to the response's head; above it a node is ejected.
    #[serde(deserialize_with = "field::seconds_opt")]
    pub latency: Option<Duration>,
    /// Tries in an interval for `success_rate` and `latency` to be looked at.
    pub min_requests: u32,
    #[serde(deserialize_with = "field::seconds")]
    pub interval: Duration,
    /// How long a node is out, times how often in a row it was.
    #[serde(deserialize_with = "field::seconds")]
    pub ejection_time: Duration,
    #[serde(deserialize_with = "field::seconds")]
    pub max_ejection_time: Duration,
    /// Percent of the nodes that may be out at a time.
    pub max_ejected_percent: u32,
}

/// How tries are made again. Their number is `retries` of the upstream.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// For a connection and a response's head, of each try.
    #[serde(deserialize_with = "field::seconds_opt")]
    pub per_try_timeout: Option<Duration>,
    /// The longest pause before the first retry; it doubles with each, and is drawn at random below that.
    #[serde(deserialize_with = "field::seconds_opt")]
    pub backoff: Option<Duration>,
    #[serde(deserialize_with = "field::seconds")]
    pub max_backoff: Duration,
    /// Retries, in percent of the requests.
    pub budget_percent: Option<f64>,
    /// Retries that are allowed however few requests there are.
    pub budget_burst: u32,
    pub failures: Vec<RetryOn>,
    /// Statuses that are taken for a failure while another try is possible.
    pub statuses: Vec<u16>,
    /// Also requests that may have been processed and whose method is not idempotent.
    pub any_method: bool,
}

/// A sort of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// No connection.
    Connect,
    /// The connection ended before the response's head.
    Closed,
    Timeout,
}

/// Limits on the load of an upstream at a time, over all workers; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Connections in use.
    pub connections: Option<u32>,
    /// Requests that wait for one of them.
    pub pending: Option<u32>,
    pub requests: Option<u32>,
    pub retries: Option<u32>,
}

/// A limit of requests that follows how long answers take.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default)]
pub struct AdaptiveConcurrency {
    pub min: u32,
    pub max: u32,
    /// How much slower than usual answers may be before the limit falls, as a factor.
    pub tolerance: f64,
}

impl Default for Outlier {
    fn default() -> Outlier {
        Outlier {
            consecutive_failures: None,
            success_rate: None,
            latency: None,
            min_requests: 20,
            interval: Duration::from_secs(10),
            ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejected_percent: 50,
        }
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            per_try_timeout: None,
            backoff: None,
            max_backoff: Duration::from_secs(1),
            budget_percent: None,
            budget_burst: 10,
            failures: vec![RetryOn::Connect, RetryOn::Closed, RetryOn::Timeout],
            statuses: Vec::new(),
            any_method: false,
        }
    }
}

impl Default for AdaptiveConcurrency {
    fn default() -> AdaptiveConcurrency {
        AdaptiveConcurrency { min: 10, max: 1000, tolerance: 1.5 }
    }
}

/// The schema of the key.
pub(crate) fn schema() -> Value {
    let positive = json!({"type": "integer", "minimum": 1, "maximum": 1_000_000});
    let seconds = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 86_400});
    let percent = json!({"type": "number", "exclusiveMinimum": 0, "maximum": 100});
    let object = |properties: Value| json!({"type": "object", "properties": properties, "additionalProperties": false});
    object(json!({
        "outlier": object(json!({
            "consecutive_failures": positive,
            "success_rate": percent,
            "latency": seconds,
            "min_requests": positive,
            "interval": seconds,
            "ejection_time": seconds,
            "max_ejection_time": seconds,
            "max_ejected_percent": {"type": "integer", "minimum": 1, "maximum": 100},
        })),
        "slow_start": seconds,
        "retry": object(json!({
            "per_try_timeout": seconds,
            "backoff": seconds,
            "max_backoff": seconds,
            "budget_percent": percent,
            "budget_burst": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
            "failures": {"type": "array", "items": {"type": "string", "enum": ["connect", "closed", "timeout"]}},
            "statuses": {"type": "array", "items": {"type": "integer", "minimum": 400, "maximum": 599}},
            "any_method": {"type": "boolean"},
        })),
        "limits": object(json!({
            "connections": positive,
            "pending": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
            "requests": positive,
            "retries": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        })),
        "subset": {
            "type": "object",
            "properties": {
                "metadata": {"type": "string", "minLength": 1},
                "key": {"type": "string", "minLength": 1},
                "required": {"type": "boolean"},
            },
            "required": ["metadata", "key"],
            "additionalProperties": false,
        },
        "locality": {
            "type": "object",
            "properties": {
                "metadata": {"type": "string", "minLength": 1},
                "weights": {
                    "type": "object",
                    "patternProperties": {".*": {"type": "integer", "minimum": 0, "maximum": 10_000}},
                },
            },
            "required": ["metadata", "weights"],
            "additionalProperties": false,
        },
        "sticky": {
            "type": "object",
            "properties": {
                "secret": {"type": "string", "minLength": 8, "maxLength": 4096},
                // Names and attributes of cookies as RFC 6265 has them.
                "name": {"type": "string", "pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"},
                "path": {"type": "string", "pattern": "^/[!-:<-~]{0,1023}$"},
                "domain": {"type": "string", "pattern": "^[A-Za-z0-9.-]{1,253}$"},
                "max_age": {"type": "integer", "minimum": 1, "maximum": 34_560_000},
                "secure": {"type": "boolean"},
                "http_only": {"type": "boolean"},
                "same_site": {"type": "string", "enum": ["Strict", "Lax", "None"]},
            },
            "required": ["secret"],
            "additionalProperties": false,
        },
        "adaptive_concurrency": object(json!({
            "min": positive,
            "max": positive,
            "tolerance": {"type": "number", "minimum": 1, "maximum": 100},
        })),
        "failure_status": {"type": "integer", "minimum": 500, "maximum": 599},
    }))
}
