//! Checks the resources in the embedded store.
//!
//! Each was checked when it was written, but maybe by another version, and never together with all others.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use control::store::StoreError;
use model::boot::Provider;
use model::{Desired, Diagnostic, Entry, Invalid, Key, Resource, Severity};
use serde_json::Value;
use snapshot::analysis::{Code, Finding};
use snapshot::compile::{Compiler, Touched};

use super::{NOT_ASKED, NoNames};
use crate::files::Found;
use crate::instance::{self, Act, export};
use crate::wiring;

/// The result of a check of the store.
pub enum Checked {
    /// There is no store.
    Absent,
    /// Another process has it open, and does not report its findings.
    InUse(Diagnostic),
    /// The store's file, the number of its resources, and the findings.
    Store(PathBuf, usize, Vec<Diagnostic>),
}

/// Checks the resources in the store. A running gateway is asked for its findings.
///
/// # Errors
/// A plugin's schema that does not compile, or TLS settings that cannot be used.
pub fn check(found: &Found, analyses: bool) -> anyhow::Result<Checked> {
    let file = found.data.join("store.redb");
    if found.boot.provider != Provider::Embedded || !file.exists() {
        return Ok(Checked::Absent);
    }
    let name = file.display().to_string();
    let held = match export::of_folder(&found.boot, &found.data) {
        Ok((held, _)) => held,
        Err(error) => {
            return Ok(match error.downcast_ref() {
                Some(StoreError::Locked { .. }) => running(found, &file, analyses).unwrap_or_else(|error| {
                    let reason = format!("not checked, as another process has it open: {error:#}");
                    Checked::InUse(Diagnostic::new(Severity::Warning, &name, reason))
                }),
                _ => {
                    let invalid = Diagnostic::new(Severity::Error, &name, format!("{error:#}"));
                    Checked::Store(file, 0, vec![invalid])
                }
            });
        }
    };
    let diagnostic = |severity, key: &Key, invalid: &Invalid| {
        let at = if invalid.pointer.is_empty() { String::new() } else { format!("; at {}", invalid.pointer) };
        Diagnostic::new(severity, &name, format!("{key}: {}{at}", invalid.reason))
    };
    let mut diagnostics = Vec::new();
    let mut desired = Desired::default();
    desired.plugins.clone_from(&held.plugins);
    for (key, value) in &held.items {
        match Resource::parse(key.kind, &key.id, value) {
            Ok(resource) => {
                let ignored = model::gaps::ignored(key.kind, value);
                diagnostics.extend(ignored.iter().map(|invalid| diagnostic(Severity::Warning, key, invalid)));
                desired.put(Arc::new(Entry::new(key.clone(), resource, 1, 1)));
            }
            Err(invalid) => diagnostics.push(diagnostic(Severity::Error, key, &invalid)),
        }
    }
    let catalog = wiring::checking(&found.boot, &found.folders())?;
    let settings = wiring::compile_settings(&found.boot, crate::tls::settings(&found.boot)?);
    let mut compiler = Compiler::new(catalog.clone(), settings);
    let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 1);
    let rejected = compiled.rejected.iter().filter(|one| !one.invalid.reason.ends_with(NOT_ASKED));
    diagnostics.extend(rejected.map(|one| diagnostic(Severity::Error, &one.key, &one.invalid)));
    let absent = super::dangling(held.items.iter().map(|(key, value)| (key, value)));
    let is_rejected = |key: &Key| compiled.rejected.iter().any(|one| one.key == *key);
    let absent = absent.into_iter().filter(|(key, _)| !is_rejected(key));
    diagnostics.extend(absent.map(|(key, invalid)| diagnostic(Severity::Error, key, &invalid)));
    // With items left out, the analysis would find that others are unused.
    if analyses && !diagnostics.iter().any(|one| one.severity == Severity::Error) {
        let analysis = crate::analysis::of(&desired, &found.boot, &catalog);
        let findings = analysis.findings.iter().filter(|finding| finding.code != Code::NoEffect);
        for Finding { code, key, invalid } in findings {
            let mut invalid = invalid.clone();
            invalid.reason.push_str(&format!(" ({})", Code::as_str(*code)));
            diagnostics.push(diagnostic(Severity::Warning, key, &invalid));
        }
        diagnostics.extend(analysis.more.iter().map(|(code, count)| {
            Diagnostic::new(Severity::Warning, &name, format!("and {count} more of {}", code.as_str()))
        }));
    }
    Ok(Checked::Store(file, held.items.len(), diagnostics))
}

/// The report of a running gateway that has the store open.
///
/// # Errors
/// No gateway answers, or it has another store open.
fn running(found: &Found, file: &Path, analyses: bool) -> anyhow::Result<Checked> {
    let (address, status) = instance::running(found, Act::Ask)?;
    let store = status.get("store").and_then(Value::as_str).unwrap_or_default();
    // A path that is not here is another one.
    let is_same =
        Path::new(store).canonicalize().is_ok_and(|store| Some(store) == found.data.canonicalize().ok());
    anyhow::ensure!(is_same, "the gateway on {address} uses `{store}`");
    let name = file.display().to_string();
    let diagnostic = |severity, one: &Value| {
        let text = |name: &str| one.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let at = text("pointer").map(|pointer| format!("; at {pointer}")).unwrap_or_default();
        let code = text("code").map(|code| format!(" ({code})")).unwrap_or_default();
        let (key, reason) = (text("key").unwrap_or_default(), text("reason").unwrap_or_default());
        Diagnostic::new(severity, &name, format!("{key}: {reason}{code}{at}"))
    };
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let rejected = list(&status, "rejected");
    let mut diagnostics: Vec<Diagnostic> =
        rejected.iter().map(|one| diagnostic(Severity::Error, one)).collect();
    diagnostics.extend(list(&status, "without_effect").iter().map(|one| diagnostic(Severity::Warning, one)));
    if analyses
        && diagnostics.iter().all(|one| one.severity == Severity::Warning)
        && let Ok((200, body)) = instance::send(address, "GET", "/v1/analysis", None, &[], "")
    {
        let analysis: Value = serde_json::from_str(&body)
            .with_context(|| format!("GET /v1/analysis of the gateway on {address}"))?;
        let findings = list(&analysis, "list");
        let findings = findings.iter().filter(|one| one["code"] != Code::NoEffect.as_str());
        diagnostics.extend(findings.map(|one| diagnostic(Severity::Warning, one)));
    }
    let counts = status.get("resources").and_then(Value::as_object).into_iter().flatten();
    let count = counts.filter_map(|(_, count)| count.as_u64()).sum::<u64>();
    Ok(Checked::Store(file.to_owned(), usize::try_from(count).unwrap_or(usize::MAX), diagnostics))
}
