//! Kong's services, with their upstreams.

use std::collections::HashMap;

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::certificates::Pems;
use super::entities::{Kong, Service};
use super::plugins::Assigned;
use super::routes::{self, Layout};
use super::{Output, finding, targets};
use crate::finding::Severity;

/// The services of a file, as resources in the making.
pub(super) struct Services {
    items: Vec<Item>,
}

struct Item {
    id: String,
    /// The upstream that gets the node's name as `Host`, and the one that gets the client's.
    upstreams: [Option<Reference>; 2],
    /// Which of the two the service has; routes that need the other one name it.
    preserve: bool,
}

#[derive(Clone)]
enum Reference {
    Inline(Value),
    Id(String),
}

impl Reference {
    fn write(&self, value: &mut Map<String, Value>) {
        match self {
            Reference::Inline(upstream) => value.insert("upstream".to_owned(), upstream.clone()),
            Reference::Id(id) => value.insert("upstream_id".to_owned(), json!(id)),
        };
    }
}

/// The routes of each service.
pub(super) fn routes_of(kong: &Kong<'_>) -> Vec<Vec<usize>> {
    let mut routes = vec![Vec::new(); kong.services.len()];
    for (index, route) in kong.routes.iter().enumerate() {
        route.service.into_iter().for_each(|service: usize| routes[service].push(index));
    }
    routes
}

/// Prepares the services, and writes the upstreams.
pub(super) fn convert(kong: &Kong<'_>, layout: &Layout, out: &mut Output) -> Services {
    let mut upstreams = Upstreams {
        made: HashMap::new(),
        by_name: HashMap::new(),
        members: Vec::new(),
        used: vec![false; kong.upstreams.len()],
    };
    for (index, upstream) in kong.upstreams.iter().enumerate() {
        upstreams.by_name.entry(upstream.name.to_ascii_lowercase()).or_insert(index);
    }
    upstreams.members = kong.upstreams.iter().map(|upstream| targets::members(upstream, out)).collect();
    let pems = Pems::of(kong);
    let mut items = Vec::new();
    for (service, routes) in kong.services.iter().zip(routes_of(kong)) {
        let preserving = routes.iter().filter(|route| kong.routes[**route].preserve_host).count();
        let others = routes.len() - preserving;
        let preserve = preserving > others;
        let settings = settings(&pems, service, &routes, layout, out);
        let mut references = [None, None];
        for (mode, reference) in references.iter_mut().enumerate() {
            if (mode == 1) == preserve || (mode == 1 && preserving > 0) || (mode == 0 && others > 0) {
                *reference = Some(upstreams.reference(kong, service, &settings, mode == 1, out));
            }
        }
        let id = out.names.id(Kind::Service, &service.name);
        items.push(Item { id, upstreams: references, preserve });
    }
    upstreams.rest(kong, out);
    Services { items }
}

impl Services {
    /// Names the service, and the upstream if it is another one, in a route or stream route.
    pub(super) fn attach(&self, kong: &Kong<'_>, route: usize, value: &mut Map<String, Value>) {
        let route = &kong.routes[route];
        let Some(item) = route.service.and_then(|service| self.items.get(service)) else { return };
        value.insert("service_id".to_owned(), json!(item.id));
        if route.preserve_host != item.preserve
            && let Some(reference) = &item.upstreams[usize::from(route.preserve_host)]
        {
            reference.write(value);
        }
    }

    /// The upstream of a stream route.
    pub(super) fn upstream(&self, service: usize, value: &mut Map<String, Value>) {
        let item = &self.items[service];
        if let Some(reference) = &item.upstreams[usize::from(item.preserve)] {
            reference.write(value);
        }
    }

