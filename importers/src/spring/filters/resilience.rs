//! Retries and circuit breakers.

use serde_json::json;

use super::{Effects, Scope, construct};
use crate::finding::Severity;
use crate::spring::definition::Definition;
use crate::spring::report::Report;
use crate::spring::settings::Item;
use crate::spring::units;

/// Statuses of the series `SERVER_ERROR` in Spring's `HttpStatus`.
const SERVER_ERRORS: std::ops::RangeInclusive<u16> = 500..=511;

/// `Retry`: repeated attempts after failures and statuses.
pub fn retry(definition: &Definition<'_>, effects: &mut Effects, report: &mut Report) {
    let list = |name: &str, at: usize| {
        let listed = definition.argument(name, at).map(|text| vec![text]);
        definition.named(name).map(|item| item.texts()).or(listed)
    };
    let retries = definition.argument("retries", 0).map_or(Some(3), |text| text.parse::<u64>().ok());
    let Some(retries) = retries.filter(|retries| *retries <= 100) else {
        definition.whole();
        let effect = "the number of retries is not read, so the filter is left out";
        return report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
    };
    let mut statuses: Vec<u16> =
        list("statuses", 1).unwrap_or_default().iter().filter_map(|text| units::status(text)).collect();
    let series = list("series", usize::MAX).unwrap_or_else(|| vec!["SERVER_ERROR".to_owned()]);
    for series in series.iter().filter(|series| !series.is_empty()) {
        match series.as_str() {
            "SERVER_ERROR" => statuses.extend(SERVER_ERRORS),
            "CLIENT_ERROR" => statuses.extend((400..=451).filter(|status| *status != 444)),
            _ => {
                let effect = format!("answers of the series {series} are not retried");
                report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
            }
        }
    }
    statuses.retain(|status| (400..=599).contains(status));
    statuses.sort_unstable();
    statuses.dedup();
    let methods = list("methods", 2).unwrap_or_else(|| vec!["GET".to_owned()]);
    let unsafe_methods = methods.iter().any(|method| matches!(method.as_str(), "POST" | "PATCH"));
    definition.named("exceptions").inspect(Item::whole);
    let mut retry = json!({});
    if !statuses.is_empty() {
        retry["statuses"] = json!(statuses);
    }
    if unsafe_methods {
        retry["any_method"] = json!(true);
    }
    let backoff = |name: &str, at: usize| {
        let named =
            definition.named("backoff").and_then(|backoff| backoff.get(name)).and_then(|item| item.text());
        let listed = || definition.argument(name, at).filter(|_| definition.count() > 0);
        named.or_else(listed).as_deref().and_then(units::seconds).filter(|seconds| *seconds > 0.0)
    };
    if let Some(first) = backoff("firstBackoff", 3) {
        retry["backoff"] = json!(first);
        if let Some(most) = backoff("maxBackoff", 4) {
            retry["max_backoff"] = json!(most.max(first));
        }
    }
    definition.named("backoff").inspect(Item::whole);
    definition.named("jitter").inspect(Item::whole);
    effects.upstream.insert("retries".to_owned(), json!(retries));
    if retry.as_object().is_some_and(|retry| !retry.is_empty()) {
        effects.upstream.insert("sluice".to_owned(), json!({"retry": retry}));
    }
    let effect = match unsafe_methods {
        true => "requests of all methods are retried",
        false => "requests of all idempotent methods are retried, PUT and DELETE among them",
    };
    report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
}

/// `CircuitBreaker` with Resilience4j's settings.
pub fn breaker(definition: &Definition<'_>, scope: &Scope<'_>, effects: &mut Effects, report: &mut Report) {
    let name = definition.argument("name", 0).unwrap_or_default();
    let settings = scope.settings;
    // The instance, its base configuration, and the default.
    let configured = |kind: &str, key: &str| -> Option<String> {
        let own = settings.get(&format!("resilience4j.{kind}"))?;
        let instance = own.any(&[&format!("instances.{name}"), &format!("backends.{name}")]);
        let base =
            instance.as_ref().and_then(|instance| instance.get("base-config")).and_then(|item| item.text());
        let base = base.unwrap_or_else(|| "default".to_owned());
        let config = own.get(&format!("configs.{base}"));
        let value = |item: Option<Item<'_>>| item.and_then(|item| item.get(key)).and_then(|item| item.text());
        value(instance).or_else(|| value(config))
    };
    let number = |key: &str, otherwise: f64| {
        configured("circuitbreaker", key).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let window = number("sliding-window-size", 100.0);
    let calls = number("minimum-number-of-calls", 100.0_f64).min(window).max(1.0);
    let failures = (calls * number("failure-rate-threshold", 50.0) / 100.0).ceil().clamp(1.0, 1e6) as u64;
    let open =
        configured("circuitbreaker", "wait-duration-in-open-state").as_deref().and_then(units::seconds);
    let open = open.unwrap_or(60.0).clamp(3.0, 86_400.0) as u64;
    let mut statuses: Vec<u16> = vec![502, 504];
    let own = definition.named("statusCodes").map(|item| item.texts()).unwrap_or_default();
    statuses.extend(
        own.iter().filter_map(|text| units::status(text)).filter(|status| (500..=599).contains(status)),
    );
    statuses.sort_unstable();
    statuses.dedup();

    let limited = settings.get("spring.cloud.circuitbreaker.resilience4j.disable-time-limiter");
    let is_limited =
        limited.and_then(|item| item.bool()) != Some(true) && definition.name == "CircuitBreaker";
    if is_limited {
        let time = configured("timelimiter", "timeout-duration").as_deref().and_then(units::seconds);
        effects.timeout = Some(time.unwrap_or(1.0));
    }
    effects.plugins.insert(
        "api-breaker".to_owned(),
        json!({
            "break_response_code": 503,
            "max_breaker_sec": open,
            "unhealthy": {"http_statuses": statuses, "failures": failures},
            "healthy": {"http_statuses": [200], "successes": 1},
        }),
    );
    let effect = format!(
        "the breaker opens for a path after {failures} failures, for 2 seconds at first and {open} at most, \
         not by the rate of failures"
    );
    report.find(Severity::Behaviour, definition.place.clone(), &construct(definition), effect);
    if let Some(fallback) =
        definition.argument("fallbackUri", 1).or_else(|| definition.argument("fallbackcmd", 2))
    {
        let effect = format!(
            "`{fallback}` is not called: clients get the error of the server, or 500 or 504 of the gateway"
        );
        let hint = "the plugin error-page sets the body of errors";
        report.hint(Severity::Behaviour, definition.place.clone(), &construct(definition), effect, hint);
    }
    for key in ["resume-without-error", "setters"] {
        definition.named(key).inspect(Item::whole);
    }
}
