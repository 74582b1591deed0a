//! `sluice status`, `reload` and `export`: asking the instance that runs with a configuration.
//!
//! It is found by the address of its control API in the same files that started it; there is no
//! other trace of it to go stale. An instance that was started with other files may answer there: it
//! is asked with a warning, and never made to do anything.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use model::boot::Provider;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cli::Files;
use crate::files::{self, Found};
use crate::{check, forward, say};

pub mod apply;
pub mod export;
pub mod live;
pub mod revisions;

/// How long an instance may take to accept, and between two pieces of its answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time between two polls of the status during an upgrade.
const LOOK: Duration = Duration::from_millis(50);
/// The largest answer taken.
const MOST: u64 = 512 << 20;

/// How a command uses the instance that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Reads from it. An instance of other files gets a warning.
    Ask,
    /// Changes it. An instance of other files is an error.
    Change,
}

/// `sluice status`: prints the status of the running instance. False if the files are wrong, or the instance is not
/// ready for traffic.
///
/// # Errors
/// As for [`running`], or no whole answer within `timeout`.
pub fn status(files: &Files, json: bool, timeout: Duration) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (sender, answer) = std::sync::mpsc::sync_channel(1);
    // An instance that sends its answer byte by byte would prolong any time limit of a single read.
    std::thread::spawn(move || sender.send(running(&found, Act::Ask)));
    let answer = answer.recv_timeout(timeout);
    let (_, status) = answer.with_context(|| format!("the gateway does not answer within {timeout:?}"))??;
    match json {
        true => say::out(serde_json::to_string_pretty(&status)?),
        false => lines(&status).iter().for_each(say::out),
    }
    let not_ready = status.get("not_ready").and_then(Value::as_str);
    if let Some(reason) = not_ready {
        say::err(format_args!("error: the gateway is not ready for traffic: {reason}"));
    }
    Ok(not_ready.is_none())
}

/// `sluice reload`: the instance reads its files again. False if they are wrong.
///
/// # Errors
/// As for [`running`], or the connection fails.
pub fn reload(files: &Files) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (address, _) = running(&found, Act::Change)?;
    let (code, body) = call(address, "POST", "/v1/reload", None)?;
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
    match code {
        200 => say::out(text("message").unwrap_or_default()),
        _ => say::err(format_args!("error: {}", text("error_msg").unwrap_or(body))),
    }
    Ok(code == 200)
}

/// `sluice upgrade`: the instance starts its binary again and hands over to it. False if the files are wrong or the
/// upgrade failed.
///
/// # Errors
/// As for [`running`]; or the process cannot be signalled, or does not hand over in time.
pub fn upgrade(files: &Files) -> anyhow::Result<bool> {
    let Some(found) = read(files) else { return Ok(false) };
    let (address, before) = running(&found, Act::Change)?;
    let process = |status: &Value| status.get("pid").and_then(Value::as_i64);
    let failed = |status: &Value| status.pointer("/upgrades/failed").and_then(Value::as_u64);
    let pid = process(&before).and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let (Some(pid), Some(failures)) = (pid, failed(&before)) else {
        bail!("the running version cannot be upgraded while it runs: stop it and start the new one");
    };
    kill_process(pid, Signal::USR2).with_context(|| {
        format!(
            "cannot signal process {}: this must run where it runs, as its user or root",
            pid.as_raw_nonzero()
        )
    })?;
    let until = Instant::now() + found.boot.upgrade_timeout + PATIENCE;
    while Instant::now() < until {
        std::thread::sleep(LOOK);
        // It may be between the two.
        let Ok((_, now)) = running(&found, Act::Change) else { continue };
        if process(&now) != process(&before) {
            let text =
                |name: &str| now.get(name).map(|it| it.to_string().replace('"', "")).unwrap_or_default();
            say::out(format_args!(
                "sluice {}, process {}, has taken over; process {} finishes what it has begun",
                text("version"),
                text("pid"),
                pid.as_raw_nonzero()
            ));
            return Ok(true);
        }
        if failed(&now) > Some(failures) {
            let why = now.pointer("/upgrades/last_error").and_then(Value::as_str).unwrap_or_default();
            say::err(format_args!("error: {why}\n  help: the old process goes on"));
            return Ok(false);
        }
    }
    bail!("process {} on {address} does not hand over; its error log may say why", pid.as_raw_nonzero())
}

/// Reads the files. If they are wrong, prints the diagnostics and returns `None`.
pub fn read(files: &Files) -> Option<Found> {
    files::find(files).map_err(|diagnostics| check::report(diagnostics, false)).ok()
}