    /// Writes the services.
    pub(super) fn write(&self, kong: &Kong<'_>, plugins: &Assigned, out: &mut Output) {
        for (index, item) in self.items.iter().enumerate() {
            let service = &kong.services[index];
            if !service.enabled {
                continue;
            }
            let mut value = Map::new();
            routes::name(&mut value, &service.name);
            if let Some(tags) = service.entity.tags() {
                value.insert("labels".to_owned(), json!({ "tags": tags }));
            }
            if let Some(reference) = &item.upstreams[usize::from(item.preserve)] {
                reference.write(&mut value);
            }
            if service.protocol.starts_with("http") || service.protocol.starts_with("ws") {
                value.insert("enable_websocket".to_owned(), json!(true));
            }
            let own = plugins.of_service(index);
            if !own.is_empty() {
                value.insert("plugins".to_owned(), Value::Object(own));
            }
            out.add(Kind::Service, item.id.clone(), Value::Object(value), service.entity.node.place());
        }
    }
}

/// The settings of an upstream that a service has: scheme, timeouts, retries, TLS.
fn settings(
    pems: &Pems<'_>,
    service: &Service<'_>,
    routes: &[usize],
    layout: &Layout,
    out: &mut Output,
) -> Map<String, Value> {
    let mut value = Map::new();
    let scheme = match service.protocol.as_str() {
        "https" | "wss" => "https",
        "grpc" => "grpc",
        "grpcs" => "grpcs",
        "tls" => "tls",
        "tcp" | "tls_passthrough" => "tcp",
        "udp" => "udp",
        _ => "http",
    };
    value.insert("scheme".to_owned(), json!(scheme));
    let milliseconds = |name: &str| service.entity.u64(name).filter(|time| *time > 0);
    let times = [("connect", "connect_timeout"), ("send", "write_timeout"), ("read", "read_timeout")];
    let times = times.map(|(name, field)| (name, milliseconds(field)));
    if times.iter().any(|(_, time)| time.is_some()) {
        let seconds = |time: Option<u64>| {
            let time = time.unwrap_or(60_000);
            if time.is_multiple_of(1000) { json!(time / 1000) } else { json!(time as f64 / 1000.0) }
        };
        let times: Map<String, Value> =
            times.map(|(name, time)| (name.to_owned(), seconds(time))).into_iter().collect();
        value.insert("timeout".to_owned(), Value::Object(times));
    }
    if let Some(retries) = service.entity.u64("retries") {
        value.insert("retries".to_owned(), json!(retries));
    }
    let tls = tls(pems, service, routes, layout, out);
    if matches!(scheme, "https" | "grpcs" | "tls") && !tls.is_empty() {
        value.insert("tls".to_owned(), Value::Object(tls));
    }
    value
}

fn tls(
    pems: &Pems<'_>,
    service: &Service<'_>,
    routes: &[usize],
    layout: &Layout,
    out: &mut Output,
) -> Map<String, Value> {
    let mut value = Map::new();
    let keys = || -> Vec<Key> { routes.iter().flat_map(|route| layout.keys(*route)).collect() };
    let id = |node: &crate::node::Node<'_>| node.text().or_else(|| node.some("id")?.text());
    if let Some(node) = service.entity.get("client_certificate") {
        match id(&node).and_then(|id| pems.client(&id)) {
            Some((cert, key)) => {
                value.insert("client_cert".to_owned(), json!(cert));
                value.insert("client_key".to_owned(), json!(key));
            }
            None => out.behaviour(&node, "the certificate is not in the file, so the service gets none"),
        }
    }
    let verify = service.entity.bool("tls_verify", false);
    let guard = |node: &crate::node::Node<'_>, effect: &str, out: &mut Output| {
        let keys = keys();
        if verify && !keys.is_empty() {
            let mut finding = finding(Severity::Guard, node, effect);
            finding.resources = keys;
            out.findings.push(finding);
        }
    };
    if let Some(node) = service.entity.get("ca_certificates") {
        let ids: Vec<String> = node.items().iter().filter_map(id).collect();
        match pems.authorities(&ids) {
            Some(authorities) if !authorities.is_empty() => {
                drop(value.insert("ca".to_owned(), json!(authorities)))
            }
            Some(_) => {}
            None => guard(&node, "an authority is not in the file, so others would be trusted", out),
        }
    }
    if let Some(node) = service.entity.get("tls_sans") {
        guard(&node, "not supported: only the host of the service is compared with the certificate", out);
        node.whole();
    }
    if let Some(node) = service.entity.get("tls_verify_depth") {
        out.cosmetic(&node, "chains of any usual length are accepted");
    }
    if verify {
        value.insert("verify".to_owned(), json!(true));
    }
    value
}

