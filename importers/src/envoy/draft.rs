//! A route while it is read.

use model::Key;
use serde_json::{Map, Value, json};

use super::context::Report;
use super::matching::Matcher;
use super::plugins::Plugins;
use crate::node::Node;

/// A route before its place in the router is known.
pub(super) struct Draft {
    pub(super) name: String,
    pub(super) place: crate::Place,
    pub(super) matcher: Matcher,
    pub(super) plugins: Plugins,
    pub(super) upstream: Option<Key>,
    pub(super) timeout: Option<Value>,
    pub(super) websocket: bool,
    /// The upstream gets the name of the node as Host.
    pub(super) host_of_node: bool,
    /// Requests that no plugin sends elsewhere get 503.
    pub(super) nowhere: bool,
    pub(super) report: Report,
    /// For each filter of the connection manager, whether it applies.
    pub(super) filtered: Vec<bool>,
}

/// The objects around a route, from the nearest.
pub(super) struct Levels<'a> {
    pub(super) route: Node<'a>,
    pub(super) host: Node<'a>,
    pub(super) table: Node<'a>,
}

impl<'a> Levels<'a> {
    pub(super) fn all(&self) -> [&Node<'a>; 3] {
        [&self.route, &self.host, &self.table]
    }
}

/// A route in front of those of a virtual host, whose plugins answer.
pub(super) fn front(node: &Node<'_>, name: &str, matcher: Matcher, plugins: Plugins) -> Draft {
    Draft {
        name: name.to_owned(),
        place: node.place(),
        matcher,
        plugins,
        upstream: None,
        timeout: None,
        websocket: false,
        host_of_node: false,
        nowhere: false,
        report: Report::default(),
        filtered: Vec::new(),
    }
}

/// Settings of a filter in `typed_per_filter_config`, from the nearest level.
pub(super) fn override_of<'a>(levels: &Levels<'a>, names: &[&str]) -> Option<Node<'a>> {
    levels.all().into_iter().find_map(|level| {
        let all = level.any(&["typed_per_filter_config", "per_filter_config"])?;
        names.iter().find_map(|name| all.some(name))
    })
}

/// Joins changes of headers: `set` beats what is there.
pub(super) fn merge_headers(known: &mut Value, more: Map<String, Value>) {
    for (verb, changes) in more {
        match (known.get_mut(&verb), changes) {
            (Some(Value::Object(known)), Value::Object(changes)) => known.extend(changes),
            (Some(Value::Array(known)), Value::Array(mut changes)) => known.append(&mut changes),
            (_, changes) => known[verb.as_str()] = changes,
        }
    }
}

/// Sets the Host that the upstream gets.
pub(super) fn set_host(rewrite: &mut Map<String, Value>, host: &str) {
    let (name, port) = host.split_once(':').unwrap_or((host, "1"));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let fits = !name.is_empty()
        && name.chars().all(plain)
        && port.len() <= 5
        && port.bytes().all(|byte| byte.is_ascii_digit());
    if fits && !port.is_empty() {
        rewrite.insert("host".to_owned(), json!(host));
    } else {
        let headers = rewrite.entry("headers").or_insert_with(|| json!({}));
        merge_headers(headers, Map::from_iter([("set".to_owned(), json!({"Host": host}))]));
    }
}
