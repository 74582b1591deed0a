//! `sluice explain` and what the control API answers to the same question.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use admin::{Draft, Preview, Question, Report};
use anyhow::{Context, bail};
use control::look::Look;
use control::store::{Opener, Row, Store};
use model::Rejected;
use model::boot::{Boot, Provider};
use model::declarative::{Declarative, Format};
use sdk::build::Names;
use sdk::sink::Folders;
use serde_json::Value;
use snapshot::compile::Compiler;
use snapshot::explain::{self, Input};
use wire::h1::decode::Limits;

use crate::cli::Explain;
use crate::files::{self, Found};
use crate::imports::Job;
use crate::instance::export::{admin_of, held};
use crate::instance::{Act, running, send};
use crate::{check, say, wiring};

/// Makes a compiler whose plugins have services of their own, as its snapshots serve no traffic.
///
/// # Errors
/// A certificate of the boot file that cannot be read, or a plugin's schema that does not compile.
fn compiler(boot: &Boot, folders: &Arc<Folders>) -> anyhow::Result<Compiler> {
    let settings = wiring::compile_settings(boot, crate::tls::settings(boot)?);
    Ok(Compiler::new(wiring::checking(boot, folders)?, settings))
}

/// Compiles the resources that a store held after a revision.
///
/// # Errors
/// The revision is not in the store's history, or the store or a file of the boot file cannot be read.
pub async fn at(
    boot: &Boot,
    folders: &Arc<Folders>,
    store: &dyn Store,
    revision: u64,
) -> Result<Look, String> {
    let mut compiler = compiler(boot, folders).map_err(|error| format!("{error:#}"))?;
    Look::at(store, revision, &mut compiler, &Unasked).await.map_err(|error| error.to_string())
}

/// Explains requests before and after a change that is not made.
///
/// # Errors
/// As for [`at`], or an invalid question.
pub async fn preview(
    boot: &Boot,
    folders: &Arc<Folders>,
    store: &dyn Store,
    draft: Draft,
    questions: Vec<Question>,
) -> Result<Preview, String> {
    let Draft { key, value } = draft;
    let json = value.map(|value| value.to_string().into());
    let compiler = || compiler(boot, folders);
    let looks = Look::before_and_after(store, (key, json), compiler, &Unasked).await;
    let [before, after] = looks.map_err(|error| format!("{error:#}"))?;
    let explain_by = |look: &Look, question| explain(look, wiring::request_limits(boot), question);
    let explained = questions
        .into_iter()
        .map(|question| Ok([explain_by(&before, question.clone())?, explain_by(&after, question)?]))
        .collect::<Result<_, String>>()?;
    let (not_asked, rejected): (Vec<_>, Vec<_>) = after.rejected.iter().partition(|one| is_not_asked(one));
    // A resource whose secret was not looked up before may have been valid.
    let is_new = |rejected: &&Rejected| {
        before.rejected.iter().all(|known| known.key != rejected.key || is_not_asked(known))
    };
    let rejected = rejected.into_iter().filter(is_new).map(|one| (one.key.clone(), one.invalid.clone()));
    Ok(Preview {
        explained,
        rejected: rejected.take(MOST_REJECTED).collect(),
        not_asked: not_asked.into_iter().map(|one| one.key.clone()).take(MOST_REJECTED).collect(),
    })
}

/// Resources of each list that a preview names.
const MOST_REJECTED: usize = 20;

/// Explains a request by a configuration.
///
/// # Errors
/// An invalid question.
pub fn explain(look: &Look, limits: Limits, question: Question) -> Result<Report, String> {
    let (not_asked, rejected): (Vec<_>, Vec<_>) = look.rejected.iter().cloned().partition(is_not_asked);
    let of = Input {
        snapshot: &look.snapshot,
        desired: &look.desired,
        rejected: &rejected,
        not_asked: &not_asked,
        now_ms: now_ms(),
        limits,
    };
    let Question { method, url, headers, remote_addr, body, revision: _ } = question;
    let mut explanation =
        explain::explain(of, &explain::Question { method, url, headers, remote_addr, body })?;
    if look.unasked && explanation.upstream.as_ref().is_none_or(|target| target.servers.is_empty()) {
        explanation.notes.push(UNASKED.to_owned());
    }
    Ok(Report { text: explanation.to_string(), value: explanation.to_json() })
}

/// The note on explanations of a past revision or a file, which lack host names and secrets.
const UNASKED: &str = "host names and secrets were not looked up for this: servers known by name alone are \
                           missing, and so are resources that need a secret";

/// Looks up neither names nor secrets, for explaining offline.
struct Unasked;

impl Names for Unasked {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        host.parse().into_iter().collect()
    }

    fn secret(&self, _reference: &str) -> Result<String, String> {
        Err(NOT_ASKED.to_owned())
    }
}

/// The reason of [`Unasked`] for a secret without a value.
const NOT_ASKED: &str = "no secret manager was asked";

