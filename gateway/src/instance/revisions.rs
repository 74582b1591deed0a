//! `sluice history`, `diff` and `rollback`: the revisions of a running instance, by its Admin API.

use anyhow::{Context, bail};
use model::boot::Provider;
use serde_json::Value;

use super::export::admin_of;
use super::{Act, call, of_instance};
use crate::cli::Files;
use crate::say;

/// Prints the revisions, newest first, a line each.
///
/// # Errors
/// The Admin API does not answer, or refuses the request.
pub fn history(files: &Files, limit: u32) -> anyhow::Result<bool> {
    let Some(answer) = ask(files, "GET", &format!("revisions?limit={limit}"))? else { return Ok(false) };
    let list = answer.get("list").and_then(Value::as_array).cloned().unwrap_or_default();
    if list.is_empty() {
        say::out("No revisions: nothing was written yet, or `sluice.history` is off.");
    }
    list.iter().for_each(|record| say::out(line(record)));
    Ok(true)
}

/// Prints the difference of two revisions as JSON.
///
/// # Errors
/// The Admin API does not answer, or refuses the request.
pub fn diff(files: &Files, from: u64, to: u64) -> anyhow::Result<bool> {
    let Some(answer) = ask(files, "GET", &format!("revisions/diff?from={from}&to={to}"))? else {
        return Ok(false);
    };
    say::out(serde_json::to_string_pretty(answer.get("changes").unwrap_or(&Value::Null))?);
    Ok(true)
}

/// Restores the resources of a revision.
///
/// # Errors
/// The Admin API does not answer, or refuses the request.
pub fn rollback(files: &Files, revision: u64) -> anyhow::Result<bool> {
    let path = format!("revisions/{revision}/rollback");
    let Some(answer) = ask(files, "POST", &path)? else { return Ok(false) };
    let changes = answer.get("changes").and_then(Value::as_array).cloned().unwrap_or_default();
    changes.iter().for_each(|change| say::out(change_line(change)));
    let now = answer.get("revision").and_then(Value::as_u64).unwrap_or_default();
    let counted = say::counted(changes.len(), "change");
    say::out(format_args!("{counted}; revision {now} is what revision {revision} was"));
    Ok(true)
}

/// Keeps the change that waits, or takes it back.
///
/// # Errors
/// The Admin API does not answer, or refuses the request, as when no change waits.
pub fn confirm(files: &Files, undo: bool) -> anyhow::Result<bool> {
    let path = if undo { "revisions/unconfirmed/undo" } else { "revisions/unconfirmed/confirm" };
    let Some(answer) = ask(files, "POST", path)? else { return Ok(false) };
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let done = if undo { "undone" } else { "confirmed" };
    let what = title(number(done), number("from"));
    match number("revision").filter(|_| undo) {
        Some(revision) => say::out(format_args!("{done}: {what} (as revision {revision})")),
        None => say::out(format_args!("{done}: {what}")),
    }
    for left in answer.get("left").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        say::out(format_args!("left as it is, since later writes changed or need it: {left}"));
    }
    Ok(true)
}

/// A change that waits to be confirmed: by its revision, if the history has it, or by the one before it.
pub fn title(revision: Option<u64>, from: Option<u64>) -> String {
    match revision {
        Some(revision) => format!("revision {revision}"),
        None => format!("the change after revision {}", from.unwrap_or_default()),
    }
}

/// Sends a request to the Admin API and returns the answer. `None` if the files are wrong; the diagnostics are
/// printed.
fn ask(files: &Files, method: &str, path: &str) -> anyhow::Result<Option<Value>> {
    let act = if method == "GET" { Act::Ask } else { Act::Change };
    let Some(found) = of_instance(files, act)? else { return Ok(None) };
    if matches!(found.boot.provider, Provider::Yaml | Provider::Json) {
        let file = found.resources.unwrap_or_default();
        bail!("there is no history: the resources are in {}", file.display());
    }
    let (address, key) = admin_of(&found)?;
    let (status, body) = call(address, method, &format!("/apisix/admin/{path}"), key.as_deref())
        .with_context(|| format!("no gateway answers on its Admin API, {address}"))?;
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    if status != 200 {
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        bail!("{}", text("error_msg").or(text("description")).unwrap_or(&body));
    }
    Ok(Some(answer))
}

fn line(record: &Value) -> String {
    let number = |name: &str| record.get(name).and_then(Value::as_u64).unwrap_or_default();
    let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
    let changes = record.get("changes").and_then(Value::as_array);
    let changes: Vec<String> = changes.into_iter().flatten().take(5).map(change_line).collect();
    let total = number("total") as usize;
    let more =
        if total > changes.len() { format!(" and {} more", total - changes.len()) } else { String::new() };
    let message = if text("message").is_empty() { String::new() } else { format!("  # {}", text("message")) };
    let author = if text("author").is_empty() { "-" } else { text("author") };
    let time = say::utc(number("time"));
    format!("{}  {time}  {author}  {}{more}{message}", number("revision"), changes.join(", "))
}

fn change_line(change: &Value) -> String {
    let text = |name: &str| change.get(name).and_then(Value::as_str).unwrap_or_default();
    format!("{} {}", text("change"), text("key"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_write_is_a_line() {
        let record = json!({
            "revision": 7, "time": 5, "author": "admin", "message": "why", "total": 2,
            "changes": [{"key": "routes/1", "change": "created"}],
        });
        assert_eq!(line(&record), "7  1970-01-01T00:00:05Z  admin  created routes/1 and 1 more  # why");
    }
}
