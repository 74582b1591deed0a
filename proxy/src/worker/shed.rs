//! Closes idle connections when room or descriptors run out, those to upstreams first.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Worker;
use crate::notice::count;
use crate::rt;

/// The most idle connections of clients that are closed at once to make room, so that a look at all of them pays
/// (nginx closes as many). A connection that serves a stream which began in the meantime counts until `room_by`.
const CLOSED_FOR_ROOM: usize = 32;

/// An idle connection that gives way ends within this time and twice `linger_timeout`: a client of many streams
/// must learn of it first.
const ENDING: Duration = Duration::from_secs(2);

/// Idle connections that are closed at once when descriptors have run out.
const CLOSED_FOR_DESCRIPTORS: usize = 8;

impl Worker {
    /// Closes idle connections to upstreams when another worker has no descriptors left.
    pub(super) fn yield_descriptors(&self) {
        let pressure = self.pressure.load(Ordering::Relaxed);
        if self.pressure_seen.replace(pressure) != pressure {
            self.close_idle_upstreams(self.pools.len().div_ceil(4));
        }
    }

    /// A datagram goes nowhere.
    #[cold]
    pub(crate) fn drop_datagram(&self) {
        self.shard.datagram_dropped();
        count(&self.notices.datagrams, 1);
    }

    /// Asks the other workers for descriptors.
    pub(crate) fn ask_for_descriptors(&self) {
        self.pressure.fetch_add(1, Ordering::Relaxed);
    }

    /// Closes those idle connections of clients that have been idle longest, for new ones. True if
    /// there were any; they end with the next turn, those of many streams a little later.
    pub(crate) fn close_idle_clients(&self) -> bool {
        let closed = self.clock.end_longest_rests(CLOSED_FOR_ROOM);
        count(&self.notices.closed_for_room, closed as u64);
        self.shard.idle_clients_closed(closed as u64);
        if closed > 0 {
            self.room_by.set(self.clock.after(2 * self.settings.timeouts.linger + ENDING));
        }
        closed > 0
    }

    /// The same for a client that can come again, unless as many are ending already and still have time to. True if
    /// there is room now or will be soon.
    #[cold]
    pub(crate) async fn make_room(&self) -> bool {
        if self.clock.giving_way() < CLOSED_FOR_ROOM || self.clock.is_over(self.room_by.get()) {
            self.close_idle_clients();
        }
        rt::turn().await;
        !self.is_full() || self.clock.giving_way() > 0 && !self.clock.is_over(self.room_by.get())
    }

    /// Makes descriptors free: idle connections to upstreams go first, then idle clients, which end
    /// with the next turn. False if this worker has neither; the others are asked for some.
    #[cold]
    pub(crate) fn free_descriptors(&self) -> bool {
        count(&self.notices.shortages, 1);
        self.shard.out_of_descriptors();
        let upstreams = self.close_idle_upstreams(CLOSED_FOR_DESCRIPTORS);
        if upstreams > 0 {
            return true;
        }
        let clients = self.clock.end_longest_rests(CLOSED_FOR_DESCRIPTORS);
        count(&self.notices.clients_closed, clients as u64);
        self.shard.idle_clients_closed(clients as u64);
        if clients == 0 {
            self.ask_for_descriptors();
        }
        clients > 0
    }

