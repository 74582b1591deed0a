//! `sluice check`: says what is wrong in the files, without starting.

mod dumps;
mod starts;
mod stored;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::store::Opener;
use model::boot::{Boot, Provider};
use model::declarative::{ABSENT, Format, Item};
use model::{Declarative, Desired, Diagnostic, Entry, Invalid, Key, Kind, Resource, Severity, Source};
use sdk::build::Names;
use serde_json::{Value, json};
use snapshot::analysis::{Analysis, Code, Finding};
use snapshot::compile::{Compiler, Touched};

use self::stored::Checked;
use crate::cli::{Files, Forward, Import};
use crate::files::{self, Found};
use crate::forward;
use crate::imports::{self, Job};
use crate::mistakes::{self, Mistakes};
use crate::{say, wiring};

/// The extent and the form of a report.
pub struct How {
    /// Warnings are errors.
    pub strict: bool,
    /// Valid settings that are likely mistakes are reported.
    pub analyses: bool,
    pub json: bool,
}

/// Checks everything a start would read. True if nothing is wrong.
pub fn run(files: &Files, forward: &Forward, import: &Import, how: &How) -> anyhow::Result<bool> {
    let How { strict, analyses, json } = *how;
    let mut imported = Value::Null;
    let dumps = dumps::find(files.path.as_deref());
    let (mut all, mut summary) = (Vec::new(), Vec::new());
    let (mut boot, mut folders) = (Boot::default(), Arc::default());
    if !are_all(files.path.as_deref(), &dumps) {
        let mut found = match files::of_start(files, forward, import) {
            Ok(found) => found,
            Err(diagnostics) if json => return Ok(print_json(diagnostics, strict, Value::Null)),
            Err(diagnostics) => return Ok(report(diagnostics, strict)),
        };
        let starts = starts::check(&found);
        if !starts.is_empty() {
            // It is reported: the rest is checked with the certificates that the system trusts.
            found.boot.tls.trusted = None;
        }
        let is_good = starts.is_empty() && (found.warnings.is_empty() || !strict);
        if let Some(config) = found.config.as_ref().filter(|_| is_good) {
            summary.push(format!("{} is valid", config.display()));
        }
        for file in found.resources.iter().cloned().chain(beside(&found)) {
            let catalog = wiring::checking(&found.boot, &found.folders())?;
            let checked = match &found.import {
                Some(job) => check_import(&file, job, &found.boot, &catalog, &mut imported),
                None => check_resources(&file, &found.boot, &catalog, analyses),
            };
            let (count, diagnostics) = checked.unwrap_or_else(|diagnostics| (0, diagnostics));
            summary.extend(valid(&file, count, &diagnostics, strict));
            all.extend(diagnostics);
        }
        if let Some(given) = &found.given {
            let (file, catalog) =
                (Path::new(forward::ARGUMENTS), wiring::checking(&found.boot, &found.folders())?);
            // Its author wrote arguments, so there is no file to improve.
            let checked = check_text(forward::ARGUMENTS, given, Format::Json, &found.boot, &catalog, false);
            let (count, diagnostics) = checked.unwrap_or_else(|diagnostics| (0, diagnostics));
            summary.extend(valid(file, count, &diagnostics, strict));
            all.extend(diagnostics);
        }
        match stored::check(&found, analyses)? {
            Checked::Store(file, count, diagnostics) if found.given.is_none() => {
                summary.extend(valid(&file, count, &diagnostics, strict));
                all.extend(diagnostics);
            }
            Checked::InUse(diagnostic) if found.given.is_none() => all.push(diagnostic),
            _ => summary.extend(unchecked(&found)),
        }
        folders = found.folders();
        all.splice(..0, found.warnings.into_iter().chain(starts));
        boot = found.boot;
    }
    for file in &dumps {
        let (count, diagnostics) = dumps::check(file, &boot, &folders, analyses)?;
        summary.extend(valid(file, count, &diagnostics, strict));
        all.extend(diagnostics);
    }
    if json {
        return Ok(print_json(all, strict, imported));
    }
    let good = report(all, strict);
    summary.iter().for_each(say::out);
    Ok(good)
}

/// Prints the diagnostics as JSON; true if there is no error among them.
fn print_json(diagnostics: Vec<Diagnostic>, strict: bool, imported: Value) -> bool {
    let is_wrong =
        |one: &Diagnostic| one.severity == Severity::Error || strict && one.severity == Severity::Warning;
    let valid = !diagnostics.iter().any(is_wrong);
    let diagnostics: Vec<Value> = diagnostics
        .iter()
        .map(|one| {
            json!({
                "severity": one.severity.to_string(), "file": one.file, "line": one.line, "column": one.column,
                "pointer": one.pointer, "message": one.message, "expected": one.expected, "got": one.got,
                "hint": one.hint,
            })
        })
        .collect();
    say::out(json!({"valid": valid, "diagnostics": diagnostics, "import": imported}));
    valid
}

