//! What the store of a gateway that does not run holds.
//!
//! Its resources were checked when they were written, by the version that was there then; this one may think
//! otherwise, and what all of them come to together nobody has looked at.

use std::path::PathBuf;
use std::sync::Arc;

use control::store::StoreError;
use model::boot::Provider;
use model::{Desired, Diagnostic, Entry, Invalid, Key, Resource, Severity};
use snapshot::analysis::{Code, Finding};
use snapshot::compile::{Compiler, Touched};

use super::{NOT_ASKED, NoNames};
use crate::files::Found;
use crate::instance::export;
use crate::wiring;

/// The store's file, how many resources it holds and what is to be said of them. `None` if there is no store, or
/// another process, as a rule a running gateway, has it open.
///
/// # Errors
/// A plugin's schema that does not compile, or TLS settings that cannot be used.
pub fn check(found: &Found, analyses: bool) -> anyhow::Result<Option<(PathBuf, usize, Vec<Diagnostic>)>> {
    let file = found.data.join("store.redb");
    if found.boot.provider != Provider::Embedded || !file.exists() {
        return Ok(None);
    }
    let name = file.display().to_string();
    let held = match export::of_folder(&found.boot, &found.data) {
        Ok((held, _)) => held,
        Err(error) => {
            return Ok(match error.downcast_ref() {
                Some(StoreError::Locked { .. }) => None,
                _ => Some((file, 0, vec![Diagnostic::new(Severity::Error, &name, format!("{error:#}"))])),
            });
        }
    };
    let tell = |severity, key: &Key, invalid: &Invalid| {
        let at = if invalid.pointer.is_empty() { String::new() } else { format!("; at {}", invalid.pointer) };
        Diagnostic::new(severity, &name, format!("{key}: {}{at}", invalid.reason))
    };
    let mut told = Vec::new();
    let mut desired = Desired::default();
    desired.plugins.clone_from(&held.plugins);
    for (key, value) in &held.items {
        match Resource::parse(key.kind, &key.id, value) {
            Ok(resource) => {
                let ignored = model::gaps::ignored(key.kind, value);
                told.extend(ignored.iter().map(|invalid| tell(Severity::Warning, key, invalid)));
                desired.put(Arc::new(Entry::new(key.clone(), resource, 1, 1)));
            }
            Err(invalid) => told.push(tell(Severity::Error, key, &invalid)),
        }
    }
    let catalog = wiring::checking(&found.boot, &found.folders())?;
    let settings = wiring::compile_settings(&found.boot, crate::tls::settings(&found.boot)?);
    let mut compiler = Compiler::new(catalog.clone(), settings);
    let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 1);
    let rejected = compiled.rejected.iter().filter(|one| !one.invalid.reason.ends_with(NOT_ASKED));
    told.extend(rejected.map(|one| tell(Severity::Error, &one.key, &one.invalid)));
    // With a part left out, what refers to what cannot be told.
    if analyses && !told.iter().any(|one| one.severity == Severity::Error) {
        let analysis = crate::analysis::of(&desired, &found.boot, &catalog);
        for Finding { code, key, invalid } in &analysis.findings {
            let mut invalid = invalid.clone();
            invalid.reason.push_str(&format!(" ({})", Code::as_str(*code)));
            told.push(tell(Severity::Warning, key, &invalid));
        }
        told.extend(analysis.more.iter().map(|(code, count)| {
            Diagnostic::new(Severity::Warning, &name, format!("and {count} more of {}", code.as_str()))
        }));
    }
    Ok(Some((file, held.items.len(), told)))
}