    /// Closes some of the connections to upstreams that have been idle longest.
    pub(crate) fn close_idle_upstreams(&self, most: usize) -> usize {
        let closed = match self.pools.close_oldest(most) {
            // Connections that carry many requests at a time go last.
            0 if most > 0 => self.links.close_idle(),
            closed => closed,
        };
        count(&self.notices.upstreams_closed, closed as u64);
        self.shard.idle_upstreams_closed(closed as u64);
        closed
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use snapshot::upstream::Keepalive;

    use super::*;
    use crate::clock::Waiter;
    use crate::rt::Io;
    use crate::rt::memory::{self, Schedule};
    use crate::settings::Settings;
    use crate::testing::{beside_worker, sleep};
    use crate::up::h1::Conn;
    use crate::up::links::Target;
    use crate::up::pool::Peer;

    const KEEP: Keepalive = Keepalive { size: 9, idle_timeout: Duration::from_secs(60), requests: 9 };

    /// Keeps a connection to an upstream.
    fn keep(worker: &Worker) {
        let (_, far) = memory::pair(Schedule::default(), Schedule::default());
        let peer = Peer::plain(([10, 0, 0, 1], 80).into());
        worker.pools.give(peer, Conn::new(Io::Memory(far)), &KEEP, worker.clock.coarse_ms());
    }

    #[test]
    fn connections_to_upstreams_give_way_before_clients_and_other_workers_are_asked_last() {
        beside_worker(Settings::default(), async |worker, _| {
            let asked = || worker.pressure.load(Ordering::Relaxed);
            assert!(!worker.close_idle_clients(), "there are none");
            assert!(!worker.free_descriptors(), "there is nothing");
            assert_eq!(asked(), 1);
            let client = worker.clock.waiter();
            client.rest();
            keep(&worker);
            assert!(worker.free_descriptors());
            assert!(!client.is_unwanted());
            assert_eq!(worker.pools.len(), 0);
            assert!(worker.free_descriptors());
            assert!(client.is_unwanted());
            assert_eq!(asked(), 1, "there was something here");
        });
    }

    #[test]
    fn there_is_room_soon_while_an_idle_client_ends_but_not_for_ever() {
        let settings = Settings::with(|settings| settings.limits.connections = 0);
        beside_worker(settings, async |worker, _| {
            assert!(!worker.make_room().await, "there are no clients");
            let clients: Vec<_> = (0..40).map(|_| worker.clock.waiter()).collect();
            assert!(!worker.make_room().await, "none of them is idle");
            clients[0].rest();
            assert!(worker.make_room().await);
            assert!(clients[0].is_unwanted());
            assert!(worker.make_room().await, "it has not ended yet");
            sleep(Duration::from_secs(5)).await;
            assert!(!worker.make_room().await, "it does not end");
            clients[1..].iter().for_each(Waiter::rest);
            while clients.iter().filter(|client| client.is_unwanted()).count() < CLOSED_FOR_ROOM {
                assert!(worker.make_room().await);
            }
            let left = clients.iter().filter(|client| !client.is_unwanted()).count();
            assert!(worker.make_room().await);
            assert_eq!(clients.iter().filter(|client| !client.is_unwanted()).count(), left, "enough end");
            drop(clients);
            assert!(!worker.make_room().await);
        });
    }

    #[test]
    fn clients_that_go_on_do_not_keep_others_from_giving_way() {
        let settings = Settings::with(|settings| settings.limits.connections = 0);
        beside_worker(settings, async |worker, _| {
            let mut clients: Vec<_> = (0..8 * CLOSED_FOR_ROOM).map(|_| worker.clock.waiter()).collect();
            clients.iter().for_each(Waiter::rest);
            assert!(worker.make_room().await);
            // Each of them serves a stream that began before its client knew.
            clients.iter().filter(|client| client.is_unwanted()).for_each(Waiter::end_rest);
            assert_eq!(worker.clock.giving_way(), CLOSED_FOR_ROOM);
            let gives_way = |clients: &[Waiter]| clients.iter().any(Waiter::is_unwanted);
            assert!(worker.make_room().await);
            assert!(!gives_way(&clients), "as many end already");
            sleep(Duration::from_secs(5)).await;
            assert!(worker.make_room().await);
            assert!(gives_way(&clients), "they have not ended in time");
            clients.clear();
        });
    }

    #[test]
    fn a_worker_gives_up_a_quarter_once_for_each_that_asks() {
        beside_worker(Settings::default(), async |worker, _| {
            (0..8).for_each(|_| keep(&worker));
            worker.yield_descriptors();
            assert_eq!(worker.pools.len(), 8, "no descriptors are needed yet");
            worker.ask_for_descriptors();
            worker.yield_descriptors();
            worker.yield_descriptors();
            assert_eq!(worker.pools.len(), 6);
        });
    }

    #[test]
    fn connections_for_many_requests_go_last_and_only_where_something_is_to_go() {
        beside_worker(Settings::default(), async |worker, _| {
            let addr = ([10, 0, 0, 1], 80).into();
            let target = Target {
                peer: Peer::plain(addr).with_h2(),
                place: addr.into(),
                secured: None,
                connect_timeout: KEEP.idle_timeout,
                send_timeout: KEEP.idle_timeout,
                keepalive: KEEP,
            };
            let waiter = worker.clock.waiter();
            {
                let placing = pin!(worker.links.place(&worker, &waiter, target, false));
                assert!(placing.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            assert_eq!(worker.close_idle_upstreams(0), 0);
            assert_eq!(worker.close_idle_upstreams(1), 1);
        });
    }

    #[test]
    fn a_datagram_that_goes_nowhere_is_counted_and_reported() {
        beside_worker(Settings::default(), async |worker, meters| {
            worker.drop_datagram();
            assert_eq!(meters.read(1, |reading| reading.totals().datagrams_dropped), 1);
            assert_eq!(worker.notices.datagrams.get(), 1);
        });
    }
}
