//! `require_tls`: clients of HTTP are sent to HTTPS before the routes of a virtual host are looked at.

use serde_json::json;

use super::context::Context;
use super::draft::{Draft, front};
use super::manager::Around;
use super::matching::Matcher;
use super::plugins::Plugins;
use super::value::enumerated;
use super::{filters, route};
use crate::node::Node;

/// The route in front of a virtual host that redirects clients of HTTP.
///
/// Envoy's has neither the headers nor the filter settings of the virtual host.
pub(super) fn read(context: &Context<'_>, around: &Around<'_, '_>, host: &Node<'_>) -> Option<Draft> {
    let required = enumerated(host, "require_tls").filter(|required| required != "NONE")?;
    let node = host.some("require_tls")?;
    let manager = around.manager;
    if manager.tls {
        return None;
    }
    let mut matcher = Matcher::all();
    // A proxy in front may have ended TLS.
    let by_header = manager.behind_proxies;
    if by_header {
        matcher.vars.push(json!(["http_x_forwarded_proto", "~=", "https"]));
    }
    let target = if manager.raw_targets { "${real_request_uri}" } else { "${normal_request_uri}" };
    let mut plugins = Plugins::default();
    plugins.set("redirect", json!({"uri": format!("https://${{http_host}}{target}"), "ret_code": 301}));
    let mut draft = front(&node, "require-tls", matcher, plugins);
    route::of_manager(manager, &mut draft);
    if by_header {
        draft.report.behaviour(
            &node,
            format!("require_tls: {required}"),
            "`X-Forwarded-Proto: https` counts from the proxies in `apisix.trusted_addresses` alone: behind another one that ends TLS, clients are redirected without end",
        );
        draft.report.hint("name the proxies that end TLS in `apisix.trusted_addresses` of config.yaml");
    }
    if required == "EXTERNAL_ONLY" {
        draft.report.behaviour(
            &node,
            "require_tls: EXTERNAL_ONLY",
            "clients within the network are redirected as well",
        );
    }
    filters::apply(context, around, None, &mut draft);
    Some(draft)
}
