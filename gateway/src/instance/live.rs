//! `sluice top`, `tap` and `routes`: what a gateway does now, in a terminal.
//!
//! They read the event streams of its control API, or of the Admin API of another machine. All text of clients and
//! resources is shown without characters that control the terminal or reorder what people read.

mod source;
mod top;

use std::collections::HashMap;
use std::io::IsTerminal;

use anyhow::bail;
use serde_json::Value;

use crate::cli::{Files, Remote};
use crate::say;
use source::Source;

/// Rows of each list of `sluice top` in a pipe.
const ROWS: usize = 10;

/// Shows rates, errors and latencies until it is ended. Into a pipe it writes one picture.
///
/// # Errors
/// As for [`Source::of`], or the gateway refuses the stream.
pub fn top(files: &Files, remote: &Remote, once: bool) -> anyhow::Result<bool> {
    let Some(source) = Source::of(files, remote)? else { return Ok(false) };
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !once {
        return top::run(source).map(|()| true);
    }
    source.events("live", |_, event| {
        say::out(picture(event).trim_end());
        Ok(false)
    })?;
    Ok(true)
}

/// Shows a line for each request that meets the conditions, until it is interrupted.
///
/// # Errors
/// As for [`Source::of`], or the gateway refuses the conditions, or stops.
pub fn tap(
    files: &Files,
    remote: &Remote,
    conditions: &[String],
    json: bool,
    limit: Option<u64>,
) -> anyhow::Result<bool> {
    let Some(source) = Source::of(files, remote)? else { return Ok(false) };
    let mut query = Vec::new();
    for condition in conditions {
        let Some((name, value)) = condition.split_once('=') else {
            bail!(
                "{condition:?} is no condition\n  help: write NAME=VALUE, such as status=5xx or path=/api/*"
            )
        };
        query.push(format!("{}={}", encoded(name), encoded(value)));
    }
    let mut left = limit.unwrap_or(u64::MAX);
    let mut dropped = 0;
    source.events(&format!("tap?{}", query.join("&")), |kind, event| {
        if kind == "status" {
            let now = event["dropped"].as_u64().unwrap_or_default();
            if now > dropped {
                say::err(format_args!("{} more requests were not shown: there were too many", now - dropped));
                dropped = now;
            }
            return Ok(true);
        }
        match json {
            true => say::out(event),
            false => say::out(request(event)),
        }
        left -= 1;
        Ok(left > 0)
    })?;
    Ok(true)
}

/// Lists the routes that hold `search` in their line, with their traffic of the last seconds.
///
/// # Errors
/// As for [`Source::of`].
pub fn routes(files: &Files, remote: &Remote, search: Option<&str>, json: bool) -> anyhow::Result<bool> {
    let Some(source) = Source::of(files, remote)? else { return Ok(false) };
    let list = source.get("routes")?;
    // The Admin API puts the list into an object.
    let list = list.as_array().or_else(|| list["list"].as_array()).cloned().unwrap_or_default();
    let mut rates = HashMap::new();
    source.events("live", |_, event| {
        for route in event["routes"].as_array().into_iter().flatten() {
            rates.insert(text(&route["id"]), (number(&route["rate"]), number(&route["error_rate"])));
        }
        Ok(false)
    })?;
    let search = search.map(str::to_lowercase);
    if !json {
        say::out(format_args!("{:<24} {:>8} {:>8}  {}", "ROUTE", "RATE", "ERRORS", "MATCHES"));
    }
    for route in &list {
        let value = &route["value"];
        let id = text(&value["id"]);
        let (rate, errors) = rates.get(&id).copied().unwrap_or_default();
        let parts = ["host", "hosts", "uri", "uris", "name"].map(|name| words(&value[name]));
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let line = format!("{id:<24} {rate:>8.1} {errors:>8.1}  {}", parts.join(" "));
        if search.as_ref().is_some_and(|search| !line.to_lowercase().contains(search)) {
            continue;
        }
        match json {
            true => {
                say::out(serde_json::json!({ "id": id, "rate": rate, "error_rate": errors, "value": value }))
            }
            false => say::out(line),
        }
    }
    Ok(true)
}

