//! Plugins of Kong: the instances that a request meets, and their counterparts here.
//!
//! Kong runs one instance of a plugin for a request: that of the consumer before that of the route,
//! of the service and the global one. Here a route's plugins take the place of its service's, and a
//! consumer's that of both, so global instances become part of services.

mod access;
mod assign;
mod auth;
pub(super) mod convert;
mod limits;
mod observe;
mod stream;
mod transform;

use model::Kind;
use serde_json::{Map, Value, json};

use super::entities::Kong;
use super::paths::PathRule;
use super::rewrite;
use super::routes::Part;
use super::{Output, finding};
use crate::finding::{Finding, Place, Severity};
use crate::node::Node;
use crate::output::Setting;
pub(super) use assign::{Scopes, assign};
use auth::Auth;
use limits::Limit;
pub(super) use stream::of_stream;
use transform::Rewrite;

/// Plugins by name.
type Plugins = Map<String, Value>;

/// A part of what an instance becomes.
enum Piece {
    Plugin(&'static str, Value),
    Auth(Auth),
    Limit(Limit),
    Rewrite(Rewrite),
}

/// The pieces of an instance, and the differences.
struct Converted {
    pieces: Vec<Piece>,
    notes: Notes,
}

/// Findings whose routes are not known yet.
#[derive(Default)]
struct Notes(Vec<Finding>);

impl Notes {
    fn guard(&mut self, node: &Node<'_>, effect: impl Into<String>) {
        self.0.push(finding(Severity::Guard, node, effect));
    }

    fn behaviour(&mut self, node: &Node<'_>, effect: impl Into<String>) {
        self.0.push(finding(Severity::Behaviour, node, effect));
    }

    fn cosmetic(&mut self, node: &Node<'_>, effect: impl Into<String>) {
        self.0.push(finding(Severity::Cosmetic, node, effect));
    }
}

/// The setting that lets file-logger write where the file's logs are, if that is not allowed anyway.
pub(super) fn log_folders(kong: &Kong<'_>) -> Vec<Setting> {
    let mut folders = vec!["logs".to_owned(), "/var/log".to_owned()];
    let mut place = None;
    for instance in kong.plugins.iter().filter(|instance| instance.name == "file-log") {
        let Some(path) = instance.config.text("path") else { continue };
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let allowed =
            !folder.starts_with('/') || folder == "/dev" || format!("{folder}/").starts_with("/var/log/");
        if !allowed && !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
            place.get_or_insert_with(|| instance.node.place());
        }
    }
    let path = "plugin_attr.file-logger.allowed_paths".to_owned();
    place.map(|place| Setting { path, value: json!(folders), place }).into_iter().collect()
}

/// The plugins of all resources.
pub(super) struct Assigned {
    routes: Vec<Plugins>,
    rewrites: Vec<Rewrite>,
    /// The plugin configurations of routes that became several resources.
    shared: Vec<Option<(String, Place)>>,
    services: Vec<Plugins>,
    consumers: Vec<Plugins>,
    groups: Vec<Plugins>,
    usernames: Vec<String>,
    global_rules: Vec<(Plugins, Place)>,
    limit_headers: Option<Place>,
}

impl Assigned {
    /// The plugins of a part of a route, and the plugin configuration that holds those all parts share.
    pub(super) fn of_part(
        &self,
        kong: &Kong<'_>,
        index: usize,
        part: &Part,
        parts: usize,
    ) -> (Plugins, Option<&str>) {
        let shared = self.shared[index].as_ref().filter(|_| parts > 1).map(|(id, _)| id.as_str());
        let mut own = if shared.is_some() { Plugins::new() } else { self.routes[index].clone() };
        let route = &kong.routes[index];
        let service = route.service.map_or("", |service| kong.services[service].path.as_str());
        let paths: &[PathRule] = &part.paths;
        let path = rewrite::rewrite(paths, route.strip_path, service, route.path_handling_v1);
        if let Some(value) = self.rewrites[index].value(path) {
            own.insert("proxy-rewrite".to_owned(), value);
        }
        (own, shared)
    }

    pub(super) fn of_service(&self, index: usize) -> Plugins {
        self.services[index].clone()
    }

    pub(super) fn of_consumer(&self, index: usize) -> Plugins {
        self.consumers[index].clone()
    }

    pub(super) fn of_group(&self, index: usize) -> Plugins {
        self.groups[index].clone()
    }

    pub(super) fn username(&self, index: usize) -> &str {
        &self.usernames[index]
    }

    /// Writes plugin configurations, global rules and the metadata of plugins.
    pub(super) fn write(self, out: &mut Output) {
        for (plugins, shared) in self.routes.into_iter().zip(self.shared) {
            if let Some((id, place)) = shared {
                out.add(Kind::PluginConfig, id, json!({ "plugins": plugins }), place);
            }
        }
        for (plugins, place) in self.global_rules {
            let name = plugins.keys().next().cloned().unwrap_or_default();
            let id = out.names.id(Kind::GlobalRule, &name);
            out.add(Kind::GlobalRule, id, json!({ "plugins": plugins }), place);
        }
        if let Some(place) = self.limit_headers {
            let value = json!({
                "limit_header": "RateLimit-Limit",
                "remaining_header": "RateLimit-Remaining",
                "reset_header": "RateLimit-Reset",
            });
            out.add(Kind::PluginMetadata, "limit-count", value, place);
        }
    }
}
