//! What the Admin API is told at the start (`deployment.admin` of config.yaml).

use ipnet::IpNet;

pub use model::boot::{AdminKey, AdminRole};

use crate::server::Limits;

/// A part of [`model::boot::Admin`], and the list of plugins.
#[derive(Debug, Clone)]
pub struct Config {
    /// Without any, nobody gets in (unless `key_required` is off). An empty one never fits.
    pub keys: Vec<AdminKey>,
    /// `admin_key_required`: `false` lets everyone in whom `allow` lets in.
    pub key_required: bool,
    /// `hosts` (ours): names with a dot under which whoever needs no key may ask.
    pub hosts: Vec<String>,
    /// `allow_admin`: the networks that may connect.
    pub allow: Vec<IpNet>,
    /// `max_failed_keys` (ours): wrong keys an address may send in a minute; 0 is no limit.
    pub failed_keys: u32,
    /// `enable_admin_cors`.
    pub cors: bool,
    /// `admin_api_version: v2`: the envelopes of APISIX 2.
    pub v2: bool,
    /// `enable_server_tokens`: whether `Server` tells the version.
    pub server_tokens: bool,
    /// The `plugins` list of config.yaml, used until the store has one; `None` switches all on.
    pub plugins: Option<Vec<String>>,
    /// `proxy_mode` has streams, so that stream routes may be written.
    pub streams: bool,
    /// The `stream_plugins` list of config.yaml, used unless the store has one; `None` switches all on.
    pub stream_plugins: Option<Vec<String>>,
    /// The protocols within streams of `xrpc.protocols`.
    pub protocols: Vec<String>,
    /// What clients of the Admin API may cost; bodies have a bound of their own.
    pub limits: Limits,
}

impl Config {
    /// What config.yaml says; the caller replaces empty keys by made ones first.
    pub fn of(boot: &model::boot::Admin, plugins: Option<Vec<String>>) -> Config {
        Config {
            keys: boot.keys.clone(),
            key_required: boot.key_required,
            hosts: boot.hosts.clone(),
            allow: boot.allow.clone(),
            failed_keys: boot.limits.failed_keys,
            cors: boot.cors,
            v2: boot.version == model::boot::AdminVersion::V2,
            server_tokens: true,
            plugins,
            streams: false,
            stream_plugins: None,
            protocols: Vec::new(),
            limits: Limits::of(&boot.limits),
        }
    }
}

impl Default for Config {
    /// From this machine only, with a key (of which there is none yet).
    fn default() -> Self {
        Config {
            keys: Vec::new(),
            key_required: true,
            hosts: Vec::new(),
            failed_keys: model::boot::Boot::default().admin.limits.failed_keys,
            allow: vec![IpNet::new_assert([127, 0, 0, 0].into(), 24)],
            cors: true,
            v2: false,
            server_tokens: true,
            plugins: None,
            streams: false,
            stream_plugins: None,
            protocols: Vec::new(),
            limits: Limits::default(),
        }
    }
}
