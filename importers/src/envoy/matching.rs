//! Conditions of routes: paths as patterns of the router, everything else as `vars`.

use serde_json::{Value, json};

use super::context::Report;
use super::format::header_variable;
use super::value::{self, TextMatch, boolean, escaped, items, string_match, text};
use crate::node::Node;

/// Methods that a route may name.
const METHODS: [&str; 10] =
    ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PURGE"];

/// A path as the router stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    Exact(String),
    Prefix(String),
}

/// How a route's path is written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Path {
    Exact(String),
    Prefix(String),
    /// The path itself and everything below it.
    Separated(String),
    Regex(String),
}

/// The condition of a route.
#[derive(Debug, Clone)]
pub(super) struct Matcher {
    pub(super) path: Path,
    pub(super) ignore_case: bool,
    pub(super) patterns: Vec<Pattern>,
    pub(super) vars: Vec<Value>,
    pub(super) methods: Vec<String>,
    /// Percent of the requests, if not all.
    pub(super) fraction: Option<f64>,
    /// No request matches.
    pub(super) never: bool,
}

impl Pattern {
    pub(super) fn uri(&self) -> String {
        match self {
            Pattern::Exact(path) => path.clone(),
            Pattern::Prefix(prefix) => format!("{prefix}*"),
        }
    }

    /// Whether each path of the other matches this one.
    pub(super) fn covers(&self, other: &Pattern) -> bool {
        match (self, other) {
            (Pattern::Exact(this), Pattern::Exact(other)) => this == other,
            (Pattern::Exact(_), Pattern::Prefix(_)) => false,
            (Pattern::Prefix(this), Pattern::Exact(other) | Pattern::Prefix(other)) => {
                other.starts_with(this.as_str())
            }
        }
    }
}

impl Path {
    /// The pattern that finds the same paths.
    pub(super) fn regex(&self) -> String {
        match self {
            Path::Exact(path) => format!("^{}$", escaped(path)),
            Path::Prefix(prefix) => format!("^{}", escaped(prefix)),
            Path::Separated(path) => format!("^{}(?:/|$)", escaped(path)),
            Path::Regex(pattern) => value::whole(pattern),
        }
    }

    /// As an expression of `vars`.
    pub(super) fn condition(&self, ignore_case: bool) -> Value {
        json!(["uri", if ignore_case { "~*" } else { "~~" }, self.regex()])
    }

    fn patterns(&self) -> Option<Vec<Pattern>> {
        // Characters that mean something to the router, and texts too long for it.
        let fits = |path: &str| path.starts_with('/') && !path.contains('*') && path.len() < 4000;
        Some(match self {
            Path::Exact(path) if fits(path) => vec![Pattern::Exact(path.clone())],
            Path::Prefix(prefix) if fits(prefix) => vec![Pattern::Prefix(prefix.clone())],
            Path::Separated(path) if fits(path) => {
                vec![Pattern::Exact(path.clone()), Pattern::Prefix(format!("{path}/"))]
            }
            _ => return None,
        })
    }
}

impl Matcher {
    /// The condition that each request meets.
    pub(super) fn all() -> Matcher {
        Matcher {
            path: Path::Prefix("/".to_owned()),
            ignore_case: false,
            patterns: vec![Pattern::Prefix("/".to_owned())],
            vars: Vec::new(),
            methods: Vec::new(),
            fraction: None,
            never: false,
        }
    }

    /// Reads a `RouteMatch`. `linear` gives all routes one path, and the real one as a condition.
    pub(super) fn read(node: &Node<'_>, linear: bool, report: &mut Report) -> Matcher {
        let (path, mut never) = path_of(node, report);
        let ignore_case = boolean(node, "case_sensitive") == Some(false);
        let mut matcher = Matcher {
            patterns: Vec::new(),
            vars: Vec::new(),
            methods: Vec::new(),
            fraction: None,
            never: false,
            ignore_case,
            path,
        };
        match matcher.path.patterns() {
            Some(patterns) if !ignore_case && !linear => matcher.patterns = patterns,
            _ => {
                matcher.patterns = vec![Pattern::Prefix("/".to_owned())];
                if matcher.path != Path::Prefix("/".to_owned()) {
                    matcher.vars.push(matcher.path.condition(ignore_case));
                }
            }
        }
        for header in items(node, "headers") {
            match method_of(&header) {
                Some(method) if matcher.methods.is_empty() => {
                    header.whole();
                    matcher.methods = vec![method];
                }
                _ => push(header_condition(&header), &header, "match.headers", &mut matcher.vars, report),
            }
        }
        for parameter in items(node, "query_parameters") {
            push(
                parameter_condition(&parameter),
                &parameter,
                "match.query_parameters",
                &mut matcher.vars,
                report,
            );
        }
        for cookie in items(node, "cookies") {
            push(cookie_condition(&cookie), &cookie, "match.cookies", &mut matcher.vars, report);
        }
        if node.get("grpc").is_some() {
            matcher.vars.push(json!(["http_content_type", "~~", "^application/grpc"]));
        }
        if let Some(tls) = node.some("tls_context") {
            for (name, variable, pattern) in
                [("presented", "ssl_client_serial", "^."), ("validated", "ssl_client_verify", "^SUCCESS$")]
            {
                match boolean(&tls, name) {
                    Some(true) => matcher.vars.push(json!([variable, "~~", pattern])),
                    Some(false) => matcher.vars.push(json!([variable, "!", "~~", pattern])),
                    None => {}
                }
            }
        }
        for name in ["dynamic_metadata", "filter_state"] {
            if let Some(condition) = node.some(name) {
                condition.whole();
                report.guard(
                    &condition,
                    format!("match.{name}"),
                    "the condition is not carried over, so the route would take more requests",
                );
            }
        }
        if let Some(share) = node.any(&["runtime_fraction", "runtime"]) {
            match value::percent(&share) {
                Some(percent) if percent <= 0.0 => never = true,
                Some(percent) if percent >= 100.0 => {}
                Some(percent) => matcher.fraction = Some(percent),
                None => report.behaviour(
                    &share,
                    "match.runtime_fraction",
                    "the share cannot be read; the route takes all requests",
                ),
            }
        }
        matcher.never = never;
        matcher
    }