/// The upstreams of a file.
struct Upstreams {
    /// Ids by content.
    made: HashMap<String, String>,
    /// Indices by name in lower case.
    by_name: HashMap<String, usize>,
    members: Vec<Map<String, Value>>,
    used: Vec<bool>,
}

impl Upstreams {
    fn reference(
        &mut self,
        kong: &Kong<'_>,
        service: &Service<'_>,
        settings: &Map<String, Value>,
        preserve: bool,
        out: &mut Output,
    ) -> Reference {
        let Some(index) = self.by_name.get(&service.host.to_ascii_lowercase()).copied() else {
            return Reference::Inline(inline(service, settings, preserve, out));
        };
        self.used[index] = true;
        let value = self.value(kong, index, settings, preserve);
        let content = value.to_string();
        if let Some(id) = self.made.get(&content) {
            return Reference::Id(id.clone());
        }
        let upstream = &kong.upstreams[index];
        let id = out.names.id(Kind::Upstream, &upstream.name);
        out.add(Kind::Upstream, id.clone(), value, upstream.entity.node.place());
        self.made.insert(content, id.clone());
        Reference::Id(id)
    }

    fn value(&self, kong: &Kong<'_>, index: usize, settings: &Map<String, Value>, preserve: bool) -> Value {
        let upstream = &kong.upstreams[index];
        let mut value = self.members[index].clone();
        routes::name(&mut value, &upstream.name);
        value.extend(settings.clone());
        let http = !matches!(settings.get("scheme").and_then(Value::as_str), Some("tcp" | "tls" | "udp"));
        if http {
            match upstream.entity.text("host_header").filter(|_| !preserve) {
                Some(host) => {
                    value.insert("pass_host".to_owned(), json!("rewrite"));
                    value.insert("upstream_host".to_owned(), json!(host));
                }
                None => {
                    drop(value.insert("pass_host".to_owned(), json!(if preserve { "pass" } else { "node" })))
                }
            }
        }
        Value::Object(value)
    }

    /// Writes the upstreams that no service uses.
    fn rest(&mut self, kong: &Kong<'_>, out: &mut Output) {
        for (index, upstream) in kong.upstreams.iter().enumerate() {
            if let Some(node) = upstream.entity.get("client_certificate") {
                node.whole();
                out.behaviour(&node, "set it on the service: upstreams have none of their own here");
            }
            upstream.entity.text("host_header");
            if self.used[index] {
                continue;
            }
            let settings = Map::from_iter([("scheme".to_owned(), json!("http"))]);
            let value = self.value(kong, index, &settings, false);
            let id = out.names.id(Kind::Upstream, &upstream.name);
            out.add(Kind::Upstream, id, value, upstream.entity.node.place());
        }
    }
}

/// The upstream of a service that names its host itself.
fn inline(service: &Service<'_>, settings: &Map<String, Value>, preserve: bool, out: &mut Output) -> Value {
    let mut value = Map::new();
    let port =
        service.port.filter(|port| (1..=65_535).contains(port)).unwrap_or(match service.protocol.as_str() {
            "https" | "wss" | "grpcs" | "tls" => 443,
            _ => 80,
        });
    let nodes = match targets::is_host(&service.host) {
        true => json!([{"host": service.host, "port": port, "weight": 1}]),
        false => {
            let node = service.entity.get("url").or_else(|| service.entity.get("host"));
            let node = node.unwrap_or_else(|| service.entity.node.clone());
            if !preserve || !service.host.is_empty() {
                out.behaviour(&node, "names no host, so requests are answered 503");
            }
            json!([])
        }
    };
    value.insert("nodes".to_owned(), nodes);
    value.insert("type".to_owned(), json!("roundrobin"));
    value.extend(settings.clone());
    if !matches!(settings.get("scheme").and_then(Value::as_str), Some("tcp" | "tls" | "udp")) {
        value.insert("pass_host".to_owned(), json!(if preserve { "pass" } else { "node" }));
    }
    Value::Object(value)
}
