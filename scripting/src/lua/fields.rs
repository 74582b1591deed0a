//! Code in fields of the configuration: `filter_func` ([`condition`]), `_meta.pre_function`, and `script`.

use std::sync::Arc;

use mlua::{FromLuaMulti, Function, Table, Value as Lua};
use model::Invalid;
use sdk::Factory;
use sdk::build::Owner;
use sdk::chain::{Fitting, Instance, Stage};
use sdk::condition::Condition;
use sdk::scripts::Library;
use sdk::{Phase, Phases, Scripts};
use serde_json::Value;

use super::code::Code;
use super::condition::condition;
use super::functions::{Loaded, name_of};
use super::host::Host;
use super::instance::Script;
use super::machine::Machine;
use super::native::to_lua;
use super::{control, stored, text};

/// The compiler of code in the configuration.
pub fn scripts(host: &Arc<Host>) -> Box<dyn Scripts> {
    Box::new(Fields(host.clone()))
}

struct Fields(Arc<Host>);

/// The name of a route with a script in lists of plugins, such as that of an explanation.
const SCRIPT: &str = "script";

impl Scripts for Fields {
    fn condition(&self, route: &str, code: &str) -> Result<Arc<dyn Condition>, Invalid> {
        condition(&self.0, route, code)
    }

    fn pre_function(
        &self,
        plugin: &'static str,
        code: &str,
        config: Value,
        phases: Phases,
    ) -> Result<Box<dyn Instance>, Invalid> {
        let source = code.to_owned();
        let code =
            control::run(&self.0, move |machine| match loaded(machine, "meta pre_function", &source)? {
                (code, Lua::Function(_)) => Ok(code),
                _ => Err(Invalid::new("the code must return a function")),
            })??;
        let load = move |machine: &Machine| {
            let lua = &machine.lua;
            let function: Function = run(machine, &code)?;
            let runs = lua.create_table()?;
            for phase in Phase::ALL.into_iter().filter(|phase| phases.has(*phase)) {
                runs.raw_set(name_of(phase), true)?;
            }
            let source = lua.load(include_str!("pre_function.lua")).set_name("=pre_function");
            let core: Table = machine.core()?;
            let conf = to_lua(lua, &config)?;
            Ok(Loaded::Phases(source.call((&machine.natives, core, runs, function, conf, plugin))?))
        };
        Ok(Box::new(Script::new(plugin, self.0.clone(), phases, Box::new(load))))
    }

    fn script(&self, _: &Owner, code: &str) -> Result<Arc<Stage>, Invalid> {
        let source = code.to_owned();
        let (code, phases) = control::run(&self.0, move |machine| {
            let failed = |invalid: Invalid| invalid.said("failed to load 'script' string: ");
            let (code, made) = loaded(machine, &source, &source).map_err(failed)?;
            let Lua::Table(object) = made else {
                return Err(Invalid::new("'script' should be a Lua object"));
            };
            let mut phases = Phases::NONE;
            for phase in Phase::ALL.into_iter().filter(|phase| SCRIPT_PHASES.has(*phase)) {
                let function = machine.run(|| object.get::<Lua>(name_of(phase)));
                if function.is_ok_and(|function| function.is_function()) {
                    phases = phases | Phases::of(phase);
                }
            }
            Ok((code, phases))
        })??;
        let load = move |machine: &Machine| {
            let object: Table = run(machine, &code)?;
            let source = machine.lua.load(include_str!("script.lua")).set_name("=script");
            Ok(Loaded::Phases(source.call((&machine.natives, object))?))
        };
        let script = Script::new(SCRIPT, self.0.clone(), phases, Box::new(load));
        Ok(Fitting { name: SCRIPT, priority: 0, meta: None }.stage(script))
    }

    fn library(&self, modules: &[(&str, &str)]) -> Result<Library, Invalid> {
        stored::library(&self.0, modules)
    }

    fn stored(
        &self,
        id: &str,
        script: &model::Script,
        library: &Library,
    ) -> Result<Option<Box<dyn Factory>>, Invalid> {
        stored::load(&self.0, id, script, library)
    }
}

/// The phases in which APISIX calls scripts.
const SCRIPT_PHASES: Phases = Phases::ACCESS
    .with(Phases::BEFORE_PROXY)
    .with(Phases::HEADER_FILTER)
    .with(Phases::BODY_FILTER)
    .with(Phases::LOG);

/// Compiles a chunk and runs it on the control side, with globals of its own; returns its first result as well.
fn loaded(machine: &Machine, name: &str, source: &str) -> Result<(Code, Lua), Invalid> {
    let refused = |error: mlua::Error| {
        let message = text::message(&error);
        let invalid = Invalid::new(message.clone());
        match text::excerpt(&message, source) {
            Some((line, text)) => invalid.hint(format!("line {line}: {text}")),
            None => invalid,
        }
    };
    let code = Code::compile(&machine.lua, name, source).map_err(refused)?;
    let made = run(machine, &code).map_err(refused)?;
    Ok((code, made))
}

/// Runs a chunk with globals of its own.
fn run<T: FromLuaMulti>(machine: &Machine, code: &Code) -> mlua::Result<T> {
    let globals = machine.environment(None)?;
    let chunk = code.load(&machine.lua, &globals)?;
    machine.run(|| chunk.call(()))
}
