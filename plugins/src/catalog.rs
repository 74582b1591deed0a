//! The list of plugins as the control plane asks it: checks, chains, credentials.

mod compiled;
mod hosted;
mod nested;
mod shared;
mod stored;

use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use indexmap::IndexMap;
use model::apisix_plugins::{self, Facts, Subsystem, is_apisix};
use model::{Invalid, Script};
use sdk::build::{Build, Names, Owner, Services};
use sdk::catalog::{About, Configured, SchemaType, Scope};
use sdk::chain::{Chain, Fitting, Stage};
use sdk::condition::Condition;
use sdk::consumers::Credential;
use sdk::endpoint::{ControlReply, ControlRequest};
use sdk::scripts::{self, Scripts, Unloaded};
use serde_json::{Value, json};

use crate::ROWS;
use crate::absent::Absent;
use crate::meta::{self, Parts};
use crate::preceded::Preceded;
use compiled::Compiled;
pub(crate) use compiled::with_meta;
use hosted::Hosted;
use nested::Within;
use shared::Shared;

/// All plugins: those that are linked in, and hosted ones ([`hosted`]), which come and go while the program
/// runs.
/// Implements [`sdk::Catalog`].
pub struct Catalog {
    services: Services,
    /// `plugin_attr` of config.yaml by plugin.
    attrs: IndexMap<String, Value>,
    linked: Vec<Arc<Compiled>>,
    by_name: HashMap<&'static str, usize>,
    /// Those of streams, by priority.
    streams: Vec<Arc<Compiled>>,
    hosted: Hosted,
    /// Compiles code of the configuration.
    scripts: OnceLock<Arc<dyn Scripts>>,
    absent: Absent,
    /// The chains in use that shared instances make, by the addresses of these: a chain in use keeps them.
    chains: Shared<Vec<usize>, Chain>,
}

/// Longer settings are not shared, in bytes: they are rarely repeated, and comparing them takes memory.
const LONGEST_SHARED: usize = 1024;

impl Catalog {
    pub fn new(services: Services, attrs: IndexMap<String, Value>) -> Catalog {
        let linked = ROWS.iter().map(|row| Compiled::linked(*row)).collect();
        let by_name = ROWS.iter().enumerate().map(|(index, row)| (row.name(), index)).collect();
        let streams = crate::stream::ROWS.iter().map(|row| Compiled::linked(*row)).collect();
        let hosted = Hosted::default();
        let (absent, chains) = Default::default();
        Catalog {
            services,
            attrs,
            linked,
            by_name,
            streams,
            hosted,
            scripts: OnceLock::new(),
            absent,
            chains,
        }
    }

    /// Refuses plugins of APISIX that this build lacks also where their absence would change no answer
    /// (`sluice.strict_plugins`).
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Catalog {
        self.absent.strict = strict;
        self
    }

    /// A copy, whose hosted plugins change on their own.
    fn copy(&self) -> Catalog {
        let mut absent = Absent::default();
        absent.strict = self.absent.strict;
        Catalog {
            services: self.services.clone(),
            attrs: self.attrs.clone(),
            linked: self.linked.clone(),
            by_name: self.by_name.clone(),
            streams: self.streams.clone(),
            hosted: self.hosted.copy(),
            scripts: self.scripts.clone(),
            absent,
            chains: Shared::default(),
        }
    }

    fn find(&self, name: &str) -> Result<Arc<Compiled>, Invalid> {
        match self.by_name.get(name) {
            Some(&index) => Ok(self.linked[index].clone()),
            None => self.hosted.find(name).ok_or_else(|| unknown(name)),
        }
    }

    fn find_stream(&self, name: &str) -> Result<Arc<Compiled>, Invalid> {
        let found = self.streams.iter().find(|plugin| plugin.row.name() == name).cloned();
        found.or_else(|| self.hosted.find_stream(name)).ok_or_else(|| crate::stream::unknown(name))
    }

    /// Whether a plugin may be used; a stored one, and a hosted one that APISIX lacks, always may.
    fn is_listed(&self, name: &str, scope: &Scope<'_>) -> bool {
        scope.enabled.is_none_or(|enabled| enabled(name))
            || self.hosted.find(name).is_some() && (!is_apisix(name) || self.is_stored(Subsystem::Http, name))
    }

    fn is_stored(&self, subsystem: Subsystem, name: &str) -> bool {
        self.hosted.stored().has(subsystem, name)
    }

