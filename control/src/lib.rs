//! The control plane: keeps the desired configuration, follows its changes,
//! compiles them and publishes snapshots.

#![forbid(unsafe_code)]

pub mod references;
pub mod store;
