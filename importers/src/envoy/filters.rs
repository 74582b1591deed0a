//! Filters of HTTP, in the order of the connection manager.

use serde_json::{Map, Value};

use super::cluster::Clusters;
use super::context::{Context, Report};
use super::draft::{Draft, Levels, override_of};
use super::manager::Around;
use super::matching::{Matcher, Path, Pattern, header_condition};
use super::value::{self, boolean, items, text};
use super::{authz, jwt, limit, rbac, simple};
use crate::finding::Finding;
use crate::node::Node;

/// A filter.
pub(super) struct Filter<'a> {
    name: String,
    kind: String,
    /// As the file writes it, if it does.
    type_url: String,
    config: Option<Node<'a>>,
    node: Node<'a>,
    /// Applies to routes alone that have settings for it.
    pub(super) off: bool,
    /// The same for all routes.
    plugins: Map<String, Value>,
    jwt: Option<jwt::Rules<'a>>,
    /// Reported once, for the routes to which the filter applies.
    pub(super) findings: Vec<Finding>,
}

impl Filter<'_> {
    /// Whether it is one of these, by the name of its type, or without one by the end of its own.
    pub(super) fn is(&self, names: &[&str]) -> bool {
        let end = self.name.rsplit('.').next().unwrap_or_default();
        names.iter().any(|name| if self.is_typed() { self.kind == *name } else { end == *name })
    }

    fn is_typed(&self) -> bool {
        !matches!(
            self.type_url.rsplit(['.', '/']).next(),
            None | Some("" | "Struct" | "Empty" | "TypedStruct")
        )
    }

    /// The word that stands for what it does: `cache` of `envoy.extensions.filters.http.cache.v3.CacheConfig`, or the
    /// end of its name. Envoy goes by the type, and the name is free.
    pub(super) fn word(&self) -> &str {
        if !self.is_typed() {
            return self.name.rsplit('.').next().unwrap_or_default();
        }
        let path = self.type_url.rsplit('/').next().unwrap_or_default();
        if path.starts_with("envoy.") { path.rsplit('.').nth(2).unwrap_or_default() } else { "" }
    }

    /// Names by which routes refer to it.
    fn names(&self) -> Vec<String> {
        let last = self.name.rsplit('.').next().unwrap_or_default();
        vec![
            self.name.clone(),
            format!("envoy.filters.http.{last}"),
            format!("envoy.{last}"),
            last.to_owned(),
        ]
    }
}

/// Reads the filters.
pub(super) fn read<'a>(
    context: &mut Context<'_>,
    clusters: &Clusters,
    nodes: &[Node<'a>],
) -> Vec<Filter<'a>> {
    let mut filters = Vec::new();
    for node in nodes {
        let extension = value::extension(node);
        let mut filter = Filter {
            name: extension.name.clone(),
            kind: extension.kind.clone(),
            type_url: type_url(node),
            config: extension.config.clone(),
            node: node.clone(),
            off: boolean(node, "disabled") == Some(true),
            plugins: Map::new(),
            jwt: None,
            findings: Vec::new(),
        };
        let mut report = Report::default();
        let _ = (node.get("is_optional"), filter.config.as_ref().and_then(|config| config.get("@type")));
        if let Some(config) = node.some("config_discovery") {
            config.whole();
            report.guard(
                &config,
                extension.name.clone(),
                "the settings of the filter come from a control plane, which is not asked",
            );
        }
        if filter.is(&["jwt_authn", "JwtAuthentication"]) {
            filter.jwt =
                filter.config.as_ref().and_then(|config| jwt::read(context, clusters, config, &mut report));
        } else {
            filter.plugins = plugins(context, clusters, &filter, filter.config.as_ref(), &mut report);
        }
        filter.findings = report.findings;
        filters.push(filter);
    }
    filters
}

/// Whether the router adds no headers of its own to requests.
pub(super) fn suppresses_headers(filters: &[Filter<'_>]) -> bool {
    let router = filters.iter().find(|filter| filter.is(&["router", "Router"]));
    router
        .and_then(|router| router.config.as_ref())
        .is_some_and(|config| boolean(config, "suppress_envoy_headers") == Some(true))
}

/// The type of a filter's settings.
fn type_url(node: &Node<'_>) -> String {
    let Some(config) = node.any(&["typed_config", "config"]) else { return String::new() };
    let outer = text(&config, "@type").unwrap_or_default();
    let inner = text(&config, "type_url").filter(|_| outer.ends_with(".TypedStruct"));
    inner.unwrap_or(outer).to_owned()
}

/// The plugins of a filter with these settings.
fn plugins(
    context: &Context<'_>,
    clusters: &Clusters,
    filter: &Filter<'_>,
    config: Option<&Node<'_>>,
    report: &mut Report,
) -> Map<String, Value> {
    if filter.is(&["router", "Router"]) {
        if let Some(config) = config {
            simple::router(config, report);
        }
        return Map::new();
    }
    if filter.is(&["cors", "Cors"]) {
        return Map::new();
    }
    let Some(config) = config else {
        return simple::without_settings(filter, report);
    };
    if filter.is(&["ext_authz", "ExtAuthz"]) {
        return authz::read(config, clusters, context.source.variables, report);
    }
    if filter.is(&["rbac", "RBAC"]) {
        return rbac::read(config, report);
    }
    if filter.is(&["local_ratelimit", "LocalRateLimit"]) {
        return limit::read(config, &format!("envoy{}", config.place().position.line), report);
    }
    simple::read(filter, config, report)
}

impl<'a> Filter<'a> {
    pub(super) fn place(&self) -> &Node<'a> {
        &self.node
    }

    pub(super) fn name(&self) -> &str {
        if self.name.is_empty() { &self.kind } else { &self.name }
    }
}

