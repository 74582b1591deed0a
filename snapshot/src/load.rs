//! hot path
//!
//! How much of an upstream is in use, over all workers, where that is limited.
//!
//! An upstream without limits has none of this. Numbers outlive the version of the upstream they
//! were made for, as exchanges on an older one still count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use model::upstream::{AdaptiveConcurrency, Limits};

/// The limits of an upstream, and what is in use.
#[derive(Debug, Clone)]
pub struct Load {
    pub limits: Limits,
    pub adaptive: Option<AdaptiveConcurrency>,
    pub in_use: Arc<InUse>,
}

/// What is under way.
#[derive(Debug, Default)]
pub struct InUse {
    pub connections: AtomicU32,
    pub pending: AtomicU32,
    /// How many have ever waited for a connection, and how many of these wait no more.
    waited: AtomicU64,
    served: AtomicU64,
    pub requests: AtomicU32,
    pub retries: AtomicU32,
    /// The limit of requests that follows how long answers take; 0 until there is one.
    pub adaptive: AtomicU32,
    /// Answers since the last time the limit was looked at, and how long they took.
    answers: AtomicU32,
    micros: AtomicU64,
    /// The most requests that were under way at a time since then.
    peak: AtomicU32,
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Place<'a>(&'a AtomicU32);

/// A place in the line of those that wait for a connection. Whoever came first is served first.
#[derive(Debug)]
#[must_use]
pub struct Waiting<'a> {
    load: &'a Load,
    ticket: u64,
    _place: Option<Place<'a>>,
}

impl Drop for Place<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which limit is reached.
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

    /// A place for a request.
    ///
    /// # Errors
    /// The limit that is reached.
    #[inline]
    pub fn request(&self) -> Result<Option<Place<'_>>, Limit> {
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
        let place = take(&self.in_use.requests, most).ok_or(match self.limits.requests {
            Some(limit) if limit <= most => Limit::Requests,
            _ => Limit::AdaptiveConcurrency,
        })?;
        if adaptive.is_some() {
            self.in_use.peak.fetch_max(self.in_use.requests.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(Some(place))
    }

    /// A place for a retry; `Ok(None)` if they are not limited.
    ///
    /// # Errors
    /// There is none.
    pub fn retry(&self) -> Result<Option<Place<'_>>, Limit> {
        place(&self.in_use.retries, self.limits.retries, Limit::Retries)
    }

    /// A place for a connection, besides those that others wait for.
    ///
    /// # Errors
    /// There is none now.
    pub fn connection(&self) -> Result<Option<Place<'_>>, Limit> {
        self.connection_behind(self.in_use.pending.load(Ordering::Relaxed))
    }

    fn connection_behind(&self, ahead: u32) -> Result<Option<Place<'_>>, Limit> {
        let most = self.limits.connections.map(|most| most.saturating_sub(ahead));
        place(&self.in_use.connections, most, Limit::Connections)
    }

    /// A place to wait for one.
    ///
    /// # Errors
    /// There is none: nobody may wait, unless `limits.pending` says so.
    pub fn wait(&self) -> Result<Waiting<'_>, Limit> {
        let place = place(&self.in_use.pending, Some(self.limits.pending.unwrap_or(0)), Limit::Pending)?;
        let ticket = self.in_use.waited.fetch_add(1, Ordering::Relaxed);
        Ok(Waiting { load: self, ticket, _place: place })
    }

    /// An answer took so long.
    #[inline]
    pub fn answered(&self, micros: u64) {
        if self.adaptive.is_some() {
            self.in_use.answers.fetch_add(1, Ordering::Relaxed);
            self.in_use.micros.fetch_add(micros, Ordering::Relaxed);
        }
    }
}

impl<'a> Waiting<'a> {
    /// A place for a connection, once there is one for everybody ahead as well.
    ///
    /// # Errors
    /// There is none now. Says how many are ahead: no more than that, as others behind may have given up.
    pub fn connection(&self) -> Result<Option<Place<'a>>, u32> {
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
    /// Whether the same limits hold, whatever is in use.
    fn eq(&self, other: &Load) -> bool {
        self.limits == other.limits && self.adaptive == other.adaptive
    }
}

