//! Limits of requests: rates and sizes.

use serde_json::json;

use super::{Effects, Scope, construct, custom, redis};
use crate::finding::Severity;
use crate::spring::definition::Definition;
use crate::spring::report::Report;
use crate::spring::units;

/// `RequestSize`: a `Content-Length` above the limit is answered 413.
pub fn size(definition: &Definition<'_>, effects: &mut Effects, report: &mut Report) {
    let limit =
        match definition.named("maxSize").or_else(|| definition.named("max-size")).map(|item| item.text()) {
            Some(text) => text.as_deref().and_then(units::bytes),
            None => Some(5_000_000),
        };
    if definition.count() > 0 {
        let effect = "Spring ignores the size in this form of the filter, and its default of 5 MB applies";
        let hint = "write `name: RequestSize` with `args: {maxSize: …}`";
        report.hint(Severity::Cosmetic, definition.place.clone(), &construct(definition), effect, hint);
    }
    let Some(limit) = limit else {
        let effect = "the size is not read, so bodies are not limited";
        return report.find(Severity::Guard, definition.place.clone(), &construct(definition), effect);
    };
    let abort = json!({"http_status": 413, "vars": [[["content_length", ">", limit]]]});
    effects.plugins.insert("fault-injection".to_owned(), json!({"abort": abort}));
}

/// `RequestRateLimiter`: a bucket of tokens for each key.
pub fn rate(definition: &Definition<'_>, scope: &Scope<'_>, effects: &mut Effects, report: &mut Report) {
    let guard = |report: &mut Report, effect: &str| {
        definition.whole();
        let hint = "add the plugin limit-count or limit-req, then accept this finding";
        report.hint(Severity::Guard, definition.place.clone(), &construct(definition), effect, hint);
    };
    let bucket = definition.named("redis-rate-limiter");
    let number = |name: &str| bucket.as_ref().and_then(|bucket| bucket.get(name)).map(|item| item.u64());
    let (Some(Some(rate)), burst, tokens) =
        (number("replenishRate"), number("burstCapacity"), number("requestedTokens"))
    else {
        return guard(report, "the limit is Java code of the application, so requests are not limited");
    };
    let (Some(burst), Some(tokens)) = (burst.unwrap_or(Some(1)), tokens.unwrap_or(Some(1))) else {
        return guard(report, "the limit is not read, so requests are not limited");
    };
    if rate == 0 || tokens == 0 || burst < tokens {
        return guard(report, "the bucket never holds a token, so Spring admits no request");
    }
    if effects.plugins.contains_key("limit-req") {
        return guard(report, "a second limit of the route is not carried over");
    }
    let resolver = definition.named("key-resolver").and_then(|item| item.raw().map(str::to_owned));
    let bean = resolver.as_deref().map(|text| text.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
    let (severity, key, effect) = key(bean);
    let hint = "set the `key` of the plugin limit-req to the variable that the bean returns";
    report.hint(severity, definition.place.clone(), &construct(definition), effect, hint);
    let status = definition.named("status-code").and_then(|item| item.text());
    let status = status.as_deref().and_then(units::status).filter(|status| (200..=599).contains(status));
    for name in ["deny-empty-key", "empty-key-status", "throw-on-limit"] {
        // Keys are never empty: without a value, the address of the client counts.
        definition.named(name).and_then(|item| item.raw());
    }
    let policy = redis::policy(scope.settings);
    let effect = match policy {
        Some(_) => "responses have no X-RateLimit headers, and counters of Spring in Redis are not used",
        None => "requests are counted on each node, and responses have no X-RateLimit headers",
    };
    report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
    if let Some(headers) = scope.gateway.and_then(|gateway| gateway.get("redis-rate-limiter")) {
        headers.whole();
    }
    let mut settings = json!({
        "rate": rate as f64 / tokens as f64,
        "burst": burst as f64 / tokens as f64 - 1.0,
        "nodelay": true,
        "key_type": "var",
        "key": key,
        "rejected_code": status.unwrap_or(429),
    });
    if let (Some(settings), Some(policy)) = (settings.as_object_mut(), policy) {
        settings.extend(policy);
    }
    effects.plugins.insert("limit-req".to_owned(), settings);
}

/// The variable that requests are counted by, as far as the name of the bean says it.
fn key(bean: Option<&str>) -> (Severity, &'static str, String) {
    let words = bean.map(custom::words).unwrap_or_default();
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let name = bean.unwrap_or("PrincipalNameKeyResolver");
    if has(&["ip", "addr", "address", "remote", "host"]) {
        let effect =
            format!("the bean `{name}` is Java code: requests are counted by the address of the client");
        (Severity::Behaviour, "remote_addr", effect)
    } else if has(&["path", "uri", "url"]) {
        let effect = format!("the bean `{name}` is Java code: requests are counted by path");
        (Severity::Behaviour, "uri", effect)
    } else {
        let effect = format!(
            "the key of the limit is Java code (`{name}`): requests would be counted by the address of the client"
        );
        (Severity::Guard, "remote_addr", effect)
    }
}
