//! The Redis that an application counts in.

use serde_json::{Map, Value, json};

use crate::spring::settings::{Item, Settings};
use crate::spring::units;

/// The settings of the policy by which limits are counted in the Redis that the file names; `None` if it names none
/// that limits can be counted in. Spring admits requests while Redis does not answer.
pub fn policy(settings: &Settings<'_>) -> Option<Map<String, Value>> {
    let redis = settings.get("spring.data.redis").or_else(|| settings.get("spring.redis"))?;
    let text = |item: &Item<'_>, name: &str| item.get(name).and_then(|item| item.some());
    let mut found = Map::from_iter([("allow_degradation".to_owned(), json!(true))]);
    let mut set = |name: &str, value: Value| _ = found.insert(name.to_owned(), value);
    let timeout = text(&redis, "timeout").and_then(|text| units::seconds(&text));
    if let Some(timeout) = timeout.filter(|timeout| *timeout > 0.0) {
        set("redis_timeout", json!(((timeout * 1000.0) as u64).clamp(1, 3_600_000)));
    }
    let ssl = redis.get("ssl");
    let is_secure = ssl.is_some_and(|ssl| {
        ssl.bool().or_else(|| ssl.get("enabled")?.bool()).unwrap_or(ssl.get("bundle").is_some())
    });
    let password = text(&redis, "password");
    if let Some(nodes) = redis.get("cluster").and_then(|cluster| cluster.get("nodes")) {
        let nodes: Vec<String> = nodes
            .texts()
            .iter()
            .flat_map(|text| text.split(','))
            .map(|node| node.trim().to_owned())
            .collect();
        if nodes.is_empty() || nodes.iter().any(|node| node.len() < 2) {
            return None;
        }
        set("policy", json!("redis-cluster"));
        set("redis_cluster_nodes", json!(nodes));
        set("redis_cluster_name", json!("spring"));
        set("redis_cluster_ssl", json!(is_secure));
        set("redis_cluster_ssl_verify", json!(is_secure));
        if let Some(password) = password {
            set("redis_password", json!(password));
        }
        return Some(found);
    }
    if redis.get("sentinel").is_some() {
        return None;
    }
    let url = text(&redis, "url").and_then(|url| Url::read(&url));
    let host = url.as_ref().map(|url| url.host.clone()).or_else(|| text(&redis, "host"))?;
    if host.len() < 2 {
        return None;
    }
    set("policy", json!("redis"));
    set("redis_host", json!(host));
    let port = url.as_ref().map_or_else(|| redis.get("port").and_then(|port| port.u64()), |url| url.port);
    if let Some(port) = port.filter(|port| (1..=65_535).contains(port)) {
        set("redis_port", json!(port));
    }
    let from_url = url.as_ref().map(|url| (url.user.clone(), url.password.clone()));
    let (user, password) = match from_url {
        Some((user, Some(password))) => (user, Some(password)),
        _ => (text(&redis, "username"), password),
    };
    if let Some(password) = password {
        set("redis_password", json!(password));
        if let Some(user) = user.filter(|user| !user.is_empty()) {
            set("redis_username", json!(user));
        }
    }
    if let Some(database) = redis.get("database").and_then(|database| database.u64()) {
        set("redis_database", json!(database));
    }
    if is_secure || url.is_some_and(|url| url.tls) {
        set("redis_ssl", json!(true));
        set("redis_ssl_verify", json!(true));
    }
    Some(found)
}

/// `redis://user:password@host:port`, or `rediss:` for TLS.
struct Url {
    host: String,
    port: Option<u64>,
    user: Option<String>,
    password: Option<String>,
    tls: bool,
}

impl Url {
    fn read(url: &str) -> Option<Url> {
        let (scheme, rest) = url.split_once("://")?;
        let tls = match scheme {
            "redis" => false,
            "rediss" => true,
            _ => return None,
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let (login, address) =
            authority.rsplit_once('@').map_or(("", authority), |(login, rest)| (login, rest));
        let (user, password) = login.split_once(':').map_or((None, None), |(user, password)| {
            (Some(user.to_owned()), (!password.is_empty()).then(|| password.to_owned()))
        });
        let (host, port) =
            address.rsplit_once(':').map_or((address, None), |(host, port)| (host, port.parse().ok()));
        (!host.is_empty() && !host.starts_with('[')).then(|| Url {
            host: host.to_owned(),
            port,
            user,
            password,
            tls,
        })
    }
}
