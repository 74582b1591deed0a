//! Route predicates as conditions of routes.

use serde_json::{Value, json};

use super::definition::Definition;
use super::path::{self, Anchor, Pattern, Rules};
use super::report::Report;
use super::{dates, networks};
use crate::finding::Severity;

/// Bytes of a path pattern.
const MAX_PATTERN: usize = 2048;

/// The conditions of a route.
#[derive(Default)]
pub struct Conditions {
    /// Empty until a `Path` gives them.
    pub anchors: Vec<Anchor>,
    /// The patterns of the first `Path`, whose variables filters may use.
    pub patterns: Vec<Pattern>,
    pub has_path: bool,
    /// Variables of host patterns, which filters cannot use.
    pub host_variables: Vec<String>,
    pub methods: Option<Vec<String>>,
    pub vars: Vec<Value>,
    pub remote_addrs: Vec<String>,
    pub weight: Option<Weight>,
    /// No request meets them.
    pub never: bool,
}

/// A share of the requests of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    pub group: String,
    pub weight: u64,
}

/// Settings of the application that predicates depend on.
pub struct Defaults {
    pub base_path: String,
    pub host_with_port: bool,
}

/// Adds a predicate to the conditions of a route.
pub fn add(
    definition: &Definition<'_>,
    defaults: &Defaults,
    conditions: &mut Conditions,
    report: &mut Report,
) {
    let guard = |report: &mut Report, effect: &str| {
        let construct = format!("{} ({})", definition.path, definition.name);
        report.find(Severity::Guard, definition.place.clone(), &construct, effect);
    };
    if let Some(expression) = definition.expression() {
        definition.whole();
        return guard(
            report,
            &format!("the expression `{expression}` is not evaluated, so the route is not served"),
        );
    }
    match definition.name.as_str() {
        "Path" => paths(definition, defaults, conditions, report),
        "Host" => hosts(definition, defaults, conditions),
        "Method" => methods(definition, conditions),
        "Header" => {
            let Some(name) = definition.argument("header", 0) else {
                return guard(report, "no header is named, so the route is not served");
            };
            let variable = format!("http_{}", name.to_ascii_lowercase().replace('-', "_"));
            // Each part between commas is a value of its own.
            let regex = definition.argument("regexp", 1).filter(|regex| !regex.is_empty());
            let regex = regex.map(|regex| format!(r"(?:^|,)\s*(?:{regex})\s*(?:$|,)"));
            conditions.vars.push(json!([variable, "~~", regex.unwrap_or_else(|| "^".to_owned())]));
        }
        "Cookie" => match (definition.argument("name", 0), definition.argument("regexp", 1)) {
            (Some(name), Some(regex)) => {
                conditions.vars.push(json!([format!("cookie_{name}"), "~~", whole(&regex)]));
            }
            _ => guard(report, "the cookie or its expression is missing, so the route is not served"),
        },
        "Query" => {
            let Some(name) = definition.argument("param", 0) else {
                return guard(report, "no parameter is named, so the route is not served");
            };
            if definition.named("predicate").is_some() {
                definition.whole();
                return guard(report, "a predicate in Java is not carried over, so the route is not served");
            }
            let regex = definition.argument("regexp", 1).filter(|regex| !regex.is_empty());
            let regex = regex.map_or_else(|| "^".to_owned(), |regex| whole(&regex));
            conditions.vars.push(json!([format!("arg_{name}"), "~~", regex]));
        }
        "After" | "Before" | "Between" => {
            let (first, operators): (&str, &[&str]) = match definition.name.as_str() {
                "After" => ("datetime", &[">"]),
                "Before" => ("datetime", &["<"]),
                _ => ("datetime1", &[">", "<"]),
            };
            for (at, operator) in operators.iter().enumerate() {
                let name = if at == 0 { first } else { "datetime2" };
                let text = definition.argument(name, at).unwrap_or_default();
                let Some(time) = dates::seconds(&text) else {
                    return guard(
                        report,
                        "the time is not read, so the route is not served: write it with an offset, \
                                          as 2030-01-20T17:42:47+01:00",
                    );
                };
                conditions.vars.push(json!(["msec", operator, time]));
            }
        }
        "RemoteAddr" => {
            let sources = definition.list("sources");
            if sources.is_empty() || sources.iter().any(|source| !networks::is_network(source)) {
                return guard(report, "an address is not read, so the route is not served");
            }
            let sources: Vec<String> = sources.iter().map(|source| networks::normal(source)).collect();
            match conditions.remote_addrs.is_empty() {
                true => conditions.remote_addrs = sources,
                false => conditions.vars.push(json!(["remote_addr", "ipmatch", sources])),
            }
        }
        "XForwardedRemoteAddr" => forwarded(definition, conditions, &guard, report),
        "Weight" => {
            let weight = definition.argument("weight", 1).and_then(|weight| weight.parse().ok());
            match definition.argument("group", 0).zip(weight) {
                Some((group, weight)) => conditions.weight = Some(Weight { group, weight }),
                None => guard(report, "the group or the weight is missing, so the route is not served"),
            }
        }
        "ReadBody" | "ReadBodyPredicateFactory" => {
            definition.whole();
            guard(report, "conditions on the body are Java code, so the route is not served");
        }
        _ => {
            definition.whole();
            guard(report, "the predicate is Java code of the application, so the route is not served");
        }
    }
}

