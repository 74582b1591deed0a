//! `serverless-pre-function` and `serverless-post-function`: functions that stand in the configuration.
//!
//! Settings, texts of errors and order are those of APISIX 3.x (`apisix/plugins/serverless/init.lua`). Where APISIX
//! loads the functions of a route once for each worker, so does this plugin; all of an instance share their globals.

use std::sync::Arc;

use mlua::{Function, Value as Lua};
use model::Invalid;
use sdk::chain::{Fitting, Stage};
use sdk::{Build, Factory, Phases};
use serde_json::{Value, json};

use super::code::Code;
use super::functions::Loaded;
use super::host::Host;
use super::instance::Script;
use super::machine::Machine;
use super::{control, text};

/// The factory of one of the two plugins.
pub(super) struct Serverless {
    name: &'static str,
    priority: i32,
    host: Arc<Host>,
}

const PHASES: [(&str, Phases); 6] = [
    ("rewrite", Phases::REWRITE),
    ("access", Phases::ACCESS),
    ("header_filter", Phases::HEADER_FILTER),
    ("body_filter", Phases::BODY_FILTER),
    ("log", Phases::LOG),
    ("before_proxy", Phases::BEFORE_PROXY),
];

impl Serverless {
    pub(super) fn new(name: &'static str, priority: i32, host: Arc<Host>) -> Serverless {
        Serverless { name, priority, host }
    }
}

impl Factory for Serverless {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn phases(&self) -> Phases {
        PHASES.iter().fold(Phases::NONE, |all, (_, phase)| all | *phase)
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "phase": {"type": "string", "default": "access", "enum": PHASES.map(|(name, _)| name)},
                "functions": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            "required": ["functions"],
        })
    }

    fn build(&self, config: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        // The schema was checked before.
        let phase = config["phase"].as_str().unwrap_or("access");
        let (phase, phases) = *PHASES.iter().find(|(name, _)| *name == phase).unwrap_or(&PHASES[1]);
        let sources: Vec<String> = config["functions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let codes = control::run(&self.host, move |machine| check(machine, &sources))??;
        let name = self.name;
        let load = move |machine: &Machine| load(machine, name, phase, &codes, &config);
        Ok(fitting.stage(Script::new(self.name, self.host.clone(), phases, Box::new(load))))
    }
}

/// Compiles the functions and checks that each chunk returns one.
fn check(machine: &Machine, sources: &[String]) -> Result<Vec<Code>, Invalid> {
    let globals = machine.environment(None).map_err(|error| Invalid::new(text::message(&error)))?;
    let codes = sources.iter().enumerate().map(|(at, source)| {
        let refused = |before: &str, error: &mlua::Error| {
            let message = text::message(error);
            let invalid = Invalid::new(format!("{before}{message}")).at(format!("/functions/{at}"));
            match text::excerpt(&message, source) {
                Some((line, text)) => invalid.hint(format!("line {line}: {text}")),
                None => invalid,
            }
        };
        let code = Code::compile(&machine.lua, source, source)
            .map_err(|error| refused("failed to loadstring: ", &error))?;
        let made = code.load(&machine.lua, &globals).and_then(|chunk| machine.run(|| chunk.call::<Lua>(())));
        match made.map_err(|error| refused("pcall error: ", &error))? {
            Lua::Function(_) => Ok(code),
            other => Err(Invalid::new(format!(
                "only accept Lua function, the input code type is {}",
                type_of(&other)
            ))
            .at(format!("/functions/{at}"))
            .expected("code that returns a function")),
        }
    });
    codes.collect()
}

/// The result of Lua's `type`.
fn type_of(value: &Lua) -> &'static str {
    match value {
        Lua::Integer(_) | Lua::Number(_) => "number",
        Lua::LightUserData(_) | Lua::UserData(_) => "userdata",
        other => other.type_name(),
    }
}

fn load(
    machine: &Machine,
    name: &'static str,
    phase: &'static str,
    codes: &[Code],
    config: &Value,
) -> mlua::Result<Loaded> {
    let lua = &machine.lua;
    let globals = machine.environment(None)?;
    let list = lua.create_table()?;
    for code in codes {
        let chunk = code.load(lua, &globals)?;
        let function: Function = machine.run(|| chunk.call(()))?;
        list.raw_push(function)?;
    }
    let functions = lua.create_table()?;
    functions.raw_set(phase, list)?;
    machine.runner(name, &functions, config)
}
