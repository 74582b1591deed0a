//! A route: which requests it takes, and what is done with them.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::Invalid;
use crate::field::{self, Meta, Plugins, Timeout, networks, take, take_plugins, typed};
use crate::upstream::Upstream;

/// A route of APISIX 3.x.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    pub meta: Meta,
    /// From `uri` or `uris`; at least one.
    pub uris: Vec<String>,
    /// From `host` or `hosts`, in lower case; empty if any host will do.
    pub hosts: Vec<String>,
    /// From `remote_addr` or `remote_addrs`; empty if any client will do.
    pub remote_addrs: Vec<IpNet>,
    /// Upper-case names; empty if any method will do.
    pub methods: Vec<String>,
    /// Higher first among routes of the same path.
    pub priority: i64,
    /// An expression of lua-resty-expr, an array, not looked into here.
    pub vars: Option<Box<Value>>,
    /// Code of a function that decides, too; not looked into here.
    pub filter_func: Option<Box<str>>,
    /// Code in the place of plugins; not looked into here.
    pub script: Option<Box<str>>,
    pub plugins: Plugins,
    pub plugin_config_id: Option<String>,
    pub service_id: Option<String>,
    pub upstream: Option<Box<Upstream>>,
    pub upstream_id: Option<String>,
    /// Beats the upstream's.
    pub timeout: Option<Box<Timeout>>,
    /// `None` leaves it to the service.
    pub enable_websocket: Option<bool>,
    /// `status` is 1.
    pub enabled: bool,
}

/// The fields as written.
#[derive(Deserialize)]
struct Raw {
    uri: Option<String>,
    uris: Option<Vec<String>>,
    host: Option<String>,
    hosts: Option<Vec<String>>,
    remote_addr: Option<String>,
    remote_addrs: Option<Vec<String>>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    priority: i64,
    #[serde(default, deserialize_with = "field::id_opt")]
    plugin_config_id: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    service_id: Option<String>,
    #[serde(default, deserialize_with = "field::id_opt")]
    upstream_id: Option<String>,
    filter_func: Option<Box<str>>,
    script: Option<Box<str>>,
    timeout: Option<Box<Timeout>>,
    enable_websocket: Option<bool>,
    status: Option<i64>,
}

impl Route {
    /// Types a value that has passed its schema.
    pub(crate) fn read(mut value: Value) -> Result<Route, Invalid> {
        let plugins = take_plugins(&mut value);
        let (vars, upstream) = (take(&mut value, "vars"), take(&mut value, "upstream"));
        let meta = Meta::of(&value)?;
        let written: Raw = typed(value)?;
        Ok(Route {
            meta,
            uris: one_or_many(written.uri, written.uris),
            hosts: hosts(written.host, written.hosts),
            remote_addrs: networks("remote_addr", written.remote_addr, written.remote_addrs)?,
            methods: written.methods,
            priority: written.priority,
            vars: vars.map(Box::new),
            filter_func: written.filter_func,
            script: written.script,
            plugins,
            plugin_config_id: written.plugin_config_id,
            service_id: written.service_id,
            upstream: upstream.map(Upstream::read_inside).transpose()?,
            upstream_id: written.upstream_id,
            timeout: written.timeout,
            enable_websocket: written.enable_websocket,
            enabled: written.status != Some(0),
        })
    }
}

/// Refuses both of a pair, with the words APISIX has for that before it looks at the schema.
pub(crate) fn check_pairs(value: &Value) -> Result<(), Invalid> {
    for (one, many) in [("host", "hosts"), ("remote_addr", "remote_addrs")] {
        if value.get(one).is_some() && value.get(many).is_some() {
            return Err(Invalid::new(format!("only one of {one} or {many} is allowed"))
                .within(one)
                .hint(format!("move the `{one}` into `{many}`")));
        }
    }
    Ok(())
}

/// Joins the values of two fields, such as `uri` and `uris`, without spare capacity.
fn one_or_many(one: Option<String>, many: Option<Vec<String>>) -> Vec<String> {
    let mut all: Vec<String> = one.into_iter().chain(many.into_iter().flatten()).collect();
    all.shrink_to_fit();
    all
}

/// One list of hosts, in lower case as they are compared (RFC 9110 4.2.3).
pub(crate) fn hosts(one: Option<String>, many: Option<Vec<String>>) -> Vec<String> {
    let mut hosts = one_or_many(one, many);
    hosts.iter_mut().for_each(|host| host.make_ascii_lowercase());
    hosts
}
