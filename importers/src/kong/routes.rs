//! Kong's routes as routes, in Kong's order.

use std::collections::{BTreeMap, BTreeSet};

use model::{Key, Kind};
use serde_json::{Map, Value, json};

use super::conditions::{self, Conditions};
use super::entities::{Kong, Route};
use super::expression::{self, Expressed};
use super::order::{self, Entry, Host, Weight};
use super::paths::{PathRule, looks_plain};
use super::plugins::Assigned;
use super::services::Services;
use super::{Output, finding};
use crate::finding::Severity;

/// Where the routes of a file stand in the router.
pub(super) struct Layout {
    /// In the order of the file, by route.
    pub routes: Vec<Vec<Part>>,
}

/// A resource that a route becomes.
pub(super) struct Part {
    pub id: String,
    pub hosts: Vec<String>,
    pub uris: Vec<String>,
    /// The paths that it stands for; empty for any.
    pub paths: Vec<PathRule>,
    /// Higher first; absent if nothing competes with it.
    pub priority: Option<usize>,
}

impl Layout {
    /// The keys of a route's resources.
    pub(super) fn keys(&self, route: usize) -> Vec<Key> {
        self.routes[route].iter().map(|part| Key::new(Kind::Route, part.id.clone())).collect()
    }
}

/// Decides which resources the routes become, so that the same route wins as in Kong.
pub(super) fn lay_out(kong: &Kong<'_>, out: &mut Output) -> Layout {
    // Each is a route, or its paths of one length.
    let mut parts: Vec<(Entry, Vec<PathRule>)> = Vec::new();
    for (index, route) in kong.routes.iter().enumerate().filter(|(_, route)| is_served(kong, route)) {
        hint_at_regexes(route, kong.old, out);
        parts.extend(entries(index, route, kong.old));
    }
    let order = order::ranked(&parts.iter().map(|(entry, _)| entry.clone()).collect::<Vec<_>>());
    let mut slots: Vec<Option<(Entry, Vec<PathRule>)>> = parts.into_iter().map(Some).collect();
    let parts: Vec<(Entry, Vec<PathRule>)> = order.iter().filter_map(|index| slots[*index].take()).collect();
    let entries: Vec<Entry> = parts.iter().map(|(entry, _)| entry.clone()).collect();
    let (places, budget) = order::places(&entries);
    if !budget.sufficed() {
        let place = kong.routes.first().map(|route| route.entity.node.clone());
        if let Some(node) = place {
            out.findings.push(crate::Finding {
                construct: "routes".to_owned(),
                ..finding(
                    Severity::Behaviour,
                    &node,
                    "too many routes overlap: the order of some may differ from Kong's",
                )
            });
        }
    }
    let mut layout = Layout { routes: kong.routes.iter().map(|_| Vec::new()).collect() };
    let mut drafts: Vec<Vec<Draft>> = kong.routes.iter().map(|_| Vec::new()).collect();
    for (rank, ((entry, paths), places)) in parts.into_iter().zip(places).enumerate() {
        // Hosts with the same paths share a resource.
        let mut by_paths: BTreeMap<(BTreeSet<String>, bool), Vec<Host>> = BTreeMap::new();
        for (host, uris) in places.by_host {
            by_paths.entry((uris, host == Host::Any)).or_default().push(host);
        }
        let priority = places.shared.then_some(entries.len() - rank);
        let plain = !paths.iter().any(PathRule::needs_condition);
        for ((uris, _), hosts) in by_paths {
            let draft = Draft { hosts, uris, paths: paths.clone(), priority, plain };
            let joined = drafts[entry.route].iter_mut().find(|other| draft.joins(other));
            match joined {
                Some(other) => {
                    other.uris.extend(draft.uris);
                    other.paths.extend(draft.paths);
                }
                None => drafts[entry.route].push(draft),
            }
        }
    }
    for (index, drafts) in drafts.into_iter().enumerate() {
        for draft in drafts {
            let id = out.names.id(Kind::Route, &kong.routes[index].name);
            layout.routes[index].push(draft.finish(id));
        }
    }
    layout
}

