//! A script: a module in Lua, kept beside the resources that use it.

use serde::Deserialize;

use crate::field::Meta;

/// The text of a module, and its use. It is not loaded here.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Script {
    #[serde(flatten)]
    pub meta: Meta,
    #[serde(default, rename = "type")]
    pub role: Role,
    pub content: String,
}

/// How a script is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It is the plugin of its id.
    #[default]
    Plugin,
    /// It is the plugin of streams of its id.
    StreamPlugin,
    /// Other scripts require it by its id.
    Module,
}

impl Role {
    /// The words of the field `type`.
    pub const WORDS: [&str; 3] = ["plugin", "stream_plugin", "module"];
}
