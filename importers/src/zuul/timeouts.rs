//! Timeouts and retries of routes: of Zuul's own client, of Ribbon and of Hystrix.

use serde_json::{Map, Value, json};

use crate::spring::settings::Settings;

/// Milliseconds of a setting of one service, or of all.
fn of_service(settings: &Settings<'_>, service: &str, key: &str) -> Option<f64> {
    let own = settings.root().get(service).and_then(|item| item.get(&format!("ribbon.{key}")));
    let item = own.or_else(|| settings.get(&format!("ribbon.{key}")))?;
    item.text()?.parse().ok()
}

/// Adds timeouts and retries to the upstream of a service.
pub fn balanced(settings: &Settings<'_>, service: &str, retryable: bool, upstream: &mut Map<String, Value>) {
    let connect = of_service(settings, service, "ConnectTimeout").unwrap_or(1000.0);
    let read = of_service(settings, service, "ReadTimeout").unwrap_or(1000.0);
    let hystrix = |name: &str| {
        let command = settings.get(&format!("hystrix.command.{name}.execution"))?;
        let time = command.get("isolation.thread.timeoutInMilliseconds").and_then(|item| item.text());
        if command.get("timeout.enabled").and_then(|item| item.bool()) == Some(false) {
            return Some(f64::INFINITY);
        }
        time?.parse::<f64>().ok()
    };
    let whole = hystrix(service).or_else(|| hystrix("default")).unwrap_or(f64::INFINITY);
    upstream.insert("timeout".to_owned(), timeouts(connect, read.min(whole)));
    let same = of_service(settings, service, "MaxAutoRetries").unwrap_or(0.0);
    let next = of_service(settings, service, "MaxAutoRetriesNextServer").unwrap_or(1.0);
    let retries = if retryable { ((same + 1.0) * (next + 1.0) - 1.0).clamp(0.0, 100.0) } else { 0.0 };
    upstream.insert("retries".to_owned(), json!(retries as u64));
    let all = of_service_flag(settings, service, "OkToRetryOnAllOperations");
    if retryable && all {
        upstream.insert("sluice".to_owned(), json!({"retry": {"any_method": true}}));
    }
}

fn of_service_flag(settings: &Settings<'_>, service: &str, key: &str) -> bool {
    let own = settings.root().get(service).and_then(|item| item.get(&format!("ribbon.{key}")));
    own.or_else(|| settings.get(&format!("ribbon.{key}"))).and_then(|item| item.bool()) == Some(true)
}

/// Adds the timeouts of a route with an address.
pub fn direct(settings: &Settings<'_>, upstream: &mut Map<String, Value>) {
    let milliseconds = |key: &str, otherwise: f64| {
        let item = settings.get(&format!("zuul.host.{key}"));
        item.and_then(|item| item.text()).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let connect = milliseconds("connect-timeout-millis", 2000.0);
    let socket = milliseconds("socket-timeout-millis", 10_000.0);
    upstream.insert("timeout".to_owned(), timeouts(connect, socket));
}

/// Zero is no limit in the original; here it is a day.
fn timeouts(connect: f64, read: f64) -> Value {
    let seconds = |milliseconds: f64| match milliseconds {
        milliseconds if milliseconds > 0.0 => (milliseconds / 1000.0).min(86_400.0),
        _ => 86_400.0,
    };
    json!({"connect": seconds(connect), "send": 60, "read": seconds(read)})
}
