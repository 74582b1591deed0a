//! Routes for every path, on which nobody is asked who they are.

use model::{Invalid, Kind, Resource, Route};
use serde_json::Value;

use super::{Analysis, Code, Of, names};
use crate::router::trace::Shape;

/// Plugins that keep some requests out by who they are from, beside those that the catalog says identify
/// consumers.
const GUARDS: [&str; 16] = [
    "acl",
    "authz-casbin",
    "authz-casdoor",
    "authz-keycloak",
    "cas-auth",
    "consumer-restriction",
    "dingtalk-auth",
    "feishu-auth",
    "forward-auth",
    "ip-restriction",
    "ldap-auth",
    "opa",
    "openid-connect",
    "saml-auth",
    "wolf-rbac",
    "multi-auth",
];

/// Plugins that answer by themselves: nothing lies behind them.
const ANSWERING: [&str; 2] = ["mocking", "public-api"];

pub(super) fn look(of: Of<'_>, found: &mut Analysis) {
    let auth: Vec<&str> =
        of.catalog.about().into_iter().filter(|about| about.auth).map(|about| about.name).collect();
    let guards = |name: &str| auth.contains(&name) || GUARDS.contains(&name) || ANSWERING.contains(&name);
    let guarded = |kind: Kind, id: &Option<String>| {
        let entry = id.as_ref().and_then(|id| of.desired.get(kind, id));
        entry.and_then(|entry| entry.resource().plugins()).is_some_and(|plugins| names(plugins, &guards))
    };
    let everywhere = of
        .desired
        .of(Kind::GlobalRule)
        .any(|entry| entry.resource().plugins().is_some_and(|plugins| names(plugins, &guards)));
    if everywhere {
        return;
    }
    for entry in of.desired.of(Kind::Route) {
        let Resource::Route(route) = entry.resource() else { continue };
        let wide = route.uris.iter().position(|uri| {
            let shape = Shape::of(uri, of.mode);
            !shape.exact && shape.whole && shape.key.len() <= 1
        });
        let Some(at) = wide.filter(|_| route.enabled && is_for_all(route)) else { continue };
        let is_guarded = names(&route.plugins, &guards)
            || guarded(Kind::PluginConfig, &route.plugin_config_id)
            || guarded(Kind::Service, &route.service_id)
            || redirects(route);
        if is_guarded {
            continue;
        }
        let pointer = if route.uris.len() > 1 { format!("/uris/{at}") } else { "/uri".to_owned() };
        let reason = format!(
            "{} takes every path, and nobody is asked who they are: what the upstream serves, now or later, is open",
            route.uris[at]
        );
        let invalid = Invalid::new(reason).at(pointer).hint(
            "name the paths that are meant, or add an authentication plugin (key-auth, jwt-auth, …) or ip-restriction",
        );
        found.add(Code::NoAuthentication, &entry.key, invalid);
    }
}

/// Neither addresses nor conditions say who may come.
fn is_for_all(route: &Route) -> bool {
    route.remote_addrs.is_empty() && route.vars.is_none()
}

fn redirects(route: &Route) -> bool {
    let redirect = route.plugins.get("redirect");
    redirect.is_some_and(|config| config.get("uri").is_some_and(Value::is_string))
}
