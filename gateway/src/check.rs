//! `sluice check`: says what is wrong in the files, without starting.

use std::path::Path;
use std::sync::Arc;

use model::declarative::Format;
use model::{Declarative, Diagnostic, Resource, Severity, Source};
use sdk::Catalog;
use sdk::catalog::Place;

use crate::cli::Files;
use crate::files;
use crate::wiring;

/// Checks everything a start would read. True if nothing is wrong.
pub fn run(files: &Files) -> anyhow::Result<bool> {
    let found = match files::find(files) {
        Ok(found) => found,
        Err(diagnostics) => return Ok(report(&diagnostics, "nothing was started")),
    };
    let mut all = found.warnings;
    let mut told = match &found.config {
        Some(config) => vec![format!("{} is valid", config.display())],
        None => Vec::new(),
    };
    if let Some(resources) = &found.resources {
        let catalog = wiring::catalog(&found.boot)?;
        let (count, diagnostics) = match check_resources(resources, &catalog) {
            Ok(checked) => checked,
            Err(diagnostics) => (0, diagnostics),
        };
        if !diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Error) {
            told.push(format!("{} is valid: {count} resources", resources.display()));
        }
        all.extend(diagnostics);
    }
    let good = report(&all, "");
    for line in told {
        println!("{line}");
    }
    Ok(good)
}

/// Prints diagnostics to standard error; true if there is no error among them.
pub fn report(diagnostics: &[Diagnostic], ending: &str) -> bool {
    for diagnostic in diagnostics {
        eprintln!("{diagnostic}\n");
    }
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
    if errors > 0 {
        let plural = if errors == 1 { "" } else { "s" };
        let ending = if ending.is_empty() { String::new() } else { format!("; {ending}") };
        eprintln!("{errors} error{plural}{ending}");
    }
    errors == 0
}

fn check_resources(
    path: &Path,
    catalog: &Arc<plugins::Catalog>,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let text = files::read(path)?;
    let name = path.display().to_string();
    let json = path.extension().is_some_and(|extension| extension == "json");
    let format = if json { Format::Json } else { Format::Yaml };
    let declarative = Declarative::parse(&name, &text, format, &files::env).map_err(|error| vec![*error])?;
    let source = Source { file: &name, text: &text };
    let mut diagnostics = declarative.diagnostics;
    for item in &declarative.items {
        let (plugins, place) = plugins_of(&item.resource);
        let Some(plugins) = plugins else { continue };
        for (plugin, config) in plugins {
            if let Err(invalid) = catalog.check(plugin, config, place) {
                let invalid = invalid.within(plugin).under("/plugins").under(&item.pointer);
                diagnostics.push(source.invalid(&declarative.document, invalid));
            }
        }
    }
    Ok((declarative.items.len(), diagnostics))
}

fn plugins_of(resource: &Resource) -> (Option<&model::Plugins>, Place) {
    match resource {
        Resource::Route(route) => (Some(&route.plugins), Place::Route),
        Resource::Service(service) => (Some(&service.plugins), Place::Route),
        Resource::PluginConfig(config) => (Some(&config.plugins), Place::Route),
        Resource::ConsumerGroup(group) => (Some(&group.plugins), Place::Route),
        Resource::GlobalRule(rule) => (Some(&rule.plugins), Place::Route),
        Resource::Consumer(consumer) => (Some(&consumer.plugins), Place::Consumer),
        Resource::Credential(credential) => (Some(&credential.plugins), Place::Consumer),
        _ => (None, Place::Route),
    }
}
