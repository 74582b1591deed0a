//! server-info: describes this instance in the control API: `GET /v1/server_info`.
//!
//! The plugin has no settings of its own and stands on no route. Where it is in use (in the list of plugins, or there
//! is no list), the control API answers `GET /v1/server_info` with:
//!
//! - `id`: `apisix.id` of config.yaml; without one, what stands in `instance.id` in the data folder, where it is made when it is
//!   first asked for
//! - `hostname` of the machine, `version` of Sluice, and `boot_time`, when this process started, in seconds since 1970
//! - `etcd_version`, that of the member of etcd that is asked; `unknown` where resources are not in etcd, and while it does not answer
//!
//! Where resources are in etcd and the list of plugins in config.yaml names the plugin, the same and `dashboard`, the address
//! of its page, stand in etcd under `/apisix/data_plane/server_info/ID` for as long as the instance runs, and
//! `plugin_attr.server-info.report_ttl` (60, from 3 to 86400 seconds) longer. As in APISIX, data planes write nothing there.
//! The dashboard of each instance lists the others.

use model::Invalid;
use sdk::chain::Phases;
use sdk::{Build, Plugin};
use serde::Deserialize;
use serde_json::{Value, json};

/// The stage, which does nothing.
pub struct ServerInfo;

#[derive(Debug, Deserialize)]
pub struct Config {}

impl Plugin for ServerInfo {
    const NAME: &'static str = "server-info";
    const PRIORITY: i32 = 990;
    const PHASES: Phases = Phases::NONE;
    type Config = Config;

    fn schema() -> Value {
        json!({"type": "object"})
    }

    fn build(_config: Config, _cx: &mut Build<'_>) -> Result<ServerInfo, Invalid> {
        Ok(ServerInfo)
    }
}
