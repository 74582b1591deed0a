//! What a plugin may ask for while a stage is built.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::Invalid;
use serde_json::Value;

use crate::cache::Caches;
use crate::counters::Counters;
use crate::meters::Meters;
use crate::world::Target;

/// The resource whose configuration a stage comes from; names state that must
/// outlive configuration changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Collection, as in the Admin API's paths: `routes`, `services`, `consumers`, …
    pub collection: &'static str,
    pub id: String,
}

/// The node's own services, made once at start and handed to every stage that asks.
#[derive(Debug, Clone)]
pub struct Services {
    pub counters: Arc<Counters>,
    pub caches: Arc<Caches>,
    pub meters: Arc<Meters>,
}

impl Services {
    /// Small, private services for one test.
    #[cfg(any(test, feature = "testing"))]
    pub fn for_tests() -> Services {
        Services { counters: Arc::default(), caches: Arc::default(), meters: Arc::default() }
    }
}

/// Addresses of host names, looked up before compiling. Pure: the same names give
/// the same answers within one compile.
pub trait Names {
    /// Known addresses of a host; empty while it is not resolved. The name is
    /// remembered, so that the control plane looks it up and compiles again.
    fn addresses(&self, host: &str) -> Vec<IpAddr>;
}

/// The context in which one stage is built.
pub struct Build<'a> {
    pub owner: &'a Owner,
    pub services: &'a Services,
    /// The plugin's metadata resource, if there is one.
    pub metadata: Option<&'a Value>,
    /// The plugin's `plugin_attr` in config.yaml, if any.
    pub attr: Option<&'a Value>,
    pub names: &'a dyn Names,
}

impl Build<'_> {
    /// Turns `http://host[:port]` (or https) into a target. A name that is not
    /// resolved yet gives a target without addresses.
    pub fn target(&self, url: &str) -> Result<Target, Invalid> {
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(Invalid::new(format!("`{url}` must begin with http:// or https://"))),
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let (host, port) = split_authority(authority, if tls { 443 } else { 80 })
            .ok_or_else(|| Invalid::new(format!("`{url}` holds no valid host and port")))?;
        let addresses = match host.parse::<IpAddr>() {
            Ok(ip) => vec![ip],
            Err(_) => self.names.addresses(host),
        };
        Ok(Target {
            authority: authority.to_owned(),
            addresses: addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect(),
            tls,
        })
    }
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port`.
pub fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some("")))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, Some("")),
        },
    };
    if host.is_empty() {
        return None;
    }
    let port = match port? {
        "" => default_port,
        digits => digits.parse().ok().filter(|&port| port != 0)?,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::split_authority;

    #[test]
    fn authorities_split_as_written() {
        assert_eq!(split_authority("a.b", 80), Some(("a.b", 80)));
        assert_eq!(split_authority("a.b:81", 80), Some(("a.b", 81)));
        assert_eq!(split_authority("[::1]:81", 80), Some(("::1", 81)));
        assert_eq!(split_authority("[::1]", 443), Some(("::1", 443)));
        for bad in ["", ":80", "a:0", "a:70000", "a:b", "[::1", "[::1]x"] {
            assert_eq!(split_authority(bad, 80), None, "{bad}");
        }
    }
}
