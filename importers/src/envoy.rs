//! Files of Envoy: a static bootstrap of the API v3, or of v2 as older files have it.
//!
//! Clusters become upstreams, routes of virtual hosts become routes, filters become plugins. Envoy takes the first
//! route that matches within the best virtual host; `order` and `vhosts` keep that.

mod access_log;
mod answer;
mod authz;
mod bootstrap;
mod chains;
mod cluster;
mod context;
mod cors;
mod draft;
mod endpoints;
mod filters;
mod format;
mod forward;
mod headers;
mod health;
mod jwks;
mod jwt;
mod jwt_keys;
mod limit;
mod listeners;
mod manager;
mod matching;
mod order;
mod paths;
mod plugins;
mod rbac;
mod require_tls;
mod retries;
mod route;
mod server_tls;
mod simple;
mod syntax;
mod tcp;
mod tracing;
mod upstream_tls;
mod value;
mod vhosts;

#[cfg(test)]
mod tests;

use model::yaml::{self, Variables};
use model::{Diagnostic, Severity};

use crate::node::Tree;
use crate::{Import, Source};

/// The longest text that is read, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Imports a file.
///
/// # Errors
/// A file that cannot be used as a whole.
pub fn import(source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    if source.text.len() > MAX_BYTES {
        let message = format!("the file has more than {MAX_BYTES} bytes");
        return Err(Box::new(Diagnostic::new(Severity::Error, source.file, message)));
    }
    let text = syntax::with_variables(source.text, source.variables);
    let shown = model::Source { file: source.file, text: &text };
    let is_json = text.trim_start().starts_with('{');
    let parsed = if is_json { model::json::parse(&text, None) } else { yaml::parse(&text, Variables::Keep) };
    let document = parsed.map_err(|error| Box::new(shown.syntax(syntax::explained(&text, error))))?;
    if !document.value.is_object() {
        let mut diagnostic =
            Diagnostic::new(Severity::Error, source.file, "a bootstrap of Envoy must be an object");
        diagnostic.expected = Some("`static_resources` with `listeners` and `clusters`".to_owned());
        return Err(Box::new(diagnostic));
    }
    let tree = Tree::new(source.file, document);
    bootstrap::read(source, &tree)
}

/// Reads a further file of YAML or JSON.
fn read_yaml(source: &Source<'_>, path: &str) -> Result<Tree, String> {
    let text = source.files.read(path).map_err(|error| format!("`{path}`: {error}"))?;
    if text.len() > MAX_BYTES {
        return Err(format!("`{path}` has more than {MAX_BYTES} bytes"));
    }
    let document = yaml::parse(&text, Variables::Keep)
        .map_err(|error| format!("`{path}`, line {}: {error}", error.position.line))?;
    Ok(Tree::new(path, document))
}
