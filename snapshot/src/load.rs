//! hot path
//!
//! Usage of an upstream's limits, over all workers.
//!
//! An upstream without limits has no [`Load`]. Counts outlive the version of the upstream they were
//! made for, as exchanges on an older one still count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::upstream::{AdaptiveConcurrency, Limits};

/// The limits of an upstream and their current usage.
#[derive(Debug, Clone)]
pub struct Load {
    pub limits: Limits,
    pub adaptive: Option<AdaptiveConcurrency>,
    pub in_use: Arc<InUse>,
}

/// Current usage.
#[derive(Debug, Default)]
pub struct InUse {
    pub connections: AtomicU32,
    pub pending: AtomicU32,
    /// Tickets drawn for the queue of connections, and tickets that have left it.
    waited: AtomicU64,
    served: AtomicU64,
    pub requests: AtomicU32,
    pub retries: AtomicU32,
    /// The current adaptive limit of requests; 0 until there is one.
    pub adaptive: AtomicU32,
    /// Responses since the adaptive limit was last computed, and their total time.
    answers: AtomicU32,
    micros: AtomicU64,
    /// The most concurrent requests since then.
    peak: AtomicU32,
}

/// A permit of a limit, held until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Permit<'a>(&'a AtomicU32);

/// A position in the first-in, first-out queue for a connection.
#[derive(Debug)]
#[must_use]
pub struct Waiting<'a> {
    load: &'a Load,
    ticket: u64,
    _permit: Option<Permit<'a>>,
}

impl Drop for Permit<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Connections,
    Pending,
    Requests,
    Retries,
    AdaptiveConcurrency,
}

impl Load {
    pub(crate) fn new(limits: Limits, adaptive: Option<AdaptiveConcurrency>) -> Option<Load> {
        (limits != Limits::default() || adaptive.is_some()).then(|| Load {
            limits,
            adaptive,
            in_use: Arc::default(),
        })
    }

    /// Takes a permit for a request.
    ///
    /// # Errors
    /// The limit that is reached.
    #[inline]
    pub fn request(&self) -> Result<Option<Permit<'_>>, Limit> {
        let adaptive = match self.adaptive {
            Some(of) => match self.in_use.adaptive.load(Ordering::Relaxed) {
                0 => Some(of.max.max(of.min)),
                limit => Some(limit),
            },
            None => None,
        };
        let Some(most) = [self.limits.requests, adaptive].into_iter().flatten().min() else {
            return Ok(None);
        };
        let permit = take(&self.in_use.requests, most).ok_or(match self.limits.requests {
            Some(limit) if limit <= most => Limit::Requests,
            _ => Limit::AdaptiveConcurrency,
        })?;
        if adaptive.is_some() {
            self.in_use.peak.fetch_max(self.in_use.requests.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(Some(permit))
    }

    /// Takes a permit for a retry; `Ok(None)` if retries are not limited.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn retry(&self) -> Result<Option<Permit<'_>>, Limit> {
        permit(&self.in_use.retries, self.limits.retries, Limit::Retries)
    }

    /// Takes a permit for a connection, leaving those that others wait for.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn connection(&self) -> Result<Option<Permit<'_>>, Limit> {
        self.connection_behind(self.in_use.pending.load(Ordering::Relaxed))
    }

    fn connection_behind(&self, ahead: u32) -> Result<Option<Permit<'_>>, Limit> {
        let most = self.limits.connections.map(|most| most.saturating_sub(ahead));
        permit(&self.in_use.connections, most, Limit::Connections)
    }

    /// Joins the queue for a connection.
    ///
    /// # Errors
    /// The queue is full; without `limits.pending` it has no capacity.
    pub fn wait(&self) -> Result<Waiting<'_>, Limit> {
        let permit = permit(&self.in_use.pending, Some(self.limits.pending.unwrap_or(0)), Limit::Pending)?;
        let ticket = self.in_use.waited.fetch_add(1, Ordering::Relaxed);
        Ok(Waiting { load: self, ticket, _permit: permit })
    }

    /// Records the time a response took.
    #[inline]
    pub fn answered(&self, micros: u64) {
        if self.adaptive.is_some() {
            self.in_use.answers.fetch_add(1, Ordering::Relaxed);
            self.in_use.micros.fetch_add(micros, Ordering::Relaxed);
        }
    }
}

impl<'a> Waiting<'a> {
    /// Takes a permit for a connection, once there is also one for each waiter ahead.
    ///
    /// # Errors
    /// The limit is reached. Returns the number of waiters ahead, at most: some behind may have
    /// given up.
    pub fn connection(&self) -> Result<Option<Permit<'a>>, u32> {
        let served = self.load.in_use.served.load(Ordering::Relaxed);
        let ahead = u32::try_from(self.ticket.saturating_sub(served)).unwrap_or(u32::MAX);
        self.load.connection_behind(ahead).map_err(|_| ahead)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.load.in_use.served.fetch_add(1, Ordering::Relaxed);
    }
}

impl PartialEq for Load {
    /// Compares the limits, not their usage.
    fn eq(&self, other: &Load) -> bool {
        self.limits == other.limits && self.adaptive == other.adaptive
    }
}

impl InUse {
    /// Returns the responses since the last call, their mean time in microseconds, and the peak;
    /// resets them.
    pub fn take(&self) -> (u32, u64, u32) {
        let answers = self.answers.swap(0, Ordering::Relaxed);
        let micros = self.micros.swap(0, Ordering::Relaxed);
        (answers, micros / u64::from(answers.max(1)), self.peak.swap(0, Ordering::Relaxed))
    }
}

