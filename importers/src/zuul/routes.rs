//! Zuul's routes, in the order in which they are tried.

use model::{Diagnostic, Key, Kind};
use serde_json::{Map, Value, json};

use super::headers::{self, Withheld};
use super::timeouts;
use crate::Source;
use crate::finding::{Place, Severity};
use crate::spring::ids::Ids;
use crate::spring::path::{self, Rules};
use crate::spring::regexes;
use crate::spring::registry::Registry;
use crate::spring::report::Report;
use crate::spring::routes::{self, Draft};
use crate::spring::settings::{Item, Settings};
use crate::spring::upstream::{self, Address};
use crate::spring::{preflight, server};

const ANT: Rules = Rules { trailing_slash: false, ant: true };
const MAX_ROUTES: usize = 20_000;

/// A route as the file has it.
struct Route<'s> {
    id: String,
    path: String,
    /// An address or the name of a service.
    location: String,
    strip_prefix: bool,
    retryable: bool,
    item: Option<Item<'s>>,
    place: Place,
}

/// Settings of all routes.
struct Shared<'s> {
    settings: &'s Settings<'s>,
    registry: Registry,
    withheld: Withheld,
    plugins: Map<String, Value>,
    /// Without a slash at the end.
    prefix: String,
    strip_prefix: bool,
    proxy_headers: bool,
    host_header: bool,
    verify: bool,
}

/// Adds the routes.
///
/// # Errors
/// There are too many.
pub fn read(
    settings: &Settings<'_>,
    source: &Source<'_>,
    plugins: Map<String, Value>,
    report: &mut Report,
) -> Result<(), Box<Diagnostic>> {
    let flag = |name: &str, otherwise: bool| {
        settings.get(&format!("zuul.{name}")).and_then(|item| item.bool()).unwrap_or(otherwise)
    };
    let prefix = settings.get("zuul.prefix").and_then(|item| item.some()).unwrap_or_default();
    let prefix = match prefix.trim_end_matches('/') {
        "" => String::new(),
        text if text.starts_with('/') => text.to_owned(),
        text => format!("/{text}"),
    };
    let shared = Shared {
        settings,
        registry: Registry::find(settings, report),
        withheld: Withheld::read(settings),
        plugins,
        prefix,
        strip_prefix: flag("strip-prefix", true),
        proxy_headers: flag("add-proxy-headers", true),
        host_header: flag("add-host-header", false),
        verify: flag("ssl-hostname-validation-enabled", true),
    };
    others(settings, report);
    let routes = listed(&shared, flag("retryable", false), report);
    if routes.len() > MAX_ROUTES {
        let message = format!("the file has more than {MAX_ROUTES} routes");
        return Err(Box::new(Diagnostic::new(model::Severity::Error, source.file, message)));
    }
    if routes.is_empty() {
        let effect = "the file has no routes: those that Java code defines are not carried over";
        report.find(Severity::Behaviour, report.place(), "zuul.routes", effect);
    }
    let mut ids = Ids::default();
    let mut drafts: Vec<Draft> = Vec::new();
    if !routes.is_empty() {
        drafts.push(dots(&mut ids, report));
    }
    drafts.extend(ignored(settings, &mut ids, report));
    for route in routes {
        let key = Key::new(Kind::Route, ids.take(&route.id));
        report.route = Some(key.clone());
        report.current = Some(route.place.clone());
        drafts.extend(draft(route, key, &shared, report));
        report.route = None;
    }
    report.current = None;
    if !drafts.is_empty() {
        drafts.push(preflight::last(&mut ids, report));
    }
    server::paths(&["resolve_dots"], report);
    let effect = "paths that are not in their normal form, with `.` or `..` as a part, get 404, in Zuul 404 or 500; preflights for them get 404 instead of 403; requests whose server ends the connection without an answer get 500 after the attempts that the file asks for, in Zuul after one attempt or up to 4 for a route with a `url`";
    report.find(Severity::Behaviour, report.place(), "zuul", effect);
    routes::add(drafts, source, report)
}

