//! The nodes of an upstream, in both forms they are written in.

use std::net::{IpAddr, Ipv6Addr};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Scheme;
use crate::Invalid;
use crate::field::typed;

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// An IPv4 address, an IPv6 address without brackets, or a name.
    pub host: String,
    /// As written, or the scheme's own.
    pub port: u16,
    /// Zero gets no requests.
    pub weight: u32,
    /// Higher tiers first; lower ones only while the higher have no usable node.
    pub priority: i64,
    /// Boxed, for few nodes have any.
    pub metadata: Option<Box<Map<String, Value>>>,
}

impl Node {
    /// `host:port`, an IPv6 host in brackets.
    pub fn authority(&self) -> String {
        if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The address, if the host is not a name.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

/// Why nothing can be reached under a host, if it is neither an address nor a name (RFC 1123 section 2.1, with
/// underscores). APISIX stores such nodes, so they are accepted all the same.
pub fn fault_of_host(host: &str) -> Option<Invalid> {
    let shown = host.escape_debug();
    if host.parse::<IpAddr>().is_ok() {
        return None;
    }
    if let Some((scheme, rest)) = host.split_once("://") {
        return Some(Invalid::new(format!("`{shown}` is a URL, not a host")).hint(format!(
            "write `{}`; `{}` goes into the upstream's `scheme`",
            rest.escape_debug(),
            scheme.escape_debug()
        )));
    }
    if host.contains('/') {
        return Some(
            Invalid::new(format!("`{shown}` is no host name: it has a path"))
                .hint("write `host:port`; proxy-rewrite changes the path of requests"),
        );
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if let Some(wrong) =
        name.chars().find(|&c| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-_.".contains(c))
    {
        return Some(
            Invalid::new(format!("`{shown}` is no host name: it has `{}`", wrong.escape_debug()))
                .hint("write a name or an address that a server has"),
        );
    }
    let labels = name.split('.');
    if labels.clone().count() == 4
        && labels.clone().all(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Some(
            Invalid::new(format!("`{shown}` is no IPv4 address"))
                .hint("each of its four numbers is 0 to 255, without zeros before it"),
        );
    }
    let fits = name.len() <= 253 && labels.into_iter().all(|label| (1..=63).contains(&label.len()));
    (!fits).then(|| {
        Invalid::new(format!("`{shown}` is no host name"))
            .hint("between its dots it has 1 to 63 characters, and 253 in all")
    })
}

#[derive(Deserialize)]
struct WrittenNode {
    host: String,
    port: Option<u16>,
    weight: u32,
    #[serde(default)]
    priority: i64,
    metadata: Option<Box<Map<String, Value>>>,
}

/// One list from both forms: `{"host:port": weight}` and `[{host, port, weight, …}]`.
pub(super) fn read(value: Option<Value>, scheme: Scheme) -> Result<Vec<Node>, Invalid> {
    let mut nodes = read_all(value, scheme)?;
    // There may be a hundred thousand of these lists.
    nodes.shrink_to_fit();
    Ok(nodes)
}

fn read_all(value: Option<Value>, scheme: Scheme) -> Result<Vec<Node>, Invalid> {
    match value {
        Some(Value::Object(map)) => {
            map.into_iter().map(|(address, weight)| node_of(&address, weight, scheme)).collect()
        }
        Some(list @ Value::Array(_)) => {
            let written: Vec<WrittenNode> = typed(list).map_err(|invalid| invalid.under("/nodes"))?;
            let node = |(at, node): (usize, WrittenNode)| {
                // A port in the host goes before the one beside it, as NGINX reads addresses.
                let placed = |invalid: Invalid| invalid.within(at).under("/nodes");
                let (host, port) = match split_address(&node.host) {
                    (host, Some(port)) => {
                        (host, Some(port_of(port).map_err(|invalid| placed(invalid.at("/host")))?))
                    }
                    (host, None) => (host, node.port),
                };
                Ok(Node {
                    port: port_or_default(port, scheme).map_err(placed)?,
                    host: without_brackets(host).to_owned(),
                    weight: node.weight,
                    priority: node.priority,
                    metadata: node.metadata,
                })
            };
            written.into_iter().enumerate().map(node).collect()
        }
        _ => Ok(Vec::new()),
    }
}

fn node_of(address: &str, weight: Value, scheme: Scheme) -> Result<Node, Invalid> {
    let placed = |invalid: Invalid| invalid.within(address).under("/nodes");
    let (host, port) = split_address(address);
    if without_brackets(host).is_empty() {
        return Err(placed(Invalid::new("missing host in node").expected("host:port")));
    }
    let port = port.map(port_of).transpose().map_err(placed)?;
    let weight = match u32::deserialize(&weight) {
        Ok(weight) => weight,
        Err(_) => {
            return Err(placed(
                Invalid::new(format!("invalid configuration: weight {weight} is out of range"))
                    .expected("a weight from 0 to 4294967295"),
            ));
        }
    };
    Ok(Node {
        host: without_brackets(host).to_owned(),
        port: port_or_default(port, scheme).map_err(placed)?,
        weight,
        priority: 0,
        metadata: None,
    })
}

/// Splits `host`, `host:port`, `1.2.3.4:80`, `[::1]:80`, `[::1]` and `::1`.
fn split_address(address: &str) -> (&str, Option<&str>) {
    if let Some(end) = address.rfind(']') {
        return (&address[..=end], address[end + 1..].strip_prefix(':'));
    }
    match address.split_once(':') {
        Some((_, rest)) if rest.contains(':') => (address, None),
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    }
}

fn port_of(text: &str) -> Result<u16, Invalid> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Invalid::new(format!("invalid port {text}")).expected("a port from 1 to 65535")),
    }
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn port_or_default(port: Option<u16>, scheme: Scheme) -> Result<u16, Invalid> {
    port.or(scheme.default_port()).ok_or_else(|| {
        Invalid::new(
            "Can't detect upstream's scheme. You should either specify a port in the node or specify the \
             upstream.scheme explicitly",
        )
        .expected("a port")
        .got(format!("no port, with scheme {}", scheme.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_may_bring_its_port() {
        for (node, authority) in [
            (json!({"host": "127.0.0.1:1980", "weight": 1}), "127.0.0.1:1980"),
            (json!({"host": "a.test:81", "port": 82, "weight": 1}), "a.test:81"),
            (json!({"host": "[::1]:81", "weight": 1}), "[::1]:81"),
            (json!({"host": "::1", "port": 82, "weight": 1}), "[::1]:82"),
            (json!({"host": "a.test", "weight": 1}), "a.test:80"),
        ] {
            let nodes = read(Some(json!([node])), Scheme::Http).unwrap();
            assert_eq!(nodes[0].authority(), authority);
        }
        for host in ["a.test:0", "a.test:99999", "[::1]:x"] {
            let nodes = json!([{"host": host, "port": 82, "weight": 1}]);
            let invalid = read(Some(nodes), Scheme::Http).unwrap_err();
            assert_eq!(invalid.pointer, "/nodes/0/host", "{host}: {}", invalid.reason);
        }
    }

    #[test]
    fn hosts_under_which_nothing_can_be_reached() {
        for host in ["127.0.0.1", "::1", "a.test", "A-b.test.", "1.2.3", "_sip.a_b", "bücher.test", "7"] {
            assert_eq!(fault_of_host(host), None, "{host}");
        }
        let long = "a".repeat(64);
        for (host, why) in [
            ("http://127.0.0.1:80", "`http://127.0.0.1:80` is a URL, not a host"),
            ("127.0.0.1/x", "`127.0.0.1/x` is no host name: it has a path"),
            ("a b", "`a b` is no host name: it has ` `"),
            ("a\n", "`a\\n` is no host name: it has `\\n`"),
            ("*", "`*` is no host name: it has `*`"),
            ("::1]", "`::1]` is no host name: it has `:`"),
            ("256.1.1.1", "`256.1.1.1` is no IPv4 address"),
            ("01.2.3.4", "`01.2.3.4` is no IPv4 address"),
            ("a..b", "`a..b` is no host name"),
            (".", "`.` is no host name"),
            (long.as_str(), &format!("`{long}` is no host name")),
        ] {
            assert_eq!(fault_of_host(host).expect(host).reason, why);
        }
        let hint = fault_of_host("https://a.test:8080").and_then(|invalid| invalid.hint);
        assert_eq!(hint.as_deref(), Some("write `a.test:8080`; `https` goes into the upstream's `scheme`"));
    }

    #[test]
    fn addresses_split_into_host_and_port() {
        for (address, host, port) in [
            ("a.com", "a.com", None),
            ("a.com:80", "a.com", Some("80")),
            ("1.2.3.4:80", "1.2.3.4", Some("80")),
            ("[::1]:80", "[::1]", Some("80")),
            ("[::1]", "[::1]", None),
            ("::1", "::1", None),
            ("a:", "a", Some("")),
        ] {
            assert_eq!(split_address(address), (host, port), "{address}");
        }
    }
}
