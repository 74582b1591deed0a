//! The Redis in which nodes count together.

use serde_json::{Map, Value, json};

use crate::kong::certificates::secret_value;
use crate::kong::entities::Entity;
use crate::kong::plugins::Notes;
use crate::node::Node;

/// The settings of Redis and where they are: with a prefix in the plugin's own settings before Kong 3.8, in `redis` since.
struct Settings<'e, 'a> {
    config: &'e Entity<'a>,
    group: Option<Node<'a>>,
}

impl<'a> Settings<'_, 'a> {
    fn get(&self, name: &str) -> Option<Node<'a>> {
        let grouped = self.group.as_ref().and_then(|group| group.some(name));
        grouped.or_else(|| self.config.get(&format!("redis_{name}")))
    }

    fn bool(&self, name: &str) -> Option<bool> {
        self.get(name)?.bool()
    }
}

/// Of rate-limiting.
pub(super) fn basic(config: &Entity<'_>, notes: &mut Notes) -> Map<String, Value> {
    let settings = Settings { config, group: config.get("redis") };
    let mut policy = read(config, "policy", &settings, None, notes);
    if !policy.is_empty() && config.bool("fault_tolerant", true) {
        policy.insert("allow_degradation".to_owned(), json!(true));
    }
    finish(config, &settings);
    policy
}

/// Of rate-limiting-advanced, which admits requests while Redis does not answer.
pub(super) fn advanced(config: &Entity<'_>, notes: &mut Notes) -> Map<String, Value> {
    let settings = Settings { config, group: config.get("redis") };
    let mut policy = read(config, "strategy", &settings, Some("127.0.0.1"), notes);
    if !policy.is_empty() {
        policy.insert("allow_degradation".to_owned(), json!(true));
    }
    finish(config, &settings);
    policy
}

/// The settings of limit-count; empty if each node counts for itself.
fn read(
    config: &Entity<'_>,
    name: &str,
    settings: &Settings<'_, '_>,
    default_host: Option<&str>,
    notes: &mut Notes,
) -> Map<String, Value> {
    let node = config.get(name).filter(|node| node.str().is_some_and(|policy| policy != "local"));
    let Some(node) = node else { return Map::new() };
    let found = (node.str() == Some("redis")).then(|| server(settings, default_host)).flatten();
    let Some(mut found) = found else {
        notes.behaviour(&node, "each node counts for itself: with several nodes more requests pass");
        return Map::new();
    };
    if let Some(password) = settings.get("password") {
        match secret_value(&password) {
            Some(value) => _ = found.insert("redis_password".to_owned(), value),
            None => {
                let effect = "the password cannot be read: while Redis refuses the connection, requests may not be limited";
                notes.guard(&password, effect);
            }
        }
        if let Some(user) = settings.get("username").and_then(|user| secret_value(&user)) {
            found.insert("redis_username".to_owned(), user);
        }
    }
    // Kong counts at once where the rate is 0, and not together where it is negative.
    if let Some(rate) = config.get("sync_rate").and_then(|rate| rate.f64()).filter(|rate| *rate >= 0.1) {
        found.insert("sync_interval".to_owned(), json!(rate));
    }
    found
}

/// The address of the server or of a cluster; `None` if the file names none of these.
fn server(settings: &Settings<'_, '_>, default_host: Option<&str>) -> Option<Map<String, Value>> {
    let mut found = Map::new();
    let mut set = |name: &str, value: Value| _ = found.insert(name.to_owned(), value);
    let number = |name: &str| settings.get(name).and_then(|node| node.u64()).filter(|number| *number > 0);
    let timeout = number("timeout").or_else(|| number("read_timeout")).or_else(|| number("connect_timeout"));
    if let Some(timeout) = timeout {
        set("redis_timeout", json!(timeout));
    }
    let (tls, verify) = (settings.bool("ssl") == Some(true), settings.bool("ssl_verify") == Some(true));
    if settings.get("sentinel_addresses").is_some() || settings.get("sentinel_nodes").is_some() {
        return None;
    }
    if let Some(nodes) = settings.get("cluster_nodes").or_else(|| settings.get("cluster_addresses")) {
        let address = |node: &Node<'_>| {
            if let Some(text) = node.str() {
                return text.to_owned();
            }
            let host = node.some("ip").and_then(|host| host.text()).unwrap_or_else(|| "127.0.0.1".to_owned());
            format!("{host}:{}", node.some("port").and_then(|port| port.u64()).unwrap_or(6379))
        };
        let nodes: Vec<String> = nodes.items().iter().map(address).collect();
        if nodes.is_empty() || nodes.iter().any(|node| !(2..=100).contains(&node.len())) {
            return None;
        }
        set("policy", json!("redis-cluster"));
        set("redis_cluster_nodes", json!(nodes));
        set("redis_cluster_name", json!("kong"));
        if tls {
            set("redis_cluster_ssl", json!(true));
            set("redis_cluster_ssl_verify", json!(verify));
        }
        return Some(found);
    }
    let host =
        settings.get("host").and_then(|host| host.text()).or_else(|| default_host.map(str::to_owned))?;
    if host.len() < 2 || host.contains("${") {
        return None;
    }
    set("policy", json!("redis"));
    set("redis_host", json!(host));
    for (theirs, ours) in [("port", "redis_port"), ("database", "redis_database")] {
        if let Some(number) = number(theirs) {
            set(ours, json!(number));
        }
    }
    if tls {
        set("redis_ssl", json!(true));
        set("redis_ssl_verify", json!(verify));
    }
    Some(found)
}

/// Marks the settings that have no effect as read.
fn finish(config: &Entity<'_>, settings: &Settings<'_, '_>) {
    for name in ["sync_rate", "fault_tolerant"] {
        config.get(name).map(|node| node.whole());
    }
    if let Some(group) = &settings.group {
        group.whole();
    }
    for name in
        ["host", "port", "password", "username", "timeout", "database", "ssl", "ssl_verify", "server_name"]
    {
        config.get(&format!("redis_{name}")).map(|node| node.whole());
    }
}
