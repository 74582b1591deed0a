//! Stored scripts: plugins, and modules that these require.

use std::sync::Arc;

use mlua::{Function, Value};
use model::script::Role;
use model::{Invalid, Script};
use sdk::Factory;
use sdk::catalog::Subsystem;
use sdk::instance::intern;
use sdk::scripts::Library;

use super::code::Code;
use super::custom::{self, Sources};
use super::host::Host;
use super::plugin_id::PluginId;
use super::{control, text};

/// Compiles modules that stored scripts may require.
///
/// # Errors
/// The control machine cannot be made.
pub(super) fn library(host: &Arc<Host>, modules: &[(&str, &str)]) -> Result<Library, Invalid> {
    let mut sources = Sources::default();
    for (name, text) in modules {
        sources.add((*name).to_owned(), file(name), (*text).to_owned());
    }
    custom::library(host, sources)
}

/// Loads a stored script; returns its plugin, if it is one.
///
/// # Errors
/// It does not load, or is no plugin; with its line.
pub(super) fn load(
    host: &Arc<Host>,
    id: &str,
    script: &Script,
    library: &Library,
) -> Result<Option<Box<dyn Factory>>, Invalid> {
    let refused = |message: String| refused(id, &script.content, &message);
    let (name, source) = (format!("@{}", file(id)), script.content.clone());
    let code = control::run(host, move |machine| {
        Code::compile(&machine.lua, &name, &source).map_err(|error| text::message(&error))
    })?;
    let code = code.map_err(refused)?;
    let subsystem = match script.role {
        Role::Plugin => Subsystem::Http,
        Role::StreamPlugin => Subsystem::Stream,
        Role::Module => {
            let (module, library) = (id.to_owned(), custom::library_of(id.to_owned(), code, library));
            let loaded = control::run(host, move |machine| {
                let made = library.environment(machine).and_then(|globals| {
                    let require: Function = globals.get("require")?;
                    machine.run(|| require.call::<Value>(module))
                });
                made.map(drop).map_err(|error| text::message(&error))
            })?;
            return loaded.map(|()| None).map_err(refused);
        }
    };
    let library = Arc::new(custom::library_of(custom::module_name(subsystem, id), code, library));
    let id = PluginId { subsystem, name: intern(id)? };
    custom::loaded(host, library, id)?.map(Some).map_err(refused)
}

/// The name of a script in messages.
fn file(id: &str) -> String {
    format!("scripts/{id}.lua")
}

/// The error of a script; if it is about a line of it, with the line.
fn refused(id: &str, source: &str, message: &str) -> Invalid {
    let invalid = Invalid::new(format!("cannot load the script: {message}")).at("/content");
    let own = message.find(&format!("{}:", file(id))).map(|at| &message[at..]);
    match own.and_then(|own| text::excerpt(own, source)) {
        Some((line, text)) => invalid.hint(format!("line {line}: {text}")),
        None => invalid,
    }
}
