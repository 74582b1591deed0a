//! The immutable picture both planes share.
//!
//! The control plane compiles what operators wrote into a [`Snapshot`] and
//! publishes it; workers only read the current one. Nothing in a published
//! snapshot ever changes; a change of configuration makes a new snapshot that
//! shares all untouched parts with the old one.
#![forbid(unsafe_code)]

pub mod balance;
pub mod compile;
pub mod plan;
pub mod router;
mod slots;
pub mod swap;
pub mod upstream;

use std::sync::Arc;

use sdk::{Chain, Consumers};

pub use compile::{Compiled, Compiler, Rejected, Touched};
pub use plan::{Failure, Plan, Timeouts};
pub use router::Router;
pub use swap::{Publisher, Reader};
pub use upstream::{Endpoint, PassHost, Policy, Scheme, Upstream};

/// Everything a worker needs to serve, at one revision.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The store's revision this was compiled from.
    pub revision: u64,
    pub router: Router,
    pub consumers: Arc<Consumers>,
    /// The stages of all global rules; run for every request, matched or not.
    pub global: Option<Arc<dyn Chain>>,
}
