//! `exit-transformer`: functions that change the responses which the gateway makes itself.
//!
//! Settings, texts of errors and order are those of APISIX 3.x. The responses are changed in `api/exits.rs`.

use std::sync::Arc;

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

/// The factory of the plugin.
pub(super) struct ExitTransformer {
    name: &'static str,
    host: Arc<Host>,
}

impl ExitTransformer {
    pub(super) fn new(name: &'static str, host: Arc<Host>) -> ExitTransformer {
        ExitTransformer { name, host }
    }
}

impl Factory for ExitTransformer {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        22950
    }

    fn phases(&self) -> Phases {
        Phases::REWRITE
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {"functions": {"type": "array", "items": {"type": "string"}}},
            "required": ["functions"],
        })
    }

    fn build(&self, config: Value, _: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        let functions = config["functions"].as_array().into_iter().flatten();
        let sources: Vec<String> = functions.filter_map(Value::as_str).map(str::to_owned).collect();
        let codes = control::run(&self.host, move |machine| {
            let compiled = sources.iter().enumerate().map(|(at, source)| {
                Code::compile(&machine.lua, source, source)
                    .map_err(|error| Invalid::new(text::message(&error)).at(format!("/functions/{at}")))
            });
            compiled.collect::<Result<Vec<Code>, Invalid>>()
        })??;
        let load = move |machine: &Machine| {
            let (lua, globals) = (&machine.lua, machine.environment(None)?);
            let chunks = lua.create_table()?;
            for code in &codes {
                chunks.raw_push(code.load(lua, &globals)?)?;
            }
            let source = lua.load(include_str!("exit_transformer.lua")).set_name("=exit_transformer");
            Ok(Loaded::Phases(source.call((machine.core()?, chunks))?))
        };
        Ok(fitting.stage(Script::new(self.name, self.host.clone(), Phases::REWRITE, Box::new(load))))
    }
}
