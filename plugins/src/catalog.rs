//! The list of plugins as the control plane asks it: checks, chains, credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use indexmap::IndexMap;
use model::apisix_plugins::{self, Facts, Known, Subsystem, is_apisix};
use model::{Invalid, Kind, Schema};
use sdk::build::{Build, Names, Others, Owner, Services};
use sdk::catalog::{About, Entry, Place, Scope};
use sdk::chain::{Chain, Fitting, Stage};
use sdk::consumers::Credential;
use sdk::endpoint::Served;
use sdk::instance::Factory;
use serde_json::{Value, json};

use crate::ROWS;
use crate::absent::Absent;
use crate::meta::{self, Parts};

/// All plugins: those that are linked in, and hosted ones, which come and go while the program runs.
/// Implements [`sdk::Catalog`].
pub struct Catalog {
    services: Services,
    /// `plugin_attr` of config.yaml by plugin.
    attrs: IndexMap<String, Value>,
    linked: Vec<Arc<Compiled>>,
    by_name: HashMap<&'static str, usize>,
    /// Those of streams, by priority.
    streams: Vec<Arc<Compiled>>,
    /// By name.
    hosted: ArcSwap<BTreeMap<&'static str, Arc<Compiled>>>,
    /// Moves whenever a hosted plugin comes or goes.
    generation: AtomicU64,
    absent: Absent,
}

/// A plugin with its schemas. Each is compiled when it is first needed, and kept: most plugins are in
/// nobody's configuration, and all schemas together are megabytes.
struct Compiled {
    row: Row,
    schema: OnceLock<Schema>,
    consumer_schema: OnceLock<Option<Schema>>,
    metadata_schema: OnceLock<Schema>,
}

enum Row {
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
    fn linked(row: &'static dyn Factory) -> Arc<Compiled> {
        Arc::new(Compiled {
            row: Row::Linked(row),
            schema: OnceLock::new(),
            consumer_schema: OnceLock::new(),
            metadata_schema: OnceLock::new(),
        })
    }

    /// A plugin from outside, whose schemas may be wrong.
    fn hosted(row: Box<dyn Factory>) -> Result<Arc<Compiled>, Invalid> {
        let consumer_schema = row.consumer_schema().map(|schema| Schema::new(&schema)).transpose()?;
        Ok(Arc::new(Compiled {
            schema: Schema::new(&with_meta(row.schema()))?.into(),
            consumer_schema: consumer_schema.into(),
            metadata_schema: Schema::new(&metadata_schema(&*row))?.into(),
            row: Row::Hosted(row),
        }))
    }

    fn schema(&self) -> &Schema {
        self.schema.get_or_init(|| built_in(&with_meta(self.row.schema())))
    }

    fn consumer_schema(&self) -> Option<&Schema> {
        self.consumer_schema.get_or_init(|| self.row.consumer_schema().as_ref().map(built_in)).as_ref()
    }

    fn metadata_schema(&self) -> &Schema {
        self.metadata_schema.get_or_init(|| built_in(&metadata_schema(&*self.row)))
    }

    fn about(&self) -> About {
        let row = &self.row;
        About {
            name: row.name(),
            subsystem: Subsystem::Http,
            priority: row.priority(),
            auth: row.is_auth(),
            by_default: true,
        }
    }

