//! The objects of Kubernetes that tell of endpoints, as far as they matter here.

use model::Node;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::Ports;

/// The label of a slice that names its service.
const SERVICE: &str = "kubernetes.io/service-name";

/// The most nodes of one object. A client that may write to a namespace can name many addresses and many ports in one
/// object, and their product is far larger than the API server lets an object be.
const MOST_PAIRS: usize = 100_000;

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub metadata: PageMetadata,
    #[serde(default, deserialize_with = "or_default")]
    pub items: Vec<Object>,
}

#[derive(Debug, Deserialize)]
pub(super) struct PageMetadata {
    #[serde(rename = "resourceVersion", default)]
    pub version: String,
    #[serde(rename = "continue")]
    pub next: Option<String>,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub change: Change,
    pub object: Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Change {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    #[serde(other)]
    Other,
}

/// An `Endpoints`, an `EndpointSlice`, or the `Status` of an error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Object {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    /// Of a `Status`.
    pub code: Option<u16>,
    #[serde(deserialize_with = "or_default")]
    subsets: Vec<Subset>,
    #[serde(deserialize_with = "or_default")]
    endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<Port>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    #[serde(rename = "resourceVersion")]
    pub version: Option<String>,
    #[serde(deserialize_with = "or_default")]
    labels: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Subset {
    #[serde(default, deserialize_with = "or_default")]
    addresses: Vec<Address>,
    #[serde(default, deserialize_with = "or_default")]
    ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
struct Address {
    ip: String,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    #[serde(default, deserialize_with = "or_default")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    conditions: Conditions,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    /// Unknown counts as ready, as the API says.
    ready: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
    #[serde(rename = "targetPort")]
    target: Option<Value>,
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Object {
    /// `namespace/name` of its service, and its own name there.
    pub fn names(&self, is_slice: bool) -> Option<(String, String)> {
        let namespace = self.metadata.namespace.as_deref()?;
        let name = self.metadata.name.as_deref()?;
        match is_slice {
            true => Some((format!("{namespace}/{}", self.metadata.labels.get(SERVICE)?), name.to_owned())),
            false => Some((format!("{namespace}/{name}"), String::new())),
        }
    }

    /// The nodes that are ready, by the name of a port, or its number where it has none: each address with each
    /// port, up to [`MOST_PAIRS`].
    pub fn ports(&self, weight: u32) -> Ports {
        let mut all = Ports::new();
        let mut room = MOST_PAIRS;
        let mut add = |port: &Port, hosts: &mut dyn Iterator<Item = &str>| {
            let Some(number) = port.port else { return };
            let name = match (&port.name, &port.target) {
                (Some(name), _) if !name.is_empty() => name.clone(),
                (_, Some(Value::String(target))) => target.clone(),
                (_, Some(Value::Number(target))) => target.to_string(),
                _ => number.to_string(),
            };
            let node = |host: &str| Node {
                host: host.to_owned(),
                port: number,
                weight,
                priority: 0,
                metadata: None,
            };
            let nodes = all.entry(name).or_default();
            let before = nodes.len();
            nodes.extend(hosts.map(node).take(room));
            room -= nodes.len() - before;
        };
        for subset in &self.subsets {
            for port in &subset.ports {
                add(port, &mut subset.addresses.iter().map(|address| address.ip.as_str()));
            }
        }
        for port in &self.ports {
            let ready = self.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false));
            add(port, &mut ready.flat_map(|endpoint| &endpoint.addresses).map(String::as_str));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_and_ports_multiply_within_a_bound() {
        let addresses: Vec<Value> = (0..1000).map(|_| json!({"ip": "10.0.0.1"})).collect();
        let ports: Vec<Value> = (0..1000).map(|port| json!({"name": "p", "port": port})).collect();
        let subset = json!({"addresses": addresses, "ports": ports});
        let object = |subsets: usize| {
            let object: Object = serde_json::from_value(json!({"subsets": vec![&subset; subsets]})).unwrap();
            object.ports(1).values().map(Vec::len).sum::<usize>()
        };
        assert_eq!(object(2), MOST_PAIRS);
        let names: Vec<Value> = (1..=1000).map(|port| json!({"port": port})).collect();
        let hosts: Vec<String> = (0..1000).map(|_| "10.0.0.1".to_owned()).collect();
        let slice = json!({"endpoints": [{"addresses": hosts}], "ports": names});
        let slice: Object = serde_json::from_value(slice).unwrap();
        assert_eq!(slice.ports(1).values().map(Vec::len).sum::<usize>(), MOST_PAIRS);
    }
}
