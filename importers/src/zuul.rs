//! Files of Zuul 1: `application.yml` with `zuul.routes`.

use model::Diagnostic;

use crate::spring::report::Report;
use crate::spring::{documents, security, server};
use crate::{Import, Source};

mod headers;
mod routes;
mod timeouts;

/// Imports a file.
///
/// # Errors
/// A file that cannot be used as a whole.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    let loaded = documents::load(source)?;
    let settings = &loaded.settings;
    let mut report = Report::new(source.file);
    report.import.findings = loaded.findings;
    let mut shared = server::read(settings, source, &mut report);
    shared.extend(security::plugins(settings, source, &mut report));
    routes::read(settings, source, shared, &mut report)?;
    crate::spring::finish(settings, &mut report);
    Ok(report.import)
}

#[cfg(test)]
mod tests;
