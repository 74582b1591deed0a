//! `sluice top`, `tap` and `routes`: what the running instance does now, in a terminal.
//!
//! They read the event streams of its control API. All text of clients and resources is shown without
//! control characters, which could control the terminal.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::{Act, PATIENCE, call, read, running};
use crate::cli::Files;
use crate::say;

/// Rows of each list of `sluice top` when the height of the terminal is unknown.
const ROWS: usize = 10;

/// The longest event; a tap's is at most some 150 KiB.
const MOST_LINE: u64 = 1 << 20;

/// Shows rates, errors and latencies, again each second until it is interrupted. Into a pipe it writes one picture.
///
/// # Errors
/// As for [`running`], or the gateway stops.
pub fn top(files: &Files, once: bool) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (address, _) = running(&found, Act::Ask)?;
    let redraws = std::io::stdout().is_terminal() && !once;
    events(address, "/v1/live", |_, event| {
        let picture = picture(event);
        if !redraws {
            say::out(picture.trim_end());
            return Ok(false);
        }
        // Home, then each line up to its end, then the rest: nothing flickers.
        let lines = picture.replace('\n', "\x1b[K\n");
        write!(std::io::stdout(), "\x1b[H{lines}\x1b[J")?;
        std::io::stdout().flush()?;
        Ok(true)
    })?;
    Ok(true)
}

/// Shows a line for each request that meets the conditions, until it is interrupted.
///
/// # Errors
/// As for [`running`], or the gateway refuses the conditions, or stops.
pub fn tap(files: &Files, conditions: &[String], json: bool, limit: Option<u64>) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (address, _) = running(&found, Act::Ask)?;
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
    events(address, &format!("/v1/tap?{}", query.join("&")), |kind, event| {
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

/// Lists the routes with their traffic of the last seconds.
///
/// # Errors
/// As for [`running`].
pub fn routes(files: &Files) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (address, _) = running(&found, Act::Ask)?;
    let (code, body) = call(address, "GET", "/v1/routes", None)?;
    anyhow::ensure!(code == 200, "the list of routes is refused: {code} {body}");
    let list: Vec<Value> = serde_json::from_str(&body).context("the list of routes is not JSON")?;
    let mut rates = HashMap::new();
    events(address, "/v1/live", |_, event| {
        for route in event["routes"].as_array().into_iter().flatten() {
            rates.insert(text(&route["id"]), (number(&route["rate"]), number(&route["error_rate"])));
        }
        Ok(false)
    })?;
    say::out(format_args!("{:<24} {:>8} {:>8}  {}", "ROUTE", "RATE", "ERRORS", "MATCHES"));
    for route in &list {
        let value = &route["value"];
        let id = text(&value["id"]);
        let (rate, errors) = rates.get(&id).copied().unwrap_or_default();
        let parts = ["host", "hosts", "uri", "uris"].map(|name| words(&value[name]));
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        say::out(format_args!(
            "{:<24} {rate:>8.1} {errors:>8.1}  {} {}",
            id,
            parts.join(" "),
            text(&value["name"])
        ));
    }
    Ok(true)
}

/// Reads streams of events, and calls `take` with the kind and the data of each until it returns false. The gateway
/// ends a stream whose connection is older than `deployment.admin.connection_timeout`; another one follows.
fn events(
    address: SocketAddr,
    path: &str,
    mut take: impl FnMut(&str, &Value) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    while stream(address, path, &mut take)? {}
    Ok(())
}

/// Reads one stream; false if `take` has returned false.
fn stream(
    address: SocketAddr,
    path: &str,
    take: &mut dyn FnMut(&str, &Value) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    // Both streams have an event each second.
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    // An answer to HTTP/1.0 has no chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut lines = BufReader::new(stream);
    let head = head(&mut lines)?;
    if head.split(' ').nth(1) != Some("200") {
        let mut body = Vec::new();
        // An answer that ends early has no reason to show.
        let _ = lines.take(64 << 10).read_to_end(&mut body);
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        bail!("{}", answer["error_msg"].as_str().unwrap_or(&head));
    }
    let mut kind = String::new();
    while let Some(line) = line(&mut lines)? {
        if let Some(name) = line.strip_prefix("event: ") {
            name.clone_into(&mut kind);
        } else if let Some(data) = line.strip_prefix("data: ") {
            let data = serde_json::from_str(data).context("an event of the gateway is not JSON")?;
            if !take(&kind, &data)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Reads the head of the answer and returns its first line.
fn head(lines: &mut impl BufRead) -> anyhow::Result<String> {
    let first = line(lines)?.context("the gateway closed the connection without an answer")?;
    while line(lines)?.is_some_and(|line| !line.is_empty()) {}
    Ok(first)
}

/// The next line without its end; `None` at the end of the stream.
fn line(lines: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok((read > 0).then(|| text.trim_end_matches(['\r', '\n']).to_owned()))
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
    for (title, name) in [("ROUTE", "routes"), ("NODE", "nodes")] {
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
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
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
            "time": 1_795_000_000_000_u64, "status": 200, "method": "GET", "host": "a", "path": "/\u{1b}[2J\u{9b}x",
            "total": 1.25, "route": "r 1", "attempts": 1, "node": null,
        });
        let line = request(&event);
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(line.ends_with("200 GET a/?[2J?x 1.2ms route=\"r 1\" attempts=1"), "{line}");
        assert_eq!(encoded("/a b&é*"), "/a%20b%26%C3%A9*");
    }

    #[test]
    fn a_picture_has_the_busiest_routes_and_nodes() {
        let row = |id: &str| json!({"id": id, "rate": 12.5, "error_rate": 0.5, "p50": 1.0, "p90": 2.0, "p99": null});
        let event = json!({
            "gateway": {"requests": 13, "errors": 1, "p50": 1.0, "p90": 2.0, "p99": 3.0},
            "workers": [{"cpu": 0.25}], "connections": {"open": 3, "idle": 1},
            "routes": [row("r1"), row("")], "nodes": [row("10.0.0.1:80")],
        });
        let picture = picture(&event);
        for part in
            ["requests       13/s", "workers 0: 25 %", "r1   ", "(no route)", "10.0.0.1:80", "12.5", "-\n"]
        {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}