/// Checks a file of another gateway: the findings of its importer, then its resources as if they were in a file of
/// our own.
fn check_import(
    path: &Path,
    job: &Job,
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    json: &mut Value,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let text = files::read(path)?;
    let mut imported = job.read(&text).0.map_err(|error| vec![*error])?;
    *json = imports::to_json(job, &imported);
    let mut found = imports::diagnostics(job, &imported, &text);
    let (count, checked) =
        check_declarative(&mut imported.declarative, &Source { file: "", text: "" }, boot, catalog, false)?;
    // These are among the others already.
    let more = checked.into_iter().filter(|one| one.file.is_empty());
    found.extend(more.map(|one| job.located(&imported, one, &text)));
    Ok((count, found))
}

/// Says that a file is valid, if it is.
fn valid(file: &Path, count: usize, found: &[Diagnostic], strict: bool) -> Option<String> {
    let is_wrong =
        |one: &Diagnostic| one.severity == Severity::Error || strict && one.severity == Severity::Warning;
    let is_wrong = found.iter().any(is_wrong);
    let plural = if count == 1 { "" } else { "s" };
    (!is_wrong).then(|| format!("{} is valid: {count} resource{plural}", file.display()))
}

/// Whether there is nothing but dumps.
fn are_all(path: Option<&Path>, dumps: &[PathBuf]) -> bool {
    let started = ["config.yaml", "apisix.yaml", "apisix.json"];
    let reads = |path: &Path| path.is_dir() && started.iter().any(|name| path.join(name).is_file());
    !dumps.is_empty() && path.is_some_and(|path| !reads(path))
}

