//! Configuration files of other gateways, as resources of this one.
//!
//! [`recognise`] tells the format of a file by its content; [`import`] reads it. Pure: further files
//! are requested of [`Files`], variables of a lookup function, and the same input gives the same output.
//!
//! Nothing is lost silently: each construct of a file is either part of a resource or a listener, or
//! a [`Finding`] names it. Files of YAML and JSON are read through [`node::Node`], which remembers
//! what was read.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

mod base64;
mod envoy;
mod files;
mod finding;
mod format;
mod kong;
mod nginx;
pub mod node;
mod output;
mod server_name;
mod spring;
mod zuul;

pub use files::{FileError, Files, Variables};
pub use finding::{Finding, Place, Severity};
pub use format::{Format, Recognised, recognise};
pub use output::{Import, Imported, Listener, Protocol, Setting};

use model::Diagnostic;

/// A file to import.
pub struct Source<'a> {
    /// Its path, as the user wrote it; further files are relative to its folder.
    pub file: &'a str,
    pub text: &'a str,
    pub files: &'a dyn Files,
    pub variables: Variables<'a>,
    /// Active profiles, of Spring applications alone.
    pub profiles: &'a [String],
}

/// Imports a file.
///
/// # Errors
/// A file of which nothing can be used: it cannot be parsed, or a file that it includes is absent.
pub fn import(format: Format, source: &Source<'_>) -> Result<Import, Box<Diagnostic>> {
    let mut import = match format {
        Format::Kong => kong::import(source),
        Format::Envoy => envoy::import(source),
        Format::Nginx => nginx::import(source),
        Format::SpringCloudGateway => spring::import(source),
        Format::Zuul => zuul::import(source),
    }?;
    // Here a peer on this machine may name the client by X-Real-IP; in the originals none may unless the file says so.
    import.settings.push(Setting {
        path: "nginx_config.http.real_ip_from".to_owned(),
        value: serde_json::json!([]),
        place: Place { file: source.file.into(), position: model::Position::START },
    });
    Ok(import)
}
