//! Response caches shared by all workers.

/// The node's cache zones.
#[derive(Debug, Default)]
pub struct Caches {}