impl InUse {
    /// Hands out the answers since the last time, their mean in microseconds, and the peak.
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
            Limit::Requests => "the upstream has as many requests under way as it may",
            Limit::Retries => "the upstream has as many retries under way as it may",
            Limit::AdaptiveConcurrency => "the upstream is slower than usual and takes no more requests now",
        }
    }
}

fn place(count: &AtomicU32, most: Option<u32>, limit: Limit) -> Result<Option<Place<'_>>, Limit> {
    match most {
        None => Ok(None),
        Some(most) => take(count, most).map(Some).ok_or(limit),
    }
}

#[inline]
fn take(count: &AtomicU32, most: u32) -> Option<Place<'_>> {
    let taken =
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < most).then(|| count + 1));
    taken.ok().map(|_| Place(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
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
        assert_eq!(load.wait().unwrap_err(), Limit::Pending, "nobody may wait unless it is said");
        drop(connection);
        assert!(load.connection().is_ok());
        // What has no limit is not counted.
        assert!(load.retry().unwrap().is_none());
        assert!(Load::new(Limits::default(), None).is_none());
    }

    #[test]
    fn retries_have_places_of_their_own() {
        let load = Load::new(Limits { retries: Some(1), ..Limits::default() }, None).unwrap();
        let one = load.retry().unwrap();
        assert!(one.is_some());
        assert_eq!(load.retry().unwrap_err(), Limit::Retries);
        drop(one);
        assert!(load.retry().unwrap().is_some());
    }

    #[test]
    fn each_limit_says_what_there_is_no_more_of() {
        let all = [Limit::Connections, Limit::Requests, Limit::Retries, Limit::AdaptiveConcurrency];
        let words: std::collections::BTreeSet<&str> = all.iter().map(|limit| limit.words()).collect();
        assert!(words.len() == 4 && words.iter().all(|words| words.contains("upstream")));
        assert_eq!(Limit::Pending.words(), Limit::Connections.words());
    }

    #[test]
    fn loads_are_equal_that_limit_the_same() {
        let adaptive = |max| Some(AdaptiveConcurrency { min: 1, max, tolerance: 2.0 });
        let limits = |requests| Limits { requests: Some(requests), ..Limits::default() };
        let load = |requests, max| Load::new(limits(requests), adaptive(max)).unwrap();
        let first = load(5, 9);
        let _in_use = first.request().unwrap();
        assert!(first == load(5, 9));
        assert!(first != load(6, 9) && first != load(5, 8));
    }

    #[test]
    fn who_waits_first_is_served_first() {
        let limits = Limits { connections: Some(2), pending: Some(3), ..Limits::default() };
        let load = Load::new(limits, None).unwrap();
        let (one, two) = (load.connection().unwrap(), load.connection().unwrap());
        let waiting = [load.wait().unwrap(), load.wait().unwrap(), load.wait().unwrap()];
        assert_eq!(load.wait().unwrap_err(), Limit::Pending);
        assert_eq!([0, 1, 2].map(|n| waiting[n].connection().unwrap_err()), [0, 1, 2]);
        drop(one);
        assert_eq!(load.connection().unwrap_err(), Limit::Connections, "others came before");
        assert_eq!([1, 2].map(|n| waiting[n].connection().unwrap_err()), [1, 2], "and so did one of these");
        drop(two);
        // Two places: one is for the second, whether the first has looked by now or not.
        let [first, second, third] = waiting;
        let of_second = second.connection().unwrap();
        assert_eq!(third.connection().unwrap_err(), 2);
        drop(second);
        let of_first = first.connection().unwrap();
        drop((first, of_second));
        // Whoever gives up holds up nobody.
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
    fn the_smaller_limit_counts() {
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
