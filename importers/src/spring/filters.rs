//! Gateway filters as plugins and settings of a route.

use serde_json::{Map, Value, json};

use super::definition::Definition;
use super::predicates::Conditions;
use super::report::Report;
use super::rewrite::{self, Change, Fault};
use super::settings::{Item, Settings};
use super::{regexes, units};
use crate::finding::Severity;

mod custom;
mod headers;
mod limits;
mod redis;
mod resilience;

pub use custom::words;
pub use headers::Headers;

/// The `Host` that the upstream gets.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Host {
    /// The server's.
    #[default]
    Node,
    /// The client's.
    Pass,
    Rewrite(String),
}

/// The effects of a route's filters.
#[derive(Default)]
pub struct Effects {
    pub request: Headers,
    /// Changes of the response in the order of the filters, which run in reverse.
    response: Vec<(Edit, String, String)>,
    pub changes: Vec<Change>,
    /// Appended to the query.
    pub query: Vec<String>,
    pub host: Host,
    pub plugins: Map<String, Value>,
    /// Fields of the upstream: `retries`, `sluice`.
    pub upstream: Map<String, Value>,
    /// Seconds, of the response.
    pub timeout: Option<f64>,
    pub status: Option<u16>,
    /// The service of the filter `LoadBalancer`.
    pub service: Option<String>,
    /// Headers have variables of the path pattern.
    has_variables: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Edit {
    Add,
    Set,
    Remove,
}

/// The route that filters belong to.
pub struct Scope<'r> {
    pub conditions: &'r Conditions,
    pub settings: &'r Settings<'r>,
    /// `spring.cloud.gateway` in its spelling of this version.
    pub gateway: Option<&'r Item<'r>>,
    /// Global CORS sets the headers of CORS.
    pub cors: bool,
}

/// Adds a filter to the effects of a route.
pub fn add(definition: &Definition<'_>, scope: &Scope<'_>, effects: &mut Effects, report: &mut Report) {
    let name = definition.name.as_str();
    let argument = |name: &str, at: usize| definition.argument(name, at);
    let missing = |report: &mut Report| {
        let effect = "an argument is missing, so the filter is left out";
        report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
    };
    let is_limit = matches!(name, "RequestRateLimiter" | "RateLimit");
    if !is_limit && let Some(expression) = definition.expression() {
        definition.whole();
        let effect = format!("the expression `{expression}` is not evaluated, so the filter is left out");
        report.find(custom::severity(name), definition.place.clone(), &construct(definition), effect);
        return;
    }
    match name {
        "AddRequestHeader" | "SetRequestHeader" | "AddResponseHeader" | "SetResponseHeader" => {
            let (Some(header), Some(text)) = (argument("name", 0), argument("value", 1)) else {
                return missing(report);
            };
            let is_request = name.ends_with("RequestHeader");
            let Some(value) = expanded(definition, &text, scope, effects, is_request, report) else { return };
            match name {
                "AddRequestHeader" => effects.request.add(&header, value),
                "SetRequestHeader" => effects.request.set(&header, value),
                "AddResponseHeader" if argument("override", 2).as_deref() == Some("false") => {
                    let effect = "the header is set also if the upstream sends one";
                    report.find(
                        Severity::Behaviour,
                        definition.place.clone(),
                        &construct(definition),
                        effect,
                    );
                    effects.response.push((Edit::Set, header, value));
                }
                "AddResponseHeader" => effects.response.push((Edit::Add, header, value)),
                _ => effects.response.push((Edit::Set, header, value)),
            }
        }
        "RemoveRequestHeader" => match argument("name", 0) {
            Some(header) => effects.request.remove(&header),
            None => missing(report),
        },
        "RemoveResponseHeader" => match argument("name", 0) {
            Some(header) => effects.response.push((Edit::Remove, header, String::new())),
            None => missing(report),
        },
        "AddRequestHeadersIfNotPresent" => {
            definition.whole();
            let effect = "the headers are added only if absent, which is not carried over: they are left out";
            report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
        }
        "MapRequestHeader" => match (argument("fromHeader", 0), argument("toHeader", 1)) {
            (Some(from), Some(to)) => {
                let variable = from.to_ascii_lowercase().replace('-', "_");
                effects.request.add(&to, format!("${{http_{variable}}}"));
            }
            _ => missing(report),
        },
        "SetRequestHostHeader" => match argument("host", 0) {
            Some(host) => effects.host = Host::Rewrite(host),
            None => missing(report),
        },
        "PreserveHostHeader" => effects.host = Host::Pass,
        "StripPrefix" | "StripContextPath" => match argument("parts", 0).map_or(Ok(1), |parts| parts.parse())
        {
            Ok(parts) if parts <= 100 => effects.changes.push(Change::Strip(parts)),
            _ => missing(report),
        },
        "PrefixPath" => match argument("prefix", 0) {
            Some(prefix) => effects.changes.push(Change::Prefix(prefix)),
            None => missing(report),
        },
        "SetPath" => match argument("template", 0) {
            Some(template) => effects.changes.push(Change::Set(template)),
            None => missing(report),
        },
        "RewritePath" => {
            let (Some(regex), Some(text)) = (argument("regexp", 0), argument("replacement", 1)) else {
                return missing(report);
            };
            if rewrite::may_repeat(&regex)
                && !scope.conditions.anchors.iter().all(|one| matches!(one, super::path::Anchor::Exact(_)))
            {
                let effect = "only the first match in a path is replaced, not each";
                report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
            }
            effects.changes.push(Change::Replace { regex, replacement: text.replace("$\\", "$") });
        }
        "AddRequestParameter" => match (argument("name", 0), argument("value", 1)) {
            (Some(name), Some(value)) if !value.contains('{') => {
                effects.query.push(format!("{name}={value}"))
            }
            _ => missing(report),
        },
        "SetStatus" => match argument("status", 0).as_deref().map(units::status) {
            Some(Some(status)) if (200..=598).contains(&status) => effects.status = Some(status),
            _ => missing(report),
        },
        "RedirectTo" => redirect(definition, effects, report, &missing),
        "SecureHeaders" => secure(definition, scope, effects, report),
        "RequestSize" => limits::size(definition, effects, report),
        "RequestRateLimiter" | "RateLimit" => limits::rate(definition, scope, effects, report),
        "Retry" => resilience::retry(definition, effects, report),
        "CircuitBreaker" | "Hystrix" => resilience::breaker(definition, scope, effects, report),
        "LoadBalancer" => match argument("serviceId", 0) {
            Some(service) => effects.service = Some(service),
            None => missing(report),
        },
        _ => custom::add(definition, scope, report),
    }
}