/// Reads the files for a command that uses the Admin API of their instance if one runs. Without `--data`, and
/// without a store in the default data folder, the data folder is that of the instance. `None` if the files are
/// wrong; the diagnostics are printed.
///
/// # Errors
/// The instance that runs was started with other files, and would be changed.
pub fn of_instance(files: &Files, act: Act) -> anyhow::Result<Option<Found>> {
    let Some(mut found) = read(files) else { return Ok(None) };
    if let Ok((address, status)) = answering(&found)
        && started_with(&found, address, &status, act)?
        && found.boot.provider == Provider::Embedded
        && files.data.is_none()
        && !export::holds_store(&found.data)
        && let Some(folder) = status.get("store").and_then(Value::as_str)
    {
        found.data = folder.into();
    }
    Ok(Some(found))
}

/// Returns the address of the instance's control API, and its status.
///
/// # Errors
/// The control API is off, does not answer or is not Sluice's; or an instance of other files would be changed.
pub fn running(found: &Found, act: Act) -> anyhow::Result<(SocketAddr, Value)> {
    let (address, status) = answering(found)?;
    started_with(found, address, &status, act)?;
    Ok((address, status))
}

/// Returns whether the instance was started with these files. If not, prints a warning for [`Act::Ask`].
///
/// # Errors
/// The instance was started with other files, and would be changed.
fn started_with(found: &Found, address: SocketAddr, status: &Value, act: Act) -> anyhow::Result<bool> {
    let Some(ours) = found.config.as_ref().or(found.resources.as_ref()) else { return Ok(true) };
    let text = |name: &str| status.get(name).and_then(Value::as_str);
    // Without a configuration it was started with a file of resources, or with nothing but its data.
    let Some(theirs) = text("configuration").or_else(|| text("store")) else { return Ok(true) };
    let mine = ours.canonicalize();
    if theirs != forward::ARGUMENTS {
        // A path that is not here is one in a container, which may have the same file elsewhere.
        let (Ok(mine), Ok(other)) = (&mine, Path::new(theirs).canonicalize()) else { return Ok(true) };
        if *mine == other {
            return Ok(true);
        }
    }
    let mine = mine.unwrap_or_else(|_| ours.clone());
    let differs = format!("the gateway on {address} was started with {theirs}, not with {}", mine.display());
    match act {
        Act::Ask => say::err(format_args!("warning: {differs}")),
        Act::Change => bail!(
            "{differs}\n  help: name that one, or give each gateway its own `apisix.control.port`; nothing was changed"
        ),
    }
    Ok(false)
}

/// Requests the status from the control API of these files; returns its address too.
fn answering(found: &Found) -> anyhow::Result<(SocketAddr, Value)> {
    let Some(address) = found.boot.control else {
        bail!(
            "the control API is off, and a running instance can only be reached through it\n  \
             help: set apisix.enable_control to true"
        );
    };
    let address = reachable(address);
    let answer = call(address, "GET", "/v1/status", None).with_context(|| {
        format!(
            "no gateway is running with this configuration: nothing answers on its control API, {address}"
        )
    })?;
    let status: Value = serde_json::from_str(&answer.1).unwrap_or_default();
    if answer.0 != 200 || status.get("program").and_then(Value::as_str) != Some("sluice") {
        bail!(
            "the server on {address} is not Sluice's control API (GET /v1/status: {})\n  \
             help: pass the configuration the gateway was started with, or check apisix.control",
            answer.0
        );
    }
    Ok((address, status))
}

/// An address for all interfaces is asked on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, address.port())
}

/// One request on a connection of its own; status and body.
fn call(address: SocketAddr, method: &str, path: &str, key: Option<&str>) -> anyhow::Result<(u16, String)> {
    send(address, method, path, key, &[], "")
}

/// The same with more headers and a body.
pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    key: Option<&str>,
    headers: &[(&str, &str)],
    body: &str,
) -> anyhow::Result<(u16, String)> {
    send_for(PATIENCE, address, method, path, key, headers, body)
}

/// The same, waiting up to `patience` for the answer and between two pieces of it.
pub fn send_for(
    patience: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
    key: Option<&str>,
    headers: &[(&str, &str)],
    body: &str,
) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let key = key.map(|key| format!("X-API-KEY: {key}\r\n")).unwrap_or_default();
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{key}{more}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.take(MOST).read_to_end(&mut bytes)?;
    answer(&bytes).ok_or_else(|| anyhow!("the server on {address} does not speak HTTP"))
}

