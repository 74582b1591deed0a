//! Plugins as other plugins see them: those that they run, and those whose endpoints they serve.

use std::sync::Arc;

use model::Invalid;
use sdk::build::{Owner, PluginBuilder};
use sdk::catalog::Scope;
use sdk::chain::Chain;
use sdk::endpoint::Served;
use serde_json::{Value, json};

use super::{Catalog, not_listed};
use crate::meta;

/// Plugins may stand in plugins, but not without end.
pub(super) const MOST_NESTED: usize = 3;

/// The other plugins, as one sees them that is built with this scope.
pub(super) struct Within<'a, 's> {
    pub(super) catalog: &'a Catalog,
    pub(super) scope: &'a Scope<'s>,
    /// How many plugins stand around what is built here.
    pub(super) depth: usize,
}

impl PluginBuilder for Within<'_, '_> {
    fn plugin(&self, name: &str, config: &Value, owner: &Owner) -> Result<Arc<Chain>, Invalid> {
        let Within { catalog, scope, depth } = *self;
        let plugin = catalog.find(name)?;
        if depth == MOST_NESTED {
            return Err(Invalid::new("plugins are nested too deeply")
                .expected(format!("at most {MOST_NESTED} levels"))
                .got(name));
        }
        if meta::disabled(config) {
            return Ok(Arc::default());
        }
        if !catalog.is_listed(name, scope) {
            return Err(not_listed(name));
        }
        if plugin.row.phases().is_empty() {
            return Err(Invalid::new("it has to run before any other plugin")
                .got(name)
                .expected("a plugin of its own in the same resource"));
        }
        let stage = catalog.stage(&plugin, config, owner, scope, depth + 1)?;
        Ok(stage.map(|stage| Arc::new(Chain::of(stage))).unwrap_or_default())
    }

    fn endpoints(&self, owner: &Owner) -> Vec<Served> {
        let Within { catalog, scope, depth } = *self;
        let mut served = Vec::new();
        let hosted = catalog.hosted.all();
        for plugin in catalog.linked.iter().chain(hosted.values()) {
            let name = plugin.row.name();
            let endpoints = plugin.row.endpoints(catalog.attrs.get(name));
            if endpoints.is_empty() || !catalog.is_listed(name, scope) {
                continue;
            }
            // Its settings are those of its metadata; a route gives it none.
            let stage = match plugin.row.server() {
                Some(stage) => Some(stage),
                None => catalog.stage(plugin, &json!({}), owner, scope, depth + 1).ok().flatten(),
            };
            let Some(chain) = stage.map(|stage| Arc::new(Chain::of(stage))) else { continue };
            let endpoints = endpoints.into_iter().enumerate();
            served.extend(endpoints.map(|(at, endpoint)| Served { endpoint, at, chain: chain.clone() }));
        }
        served
    }

    fn is_auth(&self, name: &str) -> Option<bool> {
        self.catalog.find(name).ok().map(|plugin| plugin.row.is_auth())
    }
}
