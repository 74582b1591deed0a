//! Plugins that change requests and responses.

use serde_json::{Map, Value, json};

use super::super::entities::Entity;
use super::super::rewrite::PathRewrite;
use super::Notes;
use crate::node::Node;

/// Changes of requests, a part of proxy-rewrite.
#[derive(Default, Clone)]
pub(super) struct Rewrite {
    method: Option<String>,
    uri: Option<String>,
    host: Option<String>,
    set: Map<String, Value>,
    add: Map<String, Value>,
    remove: Vec<String>,
    /// Changes of the query.
    query: Query,
}

/// `query` of proxy-rewrite: removed arguments, and maps by their action.
#[derive(Default, Clone)]
struct Query {
    remove: Vec<String>,
    maps: Vec<(&'static str, Map<String, Value>)>,
}

impl Query {
    fn insert(&mut self, action: &'static str, name: String, value: String) {
        match self.maps.iter_mut().find(|(known, _)| *known == action) {
            Some((_, map)) => _ = map.insert(name, json!(value)),
            None => self.maps.push((action, Map::from_iter([(name, json!(value))]))),
        }
    }

    fn value(&self) -> Option<Value> {
        let mut value: Map<String, Value> =
            self.maps.iter().map(|(action, map)| ((*action).to_owned(), json!(map))).collect();
        if !self.remove.is_empty() {
            value.insert("remove".to_owned(), json!(self.remove));
        }
        (!value.is_empty()).then_some(Value::Object(value))
    }
}

impl Rewrite {
    /// Takes over the changes of another.
    pub(super) fn merge(&mut self, other: &Rewrite) {
        self.method = other.method.clone().or(self.method.take());
        self.uri = other.uri.clone().or(self.uri.take());
        self.host = other.host.clone().or(self.host.take());
        self.set.extend(other.set.clone());
        self.add.extend(other.add.clone());
        self.remove.extend(other.remove.iter().cloned());
        self.query.remove.extend(other.query.remove.iter().cloned());
        for (action, map) in &other.query.maps {
            for (name, value) in map {
                self.query.insert(action, name.clone(), value.as_str().unwrap_or_default().to_owned());
            }
        }
    }

    /// The configuration of proxy-rewrite with the path of a route; none if nothing changes.
    pub(super) fn value(&self, path: Option<PathRewrite>) -> Option<Value> {
        let mut value = Map::new();
        let mut set = Map::new();
        if let Some(uri) = &self.uri {
            value.insert("uri".to_owned(), json!(uri));
        } else if let Some(path) = path {
            if path.captures_prefix && self.uri.is_none() {
                set.insert("X-Forwarded-Prefix".to_owned(), json!("$1"));
            }
            value.insert("regex_uri".to_owned(), json!(path.pairs));
        }
        if let Some(query) = self.query.value() {
            value.insert("query".to_owned(), query);
        }
        if let Some(method) = &self.method {
            value.insert("method".to_owned(), json!(method));
        }
        if let Some(host) = &self.host {
            value.insert("host".to_owned(), json!(host));
        }
        set.extend(self.set.clone());
        let mut headers = Map::new();
        if !set.is_empty() {
            headers.insert("set".to_owned(), Value::Object(set));
        }
        if !self.add.is_empty() {
            headers.insert("add".to_owned(), Value::Object(self.add.clone()));
        }
        if !self.remove.is_empty() {
            headers.insert("remove".to_owned(), json!(self.remove));
        }
        if !headers.is_empty() {
            value.insert("headers".to_owned(), Value::Object(headers));
        }
        (!value.is_empty()).then_some(Value::Object(value))
    }
}

/// `name:value` entries of a list, with their places.
fn pairs<'a>(config: &Entity<'a>, action: &str, part: &str) -> Vec<(String, String, Node<'a>)> {
    let Some(action) = config.get(action) else { return Vec::new() };
    let list = action.some(part).map(|node| node.items()).unwrap_or_default();
    let pair = |node: Node<'a>| {
        let text = node.text()?;
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        let name = name.trim().to_owned();
        (!name.is_empty()).then(|| (name, value.trim().to_owned(), node))
    };
    list.into_iter().filter_map(pair).collect()
}

