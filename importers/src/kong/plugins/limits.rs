//! Limits of requests.

mod redis;

use serde_json::{Map, Value, json};

use super::super::entities::Entity;
use super::Notes;
use crate::node::Node;

/// Windows of Kong's rate-limiting, in seconds.
const WINDOWS: [(&str, u64); 6] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", 86_400),
    ("month", 2_592_000),
    ("year", 31_536_000),
];

/// Limits of one instance.
#[derive(Clone)]
pub(super) struct Limit {
    /// A name, seconds, and requests.
    windows: Vec<(String, u64, u64)>,
    by: By,
    code: u64,
    message: String,
    sliding: bool,
    pub shows_headers: bool,
    /// Settings of the policy by which nodes count together.
    policy: Map<String, Value>,
}

/// By what requests are counted.
#[derive(Clone)]
enum By {
    Consumer,
    /// A variable, for which the client's address stands in where it is absent.
    Variable(String),
}

impl Limit {
    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    pub(super) fn is_by_consumer_in_several_windows(&self) -> bool {
        matches!(self.by, By::Consumer) && self.windows.len() > 1
    }

    /// The configuration of limit-count. `authenticated` says whether all or none of its routes identify
    /// consumers.
    pub(super) fn value(&self, authenticated: Option<bool>, group: Option<String>) -> Value {
        let variable = match &self.by {
            By::Consumer if authenticated == Some(false) => "remote_addr",
            // With one window, the client's address stands in for a missing consumer.
            By::Consumer if authenticated.is_none() && self.windows.len() > 1 => "remote_addr",
            By::Consumer => "consumer_name",
            By::Variable(name) => name,
        };
        let mut value = match self.windows.as_slice() {
            [(_, seconds, count)] => json!({"count": count, "time_window": seconds, "key": variable}),
            windows => {
                // Rules need different keys.
                let rule = |(name, seconds, count): &(String, u64, u64)| {
                    let key = format!("{name} ${variable}");
                    json!({"count": count, "time_window": seconds, "key": key, "header_prefix": capitalised(name)})
                };
                json!({"rules": windows.iter().map(rule).collect::<Vec<_>>()})
            }
        };
        value["rejected_code"] = json!(self.code);
        value["_meta"] = json!({"error_response": {"message": self.message}});
        if self.sliding {
            value["window_type"] = json!("sliding");
        }
        if !self.shows_headers {
            value["show_limit_quota_header"] = json!(false);
        }
        if let Some(group) = group {
            value["group"] = json!(group);
        }
        for (name, setting) in &self.policy {
            value[name] = setting.clone();
        }
        value
    }
}

fn capitalised(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

pub(super) fn rate_limiting(config: &Entity<'_>, node: &Node<'_>, notes: &mut Notes) -> Option<Limit> {
    let windows: Vec<(String, u64, u64)> = WINDOWS
        .iter()
        .filter_map(|(name, seconds)| Some(((*name).to_owned(), *seconds, config.get(name)?.f64()? as u64)))
        .filter(|(.., count)| *count > 0)
        .collect();
    let limit = common(config, node, windows, notes);
    let policy = redis::basic(config, notes);
    limit.map(|limit| Limit { policy, ..limit })
}

pub(super) fn advanced(config: &Entity<'_>, node: &Node<'_>, notes: &mut Notes) -> Option<Limit> {
    let numbers = |name: &str| -> Vec<u64> {
        let Some(node) = config.get(name) else { return Vec::new() };
        let items = node.items();
        if items.is_empty() {
            node.u64().into_iter().collect()
        } else {
            items.iter().filter_map(|item| item.u64()).collect()
        }
    };
    let windows = numbers("limit").into_iter().zip(numbers("window_size"));
    let windows: Vec<(String, u64, u64)> = windows
        .filter(|(count, seconds)| *count > 0 && *seconds > 0)
        .map(|(count, seconds)| (format!("{seconds}s"), seconds, count))
        .collect();
    let sliding = config.text("window_type").as_deref() != Some("fixed");
    let limit = common(config, node, windows, notes);
    let policy = redis::advanced(config, notes);
    for name in
        ["namespace", "dictionary_name", "disable_penalty", "retry_after_jitter_max", "lock_dictionary_name"]
    {
        config.get(name).map(|node| node.whole());
    }
    limit.map(|limit| Limit { sliding, policy, ..limit })
}

fn common(
    config: &Entity<'_>,
    node: &Node<'_>,
    windows: Vec<(String, u64, u64)>,
    notes: &mut Notes,
) -> Option<Limit> {
    let by = config
        .text("limit_by")
        .or_else(|| config.text("identifier"))
        .unwrap_or_else(|| "consumer".to_owned());
    let header = config
        .text("header_name")
        .map(|name| format!("http_{}", name.to_ascii_lowercase().replace('-', "_")));
    let path = config.text("path");
    let by_node = config.get("limit_by").or_else(|| config.get("identifier"));
    let by = match (by.as_str(), header) {
        ("ip", _) => By::Variable("remote_addr".to_owned()),
        ("service", _) => By::Variable("service_id".to_owned()),
        ("header", Some(header)) => By::Variable(header),
        ("path", _) => {
            if let Some(node) = &by_node {
                notes.behaviour(
                    node,
                    format!(
                        "`path` is not supported: all paths count by address, {} too",
                        path.unwrap_or_default()
                    ),
                );
            }
            By::Variable("remote_addr".to_owned())
        }
        ("credential", _) => {
            if let Some(node) = &by_node {
                notes.behaviour(node, "the credentials of a consumer are counted together");
            }
            By::Consumer
        }
        ("consumer", _) => By::Consumer,
        (other, _) => {
            if let Some(node) = &by_node {
                notes.behaviour(
                    node,
                    format!("`{other}` is not supported: counted by consumer, or by address"),
                );
            }
            By::Consumer
        }
    };
    let shows_headers = !config.bool("hide_client_headers", false);
    let code = config.u64("error_code").filter(|code| (200..600).contains(code)).unwrap_or(429);
    let message = config.text("error_message").unwrap_or_else(|| "API rate limit exceeded".to_owned());
    if windows.is_empty() {
        notes.guard(node, "has no limit");
        return None;
    }
    if shows_headers {
        notes.behaviour(
            node,
            if windows.len() == 1 {
                "a window begins with its first request instead of on the clock; `RateLimit-*` is sent, but neither `X-RateLimit-*` nor `Retry-After`"
            } else {
                "windows begin with their first request instead of on the clock; headers are named after the windows, as `Minute-RateLimit-Limit`"
            },
        );
    }
    Some(Limit { windows, by, code, message, sliding: false, shows_headers, policy: Map::new() })
}

/// The largest body of a request.
pub(super) fn body_size(config: &Entity<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let size = config.u64("allowed_payload_size").unwrap_or(128);
    let unit = match config.text("size_unit").as_deref() {
        Some("bytes") => 1,
        Some("kilobytes") => 1 << 10,
        _ => 1 << 20,
    };
    if let Some(node) = config.get("require_content_length").filter(|node| node.bool() == Some(true)) {
        notes.behaviour(&node, "bodies without `Content-Length` are measured instead of refused");
    }
    // Zero would be no limit.
    ("client-control", json!({"max_body_size": size.saturating_mul(unit).clamp(1, 1 << 50)}))
}
