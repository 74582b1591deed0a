//! Declarative files of Kong 1.1, 2.x and 3.x, and of its tool decK.

mod certificates;
mod conditions;
mod consumers;
mod document;
mod entities;
mod expression;
mod names;
mod order;
mod paths;
mod plugins;
mod rewrite;
mod routes;
mod services;
mod streams;
mod targets;
#[cfg(test)]
mod tests;

use model::{Diagnostic, Key, Kind};
use serde_json::Value;

use crate::Source;
use crate::finding::{Finding, Place, Severity};
use crate::node::{Node, Tree};
use crate::output::{Import, Imported, Listener, Protocol};
use entities::Kong;
use names::Names;

/// Imports a file.
///
/// # Errors
/// A file that cannot be parsed, or that has an unknown `_format_version`.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    let documents = document::read(source)?;
    let mut out = Output::default();
    for (node_pointer, tree, name) in &documents.unset {
        let tree: &Tree = &documents.trees[*tree];
        out.findings.push(Finding {
            place: tree.place(node_pointer),
            severity: Severity::Behaviour,
            construct: format!("${{{name}}}"),
            effect: "the variable is not set, so the text stands as it is".to_owned(),
            hint: Some(format!("set the environment variable `{name}`")),
            resources: Vec::new(),
        });
    }
    let kong = entities::read(source, &documents.trees, &mut out)?;
    if let Some(message) = excess(&kong) {
        let mut diagnostic = Diagnostic::new(model::Severity::Error, source.file, message);
        diagnostic.hint = Some("import its parts one by one".to_owned());
        return Err(Box::new(diagnostic));
    }
    convert(&kong, &mut out);
    for tree in &documents.trees {
        tree.unread().iter().for_each(|node| unread(node, &mut out));
    }
    out.findings.sort_by_key(|finding| finding.place.position);
    let listeners = listeners(source, &kong, &documents.trees);
    let settings = plugins::log_folders(&kong);
    Ok(Import { resources: out.resources, listeners, settings, findings: out.findings })
}

/// The most routes, and services, of a file.
const MAX_ROUTES: usize = 100_000;

/// The most pairs of a host and a path of all routes together, and of a route and a plugin that it shares
/// with others.
const MAX_PAIRS: usize = 4_000_000;

/// The limit that a file exceeds, as a message.
fn excess(kong: &Kong<'_>) -> Option<String> {
    if kong.routes.len() > MAX_ROUTES || kong.services.len() > MAX_ROUTES {
        return Some(format!("the file has more than {MAX_ROUTES} routes or services"));
    }
    let places = kong.routes.iter().map(|route| route.hosts.len().max(1) * route.paths.len().max(1));
    if places.sum::<usize>() > MAX_PAIRS {
        return Some(format!("the routes have more than {MAX_PAIRS} pairs of a host and a path"));
    }
    let plugins = plugins::Scopes::of(kong).shared(kong);
    (plugins > MAX_PAIRS).then(|| {
        format!("plugins of services and of the whole file apply more than {MAX_PAIRS} times to the routes")
    })
}

fn convert(kong: &Kong<'_>, out: &mut Output) {
    certificates::convert(kong, out);
    let layout = routes::lay_out(kong, out);
    let services = services::convert(kong, &layout, out);
    let plugins = plugins::assign(kong, &layout, out);
    routes::convert(kong, &layout, &plugins, &services, out);
    services.write(kong, &plugins, out);
    streams::convert(kong, &services, out);
    consumers::convert(kong, &plugins, out);
    plugins.write(out);
}

/// Reports a part of the file that no resource holds.
fn unread(node: &Node<'_>, out: &mut Output) {
    let name = node.pointer().rsplit('/').next().unwrap_or("");
    let cosmetic = name.starts_with("_comment") || name == "_ignore" || node.value().is_null();
    let severity = if cosmetic { Severity::Cosmetic } else { Severity::Behaviour };
    out.report(severity, node, "not carried over: unknown or unsupported key");
}

/// Kong's default ports, and those of stream routes.
fn listeners(source: &Source<'_>, kong: &Kong<'_>, trees: &[Tree]) -> Vec<Listener> {
    let place = match trees.first() {
        Some(tree) => tree.root().place(),
        None => Place { file: source.file.into(), position: model::document::Position::START },
    };
    let of = |port, protocol, tls| Listener {
        address: None,
        port,
        protocol,
        tls,
        http2: tls,
        proxy_protocol: false,
        place: place.clone(),
    };
    let mut listeners = vec![of(8000, Protocol::Http, false), of(8443, Protocol::Http, true)];
    for (port, protocol, tls, place) in streams::ports(kong) {
        listeners.push(Listener { http2: false, place, ..of(port, protocol, tls) });
    }
    listeners
}

/// The result of an import in the making.
#[derive(Default)]
pub(in crate::kong) struct Output {
    resources: Vec<Imported>,
    findings: Vec<Finding>,
    names: Names,
}

impl Output {
    fn add(&mut self, kind: Kind, id: impl Into<String>, value: Value, place: Place) -> Key {
        let key = Key::new(kind, id);
        self.resources.push(Imported { key: key.clone(), value, place });
        key
    }

    fn report(&mut self, severity: Severity, node: &Node<'_>, effect: impl Into<String>) {
        self.findings.push(finding(severity, node, effect));
    }

    fn behaviour(&mut self, node: &Node<'_>, effect: impl Into<String>) {
        self.report(Severity::Behaviour, node, effect);
    }

    fn cosmetic(&mut self, node: &Node<'_>, effect: impl Into<String>) {
        self.report(Severity::Cosmetic, node, effect);
    }
}

/// A finding about a part of the file.
fn finding(severity: Severity, node: &Node<'_>, effect: impl Into<String>) -> Finding {
    Finding {
        place: node.place(),
        severity,
        construct: node.path(),
        effect: effect.into(),
        hint: None,
        resources: Vec::new(),
    }
}
