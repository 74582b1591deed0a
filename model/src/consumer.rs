//! A consumer: a user of the gateway, found by an authentication plugin.

use serde::Deserialize;
use serde_json::Value;

use crate::field::{self, Meta, Plugins, take_plugins, typed};
use crate::{Invalid, Key};

/// A consumer of APISIX 3.x. Its id is its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Consumer {
    pub meta: Meta,
    pub username: String,
    pub group_id: Option<String>,
    /// Credentials of authentication plugins, and plugins that run for this consumer.
    pub plugins: Plugins,
}

#[derive(Deserialize)]
struct Raw {
    username: String,
    #[serde(default, deserialize_with = "field::id_opt")]
    group_id: Option<String>,
}

impl Consumer {
    /// Types a value that has passed its schema.
    pub(crate) fn read(key: &Key, mut value: Value) -> Result<Consumer, Invalid> {
        let plugins = take_plugins(&mut value);
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
        if written.username != key.id {
            return Err(Invalid::new("wrong username")
                .at("/username")
                .expected(format!("`{}`, as in the path", key.id))
                .hint("make the username in the value and in the path agree"));
        }
        Ok(Consumer { meta, username: written.username, group_id: written.group_id, plugins })
    }

    /// The value of `X-Consumer-Custom-ID`.
    pub fn custom_id(&self) -> Option<&str> {
        self.meta.labels.as_ref()?.get("custom_id").map(String::as_str)
    }

    /// The consumer's labels.
    pub fn labels(&self) -> impl Iterator<Item = (&String, &String)> {
        self.meta.labels.iter().flat_map(|labels| labels.iter())
    }
}
