//! Fills in the defaults of a resource, from its schema and its plugins' schemas, as APISIX's control API shows
//! them. Stored resources have no defaults filled in.

use std::collections::HashMap;

use model::Kind;
use model::schema::{self, Schema};
use sdk::Catalog;
use sdk::catalog::Subsystem;
use serde_json::Value;

/// The schemas of plugins, cached for one answer.
pub(crate) struct Defaults<'c> {
    catalog: &'c dyn Catalog,
    plugins: HashMap<String, Option<Schema>>,
}

impl<'c> Defaults<'c> {
    pub fn new(catalog: &'c dyn Catalog) -> Defaults<'c> {
        Defaults { catalog, plugins: HashMap::new() }
    }

    /// Fills in the missing fields of a resource; values that do not match their schema stay unchanged.
    pub fn fill(&mut self, kind: Kind, resource: &mut Value) {
        schema::of_kind(kind).fill_defaults(resource);
        let plugins = resource.get_mut("plugins").and_then(Value::as_object_mut);
        for (name, config) in plugins.into_iter().flatten() {
            if !self.plugins.contains_key(name) {
                let facts = self.catalog.facts(Subsystem::Http, name);
                let known = facts.and_then(|facts| Schema::new(&facts.schema).ok());
                self.plugins.insert(name.clone(), known);
            }
            if let Some(Some(schema)) = self.plugins.get(name) {
                schema.fill_defaults(config);
            }
        }
    }
}