    /// Whether it takes every request with such a path.
    pub(super) fn is_unconditional(&self) -> bool {
        self.vars.is_empty() && self.methods.is_empty() && self.fraction.is_none() && !self.never
    }
}

/// The path of a `RouteMatch`, and whether nothing can match it.
pub(super) fn path_of(node: &Node<'_>, report: &mut Report) -> (Path, bool) {
    if let Some(prefix) = text(node, "prefix") {
        return (Path::Prefix(if prefix.is_empty() { "/".to_owned() } else { decoded(prefix) }), false);
    }
    if let Some(path) = text(node, "path") {
        return (Path::Exact(decoded(path)), false);
    }
    if let Some(path) = text(node, "path_separated_prefix") {
        return (Path::Separated(decoded(path.trim_end_matches('/'))), false);
    }
    if let Some(regex) = node.any(&["safe_regex", "regex"]) {
        let pattern = value::regex_text(&regex).unwrap_or_default();
        if !value::is_balanced(&pattern) {
            report.behaviour(&regex, "match.safe_regex", "the pattern is invalid, so no request matches");
            return (Path::Prefix("/".to_owned()), true);
        }
        return (Path::Regex(pattern), false);
    }
    if let Some(policy) = node.some("path_match_policy") {
        let extension = value::extension(&policy);
        let template = extension.config.as_ref().and_then(|config| text(config, "path_template"));
        if let Some(template) = template {
            return (Path::Regex(template_pattern(template)), false);
        }
        policy.whole();
        report.behaviour(
            &policy,
            "match.path_match_policy",
            "this kind of path is unknown, so no request matches",
        );
        return (Path::Prefix("/".to_owned()), true);
    }
    if let Some(connect) = node.get("connect_matcher") {
        connect.whole();
        report.behaviour(
            &connect,
            "match.connect_matcher",
            "CONNECT is not forwarded: the route is left out",
        );
        return (Path::Prefix("/".to_owned()), true);
    }
    report.behaviour(node, "match", "no path is given, so no request matches");
    (Path::Prefix("/".to_owned()), true)
}

/// The router compares paths in their decoded form.
fn decoded(path: &str) -> String {
    if !path.contains('%') {
        return path.to_owned();
    }
    let bytes = path.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = path.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match digits {
            Some(decoded) if byte == b'%' => {
                out.push(decoded);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| path.to_owned())
}

/// The pattern of a path template: `/a/{name}/*/**`.
pub(super) fn template_pattern(template: &str) -> String {
    let segment = |segment: &str| {
        let inner = segment.strip_prefix('{').and_then(|inner| inner.strip_suffix('}'));
        match inner {
            Some(inner) => match inner.split_once('=') {
                Some((_, pattern)) => format!("({})", wildcards(pattern)),
                None => "([^/]+)".to_owned(),
            },
            None => wildcards(segment),
        }
    };
    // A slash within braces does not end a segment.
    let (mut parts, mut depth, mut part) = (Vec::new(), 0_u32, String::new());
    for c in template.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            '/' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(c);
    }
    parts.push(part);
    parts.iter().map(|part| segment(part)).collect::<Vec<_>>().join("/")
}

fn wildcards(pattern: &str) -> String {
    let segments = pattern.split('/').map(|segment| match segment {
        "**" => ".*".to_owned(),
        "*" => "[^/]+".to_owned(),
        other => escaped(other).replace("\\*\\*", ".*").replace("\\*", "[^/]*"),
    });
    segments.collect::<Vec<_>>().join("/")
}

