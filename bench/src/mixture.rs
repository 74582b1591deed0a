//! Realistic large configurations: routes with a mix of hosts, parameters and plugins, or one route
//! with many consumers; and the changes made to them.

use anyhow::Result;
use serde_json::{Value, json};

use crate::certificate::{self, Identity};
use crate::gateways::Setup;

/// Number of host names.
const HOSTS: usize = 1_000;

/// A Sluice object for the Admin API or a file.
pub struct Object {
    /// `routes`, `consumers` and so on.
    pub kind: &'static str,
    pub id: String,
    pub value: Value,
}

/// A change, and how to verify that it is live.
pub struct Change {
    pub object: Object,
    pub evidence: Evidence,
}

/// Evidence that an object is served.
pub enum Evidence {
    /// A request that gets 200 when the object is served, and `before` until then.
    Request { text: String, before: u16 },
    /// The certificate presented for a name.
    Certificate { name: String, identity: Box<Identity> },
}

/// The host of route `index`, if it has one: every third.
pub fn host(index: usize) -> Option<String> {
    (index % 3 == 1).then(|| format!("h{}.bench.test", index % HOSTS))
}

/// The path that route `index` serves.
pub fn path(index: usize) -> String {
    match index % 3 {
        0 => format!("/hello/{index}"),
        1 => format!("/hello/{index}/below"),
        _ => format!("/hello/{index}/42"),
    }
}

/// The pattern of route `index`: exact, a prefix, or with a parameter.
fn pattern(index: usize) -> String {
    match index % 3 {
        0 => format!("/hello/{index}"),
        1 => format!("/hello/{index}/*"),
        _ => format!("/hello/{index}/:id"),
    }
}

/// Evidence that the last object of `setup` is served.
///
/// # Errors
/// The certificate cannot be generated.
pub fn last(setup: &Setup) -> Result<Evidence> {
    if setup.certificates > 0 {
        let index = setup.certificates - 1;
        let identity = Box::new(certificate::many(setup.certificates)?[index].clone());
        return Ok(Evidence::Certificate { name: certificate::name_of(index), identity });
    }
    let text = if setup.consumers > 0 {
        keyed(&key(setup.consumers - 1))
    } else {
        let index = setup.routes - 1;
        let host = host(index).unwrap_or_else(|| "bench".to_owned());
        format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", path(index))
    };
    Ok(Evidence::Request { text, before: 404 })
}

/// All objects of `setup`, upstream first.
///
/// # Errors
/// A certificate cannot be generated.
pub fn objects(setup: &Setup, upstream_port: u16) -> Result<impl Iterator<Item = Object> + use<>> {
    let certificates = certificate::many(setup.certificates)?;
    let node = format!("127.0.0.1:{upstream_port}");
    let pool = json!({ "size": 512, "requests": 1_000_000_000, "idle_timeout": 300 });
    let value = json!({ "type": "roundrobin", "nodes": { node: 1 }, "keepalive_pool": pool });
    let upstream = Object { kind: "upstreams", id: "hello".to_owned(), value };
    let (mixed, consumers) = (setup.mixed, setup.consumers);
    let ssls = 0..setup.certificates;
    Ok(std::iter::once(upstream)
        .chain((0..setup.routes).map(move |index| route(mixed, consumers > 0, index, "")))
        .chain((0..consumers).map(|index| consumer(index, &key(index))))
        .chain(ssls.map(move |index| ssl(index, &certificates[index]))))
}

fn ssl(index: usize, identity: &Identity) -> Object {
    let snis = [certificate::name_of(index)];
    let value = json!({ "snis": snis, "cert": identity.certificate, "key": identity.key });
    Object { kind: "ssls", id: format!("c{index}"), value }
}

fn keyed(key: &str) -> String {
    format!("GET /hello HTTP/1.1\r\nHost: bench\r\napikey: {key}\r\n\r\n")
}

