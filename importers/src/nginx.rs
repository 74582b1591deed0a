//! Files of nginx.
//!
//! Each server and location becomes routes whose conditions and priorities keep nginx's choice; the
//! rewrite module is evaluated while importing (see `nginx/cases.rs`). Directives that no part looked
//! at become findings (`nginx/leftovers.rs`).

mod access;
mod answers;
mod cases;
mod certificates;
mod condition;
mod directive;
mod draft;
mod http;
mod leftovers;
mod lexer;
mod locations;
mod maps;
mod parser;
mod proxying;
mod report;
mod responses;
mod scope;
mod servers;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod upstreams;
mod values;

use std::collections::HashMap;

use model::{Diagnostic, Severity as Level};

use crate::{Import, Imported, Place, Protocol, Setting, Source};
use directive::Block;
use http::Http;
use parser::Parser;
use report::Report;
use scope::Scope;
use servers::{Index, Server};

/// Imports a file: a whole configuration, or the part of one that stands in `http`.
///
/// # Errors
/// A file that cannot be parsed, or that includes a file that does not exist.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    let mut parser = Parser::new(source);
    let top = parser.parse()?;
    let mut report = Report::default();
    parser.findings.drain(..).for_each(|finding| report.push(finding));
    let named = |name: &str| top.directives.iter().find(|directive| directive.name == name);
    let https = named("http").map(|http| http.mark_used());
    let streams = named("stream").map(|stream| stream.mark_used());
    let snippet = ["server", "upstream", "map", "location"].iter().any(|name| named(name).is_some());
    if https.is_none() && streams.is_none() && !snippet {
        let mut diagnostic =
            Diagnostic::new(Level::Error, source.file, "the file has no `http`, `stream` or `server` block");
        diagnostic.hint = Some("give nginx.conf, or a file of conf.d".to_owned());
        return Err(Box::new(diagnostic));
    }
    let mut import = Import::default();
    let mut routes_of = HashMap::new();
    let mut listens = Vec::new();
    // A file of conf.d is as if it stood in `http`.
    let http = https.and_then(|http| http.block.as_ref()).or(snippet.then_some(&top));
    if let Some(block) = http {
        let read = http_block(source, block, https.is_none(), report, &mut listens);
        import.resources = read.resources;
        import.settings = read.settings;
        report = read.report;
        routes_of = read.routes_of;
    }
    if let Some(block) = streams.and_then(|stream| stream.block.as_ref()) {
        let found = stream::read(block, &mut report);
        import.resources.extend(found.resources);
        listens.extend(found.listens);
    }
    import.listeners = servers::listeners(listens.iter().map(|(listen, protocol)| (listen, *protocol)));
    leftovers::report(&top, &routes_of, &mut report);
    import.findings = report.finish();
    Ok(import)
}

/// The result of an `http` block.
struct HttpBlock {
    resources: Vec<Imported>,
    settings: Vec<Setting>,
    report: Report,
    routes_of: HashMap<usize, Vec<model::Key>>,
}

fn http_block(
    source: &Source<'_>,
    block: &Block,
    is_snippet: bool,
    mut report: Report,
    listens: &mut Vec<(servers::Listen, Protocol)>,
) -> HttpBlock {
    let scope = Scope::new(block);
    let servers: Vec<Server<'_>> = block
        .directives
        .iter()
        .filter(|directive| directive.name == "server")
        .filter_map(|directive| Server::read(directive, &scope, &mut report))
        .collect();
    let index = Index::new(&servers);
    let selections = servers::select(&servers, &index, &mut report);
    // Without the directive nginx drops such headers.
    let mut underscores = servers.iter().map(|server| server.scope.flag("underscores_in_headers"));
    let first = servers.first().map_or_else(
        || Place { file: source.file.into(), position: model::Position { line: 1, column: 1 } },
        |server| server.directive.place.clone(),
    );
    let mut settings = match underscores.any(|flag| flag == Some(true)) {
        true => Vec::new(),
        false => vec![Setting {
            path: "nginx_config.http.underscores_in_headers".to_owned(),
            value: "off".into(),
            place: first.clone(),
        }],
    };
    let certificates = certificates::read(&servers, &index, source, &mut report);
    let any = certificates
        .iter()
        .find(|one| one.value["snis"].as_array().is_some_and(|snis| snis.iter().any(|sni| sni == "*")));
    settings.extend(any.map(|one| Setting {
        path: "apisix.ssl.fallback_sni".to_owned(),
        value: "localhost".into(),
        place: one.place.clone(),
    }));
    let mut http = Http::new(source, block, report);
    http.is_snippet = is_snippet;
    for (server, selections) in servers.iter().zip(&selections) {
        http.server(server, selections);
        listens.extend(server.listens.iter().map(|listen| (listen.clone(), Protocol::Http)));
    }
    settings.extend(http.roots_setting());
    let (mut resources, report, routes_of) = http.into_resources();
    // Where no directive names them, the upstream gets those of the client.
    if resources.iter().any(|resource| draft::passes_forwarded(&resource.value)) {
        settings.push(Setting {
            path: "apisix.trusted_addresses".to_owned(),
            value: serde_json::json!(["0.0.0.0/0", "::/0"]),
            place: first,
        });
    }
    resources.extend(certificates);
    HttpBlock { resources, settings, report, routes_of }
}
