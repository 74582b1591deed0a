//! Windows that are brought together with other nodes only from time to time (`sync_interval`).
//!
//! Each worker counts on by itself from the state it saw last, and sends what it let in at the end of each interval.
//! The node also counts at once what its workers let in: together they let in no more than the limit.
//! All nodes together may let in more, by what each lets in within an interval.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use model::Invalid;
use redis::Value;
use sdk::chain::LocalFuture;
use sdk::limit::{Decision, Hit, Limit, Limiter, Local, Rule, Unavailable, Wanted};
use sdk::state::WorkerState;
use sdk::{Build, World};

use super::limiter::{Committed, RedisLimiter};
use super::link::{Hold, Link};

/// Keys of one plugin instance that a worker counts on for; others are counted at once.
const MOST_KEYS: usize = 10_000;

/// In bytes; longer keys are counted at once.
const LONGEST_KEY: usize = 256;

/// How often windows that ended are removed from a full table.
const CLEAR_EVERY_MS: u64 = 1000;

pub struct Delayed {
    limiter: Arc<RedisLimiter>,
    interval: Duration,
    /// Counts what the workers of this node let in, and alone while there is no server.
    node: Local,
    quotas: WorkerState<Rc<Quotas>>,
}

#[derive(Default)]
struct Quotas {
    keys: RefCell<HashMap<Vec<u8>, Quota>>,
    /// A task will send what was let in.
    scheduled: Cell<bool>,
    /// When windows that ended were removed last, on the steady clock.
    cleared_ms: Cell<u64>,
}

/// A window as it was seen last, and what was let in since.
struct Quota {
    rule: Rule,
    seen: Committed,
    /// On the steady clock.
    ends_ms: u64,
    /// It was hit since its last exchange with the server.
    is_due: bool,
    delta: u64,
    link: Rc<Link>,
    /// While there is something to send.
    hold: Option<Hold>,
}

impl Delayed {
    pub fn new(
        limiter: RedisLimiter,
        interval: Duration,
        wanted: &Wanted<'_>,
        cx: &Build<'_>,
    ) -> Result<Delayed, Invalid> {
        let Limit::Local(node) = cx.limit(&Wanted { policy: "local", ..*wanted })? else {
            return Err(Invalid::new("the policy `local` does not count on this node"));
        };
        Ok(Delayed { limiter: Arc::new(limiter), interval, node, quotas: cx.worker_state("delayed") })
    }

    async fn decide(&self, world: &dyn World, hit: Hit<'_>) -> Result<Decision, Unavailable> {
        let (Rule::Fixed { window_ms, .. } | Rule::Sliding { window_ms, .. }) = hit.rule else {
            return self.limiter.decide(world, hit).await;
        };
        let quotas = self.quotas.with(world, |quotas| quotas.clone());
        let now_ms = world.steady_ms();
        let is_short = u128::from(window_ms) <= self.interval.as_millis();
        if is_short || hit.key.len() > LONGEST_KEY || !quotas.has_room(hit.key, now_ms) {
            return self.limiter.decide(world, hit).await;
        }
        if let Some(decision) = quotas.take(&self.node, hit, now_ms) {
            self.schedule(world, &quotas);
            return Ok(decision);
        }
        let delta = quotas.take_delta(hit.key);
        match self.limiter.commit(world, hit.key, delta, hit.rule).await {
            Ok((seen, link)) => {
                let ends_ms = now_ms.saturating_add(seen.reset_ms.max(1));
                let mut quota =
                    Quota { rule: hit.rule, seen, ends_ms, is_due: false, delta: 0, link, hold: None };
                let mut keys = quotas.keys.borrow_mut();
                // Others were let in meanwhile.
                quota.set(keys.get(hit.key).map_or(0, |old| old.delta));
                keys.insert(hit.key.to_vec(), quota);
            }
            Err(unavailable) => {
                quotas.give_back(hit.key, delta);
                let decision = self.node.take(self.node.key(hit.key), hit.cost, hit.rule, now_ms)?;
                return Ok(Decision { alone: Some(unavailable.0), ..decision });
            }
        }
        self.schedule(world, &quotas);
        Ok(quotas.take(&self.node, hit, now_ms).unwrap_or_default())
    }

