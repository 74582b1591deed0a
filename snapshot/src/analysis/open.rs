//! Routes for every path without authentication.

use model::{Invalid, Kind, Resource, Route};
use serde_json::Value;

use super::{Analysis, Code, Input, uses_plugin};
use crate::router::trace::Shape;

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

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let auth: Vec<&str> =
        of.catalog.about().into_iter().filter(|about| about.auth).map(|about| about.name).collect();
    let guards = |name: &str| auth.contains(&name) || GUARDS.contains(&name) || ANSWERING.contains(&name);
    let guarded = |kind: Kind, id: &Option<String>| {
        let entry = id.as_ref().and_then(|id| of.desired.get(kind, id));
        entry
            .and_then(|entry| entry.resource().plugins())
            .is_some_and(|plugins| uses_plugin(plugins, &guards))
    };
    let everywhere = of
        .desired
        .of(Kind::GlobalRule)
        .any(|entry| entry.resource().plugins().is_some_and(|plugins| uses_plugin(plugins, &guards)));
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
        let is_guarded = uses_plugin(&route.plugins, &guards)
            || guarded(Kind::PluginConfig, &route.plugin_config_id)
            || guarded(Kind::Service, &route.service_id)
            || redirects(route);
        if is_guarded {
            continue;
        }
        let pointer = if route.uris.len() > 1 { format!("/uris/{at}") } else { "/uri".to_owned() };
        let reason = format!(
            "{} takes every path and requires no authentication: everything the upstream serves, now or later, is exposed",
            route.uris[at]
        );
        let invalid = Invalid::new(reason).at(pointer).hint(
            "list the intended paths, or add an authentication plugin (key-auth, jwt-auth, …) or ip-restriction",
        );
        found.add(Code::NoAuthentication, &entry.key, invalid);
    }
}

/// Whether neither `remote_addr` nor `vars` restrict the route.
fn is_for_all(route: &Route) -> bool {
    route.remote_addrs.is_empty() && route.vars.is_none()
}

fn redirects(route: &Route) -> bool {
    let redirect = route.plugins.get("redirect");
    redirect.is_some_and(|config| config.get("uri").is_some_and(Value::is_string))
}
