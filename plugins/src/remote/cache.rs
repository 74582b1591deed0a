//! Documents of another server, such as keys, as a worker has them: fetched once, and again when they are old.

use std::rc::Rc;
use std::time::Duration;

use sdk::World;
use sdk::state::WorkerState;

/// Milliseconds until a document that lacks a wanted part, such as a key, is fetched again.
const LACKING: u64 = 10_000;

/// Milliseconds until a server that failed is asked again.
const FAILED: u64 = 1_000;

/// Milliseconds beyond its time for which a document is used while the server does not answer.
const STALE: u64 = 3_600_000;

/// How long a request waits before it looks again whether another one has fetched the document.
const PAUSE: Duration = Duration::from_millis(10);

/// A document, and when it came.
pub(crate) struct Cache<T> {
    document: Option<Rc<T>>,
    /// When the document came, and when the server failed last, in steady milliseconds.
    came: u64,
    failed: Option<u64>,
    /// A request fetches it.
    asks: bool,
}

impl<T> Default for Cache<T> {
    fn default() -> Cache<T> {
        Cache { document: None, came: 0, failed: None, asks: false }
    }
}

/// The next step of a request that needs the document.
pub(crate) enum Next<T> {
    Use(Rc<T>),
    /// Fetch the document.
    Ask,
    /// Another request fetches it.
    Wait,
    /// The server failed a moment ago.
    Fail,
}

impl<T> Cache<T> {
    /// A document is fresh for `ttl` milliseconds, unless it lacks a part that the request needs: then it is fetched
    /// again, but not for each such request.
    pub fn next(&self, now: u64, ttl: u64, suffices: impl FnOnce(&T) -> bool) -> Next<T> {
        let failed = self.failed.is_some_and(|at| now.saturating_sub(at) < FAILED);
        let age = now.saturating_sub(self.came);
        let Some(document) = self.document.as_ref().filter(|_| age < ttl.saturating_add(STALE)) else {
            return match (self.asks, failed) {
                (true, _) => Next::Wait,
                (_, true) => Next::Fail,
                _ => Next::Ask,
            };
        };
        let is_current = age < ttl && (suffices(document) || age < LACKING);
        if is_current || self.asks || failed { Next::Use(document.clone()) } else { Next::Ask }
    }

    /// The document as it came last, however old.
    pub fn last(&self) -> Option<Rc<T>> {
        self.document.clone()
    }

    /// A request begins to ask. If it is given up, as when its client disconnects, the server is spared for a moment:
    /// clients must not make the gateway ask as often as they connect. Without a document the next request asks.
    fn begin(&mut self, now: u64) {
        self.asks = true;
        if self.document.is_some() {
            self.failed = Some(now);
        }
    }

    /// Drops a document that must not be used any longer: requests wait for another one.
    pub fn forget(&mut self, is_over: impl FnOnce(&T) -> bool) {
        self.document.take_if(|document| is_over(document));
    }

    fn store(&mut self, now: u64, document: T) -> Rc<T> {
        let document = Rc::new(document);
        *self = Cache { document: Some(document.clone()), came: now, failed: None, asks: false };
        document
    }

    fn fail(&mut self, now: u64) {
        self.failed = Some(now);
        self.asks = false;
    }
}

/// Returns a document, which `ask` fetches if need be. One request of a worker fetches it; the others wait up to `wait`
/// milliseconds. `None` if it cannot be had: `ask` has reported the reason.
pub(crate) async fn obtain<T: 'static>(
    cache: &WorkerState<Cache<T>>,
    world: &dyn World,
    (ttl, wait): (u64, u64),
    suffices: impl Fn(&T) -> bool,
    ask: impl AsyncFn() -> Option<T>,
) -> Option<Rc<T>> {
    let end = world.steady_ms().saturating_add(wait);
    loop {
        let now = world.steady_ms();
        match cache.with(world, |cache| cache.next(now, ttl, &suffices)) {
            Next::Use(document) => return Some(document),
            Next::Ask => {}
            Next::Wait if now < end => {
                world.sleep(PAUSE).await;
                continue;
            }
            Next::Wait | Next::Fail => return None,
        }
        cache.with(world, |cache| cache.begin(now));
        let asking = Asking { cache, world };
        let answer = ask().await;
        drop(asking);
        let now = world.steady_ms();
        let Some(document) = answer else {
            cache.with(world, |cache| cache.fail(now));
            continue;
        };
        // It serves the request that asked, even if it does not hold for any time.
        return Some(cache.with(world, |cache| cache.store(now, document)));
    }
}

/// Marks that a request asks the server, until it is dropped.
struct Asking<'a, T: 'static> {
    cache: &'a WorkerState<Cache<T>>,
    world: &'a dyn World,
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        self.cache.with(self.world, |cache| cache.asks = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_given_up_do_not_ask_again_and_again() {
        let (ttl, mut cache) = (300_000, Cache::default());
        let asks = |cache: &Cache<&str>, now| matches!(cache.next(now, ttl, |held| *held == "b"), Next::Ask);
        cache.begin(0);
        assert!(!asks(&cache, 0), "another request asks");
        cache.asks = false;
        assert!(asks(&cache, 0), "there is no document yet");
        cache.store(0, "a");
        let late = LACKING + 1;
        assert!(asks(&cache, late));
        cache.begin(late);
        cache.asks = false;
        assert!(!asks(&cache, late) && !asks(&cache, late + FAILED - 1));
        assert!(asks(&cache, late + FAILED));
    }
}
