//! A plugin with its schemas.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use model::apisix_plugins::{self, ApisixPlugin, Facts, Subsystem};
use model::{Invalid, Schema};
use sdk::catalog::About;
use sdk::chain::Stage;
use sdk::instance::Factory;
use serde_json::{Value, json};

use super::shared::Shared;
use crate::meta;

/// A plugin with its schemas. Each is compiled when it is first needed, and kept: a configuration
/// uses few of the plugins, and all schemas together are megabytes.
pub(super) struct Compiled {
    pub row: Row,
    schema: OnceLock<Schema>,
    consumer_schema: OnceLock<Option<Schema>>,
    metadata_schema: OnceLock<Schema>,
    /// The instances in use, by their settings as they were written: the order of fields is a part of that.
    pub shared: Shared<String, Stage>,
}

pub(super) enum Row {
    Linked(&'static dyn Factory),
    Hosted(Box<dyn Factory>),
}

impl Deref for Row {
    type Target = dyn Factory;
    fn deref(&self) -> &(dyn Factory + 'static) {
        match self {
            Row::Linked(row) => *row,
            Row::Hosted(row) => &**row,
        }
    }
}

impl Compiled {
    pub fn linked(row: &'static dyn Factory) -> Arc<Compiled> {
        Arc::new(Compiled {
            row: Row::Linked(row),
            schema: OnceLock::new(),
            consumer_schema: OnceLock::new(),
            metadata_schema: OnceLock::new(),
            shared: Shared::default(),
        })
    }

    /// A plugin from outside, whose schemas may be wrong.
    pub fn hosted(row: Box<dyn Factory>) -> Result<Arc<Compiled>, Invalid> {
        let consumer_schema = row.consumer_schema().map(|schema| Schema::new(&schema)).transpose()?;
        Ok(Arc::new(Compiled {
            schema: Schema::new(&with_meta(row.schema()))?.into(),
            consumer_schema: consumer_schema.into(),
            metadata_schema: Schema::new(&metadata_schema(&*row))?.into(),
            row: Row::Hosted(row),
            shared: Shared::default(),
        }))
    }

    pub fn schema(&self) -> &Schema {
        self.schema.get_or_init(|| built_in(&with_meta(self.row.schema())))
    }

    pub fn consumer_schema(&self) -> Option<&Schema> {
        self.consumer_schema.get_or_init(|| self.row.consumer_schema().as_ref().map(built_in)).as_ref()
    }

    pub fn metadata_schema(&self) -> &Schema {
        self.metadata_schema.get_or_init(|| built_in(&metadata_schema(&*self.row)))
    }

    pub fn about(&self, subsystem: Subsystem) -> About {
        let row = &self.row;
        About {
            name: row.name(),
            subsystem,
            priority: row.priority(),
            auth: row.is_auth(),
            by_default: true,
            is_stored: false,
            needs_no_entry: false,
        }
    }

    pub fn facts(&self) -> Facts {
        let row = &self.row;
        let known = apisix_plugins::find(Subsystem::Http, row.name()).map(ApisixPlugin::facts);
        let (kind, scope) = known.map(|facts| (facts.kind, facts.scope)).unwrap_or_default();
        Facts {
            version: row.version().parse::<f64>().map_or_else(|_| row.version().into(), Value::from),
            kind: kind.or_else(|| row.is_auth().then(|| "auth".to_owned())),
            scope,
            schema: with_meta(row.schema()),
            consumer_schema: row.consumer_schema(),
            metadata_schema: row.metadata_schema(),
        }
    }
}

/// Returns the schema of a plugin's metadata; any object for plugins that have none.
fn metadata_schema(row: &dyn Factory) -> Value {
    row.metadata_schema().unwrap_or_else(|| json!({"type": "object"}))
}

fn built_in(document: &Value) -> Schema {
    // The documents are constants of this crate and a test compiles each of them.
    Schema::new(document).expect("the built-in schemas compile")
}

/// A plugin's schema with `_meta` let in.
pub(crate) fn with_meta(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$comment".into(), "this is a mark for our injected plugin schema".into());
        let properties = schema.entry("properties").or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert("_meta".into(), meta::schema());
        }
    }
    schema
}
