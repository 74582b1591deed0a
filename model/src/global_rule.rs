//! A global rule: plugins that run for every request, matched or not.

use serde::Deserialize;

use crate::field::{Meta, Plugins};

/// plugins that run for every request, matched or not.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct GlobalRule {
    #[serde(flatten)]
    pub meta: Meta,
    pub plugins: Plugins,
}