    /// Puts the `_meta.pre_function` of this configuration before a stage.
    fn with_pre_function(
        &self,
        name: &'static str,
        whole: Value,
        stage: Arc<Stage>,
        outer: Fitting,
    ) -> Result<Arc<Stage>, Invalid> {
        let code = meta::pre_function(&whole).unwrap_or_default().to_owned();
        let before = self
            .scripts("_meta.pre_function")
            .and_then(|scripts| scripts.pre_function(name, &code, whole, stage.instance().phases()))
            .map_err(|invalid| {
                let before = format!("{}{name}: ", meta::WRONG_PRE_FUNCTION);
                invalid.said(&before).at("/_meta/pre_function")
            })?;
        Ok(outer.stage(Preceded { before, stage }))
    }

    /// The compiler of code in a field.
    fn scripts(&self, field: &str) -> Result<&dyn Scripts, Invalid> {
        self.scripts.get().map(|scripts| &**scripts).ok_or_else(|| scripts::none(field))
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
        let settings = written.to_string();
        if let Some(stage) = plugin.shared.find(settings.as_str()) {
            return Ok(Some(stage));
        }
        let mut config = plugin.schema().parse(or_empty(written))?;
        let whole = meta::pre_function(&config).is_some().then(|| config.clone());
        let Parts { disable, priority, mut meta } = Parts::take(&mut config)?;
        if disable {
            return Ok(None);
        }
        let row = &plugin.row;
        if row.phases().is_empty() && meta.as_ref().is_some_and(|meta| meta.filter.is_some()) {
            return Err(Invalid::new(
                "this plugin is asked before any filter is: it holds for every request",
            )
            .at("/_meta/filter")
            .hint("make two routes that differ in their vars"));
        }
        let others = Within { catalog: self, scope, depth };
        let asked = Cell::new(false);
        let metadata = || {
            asked.set(true);
            (scope.metadata)(row.name())
        };
        let protos = |id: &str| {
            asked.set(true);
            (scope.protos)(id)
        };
        let is_plain = meta.is_none() && whole.is_none();
        let complete = || plugin.schema().parse(or_empty(written)).ok();
        let attrs = |name: &str| self.attrs.get(name);
        let mut cx = Build::new(owner, &self.services, scope.names)
            .with_attrs(&attrs)
            .with_plugin_builder(&others)
            .with_complete_config(&complete)
            .with_metadata(&metadata)
            .with_protos(&protos);
        if let Some(upstreams) = scope.upstreams {
            cx = cx.with_upstreams(upstreams);
        }
        cx = cx.with_identity(row.name(), written);
        cx.attr = self.attrs.get(row.name());
        let priority = priority.unwrap_or(row.priority());
        let name = row.name();
        let outer = whole.is_some().then(|| Fitting { name, priority, meta: meta.take() });
        let mut stage = row.build(config, &mut cx, Fitting { name, priority, meta })?;
        if let (Some(whole), Some(outer)) = (whole, outer) {
            stage = self.with_pre_function(name, whole, stage, outer)?;
        }
        let is_alone = is_plain && !asked.get() && stage.instance().is_pure();
        if is_alone && settings.len() <= LONGEST_SHARED {
            plugin.shared.keep(settings, &stage);
        }
        Ok(Some(stage))
    }
}

impl sdk::Catalog for Catalog {
    fn check(&self, name: &str, config: &Value, place: SchemaType) -> Result<(), Invalid> {
        if place == SchemaType::Metadata {
            return match (self.find(name), self.find_stream(name), Absent::find(name)) {
                (Err(_), Ok(stream), _) => stream.metadata_schema().check(&or_empty(config)),
                (Err(_), Err(_), Some(known)) => self.absent.check(known, config, place),
                (plugin, ..) => {
                    let (plugin, config) = (plugin?, or_empty(config));
                    plugin.metadata_schema().check(&config)?;
                    plugin.row.check_metadata(&config, &Build::new(&UNOWNED, &self.services, &NoNames))
                }
            };
        }
        let empty_list = config.as_array().is_some_and(Vec::is_empty);
        if !config.is_object() && !config.is_null() && !empty_list {
            // The value is not repeated: it may be a secret, and this reaches logs.
            return Err(
                Invalid::new(format!("invalid plugin conf for plugin [{name}]")).expected("an object")
            );
        }
        if place == SchemaType::Stream {
            let plugin = self.find_stream(name)?;
            return match self.stage(&plugin, config, &UNOWNED, &CHECK, 0) {
                Err(invalid) if !meta::disabled(config) => Err(crate::stream::blame(name, invalid)),
                _ => Ok(()),
            };
        }
        let plugin = match (self.find(name), Absent::find(name)) {
            (Err(_), Some(known)) => return self.absent.check(known, config, place),
            (Err(_), None) if meta::disabled(config) && is_apisix(name) => return Ok(()),
            (found, _) => found?,
        };
        if place == SchemaType::Consumer && plugin.row.phases().is_empty() {
            return Err(blame(name, before_consumers()));
        }
        let checked = match plugin.consumer_schema() {
            Some(schema) if place == SchemaType::Consumer => {
                schema.parse(or_empty(config)).and_then(|config| {
                    // A reference is followed when the consumer is compiled.
                    if refers(&config) { Ok(()) } else { plugin.row.credential(&config).map(drop) }
                })
            }
            _ => self.stage(&plugin, config, &UNOWNED, &CHECK, 0).map(drop),
        };
        match checked {
            // A plugin that is switched off never runs, so its settings may be wrong.
            Err(_) if meta::disabled(config) => Ok(()),
            checked => checked.map_err(|invalid| blame(name, invalid)),
        }
    }