/// A file of resources that stands beside a config.yaml that reads them from etcd.
fn beside(found: &Found) -> Option<PathBuf> {
    let config = found.config.as_ref().filter(|_| found.boot.provider == Provider::Etcd);
    let folder = config?.parent()?;
    ["apisix.yaml", "apisix.json"].into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Says where the resources are that were not checked; `None` if they are in a file.
fn unchecked(found: &Found) -> Option<String> {
    if found.given.is_some() {
        return None;
    }
    match found.boot.provider {
        Provider::Embedded => {}
        Provider::Etcd => {
            let place = crate::etcd::place(&found.boot);
            return Some(format!("resources are in {}; `check` does not connect to it", place.display()));
        }
        Provider::Yaml | Provider::Json => return None,
    }
    let resources = "there are no resources yet";
    Some(match &found.config {
        Some(_) => resources.to_owned(),
        None => format!("no file to check: the defaults apply; {resources}"),
    })
}

/// Prints diagnostics to standard error, file by file in the order of lines; true if there is no
/// error among them.
pub fn report(mut diagnostics: Vec<Diagnostic>, strict: bool) -> bool {
    let mut files: Vec<String> = Vec::new();
    for diagnostic in &mut diagnostics {
        if !files.contains(&diagnostic.file) {
            files.push(diagnostic.file.clone());
        }
        if strict && diagnostic.severity == Severity::Warning {
            diagnostic.severity = Severity::Error;
        }
    }
    let place = |file: &str| files.iter().position(|other| other == file);
    diagnostics.sort_by_key(|found| (place(&found.file), found.line, found.column));
    for diagnostic in &diagnostics {
        say::err(format_args!("{diagnostic}\n"));
    }
    let count = |severity| diagnostics.iter().filter(|found| found.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let counted = |count: usize, word| match count {
        0 => None,
        1 => Some(format!("1 {word}")),
        more => Some(format!("{more} {word}s")),
    };
    let counted: Vec<String> =
        [counted(errors, "error"), counted(warnings, "warning"), counted(count(Severity::Note), "note")]
            .into_iter()
            .flatten()
            .collect();
    if !counted.is_empty() {
        say::err(counted.join(", "));
    }
    errors == 0
}

/// Returns whether a file of resources is valid; prints its diagnostics.
///
/// # Errors
/// A plugin's schema that does not compile.
pub fn resources(path: &Path, found: &Found) -> anyhow::Result<bool> {
    let catalog = wiring::checking(&found.boot, &found.folders())?;
    let diagnostics = match check_resources(path, &found.boot, &catalog, false) {
        Ok((_, diagnostics)) | Err(diagnostics) => diagnostics,
    };
    Ok(report(diagnostics, false))
}

/// Checks a declarative file as a start would take it: each resource, then all of them
/// compiled together, then what they name of each other; then, if asked to, what is worth a second look.
fn check_resources(
    path: &Path,
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    analyses: bool,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let text = files::read(path).map_err(|mut found| {
        found.iter_mut().for_each(|one| one.hint = (!path.exists()).then(|| ABSENT.to_owned()));
        found
    })?;
    let json = path.extension().is_some_and(|extension| extension == "json");
    let format = if json { Format::Json } else { Format::Yaml };
    check_text(&path.display().to_string(), &text, format, boot, catalog, analyses)
}

/// The same for the text of a file.
fn check_text(
    name: &str,
    text: &str,
    format: Format,
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    analyses: bool,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut declarative = Declarative::parse(name, text, format, &files::built_plugins(), &files::env)
        .map_err(|error| vec![*error])?;
    check_declarative(&mut declarative, &Source { file: name, text }, boot, catalog, analyses)
}

/// The same for parsed sections.
fn check_declarative(
    declarative: &mut Declarative,
    source: &Source<'_>,
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    analyses: bool,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let wrong =
        |error: anyhow::Error| vec![Diagnostic::new(Severity::Error, "config.yaml", format!("{error:#}"))];
    let opener = wiring::opener(boot, &**catalog).map_err(wrong)?;
    let mut found: Vec<Invalid> = Vec::new();
    let mut desired = Desired::default();
    desired.plugins.clone_from(&declarative.plugins);
    desired.stream_plugins.clone_from(&declarative.stream_plugins);
    for item in &mut declarative.items {
        match open(item, &opener) {
            Ok(()) => _ = desired.put(Arc::new(Entry::new(item.key.clone(), item.resource.clone(), 1, 1))),
            Err(invalid) => found.push(invalid.under(&item.pointer)),
        }
    }
    let tls = crate::tls::settings(boot).map_err(wrong)?;
    let mut compiler = Compiler::new(catalog.clone(), wiring::compile_settings(boot, tls));
    let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 1);

    let listed = desired.plugins.as_ref().or(boot.plugins.as_ref());
    let mistakes = Mistakes { catalog: &**catalog, listed: listed.map(Vec::as_slice) };
    for item in &declarative.items {
        let rejected = compiled.rejected.iter().filter(|rejected| rejected.key == item.key);
        let rejected = rejected.filter(|rejected| !rejected.invalid.reason.ends_with(NOT_ASKED));
        let rejected: Vec<Invalid> = rejected.map(|rejected| rejected.invalid.clone()).collect();
        if !rejected.is_empty() {
            found.extend(mistakes.of(item.key.kind, &item.value).map(|one| one.under(&item.pointer)));
        }
        let rest = rejected.into_iter().chain(missing(item, &desired, &declarative.document.value));
        found.extend(rest.map(|invalid| invalid.under(&item.pointer)));
    }
    // Items that were left out have one diagnostic, of their first mistake: the others follow.
    let used: HashSet<&str> = declarative.items.iter().map(|item| item.pointer.as_str()).collect();
    for (pointer, kind) in mistakes::items(&declarative.document.value) {
        let is_used = used.contains(pointer.as_str());
        if let Some(value) = declarative.document.value.pointer(&pointer).filter(|_| !is_used) {
            found.extend(mistakes.of(kind, value).map(|one| one.under(&pointer)));
        }
    }
    let found = found.into_iter().map(|invalid| source.invalid(&declarative.document, invalid));
    let mut diagnostics = declarative.diagnostics.clone();
    for diagnostic in found {
        let about = |one: &Diagnostic| mistakes::about(&one.pointer, &one.message, one.hint.as_deref());
        if !diagnostics.iter().any(|other| mistakes::is_covered(&about(&diagnostic), &about(other))) {
            diagnostics.push(diagnostic);
        }
    }
    diagnostics.extend(declarative.warnings.iter().cloned());
    // With items left out, the analysis would find that others are unused.
    if analyses && !diagnostics.iter().any(|found| found.severity == Severity::Error) {
        let analysis = crate::analysis::of(&desired, boot, catalog);
        diagnostics.extend(worth_a_look(&analysis, declarative, source));
    }
    Ok((declarative.items.len(), diagnostics))
}

/// Decrypts the secrets of an item, as a start does before it takes it.
fn open(item: &mut Item, opener: &Opener) -> Result<(), Invalid> {
    if let Some(value) = opener.opened(&item.key, &item.value) {
        item.resource = Resource::parse(item.key.kind, &item.key.id, &value)?;
        item.value = Arc::new(value);
    }
    Ok(())
}

/// Findings with their places in the file.
fn worth_a_look(analysis: &Analysis, file: &Declarative, source: &Source<'_>) -> Vec<Diagnostic> {
    let items: HashMap<&Key, &Item> = file.items.iter().map(|item| (&item.key, item)).collect();
    let mut found = Vec::new();
    for Finding { code, key, invalid } in &analysis.findings {
        // The file itself says what has no effect.
        let Some(item) = items.get(key).filter(|_| *code != Code::NoEffect) else { continue };
        let read = item.value.pointer(&invalid.pointer);
        let mut invalid = invalid.clone().under(&item.pointer);
        // It stands in the file as the keyring encrypts it.
        if *code == Code::ClearSecret && read != file.document.value.pointer(&invalid.pointer) {
            continue;
        }
        invalid.reason.push_str(&format!(" ({})", code.as_str()));
        if *code == Code::UnknownSetting {
            // The name is what is wrong.
            found.push(source.warning(&file.document, invalid));
            continue;
        }
        let position = file.document.nearest_position(&invalid.pointer);
        let mut diagnostic = source.at(Severity::Warning, position, invalid);
        if *code == Code::ClearSecret {
            // The line holds the secret, so it is not shown. A secret from the environment is no finding.
            if diagnostic.source.take().is_some_and(|line| line.contains("${{")) {
                continue;
            }
        }
        found.push(diagnostic);
    }
    let more = analysis.more.iter().map(|(code, count)| {
        Diagnostic::new(Severity::Warning, source.file, format!("and {count} more of {}", code.as_str()))
    });
    found.extend(more);
    found
}

/// Looks up neither names nor secrets, as a check connects to nothing.
struct NoNames;

/// The error for secrets, which a check does not report.
const NOT_ASKED: &str = "a check asks no secret managers";

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn secret(&self, _reference: &str) -> Result<String, String> {
        Err(NOT_ASKED.to_owned())
    }
}