pub(super) fn request(config: &Entity<'_>, notes: &mut Notes) -> Rewrite {
    let mut rewrite = Rewrite::default();
    if let Some(node) = config.get("http_method") {
        let method = node.text().unwrap_or_default().to_ascii_uppercase();
        let known = ["GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE"];
        match known.contains(&method.as_str()) {
            true => rewrite.method = Some(method),
            false => notes.behaviour(&node, format!("`{method}` is not supported")),
        }
    }
    for (name, _, _) in pairs(config, "remove", "headers") {
        rewrite.remove.push(name);
    }
    for (old, new, node) in pairs(config, "rename", "headers") {
        if new.is_empty() {
            continue;
        }
        notes.behaviour(&node, format!("a request that has `{new}` but not `{old}` loses it"));
        rewrite.set.insert(new, json!(format!("${}", variable("http", &old))));
        rewrite.remove.push(old);
    }
    for (name, value, node) in pairs(config, "replace", "headers") {
        let Some(value) = template(&value, &node, notes) else { continue };
        if name.eq_ignore_ascii_case("host") {
            rewrite.host = Some(value);
            continue;
        }
        notes.behaviour(&node, format!("`{name}` is set on all requests, also on those without it"));
        rewrite.set.insert(name, json!(value));
    }
    for (name, value, node) in pairs(config, "add", "headers") {
        let Some(value) = template(&value, &node, notes) else { continue };
        if name.eq_ignore_ascii_case("host") || value.is_empty() {
            continue;
        }
        let text = unless_present(&variable("http", &name), &value).unwrap_or_else(|| {
            notes.behaviour(&node, format!("`{name}` is set on all requests, also on those that have it"));
            value
        });
        rewrite.set.insert(name, json!(text));
    }
    for (name, value, node) in pairs(config, "append", "headers") {
        if let Some(value) = template(&value, &node, notes) {
            rewrite.add.insert(name, json!(value));
        }
    }
    for (name, _, _) in pairs(config, "remove", "querystring") {
        rewrite.query.remove.push(name);
    }
    for (old, new, _) in pairs(config, "rename", "querystring") {
        if !new.is_empty() {
            rewrite.query.insert("rename", old, new);
        }
    }
    for (action, ours) in [("replace", "replace"), ("add", "default"), ("append", "add")] {
        for (name, value, node) in pairs(config, action, "querystring") {
            if let Some(value) = template(&value, &node, notes) {
                rewrite.query.insert(ours, name, value);
            }
        }
    }
    if let Some(node) = config.get("replace").and_then(|replace| replace.some("uri")) {
        let uri = node.text().and_then(|text| template(&text, &node, notes));
        rewrite.uri = uri.filter(|uri| uri.starts_with('/'));
    }
    for (action, parts) in [
        ("remove", &["body"][..]),
        ("rename", &["body"]),
        ("replace", &["body"]),
        ("add", &["body"]),
        ("append", &["body"]),
    ] {
        unsupported(config, action, parts, "requests", notes);
    }
    if let Some(node) = config.get("allow") {
        node.whole();
        notes.behaviour(&node, "not supported: bodies pass unchanged");
    }
    config.get("dots_in_keys").map(|node| node.whole());
    rewrite
}

fn unsupported(config: &Entity<'_>, action: &str, parts: &[&str], which: &str, notes: &mut Notes) {
    for part in parts {
        if let Some(node) = config.get(action).and_then(|action| action.some(part))
            && !node.items().is_empty()
        {
            node.whole();
            notes.behaviour(&node, format!("not supported: this part of {which} passes unchanged"));
        }
    }
}

/// The value of a header unless the message has the header already.
fn unless_present(variable: &str, value: &str) -> Option<String> {
    let fits = !value.contains(['}', '$']) && !value.is_empty();
    fits.then(|| format!("${{{variable} ?? {value}}}"))
}

/// The variable of a header or an argument.
fn variable(kind: &str, name: &str) -> String {
    match kind {
        "arg" => format!("arg_{name}"),
        kind => format!("{kind}_{}", name.to_ascii_lowercase().replace('-', "_")),
    }
}

