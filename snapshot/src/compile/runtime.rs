//! Upstreams that plugins make while the gateway runs.
//!
//! They are compiled like those of resources, but on the worker that uses them: nothing supervises them, so they have
//! neither health checks nor nodes of a registry.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use model::Invalid;
use sdk::build::Names;
use sdk::upstream::{MakeUpstream, RuntimeUpstream};
use sdk::{Catalog, Exchange};
use serde_json::Value;

use super::{Compiler, Settings};
use crate::upstream::{RUNTIME_SLOT, Upstream};

/// Makes upstreams; see [`MakeUpstream`].
pub struct Maker(Compiler);

impl Maker {
    pub fn new(catalog: Arc<dyn Catalog>, settings: Settings) -> Maker {
        Maker(Compiler::new(catalog, settings))
    }
}

impl MakeUpstream for Maker {
    fn make(
        &self,
        id: &str,
        settings: &Value,
        addresses: &[(String, Vec<IpAddr>)],
    ) -> Result<RuntimeUpstream, Invalid> {
        let written = model::Upstream::parse(settings)?;
        let refused = |field: &str| {
            Invalid::new(format!("`{field}` is not available to upstreams that a plugin makes")).within(field)
        };
        if written.discovery.is_some() {
            return Err(refused("service_name"));
        }
        if written.checks.is_some() {
            return Err(refused("checks"));
        }
        if written.own.is_some() {
            return Err(refused("sluice"));
        }
        static SLOT: AtomicU32 = AtomicU32::new(0);
        let mut upstream = self.0.upstream(id, &written, &Known(addresses))?;
        upstream.slot = RUNTIME_SLOT | SLOT.fetch_add(1, Ordering::Relaxed);
        Ok(RuntimeUpstream(Arc::new(upstream)))
    }
}

/// The upstream that a plugin has made for this exchange.
pub fn made(x: &Exchange<'_>) -> Option<Arc<Upstream>> {
    x.engine().runtime_upstream.as_ref()?.0.clone().downcast().ok()
}

/// Addresses that are known before.
struct Known<'a>(&'a [(String, Vec<IpAddr>)]);

impl Names for Known<'_> {
    fn addresses(&self, host: &str) -> Vec<IpAddr> {
        let found = self.0.iter().find(|(name, _)| name == host);
        found.map(|(_, addresses)| addresses.clone()).unwrap_or_default()
    }
}
