//! Lua plugins, on LuaJIT with the extensions of Lua 5.2 that OpenResty enables.
//!
//! Each worker has one machine ([`machine`]), made when it first runs a script. Code runs as a coroutine ([`flow`]);
//! functions reach its exchange through [`access`]. Sources are checked and compiled on the control side
//! ([`control`]).

mod access;
mod api;
mod code;
mod condition;
mod control;
mod control_api;
mod coroutines;
mod custom;
mod exit_transformer;
mod fields;
mod flow;
mod functions;
pub mod host;
mod instance;
mod kept;
pub mod libs;
mod machine;
mod native;
mod plugin_id;
mod serverless;
mod session;
mod small;
mod sockets;
mod stored;
#[cfg(test)]
mod tests;
mod text;
pub mod vm;
mod watchdog;

use std::sync::Arc;

use sdk::Factory;

pub use custom::{Sources, library, plugin};
pub use fields::scripts;
pub use host::{Host, Level, Log, Settings};
pub use libs::shared::Dictionaries;

/// The names of [`plugins`].
pub const NAMES: [&str; 3] = ["serverless-pre-function", "serverless-post-function", "exit-transformer"];

/// The plugins of APISIX that run scripts of their configuration.
pub fn plugins(host: &Arc<Host>) -> Vec<Box<dyn Factory>> {
    vec![
        Box::new(serverless::Serverless::new(NAMES[0], 10_000, host.clone())),
        Box::new(serverless::Serverless::new(NAMES[1], -2000, host.clone())),
        Box::new(exit_transformer::ExitTransformer::new(NAMES[2], host.clone())),
    ]
}