/// Status and body of a whole response, as our own servers write it: with a length.
fn answer(bytes: &[u8]) -> Option<(u16, String)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let body = String::from_utf8(bytes[end + 4..].to_vec()).ok()?;
    Some((status, body))
}

/// A status for people.
fn lines(status: &Value) -> Vec<String> {
    let text = |name: &str| match status.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(other) if !other.is_null() => other.to_string(),
        _ => "none".to_owned(),
    };
    let workers = status.get("workers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let published = status.get("published").and_then(Value::as_u64).unwrap_or_default();
    let current = workers.iter().filter(|worker| worker["revision"].as_u64() >= Some(published)).count();
    let counts = status.get("resources").and_then(Value::as_object).into_iter().flatten();
    let counts: Vec<String> = counts
        .filter(|(_, count)| count.as_u64() > Some(0))
        .map(|(kind, count)| match count.as_u64() {
            Some(1) => format!("1 {}", kind.strip_suffix('s').unwrap_or(kind)),
            _ => format!("{count} {kind}"),
        })
        .collect();
    let listens = status.get("listens").and_then(Value::as_array).into_iter().flatten();
    let listens: Vec<&str> = listens.filter_map(Value::as_str).collect();
    let uptime = status.get("uptime").and_then(Value::as_u64).unwrap_or_default();
    let rejected = status.get("rejected").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut lines = vec![
        format!("sluice {}, pid {}, up {}", text("version"), text("pid"), duration(uptime)),
        format!("configuration  {}", text("configuration")),
        format!("resources      {}", text("store")),
        format!("               {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }),
        format!("listens        {}", listens.join(", ")),
        format!("workers        {current} of {} on revision {published}", workers.len()),
    ];
    lines.extend(status.get("unconfirmed").filter(|waiting| waiting.is_object()).map(unconfirmed));
    let total = |name: &str, listed: &[Value]| {
        status.get(name).and_then(Value::as_u64).unwrap_or(listed.len() as u64)
    };
    let certificates = status.get("certificates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !certificates.is_empty() {
        let all = total("certificates_total", certificates);
        lines.push(format!("certificates   {all}, the soonest to expire first"));
        lines.extend(certificates.iter().map(certificate));
        if all > certificates.len() as u64 {
            lines.push(format!("  and {} more", all - certificates.len() as u64));
        }
    }
    let sick = status.get("unhealthy").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !sick.is_empty() {
        lines.push(format!(
            "unhealthy      servers of {}",
            say::counted(total("unhealthy_total", sick) as usize, "upstream")
        ));
        lines.extend(sick.iter().map(unhealthy));
    }
    lines.push(format!("rejected       {}", total("rejected_total", rejected)));
    lines.extend(rejected.iter().map(entry));
    let without = status.get("without_effect").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !without.is_empty() {
        let resources = total("without_effect_total", without) as usize;
        lines.push(format!("without effect parts of {}", say::counted(resources, "resource")));
        lines.extend(without.iter().map(entry));
    }
    lines
}

/// The line of a resource with its finding.
fn entry(one: &Value) -> String {
    let part = |name: &str| one.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let place = part("pointer").map(|pointer| format!(" at {pointer}")).unwrap_or_default();
    let hint = part("hint").map(|hint| format!(" ({hint})")).unwrap_or_default();
    let (key, reason) = (part("key").unwrap_or_default(), part("reason").unwrap_or_default());
    format!("  {key}{place}: {reason}{hint}")
}

/// Certificates with fewer days left are marked.
const SOON: i64 = 14;

/// The line of a certificate.
fn certificate(one: &Value) -> String {
    let text = |name: &str| one.get(name).and_then(Value::as_str);
    let number = |name: &str| one.get(name).and_then(Value::as_i64).unwrap_or_default();
    let source = match (text("ssl"), text("sni"), text("file")) {
        (Some(id), Some(sni), _) => format!("ssls/{id} ({sni})"),
        (Some(id), None, _) => format!("ssls/{id}"),
        (None, _, file) => file.unwrap_or_default().to_owned(),
    };
    let until = say::utc(u64::try_from(number("not_after")).unwrap_or_default());
    match number("days_left") {
        days if days < 0 => format!("  {source}: warning: expired on {until}"),
        days if days < SOON => format!("  {source}: warning: expires in {} on {until}", counted_days(days)),
        days => format!("  {source}: expires in {} on {until}", counted_days(days)),
    }
}

fn counted_days(days: i64) -> String {
    match usize::try_from(days) {
        Ok(days @ 1..) => say::counted(days, "day"),
        _ => "less than 1 day".to_owned(),
    }
}

/// The line of an upstream with unhealthy servers.
fn unhealthy(one: &Value) -> String {
    let number = |name: &str| one.get(name).and_then(Value::as_u64).unwrap_or_default();
    let key = one.get("key").and_then(Value::as_str).unwrap_or_default();
    let (servers, bad) = (number("servers"), number("unhealthy"));
    let share = match bad < servers {
        true => format!("{bad} of {servers} servers are unhealthy"),
        false if servers == 1 => "its only server is unhealthy, and used all the same".to_owned(),
        false => format!("all {servers} servers are unhealthy, so all are used"),
    };
    let listed = one.get("list").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let text =
        |server: &Value, name: &str| server.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let each: Vec<String> =
        listed.iter().map(|server| format!("{} ({})", text(server, "server"), text(server, "why"))).collect();
    let more = match bad.saturating_sub(listed.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("  {key}: {share}: {}{more}", each.join(", "))
}

/// The line of a change that waits to be confirmed.
fn unconfirmed(waiting: &Value) -> String {
    let number = |name: &str| waiting.get(name).and_then(Value::as_u64);
    let left = duration(number("left").unwrap_or_default());
    let what = revisions::title(number("revision"), number("from"));
    format!("unconfirmed    {what}: undone in {left} unless confirmed (sluice confirm)")
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_is_told_in_lines() {
        let shown = lines(&json!({
            "version": "1.2.3", "pid": 7, "uptime": 3725, "configuration": "conf/config.yaml",
            "store": "conf/data", "resources": {"routes": 2, "services": 0, "upstreams": 1},
            "listens": ["traffic http://127.0.0.1:9080"], "published": 5,
            "workers": [{"revision": 5}, {"revision": 4}],
            "rejected": [{"key": "routes/1", "pointer": "/uri", "reason": "no", "hint": null}],
            "unconfirmed": {"revision": 5, "from": 4, "author": "admin", "left": 90},
        }));
        assert_eq!(shown[0], "sluice 1.2.3, pid 7, up 1 h 2 min");
        assert_eq!(shown[3].trim(), "2 routes, 1 upstream");
        assert_eq!(shown[5], "workers        1 of 2 on revision 5");
        assert_eq!(
            shown[6],
            "unconfirmed    revision 5: undone in 1 min 30 s unless confirmed (sluice confirm)"
        );
        assert_eq!(shown[8], "  routes/1 at /uri: no");
    }

    #[test]
    fn certificates_that_expire_soon_are_marked() {
        let (day, now) = (86_400, 1_800_000_000);
        let one = |days: i64| json!({"ssl": "a", "sni": "a.test", "not_after": now + days * day, "days_left": days});
        let shown = lines(&json!({
            "certificates": [one(-1), one(0), one(1), one(13), one(14), {"file": "/f", "not_after": now, "days_left": 90}],
            "certificates_total": 9,
        }));
        let at = shown.iter().position(|line| line.starts_with("certificates   9,")).unwrap();
        assert_eq!(
            shown[at + 1..=at + 7],
            [
                "  ssls/a (a.test): warning: expired on 2027-01-14T08:00:00Z",
                "  ssls/a (a.test): warning: expires in less than 1 day on 2027-01-15T08:00:00Z",
                "  ssls/a (a.test): warning: expires in 1 day on 2027-01-16T08:00:00Z",
                "  ssls/a (a.test): warning: expires in 13 days on 2027-01-28T08:00:00Z",
                "  ssls/a (a.test): expires in 14 days on 2027-01-29T08:00:00Z",
                "  /f: expires in 90 days on 2027-01-15T08:00:00Z",
                "  and 3 more",
            ]
        );
    }

    #[test]
    fn an_answer_is_taken_apart_and_others_are_not() {
        let found = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(found, Some((200, "{}".to_owned())));
        assert_eq!(answer(b"SSH-2.0-x\r\n"), None);
        assert_eq!(answer(b""), None);
    }

    #[test]
    fn an_instance_on_all_interfaces_is_asked_on_this_machine() {
        for (given, asked) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.0.0.1:9090", "10.0.0.1:9090"),
        ] {
            assert_eq!(reachable(given.parse().unwrap()).to_string(), asked);
        }
    }
}