    fn chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::with_capacity(entries.len());
        let mut disabled = Vec::new();
        for entry in entries {
            if !meta::disabled(entry.config) && !self.is_listed(entry.name, scope) {
                let hosted = self.hosted.find(entry.name).is_some();
                let refused = if hosted { unlisted(entry.name) } else { not_listed(entry.name) };
                return Err(refused.within(entry.name));
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
            // An auth plugin on a consumer carries a credential and is no stage.
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
        // Equal priorities run in the order of the plugin list, not in the order written.
        stages.sort_by_key(|stage| (self.by_name.get(stage.name()).unwrap_or(&usize::MAX), stage.name()));
        // A first chain of some instances is not shared: no other chain had them.
        let is_shared = disabled.is_empty() && stages.iter().all(|stage| Arc::strong_count(stage) > 1);
        if !is_shared {
            return Ok(Arc::new(Chain::new(stages, disabled)));
        }
        let key: Vec<usize> = stages.iter().map(|stage| Arc::as_ptr(stage).cast::<()>().addr()).collect();
        Ok(self.chains.find(key.as_slice()).unwrap_or_else(|| {
            let chain = Arc::new(Chain::new(stages, disabled));
            self.chains.keep(key, &chain);
            chain
        }))
    }

    fn stream_chain(&self, entries: &[Configured<'_>], scope: &Scope<'_>) -> Result<Arc<Chain>, Invalid> {
        let mut stages = Vec::with_capacity(entries.len());
        for Configured { name, config, owner } in entries {
            if meta::disabled(config) {
                continue;
            }
            let plugin = self.find_stream(name).map_err(|invalid| invalid.within(name))?;
            let is_listed = scope.enabled.is_none_or(|enabled| enabled(name));
            if !is_listed && !self.is_stored(Subsystem::Stream, name) {
                return Err(Invalid::new(format!(
                    "unknown plugin [{name}]: the list of stream plugins does not have it"
                ))
                .got(*name)
                .hint(format!(
                    "add `{name}` to `stream_plugins` in config.yaml (or, with `stream: true`, to `plugins` in \
                     apisix.yaml, if that has the list)"
                ))
                .within(name));
            }
            match self.stage(&plugin, config, owner, scope, 0) {
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
        let (hosted, streams) = (self.hosted.all(), self.hosted.streams());
        let hosted = hosted.values().map(|plugin| {
            let about = plugin.about(Subsystem::Http);
            About { needs_no_entry: !is_apisix(about.name), ..about }
        });
        let of_routes = self.linked.iter().map(|plugin| plugin.about(Subsystem::Http)).chain(hosted);
        let of_streams = streams.values().map(|plugin| plugin.about(Subsystem::Stream));
        let mut all: Vec<About> = of_routes.chain(of_streams).collect();
        for (subsystem, name, _) in self.hosted.stored().plugins() {
            let of_it = all.iter_mut().filter(|about| (about.subsystem, about.name) == (subsystem, name));
            of_it.for_each(|about| (about.is_stored, about.needs_no_entry) = (true, true));
        }
        for subsystem in [Subsystem::Http, Subsystem::Stream] {
            let known = subsystem.plugins().iter().map(|known| About {
                name: known.name,
                subsystem,
                priority: known.priority,
                auth: known.is_auth(),
                by_default: known.by_default,
                is_stored: false,
                needs_no_entry: false,
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
            _ if let Some(plugin) = self.hosted.find_stream(name)
                && subsystem == Subsystem::Stream =>
            {
                Some(plugin.facts())
            }
            _ => {
                let mut facts = apisix_plugins::find(subsystem, name)?.facts();
                facts.schema = with_meta(facts.schema);
                Some(facts)
            }
        }
    }

    fn background(&self) -> &'static [&'static str] {
        &[<crate::error_log_logger::ErrorLogLogger as sdk::Plugin>::NAME]
    }

    fn condition(&self, route: &str, code: &str) -> Result<Arc<dyn Condition>, Invalid> {
        self.scripts("filter_func")?.condition(route, code)
    }

    fn script(&self, owner: &Owner, code: &str) -> Result<Arc<Chain>, Invalid> {
        Ok(Arc::new(Chain::of(self.scripts("script")?.script(owner, code)?)))
    }

    fn load_scripts(&self, scripts: &[(&str, &Script)]) -> Vec<Unloaded> {
        self.loaded_scripts(scripts)
            .unwrap_or_else(|invalid| Unloaded::all(scripts, &invalid, |id| self.keeps_script(id)))
    }

    fn check_script(&self, id: &str, script: &Script) -> Result<(), Invalid> {
        self.checked_script(id, script)
    }

    fn with_scripts(&self, scripts: &[(&str, &Script)]) -> Option<Arc<dyn sdk::Catalog>> {
        Some(Arc::new(self.copy_with(scripts).ok()?))
    }

    fn control(&self, request: &ControlRequest, listed: Option<&[String]>) -> Option<ControlReply> {
        let is_listed = |name: &str| listed.is_none_or(|names| names.iter().any(|listed| listed == name));
        let linked = self.linked.iter().filter(|plugin| is_listed(plugin.row.name()));
        linked
            .map(|plugin| &plugin.row)
            .find_map(|row| row.control(request))
            .or_else(|| self.hosted.all().values().find_map(|plugin| plugin.row.control(request)))
    }

    fn generation(&self) -> u64 {
        self.hosted.generation()
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosted = self.hosted.all();
        let all = self.linked.iter().chain(hosted.values());
        f.debug_list().entries(all.map(|plugin| plugin.row.name())).finish()
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
const CHECK: Scope<'static> = Scope::of_names(&NoNames);

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

/// Where the configuration of this owner stands.
fn place_of(owner: &Owner) -> SchemaType {
    match owner.collection {
        "consumers" | "credentials" => SchemaType::Consumer,
        _ => SchemaType::Route,
    }
}

/// Puts the plugin's name before what is wrong with its settings, as APISIX does. A filter is no setting of
/// the plugin: what is wrong with it stands alone there, and the pointer tells whose it is.
pub(crate) fn blame(name: &str, invalid: Invalid) -> Invalid {
    let of_meta = [("/_meta/filter", meta::WRONG_FILTER), ("/_meta/pre_function", meta::WRONG_PRE_FUNCTION)];
    if of_meta.iter().any(|(at, words)| invalid.pointer.starts_with(at) && invalid.reason.starts_with(words))
    {
        return invalid;
    }
    invalid.said(&format!("failed to check the configuration of plugin {name} err: "))
}

/// Without its plugin a resource would do something else than it says.
pub fn not_listed(name: &str) -> Invalid {
    match ROWS.iter().any(|row| row.name() == name) {
        true => unlisted(name),
        false => unknown(name),
    }
}

fn unlisted(name: &str) -> Invalid {
    Invalid::new(format!("unknown plugin [{name}]: the list of plugins does not have it"))
        .got(name)
        .hint(format!("add `{name}` to `plugins` in config.yaml (or apisix.yaml, if that has the list)"))
}

pub(crate) fn unknown(name: &str) -> Invalid {
    if is_apisix(name) {
        return Invalid::new(format!(
            "unknown plugin [{name}]: it exists in APISIX but not in this version of Sluice"
        ))
        .got(name)
        .hint("remove it, or set `_meta: {disable: true}` until Sluice has it");
    }
    let invalid = Invalid::new(format!("unknown plugin [{name}]")).got(name);
    match model::invalid::nearest(name, ROWS.iter().map(|row| row.name())) {
        Some(near) => invalid.hint(format!("did you mean `{near}`?")),
        None => invalid,
    }
}

#[cfg(test)]
mod tests;
