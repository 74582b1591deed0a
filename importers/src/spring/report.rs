//! Findings, boot settings and resources, collected during an import.

use model::Key;
use serde_json::Value;

use super::settings::Item;
use crate::finding::{Finding, Place, Severity};
use crate::output::{Import, Imported, Setting};

/// The result so far, and the route that is being read.
pub struct Report {
    pub import: Import,
    /// Findings without resources of their own concern it.
    pub route: Option<Key>,
    /// The first file.
    pub source: std::sync::Arc<str>,
    /// The place of `route`.
    pub current: Option<Place>,
}

impl Report {
    pub fn new(file: &str) -> Report {
        Report { import: Import::default(), route: None, source: file.into(), current: None }
    }

    pub fn find(&mut self, severity: Severity, place: Place, construct: &str, effect: impl Into<String>) {
        self.add(severity, place, construct, effect.into(), None);
    }

    pub fn hint(
        &mut self,
        severity: Severity,
        place: Place,
        construct: &str,
        effect: impl Into<String>,
        hint: &str,
    ) {
        self.add(severity, place, construct, effect.into(), Some(hint.to_owned()));
    }

    /// A finding about a property.
    pub fn item(
        &mut self,
        severity: Severity,
        item: &Item<'_>,
        effect: impl Into<String>,
        hint: Option<&str>,
    ) {
        self.add(severity, item.place(), item.path(), effect.into(), hint.map(str::to_owned));
    }

    /// The place of the route that is being read, or the beginning of the file.
    pub fn place(&self) -> Place {
        let start = || Place { file: self.source.clone(), position: model::Position::START };
        self.current.clone().unwrap_or_else(start)
    }

    /// A setting of `config.yaml`.
    pub fn setting(&mut self, path: &str, value: Value, place: Place) {
        if !self.import.settings.iter().any(|setting| setting.path == path) {
            self.import.settings.push(Setting { path: path.to_owned(), value, place });
        }
    }

    pub fn resource(&mut self, key: Key, value: Value, place: Place) {
        self.import.resources.push(Imported { key, value, place });
    }

    fn add(
        &mut self,
        severity: Severity,
        place: Place,
        construct: &str,
        effect: String,
        hint: Option<String>,
    ) {
        let resources = self.route.iter().cloned().collect();
        let construct = construct.to_owned();
        self.import.findings.push(Finding { place, severity, construct, effect, hint, resources });
    }
}
