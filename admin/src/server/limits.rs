//! Limits on clients of the HTTP/1 server.

use std::time::Duration;

/// Limits on connections, request sizes and times.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Concurrent connections. One more replaces the connection that has waited longest for a request, or waits
    /// until one ends.
    pub connections: usize,
    /// Concurrent connections of clients that will be refused; more are closed.
    pub strangers: usize,
    /// Time to send a request's head, and to begin the next one on a kept-alive connection.
    pub head: Duration,
    /// Time to send a request's body.
    pub body: Duration,
    /// Bytes of a request's body.
    pub body_size: usize,
    /// Time to read the buffered part of an answer, some 64 KiB.
    pub send: Duration,
    /// Time from accepting a connection to its last request; an answer under way then has `body` to finish.
    pub connection: Duration,
}

impl Limits {
    /// Takes the limits from config.yaml (`deployment.admin`), with the body size of [`SMALL`].
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
    /// Returns the limits of an empty config.yaml.
    fn default() -> Self {
        Limits::of(&model::boot::Boot::default().admin.limits)
    }
}

/// Bytes of a body where requests need none or a short one.
pub(super) const SMALL: usize = 64 * 1024;
