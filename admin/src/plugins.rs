//! What the API tells about plugins and schemas, and the list of plugins in use.

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use model::Kind;
use sdk::catalog::About;
use serde_json::{Map, Value, json};

use crate::Admin;
use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;
use crate::request::Call;

impl Admin {
    /// Makes the store's list of plugins that of config.yaml, if the store has one: at the
    /// start, the file is newer than what an earlier run stored.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub async fn sync_plugins(&self) -> Result<(), String> {
        if !self.store.writable() {
            return Ok(());
        }
        let stored = self.store.plugins().await.map_err(|error| error.to_string())?;
        let wanted = self.config.plugins.clone().unwrap_or_else(|| self.all_names());
        match stored {
            Some(stored) if stored != wanted => {
                self.store.put_plugins(wanted).await.map(drop).map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Reads the list of config.yaml again and stores it; what follows the store applies it.
    pub(crate) async fn reload_plugins(&self, author: &Author) -> Answer {
        let (response, revision) = reload(&*self.store, &*self.program, &self.about).await?;
        author.changed(&Method::PUT, "plugins/reload", revision);
        Ok(response)
    }

    pub(crate) async fn list_plugins(&self, call: &Call<'_>) -> Answer {
        match call.query("subsystem").unwrap_or("http") {
            "http" => {
                let names: Vec<Value> = self.loaded().await?.iter().map(|about| about.name.into()).collect();
                Ok(answer::json(StatusCode::OK, &Value::from(names)))
            }
            "stream" => Ok(answer::json(StatusCode::OK, &json!([]))),
            _ => {
                Err(ErrorAnswer::response(answer::text(StatusCode::BAD_REQUEST, "invalid subsystem passed")))
            }
        }
    }

    /// `/plugins/{name}` and `/plugins?all=true`.
    pub(crate) async fn plugin(&self, call: &Call<'_>, name: Option<&str>) -> Answer {
        let subsystem = call.query("subsystem").unwrap_or("http");
        if !matches!(subsystem, "http" | "stream") {
            return Err(said(format!("unsupported subsystem: {subsystem}")));
        }
        let loaded = if subsystem == "http" { self.loaded().await? } else { Vec::new() };
        if call.query("all") == Some("true") {
            return Ok(answer::json(StatusCode::OK, &described(&loaded)));
        }
        let about = loaded.into_iter().find(|about| Some(about.name) == name).ok_or_else(|| {
            ErrorAnswer::new(StatusCode::NOT_FOUND, format!("plugin not found in subsystem {subsystem}"))
        })?;
        let schema = match call.query("schema_type") {
            Some("consumer") => about.consumer_schema.as_ref(),
            _ => Some(&about.schema),
        };
        Ok(answer::json(StatusCode::OK, schema.ok_or_else(|| said("not found schema"))?))
    }

    /// The plugins that may be used now, by priority from high to low.
    pub(crate) async fn loaded(&self) -> Result<Vec<&About>, ErrorAnswer> {
        let stored = self.store.plugins().await?;
        let names = stored.as_ref().or(self.config.plugins.as_ref());
        let mut loaded: Vec<&About> = match names {
            None => self.about.iter().collect(),
            Some(names) => {
                self.about.iter().filter(|about| names.iter().any(|name| name == about.name)).collect()
            }
        };
        loaded.sort_by_key(|about| std::cmp::Reverse(about.priority));
        Ok(loaded)
    }

    fn all_names(&self) -> Vec<String> {
        self.about.iter().map(|about| about.name.to_owned()).collect()
    }
}

/// See [`Admin::reload_plugins`]; and the revision of the change.
pub(crate) async fn reload(
    store: &dyn control::store::Store,
    program: &dyn crate::Program,
    about: &[About],
) -> Result<(Response<Bytes>, u64), ErrorAnswer> {
    let listed = program.read_plugins().map_err(|reason| {
        ErrorAnswer::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cannot read the list of plugins: {reason}"),
        )
    })?;
    if !store.writable() {
        // The store has no list of its own, so that of config.yaml is what is used.
        program.use_plugins(listed);
        return Ok((answer::text(StatusCode::OK, "done"), store.revision().await?));
    }
    let names = listed.unwrap_or_else(|| about.iter().map(|about| about.name.to_owned()).collect());
    let revision = store.put_plugins(names).await?;
    Ok((answer::text(StatusCode::OK, "done"), revision))
}

/// All that is known of plugins, by name.
pub(crate) fn described(plugins: &[&About]) -> Value {
    let described = plugins.iter().map(|about| {
        let mut entry = json!({
            "version": number_or_text(about.version),
            "priority": about.priority,
            "schema": about.schema,
        });
        let optional = [
            ("metadata_schema", about.metadata_schema.clone()),
            ("consumer_schema", about.consumer_schema.clone()),
            ("type", about.auth.then(|| "auth".into())),
        ];
        for (name, part) in optional {
            if let Some(part) = part {
                entry[name] = part;
            }
        }
        (about.name.to_owned(), entry)
    });
    Value::Object(described.collect::<Map<_, _>>())
}

/// APISIX writes versions as numbers.
fn number_or_text(version: &str) -> Value {
    version.parse::<f64>().map_or_else(|_| version.into(), Value::from)
}

/// The names of schemas, as APISIX has them.
pub(crate) const SCHEMAS: [(&str, Kind); 12] = [
    ("consumer", Kind::Consumer),
    ("consumer_group", Kind::ConsumerGroup),
    ("credential", Kind::Credential),
    ("global_rule", Kind::GlobalRule),
    ("plugin_config", Kind::PluginConfig),
    ("plugin_metadata", Kind::PluginMetadata),
    ("proto", Kind::Proto),
    ("route", Kind::Route),
    ("service", Kind::Service),
    ("ssl", Kind::Ssl),
    ("stream_route", Kind::StreamRoute),
    ("upstream", Kind::Upstream),
];

/// `/schema/{name}`
pub(crate) fn schema(name: &str) -> Answer {
    match SCHEMAS.iter().find(|(own, _)| *own == name) {
        Some((_, kind)) => Ok(answer::json(StatusCode::OK, model::schema::document(*kind))),
        None => Err(said(format!("not found schema: {name}"))),
    }
}