fn push(
    condition: Result<Value, String>,
    node: &Node<'_>,
    construct: &str,
    vars: &mut Vec<Value>,
    report: &mut Report,
) {
    match condition {
        Ok(condition) => vars.push(condition),
        Err(problem) => {
            node.whole();
            report.guard(
                node,
                construct,
                format!(
                    "the condition is not carried over, so the route would take more requests: {problem}"
                ),
            );
        }
    }
}

/// The method that a condition on `:method` names, if routes can name it.
fn method_of(header: &Node<'_>) -> Option<String> {
    if header.value().get("name")?.as_str()? != ":method" || boolean(header, "invert_match") == Some(true) {
        return None;
    }
    let matcher = header.some("string_match").unwrap_or_else(|| header.clone());
    let TextMatch { text: value::Text::Exact(method), ignore_case: false } = string_match(&matcher)? else {
        return None;
    };
    METHODS.contains(&method.as_str()).then_some(method)
}

/// The negation of an expression.
pub(super) fn negated(mut condition: Value) -> Value {
    let Value::Array(parts) = &mut condition else { return condition };
    let flipped = match parts.first().and_then(Value::as_str) {
        Some("AND") => Some("!AND"),
        Some("OR") => Some("!OR"),
        Some("!AND") => Some("AND"),
        Some("!OR") => Some("OR"),
        _ => None,
    };
    if let (Some(operator), Some(first)) = (flipped, parts.first_mut()) {
        *first = json!(operator);
    } else if parts.get(1) == Some(&json!("!")) {
        parts.remove(1);
    } else if !parts.is_empty() {
        parts.insert(1, json!("!"));
    }
    condition
}

/// An expression that joins others.
pub(super) fn joined(operator: &str, mut conditions: Vec<Value>) -> Value {
    if conditions.len() == 1 && matches!(operator, "AND" | "OR") {
        return conditions.remove(0);
    }
    let mut all = vec![json!(operator)];
    all.append(&mut conditions);
    Value::Array(all)
}

/// A `HeaderMatcher` as an expression.
pub(super) fn header_condition(header: &Node<'_>) -> Result<Value, String> {
    let name = text(header, "name").unwrap_or_default();
    let variable =
        header_variable(name, "http_").ok_or_else(|| format!("the header `{name}` cannot be a variable"))?;
    let inverted = boolean(header, "invert_match").unwrap_or(false);
    let missing_is_empty = boolean(header, "treat_missing_header_as_empty").unwrap_or(false);
    let present = json!([variable, "~~", "^"]);
    if let Some(wanted) = boolean(header, "present_match") {
        return Ok(if wanted == inverted { negated(present) } else { present });
    }
    let condition = if let Some(range) = header.some("range_match") {
        let bound = |name: &str| range.some(name).and_then(|bound| bound.f64()).unwrap_or(0.0);
        json!(["AND", [variable, ">=", bound("start")], [variable, "<", bound("end")]])
    } else {
        let matcher = header.some("string_match").unwrap_or_else(|| header.clone());
        if matcher.some("custom").is_some() {
            return Err("custom matchers are unknown".to_owned());
        }
        match string_match(&matcher) {
            Some(matcher) => matcher.on(&variable),
            None => present.clone(),
        }
    };
    Ok(match (inverted, missing_is_empty) {
        (false, _) => condition,
        (true, true) => negated(condition),
        // A header that is absent matches no inverted condition on its value.
        (true, false) => json!(["AND", present, negated(condition)]),
    })
}

/// A `QueryParameterMatcher` as an expression.
pub(super) fn parameter_condition(parameter: &Node<'_>) -> Result<Value, String> {
    let name = text(parameter, "name").unwrap_or_default();
    let variable = format!("arg_{name}");
    if let Some(wanted) = boolean(parameter, "present_match") {
        let present = json!([variable, "~~", "^"]);
        return Ok(if wanted { present } else { negated(present) });
    }
    if let Some(matcher) = parameter.some("string_match") {
        return string_match(&matcher)
            .map(|matcher| matcher.on(&variable))
            .ok_or_else(|| "the matcher is unknown".to_owned());
    }
    if let Some(content) = text(parameter, "value") {
        let is_regex = boolean(parameter, "regex").unwrap_or(false);
        let matcher =
            if is_regex { TextMatch::pattern(value::whole(content)) } else { TextMatch::exact(content) };
        return Ok(matcher.on(&variable));
    }
    Ok(json!([variable, "~~", "^"]))
}

fn cookie_condition(cookie: &Node<'_>) -> Result<Value, String> {
    let variable = format!("cookie_{}", text(cookie, "name").unwrap_or_default());
    let matcher = cookie.some("string_match").ok_or("the matcher is missing")?;
    let condition = string_match(&matcher).ok_or("the matcher is unknown")?.on(&variable);
    Ok(if boolean(cookie, "invert_match") == Some(true) { negated(condition) } else { condition })
}
