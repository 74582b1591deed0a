//! Plugins in files, as APISIX loads them: `apisix/plugins/NAME.lua` below `apisix.extra_lua_path`, and stored scripts.
//!
//! The program reads the files; machines never do. A plugin has globals of its own, and its own copies of the modules
//! that it requires.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlua::{Function, Lua, MultiValue, Table, Value as LuaValue};
use model::Invalid;
use sdk::catalog::Subsystem;
use sdk::chain::{Fitting, Stage};
use sdk::consumers::Credential;
use sdk::endpoint::{ControlReply, ControlRequest, Endpoint};
use sdk::instance::intern;
use sdk::{Build, Factory, Method, Phases};
use serde_json::{Value, json};

use super::code::Code;
use super::functions::Loaded;
use super::host::Host;
use super::instance::Script;
use super::libs::accept_texts;
use super::machine::Machine;
use super::native::{to_json, to_lua};
use super::plugin_id::PluginId;
use super::{control, control_api, text};

/// The texts of modules by their names, such as `apisix.plugins.mine`.
#[derive(Debug, Default, Hash)]
pub struct Sources(BTreeMap<String, (String, String)>);

impl Sources {
    /// Adds a module; the first file of a name counts.
    pub fn add(&mut self, module: String, file: String, text: String) {
        self.0.entry(module).or_insert((file, text));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Compiled modules by their names.
type Modules = BTreeMap<String, Result<Code, String>>;

/// A set of modules, of which machines load one.
pub(super) struct Library {
    number: u64,
    alive: Arc<()>,
    /// Machines hold these for `require`, and not the library, so that they can see its end. The first ones that have a
    /// name count.
    modules: Vec<Arc<Modules>>,
}

/// Compiles all modules. One that does not compile is an error of the plugins that require it.
///
/// # Errors
/// The control machine cannot be made.
pub fn library(host: &Arc<Host>, sources: Sources) -> Result<Arc<dyn std::any::Any + Send + Sync>, Invalid> {
    let modules = control::run(host, move |machine| {
        let compile = |(module, (file, text)): (String, (String, String))| {
            let code = Code::compile(&machine.lua, &format!("@{file}"), &text);
            (module, code.map_err(|error| described(&error, &text)))
        };
        Arc::new(sources.0.into_iter().map(compile).collect::<Modules>())
    })?;
    Ok(Arc::new(Library::of(vec![modules])))
}

/// The library of a stored script: its module, and those that it may require.
pub(super) fn library_of(module: String, code: Code, others: &sdk::scripts::Library) -> Library {
    let own = Arc::new(Modules::from([(module, Ok(code))]));
    let others = others.downcast_ref::<Library>().map(|others| others.modules.clone());
    Library::of([vec![own], others.unwrap_or_default()].concat())
}

/// The message of an error, with the line it is about.
fn described(error: &mlua::Error, source: &str) -> String {
    let message = text::message(error);
    match text::excerpt(&message, source) {
        Some((_, line)) => format!("{message}: `{line}`"),
        None => message,
    }
}

/// Loads a plugin from a library; `None` if it has no file of the name.
///
/// # Errors
/// The file does not load, or what it returns is no plugin.
pub fn plugin(
    host: &Arc<Host>,
    library: &Arc<dyn std::any::Any + Send + Sync>,
    subsystem: Subsystem,
    name: &str,
) -> Result<Option<Box<dyn Factory>>, Invalid> {
    let Ok(library) = library.clone().downcast::<Library>() else { return Ok(None) };
    let module = module_name(subsystem, name);
    if !library.modules.iter().any(|modules| modules.contains_key(&module)) {
        return Ok(None);
    }
    let id = PluginId { subsystem, name: intern(name)? };
    let loaded = loaded(host, library, id)?;
    loaded.map(Some).map_err(|error| Invalid::new(format!("cannot load the plugin {name}: {error}")))
}

/// Loads the plugin of a library; the inner error is that of its code.
///
/// # Errors
/// The control machine cannot be made.
pub(super) fn loaded(
    host: &Arc<Host>,
    library: Arc<Library>,
    id: PluginId,
) -> Result<Result<Box<dyn Factory>, String>, Invalid> {
    let shared = library.clone();
    let facts = control::run(host, move |machine| {
        let facts = shared.plugin(machine, id).and_then(|module| Facts::of(machine, &module, id));
        facts.map_err(|error| text::message(&error))
    })?;
    Ok(facts.map(|facts| Box::new(Custom { id, host: host.clone(), library, facts }) as Box<dyn Factory>))
}

pub(super) fn module_name(subsystem: Subsystem, plugin: &str) -> String {
    match subsystem {
        Subsystem::Http => format!("apisix.plugins.{plugin}"),
        Subsystem::Stream => format!("apisix.stream.plugins.{plugin}"),
    }
}

impl Library {
    fn of(modules: Vec<Arc<Modules>>) -> Library {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Library { number: NUMBER.fetch_add(1, Ordering::Relaxed), alive: Arc::new(()), modules }
    }

    /// New globals, whose `require` finds the modules.
    pub(super) fn environment(&self, machine: &Machine) -> mlua::Result<Table> {
        let all = self.modules.clone();
        let find = move |lua: &Lua, (name, globals): (String, Table)| match all
            .iter()
            .find_map(|modules| modules.get(&name))
        {
            Some(Ok(code)) => code.load(lua, &globals).map(Some),
            Some(Err(error)) => Err(mlua::Error::runtime(error.clone())),
            None => Ok(None),
        };
        machine.environment(Some(machine.lua.create_function(find)?))
    }

    /// The table of a plugin in a machine, loaded at first use.
    fn plugin(self: &Arc<Library>, machine: &Machine, id: PluginId) -> mlua::Result<Table> {
        machine.module(self.number, id, &self.alive, || {
            let globals = self.environment(machine)?;
            if id.subsystem == Subsystem::Stream {
                let source = machine
                    .lua
                    .load("ngx.config = setmetatable({subsystem = 'stream'}, {__index = ngx.config})");
                source.set_name("=stream").set_environment(globals.clone()).exec()?;
            }
            let require: Function = globals.get("require")?;
            let module: Table = machine.run(|| require.call(module_name(id.subsystem, id.name)))?;
            if let LuaValue::Function(init) = module.get("init")? {
                machine.run(|| init.call::<()>(()))?;
            }
            Ok(module)
        })
    }
}

/// The properties of a plugin.
struct Facts {
    version: String,
    priority: i32,
    is_auth: bool,
    phases: Phases,
    schema: Value,
    consumer_schema: Option<Value>,
    metadata_schema: Option<Value>,
    /// Of the plugin's `api`; a handler has one for each of its methods.
    endpoints: Vec<Endpoint>,
    /// Of its `control_api`.
    control_endpoints: Vec<Endpoint>,
}

/// Endpoints of one plugin.
const MOST_ENDPOINTS: usize = 100;

/// The name of a phase, and of the functions that run in it.
type PhaseFunctions = (&'static str, Phases, &'static [&'static str]);

/// The functions of a plugin by phase, in the order in which they run.
const FUNCTIONS: &[PhaseFunctions] = &[
    ("rewrite", Phases::REWRITE, &["rewrite"]),
    ("access", Phases::ACCESS, &["access"]),
    ("before_proxy", Phases::BEFORE_PROXY, &["before_proxy"]),
    ("header_filter", Phases::HEADER_FILTER, &["header_filter"]),
    ("body_filter", Phases::BODY_FILTER, &["body_filter", "delayed_body_filter"]),
    ("log", Phases::LOG, &["log"]),
];

/// Those of a plugin of streams.
const STREAM_FUNCTIONS: &[PhaseFunctions] =
    &[("preread", Phases::PREREAD, &["preread"]), ("log", Phases::LOG, &["log"])];

impl PluginId {
    fn functions(self) -> &'static [PhaseFunctions] {
        match self.subsystem {
            Subsystem::Http => FUNCTIONS,
            Subsystem::Stream => STREAM_FUNCTIONS,
        }
    }
}

impl Facts {
    fn of(machine: &Machine, module: &Table, id: PluginId) -> mlua::Result<Facts> {
        let schema = |name: &str| match module.get::<LuaValue>(name)? {
            LuaValue::Nil => Ok(None),
            schema => to_json(&machine.lua, schema).map(|mut schema| {
                accept_texts(&mut schema);
                Some(schema)
            }),
        };
        let mut phases = Phases::NONE;
        for (_, phase, names) in id.functions() {
            for name in *names {
                if module.get::<LuaValue>(*name)?.is_function() {
                    phases = phases | *phase;
                }
            }
        }
        let endpoints = |list| -> mlua::Result<Vec<Endpoint>> {
            Ok(handlers(machine, module, list)?.into_iter().map(|(endpoint, _)| endpoint).collect())
        };
        let version: LuaValue = module.get("version")?;
        Ok(Facts {
            version: version.as_f64().map_or_else(|| "0.1".to_owned(), |version| version.to_string()),
            priority: module
                .get::<Option<i32>>("priority")?
                .ok_or_else(|| mlua::Error::runtime("invalid plugin: `priority` is missing"))?,
            is_auth: module.get::<Option<String>>("type")?.as_deref() == Some("auth"),
            phases,
            schema: schema("schema")?.unwrap_or_else(|| json!({"type": "object"})),
            consumer_schema: schema("consumer_schema")?,
            metadata_schema: schema("metadata_schema")?,
            endpoints: endpoints(API)?,
            control_endpoints: endpoints(CONTROL_API)?,
        })
    }
}

/// The functions of a plugin that list its endpoints.
const API: &str = "api";
const CONTROL_API: &str = control_api::NAME;

/// The endpoints in the list of a plugin, with their handlers.
fn handlers(machine: &Machine, module: &Table, list: &str) -> mlua::Result<Vec<(Endpoint, Function)>> {
    let LuaValue::Function(api) = module.get(list)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    let entries: Table = machine.run(|| api.call(()))?;
    for entry in entries.sequence_values::<Table>() {
        let entry = entry?;
        let handler: Function = entry.get("handler")?;
        let paths = match entry.get::<Option<Vec<String>>>("uris")? {
            Some(paths) => paths,
            None => vec![entry.get("uri")?],
        };
        for name in entry.get::<Vec<String>>("methods")? {
            let method = Method::from_bytes(name.as_bytes());
            if method == Method::Other || all.len() + paths.len() > MOST_ENDPOINTS {
                let error = format!("invalid plugin: `{list}` has the method {name} or too many endpoints");
                return Err(mlua::Error::runtime(error));
            }
            all.extend(paths.iter().map(|path| (Endpoint { method, path: path.clone() }, handler.clone())));
        }
    }
    Ok(all)
}

/// The function that calls the handlers in the list of a plugin.
fn endpoints(machine: &Machine, module: &Table, list: &str) -> mlua::Result<Function> {
    let handlers = handlers(machine, module, list)?.into_iter().map(|(_, handler)| handler);
    let handlers = machine.lua.create_sequence_from(handlers)?;
    let source = machine.lua.load(include_str!("endpoints.lua")).set_name("=endpoints");
    source.call((&machine.natives, machine.core()?, handlers, list))
}

impl Facts {
    /// The field by which consumers are found: the first one that their schema requires.
    fn key_field(&self) -> Option<&str> {
        self.consumer_schema.as_ref()?.get("required")?.get(0)?.as_str()
    }
}

/// The factory of a plugin in a file.
struct Custom {
    id: PluginId,
    host: Arc<Host>,
    library: Arc<Library>,
    facts: Facts,
}

impl Factory for Custom {
    fn name(&self) -> &'static str {
        self.id.name
    }

    fn priority(&self) -> i32 {
        self.facts.priority
    }

    fn version(&self) -> &str {
        &self.facts.version
    }

    fn is_auth(&self) -> bool {
        self.facts.is_auth
    }

    fn phases(&self) -> Phases {
        self.facts.phases
    }

    fn schema(&self) -> Value {
        self.facts.schema.clone()
    }

    fn consumer_schema(&self) -> Option<Value> {
        self.facts.consumer_schema.clone()
    }

    fn metadata_schema(&self) -> Option<Value> {
        self.facts.metadata_schema.clone()
    }

    fn endpoints(&self, _attr: Option<&Value>) -> Vec<Endpoint> {
        self.facts.endpoints.clone()
    }

    fn control(&self, request: &ControlRequest) -> Option<ControlReply> {
        let method = Method::from_bytes(request.method.as_bytes());
        let fits = |endpoint: &Endpoint| endpoint.takes(method, request.path().as_bytes());
        let at = self.facts.control_endpoints.iter().position(fits)?;
        let (id, library) = (self.id, self.library.clone());
        let load = move |machine: &Machine| endpoints(machine, &library.plugin(machine, id)?, CONTROL_API);
        Some(control_api::answer(&self.host, id.name, load, at, request.clone()))
    }

    fn server(&self) -> Option<Arc<Stage>> {
        let (id, library) = (self.id, self.library.clone());
        let load =
            move |machine: &Machine| Ok(Loaded::One(endpoints(machine, &library.plugin(machine, id)?, API)?));
        let script = Script::new(id.name, self.host.clone(), Phases::NONE, Box::new(load));
        Some(Fitting { name: id.name, priority: 0, meta: None }.stage(script))
    }

    fn credential(&self, config: &Value) -> Result<Option<Credential>, Invalid> {
        let (id, library, checked) = (self.id, self.library.clone(), config.clone());
        control::run(&self.host, move |machine| check(machine, &library, id, &checked, CONSUMER))??;
        let Some(field) = self.facts.key_field() else { return Ok(None) };
        let key = match config.get(field) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => {
                return Err(Invalid::new(format!("`{field}` must be a text, by which consumers are found"))
                    .within(field));
            }
        };
        Ok(Some(Credential { key: key.into(), secret: Some(Arc::new(config.clone())) }))
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        let (id, library, checked) = (self.id, self.library.clone(), config.clone());
        control::run(&self.host, move |machine| check(machine, &library, id, &checked, LuaValue::Nil))??;
        let (library, attr, metadata) = (self.library.clone(), cx.attr.cloned(), cx.metadata().cloned());
        let load = move |machine: &Machine| {
            let (lua, name) = (&machine.lua, id.name);
            // `init` may read them.
            for (list, value) in [("attrs", &attr), ("metadata", &metadata)] {
                let value = value.as_ref().map_or(Ok(LuaValue::Nil), |value| to_lua(lua, value))?;
                machine.natives.get::<Table>(list)?.raw_set(name, value)?;
            }
            let module = library.plugin(machine, id)?;
            let functions = lua.create_table()?;
            for (phase, _, names) in id.functions() {
                let list = lua.create_table()?;
                for function in *names {
                    if let LuaValue::Function(function) = module.get(*function)? {
                        list.raw_push(function)?;
                    }
                }
                functions.raw_set(*phase, list)?;
            }
            machine.runner(name, &functions, &config)
        };
        Ok(fitting.stage(Script::new(id.name, self.host.clone(), self.facts.phases, Box::new(load))))
    }
}

/// `core.schema.TYPE_CONSUMER`.
const CONSUMER: LuaValue = LuaValue::Integer(1);

/// Calls the plugin's `check_schema`.
fn check(
    machine: &Machine,
    library: &Arc<Library>,
    id: PluginId,
    config: &Value,
    kind: LuaValue,
) -> Result<(), Invalid> {
    let failed = |error: mlua::Error| Invalid::new(text::message(&error));
    let module = library.plugin(machine, id).map_err(failed)?;
    let LuaValue::Function(check) = module.get("check_schema").map_err(failed)? else { return Ok(()) };
    let conf = to_lua(&machine.lua, config).map_err(failed)?;
    let results: MultiValue = machine.run(|| check.call((conf, kind))).map_err(failed)?;
    match (results.front(), results.get(1)) {
        (Some(LuaValue::Nil | LuaValue::Boolean(false)), error) => {
            let error = error.and_then(|error| error.to_string().ok()).unwrap_or_default();
            Err(Invalid::new(error))
        }
        _ => Ok(()),
    }
}

impl Machine {
    /// The code of an instance: lists of functions by phase, and their settings.
    pub(super) fn runner(&self, name: &'static str, functions: &Table, conf: &Value) -> mlua::Result<Loaded> {
        let lua = &self.lua;
        let source = lua.load(include_str!("runner.lua")).set_name("=runner");
        let make = source.call((&self.natives, self.core()?, functions, to_lua(lua, conf)?, name))?;
        Ok(Loaded::Phases(make))
    }
}
