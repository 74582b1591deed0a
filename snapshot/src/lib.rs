//! The immutable snapshot that both planes share.
//!
//! The control plane compiles the desired state into a [`Snapshot`] and
//! publishes it; workers only read the current one. A published snapshot
//! never changes; a configuration change makes a new one that shares all
//! untouched parts with the old.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "a test"
    )
)]

pub mod analysis;
pub mod balance;
pub mod certs;
pub mod compile;
pub mod explain;
pub mod health;
pub mod load;
pub mod plan;
mod protocol;
pub mod router;
mod slots;
pub mod streams;
pub mod swap;
pub mod table;
pub mod upstream;

use std::sync::Arc;

use sdk::upstream::Chosen;
use sdk::{Chain, Consumers, Exchange};

pub use compile::{Compiled, Compiler, Maker, Touched, Watched, made};
pub use health::Health;
pub use model::parallel;
pub use plan::{Failure, Plan, Timeouts};
pub use router::Router;
pub use streams::{StreamPlan, Streams};
pub use swap::{Publisher, Reader};
pub use table::Table;
pub use upstream::{Endpoint, PassHost, Policy, RUNTIME_SLOT, Scheme, Upstream};

/// Everything a worker needs to serve, at one revision.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The store's revision this was compiled from.
    pub revision: u64,
    pub router: Router,
    pub upstreams: Table<Upstream>,
    /// Slots of the upstreams to which connections are opened ahead.
    pub warm: Arc<[u32]>,
    pub consumers: Arc<Consumers>,
    /// Server certificates by name.
    pub certificates: certs::Certificates,
    /// The plugin instances of all global rules; run for every request, matched or not.
    pub global: Option<Arc<Chain>>,
    pub streams: Arc<Streams>,
}

impl Snapshot {
    /// The upstream of a plan in this snapshot, or why it has none.
    #[inline]
    pub fn upstream(&self, plan: &Plan) -> Result<&Arc<Upstream>, Failure> {
        self.upstreams.get(plan.upstream()?).ok_or(Failure::NoUpstreamObject)
    }

    /// The upstream of an exchange: that of its plan, or the one that a plugin has chosen or made.
    pub fn target(&self, plan: &Plan, x: &Exchange<'_>) -> Result<Arc<Upstream>, Failure> {
        if let Some(upstream) = made(x) {
            return Ok(upstream);
        }
        match x.engine().forward.upstream {
            None => self.upstream(plan).cloned(),
            Some(chosen) => self.chosen(chosen).cloned(),
        }
    }

    /// The upstream that a plugin has chosen.
    #[inline]
    pub fn chosen(&self, chosen: Chosen) -> Result<&Arc<Upstream>, Failure> {
        chosen.and_then(|slot| self.upstreams.get(slot)).ok_or(Failure::NoUpstreamObject)
    }
}
