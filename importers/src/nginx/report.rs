//! Findings while they are gathered.

use std::collections::BTreeMap;

use model::Key;

use super::directive::Directive;
use crate::finding::Place;
use crate::{Finding, Severity};

/// Findings, each once: one about a directive that several routes inherit names them all.
#[derive(Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    known: BTreeMap<(Place, String, String), usize>,
    /// The route that findings concern at the moment.
    pub route: Option<Key>,
}

impl Report {
    /// Adds a finding about a directive.
    pub(super) fn add(&mut self, at: &Directive, severity: Severity, effect: impl Into<String>) {
        self.add_with_hint(at, severity, effect, None);
    }

    pub(super) fn add_with_hint(
        &mut self,
        at: &Directive,
        severity: Severity,
        effect: impl Into<String>,
        hint: Option<&str>,
    ) {
        let resources = self.route.iter().cloned().collect();
        self.push(Finding {
            place: at.place.clone(),
            severity,
            construct: at.text(),
            effect: effect.into(),
            hint: hint.map(str::to_owned),
            resources,
        });
    }

    pub(super) fn push(&mut self, finding: Finding) {
        let key = (finding.place.clone(), finding.construct.clone(), finding.effect.clone());
        match self.known.get(&key) {
            Some(&index) => {
                let known = &mut self.findings[index];
                if known.resources.is_empty() || finding.resources.is_empty() {
                    known.resources.clear();
                } else {
                    let new: Vec<Key> =
                        finding.resources.into_iter().filter(|key| !known.resources.contains(key)).collect();
                    known.resources.extend(new);
                }
            }
            None => {
                self.known.insert(key, self.findings.len());
                self.findings.push(finding);
            }
        }
    }

    /// All of them, in the order of the file.
    pub(super) fn finish(self) -> Vec<Finding> {
        let mut findings = self.findings;
        findings.sort_by(|a, b| a.place.cmp(&b.place));
        findings
    }
}
