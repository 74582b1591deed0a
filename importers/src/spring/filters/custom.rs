//! Filters that are not carried over: Java code of the application, and built-in ones without a counterpart.

use super::{Scope, construct};
use crate::finding::Severity;
use crate::spring::definition::Definition;
use crate::spring::report::Report;

const PROTECT: &str =
    "protect the route by a plugin such as jwt-auth, key-auth or forward-auth, then accept this finding";

/// Reports a filter that is not carried over.
pub fn add(definition: &Definition<'_>, scope: &Scope<'_>, report: &mut Report) {
    let headers = definition.argument("name", 0).unwrap_or_default();
    definition.whole();
    let (severity, effect) = match definition.name.as_str() {
        "SaveSession" => (Severity::Cosmetic, "there are no sessions to save"),
        "CacheRequestBody" | "AdaptCachedBody" => {
            (Severity::Cosmetic, "bodies need no cache to be read by plugins")
        }
        "DedupeResponseHeader" => {
            let mut names = headers.split_whitespace();
            match scope.cors && names.all(|name| name.to_ascii_lowercase().starts_with("access-control-")) {
                true => (Severity::Cosmetic, "the plugin cors sets these headers once"),
                false => (Severity::Behaviour, "headers that the upstream repeats are passed on as they are"),
            }
        }
        "FallbackHeaders" => {
            (Severity::Behaviour, "no fallback is called, so there are no headers of a failure")
        }
        "ModifyRequestBody" | "ModifyResponseBody" => {
            (Severity::Behaviour, "the body is not changed: see the plugin body-transformer")
        }
        "RewriteResponseHeader" => (Severity::Behaviour, "the header is passed on as the upstream sends it"),
        "RewriteLocationResponseHeader" => {
            (Severity::Behaviour, "`Location` is passed on as the upstream sends it")
        }
        "RewriteRequestParameter" | "RemoveRequestParameter" => {
            (Severity::Behaviour, "the query is passed on as the client sends it")
        }
        "LocalResponseCache" => (Severity::Behaviour, "responses are not cached: see the plugin proxy-cache"),
        "JsonToGrpc" => (Severity::Behaviour, "JSON is not translated to gRPC"),
        "RequestHeaderToRequestUri" | "SetRequestUri" => {
            (Severity::Guard, "the server of the request is not taken from the request")
        }
        "RemoveJsonAttributesResponseBody" => {
            (Severity::Guard, "attributes are not removed from the response")
        }
        "RequestHeaderSize" => (Severity::Guard, "the size of each header is not limited"),
        "TokenRelay" => (Severity::Guard, "no login takes place, and no token is sent to the upstream"),
        name => {
            let severity = severity(name);
            let effect = "the filter is Java code of the application, which is not carried over";
            let hint = (severity == Severity::Guard).then_some(PROTECT);
            let place = definition.place.clone();
            return match hint {
                Some(hint) => report.hint(severity, place, &construct(definition), effect, hint),
                None => report.find(severity, place, &construct(definition), effect),
            };
        }
    };
    report.find(severity, definition.place.clone(), &construct(definition), effect);
}

/// Filters whose name says that they only observe are no guards; all others may be.
pub fn severity(name: &str) -> Severity {
    const OBSERVES: &[&str] = &[
        "log",
        "logs",
        "logger",
        "logging",
        "trace",
        "tracing",
        "metric",
        "metrics",
        "timing",
        "elapsed",
        "correlation",
        "mdc",
    ];
    const PROTECTS: &[&str] = &[
        "auth",
        "authentication",
        "authorization",
        "jwt",
        "token",
        "security",
        "limit",
        "limiter",
        "check",
        "validation",
    ];
    let words = words(name);
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    if has(OBSERVES) && !has(PROTECTS) { Severity::Behaviour } else { Severity::Guard }
}

/// The words of a name in camel case.
pub fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut was_upper = true;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() {
            was_upper = true;
            words.push(String::new());
            continue;
        }
        if words.is_empty() || (c.is_ascii_uppercase() && !was_upper) {
            words.push(String::new());
        }
        was_upper = c.is_ascii_uppercase();
        if let Some(word) = words.last_mut() {
            word.push(c.to_ascii_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_observe_are_known_by_their_names() {
        assert_eq!(words("ipKeyResolver"), ["ip", "key", "resolver"]);
        assert_eq!(words("JwtAuthentication"), ["jwt", "authentication"]);
        for (name, expected) in [
            ("Logging", Severity::Behaviour),
            ("RequestLog", Severity::Behaviour),
            ("AuthLog", Severity::Guard),
            ("Login", Severity::Guard),
            ("JwtValidation", Severity::Guard),
            ("Custom", Severity::Guard),
        ] {
            assert_eq!(severity(name), expected, "{name}");
        }
    }
}
