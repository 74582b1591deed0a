//! Plugin metadata: what one plugin needs once, wherever it runs.

use serde_json::{Map, Value};

use crate::Key;

/// The metadata of a plugin. Its fields are the plugin's own business.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginMetadata {
    /// The plugin; also the id.
    pub plugin: String,
    /// The value without its `id`.
    pub value: Map<String, Value>,
}

impl PluginMetadata {
    /// Takes a value that has passed its schema.
    pub(crate) fn read(key: &Key, value: Value) -> PluginMetadata {
        let mut map = match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        // Not `remove`: that would move the last field into its place.
        map.shift_remove("id");
        PluginMetadata { plugin: key.id.clone(), value: map }
    }
}