/// The routes of the file and of services that it names; `/**` comes last.
fn listed<'s>(shared: &Shared<'s>, retryable: bool, report: &mut Report) -> Vec<Route<'s>> {
    let mut found: Vec<Route<'s>> = Vec::new();
    let routes = shared.settings.get("zuul.routes");
    for (name, item) in routes.as_ref().map(|item| item.members()).unwrap_or_default() {
        let text = |key: &str| item.get(key).and_then(|item| item.some());
        let flag = |key: &str| item.get(key).and_then(|item| item.bool());
        // `users: /users/**` names the path alone.
        let short = item.raw().filter(|text| !text.is_empty()).and_then(|_| item.some());
        let path = short.or_else(|| text("path")).unwrap_or_else(|| format!("/{name}/**"));
        let location = text("url").or_else(|| text("service-id")).unwrap_or_else(|| name.to_owned());
        let route = Route {
            id: text("id").unwrap_or_else(|| name.to_owned()),
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            location,
            strip_prefix: flag("strip-prefix").unwrap_or(true),
            retryable: flag("retryable").unwrap_or(retryable),
            place: item.place(),
            item: Some(item),
        };
        // A later route of the same path takes the place of the earlier one.
        match found.iter_mut().find(|known| known.path == route.path) {
            Some(known) => {
                let effect = "a later route of the same path takes its place, as in Zuul";
                report.find(
                    Severity::Cosmetic,
                    known.place.clone(),
                    &format!("zuul.routes.{}", known.id),
                    effect,
                );
                if let Some(item) = &known.item {
                    item.whole();
                }
                *known = route;
            }
            None => found.push(route),
        }
    }
    services(shared, retryable, &mut found, report);
    let (rest, last): (Vec<_>, Vec<_>) = found.into_iter().partition(|route| route.path != "/**");
    rest.into_iter().chain(last).collect()
}

/// Each service of the registry has a route of its name, if it is not ignored.
fn services<'s>(shared: &Shared<'s>, retryable: bool, found: &mut Vec<Route<'s>>, report: &mut Report) {
    let settings = shared.settings;
    let ignored = settings.get("zuul.ignored-services");
    let patterns = ignored.as_ref().map(|item| item.texts()).unwrap_or_default();
    if !shared.registry.is_configured() || patterns.iter().any(|pattern| pattern == "*") {
        return;
    }
    let local = settings.get("spring.application.name").and_then(|item| item.text());
    let mut names: Vec<String> = Vec::new();
    for route in found.iter().filter(|route| !route.location.contains(':')) {
        let name = &route.location;
        let is_ignored =
            patterns.iter().any(|pattern| simple_match(pattern, name)) || local.as_ref() == Some(name);
        let has_path = found.iter().any(|known| known.path == format!("/{name}/**"));
        if !is_ignored && !has_path && !names.contains(name) {
            names.push(name.clone());
        }
    }
    let place = settings.get("zuul").map_or_else(|| report.place(), |item| item.place());
    let effect = "services of the registry that the file does not name get no routes of their own";
    let hint = "add a route for each of them, or set `zuul.ignored-services: \"*\"` if they need none";
    report.hint(Severity::Behaviour, place.clone(), "zuul.ignored-services", effect, hint);
    for name in names {
        let (id, path) = (format!("service-{name}"), format!("/{name}/**"));
        found.push(Route {
            id,
            path,
            location: name,
            strip_prefix: true,
            retryable,
            item: None,
            place: place.clone(),
        });
    }
}

/// Spring's simple patterns: `*` at the beginning, at the end, or both.
fn simple_match(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(inner), Some(_)) => text.contains(inner.trim_end_matches('*')),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => pattern == text,
    }
}

