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

    pub fn store(&mut self, now: u64, keys: KeySet) {
        *self = Cache { keys: Some(Rc::new(keys)), came: now, failed: None, asks: false };
    }

    pub fn fail(&mut self, now: u64) {
        self.failed = Some(now);
        self.asks = false;
    }
}