/// A resource in the making.
struct Draft {
    hosts: Vec<Host>,
    uris: BTreeSet<String>,
    paths: Vec<PathRule>,
    priority: Option<usize>,
    plain: bool,
}

impl Draft {
    /// Whether both may be one resource: nothing competes with either.
    fn joins(&self, other: &Draft) -> bool {
        let free = self.priority.is_none() && other.priority.is_none();
        free && self.plain && other.plain && self.hosts == other.hosts
    }

    fn finish(self, id: String) -> Part {
        Part {
            id,
            hosts: self.hosts.iter().filter_map(Host::text).collect(),
            uris: self.uris.iter().map(|path| format!("{path}*")).collect(),
            paths: self.paths,
            priority: self.priority,
        }
    }
}

/// Whether requests reach a route: it is one of HTTP, and its service is not switched off.
pub(super) fn is_served(kong: &Kong<'_>, route: &Route<'_>) -> bool {
    !route.is_stream() && route.service.is_none_or(|service| kong.services[service].enabled)
}

/// A route as Kong sorts it: once for each length of its paths, and once for all its expressions.
fn entries(index: usize, route: &Route<'_>, old: bool) -> Vec<(Entry, Vec<PathRule>)> {
    let hosts = conditions::hosts(route).unwrap_or_else(|| vec![Host::Any]);
    if let Some(Expressed { path, .. }) = expression::of_route(route) {
        let weight = Weight { expression: Some(route.priority), ..Weight::default() };
        let paths = vec![path.unwrap_or_else(|| "/".to_owned())];
        return vec![(
            Entry { route: index, hosts: vec![Host::Any], paths, methods: Vec::new(), weight },
            Vec::new(),
        )];
    }
    let mut groups: BTreeMap<usize, Vec<PathRule>> = BTreeMap::new();
    for path in &route.paths {
        let length = match path {
            PathRule::Prefix(prefix) => prefix.len(),
            PathRule::Regex(_) => 0,
        };
        groups.entry(length).or_default().push(path.clone());
    }
    if groups.is_empty() {
        groups.insert(0, Vec::new());
    }
    let entry = |(_, paths): (usize, Vec<PathRule>)| {
        let mut literals: Vec<String> = paths.iter().map(PathRule::literal).collect();
        if literals.is_empty() {
            literals.push("/".to_owned());
        }
        literals.sort();
        literals.dedup();
        let weight = weight(route, &paths, old);
        let methods = conditions::upper(&route.methods);
        (Entry { route: index, hosts: hosts.clone(), paths: literals, methods, weight }, paths)
    };
    groups.into_iter().map(entry).collect()
}

fn weight(route: &Route<'_>, paths: &[PathRule], old: bool) -> Weight {
    let headers = route.headers.iter().filter(|(name, _)| name != "host").count();
    let kinds = [
        !route.hosts.is_empty(),
        headers > 0,
        !paths.is_empty(),
        !route.methods.is_empty(),
        !route.snis.is_empty(),
        !route.sources.is_empty(),
        !route.destinations.is_empty(),
    ];
    let category = kinds.iter().fold(0, |bits, kind| bits << 1 | u32::from(*kind));
    let regex = matches!(paths.first(), Some(PathRule::Regex(_)));
    let length = match paths.first() {
        Some(PathRule::Prefix(prefix)) => prefix.len(),
        _ => 0,
    };
    Weight {
        expression: None,
        conditions: category.count_ones(),
        category: if old { category } else { 0 },
        plain_hosts: !route.hosts.is_empty() && !route.hosts.iter().any(|host| host.contains('*')),
        headers,
        regex,
        regex_priority: if regex { route.regex_priority } else { 0 },
        length,
    }
}

/// Kong 3 takes a path without `~` as it stands, although it looks like an expression.
fn hint_at_regexes(route: &Route<'_>, old: bool, out: &mut Output) {
    if old {
        return;
    }
    for node in route.entity.get("paths").map(|node| node.items()).unwrap_or_default() {
        let text = node.text().unwrap_or_default();
        if !text.starts_with('~') && !looks_plain(&text) {
            out.cosmetic(&node, "looks like a regular expression, but Kong 3 compares a path without `~` as text, and so does this route");
        }
    }
}

