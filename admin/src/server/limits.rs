//! What clients may cost.

use std::time::Duration;

/// What one client, and all together, may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// At once. One more takes the place of the one that has waited longest for a request, or waits until one ends.
    pub connections: usize,
    /// At once of clients that will be refused; more are closed.
    pub strangers: usize,
    /// To send a request's head, and to begin the next one on a kept connection.
    pub head: Duration,
    /// To send a request's body.
    pub body: Duration,
    /// Bytes of a request's body.
    pub body_size: usize,
    /// To take what is buffered of an answer, some 64 KiB.
    pub send: Duration,
    /// From accepting to the last request; an answer under way then has `body` to be finished.
    pub connection: Duration,
}

impl Limits {
    /// What config.yaml says (`deployment.admin`), for requests with small bodies.
    pub fn of(boot: &model::boot::AdminLimits) -> Limits {
        Limits {
            connections: boot.connections,
            strangers: boot.refused_connections,
            head: boot.client_header_timeout,
            body: boot.client_body_timeout,
            body_size: SMALL,
            send: boot.send_timeout,
            connection: boot.connection_timeout,
        }
    }
}

impl Default for Limits {
    /// What an empty config.yaml says.
    fn default() -> Self {
        Limits::of(&model::boot::Boot::default().admin.limits)
    }
}

/// A body that costs nothing to speak of.
pub(super) const SMALL: usize = 64 * 1024;
