//! Files of Spring Cloud Gateway: `application.yml` and `application.properties`.

use std::collections::BTreeMap;

use model::Diagnostic;
use serde_json::json;

use crate::finding::{Finding, Severity};
use crate::{Import, Source};

mod cors;
mod dates;
mod definition;
pub(crate) mod documents;
mod filters;
pub(crate) mod ids;
mod locator;
mod names;
mod networks;
pub(crate) mod order;
pub(crate) mod path;
mod placeholders;
mod predicates;
pub(crate) mod preflight;
mod profiles;
mod properties;
pub(crate) mod regexes;
pub(crate) mod registry;
pub(crate) mod report;
pub(crate) mod rest;
mod rewrite;
pub(crate) mod routes;
pub(crate) mod security;
pub(crate) mod server;
pub(crate) mod settings;
mod units;
pub(crate) mod upstream;
mod weights;

use report::Report;
use settings::{Item, Settings};

/// Where the settings of the gateway stand: its key of each version, the newest first.
const KEYS: [&str; 4] = [
    "spring.cloud.gateway.server.webflux",
    "spring.cloud.gateway.server.webmvc",
    "spring.cloud.gateway.mvc",
    "spring.cloud.gateway",
];

/// Imports a file.
///
/// # Errors
/// A file that cannot be used as a whole.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    let loaded = documents::load(source)?;
    let settings = &loaded.settings;
    let mut report = Report::new(source.file);
    report.import.findings = loaded.findings;
    let gateway = gateway(settings);
    let mut shared = server::read(settings, source, &mut report);
    shared.extend(security::plugins(settings, source, &mut report));
    let guards = shared.clone();
    routes::read(gateway.as_ref(), settings, source, shared, &mut report)?;
    security::headers(settings, &mut report);
    if security::is_closed(&guards) {
        security::firewall(&guards, &mut report);
    }
    finish(settings, &mut report);
    Ok(report.import)
}

/// The settings of the gateway, in the first spelling that has routes or else in the first that is there.
fn gateway<'s>(settings: &'s Settings<'s>) -> Option<Item<'s>> {
    let found: Vec<Item<'s>> = KEYS.iter().filter_map(|key| settings.get(key)).collect();
    let with_routes = found.iter().find(|item| item.get("routes").is_some());
    with_routes.or(found.first()).cloned()
}

/// Adds the findings about what was not read.
pub(crate) fn finish(settings: &Settings<'_>, report: &mut Report) {
    report.route = None;
    for unresolved in settings.unresolved() {
        let effect = format!("the variable `{}` is not set, so the value is left out", unresolved.variable);
        let hint =
            format!("set it in the environment, or give a default: ${{{}:default}}", unresolved.variable);
        report.hint(Severity::Behaviour, unresolved.place, &unresolved.path, effect, &hint);
    }
    rest::report(settings, report);
    // One finding for all routes that a construct concerns, such as a default filter.
    let mut places = BTreeMap::new();
    let mut merged: Vec<Finding> = Vec::new();
    for finding in report.import.findings.drain(..) {
        let key = (finding.place.clone(), finding.construct.clone(), finding.effect.clone());
        let at = *places.entry(key).or_insert(merged.len());
        match merged.get_mut(at) {
            Some(one) => one.resources.extend(finding.resources),
            None => merged.push(finding),
        }
    }
    report.import.findings = merged;
    report.import.findings.sort_by(|a, b| a.place.cmp(&b.place));
}

/// Whether two spellings are one name.
pub(crate) fn is_name(one: &str, other: &str) -> bool {
    names::uniform(one) == names::uniform(other)
}

/// The words of a name, in lower case.
fn filters_words(name: &str) -> Vec<String> {
    filters::words(name)
}

/// Statuses and timeouts of a route in seconds, for each phase.
fn timeouts(connect: Option<f64>, response: Option<f64>) -> Option<serde_json::Value> {
    if connect.is_none() && response.is_none() {
        return None;
    }
    // The gateway's own default for the others.
    let or_default = |seconds: Option<f64>| seconds.filter(|seconds| *seconds > 0.0).unwrap_or(60.0);
    Some(json!({"connect": or_default(connect), "send": 60, "read": or_default(response)}))
}

#[cfg(test)]
pub(crate) mod tests;