/// Writes the routes.
pub(super) fn convert(
    kong: &Kong<'_>,
    layout: &Layout,
    plugins: &Assigned,
    services: &Services,
    out: &mut Output,
) {
    for (index, route) in kong.routes.iter().enumerate() {
        read_rest(kong, route, out);
        let parts = &layout.routes[index];
        if parts.is_empty() {
            continue;
        }
        let all = match expression::of_route(route) {
            Some(Expressed { conditions, unsupported, .. }) => {
                if let (Some(text), Some(node)) = (unsupported, route.entity.get("expression")) {
                    let mut finding = finding(
                        Severity::Guard,
                        &node,
                        format!("`{text}` has no counterpart: the route would match more requests"),
                    );
                    finding.resources = layout.keys(index);
                    out.findings.push(finding);
                }
                conditions
            }
            None => conditions::of_route(route, out),
        };
        let place = route.entity.node.place();
        for part in parts {
            let value = resource(kong, index, part, &all, plugins, services, parts.len());
            out.add(Kind::Route, part.id.clone(), value, place.clone());
        }
    }
}

fn resource(
    kong: &Kong<'_>,
    index: usize,
    part: &Part,
    all: &Conditions,
    plugins: &Assigned,
    services: &Services,
    parts: usize,
) -> Value {
    let route = &kong.routes[index];
    let mut value = Map::new();
    name(&mut value, &route.name);
    if let Some(tags) = route.entity.tags() {
        value.insert("labels".to_owned(), json!({ "tags": tags }));
    }
    one_or_many(&mut value, "uri", &part.uris);
    if !part.hosts.is_empty() {
        one_or_many(&mut value, "host", &part.hosts);
    }
    if !route.methods.is_empty() && route.methods.iter().all(|method| conditions::is_known(method)) {
        value.insert("methods".to_owned(), json!(conditions::upper(&route.methods)));
    }
    let mut vars = all.clone();
    vars.extend(conditions::of_paths(&part.paths.iter().collect::<Vec<_>>()));
    if !vars.is_empty() {
        value.insert("vars".to_owned(), Value::Array(vars));
    }
    if let Some(priority) = part.priority {
        value.insert("priority".to_owned(), json!(priority));
    }
    let (own, shared) = plugins.of_part(kong, index, part, parts);
    if let Some(id) = shared {
        value.insert("plugin_config_id".to_owned(), json!(id));
    }
    if !own.is_empty() {
        value.insert("plugins".to_owned(), Value::Object(own));
    }
    services.attach(kong, index, &mut value);
    Value::Object(value)
}

/// Marks the members that other parts read only for some routes.
fn read_rest(kong: &Kong<'_>, route: &Route<'_>, out: &mut Output) {
    for name in ["https_redirect_status_code", "request_buffering", "response_buffering", "ws_id"] {
        if let Some(node) = route.entity.get(name) {
            node.whole();
            if name.ends_with("_buffering") && node.bool() == Some(false) {
                out.cosmetic(
                    &node,
                    "bodies always pass without being buffered, unless a plugin needs them whole",
                );
            }
        }
    }
    if let Some(service) = route.service
        && !kong.services[service].enabled
    {
        out.cosmetic(&route.entity.node, "not served, as its service is switched off");
    }
}

/// Writes a name, within the limit of 100 characters.
pub(super) fn name(value: &mut Map<String, Value>, name: &str) {
    let text: String = name.chars().take(100).collect();
    if !text.is_empty() {
        value.insert("name".to_owned(), Value::String(text));
    }
}

/// Writes `uri` or `uris`, `host` or `hosts`.
fn one_or_many(value: &mut Map<String, Value>, name: &str, texts: &[String]) {
    match texts {
        [text] => value.insert(name.to_owned(), json!(text)),
        _ => value.insert(format!("{name}s"), json!(texts)),
    };
}