/// Whether a resource is rejected only because its secret was not looked up.
fn is_not_asked(rejected: &Rejected) -> bool {
    rejected.invalid.reason.ends_with(NOT_ASKED)
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// `sluice explain`: explains a request. False if the files are wrong.
///
/// # Errors
/// No API answers, or the question is invalid.
pub fn run(asked: &Explain) -> anyhow::Result<bool> {
    let question = question(asked)?;
    if let Some(address) = asked.control {
        let path = format!("/v1/explain?{}", query(&question, asked.json));
        let (status, body): (u16, String) =
            ask(&question, |method, body| send(address, method, &path, None, &[], body))
                .with_context(|| format!("no control API answers on {address}"))?;
        return answered(status, &body, asked.json);
    }
    let found = match files::find_imported(&asked.files, &asked.import) {
        Ok(found) => found,
        Err(diagnostics) => return Ok(check::report(diagnostics, false)),
    };
    let report = match by_file(&found, asked, &question)? {
        Some(report) => report,
        None => return by_instance(&found, asked, question),
    };
    let Some(report) = report else { return Ok(false) };
    print(&report, asked.json)
}

/// Explains by the file of resources. `None` without such a file, or with `--running`. The inner `None`: the file
/// is wrong, and the diagnostics are printed.
fn by_file(found: &Found, asked: &Explain, question: &Question) -> anyhow::Result<Option<Option<Report>>> {
    let Some(file) = &found.resources else { return Ok(None) };
    if asked.running {
        return Ok(None);
    }
    if asked.revision.is_some() {
        bail!("the resources are in {}, which has no revisions", file.display());
    }
    let opener = wiring::opener(&found.boot, &*wiring::catalog(&found.boot)?)?;
    let Some((rows, plugins)) = rows_of(file, found.import.as_deref(), &opener) else {
        return Ok(Some(None));
    };
    let look = Look::of_rows(rows, plugins, 0, &mut compiler(&found.boot, &found.folders())?, &Unasked);
    let limits = wiring::request_limits(&found.boot);
    let report = explain(&look, limits, question.clone()).map_err(anyhow::Error::msg)?;
    Ok(Some(Some(report)))
}

/// Reads the valid resources of a declarative file, decrypted, and its list of plugins; prints diagnostics of the
/// others. `None` if the file cannot be read or parsed.
fn rows_of(file: &Path, import: Option<&Job>, opener: &Opener) -> Option<(Vec<Row>, Option<Vec<String>>)> {
    let text = files::read(file).map_err(|diagnostics| check::report(diagnostics, false)).ok()?;
    let format = if file.extension().is_some_and(|extension| extension == "json") {
        Format::Json
    } else {
        Format::Yaml
    };
    let name = file.display().to_string();
    let read = match import {
        Some(job) => job.read(&text).0.map(|imported| imported.declarative),
        None => Declarative::parse(&name, &text, format, &files::built_plugins(), &files::env),
    };
    let declarative = read.map_err(|error| check::report(vec![*error], false)).ok()?;
    check::report(declarative.diagnostics, false);
    let rows = declarative.items.into_iter().map(|item| {
        let opened = opener.opened(&item.key, &item.value);
        row(item.key, opened.as_ref().unwrap_or(&item.value))
    });
    Some((rows.collect(), declarative.plugins))
}

fn row(key: model::Key, value: &Value) -> Row {
    Row { key, json: value.to_string().into(), created: 1, modified: 1, expires: None }
}

/// Asks the instance that runs with these files, by its control API or else by its Admin API; where none
/// runs, the store itself is read.
fn by_instance(found: &Found, asked: &Explain, question: Question) -> anyhow::Result<bool> {
    let query = query(&question, asked.json);
    if found.boot.control.is_some() {
        match running(found, Act::Ask) {
            Ok((address, _)) => {
                let path = format!("/v1/explain?{query}");
                let (status, body) =
                    ask(&question, |method, body| send(address, method, &path, None, &[], body))?;
                return answered(status, &body, asked.json);
            }
            Err(error) if asked.running || asked.revision.is_some() => return Err(error),
            Err(_) => {}
        }
    } else if found.boot.admin.enabled {
        let (address, key) = admin_of(found)?;
        let path = format!("/apisix/admin/explain?{query}");
        let answer = ask(&question, |method, body| send(address, method, &path, key.as_deref(), &[], body));
        match answer {
            Ok((status, body)) => return answered(status, &body, asked.json),
            Err(error) if asked.running || asked.revision.is_some() => return Err(error),
            Err(_) => {}
        }
    }
    if matches!(found.boot.provider, Provider::Yaml | Provider::Json) {
        bail!("no gateway is running with this configuration");
    }
    let held = held(found)?;
    let rows = held.items.into_iter().map(|(key, value)| row(key, &value)).collect();
    let look = Look::of_rows(rows, held.plugins, 0, &mut compiler(&found.boot, &found.folders())?, &Unasked);
    let limits = wiring::request_limits(&found.boot);
    let report = explain(&look, limits, question).map_err(anyhow::Error::msg)?;
    print(&report, asked.json)
}

fn ask<T>(question: &Question, send: impl FnOnce(&str, &str) -> anyhow::Result<T>) -> anyhow::Result<T> {
    match &question.body {
        Some(body) => send("POST", std::str::from_utf8(body).context("the body is not UTF-8")?),
        None => send("GET", ""),
    }
}

fn answered(status: u16, body: &str, json: bool) -> anyhow::Result<bool> {
    if status != 200 {
        let answer: Value = serde_json::from_str(body).unwrap_or_default();
        bail!("{}", answer.get("error_msg").and_then(Value::as_str).unwrap_or(body.trim_end()));
    }
    match json {
        true => {
            let value: Value = serde_json::from_str(body).context("the answer is not JSON")?;
            say::out(serde_json::to_string_pretty(&value)?);
        }
        false => say::out(body.trim_end()),
    }
    Ok(true)
}

fn print(report: &Report, json: bool) -> anyhow::Result<bool> {
    match json {
        true => say::out(serde_json::to_string_pretty(&report.value)?),
        false => say::out(report.text.trim_end()),
    }
    Ok(true)
}

fn question(asked: &Explain) -> anyhow::Result<Question> {
    let headers = asked.headers.iter().map(|line| match line.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => bail!("`{line}` is no header: write it as `Name: value`"),
    });
    Ok(Question {
        method: asked.method.clone(),
        url: asked.url.clone(),
        headers: headers.collect::<Result<_, _>>()?,
        remote_addr: asked.remote_addr,
        body: asked.body.as_ref().map(|body| body.clone().into_bytes()),
        revision: asked.revision,
    })
}

