//! `wasm` and `sluice.wasm`: plugins in WebAssembly.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::values::{boolean, list, member, one_of, text, wrong_type};
use crate::Invalid;

/// `wasm` and `sluice.wasm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wasm {
    pub plugins: Vec<WasmPlugin>,
    /// Bytes of the memory of one instance.
    pub max_memory: u64,
    /// How long a call may run.
    pub max_time: Duration,
    /// Bytes that the instances of one plugin may share.
    pub max_shared_data: u64,
}

/// A member of `wasm.plugins`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmPlugin {
    pub name: String,
    pub priority: i32,
    pub file: PathBuf,
    /// `http_request_phase: rewrite`.
    pub in_rewrite: bool,
    /// Whether it sees bodies without setting a property (ours).
    pub process_bodies: bool,
}

pub(super) const MEMBERS: &[&str] = &["name", "priority", "file", "http_request_phase", "process_bodies"];

pub(super) fn plugins(value: &Value) -> Result<Vec<WasmPlugin>, Invalid> {
    let plugins = list(value, plugin)?;
    for (at, plugin) in plugins.iter().enumerate() {
        if plugins[..at].iter().any(|other| other.name == plugin.name) {
            return Err(Invalid::new(format!("two plugins are named `{}`", plugin.name))
                .at("/name")
                .within(at)
                .expected("a name of its own"));
        }
    }
    Ok(plugins)
}

fn plugin(value: &Value) -> Result<WasmPlugin, Invalid> {
    if !value.is_object() {
        return Err(wrong_type("object", value));
    }
    let priority = member(value, "priority")?;
    let number = priority.as_i64().and_then(|number| i32::try_from(number).ok());
    let in_phase = |phase: &Value| one_of(phase, &["access", "rewrite"]).map(|phase| phase == "rewrite");
    let optional = |name: &str, read: &dyn Fn(&Value) -> Result<bool, Invalid>| match value.get(name) {
        Some(value) => read(value).map_err(|invalid| invalid.at(format!("/{name}"))),
        None => Ok(false),
    };
    Ok(WasmPlugin {
        name: text(member(value, "name")?).map_err(|invalid| invalid.at("/name"))?.to_owned(),
        priority: number.ok_or_else(|| wrong_type("integer", priority).at("/priority"))?,
        file: text(member(value, "file")?).map_err(|invalid| invalid.at("/file"))?.into(),
        in_rewrite: optional("http_request_phase", &in_phase)?,
        process_bodies: optional("process_bodies", &boolean)?,
    })
}
