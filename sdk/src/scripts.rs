//! Code that stands in the configuration, outside of plugins of its own. A host of scripts compiles it.

use std::any::Any;
use std::sync::Arc;

use model::{Invalid, Script};
use serde_json::Value;

use crate::build::Owner;
use crate::chain::{Instance, Stage};
use crate::condition::Condition;
use crate::instance::Factory;
use crate::phase::Phases;

/// Compiled modules that stored scripts may require.
pub type Library = Arc<dyn Any + Send + Sync>;

/// Why a script is not loaded: its error, and whether its last valid version stays in use.
#[derive(Debug, Clone)]
pub struct Unloaded {
    pub id: String,
    pub invalid: Invalid,
    pub keeps_last: bool,
}

impl Unloaded {
    /// All of these scripts, for one reason.
    pub fn all(
        scripts: &[(&str, &Script)],
        invalid: &Invalid,
        keeps_last: impl Fn(&str) -> bool,
    ) -> Vec<Unloaded> {
        let unloaded = |(id, _): &(&str, &Script)| Unloaded {
            id: (*id).to_owned(),
            invalid: invalid.clone(),
            keeps_last: keeps_last(id),
        };
        scripts.iter().map(unloaded).collect()
    }
}

/// Compiles code of the configuration; called on the control side.
pub trait Scripts: Send + Sync {
    /// Compiles the `filter_func` of a route.
    ///
    /// # Errors
    /// The code does not load, or is no function.
    fn condition(&self, route: &str, code: &str) -> Result<Arc<dyn Condition>, Invalid>;

    /// Compiles `_meta.pre_function` of a plugin: an instance that runs before the plugin's own in each of `phases`,
    /// with the plugin's configuration.
    ///
    /// # Errors
    /// The code does not load, or returns no function.
    fn pre_function(
        &self,
        plugin: &'static str,
        code: &str,
        config: Value,
        phases: Phases,
    ) -> Result<Box<dyn Instance>, Invalid>;

    /// Compiles the `script` of a route or service, which takes the place of plugins.
    ///
    /// # Errors
    /// The code does not load, or returns no table.
    fn script(&self, owner: &Owner, code: &str) -> Result<Arc<Stage>, Invalid>;

    /// Compiles modules by their names. One that does not compile is an error of the scripts that require it.
    ///
    /// # Errors
    /// No code can be compiled.
    fn library(&self, modules: &[(&str, &str)]) -> Result<Library, Invalid>;

    /// Loads a stored script; it may require the modules of the library. Returns its plugin, if it is one.
    ///
    /// # Errors
    /// It does not load, or is no plugin; with its line.
    fn stored(
        &self,
        id: &str,
        script: &Script,
        library: &Library,
    ) -> Result<Option<Box<dyn Factory>>, Invalid>;
}

/// Returns the error for code in a field of the configuration where no code runs.
pub fn none(field: &str) -> Invalid {
    Invalid::new(format!("{field} is not supported: it is Lua, which this build does not run"))
        .hint("use a build with the feature `lua`")
}
