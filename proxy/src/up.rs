//! Towards upstreams: connections, and the pools that keep them.

pub(crate) mod connect;
pub(crate) mod pool;
