//! The list of plugins, as the control plane sees it.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use model::Invalid;
pub use model::apisix_plugins::{Facts, Subsystem};
use serde_json::Value;

use crate::build::{Names, Owner};
use crate::chain::Chain;
use crate::consumers::Credential;
use crate::upstream::Upstreams;

/// One configured plugin before it becomes a stage.
#[derive(Debug, Clone, Copy)]
pub struct Configured<'a> {
    pub name: &'a str,
    pub config: &'a Value,
    /// The resource it stands in.
    pub owner: &'a Owner,
}

/// What compiling may look up besides the plugin's own configuration.
pub struct Scope<'a> {
    pub names: &'a dyn Names,
    /// Makes the upstreams that plugins ask for; without it nothing is served, only checked.
    pub upstreams: Option<&'a dyn Upstreams>,
    /// Plugin metadata by plugin name. Asked for the plugins that need it, and for no others.
    pub metadata: &'a dyn Fn(&'static str) -> Option<&'a Value>,
    /// The plugins that may be used now; `None` means all.
    pub enabled: Option<&'a dyn Fn(&str) -> bool>,
}

/// Where a plugin's configuration stands: schemas differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Route, service, plugin config, consumer group or global rule.
    Route,
    /// Consumer or credential: auth plugins carry credentials there.
    Consumer,
    Metadata,
    /// Stream route.
    Stream,
}

/// A plugin that configurations may name.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub name: &'static str,
    pub subsystem: Subsystem,
    pub priority: i32,
    /// It identifies consumers.
    pub auth: bool,
    /// Loaded where no list of plugins says otherwise.
    pub by_default: bool,
}

/// All plugins. Implemented by `plugins::Catalog`.
pub trait Catalog: Send + Sync + fmt::Debug {
    /// Checks one plugin's configuration in APISIX's words. The pointer in the
    /// error is relative to the configuration.
    fn check(&self, name: &str, config: &Value, place: Place) -> Result<(), Invalid>;

    /// Checks a whole `plugins` object; pointers are relative to it.
    fn check_all(&self, plugins: &IndexMap<String, Value>, place: Place) -> Result<(), Invalid> {
        for (name, config) in plugins {
            self.check(name, config, place).map_err(|invalid| invalid.within(name))?;
        }
        Ok(())
    }

    /// Makes the stages of these entries, at most one a plugin, sorted by priority.
    /// A plugin that is not enabled is an error, unless its `_meta` disables it.
    fn chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid>;

    /// [`Catalog::chain`] of plugins of streams, which are others, though some have the same names.
    ///
    /// # Errors
    /// As there.
    fn stream_chain(&self, entries: &[Configured<'_>], _scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        match entries.first() {
            Some(entry) => Err(Invalid::new(format!("unknown plugin [{}]", entry.name)).within(entry.name)),
            None => Ok(Arc::default()),
        }
    }

    /// Whether streams have a plugin of this name.
    fn has_stream(&self, _name: &str) -> bool {
        false
    }

    /// For an auth plugin's configuration on a consumer: the plugin's own name, and what it reads
    /// from that. `None` if `name` is no auth plugin.
    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid>;

    /// Moves whenever plugins come or go while running: everything is then to be compiled again.
    fn generation(&self) -> u64 {
        0
    }

    /// All plugins of both subsystems, those of APISIX that this build lacks included, by priority
    /// from high to low.
    fn about(&self) -> Vec<About>;

    /// What the Admin API tells about a plugin, schemas first of all. They are made on demand.
    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts>;
}