/// The question as the APIs take it.
fn query(question: &Question, json: bool) -> String {
    let mut query = String::new();
    let mut add = |name: &str, value: &str| {
        if !query.is_empty() {
            query.push('&');
        }
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    query.push(byte.into())
                }
                // Writing to a text cannot fail.
                _ => _ = write!(query, "%{byte:02X}"),
            }
        }
    };
    add("method", &question.method);
    add("url", &question.url);
    for (name, value) in &question.headers {
        add("header", &format!("{name}: {value}"));
    }
    if let Some(ip) = question.remote_addr {
        add("remote_addr", &ip.to_string());
    }
    if let Some(revision) = question.revision {
        add("revision", &revision.to_string());
    }
    if !json {
        add("format", "text");
    }
    query
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use control::store::{Changes, Decide, Embedded, Expect, Record, Revision, StoreFuture, Stored, Writing};
    use model::{Key, Kind};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_goes_into_a_query_whole() {
        let question = Question {
            method: "GET".into(),
            url: "/a?b=c d&e".into(),
            headers: vec![("X-A".into(), "ä%".into())],
            remote_addr: Some("::1".parse().unwrap()),
            body: None,
            revision: Some(3),
        };
        assert_eq!(
            query(&question, false),
            "method=GET&url=%2Fa%3Fb%3Dc%20d%26e&header=X-A%3A%20%C3%A4%25&remote_addr=%3A%3A1&revision=3&format=text"
        );
    }

    /// A store that changes when its rows are first read.
    #[derive(Debug)]
    struct Busy {
        inner: Embedded,
        wrote: AtomicBool,
    }

    impl Store for Busy {
        fn get<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Option<Stored>> {
            self.inner.get(key)
        }

        fn rows<'a>(&'a self, kind: Kind, prefix: &'a str) -> StoreFuture<'a, (Vec<Row>, Revision)> {
            Box::pin(async move {
                if !self.wrote.swap(true, Ordering::SeqCst) {
                    self.inner.put(route("late"), value("/late"), Expect::Any, None).await?;
                    self.inner.delete(route("first"), Expect::Any).await?;
                }
                self.inner.rows(kind, prefix).await
            })
        }

        fn write(&self, decide: Decide) -> Writing<'_> {
            self.inner.write(decide)
        }

        fn revision(&self) -> StoreFuture<'_, Revision> {
            self.inner.revision()
        }

        fn plugins(&self) -> StoreFuture<'_, Option<Vec<String>>> {
            self.inner.plugins()
        }

        fn history(&self, after: Revision, until: Revision, limit: usize) -> StoreFuture<'_, Vec<Record>> {
            self.inner.history(after, until, limit)
        }

        fn watch(&self) -> Changes {
            self.inner.watch()
        }
    }

    fn value(uri: &str) -> Value {
        json!({"uri": uri, "upstream": {"type": "roundrobin", "nodes": {"127.0.0.1:1": 1}}})
    }

    fn route(id: &str) -> Key {
        Key::new(Kind::Route, id)
    }

    #[tokio::test]
    async fn what_is_written_meanwhile_is_no_part_of_a_past_revision() {
        let folder = tempfile::tempdir().unwrap();
        let inner = Embedded::open(folder.path()).unwrap();
        let first = inner.put(route("first"), value("/first"), Expect::Any, None).await.unwrap();
        inner.put(route("second"), value("/second"), Expect::Any, None).await.unwrap();
        let store = Busy { inner, wrote: AtomicBool::new(false) };
        let look = at(&Boot::default(), &Arc::default(), &store, first.modified).await.unwrap();
        let there = ["first", "second", "late"].map(|id| look.desired.get(Kind::Route, id).is_some());
        assert_eq!(there, [true, false, false], "{:?}", look.rejected);
    }
}