/// Resources of a store or a dump that need others which are absent.
fn dangling<'i>(items: impl Iterator<Item = (&'i Key, &'i Value)> + Clone) -> Vec<(&'i Key, Invalid)> {
    let there: HashSet<&Key> = items.clone().map(|(key, _)| key).collect();
    let absent = |(key, value): (&'i Key, &'i Value)| {
        let needed = control::references::needed_by(key, value).into_iter();
        needed.map(move |needed| (key, needed))
    };
    let absent = items.flat_map(absent).filter(|(_, needed)| !there.contains(needed));
    let invalid = |needed: &Key| {
        Invalid::new(format!("there is no {} with the id `{}`", needed.kind.word(), needed.id))
            .expected(format!("the id of one of `{}`", needed.kind.collection()))
    };
    absent.map(|(key, needed)| (key, invalid(&needed))).collect()
}

/// Returns references of an item to resources that are absent, or were left out for their own mistakes.
fn missing(item: &Item, desired: &Desired, document: &Value) -> Vec<Invalid> {
    const REFERENCES: [(&str, Kind); 4] = [
        ("upstream_id", Kind::Upstream),
        ("service_id", Kind::Service),
        ("plugin_config_id", Kind::PluginConfig),
        ("group_id", Kind::ConsumerGroup),
    ];
    let named = REFERENCES.iter().filter_map(|(field, kind)| {
        let id = id_text(item.value.get(*field)?);
        Some((format!("/{field}"), Key::new(*kind, id)))
    });
    const SPLIT: &str = "/plugins/traffic-split";
    let split = item.value.pointer(SPLIT).map(control::references::named_by_split).unwrap_or_default();
    let split = split.into_iter().map(|(place, key)| (format!("{SPLIT}{place}"), key));
    let missing = named.chain(split).filter(|(_, key)| desired.get(key.kind, &key.id).is_none());
    let invalid = missing.map(|(place, Key { kind, id })| {
        let collection = kind.collection();
        let mut written = document.get(collection).and_then(Value::as_array).into_iter().flatten();
        if written.any(|other| other.get("id").is_some_and(|other| id_text(other) == id)) {
            return Invalid::new(format!("{collection}/{id} is itself wrong")).at(place);
        }
        Invalid::new(format!("there is no {} with the id `{id}`", kind.word()))
            .at(place)
            .expected(format!("the id of one of `{collection}`"))
            .got(id)
    });
    invalid.collect()
}

fn id_text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}
