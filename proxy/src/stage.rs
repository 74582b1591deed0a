//! The stages of a process that ends.

/// The stage of a worker's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stage {
    #[default]
    Run,
    /// No new connections; exchanges in flight end, each the last on its connection. Connections
    /// that bring no request for a while are closed.
    Drain,
    /// The same, and another process has the listening sockets: datagrams are its own from now on.
    HandOver,
    /// Everything ends now.
    Stop,
}
