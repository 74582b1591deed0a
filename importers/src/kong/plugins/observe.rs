//! Caches and logs.

use serde_json::{Map, Value, json};

use super::super::certificates::secret;
use super::super::entities::Entity;
use super::Notes;
use crate::node::Node;

pub(super) fn proxy_cache(config: &Entity<'_>, node: &Node<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let list = |name: &str| config.get(name).map(|node| node.items()).unwrap_or_default();
    let statuses: Vec<u64> = list("response_code")
        .iter()
        .filter_map(|node| node.u64())
        .filter(|status| (200..600).contains(status))
        .collect();
    let (methods, other): (Vec<String>, Vec<String>) = config
        .texts("request_method")
        .into_iter()
        .partition(|method| ["GET", "HEAD", "POST"].contains(&method.as_str()));
    if let (Some(part), false) = (config.get("request_method"), other.is_empty()) {
        notes.behaviour(&part, format!("not cached: {}", other.join(", ")));
    }
    let mut value = json!({
        "cache_strategy": "memory",
        "cache_zone": "memory_cache",
        "cache_ttl": config.u64("cache_ttl").filter(|ttl| *ttl > 0).unwrap_or(300),
    });
    if !statuses.is_empty() {
        value["cache_http_status"] = json!(statuses);
    }
    if !methods.is_empty() {
        value["cache_method"] = json!(methods);
    }
    if config.bool("cache_control", false) {
        value["cache_control"] = json!(true);
    }
    let mut key = vec!["$host".to_owned(), "$uri".to_owned()];
    let arguments = config.texts("vary_query_params");
    match arguments.is_empty() {
        true => key[1] = "$request_uri".to_owned(),
        false => key.extend(arguments.iter().map(|name| format!("$arg_{name}"))),
    }
    key.extend(
        config
            .texts("vary_headers")
            .iter()
            .map(|name| format!("$http_{}", name.to_ascii_lowercase().replace('-', "_"))),
    );
    let fits = |part: &String| part.bytes().skip(1).all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if key.iter().all(fits) {
        value["cache_key"] = json!(key);
    } else {
        notes.behaviour(
            node,
            "a name in `vary_query_params` or `vary_headers` cannot be part of the key, so the whole URI is",
        );
    }
    notes.behaviour(
        node,
        "the state of the cache is in `Apisix-Cache-Status`, and answers of all content types are stored",
    );
    for name in
        ["content_type", "strategy", "memory", "storage_ttl", "response_headers", "redis", "bypass_on_err"]
    {
        config.get(name).map(|part| part.whole());
    }
    if config.bool("ignore_uri_case", false)
        && let Some(part) = config.get("ignore_uri_case")
    {
        notes.behaviour(&part, "not supported: paths in other cases are stored by themselves");
    }
    ("proxy-cache", value)
}

/// The finding that all logs have, and fields made by Lua.
fn entries(config: &Entity<'_>, node: &Node<'_>, notes: &mut Notes) {
    notes.behaviour(node, "entries have the fields of APISIX's loggers, or those of a `log_format`");
    if let Some(part) = config.get("custom_fields_by_lua") {
        part.whole();
        notes.behaviour(&part, "not supported: entries do not have these fields");
    }
    for name in ["keepalive", "queue", "retry_count", "queue_size", "flush_timeout", "content_type", "reopen"]
    {
        config.get(name).map(|part| part.whole());
    }
}

pub(super) fn http_log(
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> Option<(&'static str, Value)> {
    entries(config, node, notes);
    let uri = config.text("http_endpoint").and_then(|text| secret(&text))?;
    let mut value = json!({ "uri": uri });
    if let Some(timeout) = config.u64("timeout") {
        value["timeout"] = json!(timeout.div_ceil(1000).max(1));
    }
    if let Some(part) = config.get("method").filter(|part| part.str() != Some("POST")) {
        notes.behaviour(&part, "entries are sent by POST");
    }
    for (name, part) in config.get("headers").map(|part| part.members()).unwrap_or_default() {
        match name.eq_ignore_ascii_case("authorization") {
            true => value["auth_header"] = json!(part.texts().join(",")),
            false => {
                part.whole();
                notes.behaviour(&part, "not sent with entries");
            }
        }
    }
    let valid = uri.contains("://") && !uri.contains(char::is_whitespace);
    if !valid {
        notes.behaviour(node, "`http_endpoint` is no URL, so nothing is sent");
    }
    valid.then_some(("http-logger", value))
}

pub(super) fn tcp_log(
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> Option<(&'static str, Value)> {
    entries(config, node, notes);
    let (Some(host), Some(port)) = (config.text("host"), config.u64("port").filter(|port| *port < 65_536))
    else {
        notes.behaviour(node, "has no host and port, so nothing is sent");
        return None;
    };
    let mut value = Map::from_iter([("host".to_owned(), json!(host)), ("port".to_owned(), json!(port))]);
    if let Some(timeout) = config.u64("timeout").filter(|timeout| *timeout > 0) {
        value.insert("timeout".to_owned(), json!(timeout));
    }
    if config.bool("tls", false) {
        value.insert("tls".to_owned(), json!(true));
        value.extend(config.text("tls_sni").map(|name| ("tls_options".to_owned(), json!(name))));
    }
    Some(("tcp-logger", Value::Object(value)))
}

pub(super) fn file_log(
    config: &Entity<'_>,
    node: &Node<'_>,
    notes: &mut Notes,
) -> Option<(&'static str, Value)> {
    entries(config, node, notes);
    let path = config.text("path")?;
    Some(("file-logger", json!({ "path": path })))
}
