//! The keys of a server, as a worker has them.

use std::rc::Rc;

use super::keys::KeySet;

/// Milliseconds until an unknown key is looked for again.
const UNKNOWN: u64 = 10_000;

/// Milliseconds until a server that failed is asked again.
const FAILED: u64 = 1_000;

/// Milliseconds beyond their time for which keys are used while the server does not answer.
const STALE: u64 = 3_600_000;

#[derive(Default)]
pub(super) struct Cache {
    keys: Option<Rc<KeySet>>,
    /// When the keys came, and when the server failed last, in steady milliseconds.
    came: u64,
    failed: Option<u64>,
    /// A request is on its way.
    pub asks: bool,
}

/// The next step for a token.
pub(super) enum Next {
    Verify(Rc<KeySet>),
    /// Ask the server.
    Ask,
    /// Another request asks.
    Wait,
    /// The server failed a moment ago.
    Fail,
}

impl Cache {
    /// For a token of this key. Keys are fresh for `ttl` milliseconds.
    pub fn next(&self, now: u64, ttl: u64, key: Option<&str>) -> Next {
        let failed = self.failed.is_some_and(|at| now.saturating_sub(at) < FAILED);
        let age = now.saturating_sub(self.came);
        let Some(keys) = self.keys.as_ref().filter(|_| age < ttl.saturating_add(STALE)) else {
            return match (self.asks, failed) {
                (true, _) => Next::Wait,
                (_, true) => Next::Fail,
                _ => Next::Ask,
            };
        };
        let is_known = key.is_none_or(|key| keys.may_hold(key));
        let is_current = age < ttl && (is_known || age < UNKNOWN);
        if is_current || self.asks || failed { Next::Verify(keys.clone()) } else { Next::Ask }
    }

    /// A request begins to ask. If it is given up, as when its client disconnects, the server is spared for a moment:
    /// clients must not make the gateway ask as often as they connect. Without keys the next request asks.
    pub fn begin(&mut self, now: u64) {
        self.asks = true;
        if self.keys.is_some() {
            self.failed = Some(now);
        }
    }

    pub fn store(&mut self, now: u64, keys: KeySet) {
        *self = Cache { keys: Some(Rc::new(keys)), came: now, failed: None, asks: false };
    }

    pub fn fail(&mut self, now: u64) {
        self.failed = Some(now);
        self.asks = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_are_given_up_do_not_ask_again_and_again() {
        let text = br#"{"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}"#;
        let (ttl, mut cache) = (300_000, Cache::default());
        let asks = |cache: &Cache, now| matches!(cache.next(now, ttl, Some("b")), Next::Ask);
        cache.begin(0);
        assert!(!asks(&cache, 0), "another request asks");
        cache.asks = false;
        assert!(asks(&cache, 0), "there are no keys yet");
        cache.store(0, KeySet::read(text).unwrap());
        let late = UNKNOWN + 1;
        assert!(asks(&cache, late));
        cache.begin(late);
        cache.asks = false;
        assert!(!asks(&cache, late) && !asks(&cache, late + FAILED - 1));
        assert!(asks(&cache, late + FAILED));
    }
}