/// Applies the filters to a route, with the settings for them that `levels` have.
pub(super) fn apply(
    context: &Context<'_>,
    around: &Around<'_, '_>,
    levels: Option<&Levels<'_>>,
    draft: &mut Draft,
) {
    let manager = around.manager;
    for filter in &manager.filters {
        let names = filter.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut own = levels.and_then(|levels| override_of(levels, &names));
        let mut applies = !filter.off;
        if let Some(settings) = own.clone() {
            let _ = (settings.get("@type"), settings.get("is_optional"));
            applies = boolean(&settings, "disabled") != Some(true);
            if let Some(inner) = settings.some("config") {
                let _ = inner.get("@type");
                applies &= boolean(&inner, "disabled") != Some(true);
                own = Some(inner);
            } else if text(&settings, "@type").is_some_and(|kind| kind.ends_with(".FilterConfig"))
                && settings
                    .names()
                    .all(|name| matches!(name, "@type" | "is_optional" | "disabled" | "config"))
            {
                // It only turns the filter on or off.
                own = None;
            }
        }
        draft.filtered.push(applies);
        if !applies || filter.is(&["cors", "Cors"]) {
            continue;
        }
        if let Some(rules) = &filter.jwt {
            rules.apply(draft, own.as_ref());
            continue;
        }
        let mut replaced = None;
        if let Some(settings) = own {
            replaced = own_plugins(context, around.clusters, filter, &settings, draft);
        }
        let plugins = replaced.as_ref().unwrap_or(&filter.plugins);
        let by_address = manager.behind_proxies && filter.is(&["rbac", "RBAC"]);
        if by_address && plugins.values().any(|plugin| plugin.to_string().contains("\"remote_addr\"")) {
            let effect = if manager.client_is_forwarded {
                "rules about `remote_ip` compare the last address in `X-Forwarded-For`, which clients choose that reach the gateway without a proxy"
            } else {
                "rules about `remote_ip` compare the address of the proxy until `nginx_config.http.real_ip_from` names it"
            };
            draft.report.guard(filter.place(), filter.name(), effect);
        }
        for name in draft.plugins.join(plugins) {
            draft.report.guard(
                filter.place(),
                filter.name(),
                format!("the route has the plugin `{name}` already, so this filter is not carried over"),
            );
        }
    }
}

/// The plugins of a filter with settings of a route.
fn own_plugins(
    context: &Context<'_>,
    clusters: &Clusters,
    filter: &Filter<'_>,
    settings: &Node<'_>,
    draft: &mut Draft,
) -> Option<Map<String, Value>> {
    let inner = ["rbac", "buffer", "check_settings", "overrides"].iter().find_map(|name| settings.some(name));
    let mut report = Report::default();
    let plugins = if filter.is(&["ext_authz", "ExtAuthz"]) {
        authz::of_route(settings, &filter.plugins, &mut report)
    } else if filter.is(&["ext_proc", "ExternalProcessor"]) {
        settings.whole();
        report.guard(settings, filter.name(), "settings of a route for this filter are not carried over");
        None
    } else if filter.is(&["rbac", "RBAC"]) && inner.is_none() {
        // Without rules the filter does nothing.
        Some(Map::new())
    } else {
        Some(plugins(context, clusters, filter, Some(inner.as_ref().unwrap_or(settings)), &mut report))
    };
    draft.report.findings.append(&mut report.findings);
    plugins
}

/// The route by which a filter answers health checks itself.
pub(super) fn health_check<'a>(filter: &Filter<'a>) -> Option<(Node<'a>, Matcher)> {
    let config =
        filter.config.as_ref().filter(|_| !filter.off && filter.is(&["health_check", "HealthCheck"]))?;
    if boolean(config, "pass_through_mode") == Some(true) {
        return None;
    }
    let mut matcher = Matcher::all();
    let mut headers = items(config, "headers");
    if let Some(endpoint) = text(config, "endpoint") {
        matcher.path = Path::Exact(endpoint.to_owned());
        matcher.patterns = vec![Pattern::Exact(endpoint.to_owned())];
    }
    headers.retain(|header| {
        let exact = header.some("string_match").unwrap_or_else(|| header.clone());
        let path = text(&exact, "exact").or_else(|| text(&exact, "exact_match"));
        match path.filter(|path| {
            text(header, "name") == Some(":path") && path.starts_with('/') && !path.contains(['*', '?'])
        }) {
            Some(path) => {
                matcher.path = Path::Exact(path.to_owned());
                matcher.patterns = vec![Pattern::Exact(path.to_owned())];
                false
            }
            None => true,
        }
    });
    for header in &headers {
        matcher.vars.push(header_condition(header).ok()?);
    }
    Some((filter.node.clone(), matcher))
}
