//! The control plane: keeps the desired configuration, follows its changes,
//! compiles them and publishes snapshots.

#![forbid(unsafe_code)]

pub mod acme;
pub mod certificates;
pub mod discovery;
pub mod fold;
pub mod health;
pub mod look;
pub mod names;
pub mod pipeline;
pub mod references;
pub mod secrets;
pub mod store;
pub mod tasks;

pub use pipeline::{Handle, Pipeline, Report};
/// Input for the OCSP fetcher.
pub use snapshot::compile::Stapling;