/// An expression that must match a whole text.
fn whole(regex: &str) -> String {
    format!("^(?:{regex})$")
}

fn paths(definition: &Definition<'_>, defaults: &Defaults, conditions: &mut Conditions, report: &mut Report) {
    let mut texts = definition.list("patterns");
    if texts.is_empty() {
        // Named as in the first versions.
        texts.extend(definition.argument("pattern", 0));
    }
    let mut trailing_slash = true;
    if let Some(flag) =
        definition.named("matchTrailingSlash").or_else(|| definition.named("matchOptionalTrailingSeparator"))
    {
        trailing_slash = flag.bool().unwrap_or(true);
    }
    if definition.count() > 0
        && let Some(flag) = texts.last().and_then(|last| last.to_ascii_lowercase().parse().ok())
    {
        trailing_slash = flag;
        texts.pop();
    }
    let rules = Rules { trailing_slash, ant: false };
    let mut patterns = Vec::new();
    for text in texts {
        let full = format!("{}{text}", defaults.base_path);
        if full.len() > MAX_PATTERN {
            let effect = format!("a pattern has more than {MAX_PATTERN} bytes, so the route is not served");
            report.find(Severity::Guard, definition.place.clone(), &definition.path, effect);
            continue;
        }
        match path::compile(&full, rules) {
            Some(pattern) => patterns.push(pattern),
            None => {
                let effect =
                    format!("`{text}` does not begin with a slash, so it matches no path, as in Spring");
                report.find(Severity::Cosmetic, definition.place.clone(), &definition.path, effect);
            }
        }
    }
    conditions.never |= patterns.is_empty();
    let expression = || {
        let all: Vec<&str> = patterns.iter().map(|pattern| pattern.regex.as_str()).collect();
        json!(["uri", "~~", all.join("|")])
    };
    if conditions.has_path {
        conditions.vars.push(expression());
        return;
    }
    conditions.has_path = true;
    if patterns.iter().any(|pattern| !pattern.exact) {
        conditions.vars.push(expression());
    }
    for anchor in patterns.iter().flat_map(|pattern| &pattern.anchors) {
        if !conditions.anchors.contains(anchor) {
            conditions.anchors.push(anchor.clone());
        }
    }
    conditions.patterns = patterns;
}

fn hosts(definition: &Definition<'_>, defaults: &Defaults, conditions: &mut Conditions) {
    let mut texts = definition.list("patterns");
    if texts.is_empty() {
        texts.extend(definition.argument("pattern", 0));
    }
    let variables = &mut conditions.host_variables;
    let all: Vec<String> = texts.iter().map(|text| path::host(text, variables)).collect();
    conditions.never |= all.is_empty();
    // By default the pattern is compared with the whole header, its port included.
    let variable = if defaults.host_with_port { "http_host" } else { "host" };
    conditions.vars.push(json!([variable, "~~", all.join("|")]));
}

fn methods(definition: &Definition<'_>, conditions: &mut Conditions) {
    let mut methods: Vec<String> = Vec::new();
    let mut named = definition.list("methods");
    if named.is_empty() {
        named.extend(definition.argument("method", 0));
    }
    for method in named {
        let method = method.to_ascii_uppercase();
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    if let Some(earlier) = &conditions.methods {
        methods.retain(|method| earlier.contains(method));
    }
    conditions.never |= methods.is_empty();
    conditions.methods = Some(methods);
}

/// `XForwardedRemoteAddr`: the last address of `X-Forwarded-For`, or the client's without the header.
fn forwarded(
    definition: &Definition<'_>,
    conditions: &mut Conditions,
    guard: &dyn Fn(&mut Report, &str),
    report: &mut Report,
) {
    let sources = definition.list("sources");
    let index = definition.named("maxTrustedIndex").map_or(Some(1), |item| item.u64());
    let expressions: Option<Vec<String>> =
        sources.iter().map(|source| networks::expression(source)).collect();
    let (Some(expressions), Some(1)) = (expressions.filter(|all| !all.is_empty()), index) else {
        return guard(
            report,
            "only IPv4 networks and a `maxTrustedIndex` of 1 are carried over, so the route is not served",
        );
    };
    let last = format!(r"(?:^|,)\s*(?:{})\s*$", expressions.join("|"));
    let sources: Vec<String> = sources.iter().map(|source| networks::normal(source)).collect();
    conditions.vars.push(json!([
        "OR",
        ["http_x_forwarded_for", "~~", last],
        ["AND", ["http_x_forwarded_for", "!", "~~", "."], ["remote_addr", "ipmatch", sources]],
    ]));
}
