//! Limits that several nodes share through Redis: one server, the master that sentinels name, or a cluster. Values that
//! they share are on one server.
//!
//! Keys and scripts are APISIX's ([`script`]). Each decision is one script and one round trip, in a pipeline that all
//! requests of a worker share ([`link`]); in a cluster, a sliding window takes a second one. A server that hangs, fails
//! or refuses costs a request at most the policy's timeout.

mod command;
mod delayed;
mod limiter;
mod link;
mod script;
mod servers;
mod settings;
mod storage;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use model::Invalid;
use sdk::Build;
use sdk::limit::{self, Limits, Scope, Wanted};

use delayed::Delayed;
use limiter::RedisLimiter;
use script::Scripts;
use sdk::storage::Storages;
use servers::Access;
use settings::Settings;
use storage::RedisBackend;

/// Adds the policies `redis`, `redis-cluster` and `redis-sentinel`.
pub fn policies(limits: Limits) -> Limits {
    let scripts = Arc::new(Scripts::new());
    ["redis", "redis-cluster", "redis-sentinel"]
        .into_iter()
        .fold(limits, |limits, name| limits.with(name, Arc::new(Policy { scripts: scripts.clone() })))
}

/// Adds the storage `redis`.
pub fn storages(storages: Storages) -> Storages {
    storages.with("redis", Arc::new(RedisBackend))
}

struct Policy {
    scripts: Arc<Scripts>,
}

impl limit::Policy for Policy {
    fn limiter(
        &self,
        scope: &Scope,
        wanted: &Wanted<'_>,
        cx: &Build<'_>,
    ) -> Result<Arc<dyn limit::Limiter>, Invalid> {
        let settings = Settings::read(wanted.policy, wanted.settings)?;
        let access = Access::new(settings, cx);
        let limiter = RedisLimiter::new(wanted.plugin, scope.clone(), access, self.scripts.clone());
        let interval = wanted.settings.get("sync_interval").and_then(serde_json::Value::as_f64);
        match interval.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(interval) => Ok(Arc::new(Delayed::new(limiter, interval, wanted, cx)?)),
            None => Ok(Arc::new(limiter)),
        }
    }
}