    /// Sends at the end of the interval what was let in.
    fn schedule(&self, world: &dyn World, quotas: &Rc<Quotas>) {
        if quotas.scheduled.replace(true) {
            return;
        }
        let (interval, patience) =
            (world.sleep(self.interval), world.sleep(self.interval + Duration::from_secs(5)));
        let now_ms = world.now_ms() + self.interval.as_millis() as u64;
        let (limiter, servers, own) = (self.limiter.clone(), self.limiter.servers(world), quotas.clone());
        let task = async move {
            interval.await;
            let mut sent = Vec::new();
            for (key, quota) in
                own.keys.borrow_mut().iter_mut().filter(|(_, quota)| quota.is_due || quota.delta > 0)
            {
                quota.is_due = false;
                let call = limiter.commit_call(key, quota.delta, quota.rule, now_ms);
                match call.keys.first().and_then(|at| servers.post(at, &call.command(true))) {
                    Some(posted) => sent.push((key.clone(), quota.delta, posted)),
                    // Without a connection the next hit sends it, and finds the server that has the key.
                    None => quota.ends_ms = 0,
                }
            }
            let mut patience = patience;
            for (key, delta, posted) in sent {
                match select(posted, &mut patience).await {
                    Either::Left((Ok(value), _)) => {
                        if let Some(quota) = own.keys.borrow_mut().get_mut(&key) {
                            quota.answered(delta, &value, now_ms);
                        }
                    }
                    // It is sent with the next ones.
                    Either::Left((Err(_), _)) => {}
                    Either::Right(_) => break,
                }
            }
            own.scheduled.set(false);
        };
        if world.run(Box::pin(task)).is_err() {
            quotas.scheduled.set(false);
        }
    }
}

impl Limiter for Delayed {
    fn take<'a>(
        &'a self,
        world: &'a dyn World,
        hit: Hit<'a>,
    ) -> LocalFuture<'a, Result<Decision, Unavailable>> {
        Box::pin(self.decide(world, hit))
    }
}

impl Quota {
    fn set(&mut self, delta: u64) {
        self.delta = delta;
        match delta {
            0 => self.hold = None,
            _ => _ = self.hold.get_or_insert_with(|| Hold::new(self.link.clone(), Vec::new())),
        }
    }

    /// Takes over the answer to what was sent.
    fn answered(&mut self, delta: u64, value: &Value, now_ms: u64) {
        match self.seen.read(value, self.rule, now_ms) {
            Some(()) => self.set(self.delta.saturating_sub(delta)),
            // Another server has the key: the next hit finds it.
            None => self.ends_ms = 0,
        }
    }
}

impl Quotas {
    /// Whether the key is one of those that are counted on for; forgets windows that ended if there are too many.
    fn has_room(&self, key: &[u8], now_ms: u64) -> bool {
        let mut keys = self.keys.borrow_mut();
        let may_clear = now_ms >= self.cleared_ms.get().saturating_add(CLEAR_EVERY_MS);
        if keys.len() >= MOST_KEYS && may_clear && !keys.contains_key(key) {
            self.cleared_ms.set(now_ms);
            keys.retain(|_, quota| quota.ends_ms > now_ms || quota.delta > 0);
        }
        keys.len() < MOST_KEYS || keys.contains_key(key)
    }

    /// Decides by what was seen last and what the node let in since; nothing if that window ended.
    fn take(&self, node: &Local, hit: Hit<'_>, now_ms: u64) -> Option<Decision> {
        let mut keys = self.keys.borrow_mut();
        let quota = keys.get_mut(hit.key).filter(|quota| quota.rule == hit.rule && quota.ends_ms > now_ms)?;
        let reset_ms = quota.ends_ms - now_ms;
        quota.is_due = true;
        let delta = quota.delta + u64::from(hit.cost);
        let own = quota.seen.remaining.checked_sub(delta);
        // The node's window ends with the server's.
        let (Rule::Fixed { limit, .. } | Rule::Sliding { limit, .. }) = hit.rule else { return None };
        let rule = Rule::Fixed { limit, window_ms: reset_ms };
        let left = own.and_then(|own| {
            let taken = node.take(node.key(hit.key), hit.cost, rule, now_ms).ok()?;
            taken.allowed.then(|| own.min(taken.remaining))
        });
        if left.is_some() {
            quota.set(delta);
        }
        let (allowed, remaining) = (left.is_some(), left.unwrap_or(0));
        Some(Decision { allowed, remaining, reset_ms, ..Decision::default() })
    }

    /// Removes what was let in from a window, so that hits which come meanwhile do not send it as well.
    fn take_delta(&self, key: &[u8]) -> u64 {
        self.keys.borrow_mut().get_mut(key).map_or(0, |quota| {
            let delta = quota.delta;
            quota.set(0);
            delta
        })
    }

    fn give_back(&self, key: &[u8], delta: u64) {
        if let Some(quota) = self.keys.borrow_mut().get_mut(key) {
            quota.set(quota.delta.saturating_add(delta));
        }
    }
}
