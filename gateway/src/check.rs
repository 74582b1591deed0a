//! `sluice check`: says what is wrong in the files, without starting.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use model::boot::Boot;
use model::declarative::{Format, Item};
use model::{Declarative, Desired, Diagnostic, Entry, Invalid, Kind, Severity, Source};
use sdk::build::Names;
use snapshot::compile::{Compiler, Touched};

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
        let (count, diagnostics) = match check_resources(resources, &found.boot, &catalog) {
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

/// Checks a declarative file as a start would take it: each resource, then all of them
/// compiled together, then what they name of each other.
fn check_resources(
    path: &Path,
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
) -> Result<(usize, Vec<Diagnostic>), Vec<Diagnostic>> {
    let text = files::read(path)?;
    let name = path.display().to_string();
    let json = path.extension().is_some_and(|extension| extension == "json");
    let format = if json { Format::Json } else { Format::Yaml };
    let declarative = Declarative::parse(&name, &text, format, &files::env).map_err(|error| vec![*error])?;
    let source = Source { file: &name, text: &text };
    let mut desired = Desired::default();
    desired.plugins.clone_from(&declarative.plugins);
    for item in &declarative.items {
        let (key, resource) = (item.key.clone(), item.resource.clone());
        desired.put(Arc::new(Entry { key, resource, created: 1, modified: 1 }));
    }
    let mut compiler = Compiler::new(catalog.clone(), wiring::compile_settings(boot));
    let compiled = compiler.compile(&desired, &Touched::all(), &NoNames, 1);

    let mut diagnostics = declarative.diagnostics;
    for item in &declarative.items {
        let rejected = compiled.rejected.iter().filter(|rejected| rejected.key == item.key);
        let found = rejected.map(|rejected| rejected.invalid.clone()).chain(missing(item, &desired));
        for invalid in found {
            diagnostics.push(source.invalid(&declarative.document, invalid.under(&item.pointer)));
        }
    }
    Ok((declarative.items.len(), diagnostics))
}

/// No name has an address: a check asks nobody.
struct NoNames;

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// What an item names that is not there.
fn missing(item: &Item, desired: &Desired) -> Vec<Invalid> {
    const REFERENCES: [(&str, Kind); 4] = [
        ("upstream_id", Kind::Upstream),
        ("service_id", Kind::Service),
        ("plugin_config_id", Kind::PluginConfig),
        ("group_id", Kind::ConsumerGroup),
    ];
    let named = REFERENCES.iter().filter_map(|(field, kind)| {
        let id = match item.value.get(*field)? {
            serde_json::Value::String(id) => id.clone(),
            number => number.to_string(),
        };
        desired.get(*kind, &id).is_none().then(|| {
            Invalid::new(format!("there is no {} with the id `{id}`", kind.word()))
                .at(format!("/{field}"))
                .expected(format!("the id of one of `{}`", kind.collection()))
                .got(id)
        })
    });
    named.collect()
}
