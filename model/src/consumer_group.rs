//! A consumer group: plugins that several consumers share.

use serde::Deserialize;

use crate::field::{Meta, Plugins};

/// plugins that several consumers share.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ConsumerGroup {
    #[serde(flatten)]
    pub meta: Meta,
    pub plugins: Plugins,
}
