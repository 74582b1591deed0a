//! hot path
//!
//! Idle upstream connections, kept by the worker from exchange to exchange.
//!
//! Keyed by address, so they outlive configuration changes. Last in, first out:
//! the connection used next is the one least likely to have been closed by the
//! other side.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;

use hashbrown::HashMap;
use snapshot::upstream::Keepalive;

use crate::rt;

/// A connection to an upstream server.
#[derive(Debug)]
pub(crate) struct UpConn {
    pub(crate) stream: rt::Stream,
    /// Requests it has carried.
    pub(crate) requests: u64,
    /// It has carried a request before this one, so it may have died unnoticed.
    pub(crate) reused: bool,
}

#[derive(Debug)]
struct Idle {
    conn: UpConn,
    /// Milliseconds of the worker's clock: when it was put back, and when it must go.
    since: u64,
    until: u64,
}

/// A worker's idle upstream connections.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    by_addr: RefCell<HashMap<SocketAddr, Vec<Idle>, foldhash::fast::RandomState>>,
    idle: Cell<usize>,
}

/// After so many milliseconds of idleness the kernel is asked whether a connection still
/// lives before a request is put on it.
const TRUSTED_MS: u64 = 500;

impl Pools {
    /// An idle connection to this server that is still open, as far as can be known. With
    /// `careful` (a request that must not be sent twice) the kernel is asked in any case; else
    /// only after a while, or when something happened on it. That may be nothing but the late
    /// report of a response's last piece, which was read along with the piece before.
    pub(crate) fn take(&self, addr: SocketAddr, now: u64, careful: bool) -> Option<UpConn> {
        let mut all = self.by_addr.borrow_mut();
        let idle = all.get_mut(&addr)?;
        while let Some(candidate) = idle.pop() {
            self.idle.set(self.idle.get() - 1);
            let stream = &candidate.conn.stream;
            let ask = careful || now.saturating_sub(candidate.since) > TRUSTED_MS || stream.has_news();
            if candidate.until > now && (!ask || stream.is_quiet()) {
                return Some(candidate.conn);
            }
        }
        None
    }

    /// Keeps a connection whose response was read to its end.
    pub(crate) fn give(&self, addr: SocketAddr, mut conn: UpConn, keepalive: &Keepalive, now: u64) {
        if conn.requests >= keepalive.requests || keepalive.size == 0 || keepalive.idle_timeout.is_zero() {
            return;
        }
        let mut all = self.by_addr.borrow_mut();
        let idle = all.entry(addr).or_default();
        if idle.len() >= keepalive.size {
            return;
        }
        conn.reused = true;
        idle.push(Idle { conn, since: now, until: now + keepalive.idle_timeout.as_millis() as u64 });
        self.idle.set(self.idle.get() + 1);
    }

    /// Closes what has been idle too long or was closed by the other side.
    pub(crate) fn sweep(&self, now: u64) {
        let mut all = self.by_addr.borrow_mut();
        all.retain(|_, idle| {
            idle.retain(|one| {
                let stream = &one.conn.stream;
                one.until > now && (!stream.has_news() || stream.is_quiet())
            });
            !idle.is_empty()
        });
        self.idle.set(all.values().map(Vec::len).sum());
    }
}
