//! The entities of a file: services, routes, consumers and the rest, with their references resolved.

use std::collections::HashMap;

use model::{Diagnostic, Severity};

use super::Output;
use super::paths::PathRule;
use crate::Source;
use crate::node::{Node, Tree};

/// A part of the file with defaults (`_info.defaults` of decK, or a shared plugin configuration).
#[derive(Clone)]
pub(super) struct Entity<'a> {
    pub node: Node<'a>,
    defaults: Option<Node<'a>>,
}

/// All entities of a file.
pub(super) struct Kong<'a> {
    pub services: Vec<Service<'a>>,
    pub routes: Vec<Route<'a>>,
    pub plugins: Vec<Instance<'a>>,
    pub consumers: Vec<Consumer<'a>>,
    pub groups: Vec<Named<'a>>,
    pub upstreams: Vec<Upstream<'a>>,
    pub certificates: Vec<Node<'a>>,
    pub ca_certificates: Vec<Node<'a>>,
    /// `snis` at the top of the file.
    pub snis: Vec<Node<'a>>,
    /// Before 3.0.
    pub old: bool,
}

/// An entity with a name.
pub(super) struct Named<'a> {
    pub name: String,
    pub entity: Entity<'a>,
}

/// A service.
pub(super) struct Service<'a> {
    pub name: String,
    pub entity: Entity<'a>,
    pub enabled: bool,
    /// `url`, or its parts.
    pub protocol: String,
    pub host: String,
    pub port: Option<u64>,
    pub path: String,
}

/// A route.
pub(super) struct Route<'a> {
    pub name: String,
    pub entity: Entity<'a>,
    pub service: Option<usize>,
    pub protocols: Vec<String>,
    pub methods: Vec<String>,
    pub hosts: Vec<String>,
    pub paths: Vec<PathRule>,
    pub headers: Vec<(String, Vec<String>)>,
    pub snis: Vec<String>,
    pub sources: Vec<Node<'a>>,
    pub destinations: Vec<Node<'a>>,
    pub strip_path: bool,
    pub preserve_host: bool,
    pub path_handling_v1: bool,
    pub regex_priority: i64,
    pub expression: Option<Node<'a>>,
    pub priority: i64,
}

/// A consumer and its credentials.
pub(super) struct Consumer<'a> {
    pub name: String,
    pub entity: Entity<'a>,
    pub credentials: Vec<(&'static str, Node<'a>)>,
    pub acls: Vec<String>,
    pub groups: Vec<String>,
}

/// An upstream and its targets.
pub(super) struct Upstream<'a> {
    pub name: String,
    pub entity: Entity<'a>,
    pub targets: Vec<Node<'a>>,
}

/// A plugin with its configuration.
pub(super) struct Instance<'a> {
    pub name: String,
    pub node: Node<'a>,
    pub config: Entity<'a>,
    pub route: Option<usize>,
    pub service: Option<usize>,
    pub consumer: Option<usize>,
    pub group: Option<usize>,
}

/// The sections of credentials, by their names in consumers.
pub(super) const CREDENTIALS: [&str; 6] = [
    "keyauth_credentials",
    "basicauth_credentials",
    "jwt_secrets",
    "hmacauth_credentials",
    "oauth2_credentials",
    "mtls_auth_credentials",
];

impl<'a> Entity<'a> {
    pub(super) fn new(node: Node<'a>) -> Entity<'a> {
        // Keys without an effect on traffic.
        for name in ["id", "created_at", "updated_at", "tags", "_comment", "_ignore"] {
            node.get(name).map(|part| part.whole());
        }
        Entity { node, defaults: None }
    }

    fn with(node: Node<'a>, defaults: Option<&Node<'a>>) -> Entity<'a> {
        Entity { defaults: defaults.cloned(), ..Entity::new(node) }
    }

    /// A member, or its default in the file.
    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        let default = self.defaults.as_ref().and_then(|defaults| defaults.some(name));
        self.node.some(name).or(default)
    }

    pub(super) fn bool(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(|node| node.bool()).unwrap_or(default)
    }

    pub(super) fn u64(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|node| node.u64())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(|node| node.text())
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        self.get(name).map(|node| node.texts()).unwrap_or_default()
    }

    /// The tags, as the value of a label.
    pub(super) fn tags(&self) -> Option<String> {
        let tags = self.texts("tags").join(",").replace(char::is_whitespace, "-");
        (!tags.is_empty() && tags.len() <= 256).then_some(tags)
    }
}

