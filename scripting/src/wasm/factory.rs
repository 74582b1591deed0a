//! A plugin in WebAssembly, as the catalog has it.

use std::sync::Arc;

use model::Invalid;
use sdk::chain::{Fitting, Stage};
use sdk::instance::intern;
use sdk::{Build, Factory, Phase, Phases};
use serde_json::{Value, json};

use super::filter::{Filter, Place};
use super::module::Module;
use super::streams::StreamFilter;

/// An entry of `wasm.plugins`.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub name: String,
    pub priority: i32,
    /// The phase of the request's callbacks: rewrite or access.
    pub phase: Phase,
    /// Whether the module sees bodies without a word of its own.
    pub process_bodies: bool,
}

/// Makes the factory of a module.
///
/// # Errors
/// The name is invalid.
pub fn factory(plugin: &Plugin, module: Arc<Module>) -> Result<Box<dyn Factory>, Invalid> {
    made(plugin, Ok(module), false)
}

/// As [`factory`], for a plugin of streams; see [`unloaded`] for one without a module.
///
/// # Errors
/// The name is invalid.
pub fn stream_factory(
    plugin: &Plugin,
    module: Result<Arc<Module>, Option<String>>,
) -> Result<Box<dyn Factory>, Invalid> {
    made(plugin, module, true)
}

/// Makes the factory of a plugin whose module is not loaded: resources that use it are rejected for this reason.
///
/// # Errors
/// The name is invalid.
pub fn unloaded(plugin: &Plugin, reason: Option<String>) -> Result<Box<dyn Factory>, Invalid> {
    made(plugin, Err(reason), false)
}

fn made(
    plugin: &Plugin,
    module: Result<Arc<Module>, Option<String>>,
    is_of_streams: bool,
) -> Result<Box<dyn Factory>, Invalid> {
    Ok(Box::new(Wasm { name: intern(&plugin.name)?, plugin: plugin.clone(), module, is_of_streams }))
}

struct Wasm {
    name: &'static str,
    plugin: Plugin,
    /// Without a reason, configurations are only checked.
    module: Result<Arc<Module>, Option<String>>,
    is_of_streams: bool,
}

impl Factory for Wasm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn priority(&self) -> i32 {
        self.plugin.priority
    }

    fn phases(&self) -> Phases {
        if self.is_of_streams {
            return Phases::PREREAD | Phases::STREAM_DATA | Phases::LOG;
        }
        Phases::of(self.plugin.phase) | Phases::HEADER_FILTER | Phases::BODY_FILTER | Phases::LOG
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "properties": {
                "conf": {
                    "oneOf": [
                        {"type": "object", "minProperties": 1},
                        {"type": "string", "minLength": 1}
                    ]
                }
            },
            "required": ["conf"]
        })
    }

    fn build(&self, config: Value, cx: &mut Build<'_>, fitting: Fitting) -> Result<Arc<Stage>, Invalid> {
        let module = match &self.module {
            Ok(module) => module,
            Err(None) => return Ok(fitting.stage(Unserved(self.phases()))),
            Err(Some(reason)) => return Err(Invalid::new(reason.clone())),
        };
        let config = match &config["conf"] {
            Value::String(text) => text.as_bytes().into(),
            conf => conf.to_string().into_bytes().into(),
        };
        let machines = cx.shared_worker_state::<Place>(&module.number.to_string());
        if self.is_of_streams {
            return Ok(fitting.stage(StreamFilter::new(module, config, machines)));
        }
        let Plugin { phase, process_bodies, .. } = self.plugin;
        Ok(fitting.stage(Filter::new(module, phase, process_bodies, config, machines)))
    }
}

/// An instance where configurations are only checked.
struct Unserved(Phases);

impl sdk::Instance for Unserved {
    fn phases(&self) -> Phases {
        self.0
    }
}