/// A route that answers 404 for `ignored-patterns`, before all others.
fn ignored(settings: &Settings<'_>, ids: &mut Ids, report: &mut Report) -> Option<Draft> {
    let item = settings.get("zuul.ignored-patterns")?;
    let mut patterns = Vec::new();
    for text in item.texts() {
        match path::compile(&text, ANT) {
            Some(pattern) => patterns.push(pattern),
            None => {
                report.item(Severity::Cosmetic, &item, format!("`{text}` matches no path, as in Zuul"), None)
            }
        }
    }
    if patterns.is_empty() {
        return None;
    }
    let mut body = Map::new();
    if patterns.iter().any(|pattern| !pattern.exact) {
        let all: Vec<&str> = patterns.iter().map(|pattern| pattern.regex.as_str()).collect();
        body.insert("vars".to_owned(), json!([["uri", "~~", all.join("|")]]));
    }
    body.insert("plugins".to_owned(), json!({"fault-injection": {"abort": {"http_status": 404}}}));
    let mut anchors = Vec::new();
    for anchor in patterns.into_iter().flat_map(|pattern| pattern.anchors) {
        if !anchors.contains(&anchor) {
            anchors.push(anchor);
        }
    }
    let key = Key::new(Kind::Route, ids.take("ignored-patterns"));
    Some(Draft {
        key,
        place: item.place(),
        order: 0,
        anchors,
        body,
        upstream: upstream::no_nodes(),
        weight: None,
    })
}

/// A route that answers 404 for paths with dot segments, which Zuul does not forward.
fn dots(ids: &mut Ids, report: &Report) -> Draft {
    let body = json!({
        "vars": [["uri", "~~", "/(?:\\.|%2E){1,2}(?:/|$)"]],
        "plugins": {"fault-injection": {"abort": {"http_status": 404}}},
    });
    Draft {
        key: Key::new(Kind::Route, ids.take("dot-segments")),
        place: report.place(),
        order: 0,
        anchors: vec![path::Anchor::Prefix("/".to_owned())],
        body: body.as_object().cloned().unwrap_or_default(),
        upstream: upstream::no_nodes(),
        weight: None,
    }
}

fn draft(route: Route<'_>, key: Key, shared: &Shared<'_>, report: &mut Report) -> Option<Draft> {
    let full = format!("{}{}", shared.prefix, route.path);
    let pattern = path::compile(&full, ANT)?;
    let mut plugins = shared.plugins.clone();
    let mut body = Map::new();
    if !pattern.exact {
        body.insert("vars".to_owned(), json!([["uri", "~~", pattern.regex]]));
    }
    let address = Address::parse(&route.location);
    let base = if address.is_some() { base_path(&route.location) } else { String::new() };
    rewrite(&route, &base, shared, &mut plugins);
    let withheld = match &route.item {
        Some(item) => shared.withheld.of_route(item),
        None => shared.withheld.of_route(&shared.settings.root()),
    };
    headers::withhold(&withheld, &mut plugins);

    let is_address = route.location.starts_with("http:") || route.location.starts_with("https:");
    let mut upstream = match address.filter(|_| is_address) {
        Some(address) => {
            let mut upstream = upstream::of_addresses(&[address]);
            timeouts::direct(shared.settings, &mut upstream);
            upstream
        }
        None if is_address || route.location.starts_with("forward:") => {
            let effect = match is_address {
                true => format!("`{}` is not an address, so the route answers 503", route.location),
                false => {
                    format!("`{}` is Java code of the application, so the route answers 503", route.location)
                }
            };
            report.find(
                Severity::Behaviour,
                route.place.clone(),
                &format!("zuul.routes.{}", route.id),
                effect,
            );
            upstream::no_nodes()
        }
        None => {
            let mut upstream = shared.registry.upstream(&route.location, shared.settings, report);
            timeouts::balanced(shared.settings, &route.location, route.retryable, &mut upstream);
            upstream
        }
    };
    if !shared.host_header {
        upstream.insert("pass_host".to_owned(), json!("node"));
    }
    if upstream.get("scheme").is_some_and(|scheme| scheme == "https") {
        let mut tls = json!({"verify": shared.verify});
        if shared.host_header {
            upstream::ask_for_nodes(&upstream, &mut tls);
        }
        upstream.insert("tls".to_owned(), tls);
    }
    if !plugins.is_empty() {
        body.insert("plugins".to_owned(), plugins.into());
    }
    Some(Draft { key, place: route.place, order: 0, anchors: pattern.anchors, body, upstream, weight: None })
}

/// The path of an address, without a slash at the end.
fn base_path(url: &str) -> String {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    path.split(['?', '#']).next().unwrap_or("").trim_end_matches('/').to_owned()
}