/// A reference to another entity: its name, or an object with its name or id.
fn reference(node: &Node<'_>) -> Option<String> {
    let names = ["name", "id", "username", "custom_id"];
    node.text().or_else(|| names.iter().find_map(|name| node.some(name)?.text()))
}

/// Names and ids of entities.
#[derive(Default)]
struct Index(HashMap<String, usize>);

impl Index {
    fn insert(&mut self, entity: &Entity<'_>, keys: &[&str], index: usize) {
        for key in keys {
            if let Some(name) = entity.node.some(key).and_then(|node| node.text()) {
                self.0.entry(name).or_insert(index);
            }
        }
    }

    /// The entity that `name` of a part refers to. An unknown one is reported.
    fn find(&self, node: &Node<'_>, name: &str, out: &mut Output) -> Result<Option<usize>, ()> {
        let Some(text) = node.some(name).and_then(|node| reference(&node)) else { return Ok(None) };
        match self.0.get(&text) {
            Some(index) => Ok(Some(*index)),
            None => {
                out.behaviour(node, format!("no {name} `{text}` is in the file, so this part has no effect"));
                Err(())
            }
        }
    }
}

/// Collects the entities of all documents.
///
/// # Errors
/// An unknown `_format_version`.
pub(super) fn read<'a>(
    source: &Source<'_>,
    trees: &'a [Tree],
    out: &mut Output,
) -> Result<Kong<'a>, Box<Diagnostic>> {
    let roots: Vec<Node<'a>> = trees.iter().map(Tree::root).collect();
    let mut reader = Reader { roots, defaults: HashMap::new(), configs: HashMap::new() };
    let old = reader.preamble(source)?;
    let mut kong = Kong {
        services: Vec::new(),
        routes: Vec::new(),
        plugins: Vec::new(),
        consumers: Vec::new(),
        groups: Vec::new(),
        upstreams: Vec::new(),
        certificates: reader.section("certificates"),
        ca_certificates: reader.section("ca_certificates"),
        snis: reader.section("snis"),
        old,
    };
    reader.entities(&mut kong, out);
    Ok(kong)
}

struct Reader<'a> {
    roots: Vec<Node<'a>>,
    defaults: HashMap<&'static str, Node<'a>>,
    configs: HashMap<String, Node<'a>>,
}

