//! The settings of the Admin API (`deployment.admin` of config.yaml).

use ipnet::IpNet;

pub use model::boot::{AdminKey, AdminRole};

use crate::server::Limits;

/// A part of [`model::boot::Admin`], and the list of plugins.
#[derive(Debug, Clone)]
pub struct Config {
    /// Without any, every request is refused (unless `key_required` is off). An empty key never matches.
    pub keys: Vec<AdminKey>,
    /// `admin_key_required`: with `false`, all addresses in `allow` are admitted without a key.
    pub key_required: bool,
    /// `hosts` (ours): `Host` names with a dot that are accepted where no key is required.
    pub hosts: Vec<String>,
    /// `allow_admin`: the networks that may connect.
    pub allow: Vec<IpNet>,
    /// `max_failed_keys` (ours): wrong keys an address may send in a minute; 0 is no limit.
    pub failed_keys: u32,
    /// `enable_admin_cors`.
    pub cors: bool,
    /// `enable_admin_ui`: serves the dashboard.
    pub ui: bool,
    /// The API speaks TLS, so cookies are for TLS alone.
    pub tls: bool,
    /// `admin_api_version: v2`: the envelopes of APISIX 2.
    pub v2: bool,
    /// `enable_server_tokens`: whether `Server` includes the version.
    pub server_tokens: bool,
    /// The `plugins` list of config.yaml, used until the store has one; `None` switches all on.
    pub plugins: Option<Vec<String>>,
    /// `proxy_mode` has streams, so that stream routes may be written.
    pub streams: bool,
    /// The `stream_plugins` list of config.yaml, used unless the store has one; `None` switches all on.
    pub stream_plugins: Option<Vec<String>>,
    /// The protocols within streams of `xrpc.protocols`.
    pub protocols: Vec<String>,
    /// The limits on clients of the Admin API; the size of bodies is bounded by [`MAX_BODY`](crate::MAX_BODY).
    pub limits: Limits,
}

impl Config {
    /// Builds the settings from config.yaml; the caller first replaces empty keys by generated ones.
    pub fn of(boot: &model::boot::Admin, plugins: Option<Vec<String>>) -> Config {
        Config {
            keys: boot.keys.clone(),
            key_required: boot.key_required,
            hosts: boot.hosts.clone(),
            allow: boot.allow.clone(),
            failed_keys: boot.limits.failed_keys,
            cors: boot.cors,
            ui: boot.ui,
            tls: boot.tls.is_some(),
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
    /// Accepts requests from this machine only and requires a key; there is no key yet.
    fn default() -> Self {
        Config {
            keys: Vec::new(),
            key_required: true,
            hosts: Vec::new(),
            failed_keys: model::boot::Boot::default().admin.limits.failed_keys,
            allow: vec![IpNet::new_assert([127, 0, 0, 0].into(), 24)],
            cors: true,
            ui: true,
            tls: false,
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