impl Limit {
    pub fn words(self) -> &'static str {
        match self {
            Limit::Connections | Limit::Pending => {
                "all connections to the upstream are in use, and the waiting queue is full"
            }
            Limit::Requests => "the upstream has reached its limit of concurrent requests",
            Limit::Retries => "the upstream has reached its limit of concurrent retries",
            Limit::AdaptiveConcurrency => {
                "the upstream is slower than usual and has reached its adaptive limit of concurrent requests"
            }
        }
    }
}

fn permit(count: &AtomicU32, most: Option<u32>, limit: Limit) -> Result<Option<Permit<'_>>, Limit> {
    match most {
        None => Ok(None),
        Some(most) => take(count, most).map(Some).ok_or(limit),
    }
}

#[inline]
fn take(count: &AtomicU32, most: u32) -> Option<Permit<'_>> {
    let taken =
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then(|| count + 1));
    taken.ok().map(|_| Permit(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_released() {
        let limits = Limits { requests: Some(2), connections: Some(1), ..Limits::default() };
        let load = Load::new(limits, None).unwrap();
        let first = load.request().unwrap();
        let second = load.request().unwrap();
        assert_eq!(load.request().unwrap_err(), Limit::Requests);
        drop(first);
        let _third = load.request().unwrap();
        assert_eq!(load.request().unwrap_err(), Limit::Requests);
        drop(second);
        let connection = load.connection().unwrap();
        assert_eq!(load.connection().unwrap_err(), Limit::Connections);
        assert_eq!(
            load.wait().unwrap_err(),
            Limit::Pending,
            "without `limits.pending` the queue has no capacity"
        );
        drop(connection);
        assert!(load.connection().is_ok());
        // Without a limit nothing is counted.
        assert!(load.retry().unwrap().is_none());
        assert!(Load::new(Limits::default(), None).is_none());
    }

    #[test]
    fn retries_have_their_own_permits() {
        let load = Load::new(Limits { retries: Some(1), ..Limits::default() }, None).unwrap();
        let one = load.retry().unwrap();
        assert!(one.is_some());
        assert_eq!(load.retry().unwrap_err(), Limit::Retries);
        drop(one);
        assert!(load.retry().unwrap().is_some());
    }

    #[test]
    fn each_limit_names_the_exhausted_resource() {
        let all = [Limit::Connections, Limit::Requests, Limit::Retries, Limit::AdaptiveConcurrency];
        let words: std::collections::BTreeSet<&str> = all.iter().map(|limit| limit.words()).collect();
        assert!(words.len() == 4 && words.iter().all(|words| words.contains("upstream")));
        assert_eq!(Limit::Pending.words(), Limit::Connections.words());
    }

    #[test]
    fn loads_with_equal_limits_are_equal() {
        let adaptive = |max| Some(AdaptiveConcurrency { min: 1, max, tolerance: 2.0 });
        let limits = |requests| Limits { requests: Some(requests), ..Limits::default() };
        let load = |requests, max| Load::new(limits(requests), adaptive(max)).unwrap();
        let first = load(5, 9);
        let _in_use = first.request().unwrap();
        assert!(first == load(5, 9));
        assert!(first != load(6, 9) && first != load(5, 8));
    }

    #[test]
    fn waiters_are_served_in_order() {
        let limits = Limits { connections: Some(2), pending: Some(3), ..Limits::default() };
        let load = Load::new(limits, None).unwrap();
        let (one, two) = (load.connection().unwrap(), load.connection().unwrap());
        let waiting = [load.wait().unwrap(), load.wait().unwrap(), load.wait().unwrap()];
        assert_eq!(load.wait().unwrap_err(), Limit::Pending);
        assert_eq!([0, 1, 2].map(|n| waiting[n].connection().unwrap_err()), [0, 1, 2]);
        drop(one);
        assert_eq!(load.connection().unwrap_err(), Limit::Connections, "others are ahead");
        assert_eq!([1, 2].map(|n| waiting[n].connection().unwrap_err()), [1, 2], "and one of these is ahead");
        drop(two);
        // Two permits: one is reserved for the second, whether the first has tried yet or not.
        let [first, second, third] = waiting;
        let of_second = second.connection().unwrap();
        assert_eq!(third.connection().unwrap_err(), 2);
        drop(second);
        let of_first = first.connection().unwrap();
        drop((first, of_second));
        // A waiter that gives up does not block the others.
        let (fourth, fifth) = (load.wait().unwrap(), load.wait().unwrap());
        drop(fourth);
        assert_eq!(load.connection().unwrap_err(), Limit::Connections);
        let of_third = third.connection().unwrap();
        drop((third, of_first, of_third));
        drop(fifth.connection().unwrap());
        drop(fifth);
        let _all = [load.connection().unwrap(), load.connection().unwrap()];
    }

    #[test]
    fn the_smaller_limit_applies() {
        let adaptive = AdaptiveConcurrency { min: 1, max: 1, tolerance: 2.0 };
        let limits = Limits { requests: Some(5), ..Limits::default() };
        let load = Load::new(limits, Some(adaptive)).unwrap();
        let _one = load.request().unwrap();
        assert_eq!(load.request().unwrap_err(), Limit::AdaptiveConcurrency);
        load.in_use.adaptive.store(9, Ordering::Relaxed);
        let _more: Vec<_> = (0..4).map(|_| load.request().unwrap()).collect();
        assert_eq!(load.request().unwrap_err(), Limit::Requests);
        load.answered(10);
        load.answered(20);
        assert_eq!(load.in_use.take(), (2, 15, 5));
        assert_eq!(load.in_use.take(), (0, 0, 0));
    }
}
