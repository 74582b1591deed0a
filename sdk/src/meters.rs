//! Metrics: each worker counts in its own shard, a scrape sums them.

/// All shards of the node.
#[derive(Debug, Default)]
pub struct Meters {}

/// One worker's part.
#[derive(Debug, Default)]
pub struct Shard {}