impl<'a> Reader<'a> {
    /// The items of a section of all documents.
    fn section(&self, name: &str) -> Vec<Node<'a>> {
        self.roots.iter().filter_map(|root| root.some(name)).flat_map(|node| node.items()).collect()
    }

    /// Reads the keys that describe the file. Returns whether its format is older than 3.0.
    fn preamble(&mut self, source: &Source<'_>) -> Result<bool, Box<Diagnostic>> {
        let mut old = false;
        for root in &self.roots.clone() {
            for name in ["_transform", "_comment", "_ignore", "_workspace", "_konnect"] {
                root.get(name).map(|node| node.whole());
            }
            if let Some(info) = root.some("_info") {
                info.get("select_tags").map(|node| node.whole());
                let defaults = info.some("defaults");
                for kind in ["service", "route", "upstream", "target"] {
                    let node = defaults.as_ref().and_then(|defaults| defaults.some(kind));
                    node.map(|node| self.defaults.insert(kind, node));
                }
            }
            if let Some(configs) = root.some("_plugin_configs") {
                for (name, node) in configs.members() {
                    self.configs.insert(name.to_owned(), node);
                }
            }
            let Some(version) = root.some("_format_version") else { continue };
            let text = version.text().unwrap_or_default();
            match text.as_str() {
                "1.1" | "2.1" => old = true,
                "3" | "3.0" => {}
                _ => {
                    let place = version.place().position;
                    let mut error = Diagnostic::new(
                        Severity::Error,
                        source.file,
                        format!("unknown `_format_version` {text:?} of Kong"),
                    );
                    (error.line, error.column) = (place.line, place.column);
                    error.pointer = version.pointer().to_owned();
                    error.expected = Some("\"1.1\", \"2.1\" or \"3.0\"".to_owned());
                    return Err(Box::new(error));
                }
            }
        }
        Ok(old)
    }

    fn entities(&mut self, kong: &mut Kong<'a>, out: &mut Output) {
        let (mut services, mut routes, mut consumers) =
            (Index::default(), Index::default(), Index::default());
        let mut groups = Index::default();
        let mut nested: Vec<(Node<'a>, [Option<usize>; 4])> = Vec::new();
        let mut nest = |node: &Entity<'a>, scope: [Option<usize>; 4]| {
            let plugins = node.node.some("plugins").map(|node| node.items()).unwrap_or_default();
            nested.extend(plugins.into_iter().map(|plugin| (plugin, scope)));
        };
        let mut route_nodes = Vec::new();
        for node in self.section("services") {
            let entity = Entity::with(node, self.defaults.get("service"));
            let index = kong.services.len();
            services.insert(&entity, &["name", "id"], index);
            let routes = entity.node.some("routes").map(|node| node.items()).unwrap_or_default();
            route_nodes.extend(routes.into_iter().map(|route| (route, Some(index))));
            nest(&entity, [Some(index), None, None, None]);
            kong.services.push(Service::read(entity, index));
        }
        for node in self.section("routes") {
            match services.find(&node, "service", out) {
                Ok(service) => route_nodes.push((node, service)),
                // Reported; nothing of it is served, as in Kong, which rejects such a file.
                Err(()) => drop(node.whole()),
            }
        }
        for (node, service) in route_nodes {
            let entity = Entity::with(node, self.defaults.get("route"));
            let index = kong.routes.len();
            routes.insert(&entity, &["name", "id"], index);
            nest(&entity, [service, Some(index), None, None]);
            let fallback = service.and_then(|service| kong.services.get(service)).map(|s| s.name.as_str());
            kong.routes.push(Route::read(entity, service, fallback, kong.old));
        }
        for node in self.section("consumer_groups") {
            let entity = Entity::new(node);
            let index = kong.groups.len();
            groups.insert(&entity, &["name", "id"], index);
            nest(&entity, [None, None, None, Some(index)]);
            let name = entity.text("name").unwrap_or_default();
            kong.groups.push(Named { name, entity });
        }
        for node in self.section("consumers") {
            let entity = Entity::new(node);
            let index = kong.consumers.len();
            consumers.insert(&entity, &["username", "custom_id", "id"], index);
            nest(&entity, [None, None, Some(index), None]);
            kong.consumers.push(Consumer::read(entity));
        }
        self.credentials(kong, &consumers, out);
        self.upstreams(kong, out);
        // A plugin within a route counts as the route's alone.
        for (node, [service, route, consumer, group]) in nested {
            let service = if route.is_some() { None } else { service };
            kong.plugins.extend(self.plugin(node, [service, route, consumer, group]));
        }
        for node in self.section("plugins") {
            let found = [
                (&services, "service"),
                (&routes, "route"),
                (&consumers, "consumer"),
                (&groups, "consumer_group"),
            ];
            let found: Result<Vec<_>, ()> =
                found.iter().map(|(index, name)| index.find(&node, name, out)).collect();
            match found.as_deref() {
                Ok([service, route, consumer, group]) => {
                    kong.plugins.extend(self.plugin(node, [*service, *route, *consumer, *group]));
                }
                _ => drop(node.whole()),
            }
        }
        for section in ["vaults", "licenses"] {
            self.section(section)
                .iter()
                .for_each(|node| out.cosmetic(node, "references to it are read from the environment"));
            for node in self.section(section) {
                node.whole();
            }
        }
    }

    fn plugin(
        &self,
        node: Node<'a>,
        [service, route, consumer, group]: [Option<usize>; 4],
    ) -> Option<Instance<'a>> {
        let name = Entity::new(node.clone()).text("name")?;
        for name in ["instance_name", "protocols", "run_on"] {
            node.get(name).map(|part| part.whole());
        }
        if node.some("enabled").and_then(|enabled| enabled.bool()) == Some(false) {
            node.whole();
            return None;
        }
        let shared = node.some("_config").and_then(|name| self.configs.get(&name.text()?).cloned());
        let own = node.some("config");
        let config = match (own, shared) {
            (Some(own), shared) => Entity { node: own, defaults: shared },
            (None, Some(shared)) => Entity { node: shared, defaults: None },
            (None, None) => Entity { node: node.clone(), defaults: None },
        };
        Some(Instance { name, node, config, route, service, consumer, group })
    }

    /// Credentials and groups at the top of the file, and those of consumers.
    fn credentials(&self, kong: &mut Kong<'a>, consumers: &Index, out: &mut Output) {
        for section in CREDENTIALS {
            for node in self.section(section) {
                match consumers.find(&node, "consumer", out) {
                    Ok(Some(index)) => kong.consumers[index].credentials.push((section, node)),
                    Ok(None) => out.behaviour(&node, "a credential without a consumer is not used"),
                    Err(()) => drop(node.whole()),
                }
            }
        }
        for node in self.section("acls") {
            if let Ok(Some(index)) = consumers.find(&node, "consumer", out) {
                let group = Entity::new(node).text("group");
                kong.consumers[index].acls.extend(group);
            }
        }
    }

    fn upstreams(&self, kong: &mut Kong<'a>, out: &mut Output) {
        let mut index = Index::default();
        for node in self.section("upstreams") {
            let entity = Entity::with(node, self.defaults.get("upstream"));
            index.insert(&entity, &["name", "id"], kong.upstreams.len());
            let targets = entity.node.some("targets").map(|node| node.items()).unwrap_or_default();
            let name = entity.text("name").unwrap_or_default();
            kong.upstreams.push(Upstream { name, entity, targets });
        }
        for node in self.section("targets") {
            if let Ok(Some(upstream)) = index.find(&node, "upstream", out) {
                kong.upstreams[upstream].targets.push(node);
            }
        }
    }
}

