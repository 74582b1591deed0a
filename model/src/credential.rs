//! A credential: one way a consumer may prove itself, kept apart from the consumer.

use serde::Deserialize;
use serde_json::Value;

use crate::field::{Meta, Plugins, typed};
use crate::{Invalid, Key};

/// A credential of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct Credential {
    pub meta: Meta,
    /// The consumer it belongs to, from the key.
    pub username: String,
    /// At most one, of an authentication plugin.
    pub plugins: Plugins,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    plugins: Plugins,
}

impl Credential {
    /// Types a value that has passed its schema.
    pub(crate) fn read(key: &Key, value: Value) -> Result<Credential, Invalid> {
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
        Ok(Credential {
            meta,
            username: key.owner().unwrap_or_default().to_owned(),
            plugins: written.plugins,
        })
    }
}