/// The construct in reports: the filter and its name.
fn construct(definition: &Definition<'_>) -> String {
    format!("{} ({})", definition.path, definition.name)
}

/// A value of a header with its `{variables}` as groups of the path. `None` if they cannot be filled in.
fn expanded(
    definition: &Definition<'_>,
    text: &str,
    scope: &Scope<'_>,
    effects: &mut Effects,
    is_request: bool,
    report: &mut Report,
) -> Option<String> {
    let literal = |text: &str| text.replace('$', "${dollar ?? $}");
    if !text.contains('{') {
        return Some(literal(text));
    }
    let mut variables = scope.conditions.patterns.iter().map(|pattern| &pattern.variables);
    let first = variables.next();
    let same = first.is_some_and(|first| variables.all(|other| other == first));
    let known = first.filter(|_| same && is_request);
    match known
        .and_then(|known| rewrite::expanded(text, known, |text| text.replace('$', "${dollar ?? $}")).ok())
    {
        Some(value) => {
            effects.has_variables = true;
            Some(value)
        }
        None => {
            let effect =
                format!("the variables of `{text}` cannot be filled in here, so the header is left out");
            report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
            None
        }
    }
}

fn redirect(
    definition: &Definition<'_>,
    effects: &mut Effects,
    report: &mut Report,
    missing: &dyn Fn(&mut Report),
) {
    let status = definition.argument("status", 0).as_deref().and_then(units::status);
    let (Some(status), Some(url)) = (status, definition.argument("url", 1)) else { return missing(report) };
    let query = definition.argument("includeRequestParams", 2).as_deref() == Some("true");
    let mut settings = json!({"ret_code": status, "uri": url});
    if query {
        settings["append_query_string"] = json!(true);
    }
    effects.plugins.insert("redirect".to_owned(), settings);
}

/// The headers of `SecureHeaders` with their default values.
const SECURE: &[(&str, &str, &str)] = &[
    ("X-Xss-Protection", "xss-protection-header", "1 ; mode=block"),
    ("Strict-Transport-Security", "strict-transport-security", "max-age=631138519"),
    ("X-Frame-Options", "frame-options", "DENY"),
    ("X-Content-Type-Options", "content-type-options", "nosniff"),
    ("Referrer-Policy", "referrer-policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "content-security-policy",
        "default-src 'self' https:; font-src 'self' https: data:; img-src 'self' https: data:; object-src 'none'; \
         script-src https:; style-src 'self' https: 'unsafe-inline'",
    ),
    ("X-Download-Options", "download-options", "noopen"),
    ("X-Permitted-Cross-Domain-Policies", "permitted-cross-domain-policies", "none"),
];

fn secure(definition: &Definition<'_>, scope: &Scope<'_>, effects: &mut Effects, report: &mut Report) {
    let global = scope.gateway.and_then(|gateway| gateway.get("filter.secure-headers"));
    let texts = |item: Option<Item<'_>>| item.map(|item| item.texts()).unwrap_or_default();
    let disabled = texts(global.as_ref().and_then(|global| global.any(&["disable", "disabled-headers"])));
    let route = texts(definition.named("disable"));
    for (header, key, value) in SECURE {
        let is_off = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(header));
        if is_off(&disabled) || is_off(&route) {
            continue;
        }
        let own = global.as_ref().and_then(|global| global.get(key)).and_then(|item| item.some());
        effects.response.push((Edit::Set, (*header).to_owned(), own.unwrap_or_else(|| (*value).to_owned())));
    }
    let effect = "the headers are set also if the upstream sends its own";
    report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
}

