//! Connections that are opened before a request needs one (`keepalive_pool.min_idle`).
//!
//! Once a second a worker looks at the upstreams that ask for it, and opens what their servers lack. Nobody waits
//! for these connections: one that fails is tried again with the next look, and none takes the place of a
//! connection that is in use or idle.

use std::cell::Cell;
use std::rc::Rc;

use snapshot::{Endpoint, PassHost, Scheme, Upstream};

use super::connect::{Secured, connect_humbly};
use super::pool::Peer;
use super::tls::server_name;
use crate::rt;
use crate::worker::Worker;

/// Connections that one worker opens ahead at a time.
const AT_ONCE: usize = 32;

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Warming(Rc<Cell<usize>>);

/// One connection on its way; counted while it lives.
struct OnItsWay(Rc<Cell<usize>>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Opens what servers lack. Nothing is under way from the look before for longer than connecting may take.
pub(crate) fn look(worker: &Rc<Worker>) {
    let lease = worker.lease();
    // What is under way is not counted server by server, so a look waits for the one before.
    if lease.warm.is_empty() || worker.warming.0.get() > 0 {
        return;
    }
    let upstreams = lease.warm.iter().filter_map(|slot| lease.upstreams.get(*slot));
    // Beginning anywhere, so that one upstream does not keep the others from their turn.
    let all: Vec<_> = upstreams.collect();
    let start = fastrand::usize(..all.len().max(1));
    for upstream in all.iter().cycle().skip(start).take(all.len()) {
        for endpoint in upstream.endpoints.iter().filter(|endpoint| endpoint.weight > 0) {
            let Some((peer, secured)) = peer_of(worker, upstream, endpoint) else { continue };
            let lacks = upstream.min_idle.saturating_sub(worker.pools.count(peer));
            for _ in 0..lacks {
                if worker.warming.0.get() >= AT_ONCE.min(worker.pools.room()) {
                    return;
                }
                open(worker, upstream, peer, endpoint, secured.clone());
            }
        }
    }
}

fn open(worker: &Rc<Worker>, upstream: &Upstream, peer: Peer, endpoint: &Endpoint, secured: Option<Secured>) {
    let count = worker.warming.0.clone();
    count.set(count.get() + 1);
    let way = OnItsWay(count);
    let (worker, addr) = (worker.clone(), endpoint.addr);
    let (keepalive, timeout) = (upstream.keepalive, upstream.timeouts.connect);
    rt::spawn(async move {
        let waiter = worker.clock.waiter();
        let connecting = connect_humbly(&worker, &waiter, addr, secured.as_ref(), timeout, u64::MAX);
        if let Ok(conn) = connecting.await
            && worker.pools.room() > 0
        {
            worker.pools.give(peer, conn, &keepalive, worker.clock.coarse_ms());
        }
        drop(way);
    });
}

/// What a request to this server looks for in the pool; `None` where that depends on the request, or where
/// requests share connections.
fn peer_of(worker: &Worker, upstream: &Upstream, endpoint: &Endpoint) -> Option<(Peer, Option<Secured>)> {
    match (upstream.scheme, &upstream.tls) {
        (Scheme::Http, _) => Some((Peer::plain(endpoint.addr), None)),
        (Scheme::Https, Some(tls)) if tls.lacks.is_none() => {
            let host = match &upstream.pass_host {
                PassHost::Pass => return None,
                PassHost::Node => &*endpoint.authority,
                PassHost::Rewrite(host) => host.as_str(),
            };
            let name = server_name(host.as_bytes(), endpoint.addr);
            let peer = worker.pools.over_tls(endpoint.addr, tls, &name);
            Some((peer, Some(Secured { tls: tls.clone(), name, h2: false })))
        }
        _ => None,
    }
}
