//! A service: what several routes share.

use serde::Deserialize;
use serde_json::Value;

use crate::Invalid;
use crate::field::{self, Meta, Plugins, take, take_plugins, typed};
use crate::route;
use crate::upstream::Upstream;

/// A service of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub meta: Meta,
    pub plugins: Plugins,
    /// Code in the place of the plugins of its routes, unless they have code of their own; not looked into here.
    pub script: Option<Box<str>>,
    pub upstream: Option<Box<Upstream>>,
    pub upstream_id: Option<String>,
    /// For routes that do not say.
    pub enable_websocket: Option<bool>,
    /// For routes that name no host; in lower case.
    pub hosts: Vec<String>,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, deserialize_with = "field::id_opt")]
    upstream_id: Option<String>,
    script: Option<Box<str>>,
    enable_websocket: Option<bool>,
    hosts: Option<Vec<String>>,
}

impl Service {
    /// Types a value that has passed its schema.
    pub(crate) fn read(mut value: Value) -> Result<Service, Invalid> {
        let (plugins, upstream) = (take_plugins(&mut value), take(&mut value, "upstream"));
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
        Ok(Service {
            meta,
            plugins,
            script: written.script,
            upstream: upstream.map(Upstream::read_inside).transpose()?,
            upstream_id: written.upstream_id,
            enable_websocket: written.enable_websocket,
            hosts: route::hosts(None, written.hosts),
        })
    }
}