impl Effects {
    /// `X-Forwarded-Prefix` names a beginning of the path that is removed, unless the file switches that off. With the
    /// keys of versions from 4.3 on, forwarded headers need `trusted-proxies`.
    fn forwarded_prefix(&mut self, scope: &Scope<'_>, pairs: &mut [(String, String)]) {
        let is_off = |name: &str| {
            let item = scope.gateway.and_then(|gateway| gateway.get(name));
            item.and_then(|item| item.bool()) == Some(false)
        };
        let has_default = scope.gateway.is_none_or(|gateway| gateway.path() == "spring.cloud.gateway");
        if !has_default || is_off("x-forwarded.enabled") || is_off("x-forwarded.prefix-enabled") {
            return;
        }
        match (rewrite::removed(&self.changes), pairs) {
            (Some(rewrite::Removed::Segments(count)), [(pattern, replacement)]) => {
                *pattern = format!("^((?:/[^/]+){{0,{count}}})(?:/(.*))?$");
                *replacement = "/${2}".to_owned();
                self.request.add("X-Forwarded-Prefix", "${1}".to_owned());
            }
            (Some(rewrite::Removed::Literal(prefix)), _) => self.request.add("X-Forwarded-Prefix", prefix),
            _ => {}
        }
    }

    /// The plugins of the route. Findings about changes that cannot be combined are added to the report.
    pub fn plugins(
        &mut self,
        definitions: &[Definition<'_>],
        scope: &Scope<'_>,
        report: &mut Report,
    ) -> Map<String, Value> {
        let place =
            || definitions.first().map(|definition| (definition.place.clone(), definition.path.clone()));
        let patterns = &scope.conditions.patterns;
        let pairs = rewrite::combine(&self.changes, patterns).unwrap_or_else(|fault| {
            if let Some((place, path)) = place() {
                let effect = match fault {
                    Fault::Replacement(text) => {
                        format!("`{text}` names a group that is not in its expression")
                    }
                    Fault::Variable(name) => format!("`{{{name}}}` is not a variable of the path pattern"),
                    Fault::Combination => {
                        "these changes of the path cannot be combined, so the last are left out".to_owned()
                    }
                };
                let list = path.rsplit_once('[').map_or(path.as_str(), |(list, _)| list);
                report.find(Severity::Behaviour, place, list, effect);
            }
            rewrite::without_later(&self.changes, patterns)
        });
        let mut list: Vec<(String, String)> = pairs.pairs;
        if self.has_variables && !pairs.has_variables {
            if list.is_empty() {
                list = patterns.iter().map(|pattern| (pattern.regex.clone(), "${0}".to_owned())).collect();
            } else if let Some((place, path)) = place() {
                let effect =
                    "variables in headers cannot be filled in beside this change of the path: they are empty";
                report.find(Severity::Behaviour, place, &path, effect);
            }
        }
        self.forwarded_prefix(scope, &mut list);
        if !self.query.is_empty() {
            list.push(("^(.*)$".to_owned(), "${1}".to_owned()));
            let query = regexes::literally(&self.query.join("&"));
            for (_, replacement) in &mut list {
                replacement.push_str(&format!("?{query}"));
            }
        }
        let mut plugins = std::mem::take(&mut self.plugins);
        let mut rewrite = Map::new();
        if list.is_empty() {
            // Servers get the target as the client wrote it.
            rewrite.insert("use_real_request_uri_unsafe".to_owned(), json!(true));
        } else {
            let texts: Vec<String> =
                list.into_iter().flat_map(|(pattern, replacement)| [pattern, replacement]).collect();
            rewrite.insert("regex_uri".to_owned(), json!(texts));
        }
        rewrite.insert("merge_slashes".to_owned(), json!(true));
        if !self.request.is_empty() {
            rewrite.insert("headers".to_owned(), self.request.of_request());
        }
        if !rewrite.is_empty() {
            plugins.insert("proxy-rewrite".to_owned(), rewrite.into());
        }
        let mut response = Map::new();
        let mut headers = Headers::default();
        for (edit, name, value) in self.response.iter().rev() {
            match edit {
                Edit::Add => headers.add(name, value.clone()),
                Edit::Set => headers.set(name, value.clone()),
                Edit::Remove => headers.remove(name),
            }
        }
        if !headers.is_empty() {
            response.insert("headers".to_owned(), headers.of_response());
        }
        if let Some(status) = self.status {
            response.insert("status_code".to_owned(), json!(status));
        }
        // Answers of the gateway itself, and those that open a WebSocket, are complete before the filters.
        if !response.is_empty() {
            response.insert(
                "vars".to_owned(),
                json!([["upstream_status", "~~", "^[2-9]"], ["sluice_by", "==", "upstream"]]),
            );
            plugins.insert("response-rewrite".to_owned(), response.into());
        }
        plugins
    }
}
