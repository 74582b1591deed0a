//! The outcome of an exchange.

use crate::tunnel::Tunnel;

/// How an exchange ended for the client.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has its answer, whole.
    Answered,
    /// It is gone.
    Gone,
    /// The response broke off; the client must notice.
    Broken,
    /// Both connections are a tunnel. Boxed, as every outcome is moved and few are this one.
    Tunnel(Box<Tunnel>),
}
