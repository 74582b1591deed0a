//! Code that stands in the configuration, outside of plugins of its own. A host of scripts compiles it.

use std::sync::Arc;

use model::Invalid;
use serde_json::Value;

use crate::build::Owner;
use crate::chain::{Instance, Stage};
use crate::condition::Condition;
use crate::phase::Phases;

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
}

/// Returns the error for code in a field of the configuration where no code runs.
pub fn none(field: &str) -> Invalid {
    Invalid::new(format!("{field} is not supported: it is Lua, which this build does not run"))
        .hint("use a build with the feature `lua`")
}
