//! Routes for every path without authentication.

use model::{Invalid, Kind, Resource, Route};

use super::guards::Guards;
use super::{Analysis, Code, Input};
use crate::router::trace::Shape;

pub(super) fn check(of: Input<'_>, found: &mut Analysis) {
    let guards = Guards::new(of);
    if guards.everywhere {
        return;
    }
    for entry in of.desired.of(Kind::Route) {
        let Resource::Route(route) = entry.resource() else { continue };
        let wide = route.uris.iter().position(|uri| {
            let shape = Shape::of(uri, of.mode);
            !shape.exact && shape.whole && shape.key.len() <= 1
        });
        let Some(at) = wide.filter(|_| route.enabled && is_for_all(route)) else { continue };
        if guards.restrict(route) || guards.answer(route) {
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

/// Whether neither `remote_addr`, `vars` nor `filter_func` restrict the route.
fn is_for_all(route: &Route) -> bool {
    route.remote_addrs.is_empty() && route.vars.is_none() && route.filter_func.is_none()
}