impl<'a> Service<'a> {
    fn read(entity: Entity<'a>, index: usize) -> Service<'a> {
        let mut protocol = entity.text("protocol").unwrap_or_else(|| "http".to_owned());
        let (mut host, mut port) = (entity.text("host").unwrap_or_default(), entity.u64("port"));
        let mut path = entity.text("path").unwrap_or_default();
        if let Some(url) = entity.text("url") {
            let (scheme, rest) = url.split_once("://").unwrap_or(("http", &url));
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, after) = rest.split_at(end);
            scheme.clone_into(&mut protocol);
            after.split('?').next().unwrap_or("").clone_into(&mut path);
            let authority = authority.rsplit('@').next().unwrap_or(authority);
            let colon = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
            port = colon.and_then(|at| authority[at + 1..].parse().ok());
            authority[..colon.unwrap_or(authority.len())].clone_into(&mut host);
        }
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let name = entity.text("name").unwrap_or_else(|| match host.as_str() {
            "" => format!("service-{}", index + 1),
            host => host.to_owned(),
        });
        let enabled = entity.bool("enabled", true);
        Service { name, entity, enabled, protocol, host, port, path }
    }
}

impl<'a> Route<'a> {
    fn read(entity: Entity<'a>, service: Option<usize>, fallback: Option<&str>, old: bool) -> Route<'a> {
        let mut headers: Vec<(String, Vec<String>)> = Vec::new();
        for (name, node) in entity.get("headers").map(|node| node.members()).unwrap_or_default() {
            headers.push((name.to_ascii_lowercase(), node.texts()));
        }
        let items = |name: &str| entity.get(name).map(|node| node.items()).unwrap_or_default();
        // Version 1 of the format handled paths like `v1`.
        let handling = entity.text("path_handling");
        let path_handling_v1 = handling.as_deref() == Some("v1");
        let integer = |name: &str| entity.get(name).and_then(|node| node.text()?.parse().ok()).unwrap_or(0);
        let name = entity.text("name").or_else(|| entity.text("id"));
        Route {
            name: name.or_else(|| fallback.map(str::to_owned)).unwrap_or_default(),
            service,
            protocols: entity.texts("protocols"),
            methods: entity.texts("methods"),
            hosts: entity.texts("hosts").iter().map(|host| host.to_ascii_lowercase()).collect(),
            paths: entity.texts("paths").iter().map(|path| PathRule::read(path, !old)).collect(),
            headers,
            snis: entity.texts("snis"),
            sources: items("sources"),
            destinations: items("destinations"),
            strip_path: entity.bool("strip_path", true),
            preserve_host: entity.bool("preserve_host", false),
            path_handling_v1,
            regex_priority: integer("regex_priority"),
            expression: entity.get("expression"),
            priority: integer("priority"),
            entity,
        }
    }

    /// Whether it takes connections instead of requests.
    pub(super) fn is_stream(&self) -> bool {
        let stream = ["tcp", "tls", "udp", "tls_passthrough"];
        self.protocols.first().is_some_and(|protocol| stream.contains(&protocol.as_str()))
    }
}

impl<'a> Consumer<'a> {
    fn read(entity: Entity<'a>) -> Consumer<'a> {
        let items = |name: &str| entity.node.some(name).map(|node| node.items()).unwrap_or_default();
        let mut credentials = Vec::new();
        for section in CREDENTIALS {
            credentials.extend(items(section).into_iter().map(|node| (section, node)));
        }
        let acls = items("acls").into_iter().filter_map(|node| Entity::new(node).text("group")).collect();
        let groups = items("groups").iter().filter_map(reference).collect();
        let name = ["username", "custom_id", "id"].iter().find_map(|name| entity.text(name));
        Consumer { name: name.unwrap_or_default(), credentials, acls, groups, entity }
    }
}