/// A value of request-transformer, with its templates `$(headers.name)` and `$(query_params.name)` as variables.
fn template(value: &str, node: &Node<'_>, notes: &mut Notes) -> Option<String> {
    let (mut out, mut rest) = (String::new(), value);
    while let Some(at) = rest.find("$(") {
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = inner.find(')');
        let found = end.and_then(|end| {
            let name = inner[..end].trim();
            let name = name.replace("['", ".").replace("[\"", ".").replace(['\'', '"', ']'], "");
            let (kind, name) = name.split_once('.')?;
            let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            match kind {
                "headers" if fits => Some(variable("http", name)),
                "query_params" if fits => Some(variable("arg", name)),
                _ => None,
            }
        });
        let (Some(found), Some(end)) = (found, end) else {
            notes.behaviour(node, "the template is not supported, so the value is left out");
            return None;
        };
        out.push_str(&format!("${{{found}}}"));
        rest = &inner[end + 1..];
    }
    if rest.contains('$') {
        notes.behaviour(node, "a dollar sign begins a variable here, so the value is left out");
        return None;
    }
    out.push_str(rest);
    Some(out)
}

pub(super) fn response(config: &Entity<'_>, notes: &mut Notes) -> Option<(&'static str, Value)> {
    let (mut set, mut add, mut remove) = (Map::new(), Vec::new(), Vec::new());
    for (name, _, _) in pairs(config, "remove", "headers") {
        remove.push(name);
    }
    for (old, new, _) in pairs(config, "rename", "headers") {
        if !new.is_empty() {
            // Where the old one is absent, the new one stays as it is.
            let (old_variable, new_variable) =
                (variable("upstream_http", &old), variable("upstream_http", &new));
            set.insert(new, json!(format!("${{{old_variable}}}${{{new_variable}}}")));
            remove.push(old);
        }
    }
    for (name, value, node) in pairs(config, "replace", "headers") {
        notes.behaviour(&node, format!("`{name}` is set on all responses, also on those without it"));
        set.insert(name, json!(value));
    }
    for (name, value, node) in pairs(config, "add", "headers") {
        if value.is_empty() {
            continue;
        }
        let text = unless_present(&variable("sent_http", &name), &value).unwrap_or_else(|| {
            notes.behaviour(&node, format!("`{name}` is set on all responses, also on those that have it"));
            value
        });
        set.insert(name, json!(text));
    }
    for (name, value, node) in pairs(config, "append", "headers") {
        match value.contains(':') || value.ends_with('/') || value.is_empty() {
            true => notes.behaviour(&node, "a value with a colon cannot be appended"),
            false => add.push(format!("{name}: {value}")),
        }
    }
    for action in ["remove", "rename", "replace", "add", "append"] {
        unsupported(config, action, &["json"], "responses", notes);
        for part in ["json_types", "if_status"] {
            config.get(action).and_then(|action| action.some(part)).map(|node| node.whole());
        }
    }
    if let Some(node) = config.get("replace").and_then(|replace| replace.some("body")) {
        notes.behaviour(&node, "not supported: bodies pass unchanged");
    }
    let mut headers = Map::new();
    if !set.is_empty() {
        headers.insert("set".to_owned(), Value::Object(set));
    }
    if !add.is_empty() {
        headers.insert("add".to_owned(), json!(add));
    }
    if !remove.is_empty() {
        headers.insert("remove".to_owned(), json!(remove));
    }
    (!headers.is_empty()).then(|| ("response-rewrite", json!({ "headers": headers })))
}

pub(super) fn correlation_id(config: &Entity<'_>, notes: &mut Notes) -> (&'static str, Value) {
    let name = config.text("header_name").unwrap_or_else(|| "Kong-Request-ID".to_owned());
    let generator = config.text("generator");
    let node = config.get("generator").unwrap_or_else(|| config.node.clone());
    if generator.as_deref() != Some("uuid") {
        notes.behaviour(&node, "identifiers are UUIDs without a counter behind them");
    }
    let echo = config.bool("echo_downstream", false);
    ("request-id", json!({"header_name": name, "include_in_response": echo}))
}
