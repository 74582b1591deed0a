//! A plugin config: plugins that several routes share.

use serde::Deserialize;

use crate::field::{Meta, Plugins};

/// plugins that several routes share.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PluginConfig {
    #[serde(flatten)]
    pub meta: Meta,
    pub plugins: Plugins,
}
