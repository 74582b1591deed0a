//! The list of plugins, as the control plane uses it.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
pub use model::apisix_plugins::{Facts, Subsystem};
use model::{Invalid, Script};
use serde_json::Value;

use crate::build::{Names, Owner};
use crate::chain::Chain;
use crate::condition::Condition;
use crate::consumers::Credential;
use crate::endpoint::{ControlReply, ControlRequest};
use crate::protos::LookUp;
use crate::scripts::Unloaded;
use crate::upstream::Upstreams;

/// One configured plugin, before its instance is built.
#[derive(Debug, Clone, Copy)]
pub struct Configured<'a> {
    pub name: &'a str,
    pub config: &'a Value,
    /// The resource that contains it.
    pub owner: &'a Owner,
}

/// Lookups available while compiling, besides the plugin's own configuration.
pub struct Scope<'a> {
    pub names: &'a dyn Names,
    /// Builds the upstreams of plugins; absent if the configuration is only checked.
    pub upstreams: Option<&'a dyn Upstreams>,
    /// Plugin metadata by plugin name. Called only for plugins that read metadata.
    pub metadata: &'a dyn Fn(&'static str) -> Option<&'a Value>,
    /// The compiled proto resource with an id. Called only for plugins that read protos.
    pub protos: &'a LookUp<'a>,
    /// The enabled plugins; `None` enables all.
    pub enabled: Option<&'a dyn Fn(&str) -> bool>,
}

impl<'a> Scope<'a> {
    /// Returns a scope with the names of variables alone; all plugins are enabled.
    pub const fn of_names(names: &'a dyn Names) -> Scope<'a> {
        Scope { names, upstreams: None, metadata: &|_| None, protos: &|_| None, enabled: None }
    }
}

/// The kind of resource that contains a plugin's configuration; schemas differ between kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaType {
    /// Route, service, plugin config, consumer group or global rule.
    Route,
    /// Consumer or credential: auth plugins are configured with credentials there.
    Consumer,
    Metadata,
    /// Stream route.
    Stream,
}

/// A plugin that configurations may use.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub name: &'static str,
    pub subsystem: Subsystem,
    pub priority: i32,
    /// Whether it identifies consumers.
    pub auth: bool,
    /// Enabled unless a list of plugins is configured.
    pub by_default: bool,
    /// A stored script: enabled while it is stored.
    pub is_stored: bool,
    /// Enabled whether a list of plugins has it or not: a stored script, or a hosted plugin of routes that APISIX lacks.
    pub needs_no_entry: bool,
}

/// All plugins. Implemented by `plugins::Catalog`.
pub trait Catalog: Send + Sync + fmt::Debug {
    /// Checks one plugin's configuration; messages match APISIX's. Pointers in the error are
    /// relative to the configuration.
    fn check(&self, name: &str, config: &Value, place: SchemaType) -> Result<(), Invalid>;

    /// Checks a whole `plugins` object; pointers are relative to it.
    fn check_all(&self, plugins: &IndexMap<String, Value>, place: SchemaType) -> Result<(), Invalid> {
        for (name, config) in plugins {
            self.check(name, config, place).map_err(|invalid| invalid.within(name))?;
        }
        Ok(())
    }

    /// Builds the instances of these entries, at most one per plugin, sorted by priority. A plugin
    /// that is not enabled is an error, unless its `_meta` disables it.
    fn chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid>;

    /// As [`Catalog::chain`], for stream plugins. They are separate plugins, though some share a
    /// name with an HTTP plugin.
    ///
    /// # Errors
    /// As for [`Catalog::chain`].
    fn stream_chain(&self, entries: &[Configured<'_>], _scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        match entries.first() {
            Some(entry) => Err(Invalid::new(format!("unknown plugin [{}]", entry.name)).within(entry.name)),
            None => Ok(Arc::default()),
        }
    }

    /// Plugins that work without a request, once there is metadata for them.
    fn background(&self) -> &'static [&'static str] {
        &[]
    }

    /// Compiles the `filter_func` of a route.
    ///
    /// # Errors
    /// It is no function, or this build runs no such code.
    fn condition(&self, _route: &str, _code: &str) -> Result<Arc<dyn Condition>, Invalid> {
        Err(crate::scripts::none("filter_func"))
    }

    /// Compiles the `script` of a route or service into its chain.
    ///
    /// # Errors
    /// It returns no table, or this build runs no such code.
    fn script(&self, _owner: &Owner, _code: &str) -> Result<Arc<Chain>, Invalid> {
        Err(crate::scripts::none("script"))
    }

    /// Loads the stored scripts in the place of the previous ones; those that have not changed stay the same plugins.
    /// Returns the ones that do not load.
    fn load_scripts(&self, scripts: &[(&str, &Script)]) -> Vec<Unloaded> {
        Unloaded::all(scripts, &crate::scripts::none("script"), |_| false)
    }

    /// Loads a script to see whether that is possible.
    ///
    /// # Errors
    /// It does not load, or there would be too many scripts.
    fn check_script(&self, _id: &str, _script: &Script) -> Result<(), Invalid> {
        Err(crate::scripts::none("script"))
    }

    /// Returns a catalog to check configurations with, which has these scripts besides those that are loaded.
    fn with_scripts(&self, _scripts: &[(&str, &Script)]) -> Option<Arc<dyn Catalog>> {
        None
    }

    /// Whether there is a stream plugin of this name.
    fn has_stream(&self, _name: &str) -> bool {
        false
    }

    /// Reads an auth plugin's credential from its configuration on a consumer. Returns the plugin's
    /// name in this catalog with it, or `None` if `name` is not an auth plugin.
    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid>;

    /// Answers a request to the control API by the plugin that has its endpoint; see [`crate::Factory::control`].
    /// `listed` is the list of plugins that may be used, if there is one.
    fn control(&self, _request: &ControlRequest, _listed: Option<&[String]>) -> Option<ControlReply> {
        None
    }

    /// Changes whenever plugins are added or removed at run time; everything must then be compiled
    /// again.
    fn generation(&self) -> u64 {
        0
    }

    /// All plugins of both subsystems by descending priority, including those of APISIX that this
    /// build lacks.
    fn about(&self) -> Vec<About>;

    /// Facts about a plugin for the Admin API, above all its schemas. Computed on demand.
    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts>;
}
