//! The paths for plugins and schemas, and the list of plugins in use.

use bytes::Bytes;
use control::store::{Refused, Step, Store, View};
use http::{Method, Response, StatusCode};
use model::Kind;
use sdk::Catalog;
use sdk::catalog::{About, Subsystem};
use serde_json::{Map, Value, json};

use crate::Admin;
use crate::answer::{self, Answer, ErrorAnswer, said};
use crate::author::Author;
use crate::request::Call;

impl Admin {
    /// Replaces the store's list of plugins, if it has one, by that of config.yaml: at the
    /// start, the file is newer than the list that an earlier run stored.
    ///
    /// # Errors
    /// The message of the store's error.
    pub async fn sync_plugins(&self) -> Result<(), String> {
        if !self.store.writable() {
            return Ok(());
        }
        let stored = self.store.plugins().await.map_err(|error| error.to_string())?;
        let wanted = wanted(&*self.store, self.config.plugins.clone(), &stored, &self.catalog.about());
        match stored {
            Some(stored) if stored != wanted => {
                self.store.put_plugins(wanted).await.map(drop).map_err(|error| error.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Reads the list of config.yaml again and stores it; the nodes that follow the store apply it.
    pub(crate) async fn reload_plugins(&self, author: &Author) -> Answer {
        let by = author.clone();
        let complete = move |view: &dyn View, mut steps: Vec<Step>| {
            steps.push(by.step());
            by.complete(view, steps)
        };
        let begun = author.confirm.is_some().then(|| self.start.begin(&*self.program));
        let (response, revision) = reload(&*self.store, &*self.program, &*self.catalog, complete).await?;
        if let Some(begun) = begun {
            begun.made();
        }
        author.changed(&Method::PUT, "plugins/reload", revision);
        Ok(response)
    }

    pub(crate) async fn list_plugins(&self, call: &Call<'_>) -> Answer {
        let Some(subsystem) = subsystem(call) else {
            let response = answer::text(StatusCode::BAD_REQUEST, "invalid subsystem passed");
            return Err(ErrorAnswer::response(response));
        };
        let loaded = self.loaded(subsystem).await?;
        let names: Vec<Value> = loaded.iter().map(|about| about.name.into()).collect();
        Ok(answer::json(StatusCode::OK, &Value::from(names)))
    }

    /// `/plugins/{name}` and `/plugins?all=true`.
    pub(crate) async fn plugin(&self, call: &Call<'_>, name: Option<&str>) -> Answer {
        let subsystem = subsystem(call).ok_or_else(|| {
            let asked = call.query("subsystem").unwrap_or_default();
            said(format!("unsupported subsystem: {asked}"))
        })?;
        let loaded = self.loaded(subsystem).await?;
        if call.query("all") == Some("true") {
            return Ok(answer::json(StatusCode::OK, &described(&*self.catalog, &loaded)));
        }
        let about = loaded.into_iter().find(|about| Some(about.name) == name);
        let facts = about.and_then(|about| self.catalog.facts(subsystem, about.name)).ok_or_else(|| {
            let reason = format!("plugin not found in subsystem {}", subsystem.word());
            ErrorAnswer::new(StatusCode::NOT_FOUND, reason)
        })?;
        let schema = match call.query("schema_type") {
            Some("consumer") => facts.consumer_schema,
            _ => Some(facts.schema),
        };
        Ok(answer::json(StatusCode::OK, &schema.ok_or_else(|| said("not found schema"))?))
    }

    /// Returns the plugins that may be used now, by priority from high to low.
    pub(crate) async fn loaded(&self, subsystem: Subsystem) -> Result<Vec<About>, ErrorAnswer> {
        let (stored, configured) = match subsystem {
            Subsystem::Http => (self.store.plugins().await?, &self.config.plugins),
            Subsystem::Stream => (self.store.stream_plugins().await?, &self.config.stream_plugins),
        };
        let names = stored.as_ref().or(configured.as_ref());
        let of_it = self.catalog.about().into_iter().filter(|about| about.subsystem == subsystem);
        Ok(match names {
            None => of_it.filter(|about| about.by_default).collect(),
            Some(names) => {
                let is_listed = |about: &About| names.iter().any(|name| name == about.name);
                of_it.filter(|about| about.needs_no_entry || is_listed(about)).collect()
            }
        })
    }

    /// Returns the names of the HTTP plugins that may be used now.
    pub(crate) async fn loaded_names(&self) -> Result<Vec<&'static str>, ErrorAnswer> {
        Ok(self.loaded(Subsystem::Http).await?.into_iter().map(|about| about.name).collect())
    }
}

/// Does the work of [`Admin::reload_plugins`]; also returns the revision of the change.
pub(crate) async fn reload(
    store: &dyn Store,
    program: &dyn crate::Program,
    catalog: &dyn Catalog,
    complete: impl FnMut(&dyn View, Vec<Step>) -> Result<Vec<Step>, Refused> + Send + 'static,
) -> Result<(Response<Bytes>, u64), ErrorAnswer> {
    let listed = program.read_plugins().map_err(|reason| {
        ErrorAnswer::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cannot read the list of plugins: {reason}"),
        )
    })?;
    // Plugins in files are read again before the list that names them applies.
    program.reload_scripts(listed.clone()).await;
    if !store.writable() {
        // A read-only store gets no list, so the program uses that of config.yaml directly.
        program.use_plugins(listed);
        return Ok((answer::text(StatusCode::OK, "done"), store.revision().await?));
    }
    // After the files are read: plugins that are gone are not stored as ones of this program.
    let revision = store_plugins(store, listed, &catalog.about(), complete).await?;
    program.compile_again();
    Ok((answer::text(StatusCode::OK, "done"), revision))
}

/// Stores the list of plugins that config.yaml has, or the default one if it has none; the new revision.
/// `complete` adds to the steps of the write, such as who makes it.
///
/// # Errors
/// Those of the store, and of `complete`.
pub async fn store_plugins(
    store: &dyn Store,
    listed: Option<Vec<String>>,
    about: &[About],
    mut complete: impl FnMut(&dyn View, Vec<Step>) -> Result<Vec<Step>, Refused> + Send + 'static,
) -> Result<u64, Refused> {
    let stored = store.plugins().await?;
    let names = Some(wanted(store, listed, &stored, about));
    let decide = move |view: &dyn View| complete(view, vec![Step::Plugins { names: names.clone() }]);
    Ok(store.write(Box::new(decide)).await?.revision)
}

/// Returns the list for the store: that of config.yaml, otherwise the plugins of this program. The names in a
/// store that other nodes use as well are kept.
fn wanted(
    store: &dyn Store,
    listed: Option<Vec<String>>,
    stored: &Option<Vec<String>>,
    about: &[About],
) -> Vec<String> {
    listed.unwrap_or_else(|| {
        let others = stored.clone().filter(|_| store.is_shared()).unwrap_or_default();
        let own = default_names(about).into_iter().filter(|name| !others.contains(name)).collect::<Vec<_>>();
        others.into_iter().chain(own).collect()
    })
}

/// Returns the HTTP plugins that are in use by default.
fn default_names(about: &[About]) -> Vec<String> {
    let in_use = about
        .iter()
        .filter(|about| about.subsystem == Subsystem::Http && about.by_default && !about.is_stored);
    in_use.map(|about| about.name.to_owned()).collect()
}

/// Reads `?subsystem=`; `None` if it is unknown.
fn subsystem(call: &Call<'_>) -> Option<Subsystem> {
    match call.query("subsystem").unwrap_or("http") {
        "http" => Some(Subsystem::Http),
        "stream" => Some(Subsystem::Stream),
        _ => None,
    }
}

/// Describes plugins: version, priority and schemas, by name.
pub(crate) fn described<'a>(catalog: &dyn Catalog, plugins: impl IntoIterator<Item = &'a About>) -> Value {
    let described = plugins.into_iter().filter_map(|about| {
        let facts = catalog.facts(about.subsystem, about.name)?;
        let mut entry = json!({
            "version": facts.version,
            "priority": about.priority,
            "schema": facts.schema,
        });
        let optional = [
            ("metadata_schema", facts.metadata_schema),
            ("consumer_schema", facts.consumer_schema),
            ("type", facts.kind.map(Value::from)),
            ("scope", facts.scope.map(Value::from)),
        ];
        for (name, part) in optional {
            if let Some(part) = part {
                entry[name] = part;
            }
        }
        Some((about.name.to_owned(), entry))
    });
    Value::Object(described.collect::<Map<_, _>>())
}

/// The names of schemas, as APISIX has them.
pub(crate) const SCHEMAS: [(&str, Kind); 14] = [
    ("consumer", Kind::Consumer),
    ("consumer_group", Kind::ConsumerGroup),
    ("credential", Kind::Credential),
    ("global_rule", Kind::GlobalRule),
    ("graphql_cost_decoration", Kind::CostDecoration),
    ("plugin_config", Kind::PluginConfig),
    ("plugin_metadata", Kind::PluginMetadata),
    ("proto", Kind::Proto),
    ("route", Kind::Route),
    ("script", Kind::Script),
    ("service", Kind::Service),
    ("ssl", Kind::Ssl),
    ("stream_route", Kind::StreamRoute),
    ("upstream", Kind::Upstream),
];

/// `/schema/{name}`
pub(crate) fn schema(name: &str) -> Answer {
    match SCHEMAS.iter().find(|(own, _)| *own == name) {
        Some((_, kind)) => Ok(answer::json(StatusCode::OK, &model::schema::document(*kind))),
        None => Err(said(format!("not found schema: {name}"))),
    }
}
