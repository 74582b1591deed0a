//! Guards that other spellings of a path bypass, because `sluice.path` switches steps of its normal form off.

use hashbrown::HashMap;
use model::{Desired, Invalid, Kind, Resource, Route, Upstream};

use super::guards::Guards;
use super::{Analysis, Code, Input};
use crate::router::trace::Shape;

/// Open routes to one server that a guarded route is compared with.
const NEIGHBOURS: usize = 16;

const HINT: &str = "switch that step on, or restrict the clients of both routes";

/// A path of a route that forwards every path with this beginning for every client.
struct Open<'a> {
    id: &'a str,
    hosts: &'a [String],
    prefix: &'a str,
    uri: &'a str,
}

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let rules = of.paths;
    if rules.resolve_dots && rules.merge_slashes && rules.decode_unreserved {
        return;
    }
    if !rules.resolve_dots {
        client_certificates(of, found);
    }
    let guards = Guards::new(of);
    if guards.everywhere {
        return;
    }
    let mut open: HashMap<String, Vec<Open<'_>>> = HashMap::new();
    let routes = || {
        of.desired.of(Kind::Route).filter_map(|entry| match entry.resource() {
            Resource::Route(route) if route.enabled => Some((&entry.key, &**route)),
            _ => None,
        })
    };
    for (key, route) in routes().filter(|(_, route)| !guards.restrict(route) && !guards.answer(route)) {
        let servers = servers(of.desired, route);
        for uri in &route.uris {
            let shape = Shape::of(uri, of.mode);
            if shape.exact {
                continue;
            }
            let hosts = of.desired.hosts_of(route);
            for server in &servers {
                let path = Open { id: &key.id, hosts, prefix: shape.key, uri };
                open.entry(server.clone()).or_default().push(path);
            }
        }
    }
    // The widest first: they are the likeliest to match another spelling.
    open.values_mut().for_each(|paths| paths.sort_by_key(|path| path.prefix.len()));
    for (key, route) in routes().filter(|(_, route)| guards.restrict(route)) {
        let hosts = of.desired.hosts_of(route);
        let servers = servers(of.desired, route);
        let others = servers.iter().filter_map(|server| open.get(server));
        let bypass = others.flat_map(|paths| paths.iter().take(NEIGHBOURS)).find_map(|other| {
            let uri = route.uris.iter().find_map(|uri| Some((uri, step(of, uri, other)?)));
            uri.filter(|_| may_share(hosts, other.hosts)).map(|(uri, step)| (other, uri, step))
        });
        let Some((other, uri, step)) = bypass else { continue };
        let reason = format!(
            "routes/{} takes {} without restricting clients, also another spelling of {uri} that its server may resolve: \
             sluice.path.{step} is false",
            other.id, other.uri
        );
        let pointer = if route.uris.len() > 1 { "/uris" } else { "/uri" };
        found.add(Code::PathBypass, key, Invalid::new(reason).at(pointer).hint(HINT));
    }
}

/// The step of the normal form without which another route may take a spelling of this path.
fn step(of: Input<'_>, uri: &str, other: &Open<'_>) -> Option<&'static str> {
    let rules = of.paths;
    if !rules.resolve_dots {
        return Some("resolve_dots");
    }
    // A spelling differs from the path after the part that both routes share.
    let key = Shape::of(uri, of.mode).key;
    let rest = key.strip_prefix(other.prefix).filter(|rest| !rest.is_empty())?;
    match () {
        () if !rules.decode_unreserved => Some("decode_unreserved"),
        () if other.prefix.ends_with('/') || rest.contains('/') => Some("merge_slashes"),
        () => None,
    }
}

/// With `skip_mtls_uri_regex`, the path decides whether a client certificate is required.
fn client_certificates(of: Input<'_>, found: &mut Analysis) {
    for entry in of.desired.of(Kind::Ssl) {
        let Resource::Ssl(ssl) = entry.resource() else { continue };
        let skips = ssl.client.as_ref().is_some_and(|client| !client.skip_mtls_uri_regex.is_empty());
        if ssl.enabled && skips {
            let reason = "paths such as `/public/../private` may match these patterns, so that no client certificate is \
                          required: sluice.path.resolve_dots is false";
            let invalid = Invalid::new(reason).at("/client/skip_mtls_uri_regex").hint("switch that step on");
            found.add(Code::PathBypass, &entry.key, invalid);
        }
    }
}

/// The nodes of a route's upstream, or the name of its service.
fn servers(desired: &Desired, route: &Route) -> Vec<String> {
    let by_id = |id: &Option<String>| {
        let entry = desired.get(Kind::Upstream, id.as_ref()?)?;
        entry.resource().upstream()
    };
    let own = |upstream: &Option<Box<Upstream>>| -> Option<Vec<String>> { upstream.as_deref().map(names) };
    let service = || {
        let entry = desired.get(Kind::Service, route.service_id.as_ref()?)?;
        let Resource::Service(service) = entry.resource() else { return None };
        own(&service.upstream).or_else(|| by_id(&service.upstream_id).map(names))
    };
    own(&route.upstream).or_else(|| by_id(&route.upstream_id).map(names)).or_else(service).unwrap_or_default()
}

fn names(upstream: &Upstream) -> Vec<String> {
    match &upstream.discovery {
        Some(discovery) => vec![format!("{discovery:?}")],
        None => upstream.nodes.iter().map(|node| format!("{}:{:?}", node.host, node.port)).collect(),
    }
}

/// Whether one request may be for hosts of both lists; an empty one is for all.
fn may_share(some: &[String], others: &[String]) -> bool {
    let covers = |pattern: &str, host: &str| pattern.strip_prefix('*').is_some_and(|end| host.ends_with(end));
    some.is_empty()
        || others.is_empty()
        || some
            .iter()
            .any(|one| others.iter().any(|other| one == other || covers(one, other) || covers(other, one)))
}