/// The path that the server gets: without the prefixes that are stripped, behind the path of its address.
fn rewrite(route: &Route<'_>, base: &str, shared: &Shared<'_>, plugins: &mut Map<String, Value>) {
    // The part of the path before the first pattern.
    let literal = route.path.find('*').and_then(|at| at.checked_sub(1)).filter(|at| *at > 0);
    let own = literal.filter(|_| route.strip_prefix).map_or("", |at| &route.path[..at]);
    let (kept, stripped) = match shared.strip_prefix {
        true => ("", shared.prefix.as_str()),
        false => (shared.prefix.as_str(), ""),
    };
    if !(stripped.is_empty() && own.is_empty() && base.is_empty()) {
        let escape = regexes::escape;
        // The prefix is stripped only where more of the path follows.
        let rest = if own.is_empty() && !stripped.is_empty() { "(/.*)" } else { "(.*)" };
        let base = regexes::literally(base);
        let regex = format!("^{}{}{}{rest}$", escape(stripped), escape(kept), escape(own));
        let mut pairs = vec![regex, format!("{base}{}${{1}}", regexes::literally(kept))];
        if rest == "(/.*)" && !base.is_empty() {
            pairs.extend(["^(.*)$".to_owned(), format!("{base}${{1}}")]);
        }
        plugins.insert("proxy-rewrite".to_owned(), json!({"regex_uri": pairs}));
    }
    let prefix = format!("{}{own}", shared.prefix);
    if !shared.proxy_headers {
        return;
    }
    let rewrite = plugins.entry("proxy-rewrite").or_insert_with(|| json!({}));
    // They follow those of the client.
    rewrite["headers"]["add"] = json!({"X-Forwarded-Host": "$http_host", "X-Forwarded-Port": "$request_port", "X-Forwarded-Proto": "$scheme"});
    if !prefix.is_empty() {
        let value = format!("${{http_x_forwarded_prefix}}{}", prefix.replace('$', "${dollar ?? $}"));
        rewrite["headers"]["set"] = json!({"X-Forwarded-Prefix": value});
    }
}

/// Settings of Zuul that are not about routes.
fn others(settings: &Settings<'_>, report: &mut Report) {
    let cosmetic = ["host", "threadPool", "debug", "include", "include-debug-header", "trace-request-body"];
    let own = ["connect-timeout-millis", "socket-timeout-millis"];
    let Some(zuul) = settings.get("zuul") else { return };
    if let Some(limit) = zuul.get("ratelimit") {
        limit.whole();
        let hint = "add the plugin limit-count to the routes, then accept this finding";
        report.item(Severity::Guard, &limit, "limits of requests are not carried over", Some(hint));
    }
    for item in cosmetic.iter().filter_map(|name| zuul.get(name)) {
        for (name, member) in item.members() {
            member.whole();
            if !own.iter().any(|known| crate::spring::is_name(known, name)) {
                report.item(
                    Severity::Cosmetic,
                    &member,
                    "connections have this gateway's own settings",
                    None,
                );
            }
        }
    }
    let rest = [
        ("semaphore", Severity::Behaviour, "concurrent requests of a service are not limited"),
        ("ribbon-isolation-strategy", Severity::Cosmetic, "requests need no threads of their own"),
        ("ignore-local-service", Severity::Cosmetic, "the gateway itself gets no route"),
        (
            "ignore-security-headers",
            Severity::Cosmetic,
            "headers of Spring Security are not added, and pass unchanged",
        ),
        ("decode-url", Severity::Cosmetic, "paths are always decoded before they are compared"),
        ("remove-semicolon-content", Severity::Behaviour, "parts of a path after a semicolon are kept"),
        ("set-content-length", Severity::Cosmetic, "the length of a response is always sent on"),
        ("initial-stream-buffer-size", Severity::Cosmetic, "buffers have this gateway's own sizes"),
        ("force-original-query-string-encoding", Severity::Cosmetic, "the query is sent on as it came"),
        ("servlet-path", Severity::Behaviour, "requests below the path of Zuul's servlet have no route"),
    ];
    for (name, severity, effect) in rest {
        if let Some(item) = zuul.get(name) {
            item.whole();
            report.item(severity, &item, effect, None);
        }
    }
}
