//! Findings of an import for people and for programs.

use std::path::{Path, PathBuf};

use importers::{Finding, Severity};
use model::{Diagnostic, Invalid, Source};
use serde_json::{Value, json};

use super::{Closed, Imported, Job};
use crate::yaml;

/// Everything to be reported about an import: the findings, and resources that are invalid.
pub fn diagnostics(job: &Job, imported: &Imported, text: &str) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut texts: Vec<(String, Option<String>)> = Vec::new();
    for finding in &imported.import.findings {
        let file = &*finding.place.file;
        let text = match file == job.path.display().to_string() {
            true => text,
            false => {
                if !texts.iter().any(|(name, _)| name == file) {
                    texts.push((file.to_owned(), text_of(&job.path, file)));
                }
                let known = texts.iter().find(|(name, _)| name == file);
                known.and_then(|(_, text)| text.as_deref()).unwrap_or_default()
            }
        };
        found.push(diagnostic(job, imported, finding, &Source { file, text }));
    }
    let findings = imported.import.findings.iter();
    for place in job.accepted.unused(findings.filter(|one| one.severity == Severity::Guard)) {
        let mut unused = Diagnostic::new(
            model::Severity::Warning,
            &format!("--accept {place}"),
            "no guard is at this line",
        );
        unused.hint =
            Some("the guards are listed with their lines: give one of these, or leave it out".to_owned());
        found.push(unused);
    }
    found.extend(imported.declarative.diagnostics.iter().cloned());
    found.extend(imported.declarative.warnings.iter().cloned());
    found
}

fn diagnostic(job: &Job, imported: &Imported, finding: &Finding, source: &Source<'_>) -> Diagnostic {
    let accepted = job.accepted.covers(finding);
    let severity = match finding.severity {
        Severity::Cosmetic => model::Severity::Note,
        Severity::Guard if accepted => model::Severity::Note,
        Severity::Behaviour | Severity::Guard => model::Severity::Warning,
    };
    let word = match finding.severity {
        Severity::Guard if accepted => "accepted guard",
        other => other.as_str(),
    };
    let mut hints: Vec<String> = finding.hint.iter().cloned().collect();
    if finding.severity == Severity::Guard && !accepted {
        let routes: Vec<_> = closed_by(imported, finding);
        let which = match routes.len() == imported.closed.len() && finding.resources.is_empty() {
            true => "all routes answer 503".to_owned(),
            false if routes.is_empty() => "no route depends on it".to_owned(),
            false => {
                format!("{} answer{} 503", yaml::names(&routes), if routes.len() == 1 { "s" } else { "" })
            }
        };
        hints.push(format!(
            "{which}; to serve without it: --accept {}:{}",
            source.file, finding.place.position.line
        ));
    }
    let mut invalid = Invalid::new(format!("{word}: {}: {}", finding.construct, finding.effect));
    invalid.hint = Some(hints.join("; ")).filter(|hint| !hint.is_empty());
    source.at(severity, finding.place.position, invalid)
}

/// The closed routes that a guard names, or depend on a resource that it names.
fn closed_by(imported: &Imported, finding: &Finding) -> Vec<model::Key> {
    let known = imported.import.resources.iter().map(|one| &one.key).collect();
    let by_this = super::closing::closed_by(&imported.import, &known, finding);
    let order = imported.closed.iter().map(|(key, _)| key);
    order.filter(|key| by_this.contains(key)).cloned().collect()
}

/// The import as JSON: counts, findings, closed routes.
pub fn to_json(job: &Job, imported: &Imported) -> Value {
    let findings: Vec<Value> = imported
        .import
        .findings
        .iter()
        .map(|one| {
            json!({
                "severity": one.severity.as_str(),
                "file": &*one.place.file,
                "line": one.place.position.line,
                "column": one.place.position.column,
                "construct": one.construct,
                "effect": one.effect,
                "hint": one.hint,
                "resources": one.resources.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "accepted": one.severity == Severity::Guard && job.accepted.covers(one),
            })
        })
        .collect();
    let closed: Vec<Value> = imported
        .closed
        .iter()
        .map(|(key, why)| {
            json!({"resource": key.to_string(), "reason": match why {
                Closed::Guard => "guard",
                Closed::Invalid => "invalid",
            }})
        })
        .collect();
    json!({
        "file": job.path.display().to_string(),
        "format": job.format.name(),
        "resources": imported.import.resources.len(),
        "findings": findings,
        "closed": closed,
    })
}

/// The text of an included file for showing a line of it.
pub fn text_of(main: &Path, file: &str) -> Option<String> {
    let beside = main.parent().unwrap_or(Path::new("")).join(file);
    let path = [PathBuf::from(file), beside].into_iter().find(|path| path.is_file())?;
    std::fs::read_to_string(path).ok()
}
