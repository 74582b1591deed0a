//! Whether a value may be stored.

use control::references;
use http::StatusCode;
use model::{Invalid, Key, Kind, Resource};
use sdk::Catalog;
use sdk::catalog::Place;
use serde_json::Value;

use crate::Admin;
use crate::answer::{Refusal, said};

impl Admin {
    /// Checks a value alone, then against the resources there are.
    pub(crate) async fn check(&self, key: &Key, value: &Value) -> Result<(), Refusal> {
        check_alone(&*self.catalog, key, value)?;
        let store = &*self.store;
        references::check_exist(store, key.kind, value).await?;
        match key.kind {
            Kind::GlobalRule => references::check_global_rule(store, &key.id, value).await?,
            Kind::Consumer => references::check_credentials(store, key, value).await?,
            Kind::Credential => {
                self.check_credential(key, value)?;
                let consumer = Key::new(Kind::Consumer, key.owner().unwrap_or_default());
                if store.get(&consumer).await?.is_none() {
                    return Err(Refusal::new(StatusCode::NOT_FOUND, "consumer not found"));
                }
                references::check_credentials(store, key, value).await?;
            }
            _ => {}
        }
        Ok(())
    }

    fn check_credential(&self, _key: &Key, value: &Value) -> Result<(), Refusal> {
        let plugins = value.get("plugins").and_then(Value::as_object);
        for name in plugins.into_iter().flat_map(|plugins| plugins.keys()) {
            if !self.about.iter().any(|about| about.auth && about.name == name) {
                return Err(said("only supports auth type plugins in consumer credential"));
            }
        }
        Ok(())
    }
}

/// Checks a value as far as that is possible without other resources: its fields, its
/// plugins, and that this program can do what it asks for.
pub(crate) fn check_alone(catalog: &dyn Catalog, key: &Key, value: &Value) -> Result<(), Invalid> {
    if let Some(reason) = unsupported(key.kind, value) {
        return Err(Invalid::new(reason));
    }
    if key.kind == Kind::PluginMetadata {
        return check_metadata(catalog, key, value);
    }
    let resource = Resource::parse(key.kind, &key.id, value)?;
    let Some(plugins) = resource.plugins() else { return Ok(()) };
    match key.kind {
        Kind::Consumer | Kind::Credential => catalog
            .check_all(plugins, Place::Consumer)
            .map_err(|invalid| invalid.under("/plugins").said("invalid plugins configuration: ")),
        _ => catalog.check_all(plugins, Place::Route).map_err(|invalid| invalid.under("/plugins")),
    }
}

fn check_metadata(catalog: &dyn Catalog, key: &Key, value: &Value) -> Result<(), Invalid> {
    Resource::parse(key.kind, &key.id, value)?;
    let mut config = value.clone();
    if let Some(map) = config.as_object_mut() {
        // Ours, not the plugin's.
        map.shift_remove("id");
    }
    catalog.check(&key.id, &config, Place::Metadata).map_err(|invalid| {
        match invalid.reason.starts_with("unknown plugin") {
            true => Invalid { reason: "invalid plugin name".to_owned(), ..invalid },
            false => invalid.said("invalid configuration: "),
        }
    })
}

/// What APISIX can do and this program cannot yet: told at once instead of stored in silence.
fn unsupported(kind: Kind, value: &Value) -> Option<String> {
    match kind {
        Kind::Ssl | Kind::Secret | Kind::Proto => {
            Some(format!("{} are not supported yet", kind.collection()))
        }
        Kind::StreamRoute => Some("stream mode is disabled, can not add stream routes".to_owned()),
        Kind::Route | Kind::Service => ["filter_func", "script", "script_id"]
            .into_iter()
            .find(|name| value.get(name).is_some())
            .map(|name| format!("`{name}` is not supported yet: there is no Lua here")),
        _ => None,
    }
}
