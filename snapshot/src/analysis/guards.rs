//! Routes whose clients are restricted.

use model::{Kind, Plugins, Route};
use serde_json::Value;

use super::{Input, uses_plugin};

/// Plugins that restrict who may send requests, beside those that the catalog lists as identifying
/// consumers.
const GUARDS: [&str; 18] = [
    "acl",
    "authz-casbin",
    "authz-casdoor",
    "authz-keycloak",
    "cas-auth",
    "consumer-restriction",
    "dingtalk-auth",
    "ext-authz",
    "feishu-auth",
    "forward-auth",
    "ip-restriction",
    "jwks-auth",
    "ldap-auth",
    "opa",
    "openid-connect",
    "saml-auth",
    "wolf-rbac",
    "multi-auth",
];

/// Plugins that answer themselves, so no upstream is exposed.
const ANSWERING: [&str; 2] = ["mocking", "public-api"];

pub(super) struct Guards<'a> {
    of: Input<'a>,
    auth: Vec<&'a str>,
    /// Global rules restrict or answer all requests.
    pub everywhere: bool,
}

impl<'a> Guards<'a> {
    pub fn new(of: Input<'a>) -> Guards<'a> {
        let auth =
            of.catalog.about().into_iter().filter(|about| about.auth).map(|about| about.name).collect();
        let mut guards = Guards { of, auth, everywhere: false };
        guards.everywhere = of.desired.of(Kind::GlobalRule).any(|entry| {
            let plugins = entry.resource().plugins();
            plugins.is_some_and(|plugins| guards.uses_guard(plugins) || uses_plugin(plugins, &is_answering))
        });
        guards
    }

    /// Whether a plugin of the route, its plugin config or its service restricts clients.
    pub fn restrict(&self, route: &Route) -> bool {
        self.of_route(route).any(|plugins| self.uses_guard(plugins))
    }

    /// Whether the route answers all requests itself.
    pub fn answer(&self, route: &Route) -> bool {
        redirects(route) || self.of_route(route).any(|plugins| uses_plugin(plugins, &is_answering))
    }

    fn uses_guard(&self, plugins: &Plugins) -> bool {
        uses_plugin(plugins, &|name| self.auth.contains(&name) || GUARDS.contains(&name))
    }

    /// The plugins of a route, of its plugin config and of its service.
    fn of_route<'r>(&'r self, route: &'r Route) -> impl Iterator<Item = &'r Plugins> {
        let shared = [(Kind::PluginConfig, &route.plugin_config_id), (Kind::Service, &route.service_id)];
        let shared = shared.into_iter().filter_map(|(kind, id)| {
            self.of.desired.get(kind, id.as_ref()?).and_then(|entry| entry.resource().plugins())
        });
        std::iter::once(&route.plugins).chain(shared)
    }
}

fn is_answering(name: &str) -> bool {
    ANSWERING.contains(&name)
}

fn redirects(route: &Route) -> bool {
    let redirect = route.plugins.get("redirect");
    redirect.is_some_and(|config| config.get("uri").is_some_and(Value::is_string))
}
