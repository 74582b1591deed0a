//! Plugins in other languages, where this build runs them: scripts in Lua and modules in WebAssembly.

use std::path::Path;
use std::sync::Arc;

use model::boot::Boot;
use sdk::build::Services;

/// Reads the plugins in files again that a list names.
pub type ReloadScripts = Arc<dyn Fn(&[String]) + Send + Sync>;

/// Adds the plugins, and returns the reading of those of them that are in files. Without a data folder, nothing is
/// loaded that only a gateway that serves needs.
pub fn register(
    boot: &Boot,
    catalog: &Arc<plugins::Catalog>,
    services: &Services,
    data: Option<&Path>,
) -> Option<ReloadScripts> {
    add_modules(boot, catalog, services, data);
    add_scripts(boot, catalog, services)
}

#[cfg(feature = "wasm")]
use crate::wasm::register as add_modules;

#[cfg(not(feature = "wasm"))]
fn add_modules(boot: &Boot, _: &plugins::Catalog, _: &Services, _: Option<&Path>) {
    if !boot.wasm.plugins.is_empty() {
        tracing::warn!(
            "wasm.plugins has no effect and its plugins are unknown: this build (of `cargo x run` or `cargo x sluice`) \
             runs no WebAssembly; use one with the feature `wasm`, such as `cargo x run --release`"
        );
    }
}

#[cfg(feature = "lua")]
fn add_scripts(boot: &Boot, catalog: &Arc<plugins::Catalog>, services: &Services) -> Option<ReloadScripts> {
    let scripts = crate::scripts::register(boot, catalog, services.extensions.get())?;
    Some(Arc::new(move |names| scripts.load(names)))
}

#[cfg(not(feature = "lua"))]
fn add_scripts(_: &Boot, _: &Arc<plugins::Catalog>, _: &Services) -> Option<ReloadScripts> {
    None
}
