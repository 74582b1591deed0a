//! hot path
//!
//! Requests that wait for the response to another one with the same key.
#![expect(
    clippy::disallowed_types,
    reason = "a zone is shared by all workers: one lock per shard, held for one map access"
)]

use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_channel::oneshot;
use hashbrown::HashMap;

const SHARDS: usize = 16;

/// The most keys of a shard that are waited for; requests for others do not wait.
const MAX_FLIGHTS: usize = 1024;

/// The most requests that wait for one response; others do not wait.
const MAX_WAITERS: usize = 1024;

/// Requests that wait, by key.
type Shard = HashMap<Box<[u8]>, Vec<oneshot::Sender<()>>>;

/// The keys whose responses are under way, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Flights {
    shards: [Mutex<Shard>; SHARDS],
    hasher: foldhash::fast::RandomState,
}

/// How a request that no stored response answers is sent.
#[derive(Debug)]
pub enum Flight {
    /// Other requests wait until this is dropped.
    Leads(Leader),
    /// Another request is under way.
    Waits(Landing),
    /// Too many requests wait.
    Alone,
}

/// The request that others with the same key wait for. They continue when it is dropped.
#[derive(Debug)]
pub struct Leader {
    flights: Arc<Flights>,
    key: Box<[u8]>,
}

/// Ends when the other request has its response, or has none that is stored.
#[derive(Debug)]
pub struct Landing(oneshot::Receiver<()>);

impl Future for Landing {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx).map(drop)
    }
}

impl Flights {
    pub(super) fn join(self: &Arc<Flights>, key: &[u8]) -> Flight {
        let mut shard = self.shard(key);
        if let Some(waiters) = shard.get_mut(key) {
            if waiters.len() == MAX_WAITERS {
                // Those that gave up make room.
                waiters.retain(|waiter| !waiter.is_canceled());
            }
            if waiters.len() == MAX_WAITERS {
                return Flight::Alone;
            }
            let (done, wait) = oneshot::channel();
            waiters.push(done);
            return Flight::Waits(Landing(wait));
        }
        if shard.len() >= MAX_FLIGHTS {
            return Flight::Alone;
        }
        shard.insert(key.into(), Vec::new());
        Flight::Leads(Leader { flights: self.clone(), key: key.into() })
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let shard = (self.hasher.hash_one(key) >> 32) as usize % SHARDS;
        // A shard is consistent between any two statements that could panic.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // The waiters are woken without the lock.
        let waiters = self.flights.shard(&self.key).remove(&self.key);
        drop(waiters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leads(flights: &Arc<Flights>, key: &[u8]) -> Leader {
        match flights.join(key) {
            Flight::Leads(leader) => leader,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn others_wait_until_the_first_is_over() {
        let flights = Arc::new(Flights::default());
        let first = leads(&flights, b"a");
        let _other_key = leads(&flights, b"b");
        let mut waiting: Vec<_> = (0..3)
            .map(|_| match flights.join(b"a") {
                Flight::Waits(landing) => landing.0,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(waiting.iter_mut().all(|wait| wait.try_recv() == Ok(None)));
        drop(first);
        assert!(waiting.iter_mut().all(|wait| wait.try_recv().is_err()), "woken without a value");
        drop(leads(&flights, b"a"));
    }

    #[test]
    fn waiters_and_keys_are_bounded() {
        let flights = Arc::new(Flights::default());
        let _first = leads(&flights, b"a");
        let waiting: Vec<_> = (0..MAX_WAITERS).map(|_| flights.join(b"a")).collect();
        assert!(waiting.iter().all(|flight| matches!(flight, Flight::Waits(_))));
        assert!(matches!(flights.join(b"a"), Flight::Alone));
        drop(waiting);
        assert!(matches!(flights.join(b"a"), Flight::Waits(_)), "those that gave up do not count");
        let keys = (0..20_000u32).map(|n| flights.join(&n.to_le_bytes()));
        let leaders: Vec<_> = keys.filter(|flight| matches!(flight, Flight::Leads(_))).collect();
        assert!(leaders.len() <= SHARDS * MAX_FLIGHTS && leaders.len() > MAX_FLIGHTS, "{}", leaders.len());
        drop(leaders);
        let left: usize = flights.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert_eq!(left, 1);
    }
}
