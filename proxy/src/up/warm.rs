//! Connections that are opened before a request needs one (`keepalive_pool.min_idle`).
//!
//! Once a second a worker looks at the upstreams that ask for it, and opens the connections that their servers lack.
//! No request waits for these: one that fails is tried again with the next look, and none takes the place of a
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
    // Connections being opened are not counted server by server, so a look waits for the one before.
    if lease.warm.is_empty() || worker.warming.get() > 0 {
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
                if worker.warming.get() >= AT_ONCE.min(worker.pools.room()) {
                    return;
                }
                open(worker, upstream, peer, endpoint, secured.clone());
            }
        }
    }
}

fn open(worker: &Rc<Worker>, upstream: &Upstream, peer: Peer, endpoint: &Endpoint, secured: Option<Secured>) {
    let count = worker.warming.clone();
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

/// Returns the peer under which a request to this server finds connections in the pool; `None` where that depends
/// on the request, or where requests share connections.
fn peer_of(worker: &Worker, upstream: &Upstream, endpoint: &Endpoint) -> Option<(Peer, Option<Secured>)> {
    match (upstream.scheme, &upstream.tls) {
        (Scheme::Http, _) => Some((Peer::plain(endpoint.addr), None)),
        (Scheme::Https, Some(tls)) if tls.lacks.is_none() => {
            let host = match &upstream.pass_host {
                PassHost::Pass => return None,
                PassHost::Node => &*endpoint.authority,
                PassHost::Rewrite(host) => host.as_str(),
            };
            let name = tls.name.clone().unwrap_or_else(|| server_name(host.as_bytes(), endpoint.addr));
            let peer = worker.pools.over_tls(endpoint.addr, tls, &name);
            Some((peer, Some(Secured { tls: tls.clone(), name, h2: false })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use snapshot::certs::{ClientTls, TlsSettings};
    use snapshot::upstream::Policy;

    use super::*;
    use crate::rt::memory::{End, Schedule, pair, serve};
    use crate::testing::beside;
    use crate::up::h1::Conn;
    use crate::{Settings, testing};

    fn endpoint() -> Endpoint {
        let addr = SocketAddr::from(([10, 0, 0, 1], 80));
        Endpoint { addr, authority: "a.com:8443".into(), weight: 1, priority: 0 }
    }

    /// Servers' ends of connections.
    type Ends = Rc<RefCell<Vec<End>>>;

    /// Runs a test beside a worker with one upstream, whose server takes every connection and says nothing. The worker
    /// looks each second, by the clock that jumps; the test begins half a second before that.
    fn with_idle(settings: Settings, min_idle: usize, test: impl AsyncFnOnce(Rc<Worker>, Ends) + 'static) {
        with_server(settings, endpoint(), min_idle, test);
    }

    fn with_server(
        settings: Settings,
        server: Endpoint,
        min_idle: usize,
        test: impl AsyncFnOnce(Rc<Worker>, Ends) + 'static,
    ) {
        let mut upstream = Upstream::new("1", 0, vec![server], Policy::RoundRobin);
        upstream.settings_mut().min_idle = min_idle;
        let mut snapshot = crate::worker::tests::empty();
        snapshot.upstreams.insert(0, Arc::new(upstream));
        snapshot.warm = Arc::from([0]);
        beside(settings, snapshot, async move |worker, _| {
            let ends = Ends::default();
            let taken = ends.clone();
            serve(endpoint().addr, move || {
                let (near, far) = pair(Schedule::default(), Schedule::default());
                taken.borrow_mut().push(near);
                Ok(far)
            });
            testing::sleep(Duration::from_millis(500)).await;
            test(worker, ends).await;
        });
    }

    async fn after_a_look() {
        testing::sleep(Duration::from_secs(1)).await;
    }

    #[test]
    fn what_a_server_has_closed_is_opened_again() {
        with_idle(Settings::default(), 2, async |worker, ends| {
            for _ in 0..3 {
                after_a_look().await;
                assert_eq!((ends.borrow().len(), worker.pools.len()), (2, 2));
                after_a_look().await;
                assert_eq!((ends.borrow().len(), worker.pools.len()), (2, 2), "none more");
                ends.take();
            }
        });
    }

    #[test]
    fn many_connections_are_not_opened_all_at_once() {
        with_idle(Settings::default(), AT_ONCE + 3, async |worker, ends| {
            for count in [AT_ONCE, AT_ONCE + 3] {
                after_a_look().await;
                assert_eq!((ends.borrow().len(), worker.pools.len()), (count, count));
            }
        });
    }

    #[test]
    fn a_look_waits_for_what_is_under_way() {
        with_idle(Settings::default(), 2, async |worker, ends| {
            look(&worker);
            look(&worker);
            testing::turn().await;
            assert_eq!((ends.borrow().len(), worker.pools.len()), (2, 2));
        });
    }

    #[test]
    fn a_server_without_weight_gets_none() {
        let server = Endpoint { weight: 0, ..endpoint() };
        with_server(Settings::default(), server, 2, async |_, ends| {
            after_a_look().await;
            assert!(ends.borrow().is_empty());
        });
    }

    #[test]
    fn what_is_opened_ahead_takes_the_place_of_nothing() {
        let settings = Settings::with(|settings| settings.limits.idle_upstreams = 1);
        with_idle(settings, 1, async |worker, ends| {
            look(&worker);
            // While that one is on its way, a request is done with another.
            let (_server, io) = pair(Schedule::default(), Schedule::default());
            let other = Peer::plain(([10, 0, 0, 2], 80).into());
            worker.pools.give(other, Conn::new(rt::Io::Memory(io)), &Default::default(), 0);
            testing::turn().await;
            assert_eq!(ends.borrow().len(), 1, "it was opened");
            assert_eq!((worker.pools.len(), worker.pools.count(other)), (1, 1));
        });
    }

    #[test]
    fn connections_are_opened_where_it_is_known_what_requests_look_for() {
        let tls = Arc::new(ClientTls::new(None, None, &TlsSettings::default().provider).unwrap());
        let lacking = Arc::new(tls.lacking("no certificate"));
        beside(Settings::default(), crate::worker::tests::empty(), async move |worker, _| {
            for (scheme, tls, pass_host, name) in [
                (Scheme::Http, None, PassHost::Pass, Some("")),
                (Scheme::Https, Some(&tls), PassHost::Node, Some("a.com")),
                (Scheme::Https, Some(&tls), PassHost::Rewrite("b.com".into()), Some("b.com")),
                // The client names it.
                (Scheme::Https, Some(&tls), PassHost::Pass, None),
                // Requests are refused.
                (Scheme::Https, Some(&lacking), PassHost::Node, None),
                // They share connections.
                (Scheme::H2, Some(&tls), PassHost::Node, None),
                (Scheme::H2c, None, PassHost::Node, None),
            ] {
                let about = format!("{scheme:?} {pass_host:?}");
                let mut upstream = Upstream::new("1", 0, vec![endpoint()], Policy::RoundRobin);
                let settings = upstream.settings_mut();
                (settings.scheme, settings.tls, settings.pass_host) = (scheme, tls.cloned(), pass_host);
                let found = peer_of(&worker, &upstream, &endpoint());
                let found =
                    found.map(|(_, secured)| secured.map_or(String::new(), |one| one.name.to_str().into()));
                assert_eq!(found.as_deref(), name, "{about}");
            }
        });
    }
}