fn route(mixed: bool, key: bool, index: usize, description: &str) -> Object {
    let id = if index == 0 { "under-load".to_owned() } else { format!("r{index}") };
    let mut value = json!({ "uri": "/hello", "upstream_id": "hello", "desc": description });
    if key {
        value["plugins"] = json!({ "key-auth": {} });
    }
    if mixed {
        let mut plugins = json!({ "cors": {} });
        if index.is_multiple_of(2) {
            plugins["proxy-rewrite"] = json!({ "headers": { "set": { "X-Route": index.to_string() } } });
        }
        if index.is_multiple_of(5) {
            plugins["ip-restriction"] = json!({ "blacklist": ["10.0.0.0/8", "192.168.0.0/16"] });
        }
        value["uri"] = pattern(index).into();
        value["plugins"] = plugins;
        if let Some(host) = host(index) {
            value["host"] = host.into();
        }
    }
    Object { kind: "routes", id, value }
}

fn consumer(index: usize, key: &str) -> Object {
    let id = format!("user{index}");
    let value = json!({ "username": id, "plugins": { "key-auth": { "key": key } } });
    Object { kind: "consumers", id, value }
}

fn key(index: usize) -> String {
    format!("key-of-user-{index}")
}

/// Change number `number`: a new certificate for a name or a new key of a consumer if the setup has
/// any, else a new path of a route. Changes cycle through the whole configuration.
///
/// # Errors
/// The certificate cannot be generated.
pub fn change(setup: &Setup, number: u64) -> Result<Change> {
    let step = (number as usize).wrapping_mul(7919);
    if setup.certificates > 0 {
        let index = step % setup.certificates;
        let name = certificate::name_of(index);
        let identity = Box::new(Identity::new(&name)?);
        return Ok(Change {
            object: ssl(index, &identity),
            evidence: Evidence::Certificate { name, identity },
        });
    }
    if setup.consumers > 0 {
        let key = format!("changed-{number}");
        // The first consumer is under load.
        let index = 1 + step % setup.consumers.saturating_sub(1).max(1);
        let evidence = Evidence::Request { text: keyed(&key), before: 401 };
        return Ok(Change { object: consumer(index, &key), evidence });
    }
    // The first half of the routes is under load.
    // A small configuration has few names, so that existing routes are replaced as well as new ones
    // added.
    let first = (setup.routes / 2).max(1);
    let index = first + step % setup.routes.saturating_sub(first).max(64);
    let mut object = route(setup.mixed, false, index, "");
    let path = format!("/hello/changed-{number}");
    object.value["uri"] = path.clone().into();
    if let Some(value) = object.value.as_object_mut() {
        value.remove("host");
    }
    let text = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n");
    Ok(Change { object, evidence: Evidence::Request { text, before: 404 } })
}

/// The metadata of the plugin of every mixed route; it differs by `number`.
pub fn metadata(number: u64) -> Object {
    let value = json!({ "allow_origins": { "shop": format!("https://shop{number}.test") } });
    Object { kind: "plugin_metadata", id: "cors".to_owned(), value }
}

/// A replacement of route 0 without a visible effect.
pub fn same(setup: &Setup, number: u64) -> Object {
    route(setup.mixed, setup.consumers > 0, 0, &format!("change {number}"))
}

/// An `apisix.yaml` with all objects, one per line.
///
/// # Errors
/// A certificate cannot be generated.
pub fn file(setup: &Setup, upstream_port: u16) -> Result<String> {
    let mut text = String::new();
    let mut kind = "";
    for mut object in objects(setup, upstream_port)? {
        if object.kind != kind {
            kind = object.kind;
            text.push_str(&format!("{kind}:\n"));
        }
        if kind != "consumers" {
            object.value["id"] = object.id.into();
        }
        text.push_str(&format!("  - {}\n", object.value));
    }
    Ok(text + "#END\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_every_object_once() {
        let setup = Setup { mixed: true, routes: 7, ..Setup::PLAIN };
        let text = file(&setup, 1).unwrap();
        assert_eq!(text.matches("\"uri\"").count(), 7);
        assert!(
            text.contains("/hello/1/*") && text.contains("h1.bench.test") && text.contains("/hello/2/:id")
        );
        let setup = Setup { consumers: 3, ..Setup::PLAIN };
        assert_eq!(file(&setup, 1).unwrap().matches("\"username\"").count(), 3);
    }

    #[test]
    fn changes_do_not_affect_the_route_under_load() {
        let setup = Setup { mixed: true, routes: 2, ..Setup::PLAIN };
        assert!((0..99).all(|number| change(&setup, number).unwrap().object.id != "under-load"));
    }
}
