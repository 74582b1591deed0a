//! The settings of scripts, and the program's services for them.

use std::sync::Arc;
use std::time::Duration;

use sdk::upstream::RuntimeUpstreams;
use serde_json::{Map, Value};

use super::libs::shared::Dictionaries;
pub use crate::log::{Level, Log};

/// Limits of scripts.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bytes of one machine: of all scripts of a worker.
    pub max_memory: usize,
    /// How long code may run without a wait.
    pub max_time: Duration,
    /// Sockets of scripts that may be open on one worker.
    pub max_sockets: usize,
    /// Whether scripts may connect to sockets in the file system.
    pub unix_sockets: bool,
    /// `plugin_attr` of plugins that are not built in.
    pub attrs: Map<String, Value>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_memory: 64 << 20,
            max_time: Duration::from_secs(1),
            max_sockets: 256,
            unix_sockets: false,
            attrs: Map::new(),
        }
    }
}

/// The program, as scripts see it.
pub struct Host {
    pub settings: Settings,
    pub log: Box<dyn Log>,
    /// `ngx.shared`.
    pub dictionaries: Dictionaries,
    /// The maker of upstreams for `apisix.upstream.set`.
    pub upstreams: Option<Arc<RuntimeUpstreams>>,
}

impl Host {
    pub fn new(
        settings: Settings,
        log: Box<dyn Log>,
        dictionaries: Dictionaries,
        upstreams: Option<Arc<RuntimeUpstreams>>,
    ) -> Arc<Host> {
        Arc::new(Host { settings, log, dictionaries, upstreams })
    }
}
