//! The server of a route.

use serde_json::{Map, Value, json};

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub scheme: String,
    pub host: String,
    pub port: Option<u16>,
}

impl Address {
    /// Reads `scheme://host:port`; user, path and query have no effect, as in Spring.
    pub fn parse(url: &str) -> Option<Address> {
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                (host, port.strip_prefix(':'))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port.filter(|port| !port.is_empty()) {
            Some(port) => Some(port.parse().ok().filter(|port| *port != 0)?),
            None => None,
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let valid = !host.is_empty() && host.len() <= 253 && host.chars().all(fits);
        let scheme = scheme.to_ascii_lowercase();
        valid.then(|| Address { scheme, host: host.to_owned(), port })
    }

    pub fn is_secure(&self) -> bool {
        matches!(self.scheme.as_str(), "https" | "wss")
    }

    fn node(&self) -> Value {
        let port = self.port.unwrap_or(if self.is_secure() { 443 } else { 80 });
        json!({"host": self.host, "port": port, "weight": 1})
    }
}

/// An upstream of these servers, which share a scheme.
pub fn of_addresses(addresses: &[Address]) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("nodes".to_owned(), addresses.iter().map(Address::node).collect::<Vec<_>>().into());
    if addresses.first().is_some_and(Address::is_secure) {
        map.insert("scheme".to_owned(), json!("https"));
    }
    map
}

/// TLS asks for the name of the server, also where it gets another `Host`, unless several servers have several names.
pub fn ask_for_nodes(upstream: &Map<String, Value>, tls: &mut Value) {
    let hosts: Vec<&Value> = upstream
        .get("nodes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|node| &node["host"])
        .collect();
    if let Some(first) = hosts.first().filter(|first| hosts.iter().all(|host| host == *first)) {
        tls["sni"] = (*first).clone();
    }
}

/// An upstream of one server.
pub fn nodes(host: &str, port: u16) -> Map<String, Value> {
    of_addresses(&[Address { scheme: "http".to_owned(), host: host.to_owned(), port: Some(port) }])
}

/// The upstream, with 500 as the answer where no server answers, as in Spring.
pub fn answering(mut upstream: Map<String, Value>) -> Map<String, Value> {
    let has_servers =
        upstream.get("nodes").is_none_or(|nodes| nodes.as_array().is_none_or(|all| !all.is_empty()));
    if has_servers {
        let own = upstream.entry("sluice").or_insert_with(|| json!({}));
        own["failure_status"] = json!(500);
    }
    upstream
}

/// An upstream without a server, which answers 503.
pub fn no_nodes() -> Map<String, Value> {
    of_addresses(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let address = |url: &str| Address::parse(url).map(|a| (a.scheme, a.host, a.port));
        let found = |scheme: &str, host: &str, port| Some((scheme.to_owned(), host.to_owned(), port));
        assert_eq!(address("http://a:8081"), found("http", "a", Some(8081)));
        assert_eq!(address("HTTPS://user:p@a.test/x?y"), found("https", "a.test", None));
        assert_eq!(address("ws://[::1]:80"), found("ws", "::1", Some(80)));
        assert_eq!(address("lb://my_service"), found("lb", "my_service", None));
        for url in ["localhost:8081", "http://", "http://a:0", "http://a:x", "http://a b", "http://[::1"] {
            assert_eq!(address(url), None, "{url}");
        }
    }
}