    fn facts(&self) -> Facts {
        let row = &self.row;
        let known = apisix_plugins::find(Subsystem::Http, row.name()).map(Known::facts);
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

impl Catalog {
    pub fn new(services: Services, attrs: IndexMap<String, Value>) -> Catalog {
        let linked = ROWS.iter().map(|row| Compiled::linked(*row)).collect();
        let by_name = ROWS.iter().enumerate().map(|(index, row)| (row.name(), index)).collect();
        let streams = crate::stream::ROWS.iter().map(|row| Compiled::linked(*row)).collect();
        let (hosted, generation) = (ArcSwap::default(), AtomicU64::new(0));
        let absent = Absent::default();
        Catalog { services, attrs, linked, by_name, streams, hosted, generation, absent }
    }

    /// Refuses plugins of APISIX that this build lacks also where their absence would change no answer
    /// (`sluice.strict_plugins`).
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Catalog {
        self.absent.strict = strict;
        self
    }

    /// Adds a hosted plugin, in the place of one of the same name. What names it is compiled again
    /// with the next compile. It needs no entry in the list of plugins: to register it is to enable it.
    ///
    /// # Errors
    /// A name that a linked plugin has, or a schema that does not compile.
    pub fn register(&self, plugin: Box<dyn Factory>) -> Result<(), Invalid> {
        let name = plugin.name();
        if self.by_name.contains_key(name) {
            return Err(Invalid::new(format!("there is a plugin of the name {name} already"))
                .got(name)
                .hint("take another name"));
        }
        let plugin = Compiled::hosted(plugin)?;
        self.change_hosted(|hosted| _ = hosted.insert(name, plugin.clone()));
        Ok(())
    }

    /// Takes out a hosted plugin. Exchanges in flight keep their instances of it; resources that name
    /// it are compiled again, and keep their last good form.
    pub fn remove(&self, name: &str) {
        self.change_hosted(|hosted| _ = hosted.remove(name));
    }

    fn change_hosted(&self, change: impl Fn(&mut BTreeMap<&'static str, Arc<Compiled>>)) {
        self.hosted.rcu(|hosted| {
            let mut hosted = BTreeMap::clone(hosted);
            change(&mut hosted);
            hosted
        });
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn find(&self, name: &str) -> Result<Arc<Compiled>, Invalid> {
        match self.by_name.get(name) {
            Some(&index) => Ok(self.linked[index].clone()),
            None => self.hosted.load().get(name).cloned().ok_or_else(|| unknown(name)),
        }
    }

    fn find_stream(&self, name: &str) -> Result<&Arc<Compiled>, Invalid> {
        let found = self.streams.iter().find(|plugin| plugin.row.name() == name);
        found.ok_or_else(|| crate::stream::unknown(name))
    }

    /// Whether a plugin may be used; a hosted one always may.
    fn is_listed(&self, name: &str, scope: &Scope<'_>) -> bool {
        scope.enabled.is_none_or(|enabled| enabled(name)) || self.hosted.load().contains_key(name)
    }

    /// Makes the stage of a route's configuration, or none if `_meta` disables it.
    fn stage(
        &self,
        plugin: &Compiled,
        config: &Value,
        owner: &Owner,
        scope: &Scope<'_>,
        depth: usize,
    ) -> Result<Option<Arc<Stage>>, Invalid> {
        let written = config;
        let mut config = plugin.schema().parse(or_empty(written))?;
        let Parts { disable, priority, meta } = Parts::take(&mut config)?;
        if disable {
            return Ok(None);
        }
        let row = &plugin.row;
        if row.phases().is_empty() && meta.as_ref().is_some_and(|meta| meta.filter.is_some()) {
            return Err(Invalid::new(
                "this plugin is asked before any filter is: it holds for every request",
            )
            .at("/_meta/filter")
            .hint("make two routes, told apart by vars"));
        }
        let others = Within { catalog: self, scope, depth };
        let mut cx = Build::new(owner, &self.services, scope.names).with_others(&others);
        if let Some(upstreams) = scope.upstreams {
            cx = cx.with_upstreams(upstreams);
        }
        cx = cx.with_identity(row.name(), written);
        cx.metadata = (scope.metadata)(row.name());
        cx.attr = self.attrs.get(row.name());
        let priority = priority.unwrap_or(row.priority());
        row.build(config, &mut cx, Fitting { name: row.name(), priority, meta }).map(Some)
    }
}

impl sdk::Catalog for Catalog {
    fn check(&self, name: &str, config: &Value, place: Place) -> Result<(), Invalid> {
        if place == Place::Metadata {
            return match (self.find(name), self.find_stream(name), Absent::find(name)) {
                (Err(_), Ok(stream), _) => stream.metadata_schema().check(&or_empty(config)),
                (Err(_), Err(_), Some(known)) => self.absent.check(known, config, place),
                (plugin, ..) => plugin?.metadata_schema().check(&or_empty(config)),
            };
        }
        let empty_list = config.as_array().is_some_and(Vec::is_empty);
        if !config.is_object() && !config.is_null() && !empty_list {
            // The value is not repeated: it may be a secret, and this reaches logs.
            return Err(
                Invalid::new(format!("invalid plugin conf for plugin [{name}]")).expected("an object")
            );
        }
        if place == Place::Stream {
            let plugin = self.find_stream(name)?;
            return match self.stage(plugin, config, &UNOWNED, &CHECK, 0) {
                Err(invalid) if !meta::disabled(config) => Err(crate::stream::blame(name, invalid)),
                _ => Ok(()),
            };
        }
        let plugin = match (self.find(name), Absent::find(name)) {
            (Err(_), Some(known)) => return self.absent.check(known, config, place),
            (Err(_), None) if meta::disabled(config) && is_apisix(name) => return Ok(()),
            (found, _) => found?,
        };
        if place == Place::Consumer && plugin.row.phases().is_empty() {
            return Err(blame(name, before_consumers()));
        }
        let checked = match plugin.consumer_schema() {
            Some(schema) if place == Place::Consumer => schema.parse(or_empty(config)).and_then(|config| {
                // A reference is followed when the consumer is compiled.
                if refers(&config) { Ok(()) } else { plugin.row.credential(&config).map(drop) }
            }),
            _ => self.stage(&plugin, config, &UNOWNED, &CHECK, 0).map(drop),
        };
        match checked {
            // A plugin that is switched off never runs, so its settings may be wrong.
            Err(_) if meta::disabled(config) => Ok(()),
            checked => checked.map_err(|invalid| blame(name, invalid)),
        }
    }

    fn chain(&self, entries: &[Entry<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::with_capacity(entries.len());
        let mut disabled = Vec::new();
        for entry in entries {
            if !meta::disabled(entry.config) && !self.is_listed(entry.name, scope) {
                return Err(not_listed(entry.name).within(entry.name));
            }
            let plugin = match (self.find(entry.name), Absent::find(entry.name)) {
                (Err(_), Some(known)) => {
                    let checked = self.absent.check(known, entry.config, place_of(entry.owner));
                    checked.map_err(|invalid| invalid.within(entry.name))?;
                    continue;
                }
                (Err(_), None) if meta::disabled(entry.config) && is_apisix(entry.name) => continue,
                (found, _) => found.map_err(|invalid| invalid.within(entry.name))?,
            };
            // What an auth plugin carries on a consumer is a credential, no stage.
            if plugin.row.is_auth() && matches!(entry.owner.collection, "consumers" | "credentials") {
                continue;
            }
            if meta::disabled(entry.config) {
                disabled.push(plugin.row.name());
                continue;
            }
            if plugin.row.phases().is_empty()
                && matches!(entry.owner.collection, "consumers" | "credentials" | "consumer_groups")
            {
                return Err(blame(entry.name, before_consumers()).within(entry.name));
            }
            match self.stage(&plugin, entry.config, entry.owner, scope, 0) {
                Ok(stage) => stages.extend(stage),
                Err(invalid) => return Err(blame(entry.name, invalid).within(entry.name)),
            }
        }
        // Equal priorities run in the order of the list, whatever the order written.
        stages.sort_by_key(|stage| (self.by_name.get(stage.name()).unwrap_or(&usize::MAX), stage.name()));
        Ok(Arc::new(Chain::new(stages, disabled)))
    }

    fn stream_chain(&self, entries: &[Entry<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::with_capacity(entries.len());
        for Entry { name, config, owner } in entries {
            if meta::disabled(config) {
                continue;
            }
            let plugin = self.find_stream(name).map_err(|invalid| invalid.within(name))?;
            if scope.enabled.is_some_and(|enabled| !enabled(name)) {
                return Err(Invalid::new(format!(
                    "unknown plugin [{name}]: the list of stream plugins does not have it"
                ))
                .got(*name)
                .hint(format!("add `{name}` to `stream_plugins` in config.yaml"))
                .within(name));
            }
            match self.stage(plugin, config, owner, scope, 0) {
                Ok(stage) => stages.extend(stage),
                Err(invalid) => return Err(crate::stream::blame(name, invalid).within(name)),
            }
        }
        Ok(Arc::new(Chain::new(stages, Vec::new())))
    }

    fn has_stream(&self, name: &str) -> bool {
        self.find_stream(name).is_ok()
    }

    fn credential(&self, name: &str, config: &Value) -> Result<Option<(&'static str, Credential)>, Invalid> {
        let Ok(plugin) = self.find(name) else { return Ok(None) };
        let Some(schema) = plugin.consumer_schema().filter(|_| plugin.row.is_auth()) else {
            return Ok(None);
        };
        let config = schema.parse(or_empty(config)).map_err(|invalid| blame(name, invalid))?;
        let credential = plugin.row.credential(&config).map_err(|invalid| blame(name, invalid))?;
        Ok(credential.map(|credential| (plugin.row.name(), credential)))
    }

    fn about(&self) -> Vec<About> {
        let hosted = self.hosted.load();
        let mut all: Vec<About> =
            self.linked.iter().chain(hosted.values()).map(|plugin| plugin.about()).collect();
        for subsystem in [Subsystem::Http, Subsystem::Stream] {
            let known = subsystem.plugins().iter().map(|known| About {
                name: known.name,
                subsystem,
                priority: known.priority,
                auth: known.is_auth(),
                by_default: known.by_default,
            });
            let here = |name| subsystem == Subsystem::Http && self.find(name).is_ok();
            all.extend(known.filter(|about| !here(about.name)));
        }
        all.sort_by_key(|about| std::cmp::Reverse(about.priority));
        all
    }

    fn facts(&self, subsystem: Subsystem, name: &str) -> Option<Facts> {
        match self.find(name) {
            Ok(plugin) if subsystem == Subsystem::Http => Some(plugin.facts()),
            _ => {
                let mut facts = apisix_plugins::find(subsystem, name)?.facts();
                facts.schema = with_meta(facts.schema);
                Some(facts)
            }
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosted = self.hosted.load();
        let all = self.linked.iter().chain(hosted.values());
        f.debug_list().entries(all.map(|plugin| plugin.row.name())).finish()
    }
}

/// Plugins may stand in plugins, but not without end.
const MOST_NESTED: usize = 3;

/// The other plugins, as one sees them that is built with this scope.
struct Within<'a, 's> {
    catalog: &'a Catalog,
    scope: &'a Scope<'s>,
    /// How many plugins stand around what is built here.
    depth: usize,
}

impl Others for Within<'_, '_> {
    fn plugin(&self, name: &str, config: &Value, owner: &Owner) -> Result<Arc<Chain>, Invalid> {
        let Within { catalog, scope, depth } = *self;
        let plugin = catalog.find(name)?;
        if depth == MOST_NESTED {
            return Err(Invalid::new("plugins stand in plugins too deep")
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
            return Err(Invalid::new("it is asked before any other plugin is")
                .got(name)
                .expected("a plugin of its own in the same resource"));
        }
        let stage = catalog.stage(&plugin, config, owner, scope, depth + 1)?;
        Ok(stage.map(|stage| Arc::new(Chain::of(stage))).unwrap_or_default())
    }

    fn endpoints(&self, owner: &Owner) -> Vec<Served> {
        let Within { catalog, scope, depth } = *self;
        let mut served = Vec::new();
        for plugin in &catalog.linked {
            let name = plugin.row.name();
            let endpoint = plugin.row.endpoint(catalog.attrs.get(name));
            let Some(endpoint) = endpoint.filter(|_| catalog.is_listed(name, scope)) else { continue };
            // Its settings are those of its metadata; a route gives it none.
            if let Ok(Some(stage)) = catalog.stage(plugin, &json!({}), owner, scope, depth + 1) {
                served.push(Served { endpoint, chain: Arc::new(Chain::of(stage)) });
            }
        }
        served
    }

    fn is_auth(&self, name: &str) -> Option<bool> {
        self.catalog.find(name).ok().map(|plugin| plugin.row.is_auth())
    }
}

/// A plugin without phases has done its work before a consumer is known.
fn before_consumers() -> Invalid {
    Invalid::new("it cannot be used here: it acts before the consumer is known")
        .expected("a route, service, plugin config or global rule")
}

/// Stands for the owner while a configuration is only checked.
static UNOWNED: Owner = Owner { collection: "", id: String::new() };

/// Nothing is looked up while a configuration is only checked.
const CHECK: Scope<'static> = Scope { names: &NoNames, upstreams: None, metadata: &|_| None, enabled: None };

/// No name is looked up while a configuration is only checked.
struct NoNames;

impl Names for NoNames {
    fn addresses(&self, _host: &str) -> Vec<IpAddr> {
        Vec::new()
    }
}

/// Whether a field stands for a text that is kept elsewhere.
fn refers(config: &Value) -> bool {
    let is_reference = |text: &str| {
        let start = |start: &str| text.get(..start.len()).is_some_and(|own| own.eq_ignore_ascii_case(start));
        start("$env://") || start("$secret://")
    };
    config.as_object().is_some_and(|fields| fields.values().any(|v| v.as_str().is_some_and(is_reference)))
}

/// `key-auth:` with nothing after it is `key-auth: {}`.
pub(crate) fn or_empty(config: &Value) -> Value {
    if config.is_null() { json!({}) } else { config.clone() }
}

/// What metadata must look like; any object for plugins that have none.
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

/// Where the configuration of this owner stands.
fn place_of(owner: &Owner) -> Place {
    match owner.collection {
        "consumers" | "credentials" => Place::Consumer,
        _ => Place::Route,
    }
}

pub(crate) fn blame(name: &str, invalid: Invalid) -> Invalid {
    invalid.said(&format!("failed to check the configuration of plugin {name} err: "))
}

/// Without its plugin a resource would do something else than it says.
pub fn not_listed(name: &str) -> Invalid {
    let unseen = || Absent::find(name).is_some_and(|known| known.unseen_in(Kind::Route).is_some());
    if !ROWS.iter().any(|row| row.name() == name) && !unseen() {
        return unknown(name);
    }
    Invalid::new(format!("unknown plugin [{name}]: the list of plugins does not have it"))
        .got(name)
        .hint(format!("add `{name}` to `plugins` in config.yaml (or apisix.yaml, if that has the list)"))
}

pub(crate) fn unknown(name: &str) -> Invalid {
    if is_apisix(name) {
        return Invalid::new(format!(
            "unknown plugin [{name}]: a plugin of APISIX that this version does not have"
        ))
        .got(name)
        .hint("remove it, or keep it aside with `_meta.disable` until it is there");
    }
    let invalid = Invalid::new(format!("unknown plugin [{name}]")).got(name);
    match model::invalid::nearest(name, ROWS.iter().map(|row| row.name())) {
        Some(near) => invalid.hint(format!("did you mean `{near}`?")),
        None => invalid,
    }
}

#[cfg(test)]
mod tests {
    use sdk::testing::{FixedNames, Probe};
    use sdk::{Catalog as _, Phase, Phases, Step};

    use super::*;

    fn catalog() -> Catalog {
        Catalog::new(Services::for_tests(), IndexMap::new())
    }

    fn chain(catalog: &Catalog, entries: &[(&str, Value)]) -> Result<Arc<Chain>, Invalid> {
        let owner = Owner { collection: "routes", id: "1".into() };
        let entries: Vec<_> =
            entries.iter().map(|(name, config)| Entry { name, config, owner: &owner }).collect();
        let names = FixedNames::default();
        catalog.chain(&entries, &Scope { names: &names, upstreams: None, metadata: &|_| None, enabled: None })
    }

    #[test]
    fn checks_speak_as_apisix_does() {
        let catalog = catalog();
        let check = |name: &str, config: Value, place| catalog.check(name, &config, place);
        let reason = |name, config, place| check(name, config, place).unwrap_err().reason;
        assert_eq!(check("key-auth", json!({}), Place::Route), Ok(()));
        assert_eq!(check("key-auth", json!(null), Place::Route), Ok(()));
        assert_eq!(check("key-auth", json!([]), Place::Route), Ok(()));
        assert_eq!(
            reason("key-auth", json!({"header": 1}), Place::Route),
            "failed to check the configuration of plugin key-auth err: \
             property \"header\" validation failed: wrong type: expected string, got number"
        );
        assert_eq!(
            reason("key-auth", json!({}), Place::Consumer),
            "failed to check the configuration of plugin key-auth err: property \"key\" is required"
        );
        assert_eq!(reason("key-auth", json!("x"), Place::Route), "invalid plugin conf for plugin [key-auth]");
        let invalid = check("key-auht", json!({}), Place::Route).unwrap_err();
        assert_eq!(invalid.reason, "unknown plugin [key-auht]");
        assert_eq!(invalid.hint.as_deref(), Some("did you mean `key-auth`?"));
        assert!(
            reason("ldap-auth", json!({"base_dn": "o", "ldap_uri": "h"}), Place::Route)
                .starts_with("unknown plugin [ldap-auth]: a plugin of")
        );
        let all = IndexMap::from([("key-auth".to_owned(), json!({"header": 1}))]);
        assert_eq!(catalog.check_all(&all, Place::Route).unwrap_err().pointer, "/key-auth/header");
    }

    #[test]
    fn what_is_switched_off_may_be_wrong() {
        let catalog = catalog();
        let off = json!({"header": 1, "_meta": {"disable": true}});
        assert_eq!(catalog.check("key-auth", &off, Place::Route), Ok(()));
        assert_eq!(catalog.check("ldap-auth", &off, Place::Route), Ok(()));
        assert!(catalog.check("no-such", &off, Place::Route).is_err());
        let chain = chain(&catalog, &[("key-auth", off.clone()), ("ldap-auth", off)]).unwrap();
        assert_eq!(chain.names(), [""; 0]);
        assert_eq!(chain.phases(), Phases::NONE);
    }

    #[test]
    fn meta_is_checked() {
        let catalog = catalog();
        for (meta, reason) in [
            (json!({"priorty": 1}), "additional properties forbidden, found priorty"),
            (
                json!({"disable": "yes"}),
                "property \"disable\" validation failed: wrong type: expected boolean, got string",
            ),
        ] {
            let invalid = catalog.check("key-auth", &json!({"_meta": meta}), Place::Route).unwrap_err();
            assert!(
                invalid.reason.ends_with(&format!("property \"_meta\" validation failed: {reason}")),
                "{invalid}"
            );
        }
        let lua = json!({"_meta": {"pre_function": "return function() end"}});
        assert_eq!(catalog.check("key-auth", &lua, Place::Route).unwrap_err().pointer, "/_meta/pre_function");
    }

    #[test]
    fn an_error_response_takes_the_place_of_a_refusals_body() {
        let catalog = catalog();
        for (response, body, content_type) in [
            (json!("no"), "no", "text/plain; charset=utf-8"),
            (json!({"message": "no"}), "{\"message\":\"no\"}\n", "application/json"),
        ] {
            let chain =
                chain(&catalog, &[("key-auth", json!({"_meta": {"error_response": response}}))]).unwrap();
            let mut probe = Probe::default();
            let Step::Reply(reply) = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange()) else {
                panic!("no reply")
            };
            assert_eq!((reply.status, &reply.body[..]), (401, body.as_bytes()));
            let types: Vec<_> = reply.headers.iter().filter(|(name, _)| *name == "Content-Type").collect();
            assert_eq!(types, [&("Content-Type", content_type.as_bytes().to_vec())]);
            assert!(reply.headers.iter().any(|(name, _)| *name == "WWW-Authenticate"));
        }
    }

    #[test]
    fn a_filter_decides_once_a_request() {
        let catalog = catalog();
        let filter = json!({"_meta": {"filter": [["arg_a", "==", "1"]]}});
        let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
        for (target, runs) in [("/?a=1", true), ("/?a=2", false)] {
            let mut probe = Probe::get(target);
            let mut x = probe.exchange();
            let step = chain.run(Phase::Rewrite, &mut 0, &mut x);
            assert_eq!(matches!(step, Step::Reply(_)), runs, "{target}");
            // What the request looks like later does not matter any more.
            x.messages.request.query_span = x.intern(if runs { b"a=2" } else { b"a=1" });
            assert_eq!(matches!(chain.run(Phase::Rewrite, &mut 0, &mut x), Step::Reply(_)), runs);
        }
        let wrong = json!({"_meta": {"filter": [["arg_a", "near", "1"]]}});
        let invalid = catalog.check("key-auth", &wrong, Place::Route).unwrap_err();
        assert!(invalid.reason.contains("failed to validate the 'vars' expression: "), "{invalid}");
        assert!(invalid.pointer.starts_with("/_meta/filter"), "{invalid:?}");
    }

    #[test]
    fn a_filter_that_cannot_be_judged_refuses_the_request() {
        use sdk::Unjudged;
        let catalog = catalog();
        let filter = json!({"_meta": {"filter": [["post_arg.a", "==", "1"], ["arg_x", "==", "1"]]}});
        let guard = chain(&catalog, &[("key-auth", filter)]).unwrap();
        let run = |target: &str, body: Option<&[u8]>| {
            let mut probe = Probe::request("POST", target, &[("Content-Type", "application/json")]);
            let mut x = probe.exchange();
            match body {
                Some(body) => sdk::testing::with_body(&mut x, body),
                None => x.body_state = sdk::exchange::Body::TooLarge,
            }
            x.body_asked = 64 << 20;
            guard.run(Phase::Rewrite, &mut 0, &mut x)
        };
        assert!(matches!(run("/?x=1", Some(b"{")), Step::Refuse(Unjudged::Unreadable)));
        assert!(matches!(run("/?x=1", None), Step::Refuse(Unjudged::TooLarge)));
        assert!(matches!(run("/?x=2", Some(b"{")), Step::Next), "it does not matter");
        assert!(matches!(run("/?x=1", Some(b"")), Step::Next), "no body, no value");
        assert!(matches!(run("/?x=1", Some(br#"{"a":"1"}"#)), Step::Reply(_)));
    }

    #[test]
    fn a_filter_of_a_response_stage_is_readable_before_the_response() {
        let catalog = catalog();
        let meta = json!({"filter": [["post_arg.a", "==", "1"], ["status", "==", "200"]]});
        let rewrite = json!({"headers": {"X-A": "1"}, "_meta": meta});
        let chain = chain(&catalog, &[("response-rewrite", rewrite)]).unwrap();
        assert!(chain.phases().has(Phase::Access));
        for (body, expected) in [(&br#"{"a":"1"}"#[..], Some(&b"1"[..])), (br#"{"a":"2"}"#, None)] {
            let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
            let mut x = probe.exchange();
            x.body_state = sdk::exchange::Body::Streaming;
            assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Body(_)));
            sdk::testing::with_body(&mut x, body);
            assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Next));
            sdk::testing::respond(&mut x, 200, &[]);
            assert!(matches!(chain.header_filter(&mut 0, &mut x), Step::Next));
            assert_eq!(x.response_header("X-A"), expected);
        }
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/json")]);
        let mut x = probe.exchange();
        sdk::testing::with_body(&mut x, b"{");
        assert!(matches!(chain.run(Phase::Access, &mut 0, &mut x), Step::Refuse(_)));
    }

    #[test]
    fn a_filter_on_the_body_asks_for_the_body() {
        let catalog = catalog();
        let filter = json!({"_meta": {"filter": [["post_arg_a", "==", "1"]]}});
        let chain = chain(&catalog, &[("key-auth", filter)]).unwrap();
        let mut probe = Probe::request("POST", "/", &[("Content-Type", "application/x-www-form-urlencoded")]);
        let mut x = probe.exchange();
        x.body_state = sdk::exchange::Body::Streaming;
        let mut cursor = 0;
        assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Body(_)));
        sdk::testing::with_body(&mut x, b"a=1");
        assert!(matches!(chain.run(Phase::Rewrite, &mut cursor, &mut x), Step::Reply(_)));
    }

    #[test]
    fn nothing_is_made_without_a_plugin_it_names() {
        let catalog = catalog();
        let owner = Owner { collection: "routes", id: "1".into() };
        let names = FixedNames::default();
        let scope = Scope {
            names: &names,
            upstreams: None,
            metadata: &|_| None,
            enabled: Some(&|name| name != "key-auth"),
        };
        let chain = |name, config: &Value| {
            let chain = catalog.chain(&[Entry { name, config, owner: &owner }], &scope);
            chain.map(|chain| chain.names().len())
        };
        let invalid = chain("key-auth", &Value::Null).unwrap_err();
        assert_eq!(invalid.reason, "unknown plugin [key-auth]: the list of plugins does not have it");
        assert_eq!(invalid.pointer, "/key-auth");
        assert_eq!(chain("key-auth", &json!({"_meta": {"disable": true}})), Ok(0));
        assert_eq!(chain("request-id", &json!({})), Ok(1));
    }

    #[test]
    fn every_schema_compiles() {
        for plugin in &catalog().linked {
            assert!(plugin.schema().check(&json!(1)).is_err(), "{}", plugin.row.name());
            assert!(plugin.metadata_schema().check(&json!(1)).is_err(), "{}", plugin.row.name());
            assert_eq!(plugin.consumer_schema().is_some(), plugin.row.consumer_schema().is_some());
        }
    }

    #[test]
    fn plugins_ask_other_plugins_and_get_their_answer() {
        let catalog = catalog();
        let owner = Owner { collection: "routes", id: "1".into() };
        let (names, services) = (FixedNames::default(), Services::for_tests());
        let scope = Scope {
            names: &names,
            upstreams: None,
            metadata: &|_| None,
            enabled: Some(&|name| name != "cors"),
        };
        let others = Within { catalog: &catalog, scope: &scope, depth: 0 };
        let cx = Build::new(&owner, &services, &names).with_others(&others);
        let chain = cx.plugin("key-auth", &json!({}), "0").unwrap();
        let mut probe = Probe::default();
        let step = chain.run(Phase::Rewrite, &mut 0, &mut probe.exchange());
        assert!(matches!(step, Step::Reply(reply) if reply.status == 401));
        assert_eq!(
            (cx.is_auth("key-auth"), cx.is_auth("cors"), cx.is_auth("x")),
            (Some(true), Some(false), None)
        );

        let off = json!({"_meta": {"disable": true}});
        assert_eq!(cx.plugin("key-auth", &off, "0").unwrap().phases(), Phases::NONE);
        let wrong = cx.plugin("key-auth", &json!({"header": 1}), "0").unwrap_err();
        assert_eq!(wrong.pointer, "/header");
        assert!(cx.plugin("cors", &json!({}), "0").is_err(), "it is not in the list");
        assert!(cx.plugin("no-such", &json!({}), "0").is_err());
        let deep = Within { depth: MOST_NESTED, ..others };
        let cx = Build::new(&owner, &services, &names).with_others(&deep);
        assert_eq!(
            cx.plugin("key-auth", &json!({}), "0").unwrap_err().reason,
            "plugins stand in plugins too deep"
        );
    }

    #[test]
    fn credentials_are_keyed_and_other_plugins_have_none() {
        let catalog = catalog();
        let config = json!({"key": "auth-one"});
        let (plugin, credential) = catalog.credential("key-auth", &config).unwrap().unwrap();
        assert_eq!((plugin, &credential.key[..]), ("key-auth", &b"auth-one"[..]));
        assert!(catalog.credential("limit-count", &json!({})).unwrap().is_none());
        assert!(catalog.credential("key-auth", &json!({})).is_err());
        assert!(
            catalog.facts(Subsystem::Http, "key-auth").is_some_and(|facts| facts.consumer_schema.is_some())
        );
    }
}