/// The picture of `sluice top`.
fn picture(event: &Value) -> String {
    let gateway = &event["gateway"];
    let connections = &event["connections"];
    let mut out = format!(
        "requests {:>8.0}/s   errors {:>6.0}/s   p50 {:>8}   p90 {:>8}   p99 {:>8}\n",
        number(&gateway["requests"]),
        number(&gateway["errors"]),
        ms(&gateway["p50"]),
        ms(&gateway["p90"]),
        ms(&gateway["p99"]),
    );
    out.push_str(&format!(
        "connections {} open, {} idle   in flight {}   memory {:.0} MiB   taps {}\n",
        number(&connections["open"]),
        number(&connections["idle"]),
        number(&event["requests_in_flight"]),
        number(&event["memory"]) / 1_048_576.0,
        number(&event["taps"]),
    ));
    let workers = event["workers"].as_array().into_iter().flatten().enumerate();
    let cpu: Vec<String> =
        workers.map(|(index, worker)| format!("{index}: {:.0} %", 100.0 * number(&worker["cpu"]))).collect();
    out.push_str(&format!("workers {}\n", cpu.join("   ")));
    for (title, name) in [("ROUTE", "routes"), ("NODE", "nodes"), ("STREAM", "streams")] {
        // Few gateways have streams.
        if name == "streams" && event[name].as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        out.push_str(&format!(
            "\n{title:<32} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
            "RATE", "ERRORS", "P50", "P90", "P99"
        ));
        for row in event[name].as_array().into_iter().flatten().take(ROWS) {
            let id = text(&row["id"]);
            let id = if id.is_empty() { "(no route)" } else { id.as_str() };
            out.push_str(&format!(
                "{:<32} {:>10.1} {:>10.1} {:>10} {:>10} {:>10}\n",
                id.chars().take(32).collect::<String>(),
                number(&row["rate"]),
                number(&row["error_rate"]),
                ms(&row["p50"]),
                ms(&row["p90"]),
                ms(&row["p99"]),
            ));
        }
    }
    out
}

/// One request as a line.
fn request(event: &Value) -> String {
    let time = number(&event["time"]) as u64;
    let mut line = format!(
        "{} {} {} {}{} {}",
        say::utc(time / 1000),
        text(&event["status"]),
        text(&event["method"]),
        text(&event["host"]),
        text(&event["path"]),
        ms(&event["total"]),
    );
    for name in ["client", "route", "consumer", "answered_by", "node", "attempts", "reason"] {
        let value = text(&event[name]);
        if !value.is_empty() && value != "0" {
            line.push_str(&format!(
                " {name}={}",
                if value.contains(' ') { format!("{value:?}") } else { value }
            ));
        }
    }
    line
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn ms(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}ms"))
}

/// A value as text without control characters.
fn text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    clean(&text)
}

/// A text without characters that control a terminal, or change the order in which people read.
fn clean(text: &str) -> String {
    let reorders =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || reorders(c) { '?' } else { c }).collect()
}

/// A text, or the texts of a list.
fn words(value: &Value) -> String {
    match value {
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        one => text(one),
    }
}

/// Percent-encodes all but letters, digits and `-._*/`.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hostile_texts_do_not_reach_the_terminal_as_controls() {
        let event = json!({
            "time": 1_795_000_000_000_u64, "status": 200, "method": "GET", "host": "a", "path": "/\u{1b}[2J\u{9b}x\u{202e}",
            "total": 1.25, "route": "r 1", "attempts": 1, "node": null,
        });
        let line = request(&event);
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.ends_with("200 GET a/?[2J?x? 1.2ms route=\"r 1\" attempts=1"), "{line}");
        assert_eq!(encoded("/a b&é*"), "/a%20b%26%C3%A9*");
    }

    #[test]
    fn a_picture_has_the_busiest_routes_nodes_and_streams() {
        let row = |id: &str| json!({"id": id, "rate": 12.5, "error_rate": 0.5, "p50": 1.0, "p90": 2.0, "p99": null});
        let mut event = json!({
            "gateway": {"requests": 13, "errors": 1, "p50": 1.0, "p90": 2.0, "p99": 3.0},
            "workers": [{"cpu": 0.25}], "connections": {"open": 3, "idle": 1},
            "routes": [row("r1"), row("")], "nodes": [row("10.0.0.1:80")],
        });
        assert!(!picture(&event).contains("STREAM"));
        event["streams"] = json!([row("tcp-1")]);
        let picture = picture(&event);
        for part in [
            "requests       13/s",
            "workers 0: 25 %",
            "r1   ",
            "(no route)",
            "10.0.0.1:80",
            "STREAM",
            "tcp-1",
            "-\n",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}
