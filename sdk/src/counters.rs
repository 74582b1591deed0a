//! Rate-limit counters shared by all workers.

/// The node's counters.
#[derive(Debug, Default)]
pub struct Counters {}
